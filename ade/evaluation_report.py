"""The HTML page of `ade evaluate --report`: metrics, confusion matrix, calibration curve and the worst mistakes.

One file without scripts or links; every name and text is escaped.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ade.evaluation import Evaluation

MAX_MATRIX = 40  # labels of a confusion matrix that is still readable; of more, the largest entries are listed
MAX_MISTAKES, MAX_CONFUSED, MAX_CHARS = 50, 40, 600
BINS, SIDE, MARGIN = 10, 300, 44  # of the calibration curve: bins, and pixels

GREEN, RED = "30,140,70", "200,50,40"  # of right and wrong entries of the matrix
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #8884; vertical-align: top; }
th:first-child, td:first-child, .left { text-align: left; }
.matrix td { border: 1px solid #8882; } .wide { overflow-x: auto; }
.text { text-align: left; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { max-width: 100%; } svg text { fill: currentColor; font-size: 12px; }
"""


class Bin(NamedTuple):
    """The texts whose predictions have about the same probability: their mean probability, and the fraction right."""

    probability: float
    accuracy: float
    n: int


def report_page(title: str, result: "Evaluation", texts: Sequence[str], truth: np.ndarray) -> str:
    """The page about an evaluation whose texts have the classes `truth` (n,)."""
    assert result.predicted is not None
    assert result.probability is not None
    right, probability = result.predicted == truth, result.probability.astype(np.float64)
    bins = calibration(right, probability)
    error = sum(each.n * abs(each.probability - each.accuracy) for each in bins) / max(1, result.n)

    parts = [
        f"<h1>{_text(title)}</h1>",
        _table(
            ("texts", "accuracy", "macro F1", "precision", "recall", "calibration error"),
            [(f"{result.n:,}", *map(_percent, (result.accuracy, result.macro_f1, result.precision, result.recall,
                                               error)))],
        ),
        "<h2>Labels</h2>",
        _table(
            ("label", "precision", "recall", "F1", "texts"),
            [(_text(each.label), *map(_percent, each[1:4]), f"{each.n:,}") for each in result.classes],
        ),
        _confusion(result),
        "<h2>Calibration</h2>",
        "<p>Texts by the probability of their predicted label, and how many of these predictions are right. Below the "
        "dashed line the model is too sure. The calibration error is the mean distance from it.</p>",
        _curve(bins),
        _mistakes(result, texts, truth),
    ]  # fmt: skip
    head = f'<meta charset="utf-8"><title>{_text(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def summary(result: "Evaluation") -> str:
    """The metrics and the confusion matrix alone, for notebooks."""
    row = (f"{result.n:,}", *map(_percent, (result.accuracy, result.macro_f1, result.precision, result.recall)))
    return _table(("texts", "accuracy", "macro F1", "precision", "recall"), [row]) + _confusion(result)


def calibration(right: np.ndarray, probability: np.ndarray) -> list[Bin]:
    """Group predictions into bins of equal width by their probability (n,); bins without texts are left out."""
    numbers = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
    masks = [numbers == number for number in range(BINS)]
    return [Bin(float(probability[m].mean()), float(right[m].mean()), int(m.sum())) for m in masks if m.any()]


def _confusion(result: "Evaluation") -> str:
    if len(result.names) > MAX_MATRIX:
        rows = [(_text(a), _text(b), f"{n:,}", f"{of:,}") for a, b, n, of in result.confused(MAX_CONFUSED)]
        return "<h2>Most frequent confusions</h2>\n" + _table(("label", "predicted", "texts", "of"), rows)

    matrix = result.confusion
    totals = np.maximum(matrix.sum(1, keepdims=True), 1)
    shares = matrix / totals
    lines = []
    for name, counts, row in zip(result.names, matrix.tolist(), shares.tolist(), strict=True):
        cells = [
            f'<td style="background:rgba({GREEN if name == other else RED},{0.75 * share:.2f})">{count:,}</td>'
            for other, count, share in zip(result.names, counts, row, strict=True)
        ]
        lines.append(f"<tr><th>{_text(name)}</th>{''.join(cells)}</tr>")
    head = "".join(f"<th>{_text(name)}</th>" for name in result.names)
    return (
        "<h2>Confusion matrix</h2>\n<p>Rows are the labels, columns the predictions.</p>\n"
        f'<div class="wide"><table class="matrix"><tr><th></th>{head}</tr>\n' + "\n".join(lines) + "</table></div>"
    )


def _curve(bins: Sequence[Bin]) -> str:
    """The calibration curve as SVG; the area of a point grows with its number of texts."""
    most = max((each.n for each in bins), default=1)

    def x(value: float) -> float:
        return MARGIN + SIDE * value

    def y(value: float) -> float:
        return 10 + SIDE * (1 - value)

    points = " ".join(f"{x(each.probability):.1f},{y(each.accuracy):.1f}" for each in bins)
    circles = "".join(
        f'<circle cx="{x(each.probability):.1f}" cy="{y(each.accuracy):.1f}" r="{2 + 6 * (each.n / most) ** 0.5:.1f}" '
        f'fill="#2a6fb0"><title>{each.n:,} texts, probability {each.probability:.3f}, right {each.accuracy:.3f}</title>'
        "</circle>"
        for each in bins
    )
    ticks = "".join(
        f'<text x="{x(value):.0f}" y="{SIDE + 28}" text-anchor="middle">{value:g}</text>'
        f'<text x="{MARGIN - 6}" y="{y(value) + 4:.0f}" text-anchor="end">{value:g}</text>'
        for value in (0, 0.25, 0.5, 0.75, 1)
    )
    frame = f'<rect x="{MARGIN}" y="10" width="{SIDE}" height="{SIDE}" fill="none" stroke="#888"/>'
    diagonal = f'<line x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}" stroke="#888" stroke-dasharray="5 4"/>'
    curve = f'<polyline points="{points}" fill="none" stroke="#2a6fb0" stroke-width="2"/>'
    names = f'<text x="{x(0.5)}" y="{SIDE + 46}" text-anchor="middle">probability; upwards: fraction right</text>'
    width, height = SIDE + MARGIN + 20, SIDE + 56
    label = 'role="img" aria-label="calibration curve"'
    inside = frame + diagonal + curve + circles + ticks + names
    return f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" {label}>{inside}</svg>'


def _mistakes(result: "Evaluation", texts: Sequence[str], truth: np.ndarray) -> str:
    """The wrong predictions of the highest probability."""
    assert result.predicted is not None
    assert result.probability is not None
    wrong = np.flatnonzero(result.predicted != truth)
    worst = wrong[np.argsort(-result.probability[wrong], kind="stable")[:MAX_MISTAKES]].tolist()
    rows = [
        f'<tr><td class="text">{_text(_shortened(texts[i]))}</td><td class="left">{_text(result.names[truth[i]])}</td>'
        f'<td class="left">{_text(result.names[result.predicted[i]])}</td><td>{result.probability[i]:.4f}</td></tr>'
        for i in worst
    ]
    head = '<tr><th>text</th><th class="left">label</th><th class="left">predicted</th><th>probability</th></tr>'
    shown = f"{len(rows)} of {len(wrong):,} wrong predictions, the most probable first."
    return f"<h2>Worst mistakes</h2>\n<p>{shown}</p>\n<table>{head}\n" + "\n".join(rows) + "</table>"


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + " ..."


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table whose cells are HTML already."""
    head = "".join(f"<th>{name}</th>" for name in columns)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _text(text: str) -> str:
    """Text as HTML; control characters, which no page may hold, become spaces."""
    return escape("".join(" " if ord(char) < 32 and char not in "\n\t" else char for char in text))
