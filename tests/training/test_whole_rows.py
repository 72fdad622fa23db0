"""Rows trained whole before they are coded: those of the texts' tokens alone, and a run that continues."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ade.compression import encoder_table
from ade.compression.encoder_table import table_for_encoder
from ade.data.texts import Texts
from ade.settings import Architecture, EncoderSettings
from ade.teachers import Teacher
from ade.training.distill_encoder import distill_encoder, gather_texts, training_of
from ade.training.sentence_teacher import SentenceTeacher
from ade.training.whole_rows import afterwards, train_rows
from tests.conftest import word_tokenizer

WORDS = [f"w{number}" for number in range(400)]
TEXTS = [" ".join(WORDS[(7 * row + 13 * place) % 100] for place in range(6)) for row in range(80)]
SETTINGS = EncoderSettings(size="60kB", steps=60, batch_size=16, learning_rate=0.01, device="cpu")


def digits(texts):
    return np.array([[text.count(str(digit)) - 1.7 for digit in range(6)] for text in texts], np.float32)


def silent(*_):
    pass


@pytest.fixture
def teacher() -> Teacher:
    return Teacher("random", torch.randn(402, 16, generator=torch.Generator().manual_seed(0)), word_tokenizer(WORDS))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))


def test_rows_of_tokens_in_the_texts_are_trained_and_no_others(teacher, tmp_path):
    data: Texts = gather_texts([], TEXTS)
    table, wanted = table_for_encoder(teacher, data, 60_000, 6), digits(list(data)).astype(np.float16)
    architecture = Architecture(attend="tokens", max_tokens=32)
    trained = train_rows(table, data, wanted, training_of(SETTINGS), architecture, tmp_path / "rows", "resume", silent)
    ids = torch.tensor(sorted({number for text in TEXTS for number in table.teacher.tokenizer.encode(text).ids}))
    others = torch.ones(402, dtype=torch.bool)
    others[ids] = False
    before = table.rows()
    assert len(ids) == 100
    assert torch.equal(trained.rows[others], before[others])
    assert (trained.rows[ids] - before[ids]).abs().amax(1).min() > 0.01
    assert any(name.startswith("ade.sat.") for name in trained.weights)
    assert not any("embedding" in name for name in trained.weights)

    coded = table.coded(trained.rows).table(ids)
    assert torch.cosine_similarity(coded, trained.rows[ids]).mean() > 0.9


def test_training_of_the_books_is_shorter():
    assert afterwards(SETTINGS) == replace(SETTINGS, steps=20, learning_rate=0.01 / 3, epochs=SETTINGS.epochs / 3)
    assert afterwards(replace(SETTINGS, steps=1)).steps == 1
    assert afterwards(replace(SETTINGS, steps=0)).steps == 0


def test_an_interrupted_run_ends_like_one_that_was_not(teacher, tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_table, "CODED_FROM", 100)
    (tmp_path / "table").mkdir()
    np.save(tmp_path / "table" / "embeddings.npy", teacher.table.numpy())
    teacher.tokenizer.save(str(tmp_path / "table" / "tokenizer.json"))

    class Stopped(Exception):
        pass

    def distil(out, existing="refuse", stop_in=None):
        seen = []

        def told(what, done, total, metrics):
            seen.append(what)
            if what == stop_in and done >= total / 2:
                raise Stopped

        teacher_of_texts = SentenceTeacher("digits", "digits", 6, digits)
        made = distill_encoder(
            teacher_of_texts, [], SETTINGS, texts=TEXTS, table=tmp_path / "table", out=tmp_path / out,
            existing=existing, progress=told,
        )  # fmt: skip
        return made, seen

    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "another"))
    whole, seen = distil("whole")
    assert [what for what in dict.fromkeys(seen) if what in ("rows", "code", "train")] == ["rows", "code", "train"]
    assert whole.model.config.about["dev"]["cosine"] > 0.5
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    for stage in ("rows", "code", "train"):
        with pytest.raises(Stopped):
            distil("out", "refuse" if stage == "rows" else "resume", stage)
    again, seen = distil("out", "resume")
    assert "rows" not in seen
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
