import pytest

from ade.errors import InputError
from ade.settings import DistillationSettings
from ade.training import codebooks
from ade.training.codebooks import codebook_for, codebook_for_size

SMALL = DistillationSettings(anchors=10, pairs=3)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "codebooks"


def _arrays(book):
    return [getattr(book, name).tolist() for name in ("anchors", "indices", "weights", "counts")]


def test_a_codebook_is_taken_as_it_is(codebook, tmp_path, cache):
    assert codebook_for(codebook) is codebook
    codebook.save(tmp_path / "book")
    assert _arrays(codebook_for(tmp_path / "book")) == _arrays(codebook)
    with pytest.raises(InputError, match="give one of them"):
        codebook_for(codebook, "wordllama")
    assert not cache.exists()


def test_a_distilled_one_is_kept(teacher, cache, monkeypatch):
    made = codebook_for(teacher=teacher, settings=SMALL)
    (folder,) = cache.iterdir()
    monkeypatch.setattr(codebooks, "distill", None)
    assert _arrays(codebook_for(teacher=teacher, settings=SMALL)) == _arrays(made)
    monkeypatch.undo()
    monkeypatch.setenv("ADE_CACHE", str(cache.parent))
    assert len(codebook_for(teacher=teacher, settings=DistillationSettings(anchors=9, pairs=3)).anchors) == 9
    assert len(list(cache.iterdir())) == 2
    assert folder.is_dir()


@pytest.mark.parametrize("damaged", ["codebook.json", "codebook.safetensors", "tokenizer.json"])
def test_a_damaged_one_is_made_anew(damaged, teacher, cache):
    made = codebook_for(teacher=teacher, settings=SMALL)
    (folder,) = cache.iterdir()
    (file,) = folder.glob(damaged)
    file.write_bytes(b"damaged")
    assert _arrays(codebook_for(teacher=teacher, settings=SMALL)) == _arrays(made)
    assert file.read_bytes() != b"damaged"
    file.unlink()
    assert _arrays(codebook_for(teacher=teacher, settings=SMALL)) == _arrays(made)


def test_a_cache_that_cannot_be_written_is_no_error(teacher, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "file"))
    assert len(codebook_for(teacher=teacher, settings=SMALL).anchors) == 10


def test_for_a_size_the_texts_matter_too(teacher, topics, cache):
    first, division = codebook_for_size(topics, 20_000, teacher)
    again, same = codebook_for_size(topics, 20_000, teacher)
    assert (_arrays(again), same) == (_arrays(first), division)
    assert len(list(cache.iterdir())) == 1
    codebook_for_size(topics.take(topics.labels.argsort()[:300]), 20_000, teacher)
    codebook_for_size(topics, 30_000, teacher)
    assert len(list(cache.iterdir())) == 3
