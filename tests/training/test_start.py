"""What a model starts from: a codebook or an encoder as it is given, or a teacher's codebook, distilled once."""

import numpy as np
import pytest
import torch

import ade
from ade.codebook import CodedTable
from ade.compression.coder import encode_table
from ade.configuration import ENCODER
from ade.distillation import distill
from ade.errors import InputError
from ade.folder import Saved
from ade.model import model_of
from ade.settings import Architecture, DistillationSettings
from ade.training import start
from ade.training.start import distilled, start_for_size
from tests.conftest import lively, untrained

SMALL = DistillationSettings(anchors=10, pairs=3)
QUICK = ade.TrainingSettings(steps=100, batch_size=16, learning_rate=5e-3, lexicon=False, device="cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "codebooks"


def arrays(saved: Saved) -> list[list]:
    return [getattr(saved.table, name).tolist() for name in ("anchors", "indices", "weights", "counts")]


def coded(teacher) -> Saved:
    """The teacher's table in codes, as encoders of many tokens have it."""
    rows = encode_table(teacher.table, torch.ones(len(teacher.table)), [], 100_000)
    return teacher.as_saved(rows.to_table())


def encoder_on(codebook: Saved, layers: int = 1) -> Saved:
    """An encoder none of whose layers is at its starting value."""
    shape = {"kind": ENCODER, "output_size": 8, "layers": layers, "heads": 2, "position_scale": 0.3}
    return lively(untrained(codebook, (), **shape, layer_bits=8 if codebook.packed else 0)).rounded()


def test_a_distilled_one_is_kept_by_content_and_settings(teacher, teacher_folder, cache, monkeypatch):
    made = distilled(teacher, SMALL)
    assert len(list(cache.iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(start, "distill", None)
        assert arrays(distilled(teacher, SMALL)) == arrays(made)
    fewer = distilled(teacher, DistillationSettings(anchors=9, pairs=3))
    assert len(fewer.table.anchors) == 9
    distilled(ade.Teacher("tiny", teacher.table + 0.01, teacher.tokenizer), SMALL)
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("damaged", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_one_is_made_again(damaged, teacher, cache):
    made = distilled(teacher, SMALL)
    (file,) = cache.glob(f"*/{damaged}")
    file.write_bytes(b"damaged")
    assert arrays(distilled(teacher, SMALL)) == arrays(made)
    assert file.read_bytes() != b"damaged"
    file.unlink()
    assert arrays(distilled(teacher, SMALL)) == arrays(made)


def test_a_cache_that_cannot_be_written_is_no_error(teacher, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "file"))
    assert len(distilled(teacher, SMALL).table.anchors) == 10


def test_for_a_size_the_texts_matter_too_and_first_and_later_runs_are_the_same(teacher, topics, cache):
    first, shares = start_for_size(topics, 20_000, teacher=teacher)
    again, same = start_for_size(topics, 20_000, teacher=teacher)
    assert (arrays(again), again.config, same) == (arrays(first), first.config, shares)
    assert len(list(cache.iterdir())) == 1
    start_for_size(topics.take(topics.labels.argsort()[:300]), 20_000, teacher=teacher)
    start_for_size(topics, 30_000, teacher=teacher)
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["pairs", "packed", "codes"])
def test_a_classifier_begins_with_the_vectors_of_the_encoder(layers, kind, teacher, topics, tmp_path):
    if kind == "packed":
        codebook, _ = start_for_size(topics, 30_000, teacher=teacher)
    else:
        codebook = coded(teacher) if kind == "codes" else distill(teacher, SMALL)
    encoder = encoder_on(codebook, layers)
    encoder.save(tmp_path / "encoder")
    begin = Saved.read(tmp_path / "encoder")
    classifier = start.untrained(begin, start.config_for(begin, topics, Architecture(), QUICK), seed=0)
    assert (classifier.config.layers, classifier.config.position_scale) == (layers, 0.3)

    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    with torch.inference_mode():
        states, expected = (model_of(saved).eval().ade.states(ids, mask)[0] for saved in (classifier, encoder))
    torch.testing.assert_close(states[mask], expected[mask], atol=1e-4, rtol=0)
    np.testing.assert_array_equal(classifier.layers["pooler.weight"], encoder.layers["pooler.weight"])


def test_a_table_in_codes_is_trained_too(teacher, topics, tmp_path):
    model = ade.train(
        topics, start=coded(teacher), out=tmp_path / "model", steps=150, batch_size=16, learning_rate=0.01,
        lexicon=False, device="cpu", progress=False,
    )  # fmt: skip
    assert isinstance(model.saved.table, CodedTable)
    assert model.metadata["dev"]["accuracy"] > 0.6
    assert ade.load(tmp_path / "model").predict(topics.texts[:9]) == model.predict(topics.texts[:9])
    with pytest.raises(InputError, match="attention over anchors needs anchors"):
        ade.train(topics, start=coded(teacher), attend="anchors", steps=1, progress=False)


def test_training_goes_on_from_there(codebook, topics, tmp_path):
    """The encoder is better than a codebook after one step: its layers are those the run starts with."""
    encoder_on(codebook).save(tmp_path / "encoder")
    quick = {"batch_size": 16, "learning_rate": 5e-3, "device": "cpu", "lexicon": False, "progress": False}
    model = ade.train(topics, start=tmp_path / "encoder", steps=150, **quick)
    assert (model.saved.config.attend, model.saved.config.position_scale) == ("tokens", 0.3)
    assert model.metadata["dev"]["accuracy"] > 0.6
    near = ade.train(topics, start=tmp_path / "encoder", steps=1, **quick | {"learning_rate": 1e-6})
    for name, layer in encoder_on(codebook).layers.items():
        if not name.startswith("head."):
            np.testing.assert_allclose(near.saved.layers[name], layer, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("source", ["codebook", "encoder"])
def test_a_codebook_or_an_encoder_is_fitted_to_a_size(source, codebook, topics, tmp_path):
    begin = codebook if source == "codebook" else encoder_on(codebook)
    model = ade.train(
        topics, start=begin, size="25kB", out=tmp_path / "model", steps=60, batch_size=16, learning_rate=0.01,
        device="cpu", progress=False,
    )  # fmt: skip
    assert ade.folder.nbytes_of(tmp_path / "model") <= 25_000
    assert model.metadata["dev"]["accuracy"] > 0.6
    if source == "encoder":
        assert model.saved.config.position_scale == 0.3
