"""The verb `ade evaluate`: metrics of a model on labelled texts, and a report as an HTML page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table

from ade.cli import display, options
from ade.cli.options import option
from ade.cli.writing import one_line
from ade.configuration import CLASSIFIER, TAGGER, check_kind
from ade.data.columns import Schema
from ade.data.problems import SINGLE
from ade.errors import InputError
from ade.files import new_file

if TYPE_CHECKING:
    from ade.evaluation import AnyEvaluation, ClassMetrics, TagEvaluation

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
    from ade.evaluation_report import report_page
    from ade.trained_model import load

    options.check_output(report, overwrite)
    loaded: Any = load(model, device)
    if loaded.kind != TAGGER:
        check_kind(model, loaded.kind, CLASSIFIER)
    problem = None if loaded.kind == TAGGER else loaded.problem
    if report is not None and problem != SINGLE:
        raise InputError(f"{model}: solves {problem or 'tagging'}; --report is for single-label models")
    dataset: Any = as_dataset(data, schema=Schema(text_column, label_column, problem), split=split)
    display.say_columns(data, dataset)
    result: Any = evaluate(loaded, dataset)
    if report is not None:
        labelled = dataset.relabelled(result.names)
        with new_file(report) as draft:
            draft.write_text(report_page(f"{model} on {data}", result, labelled.texts, labelled.labels), "utf8")
        display.say(f"{report}: the report, {display.size(report.stat().st_size)}; open it in a browser")
    display.show(_as_dict(result), as_json, *tables(result))


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


def tables(result: "AnyEvaluation | TagEvaluation") -> list[Table | str]:
    """Metrics; of labels also precision, recall and F1, and for single-label models what is confused."""
    metrics = result.as_dict()
    names = ["texts" if name == "n" else display.metric_name(name) for name in metrics]
    parts: list[Table | str] = [
        display.table(names, [[display.format_metric(name, value) for name, value in metrics.items()]])
    ]
    if (error := getattr(result, "calibration_error", None)) is not None:
        parts.append(f"probabilities are off by {100 * error:.1f} on average (calibration error, 15 bins)")

    classes: list[ClassMetrics] = getattr(result, "classes", [])
    shown = classes
    if len(classes) > MAX_CLASSES:  # those of the lowest F1, which occur
        shown = sorted((each for each in classes if each.n), key=lambda each: each.f1)[:MAX_CLASSES]
    if classes:
        rows = []
        for label, *values, count in shown:
            rows.append((one_line(label), *(f"{100 * value:.2f}" for value in values), f"{count:,}"))
        parts += ["", display.table(("label", "precision", "recall", "F1", "texts"), rows)]
    if len(shown) < len(classes):
        parts.append(f"({len(shown)} of {len(classes):,} labels, the lowest F1 first; --json has all)")

    pairs = result.confused() if hasattr(result, "confused") else []
    if pairs:
        rows = [(one_line(each.label), one_line(each.predicted), f"{each.n:,}", f"{each.of:,}") for each in pairs]
        columns = ("most frequent confusions", "predicted", "times", "of")
        parts += ["", display.table(columns, rows, texts=(0, 1))]
    return parts
