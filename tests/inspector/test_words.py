import pytest
import torch

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.errors import InputError
from ade.inspector.reading import inspect_in_context, read
from ade.inspector.words import codebook_of, inspect_words, nearest_words
from ade.model import AdeForSequenceClassification
from ade.settings import Architecture
from tests.conftest import word_tokenizer
from tests.test_paper import small_model

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


def test_a_context_weighs_anchors_anew(codebook, topics):
    """The same word twice: its own anchors stay, their weights move, and what is composed of them is what is pooled."""
    model = AdeForSequenceClassification.from_codebook(codebook, topics.names, Architecture(attend="gated", heads=2))
    classifier = Classifier(model, codebook.tokenizer)
    one, two = read(classifier, "the bank of the team"), read(classifier, "bank profit")
    assert one.tokens[1] == two.tokens[0] == "bank"
    assert "the bank of the team"[slice(*one.spans[1])] == "bank"
    assert torch.equal(one.static[1], two.static[0])
    assert not torch.allclose(one.contextual[1], two.contextual[0], rtol=1e-3)
    assert torch.equal(one.contextual[1] != 0, one.static[1] != 0)
    assert float(one.pooling_weights.sum()) == pytest.approx(1)
    ids = torch.tensor([classifier.tokenizer.encode("bank profit").ids])
    context = model.ade.context(ids, torch.ones_like(ids, dtype=torch.bool))[0]
    position = model.ade._positions(torch.arange(2))
    composed = model.ade.norm(two.contextual @ model.ade.embedding.anchors) + position + context
    assert torch.allclose(composed, two.states, atol=1e-5)


@pytest.mark.parametrize("sat", [True, False])
def test_without_gates_the_weights_stay(codebook, topics, sat):
    shape = Architecture(attend="tokens", sat=sat, heads=2)
    model = AdeForSequenceClassification.from_codebook(codebook, topics.names, shape)
    reading = read(Classifier(model, codebook.tokenizer), "the bank")
    assert torch.equal(reading.static, reading.contextual)


def test_expanded_anchors_cannot_be_read_by_token(codebook, topics):
    model = AdeForSequenceClassification.from_codebook(codebook, topics.names, Architecture(attend="anchors", heads=2))
    with pytest.raises(InputError, match="--attend gated"):
        inspect_in_context(Classifier(model, codebook.tokenizer), ["bank"], "the bank")


def test_weights_here_are_the_gated_ones(codebook, topics, tmp_path, ade):
    model = AdeForSequenceClassification.from_codebook(codebook, topics.names, Architecture(attend="gated", heads=2))
    classifier = Classifier(model, codebook.tokenizer)
    (bank,) = inspect_in_context(classifier, ["Bank"], "the bank of the team", nearest=2)
    reading = read(classifier, "the bank of the team")
    plain = {use.anchor: use.weight for use in inspect_words(codebook_of(classifier), ["bank"])[0].anchors}
    for use in bank.anchors:
        assert use.weight == pytest.approx(plain[use.anchor])
        gate = float(reading.contextual[1, use.anchor] / reading.static[1, use.anchor])
        assert use.in_context == pytest.approx(use.weight * gate, rel=1e-4)
        assert gate != pytest.approx(1, abs=1e-4)
    with pytest.raises(InputError, match="does not stand"):
        inspect_in_context(classifier, ["rocket"], "the bank")
    classifier.save(tmp_path / "model")
    codebook.save(tmp_path / "codebook")
    status, out, _ = ade("inspect", tmp_path / "model", "bank", "--text", "the bank of the team")
    assert status == 0
    assert "here" in out
    status, _, err = ade("inspect", tmp_path / "codebook", "bank", "--text", "the bank")
    assert status == 2
    assert "trained model" in err
