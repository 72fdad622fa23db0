"""What computes a model's numbers: lookup tables, the method in plain numpy, torch, or Triton. Chosen here alone."""

from importlib.util import find_spec
from typing import Protocol

import numpy as np

from ade import plain
from ade.codebook import Codebook
from ade.configuration import TAGGER
from ade.data.tokens import Ragged
from ade.folder import Saved
from ade.runtime.table_scores import TableBackend


class Backend(Protocol):
    """From token ids to numbers. Attention reads the first `max_tokens` tokens of a text, a lexicon all of it."""

    def scores(self, texts: Ragged) -> np.ndarray:
        """Return the score of every label for each text, the lexicon's added: (n, C)."""

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
    if device in ("cpu", "auto") and over_tokens:
        return TableBackend(saved, threads)
    if device in ("cpu", "auto") and not has_torch:
        return PlainBackend(saved)
    from ade.torch_backends import torch_backend

    return torch_backend(saved, device)


class PlainBackend:
    """The method in plain numpy, one text after the other: for attention over anchors where torch is missing."""

    def __init__(self, saved: Saved) -> None:
        self.saved, self.model = saved, plain_model(saved)

    def scores(self, texts: Ragged) -> np.ndarray:
        """Return the score of every label for each text, the lexicon's added: (n, C)."""
        rows = [self.model.scores(ids) for ids in texts]
        return np.array(rows, np.float32).reshape(-1, self.saved.config.outputs)

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
    """Return a model as `ade/plain.py` runs it."""
    config, table = saved.config, saved.table
    if isinstance(table, Codebook):
        pairs: plain.Pairs = table
    else:
        tokens, ones = np.arange(table.vocabulary), np.ones(table.vocabulary, np.int32)
        pairs = plain.Pairs(table.rows(tokens), tokens, ones, ones)
    return plain.Model(
        pairs, saved.layers, config.heads, config.attend, config.positions, config.position_scale, config.pooling,
        config.max_tokens, config.mean, config.deviation, saved.lexicon,
    )  # fmt: skip
