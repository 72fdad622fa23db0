"""The PyTorch models: padding, dropout, losses, and that a model gives back what it was made of."""

from itertools import product

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ade.configuration import CLASSIFIER, ENCODER, TAGGER
from ade.data.problems import MULTI, REGRESSION
from ade.model import SIMILARITY, AdeModel, embedding_loss, model_of
from tests.conftest import ragged_codebook
from tests.models import coded_table, packed_codebook, random_model

IDS = torch.tensor([[3, 1, 5, 2], [4, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
MODES = ["tokens", "anchors"]
BOOK = ragged_codebook([1, 3, 2, 4, 1, 5]).table


def made(attend: str = "tokens", **config: object) -> torch.nn.Module:
    """A model of width 8 and two heads, far from its starting values."""
    return model_of(random_model(BOOK, scale=0.5, **{"attend": attend, "heads": 2, **config})).eval()


@pytest.mark.parametrize(("kind", "table"), product([CLASSIFIER, TAGGER, ENCODER], ["pairs", "packed", "coded"]))
def test_a_model_gives_back_what_it_was_made_of(kind, table):
    book = {"pairs": None, "packed": packed_codebook(), "coded": coded_table()}[table]
    saved = random_model(book, lexicon=kind == CLASSIFIER, kind=kind, layers=2, layer_bits=0 if table == "pairs" else 8)
    for again in (model_of(saved).to_saved(), AdeModel(saved).to_saved()):  # without a head, which is kept
        assert again.config == saved.config
        assert again.lexicon is saved.lexicon
        assert again.layers.keys() == saved.layers.keys()
        for name, array in saved.layers.items():
            assert np.array_equal(again.layers[name], array), name
        rows = [each.table.rows(np.arange(saved.table.vocabulary)) for each in (saved, again)]
        np.testing.assert_allclose(rows[1], rows[0], atol=1e-2 if table == "coded" else 1e-7)


@pytest.mark.parametrize("attend", MODES)
def test_a_row_without_tokens_is_one_token_of_id_0(attend):
    """Whatever stands in the padding, and in training too: one such row must not spoil a batch."""
    model = made(attend)
    ids, mask = torch.tensor([[3, 1, 5, 2], [4, 4, 4, 4]]), torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]])
    found = model(ids, mask).logits
    torch.testing.assert_close(found[1:], model(torch.tensor([[0]])).logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[:1], model(ids[:1]).logits, rtol=1e-5, atol=1e-5)
    model.train()(ids, mask, labels=torch.tensor([0, 1])).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


def test_a_tagger_of_rows_without_tokens_has_a_vector_a_token():
    model = made(kind=TAGGER)
    assert model(torch.zeros(2, 0), torch.zeros(2, 0)).logits.shape == (2, 0, 3)
    found = model(IDS, torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]]))
    assert torch.isfinite(found.logits).all()


@pytest.mark.parametrize("attend", MODES)
def test_token_dropout_never_takes_all_tokens_of_a_text_padded_on_the_left(attend):
    model = made(attend, token_dropout=0.99).train()
    ids, mask = torch.tensor([[0, 0, 3, 1]] * 64), torch.tensor([[0, 0, 1, 1]] * 64)
    visible = model.ade._drop_tokens(mask.bool())
    assert visible[:, 2].all()
    assert not visible[:, :2].any()
    assert 5 < visible[:, 3].sum() < 64
    assert torch.isfinite(model(ids, mask).logits).all()
    assert torch.equal(model.eval().ade._drop_tokens(mask.bool()), mask.bool())


@pytest.mark.parametrize("attend", MODES)
def test_dropout_zeroes_half_of_the_features_and_doubles_the_rest_only_while_training(attend):
    """SAT adds nothing here, so that states are the elements themselves."""
    book = ragged_codebook([1, 3, 2, 4] * 4, dim=64).table
    model = model_of(random_model(book, attend=attend, dropout=0.5, sat=False)).eval()
    ids = torch.arange(16).view(2, 8)
    whole, real, _ = model.ade.states(ids, None)
    assert (whole[real] != 0).all()
    dropped = model.ade.train().states(ids, None)[0][real]
    gone = dropped == 0
    assert 0.4 < float(gone.float().mean()) < 0.6
    torch.testing.assert_close(dropped[~gone], 2 * whole[real][~gone])


def test_a_token_of_the_expanded_sequence_is_the_mean_of_its_anchors():
    """Tokens 3 and 0 have four anchors and one; a token that is hidden has none, and a vector of zeros."""
    model = made("anchors").ade
    ids, mask = torch.tensor([[3, 0, 5]]), torch.tensor([[True, True, False]])
    states, real, word = model.states(ids, mask)
    assert real.tolist() == [[True] * 5]
    assert word.tolist() == [[0, 0, 0, 0, 1]]
    expected = torch.stack([states[0, :4].mean(0), states[0, 4], torch.zeros(8)])
    torch.testing.assert_close(model.token_states(ids, mask)[0], expected)


def test_the_loss_of_each_problem():
    logits = made()(IDS, MASK).logits
    one, weight = torch.tensor([2, 0]), (0.5, 1.0, 3.0)
    for labels, config, expected in (
        (one, {}, -logits.log_softmax(1)[[0, 1], one].mean()),
        (one, {"class_weights": weight}, -(logits.log_softmax(1)[[0, 1], one] * torch.tensor([3, 0.5])).sum() / 3.5),
        (logits.detach().softmax(1), {}, torch.distributions.Categorical(logits=logits).entropy().mean()),
        (torch.tensor([[1, 0, 1], [0, 0, 1]]), {"problem": MULTI}, None),
        (torch.tensor([[1, 0, 1], [0, 0, 1]]), {"problem": MULTI, "class_weights": weight}, None),
    ):
        if expected is None:
            balance = torch.tensor(config.get("class_weights", (1, 1, 1)))
            expected = -(balance * labels * F.logsigmoid(logits) + (1 - labels) * F.logsigmoid(-logits)).mean()
        found = made(**config)(IDS, MASK, labels).loss
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    model = made(labels=1, problem=REGRESSION, mean=2.0, deviation=3.0)
    found = model(IDS, MASK, torch.tensor([4, 7]))
    torch.testing.assert_close(found.loss, (found.logits[:, 0] - torch.tensor([4, 7])).square().mean())


@pytest.mark.parametrize("weights", [None, (0.5, 1.0, 3.0)])
def test_the_loss_of_a_tagger_is_over_labelled_tokens(weights):
    model = made(kind=TAGGER, class_weights=weights)
    labels = torch.tensor([[2, -100, 0, 1], [1, -100, -100, -100]])
    found = model(IDS, MASK, labels)
    balance = torch.tensor(weights or (1.0, 1.0, 1.0))
    losses = [
        (-balance[label] * found.logits[row, column].log_softmax(0)[label], balance[label])
        for row, column, label in ((0, 0, 2), (0, 2, 0), (0, 3, 1), (1, 0, 1))
    ]
    torch.testing.assert_close(found.loss, sum(loss for loss, _ in losses) / sum(weight for _, weight in losses))


def test_vectors_of_an_encoder_are_unit_and_its_loss_compares_them_and_their_similarities():
    model, wanted = made(kind=ENCODER, labels=9), torch.randn(2, 9)
    found = model(IDS, MASK, labels=wanted)
    vectors, target = found.embeddings, F.normalize(wanted, dim=1)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))
    apart = 1 - (vectors * target).sum(1).mean()
    short = F.normalize(vectors[:, :2], dim=1)  # a fourth of 9
    pairs = [(each @ each.T - target @ target.T).square().mean() for each in (vectors, short)]
    torch.testing.assert_close(found.loss, apart + SIMILARITY * sum(pairs) / 2)
    assert embedding_loss(target, 5 * target).abs() < SIMILARITY
    assert model(IDS, MASK).loss is None


@pytest.mark.parametrize("attend", MODES)
def test_a_model_in_bfloat16_gives_nearly_the_same(attend):
    """On average over many texts: how far a single one is off depends on which side of a step a CPU's sums fall."""
    ids = torch.randint(0, 18, (200, 9), generator=torch.Generator().manual_seed(0))
    for table, most in ((None, 0.03), (packed_codebook(), 0.1)):
        model = model_of(random_model(table, attend=attend)).eval()
        with torch.no_grad():
            expected = model(ids).logits
            found = model.to(torch.bfloat16)(ids).logits
        assert found.dtype == torch.bfloat16
        assert (found.float() - expected).abs().mean() < most * expected.abs().mean()
