"""The light runtime: a model folder -> labels with numpy, tokenizers and safetensors alone.

For small machines and quick starts: neither torch nor transformers is imported. The arithmetic is `projection.py`'s,
exact, so the labels are those of the model in training.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from threadpoolctl import ThreadpoolController
from tokenizers import Tokenizer

from ade.errors import InputError
from ade.predictor import Predictor, cores
from ade.projection import CACHED_TYPES, Projection

MARKER = "config.json"
FEW = 16  # texts that are not worth a second thread


@cache
def _libraries() -> ThreadpoolController:
    """The linear algebra libraries numpy has loaded; looking them up takes a while."""
    return ThreadpoolController()


class Runtime(Predictor):
    """A trained model ready to predict on a CPU."""

    def __init__(self, projection: Projection, tokenizer: Tokenizer, names: tuple[str, ...], threads: int = 0) -> None:
        self.projection = projection
        self.tokenizer = tokenizer  # ours from here on: a copy would double the start-up time
        self.tokenizer.no_padding()
        self.max_tokens = projection.longest
        self.tokenizer.enable_truncation(self.max_tokens)
        self._names = names
        threads = threads or cores()
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    @property
    def names(self) -> tuple[str, ...]:
        """The labels, in the order of the probabilities."""
        return self._names

    def scores(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Class scores (n, C) of texts kept end to end."""
        if len(offsets) <= FEW or self._pool is None:
            return self.projection.logits(ids, offsets)
        with _libraries().limit(limits=1, user_api="blas"):  # the threads are ours, one product is too small to share
            return self.projection.logits(ids, offsets, self._pool)

    @classmethod
    def load(cls, folder: str | Path, threads: int = 0, cached_types: int = CACHED_TYPES) -> "Runtime":
        """Read a model folder; `threads` 0 for every core, `cached_types` token types are kept ready."""
        path = Path(folder)
        if not (path / MARKER).is_file():
            raise InputError(f"{path}: not a model folder (no {MARKER}); make one with 'ade train'")
        if not (path / "tokenizer.json").is_file():
            raise InputError(f"{path}: has no tokenizer.json")
        try:
            config = json.loads((path / MARKER).read_text("utf8"))
            if config.get("model_type") != "ade":
                raise InputError(f"{path}: not an ADE model (its model_type is {config.get('model_type')})")
            state = load_file(path / "model.safetensors")
            projection = Projection(config, state, cached_types)
            names = tuple(config["id2label"][str(i)] for i in range(projection.labels))
            tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        except InputError:
            raise
        except (KeyError, ValueError, IndexError, OSError, SafetensorError, AttributeError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"{path}: not a readable ADE model ({first})") from None
        except Exception as error:  # what tokenizers makes of a broken file has no type of its own
            raise InputError(f"{path}: its tokenizer.json cannot be read ({str(error).splitlines()[0]})") from None
        return cls(projection, tokenizer, names, threads)
