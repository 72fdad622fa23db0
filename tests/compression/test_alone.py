"""Tables without a model: packed, read back, and read by the numpy code of the page."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import ade
from ade.compression.alone import load_table
from ade.errors import InputError

PAGE = Path(__file__).parents[2] / "docs" / "compress.md"


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Word vectors in clusters, as words are."""
    folder = tmp_path_factory.mktemp("vectors")
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((12, 32))
    rows = centres[np.arange(480) % 12] + 0.5 * generator.standard_normal((480, 32))
    lines = [f"word{n} " + " ".join(f"{x:.4f}" for x in row) for n, row in enumerate(rows)]
    (folder / "vectors.txt").write_text("\n".join(lines) + "\n", "utf8")
    (folder / "corpus.txt").write_text("\n".join(f"word{n} word{n % 7}" for n in range(480)), "utf8")
    return folder


@pytest.fixture(scope="module")
def packed(vectors, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed") / "table"
    report = ade.compress(vectors / "vectors.txt", out, ade.CompressionSettings(size="28kB"), [vectors / "corpus.txt"])
    return out, report


def test_the_folder_is_small_and_keeps_most_neighbours(packed):
    out, report = packed
    assert report.table["after"] < 30_000 < report.table["before"]
    assert 0 <= report.mean_loss < 60
    table, tokenizer = load_table(out)
    assert table.shape.rows == tokenizer.get_vocab_size() == 482


def test_numpy_reads_what_torch_reads(packed, monkeypatch):
    out, _ = packed
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf8"), re.S) if "place" in block)
    monkeypatch.chdir(out.parent)
    names: dict = {}
    exec(code.replace("glove-packed", out.name), names)
    table, _ = load_table(out)
    rows = table(torch.arange(table.shape.rows))
    for token in range(table.shape.rows):
        np.testing.assert_allclose(names["row"](token), rows[token].numpy(), rtol=1e-4, atol=1e-5)


def test_damaged_folders_are_refused(packed, tmp_path):
    out, _ = packed
    with pytest.raises(InputError, match="not a packed table"):
        load_table(tmp_path)
    for name in ("table.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((out / name).read_bytes())
    (tmp_path / "table.safetensors").write_bytes((out / "table.safetensors").read_bytes()[:-100])
    with pytest.raises(InputError, match="not a packed table"):
        load_table(tmp_path)


def test_what_needs_a_model_is_refused(vectors, tmp_path):
    with pytest.raises(InputError, match="--own-texts and --max-loss need one"):
        ade.compress(vectors / "vectors.txt", tmp_path / "x", tune_on=[vectors / "corpus.txt"])
