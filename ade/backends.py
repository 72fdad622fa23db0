"""What computes a model's numbers: lookup tables, the method in plain numpy, torch, or Triton. Chosen here alone."""

from functools import cached_property
from importlib.util import find_spec
from typing import Protocol

import numpy as np

from ade.data.tokens import Ragged
from ade.folder import Saved
from ade.runtime.table_scores import TableScores
from ade.runtime.tables import lookup_tables

VECTOR_ROWS = 2048  # token types whose rows are kept for vectors: the rows are long


class Backend(Protocol):
    """From token ids to numbers. Attention reads the first `max_tokens` tokens of a text, a lexicon all of it."""

    def scores(self, texts: Ragged) -> np.ndarray:
        """Return the score of every label for each text, the lexicon's added: (n, C)."""

    def vectors(self, texts: Ragged) -> np.ndarray:
        """Return the pooled vector of each text, which the head reads: (n, d)."""

    def token_scores(self, texts: Ragged) -> tuple[np.ndarray, np.ndarray]:
        """Return pooling weights (T,) and scores (T, C), the bias included, of the tokens that attention reads."""


def backend_for(saved: Saved, device: str = "cpu", threads: int = 0) -> Backend:
    """Return what runs a model on a device: `cpu`, `cuda` or, for the GPU where there is one, `auto`.

    On a CPU that is numpy, whether torch is installed or not. Attention over anchors is faster by torch, so it is used
    for that where it is installed.
    """
    if device == "auto":
        device = _best_device()
    if device != "cpu" or (saved.config.attend == "anchors" and find_spec("torch") is not None):
        from ade.torch_backends import torch_backend

        return torch_backend(saved, device)
    if saved.config.attend == "anchors":
        from ade.plain_backend import PlainBackend

        return PlainBackend(saved)
    return TableBackend(saved, threads)


def _best_device() -> str:
    if find_spec("torch") is None:
        return "cpu"
    from ade.devices import resolve_device

    return str(resolve_device("auto"))


class TableBackend:
    """Exact lookup tables, on a CPU."""

    def __init__(self, saved: Saved, threads: int = 0) -> None:
        self.saved, self.threads = saved, threads
        self.tables = TableScores(lookup_tables(saved), threads)

    @cached_property
    def _vector_tables(self) -> TableScores:
        return TableScores(lookup_tables(self.saved, vectors=True), self.threads, VECTOR_ROWS)

    def scores(self, texts: Ragged) -> np.ndarray:
        """Return the score of every label for each text, the lexicon's added: (n, C)."""
        scores = self.tables.pooled(texts.first(self.saved.config.max_tokens))
        return scores if self.saved.lexicon is None else scores + self.saved.lexicon.added(texts)

    def vectors(self, texts: Ragged) -> np.ndarray:
        """Return the pooled vector of each text, which the head reads: (n, d)."""
        return self._vector_tables.pooled(texts.first(self.saved.config.max_tokens))

    def token_scores(self, texts: Ragged) -> tuple[np.ndarray, np.ndarray]:
        """Return pooling weights (T,) and scores (T, C), the bias included, of the tokens that attention reads."""
        return self.tables.by_token(texts.first(self.saved.config.max_tokens))
