"""A training run fitted to its data: what is held back, the rate, the noise, the steps, what each class counts."""

from dataclasses import replace
from typing import TypeVar

import numpy as np

from ade.data.conll import TaggedDataset
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.errors import InputError
from ade.settings import EPOCHS, TrainingSettings

TAUGHT_EPOCHS = EPOCHS / 4  # passes over taught rows, which are many and hard to learn by heart
MOST_FOR_CLASSES = 5.0  # times the rate, however many classes
DEV_SHARE, DEV_ROWS = 0.05, 2000  # what is held back from train where no dev split is given
Rows = TypeVar("Rows", Dataset, TaggedDataset)


def check_answers(data: Dataset | TaggedDataset) -> None:
    """Refuse data that leaves nothing to learn."""
    if len(data) == 0:
        raise InputError("there is nothing to learn from: the data has no rows")
    if data.problem == REGRESSION:
        assert isinstance(data, Dataset)
        if len(data) < 2 or np.ptp(data.labels) == 0:
            raise InputError("training needs numbers that differ, the data has one")
    elif data.problem == SINGLE:
        answers = data.labels if isinstance(data, Dataset) else np.concatenate(data.tags)
        if len(np.unique(answers)) < 2:
            raise InputError(f"training needs at least two classes, the data has {len(np.unique(answers))}")


def held_back(data: Rows, seed: int) -> tuple[Rows, Rows]:
    """The rows to train on, and a dev split taken from them."""
    rest, dev = data.split(min(DEV_SHARE, DEV_ROWS / len(data)), seed)
    if len(dev) == 0 or len(rest) == 0:
        raise InputError("no class has two rows, so no dev split can be held back; give one or more rows")
    return rest, dev


def fitted(settings: TrainingSettings, data: Dataset | TaggedDataset, mean_length: float) -> TrainingSettings:
    """The settings fitted to a data set.

    Many classes bear a higher rate, short texts less token dropout, few rows more dropout, taught rows half the noise.
    How many steps there are follows from the rows, unless epochs or steps were asked for.
    """
    if not settings.fit_to_data:
        return settings
    rate = settings.learning_rate
    if data.problem != REGRESSION:
        rate *= min(MOST_FOR_CLASSES, (len(data.names) / 4) ** 0.8)
    hidden = settings.token_dropout * min(1.0, mean_length / 40)
    if isinstance(data, Dataset) and data.targets is not None:
        hidden, dropout = hidden / 2, settings.dropout / 2
    else:
        more = settings.dropout * max(1.0, 20_000 / len(data)) ** 0.5
        dropout = min(max(0.4, settings.dropout), more)
    asked = settings.epochs is not None or settings.steps > 0
    steps = settings.steps if asked else _fitting_steps(settings, data)
    return replace(settings, learning_rate=rate, token_dropout=hidden, dropout=dropout, steps=steps)


def _fitting_steps(settings: TrainingSettings, data: Dataset | TaggedDataset) -> int:
    """As many steps as the rows with a label need: few rows more than the usual passes give them.

    What a teacher has added to them costs `TAUGHT_EPOCHS` passes over all, where that is more.
    """
    rows, taught = len(data), False
    if isinstance(data, Dataset):
        rows, taught = len(data) if data.labelled is None else data.labelled, data.targets is not None
    fewest = min(1000, max(200, rows / 4)) * max(1.0, len(data.names) / 6) ** 0.4
    more = steps_of(replace(settings, epochs=TAUGHT_EPOCHS), len(data)) if taught else 0
    return max(round(fewest), steps_of(settings, rows), more)


def steps_of(settings: TrainingSettings, rows: int) -> int:
    """Optimizer steps in the asked or usual number of passes over the rows."""
    epochs = EPOCHS if settings.epochs is None else settings.epochs
    return max(1, round(epochs * rows / settings.batch_size))


def learning_rate(step: int, total: int, settings: TrainingSettings) -> float:
    """Linear warm-up (never more than a tenth of the run), then linear decay to 0."""
    warmup = max(1, min(settings.warmup_steps, total // 10))
    return settings.learning_rate * min((step + 1) / warmup, (total - step) / max(1, total - warmup))


def class_weights(data: Dataset | TaggedDataset, settings: TrainingSettings) -> list[float] | None:
    """How much each class counts, so that all count alike; several labels: a mark against all that are missing."""
    if settings.class_weights == "none":
        return None
    if data.problem == REGRESSION:
        raise InputError("class weights are for classes; numbers have none")
    if data.problem == MULTI:
        assert isinstance(data, Dataset)
        marks = data.labels.sum(0)
        return ((len(data) - marks) / np.maximum(marks, 1)).clip(1e-3, 1e3).tolist()
    answers = data.labels if isinstance(data, Dataset) else np.concatenate(data.tags)
    counts = np.bincount(answers, minlength=len(data.names))
    return (len(answers) / (np.maximum(counts, 1) * (counts > 0).sum())).tolist()
