"""What a model may answer: one label, any number of them, a number, or a tag for every word."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
TAGGER = "AdeForTokenClassification"  # the kind of a model that answers for every word
MULTI_LABEL_THRESHOLD = 0.5  # multi-label: labels of at least this probability are predicted
MULTI_LABEL_LOGIT = math.log(MULTI_LABEL_THRESHOLD / (1 - MULTI_LABEL_THRESHOLD))  # the same threshold on scores
Answer = str | list[str] | float  # a label, the labels, or a number


class Prediction(NamedTuple):
    """What a text is taken for; with several labels a probability each, with a number none."""

    label: Answer
    probability: float | list[float] | None


class Tagged(NamedTuple):
    """The words of a sentence and their tags."""

    words: list[str]
    tags: list[str]


def scale_of(problem: str | None, scale: Sequence[float] | None) -> tuple[float, float]:
    """Mean and deviation of the numbers a model predicts; nothing to change where it predicts none."""
    return (float(scale[0]), float(scale[1])) if scale and problem == REGRESSION else (0.0, 1.0)


def names_of(given: Mapping[Any, str] | None, count: int) -> tuple[str, ...]:
    """The labels of a config, in order; transformers leaves out names nobody gave, and JSON makes numbers strings."""
    known = {int(i): name for i, name in (given or {}).items()}
    return tuple(known.get(i, f"LABEL_{i}") for i in range(count))


def problem_of(stated: str | None, labels: int) -> str:
    """The kind of problem a config states; where it does not, as transformers has it: one output is a number."""
    return stated or (REGRESSION if labels == 1 else SINGLE)
