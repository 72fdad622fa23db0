"""scikit-learn estimators: AdeClassifier and AdeRegressor are trained on texts, AdeEncoder maps texts to vectors.

X is any sequence of strings: a list, a tuple, an array, a pandas column. All three work with `clone`, `GridSearchCV`
and `Pipeline`.
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
from pathlib import Path
from typing import Any, Self

import numpy as np

from ade.data.dataset import Dataset
from ade.data.problems import MULTI
from ade.data.tokens import check_texts
from ade.decision import MULTI_LABEL_THRESHOLD
from ade.errors import InputError
from ade.files import ENGLISH
from ade.folder import Saved
from ade.trained_model import Classifier, Encoder, load
from ade.training.train import train

TRAINED_WITH = (
    "start", "preset", "epochs", "steps", "batch_size", "learning_rate", "dropout", "attend", "max_tokens", "device",
)  # fmt: skip


class _TrainedEstimator(BaseEstimator):
    """The parameters and the training that AdeClassifier and AdeRegressor share."""

    def __init__(
        self,
        start: Saved | str | Path | None = None,
        *,
        preset: str = "strong",
        epochs: float | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        dropout: float | None = None,
        attend: str | None = None,
        max_tokens: int | None = None,
        lexicon: bool = True,
        class_weight: str | None = None,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
    ) -> None:
        """Set the parameters.

        start:          an encoder, a classifier or a codebook, or its folder; None for the encoder of the package.
        preset:         'strong' or 'paper', the defaults of the parameters below that are None.
        epochs, steps:  to train the layers, too: passes over the training data, or optimizer steps.
        batch_size:     texts per optimizer step.
        learning_rate:  the highest learning rate, after the warm-up.
        dropout:        fraction of features dropped in training.
        attend:         'tokens', or 'anchors' to attend over all their anchors.
        max_tokens:     tokens of a text that attention reads; the lexicon reads all of it.
        lexicon:        add the scores of token n-grams to the model's where that lowers the loss on validation rows;
                        False for the model alone. The preset 'paper' never has one.
        class_weight:   None, or 'balanced' to weight classes inversely to their frequency.
        random_state:   random seed.
        device:         'auto', 'cpu' or 'cuda'.
        """
        self.start = start
        self.preset = preset
        self.epochs = epochs
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.dropout = dropout
        self.attend = attend
        self.max_tokens = max_tokens
        self.lexicon = lexicon
        self.class_weight = class_weight
        self.random_state = random_state
        self.device = device

    def _train(self, texts: list[str], labels: np.ndarray, names: Sequence[str]) -> None:
        """Train `classifier_` on texts and their labels."""
        if len(texts) != len(labels):
            raise InputError(f"{len(texts)} texts, but {len(labels)} labels")
        if len(texts) == 0:
            raise InputError("there is nothing to learn from: no texts were given")
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        given = {name: getattr(self, name) for name in TRAINED_WITH}
        given |= {"seed": int(seed), "class_weights": self.class_weight, "lexicon": None if self.lexicon else False}
        self.classifier_ = train(Dataset(texts, labels, tuple(names)), **given, progress=False)

    def __sklearn_tags__(self) -> Any:
        return _text_input(super().__sklearn_tags__())


class AdeClassifier(ClassifierMixin, _TrainedEstimator):
    """Text classifier, single-label or multi-label, trained as `ade.train` does."""

    def fit(self, X: Sequence[str], y: Any) -> Self:
        """Train on texts and labels y: one a text (strings or numbers), or a multi-label indicator matrix (n, C)."""
        texts = _texts(X)
        classes, labels = _labels(y)
        self._train(texts, labels, [str(label) for label in classes])
        self.classes_ = classes
        return self

    def predict(self, X: Sequence[str]) -> np.ndarray:
        """The most probable label of each text; of a multi-label model an indicator matrix (n, C)."""
        probabilities = self.predict_proba(X)
        if self.classifier_.problem == MULTI:
            return (probabilities >= MULTI_LABEL_THRESHOLD).astype(np.int64)
        return self.classes_[probabilities.argmax(1)]

    def predict_proba(self, X: Sequence[str]) -> np.ndarray:
        """Probabilities (n, C), columns in the order of `classes_`."""
        check_is_fitted(self)
        return self.classifier_.predict_proba(_texts(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class AdeRegressor(RegressorMixin, _TrainedEstimator):
    """Text regressor, trained as `ade.train` does."""

    def fit(self, X: Sequence[str], y: Any) -> Self:
        """Train on texts and a number for each."""
        texts = _texts(X)
        if y is None:
            raise InputError("AdeRegressor requires y to be passed, but the target y is None")
        numbers = check_array(column_or_1d(y, warn=True), dtype=np.float32, ensure_2d=False, ensure_min_samples=0)
        self._train(texts, numbers, ["value"])
        return self

    def predict(self, X: Sequence[str]) -> np.ndarray:
        """The predicted number of each text."""
        check_is_fitted(self)
        return self.classifier_.scores(_texts(X))[:, 0].astype(np.float64)


class AdeEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Transformer from texts to the vectors (n, d) of `encode`.

    model:          a trained classifier for its pooled vectors, an encoder for its unit vectors, or the folder or the
                    name on the hub of one; by default the encoder of the package.
    device:         'auto', 'cpu' or 'cuda', for a model that is loaded.
    """

    def __init__(self, model: Classifier | Encoder | str | Path | None = None, *, device: str = "auto") -> None:
        self.model = model
        self.device = device

    def fit(self, X: Sequence[str] | None = None, y: object = None) -> "AdeEncoder":
        """Load the model; nothing is learned from X."""
        if X is not None:
            _texts(X)
        source = ENGLISH if self.model is None else self.model
        model = load(source, self.device) if isinstance(source, str | Path) else source
        if not isinstance(model, Classifier | Encoder):
            raise InputError(f"give a trained classifier or an encoder, or its folder, not {type(model).__name__}")
        self.model_ = model
        self._n_features_out = len(model.encode(""))
        return self

    def transform(self, X: Sequence[str]) -> np.ndarray:
        """The vectors (n, d) of texts."""
        check_is_fitted(self)
        return self.model_.encode(_texts(X))

    def __sklearn_tags__(self) -> Any:
        return _text_input(super().__sklearn_tags__())


def _text_input(tags: Any) -> Any:
    """Estimator tags for a one-dimensional X of strings, which the estimator validates itself."""
    tags.input_tags.string = tags.input_tags.one_d_array = tags.no_validation = True
    tags.input_tags.two_d_array = False
    return tags


def _texts(given: Any) -> list[str]:
    """X as a list of strings; an `InputError` for anything else."""
    if isinstance(given, (str, bytes)) or not hasattr(given, "__len__") or not hasattr(given, "__iter__"):
        raise InputError(f"texts must be a list or a column of strings, not {type(given).__name__}")
    if getattr(given, "ndim", 1) != 1:
        raise InputError(f"texts must be one column of strings, not a table of shape {tuple(given.shape)}")
    texts = list(given)
    check_texts(texts)
    return texts


def _labels(given: Any) -> tuple[np.ndarray, np.ndarray]:
    """The classes (C,), and for each row its class index (n,) or, for multi-label, its indicators (n, C)."""
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
