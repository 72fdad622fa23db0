"""Settings that depend on the data: the validation split, learning rate, dropout, number of steps, class weights."""

from dataclasses import replace
from typing import TypeVar

import numpy as np

from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.tags import TaggedDataset
from ade.errors import InputError
from ade.fitting.lexicon_fit import LEXICON_BYTES
from ade.settings import EPOCHS, TrainingSettings, parse_size

SOFT_TARGET_EPOCHS = EPOCHS / 4  # epochs over rows with soft targets: there are many, and they overfit less
MAX_RATE_FACTOR = 5.0  # of the learning rate, for many classes
DEV_SHARE, DEV_ROWS = 0.05, 2000  # fraction and maximum number of training rows in the validation split
Rows = TypeVar("Rows", Dataset, TaggedDataset)


def check_labels(data: Dataset | TaggedDataset) -> None:
    """Refuse data without rows, or whose labels are all the same."""
    if len(data) == 0:
        raise InputError("there is nothing to learn from: the data has no rows")
    if data.problem == REGRESSION:
        assert isinstance(data, Dataset)
        if len(data) < 2 or np.ptp(data.labels) == 0:
            raise InputError("training needs numbers that differ, the data has one")
    elif data.problem == SINGLE:
        classes = len(np.unique(_class_ids(data)))
        if classes < 2:
            raise InputError(f"training needs at least two classes, the data has {classes}")


def _class_ids(data: Dataset | TaggedDataset) -> np.ndarray:
    """The class of each row, or of each word."""
    return data.labels if isinstance(data, Dataset) else np.concatenate(data.tags)


def validation_split(data: Rows, seed: int) -> tuple[Rows, Rows]:
    """Split rows at random into training rows and a validation split."""
    rest, dev = data.split(min(DEV_SHARE, DEV_ROWS / len(data)), seed)
    if len(dev) == 0 or len(rest) == 0:
        raise InputError("no class has two rows, so no dev split can be made; give one or more rows")
    return rest, dev


def fit_to_data(settings: TrainingSettings, data: Dataset | TaggedDataset, mean_length: float) -> TrainingSettings:
    """Return settings adapted to a dataset, if `settings.fit_to_data`; `mean_length` is in tokens per text.

    More classes get a higher learning rate, shorter texts less token dropout, fewer rows more dropout, soft targets
    half of both. The number of steps follows from the rows, unless epochs or steps are given.
    """
    if not settings.fit_to_data:
        return settings

    rate = settings.learning_rate
    if data.problem != REGRESSION:
        rate *= min(MAX_RATE_FACTOR, (len(data.names) / 4) ** 0.8)

    token_dropout = settings.token_dropout * min(1.0, mean_length / 40)
    if isinstance(data, Dataset) and data.targets is not None:
        token_dropout, dropout = token_dropout / 2, settings.dropout / 2
    else:
        for_few_rows = settings.dropout * max(1.0, 20_000 / len(data)) ** 0.5
        dropout = min(max(0.4, settings.dropout), for_few_rows)

    given = settings.epochs is not None or settings.steps > 0
    steps = settings.steps if given else _choose_steps(settings, data)
    return replace(settings, learning_rate=rate, token_dropout=token_dropout, dropout=dropout, steps=steps)


def _choose_steps(settings: TrainingSettings, data: Dataset | TaggedDataset) -> int:
    """The default number of epochs over the labelled rows in steps, but at least some hundred steps.

    With soft targets also at least `SOFT_TARGET_EPOCHS` over all rows, those without a label included.
    """
    labelled, soft_steps = len(data), 0
    if isinstance(data, Dataset) and data.targets is not None:
        labelled = len(data) if data.labelled is None else data.labelled
        soft_steps = steps_of(replace(settings, epochs=SOFT_TARGET_EPOCHS), len(data))
    minimum = min(1000, max(200, labelled / 4)) * max(1.0, len(data.names) / 6) ** 0.4
    return max(round(minimum), steps_of(settings, labelled), soft_steps)


def steps_of(settings: TrainingSettings, rows: int) -> int:
    """Return the optimizer steps in the given or default number of epochs over the rows."""
    epochs = EPOCHS if settings.epochs is None else settings.epochs
    return max(1, round(epochs * rows / settings.batch_size))


def learning_rate(step: int, total: int, settings: TrainingSettings) -> float:
    """Linear warm-up (never more than a tenth of the run), then linear decay to 0."""
    warmup = max(1, min(settings.warmup_steps, total // 10))
    return settings.learning_rate * min((step + 1) / warmup, (total - step) / max(1, total - warmup))


def lexicon_bytes(settings: TrainingSettings) -> int:
    """Return the maximum bytes of the lexicon; 0 for none."""
    if not settings.lexicon:
        return 0
    return parse_size(settings.lexicon_size) if settings.lexicon_size else LEXICON_BYTES


def class_weights(data: Dataset | TaggedDataset, settings: TrainingSettings) -> tuple[float, ...] | None:
    """Return balanced class weights as in scikit-learn; for multi-label data, negatives per positive of each label.

    None if `settings.class_weights` is none.
    """
    if settings.class_weights == "none":
        return None
    if data.problem == REGRESSION:
        raise InputError("class weights are for classes; numbers have none")
    if data.problem == MULTI:
        assert isinstance(data, Dataset)
        positives = data.labels.sum(0)
        return tuple(((len(data) - positives) / np.maximum(positives, 1)).clip(1e-3, 1e3).tolist())
    classes = _class_ids(data)
    counts = np.bincount(classes, minlength=len(data.names))
    return tuple((len(classes) / (np.maximum(counts, 1) * (counts > 0).sum())).tolist())
