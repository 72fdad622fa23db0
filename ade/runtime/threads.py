"""Work shared out over threads, also after a fork."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

try:
    from threadpoolctl import ThreadpoolController
except ImportError:  # optional: prediction is slower without it
    ThreadpoolController = None


class Threads:
    """A pool of threads; a forked process, which has none of them, starts its own."""

    def __init__(self, count: int = 0) -> None:
        """Use `count` threads; 0 for one per core."""
        self.count = count or cores()
        self._process = 0
        self._pool: ThreadPoolExecutor | None = None

    @property
    def pool(self) -> ThreadPoolExecutor | None:
        """The pool; None for a single thread."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._pool = ThreadPoolExecutor(self.count) if self.count > 1 else None
        return self._pool


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


@cache
def _blas_libraries() -> "ThreadpoolController | None":
    """The linear algebra libraries numpy has loaded; cached, because finding them is slow."""
    return None if ThreadpoolController is None else ThreadpoolController()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Keep matrix products to the calling thread: texts are spread over our threads, one product is too small."""
    libraries = _blas_libraries()
    with nullcontext() if libraries is None else libraries.limit(limits=1, user_api="blas"):
        yield


def cores() -> int:
    """Return the number of CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
