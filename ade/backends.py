"""What computes a model's numbers: lookup tables, the method in plain numpy, torch, or Triton. Chosen here alone."""

from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from typing import Protocol

import numpy as np

from ade import plain
from ade.codebook import Codebook
from ade.configuration import TAGGER
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
    over_tokens, has_torch = saved.config.attend == "tokens", find_spec("torch") is not None
    if device != "cpu" and (has_torch or device != "auto"):
        from ade.devices import resolve_device

        device = str(resolve_device(device))
    if device in ("cpu", "auto") and (over_tokens or not has_torch):
        return TableBackend(saved, threads) if over_tokens else PlainBackend(saved)
    from ade.torch_backends import torch_backend

    return torch_backend(saved, device)


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


class PlainBackend:
    """The method in plain numpy, one text after the other: for attention over anchors where torch is missing."""

    def __init__(self, saved: Saved) -> None:
        self.saved, self.model = saved, plain_model(saved)

    def scores(self, texts: Ragged) -> np.ndarray:
        """Return the score of every label for each text, the lexicon's added: (n, C)."""
        scores = self._of_each(texts, self.model.scores, self.saved.config.outputs)
        return scores if self.saved.lexicon is None else scores + self.saved.lexicon.added(texts)

    def vectors(self, texts: Ragged) -> np.ndarray:
        """Return the pooled vector of each text, which the head reads: (n, d)."""
        return self._of_each(texts, self.model.pooled, self.saved.table.dim)

    def _of_each(self, texts: Ragged, compute: Callable[[np.ndarray], np.ndarray], width: int) -> np.ndarray:
        rows = [compute(ids) for ids in texts.first(self.saved.config.max_tokens)]
        return np.array(rows, np.float32).reshape(-1, width)

    def token_scores(self, texts: Ragged) -> tuple[np.ndarray, np.ndarray]:
        """Return pooling weights (T,) and scores (T, C), the bias included, of the tokens that attention reads."""
        texts, model = texts.first(self.saved.config.max_tokens), self.model
        all_weights = np.empty(len(texts.ids), np.float32)
        all_scores = np.empty((len(texts.ids), self.saved.config.outputs), np.float32)
        for ids, start in zip(texts, texts.offsets, strict=False):
            if self.saved.config.kind == TAGGER:
                weights, scores = np.full(len(ids), 1 / len(ids)), model.token_scores(ids)
            else:
                states, word = model.states(ids)  # (T, d), (T,)
                weights = np.bincount(word, model.pooling_weights(states), len(ids))  # (L,)
                bias = model.weights["head.bias"] * model.deviation + model.mean
                scores = model.contributions(ids) / weights[:, None] + bias
            all_weights[start : start + len(ids)], all_scores[start : start + len(ids)] = weights, scores
        return all_weights, all_scores


def plain_model(saved: Saved) -> plain.Model:
    """Return a model without its lexicon as `ade/plain.py` runs it."""
    table: plain.Pairs | np.ndarray
    if isinstance(saved.table, Codebook):
        table = plain.Pairs(saved.table.anchors, saved.table.indices, saved.table.weights, saved.table.counts)
    else:
        table = saved.table.rows(np.arange(saved.table.vocabulary))
    config = saved.config
    return plain.Model(
        table, saved.layers, config.heads, config.attend, config.positions, config.position_scale, config.pooling,
        config.mean, config.deviation,
    )  # fmt: skip
