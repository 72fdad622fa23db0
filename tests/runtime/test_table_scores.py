"""Scores from lookup tables: kept rows, threads, forks and long texts change nothing."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from ade.runtime import table_scores as module
from ade.runtime.table_scores import RowCache, TableBackend
from tests.conftest import PATIENT, ragged_codebook
from tests.models import off, oracle, random_model, random_texts

BOOK = ragged_codebook([1, 3, 2, 4] * 15, dim=16).table


def backend_of(threads: int = 1, labels: int = 3) -> TableBackend:
    return TableBackend(random_model(BOOK, labels, max_tokens=12), threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("labels", [3, 20])
def test_a_small_cache_changes_nothing(threads, labels, monkeypatch):
    """More types than it holds: it grows, evicts, and makes rows again."""
    monkeypatch.setattr(module, "CACHED_ROWS", 12)
    monkeypatch.setattr(module, "MIN_PARALLEL_TOKENS", 30)
    backend, model = backend_of(threads, labels), oracle(random_model(BOOK, labels, max_tokens=12))
    for seed in range(3):
        texts = random_texts([12, 5, 1, 9, 12, 7] * 4, 60, seed)
        assert off(backend.scores(texts), np.stack([model.scores(ids) for ids in texts])) < 1e-4
        weights, by_token = backend.token_scores(texts)
        found = weights[:, None] * (by_token - model.weights["head.bias"])
        assert off(found, np.concatenate([model.contributions(ids) for ids in texts])) < 1e-4


def test_positions_are_made_as_texts_need_them():
    saved = random_model(max_tokens=300)
    backend, model = TableBackend(saved, 1), oracle(saved)
    for length, made in ((5, 64), (64, 64), (65, 128), (300, 512), (3, 512)):
        texts = random_texts([length, 2], 18)
        assert off(backend.scores(texts), np.stack([model.scores(ids) for ids in texts])) < 1e-4
        assert len(backend._positions) == made


def test_many_threads_may_ask():
    backend, texts = backend_of(2), random_texts([12, 5, 9] * 12, 60)
    expected = backend.scores(texts)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: backend.scores(texts), range(12)):
            assert off(found, expected) < 1e-6


FORK = """
import os, sys
from tests.models import random_model, random_texts
from ade.backends import TableBackend
backend, texts = TableBackend(random_model(), 2), random_texts([5, 9] * 300, 18)
before = backend.scores(texts)
backend._lock.acquire()  # as another thread may hold it at the moment of the fork
child = os.fork()
if child == 0:
    os._exit(0 if abs(backend.scores(texts) - before).max() < 1e-6 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_it_survives_a_fork():
    assert subprocess.run([sys.executable, "-c", FORK], timeout=PATIENT, check=False).returncode == 0


def rows_of(types: np.ndarray) -> np.ndarray:
    return np.stack([types, -types], 1).astype(np.float32)


def test_rows_are_made_once_until_the_cache_is_full(monkeypatch):
    monkeypatch.setattr(module, "CACHED_ROWS", 4)
    cache, made = RowCache(100, 2), []

    def make(types: np.ndarray) -> np.ndarray:
        made.extend(types.tolist())
        return rows_of(types)

    for ids in ([1, 2], [1, 3, 1], [1, 4], [1, 5], [5, 1], [1, 2, 3, 4, 5]):
        slots = cache.slots(np.array(ids), make)
        assert cache.rows[slots].tolist() == rows_of(np.array(ids)).tolist()
    assert made == [1, 2, 3, 4, 1, 5, 1, 2, 3, 4, 5]
    assert len(cache.rows) == 5  # more than it was made for
    assert len(RowCache(3, 2).rows) == 3


@pytest.mark.parametrize("threads", [None, 2])
def test_any_texts_get_their_own_rows_whatever_was_interrupted_before(threads, monkeypatch):
    monkeypatch.setattr(module, "CACHED_ROWS", 700)
    draw, cache = np.random.default_rng(0), RowCache(2000, 2)
    pool, sizes = ThreadPoolExecutor(threads) if threads else None, []

    def stop(types: np.ndarray) -> np.ndarray:
        sizes.append(len(types))
        raise KeyboardInterrupt

    for count in (600, *draw.integers(1, 900, 60)):
        with suppress(KeyboardInterrupt):
            cache.slots(draw.permutation(2000)[:count], stop, pool)
        ids = draw.permutation(2000)[:count]
        slots = cache.slots(ids, rows_of, pool)
        assert np.array_equal(cache.rows[slots], rows_of(ids))
    assert max(sizes) == module.TYPES_PER_TASK
