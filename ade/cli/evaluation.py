"""The verb `ade evaluate`: metrics of a model on labelled texts, and a report as an HTML page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from rich.console import Console

from ade.cli import display, options
from ade.cli.options import option
from ade.cli.writing import one_line
from ade.configuration import CLASSIFIER, TAGGER, check_kind
from ade.data.columns import Schema
from ade.data.problems import SINGLE
from ade.errors import InputError
from ade.files import new_file

if TYPE_CHECKING:
    from ade.evaluation import AnyEvaluation, ClassMetrics, Evaluation, TagEvaluation

MAX_CLASSES = 25  # labels whose metrics are printed


def evaluate(
    model: options.Model,
    data: options.Data,
    split: Annotated[str, option("Split of the dataset.", metavar="NAME")] = "test",
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    report: Annotated[
        Path | None, option("HTML page to write: metrics, calibration, the worst mistakes.", metavar="FILE")
    ] = None,
    device: options.Device = "auto",
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Evaluate a model on labelled texts.

    Accuracy, macro F1, precision and recall, the same of each label, and what is confused. Models of several labels,
    regression models and taggers have metrics of their own.
    """
    from ade.data.sources import as_dataset
    from ade.evaluation import evaluate
    from ade.trained_model import load

    options.check_output(report, overwrite)
    loaded: Any = load(model, device)
    if loaded.kind != TAGGER:
        check_kind(model, loaded.kind, CLASSIFIER)
    problem = None if loaded.kind == TAGGER else loaded.problem
    if report is not None and problem != SINGLE:
        raise InputError(f"{model}: solves {problem or 'tagging'}; --report is for single-label models")
    dataset = as_dataset(data, schema=Schema(text_column, label_column, problem), split=split)
    display.say_columns(data, dataset)
    result: Any = evaluate(loaded, dataset)
    if report is not None:
        _write_report(report, f"{model} on {data}", result, dataset)
    display.show(_as_dict(result), as_json, lambda to: print_evaluation(to, result))


def _write_report(report: Path, title: str, result: Any, dataset: Any) -> None:
    from ade.evaluation_report import report_page

    labelled = dataset.relabelled(result.names)
    with new_file(report) as draft:
        draft.write_text(report_page(title, result, labelled.texts, labelled.labels), "utf8")
    display.say(f"{report}: the report, {display.size(report.stat().st_size)}; open it in a browser")


def _as_dict(result: Any) -> dict[str, Any]:
    """All metrics for JSON, with those of each label and the confusions where there are any."""
    from ade.evaluation import Evaluation

    metrics = dict(result.as_dict())
    if getattr(result, "classes", None):
        metrics["classes"] = [each._asdict() for each in result.classes]
    if isinstance(result, Evaluation):
        metrics["calibration_error"] = result.calibration_error
        metrics["labels"] = list(result.names)
        metrics["confused"] = [each._asdict() for each in result.confused()]
        metrics["confusion"] = result.counts.tolist()  # rows of true label, predicted label, texts
    return metrics


def print_evaluation(to: Console, result: "AnyEvaluation | TagEvaluation") -> None:
    """Print metrics; of labels also precision, recall and F1, and for single-label models the confusions."""
    metrics = result.as_dict()
    table = display.plain_table(*("texts" if name == "n" else display.metric_name(name) for name in metrics))
    table.add_row(*(display.format_metric(name, value) for name, value in metrics.items()))
    to.print(table)
    if (error := getattr(result, "calibration_error", None)) is not None:
        to.print(f"probabilities are off by {100 * error:.1f} on average (calibration error, 15 bins)", style="dim")
    classes: list[ClassMetrics] = getattr(result, "classes", [])
    if classes:
        _print_classes(to, classes)
    if "counts" in vars(result):
        _print_confusion(to, cast("Evaluation", result))


def _print_classes(to: Console, classes: "list[ClassMetrics]") -> None:
    """Print the metrics of each label; of many labels those of the lowest F1, which occur."""
    shown = classes
    if len(classes) > MAX_CLASSES:
        shown = sorted((each for each in classes if each.n), key=lambda each: each.f1)[:MAX_CLASSES]
    to.print()
    table = display.plain_table("label", "precision", "recall", "F1", "texts")
    for label, *values, count in shown:
        table.add_row(one_line(label), *(f"{100 * value:.2f}" for value in values), f"{count:,}")
    to.print(table)
    if len(shown) < len(classes):
        to.print(f"({len(shown)} of {len(classes):,} labels, the lowest F1 first; --json has all)")


def _print_confusion(to: Console, result: "Evaluation") -> None:
    """Print the most frequent confusions."""
    pairs = result.confused()
    if not pairs:
        return
    to.print()
    table = display.plain_table("most frequent confusions", "predicted", "times", "of")
    table.columns[1].no_wrap = False
    for label, predicted, times, total in pairs:
        table.add_row(one_line(label), one_line(predicted), f"{times:,}", f"{total:,}")
    to.print(table)
