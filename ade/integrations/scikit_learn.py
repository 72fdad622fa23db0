"""scikit-learn estimators: AdeClassifier and AdeRegressor learn from texts, AdeEncoder makes vectors of them.

Texts are any sequence of strings: a list, a tuple, an array, a pandas column. All are cloned, searched over and put
in a Pipeline as scikit-learn does with its own.
"""

try:
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        ClassNamePrefixFeaturesOutMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d
except ImportError:
    raise ImportError("ade's estimators need scikit-learn: pip install 'scikit-learn>=1.4'") from None

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from ade.classifier import Classifier
from ade.codebook import MARKER as CODEBOOK
from ade.codebook import Codebook
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, MULTI_LABEL_THRESHOLD
from ade.distillation import distill
from ade.errors import InputError
from ade.files import kind_of
from ade.integrations.vectors import mean_vectors, pooled_vectors
from ade.settings import ARCHITECTURES, PRESETS, Architecture, DistillationSettings, TrainingSettings
from ade.teachers import DEFAULT_TEACHER, load_teacher
from ade.training.loop import train


class _Trained(BaseEstimator):
    """What learns from texts: a codebook, and a model trained on it."""

    def __init__(
        self,
        codebook: Codebook | str | Path = DEFAULT_TEACHER,
        *,
        distillation: DistillationSettings | None = None,
        preset: str = "strong",
        epochs: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        dropout: float | None = None,
        attend: str | None = None,
        max_tokens: int | None = None,
        class_weight: str | None = None,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
    ) -> None:
        """How it is to be trained.

        codebook:       a `Codebook`, the folder of one, or a teacher to distil (see `load_teacher`).
        distillation:   how a teacher is distilled.
        preset:         'strong' or 'paper', the settings to start from; what is not None below changes them.
        epochs, steps:  how long to train; give one of them.
        attend:         'gated', 'tokens' or 'anchors'.
        class_weight:   'balanced' lets classes count alike, however few rows they have.
        random_state:   what every random choice follows from.
        """
        self.codebook = codebook
        self.distillation = distillation
        self.preset = preset
        self.epochs = epochs
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.dropout = dropout
        self.attend = attend
        self.max_tokens = max_tokens
        self.class_weight = class_weight
        self.random_state = random_state
        self.device = device

    def _train(self, texts: list[str], labels: np.ndarray, names: Sequence[str]) -> None:
        if len(texts) != len(labels):
            raise InputError(f"{len(texts)} texts, but {len(labels)} labels")
        if len(texts) == 0:
            raise InputError("there is nothing to learn from: no texts were given")
        settings, shape = self._settings()
        data = Dataset(texts, labels, tuple(names))
        self.classifier_ = train(_codebook(self.codebook, self.distillation), data, None, settings, shape)

    def _settings(self) -> tuple[TrainingSettings, Architecture]:
        if self.preset not in PRESETS:
            raise InputError(f"preset must be one of {', '.join(PRESETS)}, not '{self.preset}'")
        if self.epochs and self.steps:
            raise InputError("epochs and steps both say how long to train: give one of them")
        given = self._given("epochs", "steps", "batch_size", "learning_rate", "dropout", "device")
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31 - 1)
        given |= {"seed": int(seed), "class_weights": self.class_weight or "none"}
        shape = replace(ARCHITECTURES[self.preset], **self._given("attend", "max_tokens"))
        return replace(PRESETS[self.preset], **given), shape

    def _given(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def __sklearn_tags__(self) -> Any:
        return _of_texts(super().__sklearn_tags__())


class AdeClassifier(ClassifierMixin, _Trained):
    """Texts to labels, one each or several: a codebook, and a model trained on it."""

    def fit(self, X: Sequence[str], y: Any) -> Self:
        """Train on texts and a label for each (strings, numbers, anything sorted), or a table of several: 0 and 1."""
        texts = _texts(X)
        classes, labels = _labels(y)
        self._train(texts, labels, [str(label) for label in classes])
        self.classes_ = classes
        return self

    def predict(self, X: Sequence[str]) -> np.ndarray:
        """The most probable label of each text; where there are several, a table (n, C) of 0 and 1."""
        chances = self.predict_proba(X)
        if self.classifier_.problem == MULTI:
            return (chances >= MULTI_LABEL_THRESHOLD).astype(np.int64)
        return self.classes_[chances.argmax(1)]

    def predict_proba(self, X: Sequence[str]) -> np.ndarray:
        """Probabilities (n, C), columns in the order of `classes_`."""
        check_is_fitted(self)
        return self.classifier_.predict_proba(_texts(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class AdeRegressor(RegressorMixin, _Trained):
    """Texts to numbers: a codebook, and a model trained on it."""

    def fit(self, X: Sequence[str], y: Any) -> Self:
        """Train on texts and a number for each."""
        texts = _texts(X)
        if y is None:
            raise InputError("AdeRegressor requires y to be passed, but the target y is None")
        numbers = check_array(column_or_1d(y, warn=True), dtype=np.float32, ensure_2d=False, ensure_min_samples=0)
        self._train(texts, numbers, ["value"])
        return self

    def predict(self, X: Sequence[str]) -> np.ndarray:
        """The number of each text."""
        check_is_fitted(self)
        return np.array(self.classifier_.predict(_texts(X)), np.float64)


class AdeEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Texts -> vectors of a fixed width.

    source:         a codebook (a `Codebook`, the folder of one, or a teacher to distil): the mean of a text's tokens.
                    A trained model (a `Classifier` or the folder of one): what it pools before it classifies.
    distillation:   how a teacher is distilled.
    max_tokens:     tokens a text is cut to; a trained model has a limit of its own.
    """

    def __init__(
        self,
        source: Codebook | Classifier | str | Path = DEFAULT_TEACHER,
        *,
        distillation: DistillationSettings | None = None,
        max_tokens: int = 512,
        device: str = "auto",
    ) -> None:
        self.source = source
        self.distillation = distillation
        self.max_tokens = max_tokens
        self.device = device

    def fit(self, X: Sequence[str] | None = None, y: object = None) -> "AdeEncoder":
        """Load, or distil, what the vectors come from; nothing is learned from the texts."""
        if X is not None:
            _texts(X)
        source: Classifier | Codebook
        if isinstance(self.source, Classifier):
            source = self.source
        elif isinstance(self.source, (str, Path)) and _is_model(self.source):
            source = Classifier.load(self.source, self.device)
        else:
            source = _codebook(self.source, self.distillation)
        self.source_ = source
        self._n_features_out = source.dim if isinstance(source, Codebook) else source.model.config.hidden_size
        return self

    def transform(self, X: Sequence[str]) -> np.ndarray:
        """The vectors (n, d) of texts."""
        check_is_fitted(self)
        texts = _texts(X)
        if isinstance(self.source_, Classifier):
            return pooled_vectors(self.source_, texts)
        return mean_vectors(self.source_, texts, self.max_tokens)

    def __sklearn_tags__(self) -> Any:
        return _of_texts(super().__sklearn_tags__())


def _of_texts(tags: Any) -> Any:
    """What scikit-learn should know: texts, in one dimension, which are for us to check."""
    tags.input_tags.string = tags.input_tags.one_d_array = tags.no_validation = True
    tags.input_tags.two_d_array = False
    return tags


def _texts(given: Any) -> list[str]:
    """The texts as a list; whatever else it may be is one clear error."""
    if isinstance(given, (str, bytes)) or not hasattr(given, "__len__") or not hasattr(given, "__iter__"):
        raise InputError(f"texts must be a list or a column of strings, not {type(given).__name__}")
    if getattr(given, "ndim", 1) != 1:
        raise InputError(f"texts must be one column of strings, not a table of shape {tuple(given.shape)}")
    texts = list(given)
    wrong = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
    if wrong is not None:
        raise InputError(f"text {wrong} is {type(texts[wrong]).__name__} ({str(texts[wrong])[:40]}), not a string")
    return texts


def _labels(given: Any) -> tuple[np.ndarray, np.ndarray]:
    """The classes, and each row's: their numbers (n,), or for several which of them (n, C)."""
    if given is None:
        raise InputError("AdeClassifier requires y to be passed, but the target y is None")
    labels = given.toarray() if hasattr(given, "toarray") else np.asarray(given)
    try:
        check_classification_targets(labels)
        if type_of_target(labels) == "multilabel-indicator":
            return np.asarray(getattr(given, "columns", np.arange(labels.shape[1]))), labels.astype(bool)
        if labels.ndim == 2 and labels.shape[1] > 1:
            raise InputError(f"labels must be one a text, or a table of 0 and 1, not one of shape {labels.shape}")
        return np.unique(column_or_1d(labels, warn=True), return_inverse=True)
    except TypeError:
        raise InputError("labels must be all strings or all numbers, not some of each") from None


def _is_model(source: str | Path) -> bool:
    """Whether it is the folder of a trained model of ours."""
    return Path(source).is_dir() and kind_of(source).startswith("Ade")


def _codebook(source: Any, settings: DistillationSettings | None) -> Codebook:
    """A codebook as it is, from its folder, or distilled from a teacher."""
    if not isinstance(source, (Codebook, str, Path)):
        raise InputError(f"a codebook, its folder or a teacher's name is needed, not {type(source).__name__}")
    if not isinstance(source, Codebook):
        if _is_model(source):
            raise InputError(f"{source}: is a trained model; give a codebook, its folder or a teacher")
        if not (Path(source) / CODEBOOK).is_file():
            return _distilled(str(source), settings or DistillationSettings())
        source = Codebook.load(source)
    if settings is not None:
        raise InputError("distillation says how a teacher is distilled; a codebook is distilled already")
    return source


@lru_cache(maxsize=4)
def _distilled(source: str, settings: DistillationSettings) -> Codebook:
    """A search fits many times: the process distils once."""
    return distill(load_teacher(source), settings)
