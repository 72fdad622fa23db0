"""The paper's own examples and identities, each against a slow reading of its text."""

import math

import pytest
import torch
from torch import nn

from ade.cli.sizes import count_parameters
from ade.distillation import above_threshold
from ade.embedding import AnchorEmbedding
from ade.model import AdeForSequenceClassification
from ade.positions import sinusoidal
from ade.settings import Architecture
from tests.conftest import ragged_codebook

MODES = ["tokens", "anchors", "gated"]


def lively(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter random and far from zero, so that no term can hide."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model.eval()


def small_model(attend="tokens", sat=True, positions="grouped", counts=(1, 3, 2, 4, 1, 5)):
    architecture = Architecture(attend=attend, sat=sat, positions=positions, heads=2)
    model = AdeForSequenceClassification.from_codebook(
        ragged_codebook(list(counts)), ["a", "b", "c"], architecture, position_scale=1.0
    )
    return lively(model)


def test_parameter_table():
    counts = count_parameters(dim=768, labels=4, anchors=100)
    assert counts["contextualizer"] == 2_362_368 == 4 * (768**2 + 768)
    assert (counts["layernorm"], counts["pooler"], counts["classifier"]) == (1_536, 769, 3_076)
    assert counts["total_trainable"] == 2_367_749
    assert counts["anchors_frozen"] == 76_800


def test_grouped_positions_example():
    """GPE: three words of 3, 1 and 4 anchors have the positions [0, 0, 0, 1, 2, 2, 2, 2]."""
    layer = AnchorEmbedding.from_codebook(ragged_codebook([3, 1, 4]))
    expanded = layer.expand(torch.tensor([[0, 1, 2]]), torch.ones(1, 3, dtype=torch.bool))
    assert expanded.word[0].tolist() == [0, 0, 0, 1, 2, 2, 2, 2]


def test_cardinalities_are_clamped_to_one():
    transform = torch.tensor([[0.9, 0.1, 0.0], [0.01, -0.02, 0.0], [0.0, 0.0, 0.0]])
    kept = above_threshold(transform, 0.5)
    assert kept.sum(1).tolist() == [1, 1, 1]
    assert kept[:2].nonzero()[:, 1].tolist() == [0, 1]  # the second token has no weight above tau: it keeps its largest


def test_vocabulary_projection_keeps_what_the_threshold_says():
    transform = torch.randn(20, 12, generator=torch.Generator().manual_seed(3))
    kept = above_threshold(transform, 0.4)
    for token in range(20):
        assert kept[token].nonzero()[:, 0].tolist() == [j for j in range(12) if abs(transform[token, j]) >= 0.4]


def test_sinusoidal_is_the_usual_one():
    encoded = sinusoidal(torch.tensor([0, 5]), 8)
    for i in range(4):
        angle = 5 / 10000 ** (2 * i / 8)
        assert encoded[1, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert encoded[1, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert encoded[0].tolist() == [0, 1] * 4


@pytest.mark.parametrize("counts", [[1, 3, 2, 12, 1], [1, 1, 1], [12, 12]])
def test_one_step_two_stage_and_flat_table_look_ups_agree(counts):
    """Values and gradients of A and beta, in float64."""
    layer = AnchorEmbedding.from_codebook(ragged_codebook(counts)).double()
    ids = torch.tensor([0, len(counts) - 1, 1, 1, 0])
    pull = torch.randn(len(ids), 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def by_one_step(anchors, weights):
        return layer.compose(ids)

    def by_two_stages(anchors, weights):  # transform row first, then the anchors it names
        rows = []
        for token in ids.tolist():
            start, count = int(layer.offsets[token]), int(layer.counts[token])
            slots = range(start, start + count)
            rows.append(sum(weights[s] * anchors[int(layer.indices[s])] for s in slots))
        return torch.stack(rows)

    def by_flat_table(anchors, weights):  # the padded N x (K d) table of stage 2, weights beside it
        k, d = anchors.shape
        table, beta = [], []
        for token in range(len(counts)):
            start, count = int(layer.offsets[token]), int(layer.counts[token])
            row = [anchors[int(layer.indices[s])] for s in range(start, start + count)]
            table.append(torch.cat([*row, anchors.new_zeros((k - count) * d)]))
            beta.append(torch.cat([weights[start : start + count], weights.new_zeros(k - count)]))
        flat = torch.stack(table)[ids].view(len(ids), k, d)
        return (flat * torch.stack(beta)[ids].unsqueeze(2)).sum(1)

    results = []
    for look_up in (by_one_step, by_two_stages, by_flat_table):
        value = look_up(layer.anchors, layer.weights)
        gradients = torch.autograd.grad((value * pull).sum(), [layer.anchors, layer.weights])
        results.append((value, *gradients))
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def slow_attention(x, model):
    """Multi-head self-attention of one text, head by head, query by query."""
    sat, heads = model.ade.sat, model.ade.sat.heads
    dim, width = x.shape[1], x.shape[1] // heads
    query, key, value = (x @ sat.projection.weight.T + sat.projection.bias).split(dim, 1)
    heard = torch.zeros_like(x)
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        for t in range(len(x)):
            scores = torch.stack([query[t, part] @ key[s, part] / width**0.5 for s in range(len(x))])
            heard[t, part] = sum(a * value[s, part] for s, a in enumerate(scores.softmax(0)))
    return heard @ sat.output.weight.T + sat.output.bias


def slow_forward(model, ids):
    """Algorithm 1 for one text without padding, in the three readings, with loops and no cleverness."""
    layer, config = model.ade.embedding, model.config
    pairs = []  # the anchor look-up: (position, anchor, beta)
    for position, token in enumerate(ids):
        start = int(layer.offsets[token])
        pairs += [
            (position, int(layer.indices[s]), layer.weights[s]) for s in range(start, start + int(layer.counts[token]))
        ]
    positions = sinusoidal(torch.arange(len(ids)), config.hidden_size).to(layer.anchors.dtype) * config.position_scale
    if config.attend == "anchors":
        x = torch.stack([beta * model.ade.norm(layer.anchors[j]) + positions[p] for p, j, beta in pairs])
        states = x + slow_attention(x, model)
    else:

        def composed(factor):
            tokens = torch.zeros(len(ids), config.hidden_size, dtype=layer.anchors.dtype)
            for p, j, beta in pairs:  # scatter-add
                tokens[p] = tokens[p] + factor(p, j) * beta * layer.anchors[j]
            return model.ade.norm(tokens) + positions

        heard = slow_attention(composed(lambda p, j: 1.0), model)
        if config.attend == "gated":
            gate = lambda p, j: 2 * torch.sigmoid(heard[p] @ layer.anchors[j] / config.hidden_size**0.5)  # noqa: E731
            states = composed(gate) + heard
        else:
            states = composed(lambda p, j: 1.0) + heard
    shares = torch.stack([model.pooler(state)[0] for state in states]).softmax(0)
    return model.classifier(sum(share * state for share, state in zip(shares, states, strict=True)))


@pytest.mark.parametrize("attend", MODES)
def test_algorithm_1_step_by_step(attend):
    model = small_model(attend).double()
    for ids in ([3, 1, 5, 5, 0, 2], [4], [1, 1]):
        fast = model(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(fast, slow_forward(model, ids), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sat", [True, False])
@pytest.mark.parametrize("positions", ["grouped", "each", "none"])
@pytest.mark.parametrize("attend", MODES)
def test_a_padded_batch_equals_the_texts_one_by_one(attend, positions, sat):
    model = small_model(attend, sat, positions).double()
    texts = [[3, 1, 5, 2], [4], [0, 2, 2, 1, 5, 3, 3], [5, 5]]
    width = max(map(len, texts))
    ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    together = model(ids, mask).logits
    alone = torch.cat([model(torch.tensor([text])).logits for text in texts])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("attend", MODES)
def test_the_mask_stops_every_leak(attend):
    """Values: exactly the same. Gradients: none reaches a token that stands only in the padding."""
    model = small_model(attend)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    ids = torch.tensor([[3, 1, 5, 0, 0], [2, 1, 3, 5, 2]])
    other = ids.clone()
    other[0, 3:] = torch.tensor([4, 4])  # token 4 occurs nowhere else
    first, second = model(ids, mask).logits, model(other, mask).logits
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    second.sum().backward()
    layer = model.ade.embedding
    start = int(layer.offsets[4])
    assert layer.weights.grad[start : start + int(layer.counts[4])].abs().max() == 0
    assert layer.weights.grad.abs().sum() > 0


def test_mask_formula_and_maps_of_the_expanded_sequence():
    """M[b, t] = 1 iff t < sum_i k_{b,i}; words in order, each repeated k_i times."""
    counts = [2, 3, 1, 4]
    layer = AnchorEmbedding.from_codebook(ragged_codebook(counts))
    ids = torch.tensor([[1, 3, 0], [2, 2, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    expanded = layer.expand(ids, mask)
    totals = [3 + 4 + 2, 1 + 1]
    assert expanded.mask.shape == (2, max(totals))
    for b, total in enumerate(totals):
        assert expanded.mask[b].tolist() == [t < total for t in range(max(totals))]
    assert expanded.word[0].tolist() == [0] * 3 + [1] * 4 + [2] * 2
    pairs = [ragged_codebook(counts).pairs_of(token) for token in (1, 3, 0)]
    assert expanded.anchor[0].tolist() == torch.cat([indices for indices, _ in pairs]).tolist()
    assert expanded.weight[1, 2:].abs().max() == 0


def test_context_changes_what_a_word_is_made_of():
    """`gated`: the same word in two sentences has other weights on its own anchors, and so another composition."""
    model = small_model("gated")
    gates = []
    model.ade.gates = lambda heard, gates_of=model.ade.gates: gates.append(gates_of(heard)) or gates[-1]
    for ids in ([[3, 1, 1]], [[3, 5, 4]]):
        model(torch.tensor(ids))
    own = ragged_codebook([1, 3, 2, 4, 1, 5]).pairs_of(3)[0]
    first, second = (gate[0, 0, own] for gate in gates)
    assert (first - second).abs().max() > 1e-2
    assert ((first > 0) & (first < 2)).all()


def test_a_coefficient_exactly_at_the_threshold_is_kept():
    """I_i = {j : T_ij >= tau}."""
    assert above_threshold(torch.tensor([[0.9, 0.5, -0.5, 0.49]]), 0.5).tolist() == [[True, True, True, False]]
