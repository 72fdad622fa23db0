"""Pairs move to where they are asked for; their number stays, and what the optimizer knows of them moves along."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ade.classifier import predict_logits
from ade.data.batches import Encoded
from ade.embedding import AnchorEmbedding
from ade.errors import InputError
from ade.model import AdeForSequenceClassification
from ade.packing.format import Packing
from ade.settings import Architecture, TrainingSettings
from ade.training.loop import fit_model
from ade.training.move_pairs import PairMover, without_unused_anchors
from tests.conftest import ragged_codebook

SHORT = TrainingSettings(steps=80, batch_size=16, learning_rate=3e-3, adapt=True, lexicon=False)


def layer_of(counts: list[int]) -> AnchorEmbedding:
    return AnchorEmbedding.from_codebook(ragged_codebook(counts, anchors=6))


def pairs(layer: AnchorEmbedding) -> dict[tuple[int, int], float]:
    owner = torch.repeat_interleave(layer.counts.long()).tolist()
    return dict(zip(zip(owner, layer.indices.tolist(), strict=True), layer.weights.tolist(), strict=True))


def test_a_pair_goes_where_it_is_asked_for():
    layer = layer_of([3, 1, 2, 3])
    mover = PairMover(layer)
    with torch.no_grad():
        layer.weights.copy_(torch.tensor([1.0, 0.9, 0.001, 1.0, 1.0, 0.8, 1.0, 0.7, 0.6]))
    before = pairs(layer)
    moment = torch.arange(9.0)
    owned = {anchor for token, anchor in before if token == 1}
    free = next(anchor for anchor in range(6) if anchor not in owned)
    mover.gradient[1, free], mover.gradient[2, :] = -5.0, 0.1
    for anchor in owned:
        mover.gradient[1, anchor] = 100.0  # what it has already
    assert mover.move([moment]) == 1
    after = pairs(layer)
    assert layer.counts.tolist() == [2, 2, 2, 3]
    assert set(after) - set(before) == {(1, free)}
    assert after[1, free] == 0
    gone = set(before) - set(after)
    assert [before[pair] for pair in gone] == [pytest.approx(0.001)]
    for (pair, weight), old in zip(after.items(), moment.tolist(), strict=True):
        if pair in before:  # its moment came along
            assert weight == before[pair]
            assert old == list(before).index(pair)
        else:
            assert old == 0
    assert mover.gradient.abs().sum() == 0


def test_nothing_moves_where_all_pairs_matter_or_nobody_asks():
    layer = layer_of([2, 2, 2])
    with torch.no_grad():
        layer.weights.fill_(1.0)
    mover = PairMover(layer)
    mover.gradient.fill_(1.0)
    assert mover.move([]) == 0
    with torch.no_grad():
        layer.weights[1] = 1e-4
    assert mover.move([]) == 0  # nobody has asked since


def test_what_is_asked_for_is_the_gradient():
    layer = layer_of([2, 3, 1])
    mover, ids, pull = PairMover(layer), torch.tensor([2, 0, 2]), torch.randn(3, 8)
    (layer.compose(ids) * pull).sum().backward()
    expected = torch.zeros(3, 6).index_add(0, ids, pull @ layer.anchors.detach().T)
    assert torch.allclose(mover.gradient, expected, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_training_moves_pairs_and_goes_on_as_if_never_interrupted(codebook, topics, tmp_path, packed):
    faint = codebook.weights.clone()
    faint[2::3] *= 1e-3  # the last of each token's three pairs
    book = replace(codebook, weights=faint, packing=Packing() if packed else None)
    shape, texts = Architecture(heads=2), list(topics.texts[:200])
    whole = fit_model(book, topics, settings=SHORT, architecture=shape, out=tmp_path / "whole")
    plain = fit_model(book, topics, settings=replace(SHORT, adapt=False), architecture=shape)
    assert len(whole.model.ade.embedding.pairs_of(torch.arange(book.vocabulary))[2].nonzero()) == len(book.indices)

    class Stop(Exception):
        pass

    def stop(what: str, done: int, total: int, figures: object) -> None:
        if what == "train" and done >= 33:
            raise Stop

    with pytest.raises(Stop):
        fit_model(book, topics, settings=SHORT, architecture=shape, out=tmp_path / "cut", report=stop)
    resumed = fit_model(book, topics, settings=SHORT, architecture=shape, out=tmp_path / "cut", existing="resume")
    assert np.allclose(resumed.predict_proba(texts), whole.predict_proba(texts), atol=1e-5)
    assert not np.allclose(plain.predict_proba(texts), whole.predict_proba(texts), atol=1e-3)
    if packed:
        assert sum(array.nbytes for array in whole.model.arrays().values()) <= sum(
            array.nbytes for array in plain.model.arrays().values()
        )


@pytest.mark.parametrize("most", [1, 2, 5, 6, 7, 62])
def test_a_packed_model_grows_by_no_bit(most):
    book = replace(ragged_codebook([most, 1, 2, 1], anchors=200), packing=Packing())
    model = AdeForSequenceClassification.from_codebook(book, "ab", Architecture(heads=2))
    room = PairMover(model.ade.embedding).layer.max_pairs
    assert room >= most
    assert (room + 1).bit_length() == (most + 1).bit_length() < (room + 2).bit_length()


def test_anchors_nobody_uses_are_left_out():
    book = ragged_codebook([2, 1, 3, 2], anchors=9)
    model = AdeForSequenceClassification.from_codebook(book, "abc", Architecture(heads=2)).eval()
    with torch.no_grad():
        model.ade.embedding.indices[model.ade.embedding.indices == 4] = 5
    small = without_unused_anchors(model)
    used = len(set(model.ade.embedding.indices.tolist()))
    assert small.config.anchors == len(small.ade.embedding.anchors) == used < 9
    texts = Encoded(torch.tensor([0, 3, 2, 1, 1, 2], dtype=torch.int32), np.array([0, 4, 6]))
    assert np.allclose(predict_logits(small, texts), predict_logits(model, texts), atol=1e-5)
    assert small.config.max_pairs == 3


@pytest.mark.parametrize("shape", [{"train_weights": False}, {"attend": "anchors"}])
def test_what_cannot_adapt_is_refused(codebook, topics, shape):
    settings = replace(SHORT, **{k: v for k, v in shape.items() if k != "attend"})
    architecture = Architecture(heads=2, **{k: v for k, v in shape.items() if k == "attend"})
    with pytest.raises(InputError, match="--adapt needs"):
        fit_model(codebook, topics, settings=settings, architecture=architecture)


def test_a_token_of_weight_zero_keeps_a_pair():
    layer = layer_of([2, 3, 2])
    with torch.no_grad():
        layer.weights[:2] = 0
    mover = PairMover(layer)
    mover.gradient.fill_(1.0)
    mover.move([])
    assert layer.counts.min() >= 1


def faint(counts: list[int], packing: Packing | None = None, anchors: int = 6) -> AnchorEmbedding:
    """A layer whose tokens have one pair that matters each; the others may all be taken away."""
    book = ragged_codebook(counts, anchors=anchors)
    layer = AnchorEmbedding(len(counts), anchors, book.dim, len(book.indices), book.max_pairs, packing)
    layer.load_codebook(book)
    with torch.no_grad():
        layer.weights.fill_(1e-4)
        layer.weights[layer.offsets] = 1.0
    return layer


def test_a_token_that_is_full_is_given_no_pair():
    layer = faint([1, 4, 2])
    mover = PairMover(layer)
    layer.max_pairs = 4
    with torch.no_grad():
        layer.weights[1:5] = 1.0  # all four of the second token matter
    mover.gradient[1] = 100.0
    mover.gradient[0] = 1.0
    assert mover.move([]) == 1
    assert layer.counts.tolist() == [2, 4, 1]


def test_a_token_whose_row_is_kept_whole_is_given_no_pair_and_its_anchor_goes_to_nobody():
    layer = faint([1, 1, 3], Packing(shared=5, fine=1))
    with torch.no_grad():
        layer.indices.copy_(torch.tensor([0, 5, 1, 2, 3]))  # the second token has the row of its own
    mover = PairMover(layer)
    mover.gradient[1] = 100.0
    mover.gradient[0, 5] = 50.0
    mover.gradient[0, 4] = 1.0
    assert mover.move([]) == 1
    assert set(pairs(layer)) >= {(0, 0), (0, 4), (1, 5), (2, 1)}
    assert layer.counts.tolist() == [2, 1, 2]


def test_no_more_than_a_twentieth_of_the_pairs_moves_at_a_time():
    layer = faint([5] * 40, anchors=12)
    mover = PairMover(layer)
    mover.gradient.fill_(1.0)
    assert mover.move([]) == 10  # of 200 pairs, 160 of which do not matter
    assert int(layer.counts.sum()) == 200


def test_the_tokens_that_ask_most_are_served_first_however_little_they_ask():
    layer = faint([5] * 40, anchors=12)
    mover = PairMover(layer)
    mover.gradient.copy_(torch.linspace(1e-4, 1e-3, 40).roll(13).unsqueeze(1).expand(40, 12))
    most = set(mover.gradient[:, 0].argsort(descending=True)[:10].tolist())
    before = set(pairs(layer))
    assert mover.move([]) == 10
    assert {token for token, _ in set(pairs(layer)) - before} == most


def test_of_few_pairs_one_moves_at_a_time():
    layer = faint([3, 3, 1, 1])
    mover = PairMover(layer)
    mover.gradient[2:] = 1.0
    assert mover.move([]) == 1  # a twentieth of eight is less than one


@pytest.mark.parametrize(("bits", "largest"), [(4, 0.5 / 7), (3, 0.5 / 3), (0, 0.02)])
def test_a_pair_moves_only_where_its_weight_rounds_to_nothing(bits, largest):
    for share, moves in ((0.95 * largest, 1), (1.05 * largest, 0)):
        layer = faint([2, 1], Packing(weight_bits=bits) if bits else None)
        with torch.no_grad():
            layer.weights.copy_(torch.tensor([-2.0, 2 * share, 1.0]))
        mover = PairMover(layer)
        mover.gradient[1] = 1.0
        assert mover.move([]) == moves
