import pytest
import torch
from conftest import word_tokenizer
from test_paper import small_model

from ade.codebook import Codebook
from ade.errors import InputError
from ade.inference import Classifier
from ade.inspection import codebook_of, inspect_words, nearest_words

WORDS = ["cat", "dog", "car", "bus"]


def animals_and_vehicles() -> Codebook:
    """Anchor 0 is animals, anchor 1 vehicles; a bus is a little of an animal."""
    anchors = torch.eye(2, 4)
    indices = torch.tensor([0, 0, 0, 0, 1, 1, 0])
    weights = torch.tensor([0.1, 0.1, 1.0, 0.9, 1.0, 0.8, -0.2])
    counts = torch.tensor([1, 1, 1, 1, 1, 2])
    return Codebook.from_pairs(anchors, indices, weights, counts, word_tokenizer(WORDS))


def test_a_words_anchors_heaviest_first():
    found = inspect_words(animals_and_vehicles(), ["bus", "cat"], nearest=2)
    bus = found[0]
    assert (bus.word, bus.token) == ("bus", "bus")
    assert [(use.anchor, round(use.weight, 3)) for use in bus.anchors] == [(1, 0.8), (0, -0.2)]
    assert set(bus.anchors[0].nearest) == {"car", "bus"}
    assert set(bus.anchors[1].nearest) == {"cat", "dog"}
    assert found[1].as_dict()["anchors"][0]["anchor"] == 0


def test_nearest_words_are_ordered():
    assert nearest_words(animals_and_vehicles(), torch.tensor([1]), 4)[0][:2] == ("car", "bus")


def test_a_word_without_tokens_is_said():
    with pytest.raises(InputError, match="makes no token"):
        inspect_words(animals_and_vehicles(), ["   "])


def test_the_dictionary_inside_a_model_composes_the_same_directions():
    model = small_model()
    book = codebook_of(Classifier(model, word_tokenizer(["a", "b", "c", "d"])))
    torch.testing.assert_close(book.anchors.norm(dim=1), torch.ones(12))
    rows = model.ade.embedding.compose(torch.arange(6)).detach()
    torch.testing.assert_close(torch.cosine_similarity(book.rows(), rows), torch.ones(6), rtol=1e-4, atol=1e-4)
