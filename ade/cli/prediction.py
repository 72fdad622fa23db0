"""The verbs that use a trained model: `ade evaluate` and `ade predict`."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ade.cli import display
from ade.cli.notices import UnknownTokenNotice
from ade.cli.options import (
    DataArgument,
    DataOption,
    Device,
    Json,
    LabelColumn,
    Model,
    TextColumn,
    lines_of,
    one_source,
    say_columns,
    show,
)
from ade.data.problems import TAGGER
from ade.errors import InputError
from ade.files import kind_of

if TYPE_CHECKING:
    from ade.data.problems import Tagged
    from ade.predictor import Predictor


def evaluate(
    model: Model,
    file: DataArgument = None,
    data: DataOption = None,
    split: Annotated[str, typer.Option(help="Split of the dataset.")] = "test",
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Evaluate a model on labelled texts.

    Single-label models: accuracy, macro F1, precision, recall and the confusion matrix. Multi-label models, regression
    models and taggers have metrics of their own.
    """
    from ade.data.conll import is_tagged, load_tagged
    from ade.data.loading import load_dataset
    from ade.evaluation import MAX_CONFUSION_LABELS, Evaluation, evaluate

    source = one_source(file, data)
    if kind_of(model) == TAGGER:
        from ade.classifier import Tagger

        result: Any = evaluate(Tagger.load(model, device), load_tagged(source, split))
    else:
        if is_tagged(source, split):
            raise InputError(f"{source}: words with a tag each, but {model} labels texts")
        classifier = _load_predictor(model, _device(device))
        dataset = load_dataset(source, split, text_column, label_column, classifier.problem)
        say_columns(source, dataset)
        result = evaluate(classifier, dataset)

    metrics = result.as_dict()
    if isinstance(result, Evaluation):
        metrics["labels"] = list(result.names)
        if len(result.names) <= MAX_CONFUSION_LABELS:
            metrics["confusion"] = result.confusion.tolist()
        else:
            metrics["confusion_counts"] = result.counts.tolist()
    show(metrics, as_json, lambda to: display.print_evaluation(to, result))


def _device(name: str) -> str:
    """The device of a name; `auto` is the GPU where torch is installed and finds one, else the CPU."""
    if name != "auto":
        return name
    if find_spec("torch") is None:
        return "cpu"
    from ade.devices import resolve_device

    return resolve_device(name).type


def predict(
    model: Model,
    file: Annotated[str, typer.Argument(help="Text file with one text per line; - is standard input.")] = "-",
    device: Annotated[str, typer.Option(help="cpu (numpy alone, no torch) or cuda.")] = "cpu",
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Also print what every word adds to the label; with --json an object per line."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print label and probability for each line.

    Lines are read as a stream, so files may have any length. A tagger prints a word and its tag per line.
    """
    with lines_of(file) as lines:
        if explain:
            _stopping_early(lambda: _explain_lines(model, device, lines, as_json))
            return
        if kind_of(model) == TAGGER:
            predictions: Iterator[Any] = _tag_lines(model, device, lines)
        else:
            predictor = _load_predictor(model, device)
            predictions = predictor.stream(UnknownTokenNotice(predictor.tokenizer).passing(lines))

        if as_json:
            print(json.dumps({"predictions": [each._asdict() for each in predictions]}))
            return
        _stopping_early(lambda: sys.stdout.writelines(map(display.format_prediction, predictions)))


def _stopping_early(write: Callable[[], None]) -> None:
    """Write to standard output; that its reader, as `head`, stops before the end is no error."""
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain_lines(model: Path, device: str, lines: Iterator[str], as_json: bool) -> None:
    """Print the explanation of each line as soon as it is made."""
    if kind_of(model) == TAGGER:
        raise InputError(f"{model}: a tagger, which labels words; --explain needs a classifier or a regression model")
    predictor, to = _load_predictor(model, device), display.console()
    for number, line in enumerate(lines):
        (explanation,) = predictor.explain([line], first=number)
        if as_json:
            print(json.dumps(explanation.as_dict()))
        else:
            display.print_explanation(to, explanation)


def _tag_lines(model: Path, device: str, lines: Iterator[str]) -> "Iterator[Tagged]":
    from ade.classifier import Tagger

    yield from Tagger.load(model, device).stream(lines)


def _load_predictor(model: Path, device: str) -> "Predictor":
    """On the CPU the numpy runtime, which loads no torch; on other devices the PyTorch model."""
    if device == "cpu":
        from ade.runtime.runtime import Runtime

        return Runtime.load(model)
    from ade.classifier import Classifier

    return Classifier.load(model, device)
