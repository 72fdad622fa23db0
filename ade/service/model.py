"""A model as the service holds it: loaded once, tested, and the same for every route whatever happens to its folder.

The files of the folder are read into memory when the model is loaded. What is needed later (the inspector's PyTorch
model, the tables of vectors) is made from these bytes, not from the folder.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ade.data.problems import ENCODER, REGRESSION, SINGLE, TAGGER
from ade.encoder import Encoder
from ade.errors import InputError, first_line, missing_package
from ade.files import MARKER, kind_of, model_folder
from ade.predictor import Predictor
from ade.runtime.encoder import RuntimeEncoder
from ade.runtime.runtime import Runtime

if TYPE_CHECKING:
    from ade.classifier import Tagger
    from ade.inspector.reading import Inspector

FILES = ("*.json", "*.packed.xz", "model.safetensors")  # of a model folder, all that loading reads
SELF_TEST = ("", "a", "The quick brown fox jumps over the lazy dog. " * 20)
READ_ATTEMPTS = 5
TAGGING, EMBEDDING = "token_classification", "sentence_embedding"


class ServedModel:
    """A predictor, a tagger or an encoder, its name and hash, and how its inspector is made when that is needed."""

    def __init__(
        self,
        predictor: "Predictor | Tagger | Encoder",
        name: str = "model",
        files: dict[str, bytes] | None = None,
        make_inspector: "Callable[[], Inspector] | None" = None,
    ) -> None:
        self.predictor, self.name = predictor, name
        self.sha256 = _digest(files or {})
        self._files, self._has_encoder = files or {}, False
        self.make_inspector = make_inspector

    @property
    def is_tagger(self) -> bool:
        """Whether it predicts a tag for every word instead of a label for every text."""
        return not isinstance(self.predictor, Predictor | Encoder)

    @property
    def is_encoder(self) -> bool:
        """Whether it makes vectors alone."""
        return isinstance(self.predictor, Encoder)

    def text_predictor(self) -> Predictor:
        """The predictor of a model that predicts labels or numbers for texts."""
        if not isinstance(self.predictor, Predictor):
            raise InputError("this needs a classifier of texts, not a tagger or an encoder")
        return self.predictor

    def encoder(self) -> Runtime | Encoder:
        """What makes vectors."""
        if isinstance(self.predictor, Encoder):
            return self.predictor
        if not isinstance(self.predictor, Runtime):
            raise InputError("a tagger has no vectors of texts")
        if self._files and not self._has_encoder:
            with _written(self._files) as folder:
                self.predictor.load_encoder(folder)
            self._has_encoder = True
        return self.predictor

    @property
    def dim(self) -> int:
        """The width of its vectors; 0 where it makes none."""
        if isinstance(self.predictor, Encoder):
            return self.predictor.dim
        return self.predictor.projection.tables.dim if isinstance(self.predictor, Runtime) else 0

    def as_dict(self) -> dict[str, Any]:
        """What `/health` says of the model."""
        predictor = self.predictor
        if isinstance(predictor, Encoder):
            encoder = {"problem": EMBEDDING, "labels": [], "max_tokens": predictor.max_tokens, "dim": predictor.dim}
            return {"name": self.name, "sha256": self.sha256, **encoder}
        problem = predictor.problem if isinstance(predictor, Predictor) else TAGGING
        about = {"problem": problem, "labels": list(predictor.names), "max_tokens": predictor.max_tokens}
        return {"name": self.name, "sha256": self.sha256, **about}

    @classmethod
    def load(cls, source: str | Path, threads: int = 0, inspect: bool = True) -> "ServedModel":
        """Load a model folder or a model on the hub, and test it; with `inspect`, it can be inspected later."""
        path = model_folder(source)
        files = _read(path)
        predictor: Predictor | Tagger | Encoder
        with _written(files) as folder, _naming(folder, path):
            if kind_of(folder) == TAGGER:
                predictor, inspect = _load_tagger(folder), False
            elif kind_of(folder) == ENCODER:
                predictor, inspect = RuntimeEncoder.load(folder, threads=threads), False
            else:
                predictor = runtime = Runtime.load(folder, threads)
                inspect = inspect and runtime.projection.tables.norm is None  # a coded table has no anchors to show
        model = cls(predictor, path.resolve().name if path == Path(source) else str(source), files)
        if inspect:
            model.make_inspector = model._load_inspector
        self_test(model, path)
        return model

    def _load_inspector(self) -> "Inspector":
        try:
            from ade.classifier import Classifier
            from ade.inspector.reading import Inspector
        except ImportError as error:
            raise InputError(missing_package("the inspector", error) or str(error)) from None

        with _written(self._files) as folder:
            return Inspector(Classifier.load(folder, "cpu"))


def self_test(model: ServedModel, path: Path) -> None:
    """Predict a few texts and check the result; an `InputError` for a model that cannot be served."""
    texts = list(SELF_TEST)
    try:
        if isinstance(model.predictor, Encoder):
            fits = np.allclose(np.linalg.norm(model.predictor.encode(texts), axis=1), 1, atol=1e-3)
        elif not isinstance(model.predictor, Predictor):
            tags = model.predictor.predict([text.split() for text in texts])
            fits = [len(each) for each in tags] == [len(text.split()) for text in texts]
        elif model.predictor.problem == REGRESSION:
            fits = bool(np.isfinite(model.predictor.predict(texts)).all())
        else:
            found = model.predictor.predict_proba(texts)  # (n, C)
            sums = model.predictor.problem != SINGLE or np.allclose(found.sum(1), 1, atol=1e-3)
            shape = (len(texts), len(model.predictor.names))
            fits = bool(np.isfinite(found).all()) and found.shape == shape and bool(sums)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # of any library; a panic in the tokenizer is not an Exception
        raise InputError(f"{path}: the model fails on a test text ({_first_line(error)})") from None
    if not fits:
        raise InputError(f"{path}: the model's predictions for a test text are not probabilities or finite numbers")


def _first_line(error: BaseException) -> str:
    return first_line(error) if isinstance(error, Exception) else (str(error).splitlines() or [""])[0]


def _load_tagger(folder: Path) -> "Tagger":
    try:
        from ade.classifier import Tagger
    except ImportError as error:
        raise InputError(missing_package("serving a tagger", error) or str(error)) from None
    return Tagger.load(folder, "cpu")


def _read(path: Path) -> dict[str, bytes]:
    """The files of a model folder, by name; again from the start if the folder is replaced meanwhile."""
    if not (path / MARKER).is_file():
        raise InputError(f"{path}: not a model folder (no {MARKER}); make one with 'ade train'")
    for _ in range(READ_ATTEMPTS):
        try:
            before = _versions(path)
            files = {name: (path / name).read_bytes() for name in before}
            if _versions(path) == before:
                return files
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            reason = "its files are being changed"
    raise InputError(f"{path}: cannot be read ({reason})")


def _versions(path: Path) -> dict[str, tuple[int, ...]]:
    """The files of a model folder, and what changes when one is replaced or written."""
    found = sorted({file for pattern in FILES for file in path.glob(pattern) if file.is_file()})
    stats = [file.stat() for file in found]
    return {file.name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for file, stat in zip(found, stats, strict=True)}


@contextmanager
def _written(files: dict[str, bytes]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ade-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        yield Path(folder)


@contextmanager
def _naming(folder: Path, path: Path) -> Iterator[None]:
    """Errors name the folder that was given, not the temporary one."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(str(folder), str(path))) from None


def _digest(files: dict[str, bytes]) -> str:
    """SHA-256 of names and contents of all files, in order of their names; empty without files."""
    if not files:
        return ""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()
