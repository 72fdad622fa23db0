"""The command line: assembles the verbs and turns errors into exit statuses.

Results go to stdout, progress and errors to stderr. Heavy modules are imported inside the verbs, so that help and bad
arguments answer at once.
"""

import os
import sys
import warnings
from typing import Annotated

import typer

from ade import __version__
from ade.cli.benchmark import benchmark
from ade.cli.compression import compress
from ade.cli.encoding import distill_encoder, encode, search
from ade.cli.evaluation import evaluate
from ade.cli.grouping import GroupedCommand, GroupedVerbs
from ade.cli.inspection import inspect_verb, params
from ade.cli.options import with_verbosity
from ade.cli.prediction import predict
from ade.cli.serving import export, serve
from ade.cli.training import distill, run, train
from ade.errors import InputError, missing_package

app = typer.Typer(
    name="ade",
    cls=GroupedVerbs,
    help="Adaptive Dictionary Embeddings: distil an embedding table, train a small text classifier, inspect it.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
EXTRAS_OF_VERBS = {"export": "onnx", "run": "demo"}  # of verbs that need more than the first package they miss
INTERRUPTED = 130  # exit status after Ctrl-C, as shells have it


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ade {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


for _name, _verb in {
    "train": train, "predict": predict, "evaluate": evaluate, "inspect": inspect_verb, "serve": serve, "export": export,
}.items():  # fmt: skip
    app.command(_name, cls=GroupedCommand)(with_verbosity(_verb))
for _verb in (distill_encoder, encode, search):
    app.command(cls=GroupedCommand, rich_help_panel="Vectors of texts")(with_verbosity(_verb))
for _verb in (distill, compress, benchmark, run, params):
    app.command(cls=GroupedCommand, rich_help_panel="More commands")(with_verbosity(_verb))


def main() -> None:
    """Run the command line; every foreseeable failure is one line on stderr and exit status 2."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.filterwarnings("ignore")
    if len(sys.argv) == 1:
        sys.argv.append("--help")

    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        status = _fail(str(error))
    except ImportError as error:
        missing = missing_package(f"ade {sys.argv[1]}", error, EXTRAS_OF_VERBS.get(sys.argv[1]))
        if missing is None:
            raise
        status = _fail(missing, prefix="")
    except OSError as error:
        status = _fail(f"{error.filename or 'error'}: {error.strerror or error}")
    except KeyboardInterrupt:
        status = INTERRUPTED
    except typer.TyperException as error:  # a verb or an option that does not exist, or a value of the wrong type
        context = getattr(error, "ctx", None)  # of usage errors alone
        verb = context.command_path if context is not None else "ade"
        status = _fail(f"{error.format_message()} (see '{verb} --help')")

    if status == INTERRUPTED:
        _fail("; ".join(filter(None, ("interrupted", _how_to_continue(sys.argv[1:])))))
    sys.exit(status or 0)


def _how_to_continue(words: list[str]) -> str:
    """What an interrupted command can be continued with; empty where it starts anew."""
    if words[:1] in (["train"], ["distill-encoder"]):
        return "use --resume to continue"
    if words[:1] == ["compress"] and any(word.startswith("--tune") for word in words):
        return "the same command continues the tuning"
    return ""


def _fail(message: str, prefix: str = "ade: ") -> int:
    print(prefix + " ".join(message.split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
