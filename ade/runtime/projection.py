"""Projected inference on a CPU: class scores from the tables of `tables.py`, exact, with numpy alone.

A text is a sum of two table rows per element (token or anchor, and position), one matrix product for the attention
scores and one for the attention output. The tests compare all of it with the forward pass of training. In the
comments, n is a number of texts, T the elements attended over, W the columns of a row, H the heads, C the labels and k
the most pairs of a token.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ade.config_values import EPSILON
from ade.explanation import TokenContributions
from ade.packing.coded import CodedRows
from ade.runtime.attention import attend
from ade.runtime.tables import Composition, Tables
from ade.runtime.type_cache import TypeCache, for_each

GROUP_ELEMENTS = 1024  # elements computed at a time: what fits a core's cache
CACHED_TYPES = 16_384  # token types whose rows are kept


class Projection:
    """Class scores of token ids from the tables of a trained model."""

    def __init__(self, tables: Tables, cached_types: int = CACHED_TYPES) -> None:
        self.tables = tables
        capacity = max(cached_types, tables.options.max_tokens)
        self.cache = TypeCache(tables.vocabulary, tables.columns.total, capacity)
        self.lock = threading.RLock()  # one batch at a time, because it changes the cache
        self._positions = tables.position_rows(64)  # (P, W), grown when a text is longer; (1, W) without positions

    def unlock(self) -> None:
        """Replace the lock: in a forked process, the thread that held it may be gone."""
        self.lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the lock, which cannot be pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.unlock()

    def logits(self, ids: np.ndarray, offsets: np.ndarray, pool: ThreadPoolExecutor | None = None) -> np.ndarray:
        """Class scores (n, C) of concatenated texts: text i is `ids[offsets[i]:offsets[i + 1]]`, never empty."""
        options = self.tables.options
        with self.lock:
            return self._logits(ids, offsets, pool) * np.float32(options.target_scale) + np.float32(options.target_mean)

    def _logits(self, ids: np.ndarray, offsets: np.ndarray, pool: ThreadPoolExecutor | None) -> np.ndarray:
        options, labels = self.tables.options, self.tables.labels
        if len(offsets) <= 1:
            return np.empty((0, labels), dtype=np.float32)

        source = ids if options.expanded else self.cache.slots(ids, self.type_rows, pool)
        if source is None:
            return self._logits_by_halves(ids, offsets, pool)

        lengths = np.diff(offsets)
        sizes = np.add.reduceat(self.tables.pairs.counts(ids), offsets[:-1]) if options.expanded else lengths
        self._grow_positions(int((lengths if options.grouped_positions else sizes).max()))
        scores = np.empty((len(lengths), labels), dtype=np.float32)

        def compute(rows: np.ndarray) -> None:
            elements, real = self.elements(source, offsets[rows], lengths[rows])
            scores[rows] = self.class_scores(elements, real)

        for_each(compute, groups_by_size(sizes), pool)
        return scores

    def _logits_by_halves(self, ids: np.ndarray, offsets: np.ndarray, pool: ThreadPoolExecutor | None) -> np.ndarray:
        """Class scores of texts with more token types than the cache holds."""
        if len(offsets) == 2:
            raise ValueError(f"a text of more token types than are kept ({len(self.cache.rows):,})")
        middle = len(offsets) // 2
        split = offsets[middle]
        first = self._logits(ids[:split], offsets[: middle + 1], pool)
        second = self._logits(ids[split:], offsets[middle:] - split, pool)
        return np.concatenate([first, second])

    # -- rows --------------------------------------------------------------------------------------------------

    def type_rows(self, types: np.ndarray) -> np.ndarray:
        """Rows of token types (m,) as the cache keeps them: (m, columns.total).

        LayerNorm divides by one number, the standard deviation of the composed token, which the Gram matrix of the
        token's own anchors gives; the rest is a weighted sum of rows of anchors, so no vector is composed.
        """
        tables, composition = self.tables, self.tables.composition
        if isinstance(tables.source, CodedRows):
            assert tables.norm is not None
            return tables.norm(tables.source.of(types)) @ tables.matrix.T
        assert composition is not None
        anchor, beta, _ = tables.pairs.of(types)  # (m, k)
        gram = beta[:, :, None] * _gram(composition, anchor) * beta[:, None, :]  # (m, k, k)
        deviation = np.sqrt(np.maximum(gram.sum((1, 2)), 0) + EPSILON)
        weight = beta / deviation[:, None]
        rows = (weight[:, None] @ tables.anchor_rows[anchor])[:, 0] + composition.shift  # (m, W)
        if tables.gates is None:
            return rows

        # In the order of `Columns`: anchors, direct, gram.
        direct = beta[..., None] * tables.gates.direct[anchor]  # (m, k, 1 + C)
        return np.hstack([rows, anchor, direct.reshape(len(types), -1), gram.reshape(len(types), -1)])

    def elements(self, source: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows, with positions, of everything attended over: (n, T, columns), and a mask of the real ones (n, T).

        `source` has a token per entry: its slot in the cache, or its id in `anchors` mode. Text i is
        `source[starts[i] : starts[i] + lengths[i]]`.
        """
        length = int(lengths.max())
        column = np.arange(length)
        real = column < lengths[:, None]  # (n, L)
        tokens = source[np.where(real, starts[:, None] + column, starts[:, None])]  # (n, L)
        if self.tables.options.expanded:
            return self._anchor_elements(tokens, real)
        rows = self.cache.rows[tokens]  # (n, L, columns)
        rows[..., : self.tables.columns.projected] += self._position_rows(slice(length))
        return rows, real

    def _anchor_elements(self, ids: np.ndarray, real_tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`elements` in `anchors` mode: every token of ids (n, L) replaced by its anchors, in order."""
        tables, (count, length) = self.tables, ids.shape
        anchor, beta, real_pairs = tables.pairs.of(ids.ravel())  # (n L, k)
        real_pairs &= real_tokens.reshape(-1, 1)

        token = real_pairs.nonzero()[0]  # (S,): of each of the S anchors, which of the n L tokens it belongs to
        sizes = np.bincount(token // length, minlength=count)  # (n,): anchors of each text
        first = np.cumsum(sizes) - sizes
        grouped = tables.options.grouped_positions
        position = token % length if grouped else np.arange(len(token)) - np.repeat(first, sizes)  # (S,)

        real = np.arange(int(sizes.max())) < sizes[:, None]  # (n, T)
        rows = np.zeros((*real.shape, tables.columns.projected), dtype=np.float32)
        weighted = beta[real_pairs][:, None] * tables.anchor_rows[anchor[real_pairs]]  # (S, W)
        rows[real] = weighted + self._position_rows(position)
        return rows, real

    def _position_rows(self, positions: np.ndarray | slice) -> np.ndarray:
        """Rows of positions; one row for all in a model without positions."""
        return self._positions if self.tables.options.position_scale == 0.0 else self._positions[positions]

    def _grow_positions(self, length: int) -> None:
        """Make rows for at least `length` positions, before several threads read them."""
        if self.tables.options.position_scale != 0.0 and length > len(self._positions):
            self._positions = self.tables.position_rows(2 ** int(np.ceil(np.log2(length))))

    # -- attention, gates, pooling -----------------------------------------------------------------------------

    def class_scores(self, rows: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Class scores (n, C) of elements (n, T, columns): attention, pooling, classifier."""
        if self.tables.depth is not None:
            share, scores = self._pooled(rows, real)
            return (share[:, None] @ scores)[:, 0]
        own = rows[..., self.tables.columns.own_scores]  # (n, T, 1 + C): pooling score, class scores
        if not self.tables.options.sat:
            share = self._pooling_weights(own[..., 0], real)  # (n, T)
            return (share[:, None] @ own[..., 1:])[:, 0]

        output = self.attention_output(rows, real)  # (n, T, H, value)
        if self.tables.gates is not None:
            own = self._recomposed_scores(rows, output)
        readout = self.tables.value_readout
        if readout is None:  # the values are parts of the scores already
            added = output.sum(2)  # (n, T, 1 + C)
            share = self._pooling_weights(own[..., 0] + added[..., 0], real)
            return (share[:, None] @ (own[..., 1:] + added[..., 1:]))[:, 0]

        # Pooling comes before the product with the classifier: one vector a text instead of one an element.
        output = output.reshape(*real.shape, self.tables.dim)
        share = self._pooling_weights(own[..., 0] + output @ readout[:, 0], real)[:, None]  # (n, 1, T)
        return (share @ own[..., 1:])[:, 0] + (share @ output)[:, 0] @ readout[:, 1:]

    def token_contributions(self, ids: np.ndarray) -> TokenContributions:
        """What each token of one text adds to the class scores: its pooling weight times its own class scores."""
        tables, options = self.tables, self.tables.options
        with self.lock:
            source = ids if options.expanded else self.cache.slots(ids, self.type_rows, None)
            assert source is not None  # the cache holds the types of at least one text
            counts = tables.pairs.counts(ids) if options.expanded else np.ones(len(ids), np.int64)
            self._grow_positions(len(ids) if options.grouped_positions else int(counts.sum()))
            rows, real = self.elements(source, np.array([0]), np.array([len(ids)]))
            share, scores = (part[0] for part in self._pooled(rows, real))  # (T,), (T, C)

        # In `anchors` mode a token has several elements.
        first = np.cumsum(counts) - counts
        scale = np.float32(options.target_scale)
        weighted = share[:, None] * (scores - tables.classifier_bias) * scale
        return TokenContributions(
            np.add.reduceat(share, first),
            np.add.reduceat(weighted, first),
            tables.classifier_bias * scale + np.float32(options.target_mean),
        )

    def _pooled(self, rows: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pooling weights (n, T) and class scores (n, T, C) of every element; `class_scores` sums their product."""
        scores = rows[..., self.tables.columns.own_scores]  # (n, T, 1 + C)
        if self.tables.options.sat:
            output = self.attention_output(rows, real)  # (n, T, H, value)
            if self.tables.gates is not None:
                scores = self._recomposed_scores(rows, output)
            readout = self.tables.value_readout
            scores = scores + (output.sum(2) if readout is None else output.reshape(*real.shape, -1) @ readout)
        if self.tables.depth is not None:  # so far the scores are vectors
            scores = self.tables.depth(scores[..., 1:], real, self.tables.options.heads)
        return self._pooling_weights(scores[..., 0], real), scores[..., 1:]

    def attention_output(self, rows: np.ndarray, real: np.ndarray) -> np.ndarray:
        """What attention gives each element, per head, before the output layer: (n, T, H, value)."""
        count, length, _ = rows.shape
        columns, heads = self.tables.columns, self.tables.options.heads
        query, key, value = (
            rows[..., part].reshape(count, length, heads, -1) for part in (columns.query, columns.key, columns.value)
        )
        return attend(query, key, value, real)

    def _recomposed_scores(self, rows: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Own scores, positions included, of tokens composed again from gated anchors: (n, T, 1 + C)."""
        count, length, _ = rows.shape
        tables, columns, gates = self.tables, self.tables.columns, self.tables.gates
        assert gates is not None
        max_pairs = tables.pairs.max_pairs
        anchor = rows[..., columns.anchors].astype(np.int64)  # (n, T, k)
        direct = rows[..., columns.direct].reshape(count, length, max_pairs, -1)  # (n, T, k, 1 + C)
        gram = rows[..., columns.gram].reshape(count, length, max_pairs, max_pairs)

        # One anchor of each token at a time: all of them at once would not fit the core's cache.
        output = output.reshape(count, length, tables.dim)
        score = gates.bias[anchor]
        for i in range(max_pairs):
            score[..., i] += np.einsum("ntd,ntd->nt", gates.weight[anchor[..., i]], output)
        gate = (1 + np.tanh(score / 2))[..., None, :]  # (n, T, 1, k): twice the logistic function

        variance = (gate @ gram @ gate.swapaxes(2, 3))[..., 0]  # (n, T, 1)
        deviation = np.sqrt(np.maximum(variance, 0) + EPSILON)
        scores = (gate @ direct)[..., 0, :] / deviation + gates.constant
        return scores + self._position_rows(slice(length))[..., columns.own_scores]

    def _pooling_weights(self, score: np.ndarray, real: np.ndarray) -> np.ndarray:
        """The weight of each element in the pooled vector, from its pooling score: (n, T)."""
        if self.tables.options.mean_pooling:
            return (real / real.sum(1, keepdims=True)).astype(np.float32)
        score = np.where(real, score, -np.inf)
        weight = np.exp(score - score.max(1, keepdims=True))
        return weight / weight.sum(1, keepdims=True)


def _gram(composition: Composition, anchor: np.ndarray) -> np.ndarray:
    """Inner products of the centred anchors (m, k) of tokens: (m, k, k)."""
    if composition.gram is not None:
        return composition.gram[anchor[:, :, None], anchor[:, None, :]]
    own = composition.centred[anchor]  # (m, k, d)
    return own @ own.swapaxes(1, 2)


def groups_by_size(sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Every text once, largest first, in groups of similar size with about `GROUP_ELEMENTS` elements each."""
    order = np.argsort(-sizes, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, GROUP_ELEMENTS // max(1, int(sizes[order[start]])))
        yield order[start : start + count]
        start += count
