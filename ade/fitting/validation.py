"""Rows that fits have not seen: by cross-validation or, where rows are many, a part that is left out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ade.data.problems import SINGLE
from ade.fitting.features import Features, fit
from ade.fitting.objective import Objective
from ade.progress import Report

FEW_ROWS, SOME_ROWS = 1000, 20_000  # up to here five parts, up to there three; beyond, one part is left out
LEFT_OUT, MAX_LEFT_OUT = 0.1, 5000  # fraction and maximum of the rows of that part


class Fold(NamedTuple):
    """Rows that a fit learns from, and rows that it has not seen."""

    seen: np.ndarray
    unseen: np.ndarray


class Choice(NamedTuple):
    """A strength, the scores (m, C) of the unseen rows that the fits with it give, and the weights of each fit."""

    strength: float
    scores: np.ndarray
    weights: list[np.ndarray]


@dataclass(frozen=True, eq=False)
class Validation:
    """The folds of the rows of an objective."""

    objective: Objective
    folds: list[Fold]
    report: Report

    @cached_property
    def unseen(self) -> np.ndarray:
        """The unseen rows of all folds, in the order of all scores here: (m,)."""
        return np.concatenate([fold.unseen for fold in self.folds])

    @cached_property
    def judge(self) -> Objective:
        """The targets of the unseen rows."""
        return self.objective.take(self.unseen)

    def choices(self, stage: str, features: Features, strengths: Sequence[float], iterations: int) -> Iterator[Choice]:
        """Yield what each strength gives; its fits start from those of the strength before."""
        starts: list[np.ndarray | None] = [None] * len(self.folds)
        seen = [(features.take(fold.seen), self.objective.take(fold.seen)) for fold in self.folds]
        unseen = [features.take(fold.unseen) for fold in self.folds]
        for done, strength in enumerate(strengths):
            self.report(stage, done, len(strengths), {})
            weights = [fit(*each, strength, start, iterations) for each, start in zip(seen, starts, strict=True)]
            scores = [rows.scores(own) for rows, own in zip(unseen, weights, strict=True)]
            starts = list(weights)
            yield Choice(strength, np.concatenate(scores), weights)
        self.report(stage, len(strengths), len(strengths), {})


def folds_of(objective: Objective, seed: int) -> list[Fold]:
    """Return the folds of rows at random; each class is divided evenly."""
    count = len(objective)
    parts = 5 if count <= FEW_ROWS else 3
    part = _parts(objective, parts if count <= SOME_ROWS else round(1 / min(LEFT_OUT, MAX_LEFT_OUT / count)), seed)
    kept = range(parts) if count <= SOME_ROWS else range(1)
    return [Fold(np.flatnonzero(part != i), np.flatnonzero(part == i)) for i in kept]


def _parts(objective: Objective, parts: int, seed: int) -> np.ndarray:
    """Return the number of the part that each row is in: (n,)."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(objective))
    if objective.problem == SINGLE:  # one class after the other, at random within it
        order = order[np.argsort(objective.targets.argmax(1)[order], kind="stable")]
    part = np.empty(len(objective), np.int64)
    part[order] = np.arange(len(objective)) % parts
    return part
