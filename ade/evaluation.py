"""Metrics of predictions: one class for each evaluation of classification, multi-label, regression and tagging.

`best_by` of each class names the metric that training selects the best model by.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ade.data.columns import Schema
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.tags import OUTSIDE, TaggedDataset
from ade.data.tokens import CHUNK
from ade.decision import MULTI_LABEL_LOGIT, probabilities_of
from ade.errors import InputError

if TYPE_CHECKING:
    from ade.classifier import Classifier
    from ade.tagger import Tagger

MAX_CONFUSION_LABELS = 2000  # a larger confusion matrix is not built
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


@dataclass(frozen=True)
class Evaluation:
    """Metrics of single-label classification; macro F1, precision and recall are means over the classes that occur."""

    accuracy: float
    macro_f1: float
    precision: float
    recall: float
    n: int
    counts: np.ndarray  # (m, 3): true class, predicted class, number of texts (where not 0)
    names: tuple[str, ...]
    predicted: np.ndarray | None = None  # (n,): the class of each text
    probability: np.ndarray | None = None  # (n,): the model's probability of that class
    best_by: ClassVar[str] = "accuracy"

    @property
    def confusion(self) -> np.ndarray:
        """The confusion matrix (C, C): rows are true labels, columns predicted ones."""
        count = len(self.names)
        if count > MAX_CONFUSION_LABELS:
            raise InputError(f"no confusion matrix of {count:,} labels; `counts` has its entries that are not 0")
        matrix = np.zeros((count, count), dtype=np.int64)
        matrix[self.counts[:, 0], self.counts[:, 1]] = self.counts[:, 2]
        return matrix

    @property
    def classes(self) -> list[ClassMetrics]:
        """Precision, recall and F1 of each label, in the order of `names`."""
        count = len(self.names)
        true, predicted, times = self.counts.T
        right = true == predicted
        hits = np.bincount(true[right], times[right], count)  # (C,)
        given, real = np.bincount(predicted, times, count), np.bincount(true, times, count)
        return class_metrics(self.names, hits, given, real)

    def confused(self, most: int = 10) -> list[Confusion]:
        """The most frequent confusions, the largest number of texts first."""
        true, predicted, times = self.counts.T
        real = np.bincount(true, times, len(self.names)).astype(np.int64)
        wrong = np.flatnonzero(true != predicted)
        largest = wrong[np.argsort(-times[wrong], kind="stable")[:most]]
        return [
            Confusion(self.names[true[i]], self.names[predicted[i]], int(times[i]), int(real[true[i]])) for i in largest
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics without the confusion matrix, ready for JSON."""
        return {name: getattr(self, name) for name in ("accuracy", "macro_f1", "precision", "recall", "n")}

    def _repr_html_(self) -> str:
        """Metrics and confusion matrix, as notebooks show them."""
        from ade.evaluation_report import summary

        return summary(self)


@dataclass(frozen=True)
class MultiLabelEvaluation:
    """Metrics of multi-label classification; micro averages count every text and label, macro the labels that occur."""

    micro_f1: float
    macro_f1: float
    precision: float  # micro
    recall: float  # micro
    exact: float  # fraction of texts whose labels are all right (subset accuracy)
    n: int
    classes: list[ClassMetrics] = field(default_factory=list)  # empty where the labels have no names
    best_by: ClassVar[str] = "micro_f1"

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics without those of single labels, ready for JSON."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "classes"}


@dataclass(frozen=True)
class RegressionEvaluation:
    """Metrics of regression; a correlation is None where the true or the predicted numbers are all equal."""

    r2: float
    pearson: float | None
    spearman: float | None
    mean_error: float  # mean absolute error
    root_mean_square_error: float
    n: int
    best_by: ClassVar[str] = "r2"

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics, ready for JSON."""
        return asdict(self)


AnyEvaluation = Evaluation | MultiLabelEvaluation | RegressionEvaluation
EVALUATIONS: dict[str, type[AnyEvaluation]] = {
    SINGLE: Evaluation,
    MULTI: MultiLabelEvaluation,
    REGRESSION: RegressionEvaluation,
}


def evaluate(
    model: "Classifier | Tagger",
    data: Any,
    labels: Any = None,
    *,
    split: str = "test",
    text_column: str | None = None,
    label_column: str | None = None,
) -> Any:
    """Predict every text and compare the predictions with the labels.

    Args:
        model: a `Classifier` or a `Tagger`.
        data: whatever `train` takes: a file, a folder or a hub name, texts with `labels`, a DataFrame, a dataset.
        labels: one for each text, where `data` is a list of texts.
        split: of a folder or a hub name, the split to read.
        text_column: name of the text column; found where it is None.
        label_column: name of the label column; found where it is None.

    Returns:
        An `Evaluation`; models for several labels, numbers or tags have metrics of their own.
    """
    from ade.data.sources import as_dataset
    from ade.tagger import Tagger

    if isinstance(model, Tagger):
        tagged = as_dataset(data, labels, split=split)
        if not isinstance(tagged, TaggedDataset):
            raise InputError("the model is a tagger, which needs words with a tag each")
        return evaluate_tagger(model, tagged)
    dataset = as_dataset(data, labels, Schema(text_column, label_column, model.problem), split)
    if not isinstance(dataset, Dataset):
        raise InputError("words with a tag each, but the model labels texts")
    return _evaluate_classifier(model, dataset)


def _evaluate_classifier(classifier: "Classifier", data: Dataset) -> AnyEvaluation:
    names = classifier.saved.config.labels
    if data.problem != classifier.problem:
        raise InputError(f"the model solves {classifier.problem}, the labels are of {data.problem}")
    data = data.relabelled(names)
    if len(data) == 0:
        raise InputError("nothing to evaluate: the data set has no rows")
    if data.problem != SINGLE:
        return evaluate_scores(data, classifier.scores(data.texts), names)

    # With many labels the scores of all texts may not fit into memory.
    size = max(1, min(CHUNK, MAX_SCORES // len(names)))
    best, probability = [], []
    for start in range(0, len(data), size):
        scores = classifier.scores(data.texts[start : start + size], start)  # (b, C)
        best.append(scores.argmax(1))
        probability.append(probabilities_of(scores, SINGLE).max(1))
    predicted = np.concatenate(best)
    found = compare(data.labels, predicted, names)
    return replace(found, predicted=predicted, probability=np.concatenate(probability))


def evaluate_scores(data: Dataset, scores: np.ndarray, names: Sequence[str]) -> AnyEvaluation:
    """Evaluate a model's scores (n, C) for the rows of a dataset."""
    if data.problem == REGRESSION:
        return compare_numbers(data.labels, scores[:, 0])
    if data.problem == MULTI:
        return compare_multi_label(data.labels, scores >= MULTI_LABEL_LOGIT, names)
    return compare(data.labels, scores.argmax(1), names)


def class_metrics(names: Sequence[str], hits: np.ndarray, given: np.ndarray, real: np.ndarray) -> list[ClassMetrics]:
    """Metrics of each label from the numbers (C,) of texts: rightly predicted, predicted, and with this label."""
    precision, recall = hits / np.maximum(given, 1), hits / np.maximum(real, 1)
    f1 = 2 * hits / np.maximum(given + real, 1)
    columns = (precision.tolist(), recall.tolist(), f1.tolist(), real.astype(np.int64).tolist())
    return [ClassMetrics(*row) for row in zip(names, *columns, strict=True)]


def compare_multi_label(
    truth: np.ndarray, predicted: np.ndarray, names: Sequence[str] | None = None
) -> MultiLabelEvaluation:
    """Compute metrics from true and predicted boolean label matrices (n, C)."""
    hits, given, real = (truth & predicted).sum(0), predicted.sum(0), truth.sum(0)  # (C,) each
    seen = (given + real) > 0

    return MultiLabelEvaluation(
        micro_f1=float(2 * hits.sum() / max(1, (given + real).sum())),
        macro_f1=float((2 * hits[seen] / (given + real)[seen]).mean()) if seen.any() else 0.0,
        precision=float(hits.sum() / max(1, given.sum())),
        recall=float(hits.sum() / max(1, real.sum())),
        exact=float((truth == predicted).all(1).mean()),
        n=len(truth),
        classes=[] if names is None else class_metrics(names, hits, given, real),
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
    precision, recall = hits / np.maximum(given, 1), hits / np.maximum(real, 1)
    f1 = 2 * hits / np.maximum(given + real, 1)

    # The confusion matrix as its nonzero entries: (C, C) may not fit into memory.
    cells, times = np.unique(truth.astype(np.int64) * count + predicted, return_counts=True)
    return Evaluation(
        accuracy=float(hits.sum() / len(truth)),
        macro_f1=float(f1[seen].mean()),
        precision=float(precision[seen].mean()),
        recall=float(recall[seen].mean()),
        n=len(truth),
        counts=np.stack([cells // count, cells % count, times], axis=1),
        names=tuple(names),
    )


def spread(metrics: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample standard deviation of a metric over random seeds."""
    values = np.asarray(metrics, dtype=np.float64)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class TagEvaluation:
    """Metrics of tagging: accuracy counts words; F1, precision and recall count whole spans, as B-PER I-PER mark."""

    accuracy: float
    f1: float
    precision: float
    recall: float
    words: int
    spans: int
    best_by: ClassVar[str] = "f1"

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics, ready for JSON."""
        return asdict(self)


def evaluate_tagger(tagger: "Tagger", data: TaggedDataset) -> TagEvaluation:
    """Tag every sentence of a dataset and compare the tags with its own."""
    data = data.relabelled(tagger.labels)
    if len(data) == 0:
        raise InputError("nothing to evaluate: the data set has no sentences")
    return compare_tags(data.tags, tagger.tags(data.sentences), tagger.labels)


def compare_tags(truth: Sequence[np.ndarray], predicted: Sequence[np.ndarray], names: Sequence[str]) -> TagEvaluation:
    """Compute metrics from true and predicted tags; where no tag marks a span, every word is one."""
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
    """Yield (start, stop, kind) of the spans that tags mark.

    B- begins a span, I- continues it, E- (or L-) ends it, S- (or U-) is a span of one word. A tag without a prefix is
    a span of one word, too; O is outside of all spans. I- after a span of another kind begins a new one.
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
