"""Features of texts as a linear model reads them: dense vectors, or the n-grams of a lexicon. Numpy alone.

Both give scores of weights, the gradient of weights from that of scores, and about the inverse of the Hessian, by which
few iterations are enough. The last row of the weights (E + 1, C) is the bias.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from ade.data.tokens import Ragged
from ade.fitting.minimise import Precondition, minimise
from ade.fitting.objective import Objective
from ade.lexicon import Lexicon

CURVATURE = 0.25  # about the second derivative of the loss with respect to a score
BY_COLUMN = 16  # labels up to which sums go label by label
CHUNK = 1 << 18  # numbers that are added up together, where labels are more: what a core's cache holds


class Features(Protocol):
    """Features (n, E) of texts."""

    def __len__(self) -> int:
        """Return n."""

    @property
    def width(self) -> int:
        """E, the number of features."""

    def take(self, rows: np.ndarray) -> "Features":
        """Return the features of some texts."""

    def scores(self, weights: np.ndarray) -> np.ndarray:
        """Return the scores (n, C) that weights (E + 1, C) give."""

    def gradient(self, of_scores: np.ndarray) -> np.ndarray:
        """Return the gradient of the weights (E + 1, C) from that of the scores (n, C)."""

    def preconditioner(self, penalty: float) -> Precondition:
        """Return what multiplies (E + 1, C) by about the inverse Hessian of a mean loss and a penalty."""


def fit(
    features: Features, objective: Objective, strength: float, start: np.ndarray | None, iterations: int
) -> np.ndarray:
    """Return weights (E + 1, C) of the least mean loss + squared weights / (2 strength n); the bias is free."""
    count, labels = objective.targets.shape
    penalty = np.float32(1 / (strength * count))
    if start is None:
        start = np.zeros((features.width + 1, labels), np.float32)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        value, of_scores = objective.loss_and_gradient(features.scores(weights))
        gradient = features.gradient(of_scores)
        gradient[:-1] += penalty * weights[:-1]
        return value + float(penalty) / 2 * float(np.vdot(weights[:-1], weights[:-1])), gradient

    return minimise(loss, start, features.preconditioner(float(penalty)), iterations)


@dataclass(frozen=True, eq=False)
class Dense:
    """Vectors of texts, as they are."""

    vectors: np.ndarray  # (n, E) float32

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def width(self) -> int:
        """E, the number of features."""
        return self.vectors.shape[1]

    def take(self, rows: np.ndarray) -> "Dense":
        """Return the features of some texts."""
        return Dense(self.vectors[rows])

    def scores(self, weights: np.ndarray) -> np.ndarray:
        """Return the scores (n, C) that weights (E + 1, C) give."""
        return self.vectors @ weights[:-1] + weights[-1]

    def gradient(self, of_scores: np.ndarray) -> np.ndarray:
        """Return the gradient of the weights (E + 1, C) from that of the scores (n, C)."""
        return np.vstack([self.vectors.T @ of_scores, of_scores.sum(0)])

    def preconditioner(self, penalty: float) -> Precondition:
        """Return what multiplies (E + 1, C) by about the inverse Hessian of a mean loss and a penalty."""
        extended = np.hstack([self.vectors, np.ones((len(self), 1), np.float32)])
        hessian = (extended.T @ extended).astype(np.float64) * (CURVATURE / len(self))
        hessian[np.diag_indices(self.width)] += penalty
        hessian[-1, -1] += 1e-6
        inverse = np.linalg.inv(hessian).astype(np.float32)
        return lambda gradient: inverse @ gradient


@dataclass(frozen=True, eq=False)
class Ngrams:
    """The distinct entries of a lexicon in each text: the idf of each, divided by the length of all of the text."""

    idf: np.ndarray  # (E,) float32
    entry: np.ndarray  # (nnz,): the entries of text 0, then those of text 1, ...
    starts: np.ndarray  # (n + 1,): text i has entry[starts[i]:starts[i + 1]]

    @classmethod
    def of(cls, lexicon: Lexicon, texts: Ragged) -> "Ngrams":
        """Return the entries of texts."""
        entry, text = lexicon.find(texts)
        return cls(lexicon.idf, entry, np.searchsorted(text, np.arange(len(texts) + 1)))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def width(self) -> int:
        """E, the number of features."""
        return len(self.idf)

    def take(self, rows: np.ndarray) -> "Ngrams":
        """Return the features of some texts."""
        counts = np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(counts)])
        place = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], counts)
        return Ngrams(self.idf, self.entry[place], starts)

    def only(self, entries: np.ndarray) -> "Ngrams":
        """Return the features of some entries, ascending, alone."""
        number = np.full(self.width, -1)
        number[entries] = np.arange(len(entries))
        entry = number[self.entry]
        kept = np.concatenate([[0], np.cumsum(entry >= 0)])[self.starts]
        return Ngrams(self.idf[entries], entry[entry >= 0], kept)

    @cached_property
    def norms(self) -> np.ndarray:
        """The length of the idf of each text's entries (n, 1); 1 for a text without any."""
        squares = segment_sums((self.idf**2)[:, None], self.entry, self.starts)
        return np.sqrt(np.where(squares > 0, squares, 1))

    @cached_property
    def _by_entry(self) -> tuple[np.ndarray, np.ndarray]:
        """The texts of entry 0, then those of entry 1, ...; and where each begins (E + 1,)."""
        text = np.repeat(np.arange(len(self)), np.diff(self.starts))
        counts = np.bincount(self.entry, minlength=self.width)
        return text[np.argsort(self.entry, kind="stable")], np.concatenate([[0], np.cumsum(counts)])

    def scores(self, weights: np.ndarray) -> np.ndarray:
        """Return the scores (n, C) that weights (E + 1, C) give."""
        return segment_sums(weights[:-1] * self.idf[:, None], self.entry, self.starts) / self.norms + weights[-1]

    def gradient(self, of_scores: np.ndarray) -> np.ndarray:
        """Return the gradient of the weights (E + 1, C) from that of the scores (n, C)."""
        sums = segment_sums(of_scores / self.norms, *self._by_entry) * self.idf[:, None]
        return np.vstack([sums, of_scores.sum(0)])

    def preconditioner(self, penalty: float) -> Precondition:
        """Return what multiplies (E + 1, C) by about the inverse Hessian: frequent entries have a larger curvature."""
        squares = segment_sums(1 / self.norms**2, *self._by_entry)[:, 0] * self.idf**2  # (E,)
        diagonal = np.append(CURVATURE * squares / len(self) + penalty, CURVATURE).astype(np.float32)
        return lambda gradient: gradient / diagonal[:, None]


def segment_sums(values: np.ndarray, index: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return sums of rows of `values` (m, C): row i adds up values[index[starts[i]:starts[i + 1]]], (n, C)."""
    sums = np.zeros((len(starts) - 1, values.shape[1]), np.float32)
    filled = np.flatnonzero(np.diff(starts))
    if len(filled) == 0:
        return sums
    if values.shape[1] <= BY_COLUMN:
        for label, column in enumerate(np.ascontiguousarray(values.T)):
            sums[filled, label] = np.add.reduceat(column[index], starts[filled])
        return sums
    start, most = 0, max(1, CHUNK // values.shape[1])
    while start < len(filled):  # rows in parts that fit the cache
        end = max(start + 1, int(np.searchsorted(starts[filled], starts[filled[start]] + most)))
        part = filled[start:end]
        first, last = starts[part[0]], starts[part[-1] + 1]
        sums[part] = np.add.reduceat(values[index[first:last]], starts[part] - first, 0)
        start = end
    return sums
