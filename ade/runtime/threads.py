"""A projection computed by several threads, also after a fork or in another process."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache

import numpy as np

from ade.devices import cores
from ade.runtime.projection import Projection

try:
    from threadpoolctl import ThreadpoolController
except ImportError:  # optional: prediction is slower without it
    ThreadpoolController = None

MIN_PARALLEL_TEXTS = 16  # fewer texts are computed by one thread


@cache
def _blas_libraries() -> "ThreadpoolController | None":
    """The linear algebra libraries numpy has loaded; cached, because finding them is slow."""
    return None if ThreadpoolController is None else ThreadpoolController()


@contextmanager
def _single_threaded_blas() -> Iterator[None]:
    """Keep matrix products to the calling thread: texts are spread over our threads, one product is too small."""
    libraries = _blas_libraries()
    with nullcontext() if libraries is None else libraries.limit(limits=1, user_api="blas"):
        yield


class ThreadedProjection:
    """Scores of many texts by all threads, of few by the calling one."""

    def __init__(self, projection: Projection, threads: int = 0) -> None:
        """Use so many threads; 0 for one per core."""
        self.projection = projection
        self.threads = threads or cores()
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._pool = ThreadPoolExecutor(self.threads) if self.threads > 1 else None

    def __getstate__(self) -> dict[str, object]:
        """Leave out the threads, which cannot be pickled."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_pool", "_process")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._start()

    def after_fork(self) -> None:
        """Start anew in a forked process, which has neither our threads nor the thread that held the lock."""
        if self._process != os.getpid():
            self.projection.unlock()
            self._start()

    def logits(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Scores (n, C) of concatenated texts: text i is `ids[offsets[i]:offsets[i + 1]]`, never empty."""
        self.after_fork()
        if len(offsets) <= MIN_PARALLEL_TEXTS or self._pool is None:
            return self.projection.logits(ids, offsets)
        with self.projection.lock, _single_threaded_blas():  # the limits of two callers must not overlap
            return self.projection.logits(ids, offsets, self._pool)
