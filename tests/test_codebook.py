import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ade.codebook import Codebook
from ade.embedding import AnchorEmbedding
from ade.errors import InputError
from ade.packing.format import Packing
from tests.conftest import ragged_codebook

COUNTS = st.one_of(
    st.lists(st.integers(1, 12), min_size=1, max_size=30),
    st.integers(1, 30).map(lambda n: [1] * n),
    st.integers(1, 30).map(lambda n: [1] * n + [12]),
)


@given(counts=COUNTS, seed=st.integers(0, 1000))
def test_rows_are_the_weighted_sums(counts, seed):
    book = ragged_codebook(counts, seed=seed)
    rows = book.rows()
    assert rows.shape == (len(counts), book.dim)
    for token in range(len(counts)):
        indices, weights = book.pairs_of(token)
        assert len(indices) == counts[token]
        expected = sum(w.double() * book.anchors[j].double() for j, w in zip(indices, weights, strict=True))
        torch.testing.assert_close(rows[token].double(), expected, rtol=1e-4, atol=1e-5)
    blocks = torch.cat([block for _, block in book.blocks(size=7)])
    torch.testing.assert_close(blocks, rows, rtol=1e-5, atol=1e-5)


@given(counts=COUNTS)
def test_round_trip(counts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("book") / "saved"
    book = ragged_codebook(counts)
    book.save(folder)
    loaded = Codebook.load(folder)
    for name in ("anchors", "indices", "weights", "counts"):
        assert torch.equal(getattr(book, name), getattr(loaded, name))
        assert getattr(book, name).dtype == getattr(loaded, name).dtype
    assert loaded.tokenizer.to_str() == book.tokenizer.to_str()


@pytest.mark.parametrize(("anchors", "tokens"), [(500, 4000), (40_000, 300)])
def test_size_accounting_matches_the_disk(anchors, tokens, tmp_path):
    book = ragged_codebook([1 + i % 9 for i in range(tokens)], anchors=anchors, dim=32)
    book.save(tmp_path / "book")
    on_disk = (tmp_path / "book" / "codebook.safetensors").stat().st_size
    assert abs(book.nbytes - on_disk) < 0.01 * on_disk
    assert book.paper_nbytes == 4 * anchors * 32 + 8 * len(book.indices)


def test_a_token_may_have_more_pairs_than_a_byte_counts(tmp_path):
    book = ragged_codebook([1, 300, 2], anchors=400)
    book.save(tmp_path / "book")
    loaded = Codebook.load(tmp_path / "book")
    assert loaded.counts.tolist() == [1, 300, 2]
    assert loaded.pairs_of(1)[0].tolist() == book.pairs_of(1)[0].tolist()


def test_about_survives(tmp_path):
    book = ragged_codebook([1, 2])
    saved = Codebook(
        book.anchors, book.indices, book.weights, book.counts, book.tokenizer, {"teacher": "t", "cosine": 0.5}
    )
    saved.save(tmp_path / "book")
    assert Codebook.load(tmp_path / "book").about == {"teacher": "t", "cosine": 0.5}


def test_impossible_records_are_refused():
    book = ragged_codebook([1, 2, 3])
    with pytest.raises(InputError, match="at least one pair"):
        Codebook(book.anchors, book.indices, book.weights, torch.tensor([0, 3, 3]), book.tokenizer)
    with pytest.raises(InputError, match="the counts add up to 7"):
        Codebook(book.anchors, book.indices, book.weights, torch.tensor([2, 2, 3]), book.tokenizer)
    with pytest.raises(InputError, match="outside the 12 anchors"):
        Codebook(book.anchors, book.indices + 12, book.weights, book.counts, book.tokenizer)


def test_bad_folders(tmp_path):
    with pytest.raises(InputError, match="not a codebook folder"):
        Codebook.load(tmp_path)
    ragged_codebook([1, 2]).save(tmp_path / "book")
    path = tmp_path / "book" / "codebook.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(InputError, match="not a readable safetensors"):
        Codebook.load(tmp_path / "book")
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(InputError, match="not a codebook, it holds weight"):
        Codebook.load(tmp_path / "book")
    (tmp_path / "book" / "codebook.json").write_text("{")
    with pytest.raises(InputError, match="not readable JSON"):
        Codebook.load(tmp_path / "book")
    (tmp_path / "book" / "codebook.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(InputError, match="format"):
        Codebook.load(tmp_path / "book")


@pytest.mark.parametrize("part", ["anchors", "weights"])
@pytest.mark.parametrize("bits", [0, 8])
def test_numbers_that_are_not_finite_are_refused(part, bits, tmp_path):
    book = ragged_codebook([1, 2, 3])
    book = replace(book, packing=Packing()) if bits else book
    book.save(tmp_path / "book")
    path = tmp_path / "book" / "codebook.safetensors"
    tensors = load_file(path)
    name = {"anchors": "anchor_scales", "weights": "scale_range"}[part] if bits else part
    spoiled = tensors[name].view(torch.float16) if tensors[name].dtype == torch.int16 else tensors[name]
    spoiled.view(-1)[-1] = float("nan")
    save_file(tensors, path)
    with pytest.raises(InputError, match=rf"{tmp_path / 'book'}.*not finite"):
        Codebook.load(tmp_path / "book")
    with pytest.raises(InputError, match="not finite"):
        replace(book, **{part: getattr(book, part) * float("inf")})


def test_an_occupied_folder_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match="something else"):
        ragged_codebook([1]).save(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    ragged_codebook([1]).save(tmp_path / "book")
    with pytest.raises(InputError, match="--overwrite"):
        ragged_codebook([1]).save(tmp_path / "book")
    ragged_codebook([1, 1]).save(tmp_path / "book", overwrite=True)
    assert Codebook.load(tmp_path / "book").vocabulary == 2


def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch):
    def full(tensors, path):
        path.write_bytes(b"half")
        raise SafetensorError("No space left on device")

    ragged_codebook([1]).save(tmp_path / "book")
    monkeypatch.setattr("ade.codebook.save_file", full)
    with pytest.raises(InputError, match="No space"):
        ragged_codebook([1, 1, 1]).save(tmp_path / "book", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["book"]
    assert Codebook.load(tmp_path / "book").vocabulary == 1


def test_the_first_index_after_the_anchors_is_refused():
    book = ragged_codebook([1, 2, 3])
    indices = book.indices.clone()
    indices[0] = 12
    with pytest.raises(InputError, match="outside the 12 anchors"):
        Codebook(book.anchors, indices, book.weights, book.counts, book.tokenizer)


@pytest.mark.parametrize(("anchors", "kind"), [(2**15, torch.int16), (2**15 + 1, torch.int32)])
def test_indices_take_two_bytes_while_two_bytes_hold_them(anchors, kind):
    book = ragged_codebook([1, 2], anchors=anchors, dim=2)
    assert book.indices.dtype == kind
    assert AnchorEmbedding.from_codebook(book).indices.dtype == kind
