"""Rows trained whole before they are coded: those of the texts' tokens alone, and a run that continues."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ade.compression import encoder_table
from ade.compression.encoder_table import table_for_encoder
from ade.data.batches import encode
from ade.data.texts import Texts
from ade.errors import InputError
from ade.settings import Architecture, EncoderSettings
from ade.teachers import Teacher
from ade.training.distill_encoder import distill_encoder, gather_texts, training_of
from ade.training.sentence_teacher import SentenceTeacher
from ade.training.whole_rows import settings_for_books, train_rows
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


def test_rows_of_tokens_in_the_texts_are_trained_and_no_others(teacher):
    data: Texts = gather_texts([], TEXTS)[0]
    table, wanted = table_for_encoder(teacher, data, 60_000, 6), digits(list(data)).astype(np.float16)
    architecture = Architecture(attend="tokens", max_tokens=32)
    encoded = encode(table.teacher.tokenizer, data, 32)
    trained = train_rows(table, data, encoded, wanted, training_of(SETTINGS), architecture, silent)
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
    assert settings_for_books(SETTINGS) == replace(
        SETTINGS, steps=20, learning_rate=0.01 / 3, epochs=SETTINGS.epochs / 3
    )
    assert settings_for_books(replace(SETTINGS, steps=1)).steps == 1
    assert settings_for_books(replace(SETTINGS, steps=0)).steps == 0


class Stopped(Exception):
    pass


@pytest.fixture
def distil(teacher, tmp_path, monkeypatch):
    """Distils an encoder into a folder; returns it and what was reported, in stages and steps."""
    monkeypatch.setattr(encoder_table, "CODED_FROM", 100)
    (tmp_path / "table").mkdir()
    np.save(tmp_path / "table" / "embeddings.npy", teacher.table.numpy())
    teacher.tokenizer.save(str(tmp_path / "table" / "tokenizer.json"))

    def run(out, existing="refuse", stop_in=None, seen=None, settings=SETTINGS):
        seen = [] if seen is None else seen

        def told(what, done, total, metrics):
            seen.append((what, done))
            if what == stop_in and done >= total / 2:
                raise Stopped

        made = distill_encoder(
            SentenceTeacher("digits", "digits", 6, digits), [], settings, texts=TEXTS, table=tmp_path / "table",
            out=tmp_path / out, existing=existing, progress=told,
        )  # fmt: skip
        return made, seen

    return run


def stages(seen) -> list[str]:
    return [what for what in dict.fromkeys(what for what, _ in seen) if what in ("rows", "code", "train")]


def assert_same(first, second):
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name


def test_an_interrupted_run_ends_like_one_that_was_not(distil, tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "another"))
    whole, seen = distil("whole")
    assert stages(seen) == ["rows", "code", "train"]
    assert whole.model.config.about["dev"]["cosine"] > 0.5
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    reports = {}
    for stage in ("rows", "code", "train"):
        reports[stage] = []
        with pytest.raises(Stopped):
            distil("out", "refuse" if stage == "rows" else "resume", stage, reports[stage])
    assert stages(reports["code"]) == ["rows", "code"]
    assert min(done for what, done in reports["code"] if what == "rows") > SETTINGS.steps / 3  # it went on
    assert stages(reports["train"]) == ["code", "train"]
    again, seen = distil("out", "resume")
    assert stages(seen) == ["train"]
    assert_same(whole, again)


@pytest.mark.parametrize("damage", ["checkpoint.safetensors", "run.json"])
def test_a_damaged_folder_of_the_cache_is_made_anew(damage, distil, tmp_path):
    with pytest.raises(Stopped):
        distil("out", stop_in="rows")
    (folder,) = (tmp_path / "cache" / "rows").iterdir()
    (folder / damage).write_bytes(b"damaged")
    made, seen = distil("out")
    assert min(done for what, done in seen if what == "rows") < SETTINGS.steps / 3
    assert_same(made, distil("out", "overwrite")[0])


def test_what_cannot_be_continued_is_refused_before_rows_are_trained(distil, tmp_path):
    distil("out")
    seen = []
    other = replace(SETTINGS, steps=30)
    with pytest.raises(InputError, match=r"had steps = 20, not 10.*a third of those given"):
        distil("out", "resume", seen=seen, settings=other)
    assert stages(seen) == []
    (tmp_path / "cache" / "rows").rename(tmp_path / "elsewhere")
    (tmp_path / "cache" / "rows").write_text("no folder")
    with pytest.raises(InputError, match="cache/rows"):
        distil("two")
