"""What a lexicon is fitted to and judged by: the loss of its rows, and the validation loss beside a model's scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.data.problems import MULTI, MULTI_LABEL_LOGIT, MULTI_LABEL_THRESHOLD, REGRESSION

MAX_TEMPERATURE, SEARCHES = 32.0, 16  # and its inverse the least; steps of the search for the best
TOLERANCE = 0.005  # relative loss: a lexicon must gain more, pruning may cost as much


class Ragged(NamedTuple):
    """Token ids of texts in one array: text i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True)
class Validation:
    """Validation rows, and the scores that the model without a lexicon gives them."""

    texts: Ragged
    labels: np.ndarray  # (n,) classes, (n, C) bool or (n,) numbers
    logits: np.ndarray  # (n, C)


@dataclass(frozen=True)
class Objective:
    """Targets and the loss that compares scores (n, C) with them."""

    targets: Tensor  # (n,) classes, or (n, C) probabilities, multi-label targets or numbers
    problem: str
    class_weights: Tensor | None = None  # (C,)

    @classmethod
    def of(
        cls, labels: np.ndarray, problem: str, class_weights: Sequence[float] | None, device: torch.device
    ) -> "Objective":
        """The objective for labels (n,) or (n, C), on a device."""
        targets = torch.from_numpy(np.ascontiguousarray(labels)).to(device)
        if problem == REGRESSION:
            targets = targets.float().view(-1, 1)
        elif targets.ndim == 2:
            targets = targets.float()
        return cls(targets, problem, None if class_weights is None else torch.tensor(class_weights, device=device))

    def extended(self, labels: np.ndarray) -> "Objective":
        """The objective with the targets of further rows, whose labels are (n,) or (n, C), at the end."""
        more = self.of(labels, self.problem, None, self.targets.device).targets
        if more.ndim < self.targets.ndim:
            more = F.one_hot(more.long(), self.targets.shape[1])
        return replace(self, targets=torch.cat([self.targets, more.to(self.targets.dtype)]))

    def loss(self, scores: Tensor) -> Tensor:
        """Mean cross-entropy, binary cross-entropy summed over the labels, or half the squared error."""
        if self.problem == REGRESSION:
            return F.mse_loss(scores, self.targets) / 2
        if self.problem == MULTI:
            return self.losses(scores).mean()
        return F.cross_entropy(scores, self.targets, self.class_weights)

    def losses(self, scores: Tensor) -> Tensor:
        """The loss of each row, without class weights where there is one class a row: (n,)."""
        if self.problem == REGRESSION:
            return (scores - self.targets).square().sum(1) / 2
        if self.problem == MULTI:
            each = F.binary_cross_entropy_with_logits(
                scores, self.targets, pos_weight=self.class_weights, reduction="none"
            )
            return each.sum(1)
        return F.cross_entropy(scores, self.targets, reduction="none")


@dataclass(frozen=True)
class Blend:
    """The validation loss of a model's scores combined with a lexicon's.

    For classification, model + weight * lexicon, at the best temperature, so that the choice does not depend on how
    confident either is. For regression, the weighted average share * model + (1 - share) * lexicon.
    """

    validation: Validation
    objective: Objective

    def loss_without(self) -> float:
        """The loss of the model's scores alone."""
        return self.loss_of_sum(self.validation.logits)

    def combined(self, lexicon: np.ndarray, weight: float) -> np.ndarray:
        """The summed scores (n, C); for regression `weight` is ignored, the best share is taken."""
        if self.objective.problem == REGRESSION:
            share = self.model_share(lexicon)
            return share * self.validation.logits + (1 - share) * lexicon
        return self.validation.logits + weight * lexicon

    def loss(self, lexicon: np.ndarray, weight: float) -> float:
        """The loss with a lexicon's scores (n, C)."""
        return self.loss_of_sum(self.combined(lexicon, weight))

    def least_gain(self, lexicon: np.ndarray, weight: float) -> float:
        """The loss that a lexicon must gain: a small fraction, and a standard error, since less may be chance."""
        without, combined = (
            self.objective.losses(torch.from_numpy(scores / self.temperature(scores)).float())
            for scores in (self.validation.logits, self.combined(lexicon, weight))
        )
        error = float((without - combined).std()) / len(without) ** 0.5 if len(without) > 1 else 0.0
        return max(TOLERANCE * self.loss_without(), error)

    def accuracy(self, lexicon: np.ndarray, weight: float) -> float:
        """The fraction of labels that the summed scores predict correctly; 0 for regression, which has the loss."""
        scores, targets = self.validation.logits + weight * lexicon, self.objective.targets.numpy()
        if self.objective.problem == REGRESSION:
            return 0.0
        if self.objective.problem == MULTI:
            return float(((scores >= MULTI_LABEL_LOGIT) == (targets >= MULTI_LABEL_THRESHOLD)).mean())
        return float((scores.argmax(1) == targets).mean())

    def model_share(self, lexicon: np.ndarray) -> float:
        """The model's share in the average with the least squared error, between 0 and 1."""
        model = self.validation.logits
        difference, residual = model - lexicon, self.objective.targets.numpy() - lexicon
        share = (difference * residual).sum() / max(float(np.square(difference).sum()), 1e-12)
        return float(np.clip(share, 0, 1))

    def loss_of_sum(self, scores: np.ndarray) -> float:
        """The loss of scores (n, C) that are combined already."""
        return float(self.objective.loss(torch.from_numpy(scores / self.temperature(scores)).float()))

    def temperature(self, scores: np.ndarray) -> float:
        """The temperature of least loss, by golden-section search over its logarithm: the loss has one minimum."""
        if self.objective.problem == REGRESSION:
            return 1.0
        tensor = torch.from_numpy(scores).float()

        def loss(exponent: float) -> float:
            return float(self.objective.loss(tensor * math.exp(-exponent)))

        low, high, golden = -math.log(MAX_TEMPERATURE), math.log(MAX_TEMPERATURE), (5**0.5 - 1) / 2
        inner = [high - golden * (high - low), low + golden * (high - low)]
        losses = [loss(each) for each in inner]
        for _ in range(SEARCHES):
            if losses[0] < losses[1]:
                high = inner[1]
                inner = [high - golden * (high - low), inner[0]]
                losses = [loss(inner[0]), losses[0]]
            else:
                low = inner[0]
                inner = [inner[1], low + golden * (high - low)]
                losses = [losses[1], loss(inner[1])]
        return math.exp(sum(inner) / 2)
