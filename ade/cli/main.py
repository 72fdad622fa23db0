"""The command line: parse, call, print. Results go to stdout, progress and errors to stderr.

Heavy modules are imported inside the verbs, so that help and bad arguments answer at once.
"""

import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ade.data.problems import Tagged
    from ade.predictor import Predictor

from ade.cli import display
from ade.cli.inspection import inspect_verb
from ade.cli.options import Device, Json, LabelColumn, Model, Seed, TextColumn, lines_of, show
from ade.cli.serving import export, serve
from ade.cli.training import distill, judged, train
from ade.data.problems import TAGGER
from ade.errors import InputError
from ade.files import kind_of

app = typer.Typer(
    name="ade",
    help="Adaptive Dictionary Embeddings: distil a table, train a small classifier, look inside.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
STOPPED = 130  # exit status after Ctrl-C


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
    except OSError as error:
        status = _fail(f"{error.filename or 'error'}: {error.strerror or error}")
    except KeyboardInterrupt:
        status = STOPPED
    except Exception as error:
        if not hasattr(error, "format_message"):  # not one of the parser's own
            raise
        verb = getattr(getattr(error, "ctx", None), "command_path", "ade")
        status = _fail(f"{error.format_message()} (see '{verb} --help')")
    if status == STOPPED:
        _fail("stopped (a training run goes on with --resume)")
    sys.exit(status or 0)


def _fail(message: str) -> int:
    print("ade: " + " ".join(message.split()), file=sys.stderr)
    return 2


app.command()(distill)
app.command()(train)


@app.command()
def evaluate(
    model: Model,
    data: Annotated[str, typer.Option(help="A file, a folder, a hub name, or 'wordnet'.", show_default=False)],
    split: Annotated[str, typer.Option(help="Which part of the data.")] = "test",
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Accuracy, macro F1, precision, recall and the confusion matrix on labelled texts, or what fits other labels."""
    from ade.classifier import Classifier, Tagger
    from ade.data.conll import is_tagged, load_tagged
    from ade.data.loading import load_dataset
    from ade.evaluation import MAX_CONFUSION_LABELS, Evaluation

    if kind_of(model) == TAGGER:
        result = judged(Tagger.load(model, device), load_tagged(data, split))
    else:
        if is_tagged(data, split):
            raise InputError(f"{data}: words with a tag each, but {model} labels texts")
        classifier = Classifier.load(model, device)
        result = judged(classifier, load_dataset(data, split, text_column, label_column, classifier.problem))
    figures = result.as_dict()
    if isinstance(result, Evaluation):
        figures["labels"] = list(result.names)
        if len(result.names) <= MAX_CONFUSION_LABELS:
            figures["confusion"] = result.confusion.tolist()
        else:
            figures["confusion_counts"] = result.counts.tolist()
    show(figures, as_json, lambda to: display.evaluation(to, result))


@app.command()
def predict(
    model: Model,
    file: Annotated[str, typer.Argument(help="A file with a text a line; - is standard input.")] = "-",
    device: Annotated[str, typer.Option(help="cpu (numpy alone, starts at once) or cuda.")] = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Label and probability of each line, in order; files of any length. Of a tagger, a word and its tag a line."""
    with lines_of(file) as lines:
        found = _tagged(model, device, lines) if kind_of(model) == TAGGER else _predictor(model, device).stream(lines)
        if as_json:
            print(json.dumps({"predictions": [each._asdict() for each in found]}))
            return
        try:
            for each in found:
                sys.stdout.write(display.prediction(each))
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of our output has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tagged(model: Path, device: str, lines: Iterator[str]) -> "Iterator[Tagged]":
    from ade.classifier import Tagger

    yield from Tagger.load(model, device).stream(lines)


def _predictor(model: Path, device: str) -> "Predictor":
    """The light runtime, which needs no torch; or the model itself on another device."""
    if device == "cpu":
        from ade.runtime.runtime import Runtime

        return Runtime.load(model)
    from ade.classifier import Classifier

    return Classifier.load(model, device)


@app.command()
def params(
    dim: Annotated[int, typer.Option(help="Width of the model.", min=1)] = 768,
    labels: Annotated[int, typer.Option(help="Classes.", min=1)] = 4,
    anchors: Annotated[int, typer.Option(help="K, the number of anchors.", min=1)] = 100,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """The paper's parameter table, component by component, counted on a real model."""
    from ade.cli.sizes import count_parameters

    counts = count_parameters(dim, labels, anchors)
    show(counts, as_json, lambda to: display.parameters(to, counts))


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Folder for what the job makes.")] = Path("runs/demo"),
    epochs: Annotated[float, typer.Option(help="Passes over the training rows.")] = 4.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """The main job on embedded defaults: WordNet glosses, wordllama, and what one would use instead."""
    from ade.cli.demo import run_demo

    with display.progress() as report:
        demo = run_demo(out, seed, epochs, report)
    show(demo.as_dict(), as_json, lambda to: display.demo(to, demo))


app.command()(export)
app.command(name="inspect")(inspect_verb)
app.command()(serve)


if __name__ == "__main__":
    main()
