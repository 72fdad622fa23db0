"""The command line: assembles the verbs and turns errors into exit statuses.

Results go to stdout, progress and errors to stderr. Heavy modules are imported inside the verbs, so that help and bad
arguments answer at once.
"""

import os
import sys
import traceback
import warnings
from importlib import import_module
from typing import Annotated

import typer

from ade import __version__
from ade.cli import display
from ade.errors import InputError, missing_package

VERBS = {  # verb -> the file that has it, in the order of the help
    "train": "making", "predict": "prediction", "evaluate": "evaluation", "inspect": "inspection", "serve": "serving",
    "export": "serving", "distill-encoder": "vectors", "encode": "vectors", "search": "vectors", "distill": "making",
    "compress": "making", "run": "demo",
}  # fmt: skip
EXTRAS_OF_VERBS = {"export": "onnx", "run": "demo"}  # of verbs that need more than the first package they miss
RESUMED = ("train", "distill-encoder")  # verbs that continue an interrupted run
INTERRUPTED = 130  # exit status after Ctrl-C, as shells have it
ANYWHERE = ("-q", "--quiet", "-v", "--verbose")  # options of `ade` that may also stand after the verb


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ade {__version__}")
        raise typer.Exit


def _global_options(
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no progress and no notices. May stand anywhere.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print warnings, and where an error comes from. May stand anywhere.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if quiet and verbose:
        raise InputError("--quiet says less, --verbose says more: give one of them")
    display.quiet = quiet
    if quiet:
        os.environ["ADE_PROGRESS"] = "0"
    if verbose:
        os.environ.update(TRANSFORMERS_VERBOSITY="info", HF_HUB_VERBOSITY="info")
    warnings.simplefilter("default" if verbose else "ignore")


def app_with(*verbs: str) -> typer.Typer:
    """The command line with these verbs, by default with all: a command imports no other's code."""
    app = typer.Typer(
        name="ade",
        help="Adaptive Dictionary Embeddings: small text classifiers that are fast on CPUs and say why.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_global_options)
    for verb in verbs or VERBS:
        app.command(verb)(getattr(import_module(f"ade.cli.{VERBS[verb]}"), verb.replace("-", "_")))
    return app


def main() -> None:
    """Run the command line; every foreseeable failure is one line on stderr and exit status 2."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    moved, words = _global_options_first(sys.argv[1:])
    verb = words[0] if words else ""

    try:
        app = app_with(*({verb} & VERBS.keys()))
        status = app([*moved, *words] or ["--help"], prog_name="ade", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception as error:
        message = _message(error, verb)
        if message is None:
            raise
        if {"-v", "--verbose"} & {*moved}:
            traceback.print_exc()
        print(message, file=sys.stderr)
        status = 2

    if status == INTERRUPTED:
        more = "; use --resume to continue" if verb in RESUMED else ""
        print(f"ade: interrupted{more}", file=sys.stderr)
    sys.exit(status or 0)


def _global_options_first(words: list[str]) -> tuple[list[str], list[str]]:
    """The words --quiet and --verbose of a command, which may stand anywhere before `--`, and the others."""
    end = words.index("--") if "--" in words else len(words)
    moved = [word for word in words[:end] if word in ANYWHERE]
    return moved, [*(word for word in words[:end] if word not in ANYWHERE), *words[end:]]


def _message(error: Exception, verb: str) -> str | None:
    """The line that a person reads about an error; None for one that is a defect of ours."""
    if isinstance(error, ImportError):
        return missing_package(f"ade {verb}", error, EXTRAS_OF_VERBS.get(verb))
    if isinstance(error, InputError):
        text = str(error)
    elif isinstance(error, OSError):
        text = f"{error.filename or 'error'}: {error.strerror or error}"
    elif isinstance(error, typer.TyperException):  # an unknown verb or option, or a value of the wrong type
        text = error.format_message()
        context = getattr(error, "ctx", None)  # of usage errors alone
        if hasattr(error, "option_name") and context and any("--set" in each.opts for each in context.command.params):
            text += f" Is it a setting: --set NAME=VALUE? '{context.command_path} --set help' lists them."
        text += f" (see '{context.command_path if context else 'ade'} --help')"
    else:
        return None
    return "ade: " + " ".join(text.split())


if __name__ == "__main__":
    main()
