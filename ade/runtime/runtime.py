"""The light runtime: a model folder -> labels with numpy, tokenizers and safetensors alone.

For small machines and quick starts: neither torch nor transformers is imported. The scores are computed
from the exact tables of `tables.py`, so predictions are those of the model's own forward pass.
"""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import numpy as np
from safetensors import deserialize
from tokenizers import Tokenizer

from ade.data.problems import SINGLE, TAGGER, names_of, problem_of
from ade.data.tokenize import CHUNK, average_windows, split_windows, tokenize
from ade.data.tokenizer_file import read_tokenizer
from ade.devices import cores
from ade.errors import InputError
from ade.explanation import TokenContributions
from ade.files import MARKER, model_folder, reading_model
from ade.lexicon import Lexicon, lexicon_of
from ade.packing.format import check_finite
from ade.predictor import Predictor
from ade.runtime.projection import CACHED_TYPES, Projection
from ade.runtime.tables import fold

try:
    from threadpoolctl import ThreadpoolController
except ImportError:  # optional: prediction is slower without it
    ThreadpoolController = None

MIN_PARALLEL_TEXTS = 16  # fewer texts are computed by one thread
ENCODER_TYPES = 2048  # token types whose rows are cached for vectors: the rows are long
DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
    "I8": np.int8, "U8": np.uint8,
}  # fmt: skip


@cache
def _blas_libraries() -> "ThreadpoolController | None":
    """The linear algebra libraries numpy has loaded; cached, because finding them is slow."""
    return None if ThreadpoolController is None else ThreadpoolController()


@contextmanager
def _single_threaded_blas() -> Iterator[None]:
    """Keep matrix products to the calling thread: texts are spread over our threads, one product is too small."""
    libraries = _blas_libraries()
    with nullcontext() if libraries is None else libraries.limit(limits=1, user_api="blas"):
        yield


class Runtime(Predictor):
    """A trained model ready to predict on a CPU."""

    def __init__(
        self,
        projection: Projection,
        tokenizer: Tokenizer,
        names: tuple[str, ...],
        threads: int = 0,
        problem: str = SINGLE,
        lexicon: Lexicon | None = None,
        label_type: str = "str",
    ) -> None:
        self.projection, self.lexicon = projection, lexicon
        self.tokenizer = tokenizer  # changed below; a copy would double the start-up time
        self.tokenizer.no_padding()
        self.max_tokens = projection.tables.options.max_tokens
        self.tokenizer.enable_truncation(self.longest)
        self._names, self._problem, self._label_type = names, problem, label_type
        self._threads = threads or cores()
        self._folder: Path | None = None  # set by `load`
        self._encoder: Projection | None = None
        self._start_threads()

    def _start_threads(self) -> None:
        self._process = os.getpid()
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None

    def __getstate__(self) -> dict[str, object]:
        """Leave out the threads, which cannot be pickled."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_pool", "_process")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._start_threads()

    @property
    def names(self) -> tuple[str, ...]:
        """The labels, in the order of the probabilities."""
        return self._names

    @property
    def problem(self) -> str:
        """The kind of problem: one label a text, any number of labels, or regression."""
        return self._problem

    @property
    def label_type(self) -> str:
        """The type in which the labels were given for training: str, int, float or bool."""
        return self._label_type

    def scores(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Class scores (n, C) of concatenated texts: text i is `ids[offsets[i]:offsets[i + 1]]`, never empty."""
        # Attention runs over windows of a long text, the lexicon over all of it.
        windows, first = split_windows(offsets, self.max_tokens)
        return self._with_lexicon(self._projected(ids, windows), windows, first, ids, offsets)

    def _with_lexicon(
        self, scores: np.ndarray, windows: np.ndarray, first: np.ndarray, ids: np.ndarray, offsets: np.ndarray
    ) -> np.ndarray:
        """Class scores of texts from those of their windows."""
        if len(scores) > len(first):
            scores = average_windows(scores, windows, first)
        return scores if self.lexicon is None else scores + self.lexicon.logits(ids, offsets)

    def score_steps(self, texts: Sequence[str], tokens: int) -> Iterator[np.ndarray | None]:
        """Compute `predict_scores` in steps of about so many tokens: yields None after each but the last, then them."""
        ids, offsets = tokenize(self.tokenizer, texts, self.longest)
        windows, first = split_windows(offsets, self.max_tokens)
        parts, start, end = [], 0, len(windows) - 1
        yield None
        while start < end:
            stop = min(end, max(start + 1, int(np.searchsorted(windows, windows[start] + tokens, "right")) - 1))
            part = ids[windows[start] : windows[stop]]
            parts.append(self._projected(part, windows[start : stop + 1] - windows[start]))
            start = stop
            if start < end:
                yield None
        yield self._with_lexicon(np.concatenate(parts), windows, first, ids, offsets)

    def token_contributions(self, ids: np.ndarray) -> TokenContributions:
        """Return what each of at most `max_tokens` tokens adds to the class scores, without the lexicon."""
        self._after_fork()
        return self.projection.token_contributions(ids)

    def ngram_scores(self) -> Lexicon | None:
        """Return the lexicon; None where the model has none."""
        return self.lexicon

    def encode(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return the pooled vector of each text, the input of the classification layer: (n, d), or (d,) for one.

        A text is truncated to `max_tokens` tokens. Scores of a lexicon are not part of the vectors.
        """
        if isinstance(texts, str):
            return self.encode([texts])[0]
        parts = [
            self.pooled_vectors(*tokenize(self.tokenizer, texts[start : start + CHUNK], self.max_tokens, first=start))
            for start in range(0, max(1, len(texts)), CHUNK)
        ]
        return np.concatenate(parts)

    def pooled_vectors(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the pooled vectors (n, d) of n texts of at most `max_tokens` tokens; arguments as of `scores`."""
        if self._encoder is None:
            self.load_encoder(self._folder)
        assert self._encoder is not None
        return self._encoder.logits(ids, offsets)

    def load_encoder(self, folder: Path | None) -> None:
        """Read what vectors need, which is otherwise done when they are first asked for, from the model's folder."""
        if folder is None:
            raise InputError("vectors need the model's folder; load the model from one")
        self._encoder = self._encoder or self._make_encoder(folder)

    def _make_encoder(self, folder: Path) -> Projection:
        """Tables of the same model with the identity as its classification layer: its scores are pooled vectors."""
        config = json.loads((folder / MARKER).read_text("utf8"))
        state = _read_state(folder / "model.safetensors")
        state.pop("classifier.scales", None)
        dim = self.projection.tables.dim
        state |= {"classifier.weight": np.eye(dim, dtype=np.float32), "classifier.bias": np.zeros(dim, np.float32)}
        return Projection(fold({**config, "problem_type": SINGLE}, state), ENCODER_TYPES)

    def _after_fork(self) -> None:
        """Start anew in a forked process, which has neither our threads nor the thread that held the lock."""
        if self._process != os.getpid():
            self.projection.unlock()
            self._start_threads()

    def _projected(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Scores of the model without the lexicon."""
        self._after_fork()
        if len(offsets) <= MIN_PARALLEL_TEXTS or self._pool is None:
            return self.projection.logits(ids, offsets)
        with self.projection.lock, _single_threaded_blas():  # the limits of two callers must not overlap
            return self.projection.logits(ids, offsets, self._pool)

    @classmethod
    def load(cls, folder: str | Path, threads: int = 0, cached_types: int = CACHED_TYPES) -> "Runtime":
        """Load a model.

        Args:
            folder: a model folder, or a name on the Hugging Face hub.
            threads: number of threads; 0 for one per core.
            cached_types: number of token types whose rows are cached.
        """
        path = model_folder(folder)
        with reading_model(path):
            config = json.loads((path / MARKER).read_text("utf8"))
            if config.get("model_type") != "ade":
                raise InputError(f"{path}: not an ADE model (its model_type is {config.get('model_type')})")
            if config.get("architectures") == [TAGGER]:
                raise InputError(f"{path}: a tagger, which labels words; a classifier of texts is needed here")
            state = _read_state(path / "model.safetensors")
            check_finite(state)
            tables, lexicon = fold(config, state), lexicon_of(config, state)
            names = names_of(config.get("id2label"), tables.labels)
        tokenizer = read_tokenizer(path, tables.pairs.vocabulary)
        problem = problem_of(config.get("problem_type"), tables.labels)
        label_type = str(config.get("label_type", "str"))
        runtime = cls(Projection(tables, cached_types), tokenizer, names, threads, problem, lexicon, label_type)
        runtime._folder = path
        return runtime


def _read_state(path: Path) -> dict[str, np.ndarray]:
    """Every array of a safetensors file, bfloat16 as float32."""
    state = {}
    for name, entry in deserialize(path.read_bytes()):
        dtype, data = entry["dtype"], bytes(entry["data"])
        if dtype == "BF16":  # numpy has no such type; it is the upper half of a float32
            array = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(data, DTYPES[dtype])
        state[name] = array.reshape(entry["shape"])
    return state
