"""Losses, likelihoods, and what counts of a row's error: directions that the model does not see count nothing."""

import math

import pytest
import torch
import transformers

from ade.compression.checkpoint import load_model
from ade.compression.outputs import NOISE, importance, input_metric, is_decoder, losses, outputs_of, token_ids
from tests.compression.conftest import ROWS, SHAPE, tiny_model


def test_an_error_that_the_first_norm_takes_away_counts_nothing() -> None:
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**SHAPE)).eval()
    layer = model.embeddings.word_embeddings
    before = layer.weight.detach().clone()
    texts = [torch.randint(4, 404, (length,)).tolist() for length in (3, 9, 5, 12) * 6]
    metric = input_metric(model, layer, texts, 32)
    assert metric is not None
    values = torch.linalg.eigvalsh(metric)
    assert values.min() > -1e-3 * values.max()
    constant = torch.ones(32) / 32**0.5  # LayerNorm takes the mean off
    assert constant @ metric @ constant < 1e-4 * metric.trace() / 32
    assert torch.equal(layer.weight, before)
    assert not layer._forward_hooks
    assert input_metric(model, layer, [], 32) is None


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama-untied", "gemma4"])
def test_importance_is_what_noise_in_a_table_costs(kind, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ade.compression.outputs.LEAST", 0.0)
    torch.manual_seed(0)
    model = tiny_model(kind, tmp_path)
    for parameter in model.parameters():
        parameter.mul_(3)  # so that scores differ
    texts = torch.randint(8, ROWS, (40, 12)).tolist()
    names = ["model.embed_tokens", "lm_head" if kind == "llama-untied" else "model.embed_tokens_per_layer"]
    readers = {name: [model.get_submodule(name)] for name in names}
    readers[names[0]] += [model.lm_head] if kind == "gemma4" else []  # tied
    dims = dict.fromkeys(names, 16)
    measured = importance(model, readers, dims, texts)

    ids = torch.tensor(texts)
    original = model(ids).logits.log_softmax(2)
    for name in names:
        weight = model.get_submodule(name).weight
        before, deviation = weight.clone(), NOISE * float(weight.square().mean().sqrt())
        weight += deviation * torch.randn_like(weight)
        changed = model(ids).logits.log_softmax(2)
        weight.copy_(before)
        moved = float((original.exp() * (original - changed)).sum())
        assert measured[name] == pytest.approx(moved / (deviation**2 * 16), rel=0.3)


def test_likelihoods_are_those_that_transformers_computes(decoder):
    model, tokenizer = load_model(decoder)
    found = outputs_of(model, tokenizer, {"some": ["word3 word40 word9", "word5"]})["some"]
    texts = [torch.tensor([ids]) for ids in token_ids(tokenizer, ["word3 word40 word9", "word5"])]
    expected = [-model(ids, labels=ids).loss.item() for ids in texts]
    assert [found[:3].mean().item(), found[3:].item()] == pytest.approx(expected, abs=1e-5)


def test_a_decoder_reads_its_start_token_first(decoder, encoder):
    for folder, first in ((decoder, 2), (encoder, 2)):
        rows = token_ids(load_model(folder)[1], ["word1 word2"])
        assert rows[0][0] == first
        assert rows[0].count(2) == 1


def test_losses_are_the_increase_of_perplexity_or_the_angle(decoder, encoder):
    model = load_model(decoder)[0]
    assert is_decoder(model)
    before, after = torch.tensor([-1.0, -3.0]), torch.tensor([-1.0, -3.2])
    assert losses(model, {"x": before}, {"x": after})["x"] == pytest.approx(100 * (math.exp(0.1) - 1), rel=1e-5)
    vectors = torch.eye(2)
    angle = losses(load_model(encoder)[0], {"x": vectors}, {"x": torch.ones(2, 2)})["x"]
    assert angle == pytest.approx(100 * (1 - math.sqrt(0.5)), rel=1e-5)
