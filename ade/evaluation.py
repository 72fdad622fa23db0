"""Metrics of predictions: one class for each evaluation of classification, multi-label, regression and tagging."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from ade.data.columns import Schema
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.sources import as_dataset
from ade.data.tags import OUTSIDE, TaggedDataset
from ade.data.tokens import CHUNK
from ade.decision import MULTI_LABEL_LOGIT, probabilities_of
from ade.errors import InputError
from ade.trained_model import Classifier, Tagger

BINS = 15  # of predictions by their probability, for the calibration error
BEST_BY = {SINGLE: "accuracy", MULTI: "micro_f1", REGRESSION: "r2"}  # problem -> metric that chooses the best model
MAX_SCORES = 1 << 26  # class scores held in memory at a time


class ClassMetrics(NamedTuple):
    """Metrics of one label; 0 where they are undefined, as the precision of a label that is never predicted."""

    label: str
    precision: float
    recall: float
    f1: float
    n: int  # texts that have this label


class Confusion(NamedTuple):
    """Two labels that are confused: how many texts of `label`, `of` all of them, are predicted as `predicted`."""

    label: str
    predicted: str
    n: int
    of: int


class Bin(NamedTuple):
    """The texts whose predictions have about the same probability: their mean probability, and the fraction right."""

    probability: float
    accuracy: float
    n: int


@dataclass(frozen=True)
class Metrics:
    """What evaluations share: metrics, and details that are not printed."""

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics without the details, ready for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.repr}


@dataclass(frozen=True)
class Evaluation(Metrics):
    """Metrics of single-label classification; all but accuracy are means over the classes that occur."""

    accuracy: float
    macro_f1: float
    precision: float
    recall: float
    n: int
    # The confusion matrix as its entries that are not 0, since (C, C) may not fit into memory.
    counts: np.ndarray = field(repr=False)  # (m, 3): true class, predicted class, number of texts
    names: tuple[str, ...] = field(repr=False)
    classes: list[ClassMetrics] = field(repr=False)  # in the order of `names`
    predicted: np.ndarray | None = field(default=None, repr=False)  # (n,): the class of each text
    probability: np.ndarray | None = field(default=None, repr=False)  # (n,): the model's probability of that class
    bins: list[Bin] = field(default_factory=list, repr=False)  # of texts by that probability

    @property
    def calibration_error(self) -> float:
        """The mean difference between the probability of predictions and how many are right, by 15 bins."""
        gaps = sum(each.n * abs(each.probability - each.accuracy) for each in self.bins)
        return gaps / max(1, sum(each.n for each in self.bins))

    @property
    def confusion(self) -> np.ndarray:
        """The confusion matrix (C, C): rows are true labels, columns predicted ones."""
        matrix = np.zeros((len(self.names), len(self.names)), dtype=np.int64)
        matrix[self.counts[:, 0], self.counts[:, 1]] = self.counts[:, 2]
        return matrix

    def confused(self, most: int = 10) -> list[Confusion]:
        """The most frequent confusions, the largest number of texts first."""
        wrong = self.counts[self.counts[:, 0] != self.counts[:, 1]]
        largest = wrong[np.argsort(-wrong[:, 2], kind="stable")[:most]].tolist()
        return [Confusion(self.names[i], self.names[j], times, self.classes[i].n) for i, j, times in largest]


@dataclass(frozen=True)
class MultiLabelEvaluation(Metrics):
    """Metrics of multi-label classification; micro averages count every text and label, macro the labels that occur."""

    micro_f1: float
    macro_f1: float
    precision: float  # micro
    recall: float  # micro
    exact: float  # fraction of texts whose labels are all right (subset accuracy)
    n: int
    classes: list[ClassMetrics] = field(repr=False)


@dataclass(frozen=True)
class RegressionEvaluation(Metrics):
    """Metrics of regression; a correlation is None where the true or the predicted numbers are all equal."""

    r2: float
    pearson: float | None
    spearman: float | None
    mean_error: float  # mean absolute error
    root_mean_square_error: float
    n: int


@dataclass(frozen=True)
class TagEvaluation(Metrics):
    """Metrics of tagging: accuracy counts words; F1, precision and recall count whole spans, as B-PER I-PER mark."""

    accuracy: float
    f1: float
    precision: float
    recall: float
    words: int
    spans: int


AnyEvaluation = Evaluation | MultiLabelEvaluation | RegressionEvaluation


def evaluate(
    model: Classifier | Tagger,
    data: Any,
    labels: Any = None,
    *,
    split: str = "test",
    text_column: str | None = None,
    label_column: str | None = None,
) -> Any:
    """Predict every text and compare the predictions with the labels.

    `data` is whatever `train` takes: a file, a folder or a hub name (of which `split` is read), texts with `labels`, a
    DataFrame, a dataset; columns that are not named are found. Returns an `Evaluation`; models for several labels,
    numbers or tags have metrics of their own.
    """
    problem = None if isinstance(model, Tagger) else model.problem
    dataset = as_dataset(data, labels, Schema(text_column, label_column, problem), split)
    if isinstance(model, Tagger):
        if not isinstance(dataset, TaggedDataset):
            raise InputError("the model is a tagger, which needs words with a tag each")
        tagged = dataset.relabelled(model.labels)
        if len(tagged) == 0:
            raise InputError("nothing to evaluate: the data set has no sentences")
        return compare_tags(tagged.tags, model.tags(tagged.sentences), model.labels)
    if not isinstance(dataset, Dataset):
        raise InputError("words with a tag each, but the model labels texts")
    if dataset.problem != model.problem:
        raise InputError(f"the model solves {model.problem}, the labels are of {dataset.problem}")
    rows = dataset.relabelled(model.saved.config.labels)
    if len(rows) == 0:
        raise InputError("nothing to evaluate: the data set has no rows")
    if rows.problem != SINGLE:
        return evaluate_scores(rows, model.scores(rows.texts), rows.names)

    # With many labels the scores of all texts may not fit into memory.
    size = max(1, min(CHUNK, MAX_SCORES // len(rows.names)))
    best, probability = [], []
    for start in range(0, len(rows), size):
        scores = model.scores(rows.texts[start : start + size])  # (b, C)
        best.append(scores.argmax(1))
        probability.append(probabilities_of(scores, SINGLE).max(1))
    predicted = np.concatenate(best)
    metrics = compare(rows.labels, predicted, rows.names)
    given = np.concatenate(probability)
    return replace(metrics, predicted=predicted, probability=given, bins=calibration(given, predicted == rows.labels))


def evaluate_scores(data: Dataset, scores: np.ndarray, names: Sequence[str]) -> AnyEvaluation:
    """Evaluate a model's scores (n, C) for the rows of a dataset."""
    if data.problem == REGRESSION:
        return compare_numbers(data.labels, scores[:, 0])
    if data.problem == MULTI:
        return compare_multi_label(data.labels, scores >= MULTI_LABEL_LOGIT, names)
    return compare(data.labels, scores.argmax(1), names)


def rates(hits: Any, given: Any, real: Any) -> tuple[Any, Any, Any]:
    """Return precision, recall and F1 of numbers, or arrays, of what is rightly given, given, and real; 0 for 0 / 0."""
    return hits / np.maximum(given, 1), hits / np.maximum(real, 1), 2 * hits / np.maximum(given + real, 1)


def class_metrics(names: Sequence[str], hits: np.ndarray, given: np.ndarray, real: np.ndarray) -> list[ClassMetrics]:
    """Metrics of each label from the numbers (C,) of texts: rightly predicted, predicted, and with this label."""
    columns = [each.tolist() for each in (*rates(hits, given, real), real.astype(np.int64))]
    return [ClassMetrics(*row) for row in zip(names, *columns, strict=True)]


def compare_multi_label(truth: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> MultiLabelEvaluation:
    """Compute metrics from true and predicted boolean label matrices (n, C)."""
    hits, given, real = (truth & predicted).sum(0), predicted.sum(0), truth.sum(0)  # (C,) each
    precision, recall, f1 = map(float, rates(hits.sum(), given.sum(), real.sum()))
    seen = (given + real) > 0
    return MultiLabelEvaluation(
        micro_f1=f1,
        macro_f1=float(rates(hits, given, real)[2][seen].mean()) if seen.any() else 0.0,
        precision=precision,
        recall=recall,
        exact=float((truth == predicted).all(1).mean()),
        n=len(truth),
        classes=class_metrics(names, hits, given, real),
    )


def compare_numbers(truth: np.ndarray, predicted: np.ndarray) -> RegressionEvaluation:
    """Compute metrics from true and predicted numbers (n,)."""
    truth, predicted = truth.astype(np.float64), predicted.astype(np.float64)
    error, deviation = predicted - truth, truth - truth.mean()
    variance = float((deviation**2).sum())

    return RegressionEvaluation(
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
    """Return the rank of each value, from 1; equal values share the mean of their ranks."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[inverse]


def compare(truth: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> Evaluation:
    """Compute metrics from true and predicted class numbers (n,)."""
    count = len(names)
    hits = np.bincount(truth[truth == predicted], minlength=count)  # (C,)
    given, real = np.bincount(predicted, minlength=count), np.bincount(truth, minlength=count)
    seen = (given + real) > 0  # classes that neither occur nor are predicted do not count
    precision, recall, f1 = (float(each[seen].mean()) for each in rates(hits, given, real))

    cells, times = np.unique(truth.astype(np.int64) * count + predicted, return_counts=True)
    counts = np.stack([cells // count, cells % count, times], axis=1)
    accuracy, classes = float(hits.sum() / len(truth)), class_metrics(names, hits, given, real)
    return Evaluation(accuracy, f1, precision, recall, len(truth), counts, tuple(names), classes)


def compare_tags(truth: Sequence[np.ndarray], predicted: Sequence[np.ndarray], names: Sequence[str]) -> TagEvaluation:
    """Compute metrics from true and predicted tags; where no tag marks a span, every word is one."""
    real, given = set(), set()
    right = words = 0
    for i, (one, other) in enumerate(zip(truth, predicted, strict=True)):
        real |= {(i, span) for span in spans([names[tag] for tag in one])}
        given |= {(i, span) for span in spans([names[tag] for tag in other])}
        right += int((one == other).sum())
        words += len(one)
    precision, recall, f1 = map(float, rates(len(real & given), len(given), len(real)))
    return TagEvaluation(right / max(1, words), f1, precision, recall, words, len(real))


def spans(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield (start, stop, kind) of the spans that tags mark.

    B- begins a span, I- continues it, E- (or L-) ends it; S-, U- and a tag without a prefix are spans of one word.
    I- after a span of another kind begins a new one.
    """
    start, kind = 0, None
    for i, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, name = tag.partition("-") if tag[1:2] == "-" else ("S" if tag != OUTSIDE else "", "", tag)
        if kind is not None and (prefix not in "IEL" or not prefix or name != kind):
            yield start, i, kind
            kind = None
        if prefix and kind is None:
            start, kind = i, name
        if kind is not None and prefix in "ESLU":
            yield start, i + 1, kind
            kind = None


def calibration(probability: np.ndarray, right: np.ndarray) -> list[Bin]:
    """Group predictions (n,) by their probability, into bins of equal width; bins without texts are left out."""
    number = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
    bins = []
    for i in np.unique(number):
        inside = number == i
        bins.append(Bin(float(probability[inside].mean()), float(right[inside].mean()), int(inside.sum())))
    return bins
