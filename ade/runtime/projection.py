"""Projected inference: the trained model folded into tables, exact, with numpy alone.

Everything between the look-up and the softmax is linear in the layer's input x = row + position, and everything after
it is linear in what each element hears. So one matrix B turns a row into all that is ever asked of it:

  query and key of every head             (the scale of the scores and the biases included)
  per head, what hearing it adds to the pooler's score and to the class scores (W_c W_o W_v x: no value vector is left)
  what it adds to them by itself          (u x and W_c x)

`row B` is kept per token type (`tokens`, `gated`) or per anchor (`anchors`), `position B` per position; a text is then
a sum of two table rows an element, one matrix product for the scores, one for what is heard. In `gated` mode the
heard vector itself is needed, for the gates; LayerNorm of the recomposed token needs no vector, only the Gram matrix
of its own few anchors. The tests hold all of it to the training forward pass.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from ade.data.problems import scale_of
from ade.errors import InputError
from ade.packing import format as packing
from ade.packing.pairs import PackedPairs, PlainPairs
from ade.positions import sinusoidal

INSIDE = "ade.embedding."
EPSILON = 1e-5  # LayerNorm's
SAFE = 60.0  # scores up to here need no shift before the exponential
TINY = 1e-25  # nor do rows whose exponentials sum to more than this
SCORES = 1 << 23  # attention scores held at a time
LARGEST = 1 << 30  # bytes of cached rows
GROUP = 1024  # elements computed at a time: what fits a core's cache
BLOCK = 256  # rows computed at a time
FEW_ANCHORS = 2048  # up to here all inner products of anchors are kept
CACHED_TYPES = 16_384  # token types whose rows are kept


class Projection:
    """A trained model as tables; `logits` of token ids."""

    def __init__(
        self, config: Mapping[str, Any], state: Mapping[str, np.ndarray], cached_types: int = CACHED_TYPES
    ) -> None:
        self.attend, self.mean_pooling = str(config["attend"]), config["pooling"] == "mean"
        self.sat = bool(config["sat"])
        if not self.sat and self.attend == "gated":
            self.attend = "tokens"  # nothing is heard, so nothing is gated
        part = {name.removeprefix(INSIDE): array for name, array in state.items() if name.startswith(INSIDE)}
        self.pairs = PackedPairs(config["packed"], part) if config.get("packed") else PlainPairs(part)
        self.anchors = self.pairs.anchors()
        self.gain, self.shift = (state[f"ade.norm.{name}"].astype(np.float32) for name in ("weight", "bias"))
        self.dim, self.heads = self.anchors.shape[1], int(config["num_attention_heads"])
        self.labels, self.most = len(state["classifier.bias"]), self.pairs.most
        self.longest = int(config["max_tokens"])
        self.mean, self.scale = scale_of(config.get("problem_type"), config.get("scale"))
        if self.dim % self.heads:
            raise InputError(f"dimension {self.dim} is not divisible by {self.heads} heads")
        centred = self.anchors - self.anchors.mean(1, keepdims=True)
        self._fold(state, centred)
        self.lock = threading.RLock()  # one batch at a time: the cache changes hands
        self._positions(config)
        if self.attend == "anchors":  # each anchor is normalised by itself
            deviation = np.sqrt((centred**2).mean(1, keepdims=True) + EPSILON)
            self.anchor_rows = (centred / deviation * self.gain + self.shift) @ self.matrix.T  # (K, W)
        else:  # the sum of a token's anchors is
            self.anchor_rows = (centred * self.gain) @ self.matrix.T
            self.shifted = self.matrix @ self.shift  # (W,)
            self.centred = centred * np.float32(self.dim**-0.5)
            self.gram = self.centred @ self.centred.T if len(centred) <= FEW_ANCHORS else None  # (K, K)
        self.cache = TypeCache(self.pairs.vocabulary, self._width(), max(cached_types, self.longest))

    # -- folding -----------------------------------------------------------------------------------------------

    def _fold(self, state: Mapping[str, np.ndarray], centred: np.ndarray) -> None:
        """B (`matrix`) and its bias: [query, key, value parts of every head, pooler's score, class scores]."""
        dim, heads = self.dim, self.heads
        pooler, classifier = _weight(state, "pooler", dim)[0], _weight(state, "classifier", dim)
        own, own_bias = np.vstack([pooler, classifier]), np.append(0.0, state["classifier.bias"])  # (1 + C, d)
        self.wide = self.attend == "gated" or self.labels + 1 > dim // heads  # keep value vectors
        self.after = np.zeros((0, 0), np.float32)
        if not self.sat:
            self.value, parts, biases = 0, [own], [own_bias]
        else:
            weight, output = (_weight(state, f"ade.sat.{name}", dim) for name in ("projection", "output"))
            bias, output_bias = (state[f"ade.sat.{name}.bias"].astype(np.float64) for name in ("projection", "output"))
            scale = (dim // heads) ** -0.5
            value, value_bias = weight[2 * dim :], bias[2 * dim :]
            read = own @ output  # (1 + C, d): a heard vector's part in the scores
            if self.wide:
                self.value, self.after = dim // heads, read.T.astype(np.float32)  # (d, 1 + C)
            else:
                self.value = 1 + self.labels
                split = read.reshape(-1, heads, dim // heads).transpose(1, 0, 2)  # (H, 1 + C, d / H)
                value_bias = (split @ value_bias.reshape(heads, -1, 1)).ravel()
                value = (split @ value.reshape(heads, dim // heads, dim)).reshape(-1, dim)  # (H (1 + C), d)
            parts = [weight[:dim] * scale, weight[dim : 2 * dim], value, own]
            biases = [bias[:dim] * scale, bias[dim : 2 * dim], value_bias, own_bias + own @ output_bias]
            if self.attend == "gated":
                self.gate = (self.anchors @ output / dim**0.5).astype(np.float32)  # (K, d): h -> scores of the gates
                self.gate_bias = (self.anchors @ output_bias / dim**0.5).astype(np.float32)  # (K,)
        self.matrix, self.bias = np.vstack(parts).astype(np.float32), np.concatenate(biases).astype(np.float32)
        if self.attend == "gated":  # what a recomposed token adds: (K, 1 + C) before the division by its deviation
            self.direct = (centred * self.gain) @ own.T.astype(np.float32)
            self.constant = (own @ self.shift).astype(np.float32)  # (1 + C,)

    def _positions(self, config: Mapping[str, Any]) -> None:
        """B of every position, the bias in it; one row, for all, where there are no positions."""
        self.grouped = config["positions"] == "grouped"
        scale = 0.0 if config["positions"] == "none" else float(config["position_scale"])
        self.fixed = scale == 0.0
        self._scale = scale
        self._place = self.place_table(1 if self.fixed else 64)

    def place_table(self, count: int) -> np.ndarray:
        """What `count` positions add to a row."""
        encoded = sinusoidal(np.arange(count), self.dim)
        return (self._scale * encoded) @ self.matrix.T + self.bias  # (count, W)

    def _place_rows(self, positions: np.ndarray | slice) -> np.ndarray:
        """Rows of the position table; the only one where positions say nothing."""
        return self._place if self.fixed else self._place[positions]

    # -- rows of token types -----------------------------------------------------------------------------------

    def _width(self) -> int:
        most = self.most
        return len(self.matrix) + (most * (2 + self.labels + most) if self.attend == "gated" else 0)

    def type_rows(self, types: np.ndarray) -> np.ndarray:
        """All that is asked of token types (n,): the rows of the cache.

        LayerNorm divides by one number, the deviation of the composed row, which the Gram matrix of the token's own
        anchors gives; the rest is a weighted sum of rows of `anchor_rows`, so no vector is composed or multiplied.
        """
        anchor, beta, _ = self.pairs.of(types)  # (n, k)
        gram = beta[:, :, None] * self._gram(anchor) * beta[:, None, :]  # (n, k, k)
        deviation = np.sqrt(np.maximum(gram.sum((1, 2)), 0) + EPSILON)
        weight = beta / deviation[:, None]
        rows = (weight[:, None] @ self.anchor_rows[anchor])[:, 0] + self.shifted  # (n, W)
        if self.attend != "gated":
            return rows
        own = beta[..., None] * self.direct[anchor]  # (n, k, 1 + C)
        return np.hstack([rows, anchor, own.reshape(len(types), -1), gram.reshape(len(types), -1)])

    def _gram(self, anchor: np.ndarray) -> np.ndarray:
        """Inner products of the centred anchors (n, k) of tokens, over d: (n, k, k)."""
        if self.gram is not None:
            return self.gram[anchor[:, :, None], anchor[:, None, :]]
        own = self.centred[anchor]  # (n, k, d)
        return own @ own.swapaxes(1, 2)

    # -- texts -------------------------------------------------------------------------------------------------

    def logits(self, ids: np.ndarray, offsets: np.ndarray, pool: ThreadPoolExecutor | None = None) -> np.ndarray:
        """Class scores (n, C) of texts kept end to end: text i is `ids[offsets[i]:offsets[i + 1]]`, never empty."""
        with self.lock:
            return self._logits(ids, offsets, pool) * np.float32(self.scale) + np.float32(self.mean)

    def unlock(self) -> None:
        """Take a new lock: after a fork nobody may be left to give the old one back."""
        self.lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        """Locks do not travel."""
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a new lock."""
        self.__dict__.update(state)
        self.unlock()

    def _logits(self, ids: np.ndarray, offsets: np.ndarray, pool: ThreadPoolExecutor | None) -> np.ndarray:
        if len(offsets) <= 1:
            return np.empty((0, self.labels), dtype=np.float32)
        source = ids if self.attend == "anchors" else self.cache.slots(ids, self.type_rows, pool)
        if source is None and len(offsets) == 2:
            raise ValueError(f"a text of more token types than are kept ({len(self.cache.rows):,})")
        if source is None:  # more types than the cache holds: one half after the other
            middle = len(offsets) // 2
            first = self._logits(ids[: offsets[middle]], offsets[: middle + 1], pool)
            rest = self._logits(ids[offsets[middle] :], offsets[middle:] - offsets[middle], pool)
            return np.concatenate([first, rest])
        lengths = np.diff(offsets)
        sizes = np.add.reduceat(self.pairs.counts(ids), offsets[:-1]) if self.attend == "anchors" else lengths
        scores = np.empty((len(lengths), self.labels), dtype=np.float32)
        most = int((lengths if self.grouped else sizes).max())
        if not self.fixed and most > len(self._place):  # before several threads read it
            self._place = self.place_table(2 ** int(np.ceil(np.log2(most))))

        def compute(rows: np.ndarray) -> None:
            elements, real = self.elements(source, offsets[rows], lengths[rows])
            scores[rows] = self.pooled(elements, real)

        _each(compute, groups(sizes), pool)
        return scores

    def elements(self, source: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of B, positions added, of everything attended over: (n, T, W); and which of them are real."""
        length = int(lengths.max())
        column = np.arange(length)
        real = column < lengths[:, None]  # (n, L)
        found = source[np.where(real, starts[:, None] + column, starts[:, None])]  # (n, L)
        if self.attend != "anchors":
            rows = self.cache.rows[found]  # (n, L, W)
            rows[..., : len(self.matrix)] += self._place_rows(slice(length))
            return rows, real
        anchor, beta, there = self.pairs.of(found.ravel())  # (n L, k)
        there &= real.reshape(-1, 1)
        owner = there.nonzero()[0]  # (S,): which token an element belongs to
        ends = np.bincount(owner // length, minlength=len(found))  # (n,)
        position = owner % length if self.grouped else np.arange(len(owner)) - np.repeat(np.cumsum(ends) - ends, ends)
        expanded = np.arange(int(ends.max())) < ends[:, None]  # (n, T)
        rows = np.zeros((*expanded.shape, self.anchor_rows.shape[1]), dtype=np.float32)
        placed = self._place_rows(position)
        rows[expanded] = beta[there][:, None] * self.anchor_rows[anchor[there]] + placed
        return rows, expanded

    def pooled(self, rows: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Class scores (n, C) of groups of elements (n, T, W): attention, pooling, classifier."""
        own = rows[..., len(self.matrix) - 1 - self.labels : len(self.matrix)]  # (n, T, 1 + C)
        if not self.sat:
            return (self._pool(own[..., 0], real)[:, None] @ own[..., 1:])[:, 0]
        heard = self.heard(rows, real)
        if self.attend == "gated":
            own = self._recomposed(rows, heard)
        if not self.wide:
            heard = heard.sum(2)  # (n, T, 1 + C)
            share = self._pool(own[..., 0] + heard[..., 0], real)  # (n, T)
            return (share[:, None] @ (own[..., 1:] + heard[..., 1:]))[:, 0]
        heard = heard.reshape(*real.shape, self.dim)
        share = self._pool(own[..., 0] + heard @ self.after[:, 0], real)[:, None]  # (n, 1, T)
        return (share @ own[..., 1:])[:, 0] + (share @ heard)[:, 0] @ self.after[:, 1:]

    def heard(self, rows: np.ndarray, real: np.ndarray) -> np.ndarray:
        """What each element hears, per head: (n, T, H, values)."""
        count, length, _ = rows.shape
        dim, heads = self.dim, self.heads
        query = rows[..., :dim].reshape(count, length, heads, -1).transpose(0, 2, 1, 3)  # (n, H, T, d / H)
        key = rows[..., dim : 2 * dim].reshape(count, length, heads, -1).transpose(0, 2, 3, 1)
        values = rows[..., 2 * dim : 2 * dim + heads * self.value].reshape(count, length, heads, -1)
        if not real.all():
            values = values * real[:, :, None, None]
        heard = np.empty((count, length, heads, self.value), dtype=np.float32)
        step = max(1, SCORES // (count * heads * length))  # queries at a time: long texts have many scores
        for start in range(0, length, step):
            weight, total = self._weights(query[:, :, start : start + step], key, real)
            part = heard[:, start : start + step]
            np.matmul(weight, values.transpose(0, 2, 1, 3), out=part.transpose(0, 2, 1, 3))
            part /= total.transpose(0, 2, 1, 3)
        return heard

    def _weights(self, query: np.ndarray, key: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Attention weights (n, H, Q, T) and what they sum to, (n, H, Q, 1)."""
        scores = query @ key
        if not scores.max() < SAFE:
            _shift(scores, real)
        weight = np.exp(scores, out=scores)
        ones = real[:, None, :, None].astype(np.float32)
        total = weight @ ones
        if not total.min() > TINY:  # every score of some row is far below 0
            scores = query @ key
            _shift(scores, real)
            weight = np.exp(scores, out=scores)
            total = weight @ ones
        return weight, total

    def _recomposed(self, rows: np.ndarray, heard: np.ndarray) -> np.ndarray:
        """What tokens composed again from gated anchors add to the scores, with their positions: (n, T, 1 + C)."""
        count, length, _ = rows.shape
        most, begin = self.most, len(self.matrix)
        anchor = rows[..., begin : begin + most].astype(np.int64)  # (n, T, k)
        own = rows[..., begin + most : begin + most * (2 + self.labels)].reshape(count, length, most, -1)
        gram = rows[..., begin + most * (2 + self.labels) :].reshape(count, length, most, most)
        heard = heard.reshape(count, length, self.dim)
        score = self.gate_bias[anchor]
        for i in range(most):  # one anchor of each token at a time: all of them at once leave the cache
            score[..., i] += np.einsum("ntd,ntd->nt", self.gate[anchor[..., i]], heard)
        gate = (1 + np.tanh(score / 2))[..., None, :]  # (n, T, 1, k): twice the logistic function
        variance = (gate @ gram @ gate.swapaxes(2, 3))[..., 0]  # (n, T, 1)
        added = (gate @ own)[..., 0, :] / np.sqrt(np.maximum(variance, 0) + EPSILON) + self.constant
        return added + self._place_rows(slice(length))[..., begin - 1 - self.labels : begin]

    def _pool(self, score: np.ndarray, real: np.ndarray) -> np.ndarray:
        """The share of each element in the pooled vector: (n, T)."""
        if self.mean_pooling:
            return (real / real.sum(1, keepdims=True)).astype(np.float32)
        score = np.where(real, score, -np.inf)
        share = np.exp(score - score.max(1, keepdims=True))
        return share / share.sum(1, keepdims=True)


def _shift(scores: np.ndarray, real: np.ndarray) -> None:
    """Shift every row of scores so that its largest real one is 0: the softmax stays, the exponential is safe."""
    scores -= np.where(real[:, None, None, :], scores, -np.inf).max(3, keepdims=True)
    np.minimum(scores, 0, out=scores)  # what stands at padding


def groups(sizes: np.ndarray) -> Iterator[np.ndarray]:
    """All texts once, those of about the same size together, about as many elements each time."""
    order = np.argsort(-sizes, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, GROUP // max(1, int(sizes[order[start]])))
        yield order[start : start + size]
        start += size


def _each(work: Callable[[Any], None], items: Iterable[Any], pool: ThreadPoolExecutor | None) -> None:
    """Do all of it; whatever happens, nothing is still being written when this returns."""
    if pool is None:
        for item in items:
            work(item)
        return
    futures = [pool.submit(work, item) for item in items]
    try:
        for future in futures:
            future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


def _weight(state: Mapping[str, np.ndarray], layer: str, inputs: int) -> np.ndarray:
    """A layer's weights, packed or not."""
    weight, scales = state[f"{layer}.weight"], state.get(f"{layer}.scales")
    return (weight if scales is None else packing.layer_weight(weight, scales, inputs)).astype(np.float64)


class TypeCache:
    """Rows of token types, computed when first seen; when it is full, those unused for longest make room."""

    def __init__(self, vocabulary: int, width: int, capacity: int) -> None:
        capacity = min(vocabulary, capacity, max(1, LARGEST // (4 * width)))
        self.rows = np.empty((capacity, width), dtype=np.float32)  # memory is taken as it fills
        self.slot_of = np.full(vocabulary, -1, dtype=np.int32)
        self.type_of = np.full(capacity, -1, dtype=np.int64)
        self.used = np.zeros(capacity, dtype=np.int64)  # when a slot was last asked for
        self.held = self.now = self.hits = self.asked = 0

    def slots(
        self, ids: np.ndarray, make: Callable[[np.ndarray], np.ndarray], pool: ThreadPoolExecutor | None = None
    ) -> np.ndarray | None:
        """Where the rows of these tokens are; None where there is no room for so many types at once."""
        self.now += 1
        found = self.slot_of[ids]
        missing = np.unique(ids[found < 0])
        self.used[found[found >= 0]] = self.now
        if len(missing) == 0:
            self._count(len(ids), 0)
            return found
        free = self._room(len(missing))
        if free is None:
            return None
        self._count(len(ids), int((found < 0).sum()))

        def fill(start: int) -> None:
            self.rows[free[start : start + BLOCK]] = make(missing[start : start + BLOCK])

        _each(fill, range(0, len(missing), BLOCK), pool)
        self.slot_of[missing], self.type_of[free], self.used[free] = free, missing, self.now
        return self.slot_of[ids]

    @property
    def hit_rate(self) -> float:
        """The share of tokens whose row was there already."""
        return self.hits / max(1, self.asked)

    def _count(self, asked: int, missed: int) -> None:
        self.asked += asked
        self.hits += asked - missed

    def _room(self, wanted: int) -> np.ndarray | None:
        """Slots for so many new types: fresh ones, then those unused for longest, never one in use now."""
        fresh = min(wanted, len(self.rows) - self.held)
        idle = np.flatnonzero(self.used[: self.held] < self.now)
        if wanted > fresh + len(idle):
            return None
        taken = idle[np.argsort(self.used[idle], kind="stable")[: wanted - fresh]]
        gone = self.type_of[taken]
        self.slot_of[gone[gone >= 0]] = -1  # nobody's until they are filled
        self.type_of[taken] = -1
        self.held += fresh
        return np.concatenate([np.arange(self.held - fresh, self.held), taken]).astype(np.int32)
