"""Work shared out over threads: all of it is done, and nothing runs on after an error."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ade.runtime.threads import for_each


@pytest.mark.parametrize("count", [1, 3])
def test_everything_is_done_and_nothing_runs_on_after_an_error(count):
    pool, done = (ThreadPoolExecutor(count) if count > 1 else None), []
    for_each(done.append, range(20), pool)
    assert sorted(done) == list(range(20))

    running, lock = set(), threading.Lock()

    def work(item: int) -> None:
        with lock:
            running.add(item)
        if item == 3:
            raise ZeroDivisionError
        with lock:
            running.discard(item)

    with pytest.raises(ZeroDivisionError):
        for_each(work, range(100), pool)
    assert running <= {3}
