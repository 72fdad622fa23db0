"""Rows of token types kept between batches, and work shared out over threads."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

MAX_CACHE_BYTES = 1 << 30
TYPES_PER_TASK = 256  # types whose rows are computed at a time


class TypeCache:
    """Least-recently-used cache of rows of token types, each computed when its type is first seen."""

    def __init__(self, vocabulary: int, width: int, capacity: int) -> None:
        capacity = min(vocabulary, capacity, max(1, MAX_CACHE_BYTES // (4 * width)))
        self.rows = np.empty((capacity, width), dtype=np.float32)  # memory is taken as it fills
        self.slot_of = np.full(vocabulary, -1, dtype=np.int32)  # -1 for a type that is not cached
        self.type_of = np.full(capacity, -1, dtype=np.int64)  # -1 for a slot without a type
        self.last_used = np.zeros(capacity, dtype=np.int64)  # the number of the call that used a slot last
        self.filled = 0  # slots in use: the first ones
        self.calls = self.hits = self.requests = 0

    def slots(
        self, ids: np.ndarray, compute: Callable[[np.ndarray], np.ndarray], pool: ThreadPoolExecutor | None = None
    ) -> np.ndarray | None:
        """Indices into `rows` of token ids (n,).

        Missing rows are made by `compute`, a function from types (m,) to rows (m, width). Returns None where the ids
        have more distinct types than the cache has slots.
        """
        self.calls += 1
        found = self.slot_of[ids]
        cached = found >= 0
        missing = np.unique(ids[~cached])
        self.last_used[found[cached]] = self.calls
        if len(missing) == 0:
            self._count(len(ids), len(ids))
            return found

        free = self._free_slots(len(missing))
        if free is None:
            return None
        self._count(len(ids), int(cached.sum()))

        def fill(start: int) -> None:
            part = slice(start, start + TYPES_PER_TASK)
            self.rows[free[part]] = compute(missing[part])

        for_each(fill, range(0, len(missing), TYPES_PER_TASK), pool)
        self.slot_of[missing], self.type_of[free], self.last_used[free] = free, missing, self.calls
        return self.slot_of[ids]

    @property
    def hit_rate(self) -> float:
        """Fraction of the tokens whose row was cached."""
        return self.hits / max(1, self.requests)

    def _count(self, requests: int, hits: int) -> None:
        self.requests += requests
        self.hits += hits

    def _free_slots(self, count: int) -> np.ndarray | None:
        """Slots (count,) for new types: fresh ones, then the least recently used; never one that this call uses."""
        fresh = min(count, len(self.rows) - self.filled)
        idle = np.flatnonzero(self.last_used[: self.filled] < self.calls)
        if count > fresh + len(idle):
            return None

        # Evicted types leave before their slots are filled: an interrupted fill must not leave a wrong row behind.
        evicted = idle[np.argsort(self.last_used[idle], kind="stable")[: count - fresh]]
        types = self.type_of[evicted]
        self.slot_of[types[types >= 0]] = -1
        self.type_of[evicted] = -1
        self.filled += fresh
        return np.concatenate([np.arange(self.filled - fresh, self.filled), evicted]).astype(np.int32)


def for_each(work: Callable[[Any], None], items: Iterable[Any], pool: ThreadPoolExecutor | None) -> None:
    """Call `work` for every item, in a thread pool where there is one; nothing is still running when this returns."""
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
