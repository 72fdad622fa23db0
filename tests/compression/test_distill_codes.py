"""A teacher in codes: the size holds, rows come near, and a model is trained on it in place of a codebook."""

import json

import numpy as np
import pytest
import torch

import ade as library
from ade.codebook import CodedTable
from ade.compression.distill_codes import distill_codes
from ade.errors import InputError
from ade.folder import Saved
from ade.teachers import Teacher
from tests.conftest import word_tokenizer

WORDS = [f"w{number}" for number in range(1500)]
DIM = 32


@pytest.fixture(scope="module")
def teacher():
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(len(WORDS) + 2, DIM, generator=generator) @ torch.randn(DIM, DIM, generator=generator)
    tokenizer = word_tokenizer(WORDS)
    tokenizer.add_special_tokens(["[PAD]", "[UNK]"])
    return Teacher("random", table, tokenizer)


@pytest.fixture(scope="module")
def folder(teacher, tmp_path_factory):
    """A coded table as `ade distill --codes` writes it."""
    made = tmp_path_factory.mktemp("codes")
    distill_codes(teacher, 45_000).save(made, overwrite=True)
    return made


def rows(count, seed):
    """Texts of words of one of two groups."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, count)
    texts = [" ".join(WORDS[20 * label + word] for word in generator.integers(0, 20, 6)) for label in labels]
    return {"text": texts, "label": [("first", "second")[label] for label in labels]}


def cosines(teacher, saved):
    """Of the rows of words, which stand in another order."""
    ids = np.array([saved.tokenizer.token_to_id(word) for word in WORDS])
    given = teacher.table[[teacher.tokenizer.token_to_id(word) for word in WORDS]]
    return torch.cosine_similarity(torch.from_numpy(saved.table.rows(ids)), given, dim=1)


def test_the_folder_has_as_many_bytes_as_asked_for_and_is_read_again(teacher, folder):
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 45_000
    saved, made = Saved.read(folder), distill_codes(teacher, 45_000)
    assert isinstance(saved.table, CodedTable)
    for name, array in made.table.stored()[1].items():
        assert np.array_equal(saved.table.stored()[1][name], array)
    assert saved.table.vocabulary == len(WORDS) + 2
    found = cosines(teacher, saved)
    assert found.mean() == pytest.approx(made.config.metadata["cosine"], abs=0.01)
    assert found.mean() > 0.9

    for token in ("[PAD]", "[UNK]"):  # special tokens stay exact
        row = teacher.table[teacher.tokenizer.token_to_id(token)]
        wanted = (torch.nn.functional.normalize(row, dim=0) * DIM**0.5).half().float().numpy()
        assert np.array_equal(saved.table.rows(np.array([saved.tokenizer.token_to_id(token)]))[0], wanted)


def test_more_bytes_are_nearer(teacher):
    sizes = [cosines(teacher, distill_codes(teacher, size)).mean() for size in (40_000, 50_000, 70_000)]
    assert sizes == sorted(sizes)
    with pytest.raises(InputError, match="too few for codes of 1,502 tokens: they need at least about"):
        distill_codes(teacher, 20_000)


def test_rows_that_are_used_come_nearer(teacher):
    used = torch.ones(len(teacher.table))
    used[2:102] = 100_000  # the first hundred words
    found = cosines(teacher, distill_codes(teacher, 34_000, used))
    assert found[:100].mean() > found[100:].mean() + 0.01
    with pytest.raises(InputError, match="2 frequencies for 1502 tokens"):
        distill_codes(teacher, 45_000, torch.ones(2))
    nothing = distill_codes(teacher, 45_000, torch.zeros(len(teacher.table)))  # as counted in an empty file
    assert 0 < nothing.config.metadata["cosine_by_use"] <= 1


def test_a_classifier_is_trained_on_it(folder, tmp_path, ade):
    classifier = library.train(
        rows(400, 0), start=folder, out=tmp_path / "model", steps=120, lexicon=False, progress=False
    )
    assert isinstance(classifier.saved.table, CodedTable)
    test = rows(200, 1)
    assert library.evaluate(classifier, test).accuracy > 0.9
    assert library.load(tmp_path / "model").predict(test["text"]) == classifier.predict(test["text"])
    with pytest.raises(InputError, match="attention over anchors needs anchors"):
        library.train(rows(40, 0), start=folder, attend="anchors", progress=False)
    status, out, errors = ade("inspect", tmp_path / "model", test["text"][0])
    assert (status, out) == (2, "")
    assert "it has no anchors" in errors


def test_the_command(teacher, tmp_path, ade):
    vectors = tmp_path / "vectors.txt"
    lines = [
        f"{word} {' '.join(f'{value:.4f}' for value in row)}"
        for word, row in zip(WORDS, teacher.table[2:], strict=True)
    ]
    vectors.write_text("\n".join(lines) + "\n", "utf8")
    words = ("distill", "--teacher", vectors, "--codes", "--out", tmp_path / "codes")
    assert ade(*words) == (2, "", "ade: --codes needs --size, as 4MB\n")
    status, out, _ = ade(*words, "--size", "45kB", "--json", "--quiet")
    assert status == 0
    result = json.loads(out)
    nbytes = sum(file.stat().st_size for file in (tmp_path / "codes").iterdir())
    assert result["bytes"] == nbytes <= 45_000
    assert result["ratio"] == pytest.approx(result["teacher_bytes"] / nbytes)
    status, out, errors = ade(*words, "--size", "45kB", "--quiet")
    assert (status, out) == (2, "")
    assert "--overwrite" in errors
    status, out, _ = ade(*words, "--size", "45kB", "--overwrite", "--quiet")
    assert status == 0
    assert f"mean {result['cosine']:.4f}" in out
