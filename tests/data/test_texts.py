"""Large arrays are files that are mapped: the same numbers, and no memory of their own."""

import subprocess
import sys

import numpy as np
import pytest

from ade.data import texts as texts_module
from ade.data.texts import GrowingArray
from ade.data.tokens import tokenize
from tests.conftest import word_tokenizer


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("limit", [0, 100, 1 << 20])
def test_the_parts_come_back_in_order(limit, cache, monkeypatch):
    monkeypatch.setattr(texts_module, "IN_MEMORY", limit)
    parts = [np.arange(i * 10, i * 10 + 10, dtype=np.int32) for i in range(30)]
    spilled = GrowingArray(np.int32)
    for part in parts:
        spilled.add(part)
    found = spilled.array()
    assert isinstance(found, np.memmap) == (limit < 1000)
    assert found.dtype == np.int32
    assert np.array_equal(found, np.arange(300))
    assert not cache.exists() or list(cache.iterdir()) == []  # its file has no name: a killed process leaves nothing


def test_tokens_are_the_same_in_a_file(cache, monkeypatch):
    tokenizer, texts = word_tokenizer(["a", "b", "c"]), ["a b", "", "c a b"] * 3000
    expected = tokenize(tokenizer, texts, 8)
    monkeypatch.setattr(texts_module, "IN_MEMORY", 1000)
    found = tokenize(tokenizer, texts, 8)
    assert isinstance(found.ids, np.memmap)
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.offsets, expected.offsets)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_takes_no_memory(cache):
    """64 MB of numbers, of which at most a few are held in memory."""
    code = """
import sys
import numpy as np
from ade.data import texts as texts_module

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))  # kB

texts_module.IN_MEMORY = 1 << 20
before = anonymous()
spilled = texts_module.GrowingArray(np.int32)
for i in range(256):
    spilled.add(np.full(1 << 16, i, np.int32))
found = spilled.array()
assert int(found.sum(dtype=np.int64)) == (1 << 16) * 255 * 128
print(anonymous() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 16_000
