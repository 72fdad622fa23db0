"""Scores of texts from lookup tables on a CPU: exact, with numpy alone.

A token is the sum of two table rows, of its type and of its position. In the comments, n is a number of texts, T the
tokens of the longest, W the columns of a row, H the heads, C the labels.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np

from ade.data.tokens import Ragged, sorted_batches
from ade.folder import Saved
from ade.lexicon import add_lexicon
from ade.runtime.attention import attend, further_layer
from ade.runtime.tables import LookupTables
from ade.runtime.threads import cores, for_each, thread_pool

GROUP_ELEMENTS = 1024  # elements computed together: what fits a core's cache
CACHED_ROWS = 1 << 15  # token types whose rows are kept, at least those of one call: a usual English vocabulary
TYPES_PER_TASK = 256  # types whose rows are computed together
MIN_PARALLEL_TOKENS = 2 * GROUP_ELEMENTS  # up to here one thread computes all
Compute = Callable[[np.ndarray, np.ndarray, np.ndarray], None]  # of text numbers (n,), elements (n, T, W), mask (n, T)


class TableBackend:
    """Lookup tables on a CPU, by several threads."""

    def __init__(self, saved: Saved, threads: int = 0) -> None:
        """Use `threads` threads; 0 for one per core."""
        self.saved, self.threads = saved, threads or cores()
        self.tables = LookupTables(saved)
        self.cache = RowCache(saved.table.vocabulary, self.tables.columns.total)
        self._positions = self.tables.position_rows(64)  # (P, W), grown when a text is longer; (1, W) without positions
        self._lock, self._process = threading.Lock(), os.getpid()  # one batch after the other: it changes the cache

    def scores(self, texts: Ragged) -> np.ndarray:
        """Return the score of every label for each text, the lexicon's added: (n, C)."""
        scores = np.empty((len(texts), self.tables.outputs), np.float32)

        def compute(rows: np.ndarray, elements: np.ndarray, real: np.ndarray) -> None:
            scores[rows] = self._pooled_scores(elements, real)

        self._compute(texts, compute)
        return add_lexicon(self._rescaled(scores), self.saved.lexicon, texts)

    def token_scores(self, texts: Ragged) -> tuple[np.ndarray, np.ndarray]:
        """Return pooling weights (T,) and scores (T, C), the bias included, of the tokens that attention reads."""
        texts = texts.first(self.saved.config.max_tokens)
        weights = np.empty(len(texts.ids), np.float32)
        scores = np.empty((len(texts.ids), self.tables.outputs), np.float32)

        def compute(rows: np.ndarray, elements: np.ndarray, real: np.ndarray) -> None:
            share, of_tokens = self._token_scores(elements, real)
            place = (texts.offsets[rows][:, None] + np.arange(real.shape[1]))[real]
            weights[place], scores[place] = share[real], of_tokens[real]

        self._compute(texts, compute)
        return weights, self._rescaled(scores)

    def _rescaled(self, scores: np.ndarray) -> np.ndarray:
        """Undo the standardisation of a regression's targets."""
        config = self.saved.config
        if (config.mean, config.deviation) == (0, 1):
            return scores
        return scores * np.float32(config.deviation) + np.float32(config.mean)

    def _compute(self, texts: Ragged, compute: Compute) -> None:
        """Compute texts up to the last token that attention reads, in groups of similar length."""
        if len(texts) == 0:
            return
        if self._process != os.getpid():  # a forked process: the thread that held the lock may be gone
            self._lock, self._process = threading.Lock(), os.getpid()
        texts = texts.first(self.saved.config.max_tokens)
        lengths, longest = texts.lengths, int(texts.lengths.max())
        parallel = self.threads > 1 and len(texts.ids) > MIN_PARALLEL_TOKENS
        with self._lock, thread_pool(self.threads) if parallel else nullcontext() as pool:
            if self.tables.has_positions and longest > len(self._positions):
                self._positions = self.tables.position_rows(2 ** (longest - 1).bit_length())
            slots = self.cache.slots(texts.ids, self.tables.rows, pool)

            def group(numbers: np.ndarray) -> None:
                column = np.arange(int(lengths[numbers].max()))
                real = column < lengths[numbers][:, None]  # (n, T)
                starts = texts.offsets[numbers][:, None]
                places = np.where(real, starts + column, starts)
                positions = self._positions[: len(column)] if self.tables.has_positions else self._positions
                compute(numbers, self.cache.rows[slots[places]] + positions, real)

            for_each(group, sorted_batches(lengths, GROUP_ELEMENTS), pool)

    def _pooled_scores(self, rows: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Scores (n, C) of elements (n, T, W): attention, pooling, head."""
        tables = self.tables
        if tables.config.layers > 1 or tables.value_readout is None:
            share, scores = self._token_scores(rows, real)
            return (share[:, None] @ scores)[:, 0]

        # Pooling comes before the product with the head: one vector a text instead of one an element.
        own = rows[..., tables.columns.own_scores]  # (n, T, 1 + C): pooling score, class scores
        output = self._attention_output(rows, real).reshape(*real.shape, tables.dim)
        readout = tables.value_readout
        share = self._pooling_weights(own[..., 0] + output @ readout[:, 0], real)[:, None]  # (n, 1, T)
        return (share @ own[..., 1:])[:, 0] + (share @ output)[:, 0] @ readout[:, 1:]

    def _token_scores(self, rows: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pooling weights (n, T) and scores (n, T, C) of every element; the sum of their products is the text's."""
        tables = self.tables
        scores = rows[..., tables.columns.own_scores]  # (n, T, 1 + C)
        if tables.config.sat:
            output, readout = self._attention_output(rows, real), tables.value_readout  # (n, T, H, value)
            scores = scores + (output.sum(2) if readout is None else output.reshape(*real.shape, -1) @ readout)
        if tables.config.layers > 1:  # so far the scores are vectors
            states = scores[..., 1:]
            for i in range(tables.config.layers - 1):
                states = further_layer(states, real, f"layers.{i}.", tables.layers, tables.config.heads)
            scores = states @ tables.readout.T + tables.readout_bias
        return self._pooling_weights(scores[..., 0], real), scores[..., 1:]

    def _attention_output(self, rows: np.ndarray, real: np.ndarray) -> np.ndarray:
        """What attention gives each element, per head, before the output layer: (n, T, H, value)."""
        count, length, _ = rows.shape
        columns, heads = self.tables.columns, self.tables.config.heads
        query, key, value = (
            rows[..., part].reshape(count, length, heads, -1) for part in (columns.query, columns.key, columns.value)
        )
        return attend(query, key, value, real)

    def _pooling_weights(self, score: np.ndarray, real: np.ndarray) -> np.ndarray:
        """The weight of each element in the pooled vector, from its pooling score: (n, T)."""
        if self.tables.config.pooling == "mean":
            return (real / real.sum(1, keepdims=True)).astype(np.float32)
        score = np.where(real, score, -np.inf)
        weight = np.exp(score - score.max(1, keepdims=True))
        return weight / weight.sum(1, keepdims=True)


class RowCache:
    """Rows of token types, each computed when its type is first seen; a full cache starts again from empty."""

    def __init__(self, vocabulary: int, width: int) -> None:
        self.rows = np.empty((min(vocabulary, CACHED_ROWS), width), np.float32)  # memory is taken as it fills
        self.slot_of = np.full(vocabulary, -1, np.int32)  # -1 for a type that is not cached
        self.filled = 0  # slots in use: the first ones

    def slots(
        self, ids: np.ndarray, compute: Callable[[np.ndarray], np.ndarray], pool: ThreadPoolExecutor | None = None
    ) -> np.ndarray:
        """Return indices into `rows` of token ids (n,); missing rows are made by `compute`, from types (m,)."""
        slots = self.slot_of[ids]
        missing = np.unique(ids[slots < 0])
        if len(missing) == 0:
            return slots
        if self.filled + len(missing) > len(self.rows):
            missing = np.unique(ids)
            self.slot_of[:], self.filled = -1, 0
            if len(missing) > len(self.rows):
                self.rows = np.empty((len(missing), self.rows.shape[1]), np.float32)

        free = np.arange(self.filled, self.filled + len(missing), dtype=np.int32)

        def fill(start: int) -> None:
            part = slice(start, start + TYPES_PER_TASK)
            self.rows[free[part]] = compute(missing[part])

        for_each(fill, range(0, len(missing), TYPES_PER_TASK), pool)
        self.slot_of[missing] = free  # only now: an interrupted fill must not leave a wrong row behind
        self.filled += len(missing)
        return self.slot_of[ids]
