"""The HTML page of `ade evaluate --report`: metrics, confusion matrix, calibration and the worst mistakes.

One file without scripts or links; every name and text is escaped.
"""

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from ade.evaluation import Evaluation

MAX_MATRIX = 40  # labels of a confusion matrix that is still readable; of more, the largest entries are listed
MAX_MISTAKES, MAX_CONFUSED, MAX_CHARS = 50, 40, 600
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; display: block; overflow-x: auto; }
th, td { padding: .2rem .6rem; text-align: left; border-bottom: 1px solid #8884; vertical-align: top; }
td { white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def report_page(title: str, result: Evaluation, texts: Sequence[str], truth: np.ndarray) -> str:
    """Return the page about an evaluation whose texts have the classes `truth` (n,)."""
    assert result.predicted is not None
    assert result.probability is not None
    rates = (result.accuracy, result.macro_f1, result.precision, result.recall, result.calibration_error)
    wrong = np.flatnonzero(result.predicted != truth)
    worst = wrong[np.argsort(-result.probability[wrong], kind="stable")[:MAX_MISTAKES]].tolist()
    mistakes = []
    for i in worst:
        text = texts[i] if len(texts[i]) <= MAX_CHARS else texts[i][:MAX_CHARS] + " ..."
        names = result.names[truth[i]], result.names[result.predicted[i]]
        mistakes.append((text, *names, f"{result.probability[i]:.4f}"))

    overall = ("texts", "accuracy", "macro F1", "precision", "recall", "calibration error")
    labels = ((each.label, *map(_percent, each[1:4]), f"{each.n:,}") for each in result.classes)
    bins = ((_percent(each.probability), _percent(each.accuracy), f"{each.n:,}") for each in result.bins)
    parts = [
        f"<h1>{_text(title)}</h1>",
        _table(overall, [(f"{result.n:,}", *map(_percent, rates))]),
        "<h2>Labels</h2>",
        _table(("label", "precision", "recall", "F1", "texts"), labels),
        _confusion(result),
        "<h2>Calibration</h2>",
        "<p>Texts by the probability of their predicted label, and how many of these predictions are right. The "
        "calibration error is the mean difference.</p>",
        _table(("probability", "right", "texts"), bins),
        "<h2>Worst mistakes</h2>",
        f"<p>{len(worst)} of {len(wrong):,} wrong predictions, the most probable first.</p>",
        _table(("text", "label", "predicted", "probability"), mistakes),
    ]
    head = f'<meta charset="utf-8"><title>{_text(title)}</title><style>{STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _confusion(result: Evaluation) -> str:
    if len(result.names) > MAX_MATRIX:
        pairs = ((one, other, f"{n:,}", f"{total:,}") for one, other, n, total in result.confused(MAX_CONFUSED))
        return "<h2>Most frequent confusions</h2>\n" + _table(("label", "predicted", "texts", "of"), pairs)
    matrix = zip(result.names, result.confusion.tolist(), strict=True)
    rows = ((name, *(f"{count:,}" for count in counts)) for name, counts in matrix)
    return "<h2>Confusion matrix</h2>\n" + _table(("label \\ predicted", *result.names), rows)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["".join(f"<th>{_text(name)}</th>" for name in columns)]
    lines += ["".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows]
    return "<table>" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _text(text: str) -> str:
    """Return text as HTML; control characters, which no page may hold, become spaces."""
    return escape("".join(" " if ord(char) < 32 and char not in "\n\t" else char for char in text))
