"""The example the page opens on: the one in which the context moves a word towards its sentence."""

import pytest
import torch

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.inspector.examples import moved, rank_examples
from ade.inspector.page import EXAMPLES
from ade.model import AdeForSequenceClassification
from ade.settings import Architecture
from tests.conftest import word_tokenizer

WORDS = ["bank", "money", "cash", "river", "water"]


def classifier(attend: str = "gated", towards: float = 8.0) -> Classifier:
    """Two anchors, money and water; `bank` has both. Attention averages the text, so gates follow its other words."""
    table = torch.eye(4)[:2]
    indices = torch.tensor([0, 1, 0, 1, 0, 0, 1, 1])
    counts = torch.tensor([1, 1, 2, 1, 1, 1, 1])  # [PAD], [UNK], bank, money, cash, river, water
    book = Codebook.from_pairs(table, indices, torch.ones(8), counts, word_tokenizer(WORDS))
    model = AdeForSequenceClassification.from_codebook(
        book, ["a", "b"], Architecture(attend=attend, heads=1), position_scale=0.0
    )
    with torch.no_grad():
        sat = model.ade.sat
        sat.projection.weight.zero_()
        sat.projection.weight[8:] = torch.eye(4)  # values are the tokens themselves, all attended to alike
        sat.output.weight.copy_(towards * torch.eye(4))
        sat.projection.bias.zero_()
        sat.output.bias.zero_()
    return Classifier(model, book.tokenizer)


TEXTS = ("bank money cash", "bank river water")


def test_towards_its_sentence_is_positive_and_away_is_negative():
    assert moved(classifier(), "bank", TEXTS) > 0.1
    assert moved(classifier(), "bank", TEXTS[::-1]) == pytest.approx(moved(classifier(), "bank", TEXTS), abs=1e-3)
    assert moved(classifier(towards=-8.0), "bank", TEXTS) < -0.1
    assert abs(moved(classifier(towards=0.01), "bank", TEXTS)) < 0.01


@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_without_gates_nothing_moves(attend):
    assert moved(classifier(attend), "bank", TEXTS) == 0


def test_what_a_model_cannot_read_moves_nothing():
    made = classifier()
    assert moved(made, "bank", ("bank", "bank")) == 0  # no other words
    made.max_tokens = made.model.config.max_tokens = 2
    assert moved(made, "bank", TEXTS) == 0  # beyond the window


def test_the_clearest_example_comes_first():
    found = rank_examples(classifier())
    assert sorted(each["word"] for each in found) == sorted(EXAMPLES)
    assert [each["moved"] for each in found] == sorted((each["moved"] for each in found), reverse=True)
    assert found[0]["word"] == "bank"  # the only word it knows in both senses
    assert found[0]["moved"] > 0
    for each in found:
        assert all(each["word"] in text.split() for text in each["texts"])
