"""The plots beside the tables: what a choice costs in bytes and time, and what K and SAT bring."""

from pathlib import Path
from typing import Any

from benchmarks.records import FP32, Run
from benchmarks.tables import ANCHORS, PEERS, SEEDS, TABLES, ade_run, peer_run

FOLDER = Path(__file__).parent / "plots"


def draw(found: list[dict[str, Any]]) -> None:
    """Draw every plot whose records exist."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {"figure.figsize": (7, 4.2), "axes.spines.top": False, "axes.spines.right": False, "font.size": 10}
    )
    by_key = {record["key"]: record for record in found}
    FOLDER.mkdir(exist_ok=True)
    for name, plot in (
        ("bytes", _bytes),
        ("speed", _speed),
        ("anchors", _anchors),
        ("cosine", _cosine),
        ("growth", _growth),
    ):
        figure, axes = pyplot.subplots()
        if plot(axes, by_key):
            figure.tight_layout()
            figure.savefig(FOLDER / f"{name}.png", dpi=150, metadata={"Software": ""})
        pyplot.close(figure)


def _points(by_key: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    runs: list[tuple[str, list[Run]]] = [
        ("ADE strong", [ade_run("", "ag_news", "strong", 500, seed, attend="gated") for seed in SEEDS]),
        ("ADE paper", [ade_run("", "ag_news", "paper", 500, seed) for seed in SEEDS]),
    ]
    runs += [(peer, [peer_run("", "ag_news", peer)]) for peer in PEERS]
    points = []
    for name, group in runs:
        found = [by_key[run.key]["figures"] for run in group if run.key in by_key]
        if found:
            points.append((name, {**found[0], "accuracy": sum(each["accuracy"] for each in found) / len(found)}))
    measured_at = [by_key[run.key]["figures"] for run in TABLES["throughput"]() if run.key in by_key]
    rates: dict[str, Any] = measured_at[0] if measured_at else {}
    for name, figures in points:
        measured = {"ADE strong": "ADE gated", "ADE paper": "ADE tokens", "minilm-l6": FP32}.get(name)
        if measured in rates:
            figures["texts_per_second"] = rates[measured]["texts_per_second"]
    return points


def _scatter(axes: Any, points: list[tuple[str, dict[str, float]]], across: str, label: str) -> bool:
    shown = [(name, figures) for name, figures in points if figures.get(across)]
    for name, figures in shown:
        ours = name.startswith("ADE")
        axes.scatter(figures[across], 100 * figures["accuracy"], s=60, color="#c0392b" if ours else "#34495e", zorder=3)
        axes.annotate(name, (figures[across], 100 * figures["accuracy"]), xytext=(6, 5), textcoords="offset points")
    axes.set(xscale="log", xlabel=label, ylabel="accuracy on AG News, %")
    axes.grid(alpha=0.25)
    axes.margins(x=0.18, y=0.15)
    return len(shown) > 1


def _bytes(axes: Any, by_key: dict[str, Any]) -> bool:
    return _scatter(axes, _points(by_key), "bytes", "bytes on disk")


def _speed(axes: Any, by_key: dict[str, Any]) -> bool:
    return _scatter(axes, _points(by_key), "texts_per_second", "texts a second from raw text, 2 CPU cores")


def _anchors(axes: Any, by_key: dict[str, Any]) -> bool:
    drawn = False
    for preset, colour in (("strong", "#c0392b"), ("paper", "#34495e")):
        for on, style in ((True, "-o"), (False, "--o")):
            line = []
            for k in ANCHORS:
                runs = [ade_run("", "ag_news", preset, k, seed, sat=on) for seed in SEEDS]
                found = [100 * by_key[run.key]["figures"]["accuracy"] for run in runs if run.key in by_key]
                if found:
                    line.append((k, sum(found) / len(found)))
            if line:
                axes.plot(
                    *zip(*line, strict=True), style, color=colour, label=f"{preset}, {'with' if on else 'without'} SAT"
                )
                drawn = True
    axes.set(xlabel="anchors K", ylabel="accuracy on AG News, %")
    axes.grid(alpha=0.25)
    if drawn:
        axes.legend(frameon=False)
    return drawn


def _cosine(axes: Any, by_key: dict[str, Any]) -> bool:
    found = [by_key[run.key]["figures"] | run.settings for run in TABLES["compression"]() if run.key in by_key]
    line = [(figures["bytes"] / 128_100, figures["cosine"], figures["anchors"]) for figures in found]
    for size, cosine, count in line:
        axes.scatter(size, cosine, s=60, color="#c0392b", zorder=3)
        axes.annotate(f"K={count}", (size, cosine), xytext=(6, -12), textcoords="offset points")
    axes.set(xlabel="bytes a token, all counted", ylabel="mean cosine to the teacher")
    axes.grid(alpha=0.25)
    axes.margins(x=0.15, y=0.15)
    return bool(line)


def _growth(axes: Any, by_key: dict[str, Any]) -> bool:
    found = [by_key[run.key] for run in TABLES["growth"]() if run.key in by_key and run.kind == "growth"]
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
