"""The plots beside the tables: what a choice costs in bytes and time, and what K and SAT bring."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.book import SHORT, Book, Record
from benchmarks.chart import sizes
from benchmarks.sections_compress import mean_of, rise_of
from benchmarks.tables import CODED, CODED_ALIKE, TABLES
from benchmarks.tables_compress import OURS, SOURCE
from benchmarks.tables_sentence import RATES

LEFT = ("ADE, 1.5 MB", "NB-SVM, tuned", "model2vec")  # names to the left of their points: another point is to the right
INTEGERS, OFFSETS = "int2, int3, int4, int8", "int2, int3, int4, with offsets"  # a line each of the frontier
OTHER_COLOURS = {
    INTEGERS: "#2980b9",
    OFFSETS: "#16a085",
    "PQ (faiss)": "#e67e22",
    "RQ (faiss)": "#27ae60",
    "trimmed vocabulary": "#8e44ad",
}
FOLDER = Path(__file__).parent / "plots"


def draw(found: list[dict[str, Any]]) -> None:
    """Draw every plot whose records exist."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {"figure.figsize": (7, 4.2), "axes.spines.top": False, "axes.spines.right": False, "font.size": 10}
    )
    book = Book(found)
    FOLDER.mkdir(exist_ok=True)
    for name, plot in (
        ("bytes", _bytes),
        ("speed", _speed),
        ("anchors", _anchors),
        ("cosine", _cosine),
        ("growth", _growth),
        ("pareto", _pareto),
        ("stages", _stages),
        ("frontier", _frontier),
        ("frontier_decoder", _frontier_decoder),
        ("encoders", _encoders),
    ):
        figure, axes = pyplot.subplots()
        if plot(axes, book):
            figure.tight_layout()
            figure.savefig(FOLDER / f"{name}.png", dpi=150, metadata={"Software": ""})
        pyplot.close(figure)


def _points(book: Book) -> list[tuple[str, dict[str, float]]]:
    points = []
    for name, row in TABLES["classification"]().items():
        found = book.of(row["ag_news"])
        if found:
            figures = {**found[0]["figures"], "accuracy": sum(r["figures"]["accuracy"] for r in found) / len(found)}
            points.append(
                (
                    SHORT.get(name, name.split(" (")[0].replace("preset ", "")),
                    {**figures, "texts_per_second": book.rate_of(found[0])},
                )
            )
    return points


def _scatter(axes: Any, points: list[tuple[str, dict[str, float]]], across: str, label: str) -> bool:
    shown = [(name, figures) for name, figures in points if figures.get(across)]
    for name, figures in shown:
        ours = name.startswith("ADE")
        axes.scatter(figures[across], 100 * figures["accuracy"], s=60, color="#c0392b" if ours else "#34495e", zorder=3)
        axes.annotate(
            name,
            (figures[across], 100 * figures["accuracy"]),
            xytext=(-6 if name in LEFT else 6, -13 if name.endswith("tokens") else 5),
            ha="right" if name in LEFT else "left",
            textcoords="offset points",
        )
    axes.set(xscale="log", xlabel=label, ylabel="accuracy on AG News, %")
    axes.grid(alpha=0.25)
    axes.margins(x=0.3, y=0.15)
    return len(shown) > 1


def _bytes(axes: Any, book: Book) -> bool:
    """Accuracy against bytes; peers whose settings were tuned say so."""
    points = []
    for name, found in sizes(book).items():
        accuracy = sum(record["figures"]["accuracy"] for record in found) / len(found)
        tuned = ", tuned" if "tuned" in found[0]["settings"] else ""
        points.append((name + tuned, {"bytes": found[0]["figures"]["bytes"] / 1e6, "accuracy": accuracy}))
    drawn = _scatter(axes, points, "bytes", "MB of all that prediction needs, tokenizer included")
    axes.set(xticks=[1, 2, 5, 10, 20, 50, 100], xticklabels=["1", "2", "5", "10", "20", "50", "100"])
    return drawn


def _speed(axes: Any, book: Book) -> bool:
    return _scatter(axes, _points(book), "texts_per_second", "texts a second from raw text, 2 CPU cores")


def _anchors(axes: Any, book: Book) -> bool:
    drawn = False
    for name, row in TABLES["sat"]().items():
        found = {int(k): [100 * record["figures"]["accuracy"] for record in book.of(runs)] for k, runs in row.items()}
        line = [(k, sum(values) / len(values)) for k, values in found.items() if values]
        if line:
            style = "--o" if "without" in name else "-o"
            axes.plot(*zip(*line, strict=True), style, color="#c0392b" if "strong" in name else "#34495e", label=name)
            drawn = True
    axes.set(xlabel="anchors K", ylabel="accuracy on AG News, %")
    axes.grid(alpha=0.25)
    if drawn:
        axes.legend(frameon=False)
    return drawn


def _cosine(axes: Any, book: Book) -> bool:
    found = [record["figures"] | record["settings"] for record in book.table("compression")]
    line = [(figures["bytes"] / 128_100, figures["cosine"], figures["anchors"]) for figures in found]
    for size, cosine, count in line:
        axes.scatter(size, cosine, s=60, color="#c0392b", zorder=3)
        axes.annotate(f"K={count}", (size, cosine), xytext=(6, -12), textcoords="offset points")
    axes.set(xlabel="bytes a token, all counted", ylabel="mean cosine to the teacher")
    axes.grid(alpha=0.25)
    axes.margins(x=0.15, y=0.15)
    return bool(line)


def _growth(axes: Any, book: Book) -> bool:
    found = [record for record in book.table("growth") if record["kind"] == "growth"]
    for record in found:
        for name, style in (("length", "-o"), ("anchors", "--s"), ("pairs", ":^")):
            points = record["figures"][name]
            mode = record["settings"]["attend"]
            colour = "#c0392b" if mode == "tokens" else "#34495e"
            label = {"length": "tokens in a text", "anchors": "anchors K", "pairs": "pairs k"}[name]
            axes.plot(
                [point["at"] for point in points], [point["microseconds"] for point in points],
                style, color=colour, label=f"{mode}, {label}",
            )  # fmt: skip
    if not found:
        return False
    axes.set(xscale="log", yscale="log", xlabel="length, K or k", ylabel="microseconds a text, 2 CPU cores")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.25)
    return True


def _pareto(axes: Any, book: Book) -> bool:
    drawn = False
    for method, row in TABLES["size"]().items():
        found = [record["figures"] for runs in row.values() for record in book.of(runs)]
        line = sorted((each["bytes"] / 2**20, each["cosine"]) for each in found if each["bytes"])
        if line:
            colour = {"ADE, packed": "#c0392b", CODED: "#2c3e50", CODED_ALIKE: "#95a5a6"}.get(method)
            axes.plot(*zip(*line, strict=True), "-o", label=method, linewidth=2.5 if colour else 1.2,
                      color=colour, zorder=3 if colour else 2)  # fmt: skip
            drawn = True
    axes.set(xscale="log", xlabel="MiB, the tokenizer apart", ylabel="mean cosine to DeBERTa-v3-xsmall's table")
    axes.grid(alpha=0.25)
    if drawn:
        axes.legend(frameon=False, fontsize=8)
    return drawn


def _frontier(axes: Any, book: Book) -> bool:
    """What an encoder's task makes of its table in many sizes."""
    drawn = _ways(axes, book.everywhere("frontier"), lambda figures: mean_of(figures["tatoeba"]))
    axes.set(xlabel="MB of multilingual-e5-small's table", ylabel="Tatoeba, mean of 12 languages, %")
    axes.set(ylim=(60, 93))  # a trimmed vocabulary begins below
    return drawn


def _frontier_decoder(axes: Any, book: Book) -> bool:
    """What is left of a decoder's perplexity with its table in many sizes."""
    found = book.everywhere("frontier_decoder")
    source = next((each["figures"] for each in found if each["settings"]["method"] == SOURCE), None)
    if source is None:
        return False
    drawn = _ways(axes, found, lambda figures: 1 + rise_of(source, figures) / 100)
    axes.set(yscale="log", yticks=[1, 2, 5, 10, 20, 50], yticklabels=["1", "2", "5", "10", "20", "50"])
    axes.set(xlabel="MB of Gemma-3-270M's table, head tied", ylabel="perplexity, times the source's (WikiText-2)")
    axes.minorticks_off()
    return drawn


def _ways(axes: Any, found: list[Record], height: Callable[[Record], float]) -> bool:
    """Draw figures of a table in many sizes: a line a way, those of whole bits as one."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for record in found:
        method = record["settings"]["method"]
        name = method
        if method.startswith("int"):
            name = OFFSETS if method.endswith("offsets") else INTEGERS
        figures = record["figures"]
        lines.setdefault(name, []).append((figures["bytes"] / 1e6, height(figures)))
    for name, points in lines.items():
        if name == SOURCE:
            axes.axhline(points[0][1], color="#7f8c8d", linestyle=":", label=name)
        else:
            ours = name == OURS
            axes.plot(*zip(*sorted(points), strict=True), "-o", label=name, linewidth=2.5 if ours else 1.2,
                      color=OTHER_COLOURS.get(name, "#c0392b"), zorder=3 if ours else 2)  # fmt: skip
    axes.set(xscale="log", xticks=[4, 8, 16, 32, 64, 128], xticklabels=["4", "8", "16", "32", "64", "128"])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    if lines:
        axes.legend(frameon=False, fontsize=8)
    return bool(lines)


def _encoders(axes: Any, book: Book) -> bool:
    """STS-B against texts a second: each encoder of the table whose rate was measured, by its best records."""
    rates = book.of(TABLES["sentence"]()[RATES][""])
    if not rates:
        return False
    for name, columns in TABLES["sentence"]().items():
        found = [book.of(runs) for runs in columns.values()]
        measured = rates[0]["figures"].get(name)
        records = next((each for each in found if each), [])
        if measured is None or not records or name == RATES:
            continue
        height = 100 * sum(each["figures"]["tasks"]["stsb"]["test"] for each in records) / len(records)
        ours = name.startswith("ADE")
        axes.plot(measured["texts_per_second"], height, "o", color="#c0392b" if ours else "#7f8c8d", zorder=3)
        axes.annotate(
            name, (measured["texts_per_second"], height), textcoords="offset points", xytext=(6, 5), fontsize=8
        )
    axes.set(xscale="log", xlabel="texts a second, 2 CPU cores", ylabel="STS-B (English), 100 x Spearman")
    axes.grid(alpha=0.25)
    axes.margins(x=0.25, y=0.12)
    return True


def _stages(axes: Any, book: Book) -> bool:
    """Where the time of a prediction goes, each bar all of it: on a CPU core, and in a large batch on a GPU."""
    bars: dict[str, dict[str, float]] = {}
    for record in book.table("growth"):
        if record["kind"] == "stages":
            bars[f"CPU, {record['settings']['attend']}"] = record["figures"]
    for record in book.everywhere("latency"):
        for name, large in record["figures"].get("large", {}).items():
            spent = {key.removesuffix(" ms"): value for key, value in large.items() if key.endswith(" ms")}
            bars[f"GPU, {name.removeprefix('ADE ')}"] = spent
    stages = list(dict.fromkeys(stage for spent in bars.values() for stage in spent))
    for place, spent in enumerate(bars.values()):
        start, total = 0.0, sum(spent.values())
        for stage, value in spent.items():
            share = 100 * value / total
            axes.barh(place, share, left=start, color=f"C{stages.index(stage)}", edgecolor="white", alpha=0.7)
            if share > 9:
                words = stage.replace(", ", ",\n").replace(" (", "\n(")
                axes.text(start + share / 2, place, words, ha="center", va="center", fontsize=7)
            start += share
    axes.set(yticks=range(len(bars)), yticklabels=list(bars), xlabel="share of the time, %")
    return bool(bars)
