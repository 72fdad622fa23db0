"""The method in plain numpy as a backend, and a stored model as `ade/plain.py` runs it."""

from collections.abc import Callable

import numpy as np

from ade import plain
from ade.codebook import Codebook
from ade.configuration import TAGGER
from ade.data.tokens import Ragged
from ade.folder import Saved


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
        weights, scores = [], []
        for ids in texts.first(self.saved.config.max_tokens):
            of_text = self._weights_and_scores(ids)
            weights.append(of_text[0])
            scores.append(of_text[1])
        if not weights:
            return np.empty(0, np.float32), np.empty((0, self.saved.config.outputs), np.float32)
        return np.concatenate(weights).astype(np.float32), np.concatenate(scores).astype(np.float32)

    def _weights_and_scores(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.saved.config.kind == TAGGER:
            return np.full(len(ids), 1 / len(ids)), self.model.token_scores(ids)
        states, word = self.model.states(ids)  # (T, d), (T,)
        weights = np.bincount(word, self.model.pooling_weights(states), len(ids))  # (L,)
        bias = self.model.weights["head.bias"] * self.model.deviation + self.model.mean
        return weights, self.model.contributions(ids) / weights[:, None] + bias


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
