"""Large tables: within their bytes, trained as rows, then coded, then as books; one run that continues in any phase."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ade.embedding import table_layer
from ade.encoders import distil
from ade.encoders.distil import distill_encoder
from ade.encoders.rows import row_table
from ade.encoders.teacher import SentenceTeacher
from ade.errors import InputError
from ade.packing.tokenizer_file import packed_bytes
from ade.settings import EncoderSettings, TrainingSettings
from ade.teachers import Teacher
from ade.trained_model import Encoder
from tests.conftest import word_tokenizer
from tests.encoders.test_distil import assert_same

WORDS = [f"w{number}" for number in range(3000)]
TEXTS = [" ".join(WORDS[(7 * row + 13 * place) % 300] for place in range(8)) for row in range(80)]
TRAINING = TrainingSettings(steps=60, learning_rate=0.03)
SETTINGS = EncoderSettings(size="60kB", steps=60, batch_size=16, learning_rate=0.01, device="cpu")


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    table = torch.randn(3002, 16, generator=torch.Generator().manual_seed(0))
    return Teacher("random", table, word_tokenizer(WORDS), "mit")


def ignored(*_):
    """Ignore the progress."""


def test_a_large_size_keeps_every_token_and_is_used(teacher):
    table = row_table(teacher, TEXTS, 48_000, 8, 1, TRAINING)
    made, tokenizer = table.start(table.exact(np.arange(3002)), ignored).table, table.teacher.tokenizer
    assert abs(float(table.rows().norm(dim=1).mean()) - 16**0.5) < 1e-3
    assert made.vocabulary == tokenizer.get_vocab_size() == 3002
    stored = sum(array.nbytes for array in made.arrays.values())
    assert 0.9 * table.shares.codebook < stored <= table.shares.codebook
    assert table.shares.tokenizer == len(packed_bytes(tokenizer))
    assert (table.settings.steps, table.settings.learning_rate) == (20, 0.01)  # the second phase is shorter

    # Rows of words in the texts are closer to the teacher's than others.
    def cosines(words):
        ids = np.array([tokenizer.token_to_id(word) for word in words])
        original = torch.tensor([teacher.tokenizer.token_to_id(word) for word in words])
        return torch.cosine_similarity(torch.from_numpy(made.rows(ids)), teacher.table[original])

    assert cosines(WORDS[:300]).mean() > cosines(WORDS[2000:]).mean() + 0.005


def test_a_small_size_drops_tokens_that_the_texts_lack(teacher, monkeypatch):
    other = [text.replace("w", "w2") for text in TEXTS]  # w20 to w2299, of a language that comes after the other
    monkeypatch.setattr("ade.folder_budget.ENCODER_TEXTS", 40)
    made = row_table(teacher, TEXTS + other, 36_500, 8, 1, TRAINING).teacher
    assert 200 <= len(made.table) < 1000
    for text in (TEXTS[0], other[0]):
        assert made.tokenizer.encode(text).tokens == teacher.tokenizer.encode(text).tokens
    with pytest.raises(InputError, match="at least about"):
        row_table(teacher, TEXTS, 6_000, 8, 1, TRAINING)


def test_trained_rows_are_coded_and_others_stay_those_of_the_teacher(teacher):
    table, ids = row_table(teacher, TEXTS, 48_000, 8, 1, TRAINING), np.array([3, 700, 2999])
    start = table.exact(ids)
    assert np.allclose(start.table.rows(ids), table.rows()[ids], atol=2e-3)
    assert not start.table.rows(np.array([0, 701])).any()

    layer = table_layer(start.table)
    with torch.no_grad():
        layer.exact += 1
    coded = table.start(replace(start, table=layer.to_table()), ignored)
    wanted = table.rows().numpy()
    wanted[ids] += 1
    distance = np.square(coded.table.rows(np.arange(3002)) - wanted).sum(1)
    assert distance[ids].mean() < 2 * distance.mean()


class Stopped(Exception):
    """What stops training in a test."""


@pytest.fixture
def run(teacher, tmp_path, monkeypatch):
    """Distils an encoder into a folder; returns it and what was reported, in stages and steps."""
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(distil, "CODED_FROM", 1000)
    (tmp_path / "table").mkdir()
    save_file({"weight": teacher.table}, tmp_path / "table" / "embeddings.safetensors")
    teacher.tokenizer.save(str(tmp_path / "table" / "tokenizer.json"))

    def digits(texts):
        return np.array([[text.count(str(digit)) - 1.7 for digit in range(6)] for text in texts], np.float32)

    def distilled(out=None, existing="refuse", stop_in=None, seen=None, settings=SETTINGS):
        seen = [] if seen is None else seen

        def told(what, done, total, metrics):
            seen.append((what, done))
            if what == stop_in and done > total / 2:
                raise Stopped

        made = distill_encoder(
            SentenceTeacher("digits", "digits", 6, digits), [], settings, texts=TEXTS, table=tmp_path / "table",
            out=out and tmp_path / out, existing=existing, progress=told,
        )  # fmt: skip
        return made, seen

    return distilled


def stages(seen) -> list[str]:
    return [what for what in dict.fromkeys(what for what, _ in seen) if what in ("rows", "code", "train")]


def test_an_encoder_is_distilled_on_it(run, tmp_path):
    made, seen = run("out", settings=replace(SETTINGS, steps=150))
    assert stages(seen) == ["rows", "code", "train"]
    assert max(done for what, done in seen if what == "train") == 50
    assert made.saved.table.vocabulary == 3002
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert "checkpoint" not in sizes
    counted = ("model.safetensors", "tokenizer.packed.xz", "tokenizer_config.json", "config.json")
    assert sum(sizes.get(name, 0) for name in counted) <= 60_000
    assert made.metadata["dev"]["cosine"] > 0.7
    assert np.allclose(Encoder.load(tmp_path / "out").encode(TEXTS[:9]), made.encode(TEXTS[:9]), atol=2e-6)


def test_an_interrupted_run_ends_like_one_that_was_not(run, tmp_path):
    whole, _ = run()
    reports = {}
    for stage in ("rows", "code", "train"):
        reports[stage] = []
        with pytest.raises(Stopped):
            run("out", "refuse" if stage == "rows" else "resume", stage, reports[stage])
    assert min(done for what, done in reports["code"] if what == "rows") > SETTINGS.steps / 3  # it went on
    assert stages(reports["train"]) == ["code", "train"]
    with pytest.raises(InputError, match=r"had steps = 60, not 30"):
        run("out", "resume", settings=replace(SETTINGS, steps=30))

    again, seen = run("out", "resume")
    assert stages(seen) == ["train"]
    assert min(done for what, done in seen if what == "train") > 5
    steps = [each["step"] for each in json.loads((tmp_path / "out" / "training.json").read_text())["validations"]]
    assert steps == list(range(1, 21))  # of the second phase
    assert_same(whole, again)
