"""The plots beside the tables, drawn from the same records."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.records import Run
from benchmarks.subjects import accuracy, compress
from benchmarks.tables import Book, Figure

FOLDER = Path(__file__).parent / "plots"
BESIDE = {  # table -> its plot
    "accuracy": "bytes",
    "sat": "anchors",
    "frontier": "frontier",
    "frontier_decoder": "frontier_decoder",
}
OURS, OTHERS = "#c0392b", "#34495e"
LEFT = ("ADE", "NB-SVM", "model2vec")  # their names stand to the left: another point is to the right
Value = str | Callable[[Any], float | None]
Point = tuple[float, float]


def draw(book: Book) -> None:
    """Draw every plot that has records, and remove those that have none."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"figure.figsize": (7, 4.2), "axes.spines.top": False, "axes.spines.right": False})
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.png"):
        old.unlink()
    for name, plot in PLOTS.items():
        figure, axes = pyplot.subplots()
        axes.grid(alpha=0.25)
        if plot(axes, book):
            figure.tight_layout()
            figure.savefig(FOLDER / f"{name}.png", dpi=150, metadata={"Software": ""})
        pyplot.close(figure)


def means(book: Book, rows: Mapping[str, Sequence[Run]], *values: Value) -> dict[str, tuple[float, ...]]:
    """The means of figures of each row that has all of them."""
    found = {}
    for name, runs in rows.items():
        figures = [[Figure("", value, str).of(record["figures"]) for record in book.of(runs)] for value in values]
        if all(each and None not in each for each in figures):
            found[name] = tuple(fmean(each) for each in figures)  # type: ignore[arg-type]
    return found


def scatter(axes: Any, points: Mapping[str, tuple[float, ...]]) -> bool:
    """A named point for each row; the horizontal axis is logarithmic."""
    for name, (x, y) in points.items():
        left = name in LEFT
        axes.scatter(x, y, s=60, color=OURS if name.startswith("ADE") else OTHERS, zorder=3)
        axes.annotate(name, (x, y), xytext=(-6 if left else 6, 5), ha="right" if left else "left",
                      textcoords="offset points", fontsize=8)  # fmt: skip
    axes.set(xscale="log")
    axes.margins(x=0.3, y=0.15)
    return len(points) > 1


def lines(axes: Any, found: Mapping[str, Sequence[Point]]) -> bool:
    """A line for each way."""
    for name, points in found.items():
        ours = name.startswith(("ADE", compress.OURS))
        style: dict[str, Any] = {"linewidth": 2.5, "zorder": 3} if ours else {"linewidth": 1.2, "zorder": 2}
        if name in ("ADE, packed", compress.OURS):
            style["color"] = OURS
        axes.plot(*zip(*sorted(points), strict=True), "-o", label=name, **style)
    if found:
        axes.legend(frameon=False, fontsize=8)
    return bool(found)


def draw_bytes(axes: Any, book: Book) -> bool:
    found = means(book, dict(accuracy.chart().cells), lambda figures: figures["bytes"] / 1e6, "accuracy")
    axes.set(xlabel="MB of all that prediction reads, tokenizer included", ylabel="accuracy on AG News, %")
    return scatter(axes, {name: (x, 100 * y) for name, (x, y) in found.items()})


def draw_anchors(axes: Any, book: Book) -> bool:
    axes.set(xlabel="anchors K", ylabel="accuracy on AG News, %")
    rows = {name: means(book, row, "accuracy") for name, row in accuracy.sat().rows.items()}
    return lines(
        axes, {name: [(int(k), 100 * value) for k, (value,) in row.items()] for name, row in rows.items() if row}
    )


def draw_frontier(axes: Any, book: Book, runs: Mapping[str, Sequence[Run]], height: Value) -> bool:
    """A task over the bytes of a table; whole bits are one line, and one with offsets."""
    found: dict[str, list[Point]] = {}
    for name, (x, y) in means(book, runs, lambda figures: figures["bytes"] / 1e6, height).items():
        method = name.rsplit(", ", 1)[0] if name.endswith("MB") else name
        if method.startswith("int"):
            method = "integers, offsets" if method.endswith("offsets") else "integers"
        found.setdefault(method, []).append((x, y))
    source = found.pop(compress.SOURCE, [])
    if source:
        axes.axhline(source[0][1], color="#7f8c8d", linestyle=":", label=compress.SOURCE)
    axes.set(xscale="log", xlabel="MB of the embedding table")
    return lines(axes, found)


def draw_encoder(axes: Any, book: Book) -> bool:
    axes.set(ylabel="Tatoeba, mean of 12 languages, %", ylim=(60, 93))  # a trimmed vocabulary begins below
    return draw_frontier(axes, book, dict(compress.frontier().cells), compress.mean_of("tatoeba"))


def draw_decoder(axes: Any, book: Book) -> bool:
    axes.set(ylabel="perplexity of Gemma-3-270M on WikiText-2", yscale="log")
    return draw_frontier(axes, book, dict(compress.frontier_decoder().cells), "perplexity")


PLOTS: dict[str, Callable[[Any, Book], bool]] = {
    "bytes": draw_bytes,
    "anchors": draw_anchors,
    "frontier": draw_encoder,
    "frontier_decoder": draw_decoder,
}
