"""Work shared out over threads."""

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
def thread_pool(count: int) -> Iterator[ThreadPoolExecutor]:
    """Start threads that each compute their own matrix products: texts are spread over them, one product is too small.

    Two of these pools must not be open at the same time.
    """
    libraries = _blas_libraries()
    limits = nullcontext() if libraries is None else libraries.limit(limits=1, user_api="blas")
    with limits, ThreadPoolExecutor(count) as pool:
        yield pool


def cores() -> int:
    """Return the number of CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
