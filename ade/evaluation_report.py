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
BINS, SIDE, MARGIN, TOP = 10, 300, 44, 10  # of the calibration curve: bins, and pixels

GREEN, RED = "30,140,70", "200,50,40"  # of right and wrong entries of the matrix
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #8884; vertical-align: top; }
th:first-child, td:first-child, .mistakes th, .mistakes td { text-align: left; }
.matrix td { border: 1px solid #8882; } .wide { overflow-x: auto; }
.mistakes td { white-space: pre-wrap; overflow-wrap: anywhere; }
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
    rates = (result.accuracy, result.macro_f1, result.precision, result.recall, error)
    labels = [(_text(each.label), *map(_percent, each[1:4]), f"{each.n:,}") for each in result.classes]

    wrong = np.flatnonzero(~right)
    worst = wrong[np.argsort(-probability[wrong], kind="stable")[:MAX_MISTAKES]].tolist()
    mistakes = [
        (_text(_shortened(texts[i])), _text(result.names[truth[i]]), _text(result.names[result.predicted[i]]),
         f"{probability[i]:.4f}")
        for i in worst
    ]  # fmt: skip
    overall = ("texts", "accuracy", "macro F1", "precision", "recall", "calibration error")
    parts = [
        f"<h1>{_text(title)}</h1>",
        _table(overall, [(f"{result.n:,}", *map(_percent, rates))]),
        "<h2>Labels</h2>",
        _table(("label", "precision", "recall", "F1", "texts"), labels),
        _confusion(result),
        "<h2>Calibration</h2>",
        "<p>Texts by the probability of their predicted label, and how many of these predictions are right. Below the "
        "dashed line the model is too sure. The calibration error is the mean distance from it.</p>",
        _curve(bins),
        "<h2>Worst mistakes</h2>",
        f"<p>{len(worst)} of {len(wrong):,} wrong predictions, the most probable first.</p>",
        f'<div class="mistakes">{_table(("text", "label", "predicted", "probability"), mistakes)}</div>',
    ]
    head = f'<meta charset="utf-8"><title>{_text(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def calibration(right: np.ndarray, probability: np.ndarray) -> list[Bin]:
    """Group predictions into bins of equal width by their probability (n,); bins without texts are left out."""
    numbers = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
    masks = [numbers == number for number in range(BINS)]
    return [Bin(float(probability[m].mean()), float(right[m].mean()), int(m.sum())) for m in masks if m.any()]


def _confusion(result: "Evaluation") -> str:
    if len(result.names) > MAX_MATRIX:
        rows = [(_text(a), _text(b), f"{n:,}", f"{of:,}") for a, b, n, of in result.confused(MAX_CONFUSED)]
        return "<h2>Most frequent confusions</h2>\n" + _table(("label", "predicted", "texts", "of"), rows)

    lines = []
    for name, counts in zip(result.names, result.confusion.tolist(), strict=True):
        cells = [
            f'<td style="background:rgba({GREEN if name == other else RED},{0.75 * count / max(1, sum(counts)):.2f})">'
            f"{count:,}</td>"
            for other, count in zip(result.names, counts, strict=True)
        ]
        lines.append(f"<tr><th>{_text(name)}</th>{''.join(cells)}</tr>")
    head = "".join(f"<th>{_text(name)}</th>" for name in result.names)
    return (
        "<h2>Confusion matrix</h2>\n<p>Rows are the labels, columns the predictions.</p>\n"
        f'<div class="wide"><table class="matrix"><tr><th></th>{head}</tr>\n' + "\n".join(lines) + "</table></div>"
    )


def _curve(bins: Sequence[Bin]) -> str:
    """The calibration curve as SVG; the area of a point grows with its number of texts."""
    width, height, most = SIDE + MARGIN + 20, SIDE + 56, max((each.n for each in bins), default=1)
    left, right, bottom = MARGIN, MARGIN + SIDE, TOP + SIDE
    parts = [
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="calibration curve">',
        f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#888"/>',
        f'<line x1="{left}" y1="{bottom}" x2="{right}" y2="{TOP}" stroke="#888" stroke-dasharray="5 4"/>',
    ]
    points = [(left + SIDE * each.probability, bottom - SIDE * each.accuracy) for each in bins]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#2a6fb0" stroke-width="2"/>')
    for (x, y), each in zip(points, bins, strict=True):
        said = f"{each.n:,} texts, probability {each.probability:.3f}, right {each.accuracy:.3f}"
        radius = 2 + 6 * (each.n / most) ** 0.5
        circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#2a6fb0">'
        parts.append(f"{circle}<title>{said}</title></circle>")
    for value in (0, 0.25, 0.5, 0.75, 1):
        x, y = left + SIDE * value, bottom - SIDE * value
        parts.append(f'<text x="{x:.0f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{value:g}</text>')
    names = "probability; upwards: fraction right"
    parts.append(f'<text x="{left + SIDE // 2}" y="{bottom + 36}" text-anchor="middle">{names}</text></svg>')
    return "".join(parts)


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
