"""The paper's own examples and identities, each against a slow reading of its text."""

import numpy as np
import pytest
import torch

from ade.distillation import above_threshold
from ade.embedding import AnchorEmbedding
from ade.inspector.words import count_parameters
from ade.model import model_of
from tests.conftest import ragged_codebook, untrained
from tests.models import oracle, random_model

MODES = ["tokens", "anchors"]
WIDE = ragged_codebook([1, 3, 2, 4, 1, 5]).table


def small_model(attend: str = "tokens", **config: object) -> torch.nn.Module:
    """A model of width 8 and two heads in float64, far from its starting values."""
    return model_of(random_model(WIDE, scale=0.5, **{"attend": attend, "heads": 2, **config})).double().eval()


def test_parameter_table():
    saved = untrained(ragged_codebook([1] * 100, dim=768), ["a", "b", "c", "d"], heads=12)
    counts = count_parameters(saved)
    assert counts["contextualizer"] == 2_362_368 == 4 * (768**2 + 768)
    assert (counts["layernorm"], counts["pooler"], counts["classifier"]) == (1_536, 769, 3_076)
    assert counts["total"] == 2_367_749
    assert sum(parameter.numel() for parameter in model_of(saved).parameters()) == 2_367_749 + 12 * 768 + 100


def test_grouped_positions_example():
    """GPE: three words of 3, 1 and 4 anchors have the positions [0, 0, 0, 1, 2, 2, 2, 2]."""
    book = ragged_codebook([3, 1, 4]).table
    expanded = AnchorEmbedding(book).expand(torch.tensor([[0, 1, 2]]), torch.ones(1, 3, dtype=torch.bool))
    assert expanded.word[0].tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    _, word = oracle(random_model(book, attend="anchors")).elements(np.arange(3))
    assert word.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]


def test_vocabulary_projection_keeps_what_reaches_the_threshold_and_at_least_one():
    """I_i = {j : |T_ij| >= tau}; cardinalities are clamped to one."""
    transform = torch.randn(20, 12, generator=torch.Generator().manual_seed(3))
    kept = above_threshold(transform, 0.4)
    assert kept.tolist() == (transform.abs() >= 0.4).tolist()
    assert above_threshold(torch.tensor([[0.9, 0.5, -0.5, 0.49]]), 0.5).tolist() == [[True, True, True, False]]
    weak = torch.tensor([[0.01, -0.02, 0.0], [0.0, 0.0, 0.0]])
    assert above_threshold(weak, 0.5).tolist() == [[False, True, False], [True, False, False]]
    assert above_threshold(torch.tensor([[0.3, 0.0]]), 0.0).tolist() == [[True, False]]


@pytest.mark.parametrize("counts", [[1, 3, 2, 12, 1], [1, 1, 1], [12, 12]])
def test_one_step_two_stage_and_flat_table_look_ups_agree(counts):
    """Values and gradients of A and beta, in float64."""
    layer = AnchorEmbedding(ragged_codebook(counts).table).double()
    ids = torch.tensor([0, len(counts) - 1, 1, 1, 0])
    pull = torch.randn(len(ids), 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    slots = [torch.arange(start, start + count) for start, count in zip(layer.starts, layer.counts, strict=True)]

    def by_one_step(anchors, weights):
        return layer(ids)

    def by_two_stages(anchors, weights):  # transform row first, then the anchors it names
        return torch.stack([sum(weights[s] * anchors[layer.indices[s]] for s in slots[i]) for i in ids.tolist()])

    def by_flat_table(anchors, weights):  # the padded N x (K d) table of stage 2, weights beside it
        flat, beta = (torch.zeros(len(counts), max(counts), width, dtype=torch.float64) for width in (8, 1))
        for token, own in enumerate(slots):
            flat[token, : len(own)], beta[token, : len(own), 0] = anchors[layer.indices[own]], weights[own]
        return (flat[ids] * beta[ids]).sum(1)

    results = []
    for look_up in (by_one_step, by_two_stages, by_flat_table):
        value = look_up(layer.anchors, layer.weights)
        results.append((value, *torch.autograd.grad((value * pull).sum(), [layer.anchors, layer.weights])))
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("attend", MODES)
def test_algorithm_1_in_batches_is_that_of_plain_numpy(attend):
    model, reference = small_model(attend), oracle(random_model(WIDE, scale=0.5, attend=attend, heads=2))
    for ids in ([3, 1, 5, 5, 0, 2], [4], [1, 1]):
        scores = model(torch.tensor([ids])).logits[0].detach()
        np.testing.assert_allclose(scores, reference.scores(np.array(ids)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attend", MODES)
def test_the_mask_stops_every_leak(attend):
    """Values: exactly the same. Gradients: none reaches a token that stands only in the padding."""
    model = small_model(attend)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    ids = torch.tensor([[3, 1, 5, 0, 0], [2, 1, 3, 5, 2]])
    other = ids.clone()
    other[0, 3:] = 4  # which occurs nowhere else
    first, second = model(ids, mask).logits, model(other, mask).logits
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)
    second.sum().backward()
    layer = model.ade.embedding
    assert layer.weights.grad[layer.starts[4] : layer.starts[4] + layer.counts[4]].abs().max() == 0
    assert layer.weights.grad.abs().sum() > 0


def test_mask_formula_and_maps_of_the_expanded_sequence():
    """M[b, t] = 1 iff t < sum_i k_{b,i}; words in order, each repeated k_i times."""
    book = ragged_codebook([2, 3, 1, 4]).table
    ids = torch.tensor([[1, 3, 0], [2, 2, 0]])
    expanded = AnchorEmbedding(book).expand(ids, torch.tensor([[True, True, True], [True, True, False]]))
    totals = [3 + 4 + 2, 1 + 1]
    assert expanded.mask.tolist() == [[t < total for t in range(max(totals))] for total in totals]
    assert expanded.word[0].tolist() == [0] * 3 + [1] * 4 + [2] * 2
    assert expanded.word[1, :2].tolist() == [0, 1]
    anchors, weights = zip(*(book.of(token) for token in (1, 3, 0)), strict=True)
    assert expanded.anchor[0].tolist() == np.concatenate(anchors).tolist()
    assert expanded.weight[0].tolist() == np.concatenate(weights).tolist()
    assert expanded.weight[1, 2:].abs().max() == 0
