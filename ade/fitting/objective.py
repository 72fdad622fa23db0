"""What a linear model is fitted to: targets, row weights, and the loss with its gradient. Numpy alone.

Targets are one matrix (n, C) whatever the problem: probabilities of the classes, truth values of the labels, or a
number. So are the scores.
"""

from dataclasses import dataclass, replace

import numpy as np

from ade.data.problems import MULTI, REGRESSION
from ade.decision import MULTI_LABEL_LOGIT, MULTI_LABEL_THRESHOLD

MAX_TEMPERATURE = 32.0  # its inverse is the least
SEARCHES = 16  # steps of the search for the best temperature


@dataclass(frozen=True, eq=False)
class Objective:
    """Targets of n rows, and the loss of scores (n, C)."""

    targets: np.ndarray  # (n, C) float32
    problem: str
    weights: np.ndarray  # (n, 1), or (n, C) for multi-label: of each row in the loss, 1 on average

    @classmethod
    def of(
        cls,
        labels: np.ndarray,
        problem: str,
        classes: int,
        class_weights: tuple[float, ...] | None = None,
        row_weights: np.ndarray | None = None,
    ) -> "Objective":
        """Return the objective for classes (n,), for probabilities or truth values (n, C), or for numbers (n,)."""
        if labels.ndim == 2:
            targets = labels.astype(np.float32)
        elif problem == REGRESSION:
            targets = labels.astype(np.float32)[:, None]
        else:
            targets = np.zeros((len(labels), classes), np.float32)
            targets[np.arange(len(labels)), labels] = 1

        weights = np.ones((len(targets), 1), np.float32)
        if class_weights is not None and problem == MULTI:
            weights = np.where(targets > 0, np.array(class_weights, np.float32), np.float32(1))
        elif class_weights is not None:
            weights = targets @ np.array(class_weights, np.float32)[:, None]
        if row_weights is not None:
            weights = weights * (row_weights / row_weights.mean()).astype(np.float32)[:, None]
        return cls(targets, problem, weights)

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: np.ndarray) -> "Objective":
        """Return the objective of some rows."""
        return Objective(self.targets[rows], self.problem, self.weights[rows])

    def losses(self, scores: np.ndarray) -> np.ndarray:
        """Return the loss of each row, without weights: (n,)."""
        return self._with_gradient(scores)[0].sum(1)

    def loss_and_gradient(self, scores: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the weighted mean loss, and its gradient with respect to the scores (n, C)."""
        losses, gradient = self._with_gradient(scores)
        loss = float((losses * self.weights).sum(dtype=np.float64)) / len(scores)
        return loss, (gradient * self.weights / np.float32(len(scores))).astype(np.float32, copy=False)

    def _with_gradient(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loss of each row (n, 1), or of each label of it (n, C), and the gradient (n, C)."""
        if self.problem == REGRESSION:
            gradient = scores - self.targets
            return gradient**2 / 2, gradient
        if self.problem == MULTI:
            gradient = 1 / (1 + np.exp(-np.clip(scores, -80, 80))) - self.targets
            return np.logaddexp(0, scores) - self.targets * scores, gradient
        shifted = scores - scores.max(1, keepdims=True)
        exponential = np.exp(shifted)
        total = exponential.sum(1, keepdims=True)
        return np.log(total) - (self.targets * shifted).sum(1, keepdims=True), exponential / total - self.targets

    def accuracy(self, scores: np.ndarray) -> float:
        """Return the fraction of labels that scores predict correctly; 0 for regression, which has the loss."""
        if self.problem == REGRESSION:
            return 0.0
        return float(self.hits(scores).mean())

    def hits(self, scores: np.ndarray) -> np.ndarray:
        """Return which rows, or which cells of a multi-label problem, scores predict correctly."""
        if self.problem == MULTI:
            return (scores >= MULTI_LABEL_LOGIT) == (self.targets >= MULTI_LABEL_THRESHOLD)
        return scores.argmax(1) == self.targets.argmax(1)

    def temperature(self, scores: np.ndarray) -> float:
        """Return the temperature of least loss, by ternary search over its logarithm: the loss has one minimum.

        The targets are smoothed as if one more row had been wrong: where all rows are right, a model is not certain.
        """
        if self.problem == REGRESSION:
            return 1.0
        doubt = 1 / (len(self) + 1)
        outcomes = 2 if self.problem == MULTI else self.targets.shape[1]
        smoothed = replace(self, targets=self.targets * np.float32(1 - doubt) + np.float32(doubt / outcomes))

        def loss(exponent: float) -> float:
            return smoothed.loss_and_gradient(scores * np.float32(np.exp(-exponent)))[0]

        low, high = -np.log(MAX_TEMPERATURE), np.log(MAX_TEMPERATURE)
        for _ in range(SEARCHES):
            third = (high - low) / 3
            if loss(low + third) < loss(high - third):
                high -= third
            else:
                low += third
        return float(np.exp((low + high) / 2))

    def calibrated_loss(self, scores: np.ndarray) -> float:
        """Return the weighted mean loss of scores at their best temperature."""
        return self.loss_and_gradient(scores / np.float32(self.temperature(scores)))[0]
