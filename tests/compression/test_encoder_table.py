"""The table of an encoder in codes: within its bytes, and with fewer tokens where the bytes do not suffice."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ade.compression import encoder_table
from ade.compression.encoder_table import table_for_encoder
from ade.data.tokenizer_file import packed_bytes
from ade.encoder import Encoder
from ade.errors import InputError
from ade.settings import EncoderSettings
from ade.teachers import Teacher
from ade.training.distill_encoder import distill_encoder
from ade.training.sentence_teacher import SentenceTeacher
from tests.conftest import word_tokenizer

WORDS = [f"w{number}" for number in range(3000)]
TEXTS = [" ".join(WORDS[(7 * row + 13 * place) % 300] for place in range(8)) for row in range(80)]


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    rows = torch.randn(3002, 16, generator=torch.Generator().manual_seed(0))
    return Teacher("random", rows, word_tokenizer(WORDS), "mit")


def test_a_large_size_keeps_every_token_and_is_used(teacher):
    table = table_for_encoder(teacher, TEXTS, 48_000, 8)
    made, division = table.coded(table.rows()), table.division
    assert abs(float(table.rows().norm(dim=1).mean()) - 16**0.5) < 1e-3
    assert made.table.shape.rows == made.tokenizer.get_vocab_size() == 3002
    stored = sum(array.numel() * array.element_size() for array in made.table.state_dict().values())
    assert 0.9 * division.codebook < stored <= division.codebook
    assert division.tokenizer == len(packed_bytes(made.tokenizer))

    # Rows of words in the texts are closer to the teacher's than others.
    def cosines(words):
        ids = torch.tensor([made.tokenizer.token_to_id(word) for word in words])
        original = torch.tensor([teacher.tokenizer.token_to_id(word) for word in words])
        return torch.cosine_similarity(made.table(ids), teacher.table[original])

    assert cosines(WORDS[:300]).mean() > cosines(WORDS[2000:]).mean() + 0.005


def test_texts_of_languages_that_stand_together_all_count(teacher, monkeypatch):
    other = [text.replace("w", "w2") for text in TEXTS]  # w20 to w2299
    monkeypatch.setattr(encoder_table, "MOST_TEXTS", 40)
    made = table_for_encoder(teacher, TEXTS + other, 36_500, 8).teacher
    for text in (TEXTS[0], other[0]):
        assert "[UNK]" not in made.tokenizer.encode(text).tokens


def test_a_small_size_drops_tokens_that_the_texts_lack(teacher):
    made = table_for_encoder(teacher, TEXTS, 36_500, 8).teacher
    assert 300 <= len(made.table) < 1000
    assert made.tokenizer.encode(TEXTS[0]).tokens == teacher.tokenizer.encode(TEXTS[0]).tokens


def test_too_few_bytes_are_refused(teacher):
    with pytest.raises(InputError, match="at least about"):
        table_for_encoder(teacher, TEXTS, 6_000, 8)


def test_an_encoder_is_distilled_on_it_and_the_table_is_coded_once(teacher, tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encoder_table, "CODED_FROM", 1000)
    (tmp_path / "table").mkdir()
    np.save(tmp_path / "table" / "embeddings.npy", teacher.table.numpy())
    teacher.tokenizer.save(str(tmp_path / "table" / "tokenizer.json"))

    def encode(texts):
        return np.array([[text.count(str(digit)) - 1.7 for digit in range(6)] for text in texts], np.float32)

    settings = EncoderSettings(size="60kB", steps=150, batch_size=16, learning_rate=0.01, device="cpu")
    stages = []

    def distil(out, **more):
        return distill_encoder(
            SentenceTeacher("digits", "digits", 6, encode), [], replace(settings, **more), texts=TEXTS,
            table=tmp_path / "table", out=tmp_path / out, progress=lambda what, *_: stages.append(what),
        )  # fmt: skip

    made = distil("one")
    assert made.model.config.coded["rows"] == 3002
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "one").iterdir()}
    counted = ("model.safetensors", "tokenizer.packed.xz", "tokenizer_config.json", "config.json")
    assert sum(sizes.get(name, 0) for name in counted) <= 60_000
    assert made.model.config.about["dev"]["cosine"] > 0.7
    assert np.allclose(Encoder.load(tmp_path / "one").encode(TEXTS[:9]), made.encode(TEXTS[:9]), atol=2e-6)

    assert "code" in stages
    stages.clear()
    again = distil("two")
    assert "code" not in stages
    for name, tensor in made.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
