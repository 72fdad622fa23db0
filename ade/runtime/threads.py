"""Work shared out over threads."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


def for_each(work: Callable[[Any], None], items: Iterable[Any], pool: ThreadPoolExecutor | None) -> None:
    """Call `work` for every item, in a thread pool where there is one.

    After an error nothing further is begun; what has begun ends before the pool is left.
    """
    for _ in map(work, items) if pool is None else pool.map(work, items):
        pass


@cache
def _blas_libraries() -> ThreadpoolController:
    """Return the linear algebra libraries numpy has loaded; cached, because finding them is slow."""
    return ThreadpoolController()


@contextmanager
def thread_pool(count: int) -> Iterator[ThreadPoolExecutor]:
    """Start threads that each compute their own matrix products: texts are spread over them, one product is too small.

    Two of these pools must not be open at the same time.
    """
    with _blas_libraries().limit(limits=1, user_api="blas"), ThreadPoolExecutor(count) as pool:
        yield pool


def cores() -> int:
    """Return the number of CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
