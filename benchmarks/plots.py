"""The plots beside the tables, drawn from the same records."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.records import Run
from benchmarks.subjects import accuracy, compress
from benchmarks.tables import Book, Figure

FOLDER = Path(__file__).parent / "plots"
BESIDE = {"accuracy": "bytes", "frontier": "frontier", "frontier_decoder": "frontier_decoder"}  # table -> its plot
OURS, OTHERS = "#c0392b", "#34495e"
LEFT = ("ADE", "NB-SVM", "model2vec")  # their names stand to the left: another point is to the right
MEGABYTES = Figure("", lambda figures: figures["bytes"] / 1e6, str)


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
        axes.set(xscale="log")
        if plot(axes, book):
            figure.tight_layout()
            figure.savefig(FOLDER / f"{name}.png", dpi=150, metadata={"Software": ""})
        pyplot.close(figure)


def points(book: Book, rows: Mapping[str, Sequence[Run]], height: Figure) -> dict[str, tuple[float, float]]:
    """For each row that has records its megabytes and the mean of another figure."""
    found = {}
    for name, runs in rows.items():
        records = [record["figures"] for record in book.of(runs)]
        if records:
            found[name] = fmean(map(MEGABYTES.of, records)), fmean(map(height.of, records))  # type: ignore[arg-type]
    return found


def draw_bytes(axes: Any, book: Book) -> bool:
    """A named point for each system."""
    found = points(book, accuracy.chart().runs, Figure("", lambda figures: 100 * figures["accuracy"], str))
    for name, (x, y) in found.items():
        left = name in LEFT
        axes.scatter(x, y, s=60, color=OURS if name.startswith("ADE") else OTHERS, zorder=3)
        axes.annotate(name, (x, y), xytext=(-6 if left else 6, 5), ha="right" if left else "left",
                      textcoords="offset points", fontsize=8)  # fmt: skip
    axes.margins(x=0.3, y=0.15)
    axes.set(xlabel="MB of all that prediction reads, tokenizer included", ylabel="accuracy on AG News, %")
    return len(found) > 1


def draw_frontier(axes: Any, book: Book, runs: Mapping[str, Sequence[Run]], height: Figure) -> bool:
    """A line for each way to pack a table; integers are one line, and those with offsets."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, point in points(book, runs, height).items():
        method = name.rsplit(", ", 1)[0] if name.endswith("MB") else name
        if method.startswith("int"):
            method = "integers, offsets" if method.endswith("offsets") else "integers"
        lines.setdefault(method, []).append(point)
    for _, level in lines.pop(compress.SOURCE, []):
        axes.axhline(level, color="#7f8c8d", linestyle=":", label=compress.SOURCE)
    for method, line in lines.items():
        style = {"linewidth": 2.5, "zorder": 3, "color": OURS} if method == compress.OURS else {"linewidth": 1.2}
        axes.plot(*zip(*sorted(line), strict=True), "-o", label=method, **style)
    if lines:
        axes.legend(frameon=False, fontsize=8)
    axes.set(xlabel="MB of the embedding table")
    return bool(lines)


def draw_encoder(axes: Any, book: Book) -> bool:
    axes.set(ylabel="Tatoeba, mean of 12 languages, %", ylim=(60, 93))  # a trimmed vocabulary begins below
    height = Figure("", compress.mean_of("tatoeba"), str)
    return draw_frontier(axes, book, compress.frontier().runs, height)


def draw_decoder(axes: Any, book: Book) -> bool:
    axes.set(ylabel="perplexity of Gemma-3-270M on WikiText-2", yscale="log")
    return draw_frontier(axes, book, compress.frontier_decoder().runs, Figure("", "perplexity", str))


PLOTS: dict[str, Callable[[Any, Book], bool]] = {
    "bytes": draw_bytes,
    "frontier": draw_encoder,
    "frontier_decoder": draw_decoder,
}
