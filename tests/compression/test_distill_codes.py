"""A teacher in codes: the size holds, rows come near, and a model is trained on it in place of a codebook."""

import json

import numpy as np
import pytest
import torch

import ade as library
from ade.compression.coded_table import CodedTable
from ade.compression.distill_codes import distill_codes
from ade.errors import InputError
from ade.integrations.scikit_learn import AdeClassifier
from ade.service.model import ServedModel
from ade.teachers import Teacher
from ade.training.codebooks import codebook_for
from tests.conftest import word_tokenizer

WORDS = [f"w{number}" for number in range(1500)]
DIM = 32


@pytest.fixture(scope="module")
def teacher():
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(len(WORDS) + 2, DIM, generator=generator) @ torch.randn(DIM, DIM, generator=generator)
    return Teacher("random", table, word_tokenizer(WORDS))


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


def cosines(teacher, book):
    """Of the rows of words, which stand in another order."""
    ids = [book.tokenizer.token_to_id(word) for word in WORDS]
    given = teacher.table[[teacher.tokenizer.token_to_id(word) for word in WORDS]]
    return torch.nn.functional.cosine_similarity(book.table(torch.tensor(ids)), given, dim=1)


def test_the_folder_has_as_many_bytes_as_asked_for_and_is_read_again(teacher, folder):
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 45_000
    book = CodedTable.load(folder)
    made = distill_codes(teacher, 45_000)
    assert book.digest() == made.digest()
    assert book.vocabulary == len(WORDS) + 2
    found = cosines(teacher, book)
    assert found.mean() == pytest.approx(made.about["cosine"], abs=0.01)
    assert found.mean() > 0.9


def test_more_bytes_are_nearer(teacher):
    sizes = [cosines(teacher, distill_codes(teacher, size)).mean() for size in (40_000, 50_000, 70_000)]
    assert sizes == sorted(sizes)


def test_rows_that_are_used_come_nearer(teacher):
    used = torch.ones(len(teacher.table))
    used[2:102] = 100_000  # the first hundred words
    found = cosines(teacher, distill_codes(teacher, 34_000, used))
    assert found[:100].mean() > found[100:].mean() + 0.01


def test_special_tokens_stay_whole(teacher):
    tokenizer = word_tokenizer(WORDS)
    tokenizer.add_special_tokens(["[PAD]", "[UNK]"])
    book = distill_codes(Teacher("random", teacher.table, tokenizer), 45_000)
    for token in ("[PAD]", "[UNK]"):
        row = teacher.table[tokenizer.token_to_id(token)]
        wanted = (torch.nn.functional.normalize(row, dim=0) * DIM**0.5).half().float()
        assert torch.equal(book.table(torch.tensor([book.tokenizer.token_to_id(token)]))[0], wanted)


def test_too_few_bytes_are_refused(teacher):
    with pytest.raises(InputError, match="too few for codes of 1,502 tokens: they need at least about"):
        distill_codes(teacher, 20_000)


def test_a_classifier_is_trained_on_it(folder, tmp_path, ade):
    classifier = library.train(
        rows(400, 0), codebook=folder, out=tmp_path / "model", steps=120, lexicon=False, progress=False
    )
    assert classifier.model.config.coded
    assert classifier.model.config.attend == "tokens"
    dev = rows(100, 2)
    again = library.train(
        rows(100, 0), validation=dev, codebook=folder, steps=20, lexicon=False, progress=False, token_dropout=0.0
    )
    assert again.model.config.about["dev"]["accuracy"] == library.evaluate(again, dev).accuracy
    test = rows(200, 1)
    assert library.evaluate(classifier, test).accuracy > 0.9

    light = library.load(tmp_path / "model")  # without torch
    assert light.predict(test["text"]) == classifier.predict(test["text"])
    status, out, errors = ade("inspect", tmp_path / "model", test["text"][0])
    assert (status, out) == (2, "")
    assert "it has no anchors" in errors


def test_anchors_are_not_to_be_had(folder):
    assert isinstance(codebook_for(folder), CodedTable)
    with pytest.raises(InputError, match="--attend gated needs anchors"):
        library.train(rows(40, 0), codebook=folder, attend="gated", progress=False)
    with pytest.raises(InputError, match="it has no anchors"):
        library.train(rows(40, 0), codebook=folder, adapt=True, steps=2, progress=False)


def test_what_needs_anchors_or_rows_of_equal_length_is_refused(folder, teacher, tmp_path, ade):
    with pytest.raises(InputError, match="a table in codes has no anchors"):
        AdeClassifier(folder, steps=1).fit(*rows(20, 0).values())
    packed = tmp_path / "packed"
    CodedTable(CodedTable.load(folder).table, teacher.tokenizer).save(packed)  # as `ade compress` writes it
    with pytest.raises(InputError, match="packed by 'ade compress'"):
        codebook_for(packed)
    for words in (("distill", "--teacher", folder, "--out", tmp_path / "out"), ("inspect", folder, "w1")):
        status, out, errors = ade(*words)
        assert (status, out, errors.count("\n")) == (2, "", 1)
        assert "a table in codes" in errors


def test_the_service_has_no_page_for_it(folder, tmp_path):
    library.train(rows(60, 0), codebook=folder, out=tmp_path / "model", steps=5, lexicon=False, progress=False)
    served = ServedModel.load(tmp_path / "model")
    assert served.make_inspector is None
    assert served.predictor.predict(["w1"])[0] in ("first", "second")


def test_frequencies_are_checked(teacher):
    with pytest.raises(InputError, match="2 frequencies for 1502 tokens"):
        distill_codes(teacher, 45_000, torch.ones(2))
    nothing = distill_codes(teacher, 45_000, torch.zeros(len(teacher.table)))  # as counted in an empty file
    assert 0 < nothing.about["cosine_by_use"] <= 1


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
