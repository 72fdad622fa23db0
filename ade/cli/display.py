"""Output for people: progress bars on stderr, tables at most 80 columns wide on stdout."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ade.data.problems import Label, Prediction, Tagged
from ade.progress import Report, silent

if TYPE_CHECKING:
    from ade.cli.demo import Demo
    from ade.codebook import Codebook
    from ade.evaluation import AnyEvaluation, ClassMetrics, Evaluation, TagEvaluation
    from ade.explanation import Contributions, Explanation
    from ade.inspector.words import TokenAnchors
    from ade.integrations.onnx_export import ExportedFile

WIDTH = 80
MAX_CLASSES = 25  # labels whose metrics are printed
SECONDS = 5.0  # between two lines of progress, where there is no terminal
CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


def console() -> Console:
    """A console on standard output; colours only on a terminal."""
    terminal = Console()
    width = min(WIDTH, terminal.width) if terminal.is_terminal else WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


@contextmanager
def progress(wanted: bool | None = None) -> Iterator[Report]:
    """Context manager: a `Report` that shows the progress on stderr.

    In terminals and notebooks it draws a bar per stage, with the time left and the latest metrics; elsewhere it prints
    a line every few seconds. Nothing is shown where `wanted` is False, or where it is None and the environment variable
    `ADE_PROGRESS` is 0; of several processes only the first one shows it.
    """
    stderr = Console(stderr=True, highlight=False)
    default = os.environ.get("ADE_PROGRESS") != "0"
    if not (default if wanted is None else wanted) or os.environ.get("RANK", "0") != "0":
        yield silent
    elif stderr.is_terminal or (stderr.is_jupyter and find_spec("ipywidgets") is not None):
        yield from _bars(stderr)
    else:
        yield _Lines(stderr)


def _bars(console: Console) -> Iterator[Report]:
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
        TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[metrics]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as bars:
        stages: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total, metrics="")
            bars.update(stages[stage], completed=done, total=total, metrics=_format_progress(metrics))

        yield report


class _Lines:
    """A `Report` that prints a line, at most every `SECONDS`."""

    def __init__(self, console: Console) -> None:
        self.console, self.last = console, time.monotonic()

    def __call__(self, stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        if time.monotonic() - self.last < SECONDS:
            return
        self.last = time.monotonic()
        line = f"{stage} {done:,}/{total:,} {_format_progress(metrics)}"
        self.console.print(line.rstrip(), markup=False, soft_wrap=True)


def _format_progress(metrics: Mapping[str, float]) -> str:
    formats = {
        "loss": "loss {:.3f}",
        "accuracy": "acc {:.3f}",
        "best": "dev {:.3f}",
        "cosine": "cos {:.3f}",
        "rate": "{:,.0f}/s",
    }
    return " ".join(text.format(metrics[name]) for name, text in formats.items() if name in metrics)


def size(count: float) -> str:
    """A number of bytes with a decimal unit, as 1.5 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def plain_table(*columns: str, title: str | None = None, wrap: bool = False) -> Table:
    """A plain table: the first column to the left, numbers to the right.

    Where the table is too wide, the first column is wrapped and the others, which hold numbers, are not; with `wrap`,
    for other values, all columns may be.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        side: Any = "right" if number else "left"
        table.add_column(column, justify=side, header_style="dim", no_wrap=number > 0 and not wrap, overflow="fold")
    return table


def print_codebook(to: Console, folder: Path, book: "Codebook", teacher_nbytes: int) -> None:
    """Print the shape of a codebook, its cosine to the teacher's table and its size."""
    about = book.about
    table = plain_table("codebook", str(folder), wrap=True)
    table.add_row("teacher", f"{about['teacher']}  {book.vocabulary:,} x {book.dim}")
    table.add_row(
        "anchors",
        f"{about.get('anchors', len(book.anchors)):,}, {about['dead_anchors'] or 'none'} unused",
    )
    table.add_row("pairs", f"{len(book.indices):,}, {len(book.indices) / book.vocabulary:.2f} a token")
    table.add_row(
        "cosine to the teacher",
        f"mean {about['cosine']:.4f}  5% {about['cosine_p5']:.3f}  95% {about['cosine_p95']:.3f}",
    )
    if book.packing is not None:
        bits = f"{max(1, (book.packing.shared - 1).bit_length())} an index, {book.packing.weight_bits} a weight"
        table.add_row("bits", f"{bits}, {book.packing.anchor_bits} a number of an anchor")
        table.add_row("rows kept whole", f"{about['whole_8']:,} in 8 bits, {about['whole_4']:,} in 4")
    table.add_row("size", f"{size(teacher_nbytes)} -> {size(book.nbytes)}, {teacher_nbytes / book.nbytes:.1f}x smaller")
    to.print(table)


def print_codes(to: Console, result: Mapping[str, Any], tokens: int) -> None:
    """Print how near a table in codes is to its teacher, and its size."""
    table = plain_table("codes", result["codebook"], wrap=True)
    table.add_row("teacher", f"{result['teacher']}  {tokens:,} tokens")
    table.add_row("cosine to the teacher", f"mean {result['cosine']:.4f}  by use {result['cosine_by_use']:.4f}")
    sizes = f"{size(result['teacher_bytes'])} -> {size(result['bytes'])}"
    table.add_row("size", f"{sizes}, {result['ratio']:.1f}x smaller, {size(result['tokenizer_bytes'])} of it tokenizer")
    to.print(table)


def print_training(to: Console, result: Mapping[str, Any]) -> None:
    """Print where a trained model is, its metrics, its lexicon and its size."""
    table = plain_table("model", result["model"], wrap=True)
    table.add_row("steps", f"{result['steps']:,}")
    for name, value in result.items():
        if name.startswith("dev_"):
            table.add_row(f"{_metric_name(name.removeprefix('dev_'))} on dev", _format_metric(name, value))
    for name, value in result.get("test", {}).items():
        if name in ("accuracy", "macro_f1", "micro_f1", "f1", "r2", "spearman"):
            table.add_row(f"{_metric_name(name)} on test", _format_metric(name, value))
    table.add_row("size", f"{size(result['bytes'])}, {size(result['tokenizer_bytes'])} of it the tokenizer")
    if "lexicon" in result:
        table.add_row("lexicon", _format_lexicon(result["lexicon"]))
    to.print(table)


def _format_lexicon(lexicon: Mapping[str, Any]) -> str:
    if not lexicon["entries"]:
        return "none: it did not lower the loss on dev"
    return f"{lexicon['entries']:,} entries, weight {lexicon['weight']:.2g}, {size(lexicon['bytes'])} of the model"


def _metric_name(name: str) -> str:
    return name.replace("_", " ").replace("f1", "F1").replace("r2", "R2")


def _format_metric(name: str, value: float | None) -> str:
    """Fractions as percentages; counts, errors and correlations as they are."""
    if value is None or isinstance(value, int):
        return "-" if value is None else f"{value:,}"
    plain = name.endswith(("error", "r2", "pearson", "spearman"))
    return f"{value:.4g}" if plain else f"{100 * value:.2f}"


def print_evaluation(to: Console, result: "AnyEvaluation | TagEvaluation") -> None:
    """Print metrics; of labels also precision, recall and F1, and for single-label models the confusions."""
    metrics = result.as_dict()
    table = plain_table(*("texts" if name == "n" else _metric_name(name) for name in metrics))
    table.add_row(*(_format_metric(name, value) for name, value in metrics.items()))
    to.print(table)
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
    table = plain_table("label", "precision", "recall", "F1", "texts")
    for label, *values, count in shown:
        table.add_row(one_line(label), *(f"{100 * value:.2f}" for value in values), f"{count:,}")
    to.print(table)
    if len(shown) < len(classes):
        to.print(f"({len(shown)} of {len(classes):,} labels, the lowest F1 first; --json has all)")


def _print_confusion(to: Console, result: "Evaluation") -> None:
    """Print the confusion matrix, if it fits, and the most frequent confusions."""
    if len(result.names) <= 8:
        heads = [one_line(name)[:10] for name in result.names]
        matrix = plain_table("true \\ predicted", *heads)
        for name, row in zip(result.names, result.confusion, strict=True):
            matrix.add_row(one_line(name)[:16], *(f"{count:,}" for count in row))
        if to.measure(matrix).maximum <= to.width:
            to.print()
            to.print(matrix)

    pairs = result.confused()
    if not pairs:
        return
    to.print()
    table = plain_table("most frequent confusions", "predicted", "times", "of")
    table.columns[1].no_wrap = False
    for label, predicted, times, total in pairs:
        table.add_row(one_line(label), one_line(predicted), f"{times:,}", f"{total:,}")
    to.print(table)


def one_line(label: str) -> str:
    """A label with line breaks, tabs and other control characters escaped as in Python strings."""
    return label.translate(CONTROLS)


def format_prediction(prediction: Prediction | Tagged) -> str:
    """One line per text, tab-separated: label and probability (of multi-label models several, with | between), or a
    number; an empty label below the threshold. For a tagged sentence one line per word, and an empty line after it."""
    if isinstance(prediction, Tagged):
        pairs = zip(prediction.words, prediction.tags, strict=True)
        return "".join(f"{one_line(word)}\t{one_line(tag)}\n" for word, tag in pairs) + "\n"
    if prediction.probability is None:
        return f"{prediction.label:.6g}\n"
    if isinstance(prediction.label, list):
        probabilities = prediction.probability if isinstance(prediction.probability, list) else []
        return f"{'|'.join(map(format_label, prediction.label))}\t{'|'.join(f'{p:.4f}' for p in probabilities)}\n"
    label = "" if prediction.label is None else format_label(prediction.label)
    return f"{label}\t{prediction.probability:.4f}\n"


def format_label(label: Label) -> str:
    """A label on one line; truth values as in JSON."""
    return str(label).lower() if isinstance(label, bool) else one_line(str(label))


def print_explanation(to: Console, explanation: "Explanation") -> None:
    """Print a prediction, then what every word and the strongest n-grams add to the score of its most probable label.

    On a terminal the words of the text are coloured by that; elsewhere they are a table.
    """
    found, prediction = explanation.contributions(), explanation.prediction
    name = "the number" if prediction.probability is None else format_label(found.label)
    to.print(Text(format_prediction(prediction).rstrip("\n").replace("\t", "  "), style="bold"))
    if to.is_terminal:
        to.print(_coloured(explanation, found))
    else:
        table = plain_table("word", f"adds to {name[:24]}", "of it n-grams", "pooling weight")
        for word, pooled, total in zip(explanation.words, found.words, found.totals, strict=True):
            cells = (f"{total:+.3f}", f"{total - pooled:+.3f}", f"{100 * word.pooling_weight:.1f}%")
            table.add_row(one_line(word.text), *cells)
        to.print(table)

    strongest = [f"'{one_line(ngram.text)}' {value:+.3f}" for ngram, value in explanation.strongest_ngrams()]
    if strongest:
        to.print(Text(f"strongest n-grams: {', '.join(strongest)}"))
    bias = found.bias + found.lexicon_bias
    parts = f"words {sum(found.words):+.3f}, n-grams {sum(found.ngrams):+.3f}, bias {bias:+.3f}"
    to.print(Text(f"score of {name}: {found.score:.3f} = {parts}"))
    to.print()


def _coloured(explanation: "Explanation", found: "Contributions") -> Text:
    """The words of a text: what adds to the score in green, what takes from it in red, the strongest with numbers."""
    most = max((abs(total) for total in found.totals), default=0.0) or 1.0
    line, end = Text(), 0
    for word, total in zip(explanation.words, found.totals, strict=True):
        if word.start == word.end:  # a special token stands nowhere in the text
            line.append(f"{one_line(word.text)} ", "dim")
            continue
        line.append(one_line(explanation.text[end : word.start]))
        strength, colour = abs(total) / most, "green" if total > 0 else "red"
        line.append(one_line(word.text), f"bold {colour}" if strength > 0.5 else colour if strength > 0.1 else "")
        if strength > 0.25:  # not by colour alone
            line.append(f"{total:+.2f}", "dim")
        end = max(end, word.end)
    line.append(one_line(explanation.text[end:]))
    return line


def print_words(to: Console, tokens: "list[TokenAnchors]") -> None:
    """Print a table per token: its anchors with their weights and nearest words, the largest weight first."""
    for token in tokens:
        name = token.word if token.token.strip("▁Ġ") == token.word else f"{token.word}: {token.token}"
        in_context = ["here"] if any(use.in_context is not None for use in token.anchors) else []
        table = plain_table("anchor", "weight", *in_context, title=name)
        table.columns[0].justify, table.columns[0].no_wrap = "right", True
        left = max(20, to.width - len("+0.510  ") * len(table.columns))  # numbers stay whole, words are cut
        table.add_column("nearest words", header_style="dim", no_wrap=True, overflow="ellipsis", max_width=left)
        for use in token.anchors:
            here = [f"{use.in_context:+.3f}"] if use.in_context is not None else []
            table.add_row(str(use.anchor), f"{use.weight:+.3f}", *here, ", ".join(use.nearest))
        to.print(table)
        to.print()


def print_export(to: Console, files: "Sequence[ExportedFile]", labels: bool) -> None:
    """Print the files of an export, and how much their scores or vectors differ from PyTorch's."""
    table = plain_table("file", "size", "largest difference", "of the spread", *(["same labels"] if labels else []))
    for each in files:
        relative = each.difference / each.spread if each.spread else 0.0
        agreement = [f"{each.difference:.1e}", f"{100 * relative:.4f}%"]
        table.add_row(each.file, size(each.bytes), *agreement, *([f"{100 * each.same:.1f}%"] if labels else []))
    to.print(table)


def print_page(to: Console, result: Mapping[str, Any]) -> None:
    """Print where an HTML page was written."""
    count = result["texts"]
    sentences = "1 sentence" if count == 1 else f"{count} sentences"
    to.print(f"{result['html']}: {sentences}, {size(result['bytes'])}; open it in a browser")


def print_parameters(to: Console, counts: Mapping[str, int]) -> None:
    """Print the number of parameters of each component."""
    table = plain_table("component", "parameters")
    for name, count in counts.items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    to.print(table)


def print_demo(to: Console, demo: "Demo") -> None:
    """Print the comparison of the demo, the sizes and the anchors of some words."""
    table = plain_table("WordNet glosses, 25 classes", "accuracy", "macro F1", "training", "size")
    for entry in demo.entries:
        metrics = entry.evaluation
        table.add_row(
            entry.name,
            f"{100 * metrics.accuracy:.2f}",
            f"{100 * metrics.macro_f1:.2f}",
            f"{entry.seconds:.0f} s",
            size(entry.nbytes),
        )
    to.print(table)
    book = demo.codebook
    to.print(
        f"\nEmbedding table {size(demo.table_nbytes)}, codebook {size(book.nbytes)}: "
        f"{demo.table_nbytes / book.nbytes:.1f}x smaller, mean cosine {book.about['cosine']:.3f}.\n"
    )
    print_words(to, demo.words)
    to.print(f"Everything is in {demo.folder}. Try:")
    to.print(f"  echo 'a wading bird with long legs' | ade predict {demo.folder / 'ade'}")
    to.print(f"  ade inspect {demo.folder / 'ade'} bank")
