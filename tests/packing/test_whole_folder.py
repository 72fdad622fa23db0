"""A size is that of a whole folder: weights, tokenizer and configuration fit into it, and little of it is left over."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from ade.classifier import Classifier
from ade.cli.sizes import folder_sizes
from ade.codebook import Codebook
from ade.data.dataset import Dataset
from ade.distillation import distill
from ade.errors import InputError
from ade.model import AdeForSequenceClassification
from ade.packing import whole_folder
from ade.packing.format import Packing
from ade.packing.whole_folder import Division, distill_folder, distill_for_model, divide, divide_encoder, layer_bytes
from ade.runtime.runtime import Runtime
from ade.settings import Architecture, DistillationSettings, TrainingSettings
from ade.teachers import Teacher
from ade.training.loop import fit_model
from tests.conftest import ragged_codebook, word_tokenizer

NAMES = ("red", "green", "blue")
FAST = DistillationSettings(rounds=1)


@pytest.fixture(scope="module")
def colours() -> Dataset:
    """Texts of 3,000 words, each of which goes with one of three labels; frequent words are seen in many texts."""
    draw = np.random.default_rng(0)
    labels = draw.integers(3, size=1500)
    words = (draw.zipf(1.3, (1500, 12)) % 1000) * 3  # (n, 12): a word of every label for each
    shown = np.where(draw.random((1500, 12)) < 0.7, labels[:, None], draw.integers(3, size=(1500, 12)))
    texts = [" ".join(f"w{number}" for number in row) for row in words + shown]
    return Dataset(texts, labels, NAMES)


@pytest.fixture(scope="module")
def wide() -> Teacher:
    """A table of 5,000 words, of which the texts have less than 3,000."""
    tokenizer = word_tokenizer([f"w{i}" for i in range(4998)])
    return Teacher("wide", torch.randn(5000, 32, generator=torch.Generator().manual_seed(0)), tokenizer)


@pytest.mark.parametrize("size", [70_000, 200_000])
def test_a_codebook_folder_has_the_size_asked_for(wide, size, tmp_path):
    codebook = distill(wide, DistillationSettings(size=str(size), rounds=1))
    codebook.save(tmp_path / "codebook")
    found = {path.name: path.stat().st_size for path in (tmp_path / "codebook").iterdir()}
    assert set(found) == {"codebook.json", "codebook.safetensors", "tokenizer.packed.xz"}
    assert size - whole_folder.CODEBOOK_JSON - 2_000 <= sum(found.values()) <= size
    assert found["tokenizer.packed.xz"] == codebook.about["tokenizer_bytes"]
    loaded = Codebook.load(tmp_path / "codebook")
    assert loaded.tokenizer.to_str() == codebook.tokenizer.to_str()


def test_a_codebook_of_a_folder_has_the_rows_of_its_own_tokens(wide):
    frequencies = torch.ones(5000)
    frequencies[2000:2100] = 1_000_000
    for given, names in ((None, range(100)), (frequencies, range(2000, 2098))):
        codebook = distill_folder(wide, 50_000, FAST, given)
        ours, theirs = ([each.token_to_id(f"w{i}") for i in names] for each in (codebook.tokenizer, wide.tokenizer))
        cosine = torch.cosine_similarity(codebook.rows()[ours], wide.table[theirs])
        assert float(cosine.mean()) > codebook.about["cosine"] + 0.05  # frequent: by rank, or as counted


def test_a_size_below_the_least_is_refused_with_it(wide):
    with pytest.raises(InputError, match="at least about") as caught:
        distill(wide, DistillationSettings(size="20kB"))
    least = int(str(caught.value).split("at least about ")[1].split(", ")[0].replace(",", ""))
    assert 20_000 < least < 60_000
    distill(wide, DistillationSettings(size=str(least + 500), rounds=1))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dim", [8, 17])
def test_the_bytes_of_the_layers_are_known(bits, dim):
    book = replace(ragged_codebook([1, 3, 2, 4], dim=dim), packing=Packing())
    heads = 1 if dim == 17 else 2
    model = AdeForSequenceClassification.from_codebook(book, NAMES, Architecture(heads=heads, layer_bits=bits)).packed()
    stored = sum(tensor.nbytes for name, tensor in model.state_dict().items() if "embedding" not in name)
    assert layer_bytes(dim, 3, bits) == stored


def test_layers_get_few_bits_in_a_small_folder_and_a_lexicon_no_more_than_it_can_use():
    large, small = (divide(size, 100_000, 384, NAMES, 10**9) for size in (5_000_000, 1_000_000))
    assert (large.layer_bits, small.layer_bits) == (8, 4)
    for division, size in ((large, 5_000_000), (small, 1_000_000)):
        assert sum(division.as_dict().values()) - division.layer_bits == size
        assert 0.2 < division.lexicon / division.codebook < 0.5
    assert divide(5_000_000, 100_000, 384, NAMES, 20_000).lexicon == 20_000
    assert divide(5_000_000, 100_000, 384, NAMES, 0).lexicon == 0


@pytest.mark.parametrize("size", [60_000, 120_000])
def test_a_model_folder_has_the_size_asked_for(wide, colours, size, tmp_path):
    codebook, division = distill_for_model(wide, colours.texts, size, NAMES, FAST)
    assert codebook.vocabulary < 3000  # the words of the texts
    assert Division(**json.loads(json.dumps(codebook.about))["division"]) == division
    settings = TrainingSettings(steps=60, learning_rate=5e-3, lexicon_size=str(division.lexicon), device="cpu")
    architecture = Architecture(layer_bits=division.layer_bits)
    classifier = fit_model(codebook, colours, settings=settings, architecture=architecture, out=tmp_path / "model")
    found = folder_sizes(tmp_path / "model")
    assert 0 < classifier.model.lexicon_nbytes <= division.lexicon
    assert division.tokenizer <= found["tokenizer_bytes"] < division.tokenizer + 300  # transformers adds special tokens
    unspent = division.lexicon - classifier.model.lexicon_nbytes + division.config
    assert size - unspent <= found["bytes"] <= size
    texts = list(colours.texts[:50])
    expected = classifier.predict(texts)
    for kind in (Classifier, Runtime):
        assert kind.load(tmp_path / "model").predict(texts) == expected


def test_rare_tokens_are_dropped_where_bytes_are_few(wide, colours):
    whole, _ = distill_for_model(wide, colours.texts, 120_000, NAMES, FAST)
    small, division = distill_for_model(wide, colours.texts, 27_000, NAMES, FAST)
    assert small.vocabulary < 0.8 * whole.vocabulary
    assert division.codebook >= whole_folder.BYTES_PER_TOKEN * small.vocabulary
    assert division.tokenizer < whole.about["tokenizer_bytes"]
    names = small.tokenizer.get_vocab()
    assert all(f"w{i}" in names for i in range(3, 9))  # frequent ones stay


def test_a_model_size_below_the_least_is_refused_at_once_with_it(wide, colours, monkeypatch):
    monkeypatch.setattr(whole_folder, "distill_to_size", None)  # it must not come to that
    with pytest.raises(InputError, match="a model needs at least about") as caught:
        distill_for_model(wide, colours.texts, 10_000, NAMES)
    assert "\n" not in str(caught.value)


def test_layers_of_an_encoder_have_8_bits_only_where_the_codebook_has_enough_left():
    sizes = range(2000, 60_000, 500)
    divisions = [divide_encoder(size, 1000, 32, 32, 1, codebook=4000) for size in sizes]
    assert {division.layer_bits for division in divisions} == {4, 8}
    left = [division.codebook for division in divisions if division.layer_bits == 8]
    assert min(left) >= 4000
    fits = [division.codebook >= 4000 for division in divisions]
    assert fits == sorted(fits)  # where a size suffices, a larger one does
