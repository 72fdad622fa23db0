"""A size is that of a whole folder: weights, tokenizer and configuration fit into it, and little of it is left over."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from ade import folder_budget
from ade.configuration import CLASSIFIER, ENCODER
from ade.errors import InputError
from ade.folder import Saved, nbytes_of
from ade.folder_budget import (
    ByteShares,
    ModelParts,
    distill_for_model,
    divide,
    layer_bytes,
    shares_of,
)
from ade.packing.tokenizer_file import PACKED, packed_bytes
from ade.settings import DistillationSettings
from ade.teachers import Teacher
from tests.conftest import ragged_codebook, word_tokenizer
from tests.models import random_model

CLASSIFIER_PARTS = ModelParts(3, names=("red", "green", "blue"), lexicon=True)
FAST = DistillationSettings(rounds=1)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Texts of 3,000 words; frequent ones are seen in many."""
    draw = np.random.default_rng(0)
    return [" ".join(f"w{number}" for number in row) for row in draw.zipf(1.3, (1500, 12)) % 3000]


@pytest.fixture(scope="module")
def wide() -> Teacher:
    """A table of 5,000 words, of which the texts have less than 3,000."""
    tokenizer = word_tokenizer([f"w{i}" for i in range(4998)])
    return Teacher("wide", torch.randn(5000, 32, generator=torch.Generator().manual_seed(0)), tokenizer)


def folder_of(saved: Saved, out, **config: object) -> int:
    """Write a model on a codebook, and return the bytes of its folder."""
    random_model(saved.table, layer_bits=shares_of(saved).layer_bits, heads=2, **config).save(out / "model")
    (out / "model" / PACKED).write_bytes(packed_bytes(saved.tokenizer))
    return nbytes_of(out / "model")


@pytest.mark.parametrize("size", [30_000, 60_000])
def test_a_model_folder_has_the_size_asked_for(wide, texts, size, tmp_path):
    saved = distill_for_model(wide, texts, size, CLASSIFIER_PARTS, FAST)
    shares = shares_of(saved)
    assert ByteShares(**json.loads(json.dumps(saved.config.metadata["bytes"]))) == shares
    assert saved.table.vocabulary < 3000  # the words of the texts
    assert sum(asdict(shares).values()) - shares.layer_bits == size
    unspent = shares.lexicon + shares.config
    assert size - unspent <= folder_of(saved, tmp_path, kind=CLASSIFIER) <= size - shares.lexicon
    assert (shares.lexicon > 0) is (size == 60_000)


def test_rare_tokens_are_dropped_where_bytes_are_few(wide, texts):
    without = replace(CLASSIFIER_PARTS, lexicon=False)
    large, small = (distill_for_model(wide, texts, size, without, FAST) for size in (60_000, 24_000))
    assert shares_of(large).lexicon == shares_of(small).lexicon == 0
    assert small.table.vocabulary < 0.8 * large.table.vocabulary
    assert shares_of(small).codebook >= folder_budget.BYTES_PER_TOKEN * small.table.vocabulary
    assert shares_of(small).tokenizer < shares_of(large).tokenizer == len(packed_bytes(large.tokenizer))
    assert {f"w{i}" for i in range(1, 9)} <= small.tokenizer.get_vocab().keys()  # frequent ones stay


def test_an_encoder_keeps_all_tokens_where_the_bytes_suffice(wide, texts, tmp_path):
    large, small = (distill_for_model(wide, texts, size, ModelParts(16, 2), FAST) for size in (130_000, 60_000))
    assert large.table.vocabulary == 5000
    assert small.table.vocabulary < 3000
    for size, saved in ((130_000, large), (60_000, small)):
        found = folder_of(saved, tmp_path / str(size), kind=ENCODER, layers=2, labels=16)
        assert size - shares_of(saved).config <= found <= size
        assert shares_of(saved).lexicon == 0


def test_a_model_size_below_the_least_is_refused_at_once_with_it(wide, texts, monkeypatch):
    monkeypatch.setattr(folder_budget, "distill_to_size", None)  # it must not come to that
    for size, parts in ((8_000, CLASSIFIER_PARTS), (7_000, ModelParts(9))):
        with pytest.raises(
            InputError, match=f"{size:,} bytes are too few .* the folder needs at least about"
        ) as caught:
            distill_for_model(wide, texts[:200], size, parts)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("dim", [8, 17])
def test_the_bytes_of_the_layers_are_known(bits, layers, dim):
    book = ragged_codebook([1, 3, 2, 4], dim=dim).table
    saved = random_model(book, heads=1, layer_bits=bits, layers=layers)
    table = sum(array.nbytes for array in book.stored()[1].values())
    assert layer_bytes(dim, 3, bits, layers) == saved.nbytes - table


def test_layers_have_8_bits_only_where_the_codebook_has_enough_left():
    shares = [divide(size, 1000, 32, ModelParts(32), enough=4000) for size in range(2000, 60_000, 500)]
    assert {each.layer_bits for each in shares} == {4, 8}
    assert min(each.codebook for each in shares if each.layer_bits == 8) >= 4000
    fits = [each.codebook >= 4000 for each in shares]
    assert fits == sorted(fits)  # where a size suffices, a larger one does
    large = divide(30_000, 1000, 64, ModelParts(32), enough=10)
    assert large.layers == layer_bytes(64, 32, 4) <= 0.6 * 30_000 < layer_bytes(64, 32, 8)
