"""A budget in bytes is kept, and spent where it buys most; what is packed predicts as what was trained."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import AddedToken

from ade.classifier import Classifier, predict_logits
from ade.codebook import Codebook
from ade.data.batches import Encoded
from ade.distillation import distill
from ade.embedding import PackedEmbedding
from ade.errors import InputError
from ade.packing import budget
from ade.packing.budget import distill_to_size
from ade.packing.format import Packing
from ade.runtime.projection import Projection
from ade.runtime.runtime import Runtime
from ade.runtime.tables import fold
from ade.settings import Architecture, DistillationSettings, TrainingSettings, parse_size
from ade.teachers import Teacher
from ade.training.loop import fit_model
from tests.conftest import ragged_codebook, word_tokenizer
from tests.runtime.test_projection import off, reference, shaken, texts_of


@pytest.fixture(scope="module")
def large() -> Teacher:
    """Rows drawn around few centres; two special tokens."""
    generator = torch.Generator().manual_seed(0)
    tokenizer = word_tokenizer([f"w{i}" for i in range(2998)])
    tokenizer.add_special_tokens([AddedToken("[PAD]", special=True), AddedToken("[UNK]", special=True)])
    centres = torch.randn(40, 48, generator=generator)
    table = centres[torch.randint(40, (3000,), generator=generator)] + torch.randn(3000, 48, generator=generator)
    return Teacher("large", 3 * table, tokenizer)


def to_size(teacher: Teacher, size: str, rounds: int = 2, **more) -> Codebook:
    """A codebook whose file has this size, the tokenizer apart."""
    return distill_to_size(teacher, parse_size(size), DistillationSettings(rounds=rounds), **more)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2MB", 2_000_000),
        ("1.5 MiB", 1_572_864),
        ("800kB", 800_000),
        ("12345", 12_345),
        ("64KiB", 65_536),
        ("2gb", 2 * 10**9),
        ("1GiB", 2**30),
        ("9 B", 9),
    ],
)
def test_sizes_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["two", "2XB", "MB", "-1MB", "0", "", "inf", "1e999MB"])
def test_what_is_not_a_size_is_refused(text):
    with pytest.raises(InputError, match="size"):
        parse_size(text)


@pytest.mark.parametrize("size", [60_000, 90_000, 150_000])
def test_the_file_comes_out_just_under_the_budget(large, size, tmp_path):
    codebook = to_size(large, str(size))
    codebook.save(tmp_path / "codebook")
    found = os.path.getsize(tmp_path / "codebook" / "codebook.safetensors")
    assert 0.98 * size <= found <= size


def test_more_bytes_bring_more_and_frequent_tokens_get_most(large):
    small, wide = (to_size(large, size) for size in ("50kB", "100kB"))
    assert wide.about["cosine"] > small.about["cosine"] + 0.05
    counts = small.counts.float()
    assert counts[100:400].mean() > counts[-300:].mean() + 0.2  # Zipf's law, by rank
    frequencies = torch.ones(3000)
    frequencies[2000:2100] = 10_000
    asked = to_size(large, "50kB", frequencies=frequencies)
    assert asked.counts[2000:2100].float().mean() > small.counts[2000:2100].float().mean() + 1


def test_special_tokens_are_kept_whole_and_rows_keep_their_length(large):
    codebook = to_size(large, "60kB")
    rows = codebook.rows(0, 50)
    for special in (0, 1):
        assert torch.allclose(rows[special], large.table[special], atol=0.02 * float(large.table[special].abs().max()))
    ratio = rows.norm(dim=1) / large.table[:50].norm(dim=1)
    cosine = torch.nn.functional.cosine_similarity(rows, large.table[:50])
    assert torch.allclose(ratio, cosine, atol=0.03)  # least squares: never longer than what is explained


def test_a_budget_too_small_says_how_much_is_needed(large):
    with pytest.raises(InputError, match="at least about"):
        to_size(large, "4kB")


def test_many_special_tokens_do_not_burst_the_budget(large):
    tokenizer = word_tokenizer([f"w{i}" for i in range(2998)])
    tokenizer.add_special_tokens([AddedToken(f"w{i}", special=True) for i in range(100)])
    special = Teacher("special", large.table, tokenizer)
    with pytest.raises(InputError, match=r"at least about|too small"):
        to_size(special, "12kB", 1)
    codebook = to_size(special, "40kB", 1)
    assert codebook.about["whole_8"] == 100
    assert codebook.nbytes <= 40_000


def test_what_is_saved_is_what_was_measured(large, tmp_path):
    codebook = to_size(large, "60kB")
    codebook.save(tmp_path / "one")
    again = Codebook.load(tmp_path / "one")
    assert again.packing == codebook.packing
    assert torch.equal(again.indices, codebook.indices)
    assert torch.allclose(again.rows(), codebook.rows(), atol=1e-4)
    again.save(tmp_path / "two")
    first, second = ((tmp_path / name / "codebook.safetensors").read_bytes() for name in ("one", "two"))
    assert len(first) == len(second)


@pytest.mark.parametrize("damage", ["short", "changed", "shape"])
def test_a_damaged_codebook_is_refused(large, tmp_path, damage):
    to_size(large, "60kB", 1).save(tmp_path / "codebook")
    path = tmp_path / "codebook" / "codebook.safetensors"
    if damage == "short":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "changed":
        data = bytearray(path.read_bytes())
        offsets = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["codes"]["data_offsets"]
        begin = 8 + int.from_bytes(data[:8], "little") + offsets[0]
        data[begin : begin + 40] = bytes(40)
        path.write_bytes(bytes(data))
    else:
        about = json.loads((tmp_path / "codebook" / "codebook.json").read_text())
        about["packed"]["pairs"] += 8
        (tmp_path / "codebook" / "codebook.json").write_text(json.dumps(about))
    with pytest.raises(InputError):
        Codebook.load(tmp_path / "codebook")


def packed_codebook(whole: int = 2) -> Codebook:
    """Ragged pairs over 12 anchors; the last tokens have rows of their own, one in 8 bits, the others in 4."""
    plain = ragged_codebook([1, 3, 2, 4] * 5 + [1] * whole, anchors=12 + whole, dim=32)
    shared = torch.cat([plain.indices[: 10 * 5] % 12, torch.arange(12, 12 + whole)])
    weights = plain.weights
    packing = Packing(shared=12, fine=min(1, whole))
    return Codebook.from_pairs(plain.anchors, shared, weights, plain.counts, plain.tokenizer, packing)


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
@pytest.mark.parametrize(("whole", "layers"), [(0, 8), (3, 8), (3, 4), (2, 16)])
def test_packed_predicts_as_it_was_trained(attend, whole, layers, tmp_path):
    """The forward pass with rounding, the packed model's, and the tables of the light runtime: the same scores."""
    model = shaken(packed_codebook(whole), 3, attend=attend, heads=2, layer_bits=layers)
    ids, offsets = texts_of([5, 1, 18, 7], 20 + whole)
    trained, packed = reference(model, ids, offsets), model.packed()
    assert isinstance(packed.ade.embedding, PackedEmbedding)
    found = predict_logits(packed, Encoded(torch.from_numpy(ids), offsets))
    assert off(found, trained) < (0.02 if attend == "anchors" else 2e-3)  # scales are on a grid; LayerNorm hides it
    folded = Projection(fold(packed.config.to_dict(), packed.arrays())).logits(ids, offsets)
    assert off(folded, found) < 1e-4
    classifier = Classifier(packed, packed_codebook(whole).tokenizer)
    classifier.save(tmp_path / "model")
    loaded, light = Classifier.load(tmp_path / "model", "cpu"), Runtime.load(tmp_path / "model")
    assert loaded.model.config.packed == packed.config.packed
    assert off(loaded.scores(ids, offsets), found) < 1e-4
    assert off(light.scores(ids, offsets), found) < 1e-4
    assert off(predict_logits(loaded.model, Encoded(torch.from_numpy(ids), offsets)), found) < 1e-5


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
def test_rounded_and_packed_models_work_in_half_the_width(attend):
    """On average over many texts: how far a single one is off depends on which side of a step a CPU's sums fall."""
    model = shaken(packed_codebook(3), 3, attend=attend, heads=2)
    ids, offsets = texts_of([1 + i % 20 for i in range(200)], 23)
    texts = Encoded(torch.from_numpy(ids), offsets)
    for kind, most in ((model, 0.1), (model.packed(), 0.04)):  # twice what it was over six draws of the weights
        exact = predict_logits(kind, texts)
        found = predict_logits(kind.to(torch.bfloat16), texts)
        assert np.abs(found - exact).mean() < most * np.abs(exact).mean()
        assert np.mean(found.argmax(1) == exact.argmax(1)) > 0.93


def test_a_model_that_is_only_rounded_predicts_and_is_saved_as_it_will_be(tmp_path):
    model = shaken(packed_codebook(3), 3, attend="gated", heads=2)
    ids, offsets = texts_of([5, 1, 18, 7], 23)
    classifier = Classifier(model, packed_codebook(3).tokenizer)
    assert off(classifier.scores(ids, offsets), reference(model, ids, offsets)) < 2e-3
    classifier.save(tmp_path / "model")
    assert off(Runtime.load(tmp_path / "model").scores(ids, offsets), classifier.scores(ids, offsets)) < 1e-4


def test_other_packed_pairs_may_be_loaded_into_a_model():
    one, two = (shaken(packed_codebook(3), 3, heads=2) for _ in range(2))
    with torch.no_grad():
        two.ade.embedding.counts[:4] = torch.tensor([4, 2, 3, 1])
    one, two = one.packed(), two.packed()
    ids, offsets = texts_of([5, 1, 18, 7], 23)
    reference(one, ids, offsets)
    one.load_state_dict(two.state_dict())
    assert np.array_equal(reference(one, ids, offsets), reference(two, ids, offsets))


def test_training_on_a_packed_codebook_gives_a_packed_model(teacher, topics, tmp_path):
    codebook = distill(teacher, DistillationSettings(anchors=10, pairs=3))
    small = replace(codebook, packing=Packing())
    settings = TrainingSettings(steps=250, batch_size=32, learning_rate=1e-2, lexicon=False)
    shape = Architecture(heads=2)
    plain = fit_model(codebook, topics, settings=settings, architecture=shape, out=tmp_path / "plain")
    packed = fit_model(small, topics, settings=settings, architecture=shape, out=tmp_path / "packed")
    texts, labels = list(topics.texts[:300]), [topics.names[i] for i in topics.labels[:300]]
    for classifier in (plain, packed):
        assert np.mean([a == b for a, b in zip(classifier.predict(texts), labels, strict=True)]) > 0.9
    sizes = [os.path.getsize(tmp_path / name / "model.safetensors") for name in ("plain", "packed")]
    assert sizes[1] < 0.6 * sizes[0]
    assert packed.predict(texts) == Classifier.load(tmp_path / "packed").predict(texts)
    held = sum(tensor.nbytes for tensor in (*packed.model.parameters(), *packed.model.buffers()))
    assert held <= 1.5 * sizes[1]
    again = fit_model(
        small, topics, settings=settings, architecture=shape, out=tmp_path / "packed", existing="resume"
    )  # it is finished
    assert again.predict(texts) == packed.predict(texts)


def test_a_damaged_packed_model_is_refused(tmp_path):
    Classifier(shaken(packed_codebook(), 3, heads=2).packed(), packed_codebook().tokenizer).save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["packed"]["whole_8"] += 1
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    for kind in (Classifier, Runtime):
        with pytest.raises(InputError):
            kind.load(tmp_path / "model")


def test_each_weight_is_rounded_given_the_others_until_no_step_up_or_down_fits_better():
    generator = torch.Generator().manual_seed(0)
    anchors = torch.nn.functional.normalize(torch.randn(300, 8, 16, generator=generator), dim=2)  # (n, k, d)
    rows = torch.nn.functional.normalize(torch.randn(300, 16, generator=generator), dim=1)
    small, target = anchors @ anchors.transpose(1, 2), (anchors @ rows.unsqueeze(2)).squeeze(2)
    real = torch.ones(300, 8, dtype=torch.bool)
    weights, reached = budget._rounded_fit(small, target, real, 7)
    step = weights.abs().amax(1, keepdim=True) / 7
    number = (weights / step).round()
    assert torch.allclose(number * step, weights, atol=1e-5)
    composed = torch.einsum("nk,nkd->nd", weights, anchors)
    assert torch.allclose(torch.cosine_similarity(composed, rows), reached, atol=1e-4)
    error = (composed - rows).square().sum(1)
    best = torch.ones(300, dtype=torch.bool)
    for j in range(8):
        for change in (-1, 1):
            moved = number.clone()
            moved[:, j] += change
            other = (torch.einsum("nk,nkd->nd", moved * step, anchors) - rows).square().sum(1)
            best &= (moved.abs().amax(1) > 7) | (number[:, j].abs() == 7) | (other >= error - 1e-6)
    assert float(best.float().mean()) > 0.97


def test_weights_are_fitted_last_to_the_anchors_as_they_are_stored(large):
    """Least squares: a row is as long as the part of it that is explained, up to the grid scales are stored on."""
    codebook = to_size(large, "100kB")
    rows, own = codebook.rows(), codebook.counts > 1
    ratio = rows.norm(dim=1) / large.table.norm(dim=1)
    cosine = torch.nn.functional.cosine_similarity(rows, large.table)
    assert int(own.sum()) > 100
    assert float((ratio - cosine)[own].abs().max()) < 0.005


def test_progress_is_told_stage_by_stage(large):
    said: list[tuple[str, int, int]] = []
    to_size(large, "60kB", report=lambda what, done, total, _: said.append((what, done, total)))
    assert list(dict.fromkeys(what for what, _, _ in said)) == ["k-means", "pursuit", "pairs", "fit"]
    for stage in ("pairs", "fit"):
        steps = [(done, total) for what, done, total in said if what == stage]
        assert steps == sorted(steps)
        assert steps[0][0] == 0
        assert steps[-1][0] == steps[-1][1]
