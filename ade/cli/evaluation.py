"""The verb `ade evaluate`: metrics of a model on labelled texts, and a report as an HTML page."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from ade.cli import display
from ade.cli.options import (
    DataArgument,
    DataOption,
    Device,
    Json,
    LabelColumn,
    Model,
    TextColumn,
    one_source,
    say,
    say_columns,
    show,
)
from ade.cli.prediction import load_predictor
from ade.data.problems import SINGLE, TAGGER
from ade.errors import InputError
from ade.files import kind_of, new_file


def evaluate(
    model: Model,
    file: DataArgument = None,
    data: DataOption = None,
    split: Annotated[str, typer.Option(help="Split of the dataset.")] = "test",
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write an HTML page: confusion matrix, calibration curve, the worst mistakes."),
    ] = None,
    device: Device = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite the file of --report.")] = False,
    as_json: Json = False,
) -> None:
    """Evaluate a model on labelled texts.

    Single-label models: accuracy, macro F1, precision and recall, the same of each label, and what is confused.
    Multi-label models, regression models and taggers have metrics of their own.
    """
    from ade.data.conll import is_tagged, load_tagged
    from ade.data.loading import load_dataset
    from ade.evaluation import evaluate

    source = one_source(file, data)
    if report is not None:
        _check_report(report, overwrite)
    if kind_of(model) == TAGGER:
        if report is not None:
            raise InputError(f"{model}: a tagger; --report is for single-label models")
        from ade.classifier import Tagger

        result: Any = evaluate(Tagger.load(model, device), load_tagged(source, split))
        show(result.as_dict(), as_json, lambda to: display.print_evaluation(to, result))
        return

    if is_tagged(source, split):
        raise InputError(f"{source}: words with a tag each, but {model} labels texts")
    classifier = load_predictor(model, _device(device))
    if report is not None and classifier.problem != SINGLE:
        raise InputError(f"{model}: solves {classifier.problem}; --report is for single-label models")
    dataset = load_dataset(source, split, text_column, label_column, classifier.problem)
    say_columns(source, dataset)
    result = evaluate(classifier, dataset)
    if report is not None:
        _write_report(report, model, source, result, dataset)
    show(_as_dict(result), as_json, lambda to: display.print_evaluation(to, result))


def _check_report(report: Path, overwrite: bool) -> None:
    if report.is_dir() or not report.parent.is_dir():
        raise InputError(f"{report}: not a file in a folder that exists")
    if report.exists() and not overwrite:
        raise InputError(f"{report}: already exists; choose another name or pass --overwrite")


def _write_report(report: Path, model: Path, source: str, result: Any, dataset: Any) -> None:
    from ade.cli.report import report_page

    labelled = dataset.relabelled(result.names)
    page = report_page(f"{model} on {source}", result, labelled.texts, labelled.labels)
    with new_file(report) as draft:
        draft.write_text(page, "utf8")
    say(f"{report}: the report, {display.size(report.stat().st_size)}; open it in a browser")


def _as_dict(result: Any) -> dict[str, Any]:
    """All metrics for JSON, with those of each label and the confusions where there are any."""
    from ade.evaluation import MAX_CONFUSION_LABELS, Evaluation

    metrics = dict(result.as_dict())
    if getattr(result, "classes", None):
        metrics["classes"] = [each._asdict() for each in result.classes]
    if isinstance(result, Evaluation):
        metrics["labels"] = list(result.names)
        metrics["confused"] = [each._asdict() for each in result.confused()]
        if len(result.names) <= MAX_CONFUSION_LABELS:
            metrics["confusion"] = result.confusion.tolist()
        else:
            metrics["confusion_counts"] = result.counts.tolist()
    return metrics


def _device(name: str) -> str:
    """The device of a name; `auto` is the GPU where torch is installed and finds one, else the CPU."""
    if name != "auto":
        return name
    if find_spec("torch") is None:
        return "cpu"
    from ade.devices import resolve_device

    return resolve_device(name).type
