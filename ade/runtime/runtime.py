"""The light runtime: a model folder -> labels with numpy, tokenizers and safetensors alone.

For small machines and quick starts: neither torch nor transformers is imported. The arithmetic is `projection.py`'s,
exact, so the labels are those of the model in training.
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import numpy as np
from safetensors import deserialize
from tokenizers import Tokenizer

from ade.data.problems import SINGLE, names_of, problem_of
from ade.data.tokenize import read_tokenizer, split_windows
from ade.devices import cores
from ade.errors import InputError
from ade.files import MARKER, model_folder, reading_model
from ade.lexicon import Lexicon, lexicon_of
from ade.packing.format import check_finite
from ade.predictor import Predictor
from ade.runtime.projection import CACHED_TYPES, Projection

try:
    from threadpoolctl import ThreadpoolController
except ImportError:  # it is slower without, and that is all
    ThreadpoolController = None

FEW = 16  # texts that are not worth a second thread
KINDS = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
    "I8": np.int8, "U8": np.uint8,
}  # fmt: skip


@cache
def _libraries() -> "ThreadpoolController | None":
    """The linear algebra libraries numpy has loaded; looking them up takes a while."""
    return None if ThreadpoolController is None else ThreadpoolController()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """The threads are ours: one product is too small for the library to share it out."""
    libraries = _libraries()
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
    ) -> None:
        self.projection, self.lexicon = projection, lexicon
        self.tokenizer = tokenizer  # ours from here on: a copy would double the start-up time
        self.tokenizer.no_padding()
        self.max_tokens = projection.longest
        self.tokenizer.enable_truncation(self.longest)
        self._names, self._problem = names, problem
        self._threads = threads or cores()
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None

    def __getstate__(self) -> dict[str, object]:
        """Threads do not travel."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_pool", "_process")}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Start threads of one's own."""
        self.__dict__.update(state)
        self._start()

    @property
    def names(self) -> tuple[str, ...]:
        """The labels, in the order of the probabilities."""
        return self._names

    @property
    def problem(self) -> str:
        """What an answer is: one label, any number of them, or a number."""
        return self._problem

    def scores(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Class scores (n, C) of texts kept end to end: attention over windows, and the lexicon over all of a text."""
        windows, first = split_windows(offsets, self.max_tokens)
        scores = self._projected(ids, windows)
        if len(scores) > len(first):
            tokens = np.diff(windows).astype(np.float32)[:, None]
            scores = np.add.reduceat(scores * tokens, first) / np.add.reduceat(tokens, first)
        return scores if self.lexicon is None else scores + self.lexicon.logits(ids, offsets)

    def _projected(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        if self._process != os.getpid():  # a fork has neither our threads nor whoever held the lock
            self.projection.unlock()
            self._start()
        if len(offsets) <= FEW or self._pool is None:
            return self.projection.logits(ids, offsets)
        with self.projection.lock, _one_thread_each():  # the limits of two callers must not overlap
            return self.projection.logits(ids, offsets, self._pool)

    @classmethod
    def load(cls, folder: str | Path, threads: int = 0, cached_types: int = CACHED_TYPES) -> "Runtime":
        """Read a model folder or hub name; `threads` 0 for every core, `cached_types` token types are kept ready."""
        path = model_folder(folder)
        with reading_model(path):
            config = json.loads((path / MARKER).read_text("utf8"))
            if config.get("model_type") != "ade":
                raise InputError(f"{path}: not an ADE model (its model_type is {config.get('model_type')})")
            state = _read_state(path / "model.safetensors")
            check_finite(state)
            projection, lexicon = Projection(config, state, cached_types), lexicon_of(config, state)
            names = names_of(config.get("id2label"), projection.labels)
        tokenizer = read_tokenizer(path / "tokenizer.json", projection.pairs.vocabulary)
        problem = problem_of(config.get("problem_type"), projection.labels)
        return cls(projection, tokenizer, names, threads, problem, lexicon)


def _read_state(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a file; numpy has no bfloat16, which is the upper half of a float32."""
    state = {}
    for name, entry in deserialize(path.read_bytes()):
        kind, data = entry["dtype"], bytes(entry["data"])
        if kind == "BF16":
            array = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(data, KINDS[kind])
        state[name] = array.reshape(entry["shape"])
    return state
