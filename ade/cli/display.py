"""What a person sees at the terminal: progress bars on stderr, tables of at most 100 columns on stdout."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

from ade.data.problems import Prediction, Tagged
from ade.progress import Report

if TYPE_CHECKING:
    from ade.cli.demo import Demo
    from ade.codebook import Codebook
    from ade.evaluation import AnyEvaluation, Evaluation, TagEvaluation
    from ade.inspector.words import TokenAnchors
    from ade.integrations.onnx_export import ExportedFile

WIDTH = 100
CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


def console() -> Console:
    """Standard output; colours only on a terminal."""
    found = Console()
    width = min(WIDTH, found.width) if found.is_terminal else WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


@contextmanager
def progress() -> Iterator[Report]:
    """A bar for each stage of a long piece of work, with the time left and the figures so far."""
    stderr = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
        TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[figures]}"),
    )  # fmt: skip
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal) as bars:
        stages: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int, figures: Mapping[str, float]) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total, figures="")
            bars.update(stages[stage], completed=done, total=total, figures=_figures(figures))

        yield report


def _figures(figures: Mapping[str, float]) -> str:
    shown = {
        "loss": "loss {:.3f}",
        "accuracy": "acc {:.3f}",
        "best": "dev {:.3f}",
        "cosine": "cos {:.3f}",
        "rate": "{:,.0f}/s",
    }
    return " ".join(text.format(figures[name]) for name, text in shown.items() if name in figures)


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def plain_table(*columns: str, title: str | None = None) -> Table:
    """A plain table: the first column to the left, numbers to the right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", header_style="dim")
    return table


def codebook(to: Console, folder: Path, book: "Codebook", teacher_nbytes: int) -> None:
    """A fresh codebook: its shape, how close it is, what it saves."""
    about = book.about
    table = plain_table("codebook", str(folder))
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


def trained(to: Console, result: Mapping[str, Any], nbytes: int) -> None:
    """A fresh model: where it is and how good."""
    table = plain_table("model", result["model"])
    table.add_row("steps", f"{result['steps']:,}")
    for name, value in result.items():
        if name.startswith("dev_"):
            table.add_row(f"{_named(name.removeprefix('dev_'))} on dev", _figure(name, value))
    for name, value in result.get("test", {}).items():
        if name in ("accuracy", "macro_f1", "micro_f1", "f1", "r2", "spearman"):
            table.add_row(f"{_named(name)} on test", _figure(name, value))
    table.add_row("model.safetensors", size(nbytes))
    to.print(table)


def _named(figure: str) -> str:
    return figure.replace("_", " ").replace("f1", "F1").replace("r2", "R2")


def _figure(name: str, value: float | None) -> str:
    """A share as a percentage, a count or an error as it is."""
    if value is None or isinstance(value, int):
        return "-" if value is None else f"{value:,}"
    plain = name.endswith(("error", "r2", "pearson", "spearman"))
    return f"{value:.4g}" if plain else f"{100 * value:.2f}"


def evaluation(to: Console, result: "AnyEvaluation | TagEvaluation") -> None:
    """Figures; of single labels the confusion matrix, or the commonest confusions where it would not fit."""
    figures = result.as_dict()
    table = plain_table(*("texts" if name == "n" else _named(name) for name in figures))
    table.add_row(*(_figure(name, value) for name, value in figures.items()))
    to.print(table)
    if "counts" in vars(result):
        _confusion(to, cast("Evaluation", result))


def _confusion(to: Console, result: "Evaluation") -> None:
    to.print()
    if len(result.names) <= 8:
        matrix = plain_table("true \\ predicted", *(one_line(name)[:10] for name in result.names))
        for name, row in zip(result.names, result.confusion, strict=True):
            matrix.add_row(one_line(name)[:16], *(f"{count:,}" for count in row))
        to.print(matrix)
        return
    commonest = plain_table("commonest confusions", "taken for", "times", "of")
    wrong = result.counts[result.counts[:, 0] != result.counts[:, 1]]
    for true, taken, times in wrong[wrong[:, 2].argsort(kind="stable")[::-1][:10]].tolist():
        total = int(result.counts[result.counts[:, 0] == true, 2].sum())
        commonest.add_row(one_line(result.names[true]), one_line(result.names[taken]), f"{times:,}", f"{total:,}")
    to.print(commonest)


def one_line(label: str) -> str:
    """A label on one line: line breaks, tabs and other control characters as Python writes them."""
    return label.translate(CONTROLS)


def prediction(found: Prediction | Tagged) -> str:
    """A line for a text: label and probability, the labels and theirs, or a number; a line a word of a sentence."""
    if isinstance(found, Tagged):
        return (
            "".join(f"{one_line(word)}\t{one_line(tag)}\n" for word, tag in zip(found.words, found.tags, strict=True))
            + "\n"
        )
    if found.probability is None:
        return f"{found.label:.6g}\n"
    if isinstance(found.label, list):
        chances = found.probability if isinstance(found.probability, list) else []
        return f"{'|'.join(map(one_line, found.label))}\t{'|'.join(f'{p:.4f}' for p in chances)}\n"
    return f"{one_line(str(found.label))}\t{found.probability:.4f}\n"


def words(to: Console, found: "list[TokenAnchors]") -> None:
    """A block for each token: its anchors, the heaviest first."""
    for token in found:
        name = token.word if token.token.strip("▁Ġ") == token.word else f"{token.word}: {token.token}"
        table = Table(
            title=name,
            title_justify="left",
            title_style="bold",
            box=None,
            pad_edge=False,
            padding=(0, 2, 0, 0),
        )
        table.add_column("anchor", justify="right", header_style="dim")
        table.add_column("weight", justify="right", header_style="dim")
        if any(use.in_context is not None for use in token.anchors):
            table.add_column("here", justify="right", header_style="dim")
        table.add_column("nearest words", header_style="dim", no_wrap=True, overflow="ellipsis")
        for use in token.anchors:
            here = [f"{use.in_context:+.3f}"] if use.in_context is not None else []
            table.add_row(str(use.anchor), f"{use.weight:+.3f}", *here, ", ".join(use.nearest))
        to.print(table)
        to.print()


def exported(to: Console, files: "Sequence[ExportedFile]") -> None:
    """The files of an export, and how far from PyTorch they are."""
    table = plain_table("file", "size", "largest difference", "of the scores' spread", "same labels")
    for each in files:
        share = each.difference / each.spread if each.spread else 0.0
        figures = (f"{each.difference:.1e}", f"{100 * share:.4f}%", f"{100 * each.same:.1f}%")
        table.add_row(each.file, size(each.bytes), *figures)
    to.print(table)


def page(to: Console, result: Mapping[str, Any]) -> None:
    """Where a page was written."""
    count = result["texts"]
    sentences = "1 sentence" if count == 1 else f"{count} sentences"
    to.print(f"{result['html']}: {sentences}, {size(result['bytes'])}; open it in a browser")


def parameters(to: Console, counts: Mapping[str, int]) -> None:
    """The paper's appendix table."""
    table = plain_table("component", "parameters")
    for name, count in counts.items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    to.print(table)


def demo(to: Console, found: "Demo") -> None:
    """The main job: the comparison, the sizes, and a look inside."""
    table = plain_table("WordNet glosses, 25 classes", "accuracy", "macro F1", "training", "size")
    for entry in found.entries:
        figures = entry.evaluation
        table.add_row(
            entry.name,
            f"{100 * figures.accuracy:.2f}",
            f"{100 * figures.macro_f1:.2f}",
            f"{entry.seconds:.0f} s",
            size(entry.nbytes),
        )
    to.print(table)
    book = found.codebook
    to.print(
        f"\nEmbedding table {size(found.table_nbytes)}, codebook {size(book.nbytes)}: "
        f"{found.table_nbytes / book.nbytes:.1f}x smaller, mean cosine {book.about['cosine']:.3f}.\n"
    )
    words(to, found.words)
    to.print(f"Everything is in {found.folder}. Try:")
    to.print(f"  echo 'a wading bird with long legs' | ade predict {found.folder / 'ade'}")
    to.print(f"  ade inspect {found.folder / 'ade'} bank")
