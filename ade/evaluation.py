"""How good predictions are: accuracy, macro F1, precision, recall, the confusion matrix, spread over seeds.

Several labels a text, and numbers, have figures of their own; `best_by` names the one a run is steered by.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ade.data.conll import OUTSIDE, TaggedDataset
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.tokenize import CHUNK
from ade.errors import InputError
from ade.predictor import Predictor

if TYPE_CHECKING:
    from ade.classifier import Tagger

MOST_LABELS = 2000  # of a confusion matrix
SCORES = 1 << 26  # held at a time in evaluation


@dataclass(frozen=True)
class Evaluation:
    """Figures as fractions; precision and recall are means over the classes that occur."""

    accuracy: float
    macro_f1: float
    precision: float
    recall: float
    n: int
    counts: np.ndarray  # (m, 3): a true label, a predicted one, how often they met; in order, zeros left out
    names: tuple[str, ...]
    best_by: ClassVar[str] = "accuracy"

    @property
    def confusion(self) -> np.ndarray:
        """The confusion matrix (C, C): rows are true labels, columns predicted ones."""
        count = len(self.names)
        if count > MOST_LABELS:
            raise InputError(f"no confusion matrix of {count:,} labels; `counts` has its entries that are not 0")
        matrix = np.zeros((count, count), dtype=np.int64)
        matrix[self.counts[:, 0], self.counts[:, 1]] = self.counts[:, 2]
        return matrix

    def as_dict(self) -> dict[str, Any]:
        """The figures alone, ready for JSON."""
        return {name: getattr(self, name) for name in ("accuracy", "macro_f1", "precision", "recall", "n")}


@dataclass(frozen=True)
class SeveralEvaluation:
    """Figures of texts with any number of labels; micro over all marks, macro over the labels that occur."""

    micro_f1: float
    macro_f1: float
    precision: float  # micro
    recall: float  # micro
    exact: float  # texts whose labels are all right
    n: int
    best_by: ClassVar[str] = "micro_f1"

    def as_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class NumberEvaluation:
    """Figures of numbers; r2 is the share of their variance that is explained, a correlation nothing where one is
    constant."""

    r2: float
    pearson: float | None
    spearman: float | None
    mean_error: float  # absolute
    root_mean_square_error: float
    n: int
    best_by: ClassVar[str] = "r2"

    def as_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        return asdict(self)


AnyEvaluation = Evaluation | SeveralEvaluation | NumberEvaluation
KINDS: dict[str, type[AnyEvaluation]] = {SINGLE: Evaluation, MULTI: SeveralEvaluation, REGRESSION: NumberEvaluation}


def evaluate(classifier: Predictor, data: Dataset) -> AnyEvaluation:
    """Predict every text of a data set and compare with its labels."""
    if data.problem != classifier.problem:
        raise InputError(f"the model solves {classifier.problem}, the labels are of {data.problem}")
    data = data.relabelled(classifier.names)
    if len(data) == 0:
        raise InputError("nothing to evaluate: the data set has no rows")
    if data.problem != SINGLE:
        return judged(data, classifier.predict_scores(data.texts), classifier.names)

    size = max(1, min(CHUNK, SCORES // len(classifier.names)))  # the scores of all texts may not fit into memory
    best = [
        classifier.predict_scores(data.texts[start : start + size], start).argmax(1)
        for start in range(0, len(data), size)
    ]
    return compare(data.labels, np.concatenate(best), classifier.names)


def judged(data: Dataset, scores: np.ndarray, names: Sequence[str]) -> AnyEvaluation:
    """Figures from a model's scores (n, C) of the rows of a data set."""
    if data.problem == REGRESSION:
        return compare_numbers(data.labels, scores[:, 0])
    if data.problem == MULTI:
        return compare_several(data.labels, scores >= 0)
    return compare(data.labels, scores.argmax(1), names)


def compare_several(truth: np.ndarray, predicted: np.ndarray) -> SeveralEvaluation:
    """Figures from true and predicted marks (n, C)."""
    hits, given, real = (truth & predicted).sum(0), predicted.sum(0), truth.sum(0)
    seen = (given + real) > 0
    return SeveralEvaluation(
        micro_f1=float(2 * hits.sum() / max(1, (given + real).sum())),
        macro_f1=float((2 * hits[seen] / (given + real)[seen]).mean()) if seen.any() else 0.0,
        precision=float(hits.sum() / max(1, given.sum())),
        recall=float(hits.sum() / max(1, real.sum())),
        exact=float((truth == predicted).all(1).mean()),
        n=len(truth),
    )


def compare_numbers(truth: np.ndarray, predicted: np.ndarray) -> NumberEvaluation:
    """Figures from true and predicted numbers."""
    truth, predicted = truth.astype(np.float64), predicted.astype(np.float64)
    error, spread_of = predicted - truth, truth - truth.mean()
    variance = float((spread_of**2).sum())
    return NumberEvaluation(
        r2=1 - float((error**2).sum()) / variance if variance else 0.0,
        pearson=_correlation(truth, predicted),
        spearman=_correlation(_ranks(truth), _ranks(predicted)),
        mean_error=float(np.abs(error).mean()),
        root_mean_square_error=float(np.sqrt((error**2).mean())),
        n=len(truth),
    )


def _correlation(one: np.ndarray, other: np.ndarray) -> float | None:
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(one, other)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, the mean one for equal values."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def compare(truth: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> Evaluation:
    """Figures from true and predicted class numbers."""
    count = len(names)
    hits = np.bincount(truth[truth == predicted], minlength=count)  # (C,)
    given, real = np.bincount(predicted, minlength=count), np.bincount(truth, minlength=count)
    seen = (given + real) > 0  # a class nobody has and nobody predicts says nothing
    precision, recall = hits / np.maximum(given, 1), hits / np.maximum(real, 1)
    f1 = 2 * hits / np.maximum(given + real, 1)

    pairs, times = np.unique(truth.astype(np.int64) * count + predicted, return_counts=True)  # never (C, C)
    return Evaluation(
        accuracy=float(hits.sum() / len(truth)),
        macro_f1=float(f1[seen].mean()),
        precision=float(precision[seen].mean()),
        recall=float(recall[seen].mean()),
        n=len(truth),
        counts=np.stack([pairs // count, pairs % count, times], axis=1),
        names=tuple(names),
    )


def spread(figures: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over seeds."""
    values = np.asarray(figures, dtype=np.float64)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class TagEvaluation:
    """The share of right tags; and of the spans that tags like B-PER, I-PER mark, as a whole and by their kind."""

    accuracy: float
    f1: float
    precision: float
    recall: float
    words: int
    spans: int
    best_by: ClassVar[str] = "f1"

    def as_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        return asdict(self)


def evaluate_tagger(tagger: "Tagger", data: TaggedDataset) -> TagEvaluation:
    """Tag every sentence of a data set and compare with its tags."""
    data = data.relabelled(tagger.names)
    if len(data) == 0:
        raise InputError("nothing to evaluate: the data set has no sentences")
    return compare_tags(data.tags, tagger.tags(data.sentences), tagger.names)


def compare_tags(truth: Sequence[np.ndarray], predicted: Sequence[np.ndarray], names: Sequence[str]) -> TagEvaluation:
    """Figures from true and predicted tags; where no tag marks a span, every word is one."""
    real = {(i, span) for i, tags in enumerate(truth) for span in spans([names[tag] for tag in tags])}
    given = {(i, span) for i, tags in enumerate(predicted) for span in spans([names[tag] for tag in tags])}
    hits, words = len(real & given), sum(map(len, truth))
    right = sum(int((one == other).sum()) for one, other in zip(truth, predicted, strict=True))
    return TagEvaluation(
        accuracy=right / max(1, words),
        f1=2 * hits / max(1, len(real) + len(given)),
        precision=hits / max(1, len(given)),
        recall=hits / max(1, len(real)),
        words=words,
        spans=len(real),
    )


def spans(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """(first, after last, kind) of what tags mark: B- begins, I- goes on, E- ends, S- stands alone (or L-, U-).

    A tag without such a mark is a span of its own, O is none. I- after another kind begins a span, too.
    """
    start, kind = 0, None
    for i, tag in enumerate([*tags, OUTSIDE]):
        mark, _, name = tag.partition("-") if tag[1:2] == "-" else ("S" if tag != OUTSIDE else "", "", tag)
        if kind is not None and (mark not in "IEL" or not mark or name != kind):
            yield start, i, kind
            kind = None
        if mark and kind is None:
            start, kind = i, name
        if kind is not None and mark in "ESLU":
            yield start, i + 1, kind
            kind = None
