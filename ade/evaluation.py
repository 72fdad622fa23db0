"""How good predictions are: accuracy, macro F1, precision, recall, the confusion matrix, spread over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ade.data import Dataset
from ade.errors import InputError
from ade.inference import Classifier


@dataclass(frozen=True)
class Evaluation:
    """Figures as fractions; precision and recall are means over the classes that occur."""

    accuracy: float
    macro_f1: float
    precision: float
    recall: float
    n: int
    confusion: np.ndarray  # (C, C): rows are true labels, columns predicted ones
    names: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The figures alone, ready for JSON."""
        return {name: getattr(self, name) for name in ("accuracy", "macro_f1", "precision", "recall", "n")}


def evaluate(classifier: Classifier, data: Dataset) -> Evaluation:
    """Predict every text of a data set and compare with its labels."""
    data = data.relabelled(classifier.names)
    if len(data) == 0:
        raise InputError("nothing to evaluate: the data set has no rows")
    return compare(data.labels, classifier.predict_proba(data.texts).argmax(1), classifier.names)


def compare(truth: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> Evaluation:
    """Figures from true and predicted class numbers."""
    count = len(names)
    confusion = np.bincount(truth * count + predicted, minlength=count * count).reshape(count, count)
    hits, given, real = np.diag(confusion), confusion.sum(0), confusion.sum(1)
    seen = (given + real) > 0  # a class nobody has and nobody predicts says nothing
    precision, recall = hits / np.maximum(given, 1), hits / np.maximum(real, 1)
    f1 = 2 * hits / np.maximum(given + real, 1)
    return Evaluation(
        accuracy=float(hits.sum() / len(truth)),
        macro_f1=float(f1[seen].mean()),
        precision=float(precision[seen].mean()),
        recall=float(recall[seen].mean()),
        n=len(truth),
        confusion=confusion,
        names=tuple(names),
    )


def spread(figures: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over seeds."""
    values = np.asarray(figures, dtype=np.float64)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0
