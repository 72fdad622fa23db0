"""What the page is given: the model's own predictions, weights and attention, and a map of its anchors."""

import json
import math
from itertools import product

import numpy as np
import pytest
import torch

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.errors import InputError
from ade.inspector.reading import Inspector, inspect_in_context
from ade.inspector.words import codebook_of, nearest_words
from tests.conftest import ragged_codebook, word_tokenizer
from tests.packing.test_budget import packed_codebook
from tests.runtime.test_projection import shaken

TEXT = "w3 w1 w4 w1 w5"


def inspector(attend: str, packed: bool = False, **shape) -> Inspector:
    book = packed_codebook() if packed else ragged_codebook([1, 3, 2, 4] * 5, dim=32)
    model = shaken(book, 3, attend=attend, heads=2, **shape)
    return Inspector(Classifier(model.packed() if packed else model, book.tokenizer), nearest=4)


def slow_attention(made: Inspector, text: str) -> np.ndarray:
    """Attention over elements by the formula, one query and one head at a time, from the weights as they are stored."""
    model = made.classifier.model
    config, ade = model.config, model.ade
    ids = made.classifier.tokenizer.encode(text).ids
    table = ade.embedding.table().detach().double()
    elements = []
    with torch.no_grad():
        for place, token in enumerate(ids):
            index, weight, real = (part[0] for part in ade.embedding.pairs_of(torch.tensor([token])))
            pairs = [(int(i), float(w)) for i, w, there in zip(index, weight, real, strict=True) if there]
            if config.attend == "anchors":
                elements += [(place, ade.norm(table[i].float()).double() * w) for i, w in pairs]
            else:
                elements.append((place, ade.norm(sum(w * table[i] for i, w in pairs).float()).double()))
        rows = []
        for place, row in elements:
            angles = [place * math.exp(-math.log(10000) * (i - i % 2) / config.hidden_size) for i in range(len(row))]
            waves = [math.cos(angle) if i % 2 else math.sin(angle) for i, angle in enumerate(angles)]
            rows.append(row + config.position_scale * torch.tensor(waves, dtype=torch.float64))
        seen = ade.sat.projection(torch.stack(rows).float()).double()  # (T, 3 d)
    width = config.hidden_size // ade.sat.heads
    found = np.zeros((len(rows), len(rows)))
    for head in range(ade.sat.heads):
        cut = slice(head * width, (head + 1) * width)
        query, key = seen[:, : config.hidden_size][:, cut], seen[:, config.hidden_size : 2 * config.hidden_size][:, cut]
        for i in range(len(rows)):
            scores = [math.exp(float(query[i] @ key[j]) / width**0.5) for j in range(len(rows))]
            found[i] += np.array(scores) / sum(scores) / ade.sat.heads
    owner = np.array([place for place, _ in elements])
    tokens = range(len(ids))
    return np.array([[found[owner == i][:, owner == j].sum(1).mean() for j in tokens] for i in tokens])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("attend", ["gated", "tokens", "anchors"])
def test_a_reading_is_what_the_model_does(attend, packed):
    made = inspector(attend, packed)
    reading = made.read(TEXT)
    assert json.loads(json.dumps(reading, allow_nan=False)) == reading
    probabilities = made.classifier.predict_proba(TEXT)
    assert list(reading["probabilities"]) == list(made.classifier.names)
    assert list(reading["probabilities"].values()) == pytest.approx(probabilities.tolist(), abs=1e-9)
    assert reading["label"] == made.classifier.predict(TEXT) == made.classifier.names[probabilities.argmax()]
    tokens = reading["tokens"]
    assert [TEXT[token["start"] : token["end"]] for token in tokens] == TEXT.split()
    assert sum(token["share"] for token in tokens) == pytest.approx(1, abs=1e-5)
    assert min(token["share"] for token in tokens) > 0
    attention = np.array(reading["attention"])
    assert attention.shape == (5, 5)
    assert attention.sum(1) == pytest.approx(np.ones(5), abs=1e-5)
    assert attention == pytest.approx(slow_attention(made, TEXT), abs=2e-5)
    assert attention.std() > 0.01  # it does attend to something


@pytest.mark.parametrize("packed", [False, True])
def test_shares_are_the_poolers(packed):
    """The class scores follow from the shares and the states, so the shares are those the model pools with."""
    made = inspector("gated", packed)
    model, reading = made.classifier.model, made.read(TEXT)
    ids = torch.tensor([made.classifier.tokenizer.encode(TEXT).ids])
    with torch.no_grad():
        states = model.ade.states(ids, torch.ones_like(ids, dtype=torch.bool))[0][0]
        pooled = torch.tensor([token["share"] for token in reading["tokens"]]) @ states
        expected = model(ids).logits[0]
        assert torch.allclose(model.classifier(pooled), expected, atol=1e-4)


def test_weights_are_those_of_the_words_in_context():
    made = inspector("gated")
    tokens = {token["token"]: token for token in made.read(TEXT)["tokens"][::-1]}  # the first of each word
    for word in ("w3", "w4", "w1"):
        (expected,) = inspect_in_context(made.classifier, [word], TEXT)
        uses = tokens[word]["anchors"]
        assert [use["anchor"] for use in uses] == [use.anchor for use in expected.anchors]
        assert [use["weight"] for use in uses] == pytest.approx([use.weight for use in expected.anchors])
        assert [use["in_context"] for use in uses] == pytest.approx([use.in_context for use in expected.anchors], 1e-3)
        assert [abs(use["weight"]) for use in uses] == sorted((abs(use["weight"]) for use in uses), reverse=True)
        assert any(abs(use["in_context"] - use["weight"]) > 0.01 * abs(use["weight"]) for use in uses)


def test_a_weight_of_nothing_stays_nothing():
    made = inspector("gated")
    embedding = made.classifier.model.ade.embedding
    token = made.classifier.tokenizer.token_to_id("w3")
    with torch.no_grad():
        embedding.weights[embedding.offsets[token]] = 0
    lightest = made.read(TEXT)["tokens"][0]["anchors"][-1]
    assert lightest["weight"] == lightest["in_context"] == 0
    (expected,) = inspect_in_context(made.classifier, ["w3"], TEXT)
    assert expected.anchors[-1].in_context == 0


@pytest.mark.parametrize(("attend", "sat"), [("tokens", True), ("anchors", True), ("gated", False)])
def test_where_nothing_gates_the_weights_stay(attend, sat):
    reading = inspector(attend, sat=sat).read(TEXT)
    assert all(use["weight"] == use["in_context"] for token in reading["tokens"] for use in token["anchors"])
    assert (reading["attention"] is None) == (not sat)


def test_another_context_other_weights():
    made = inspector("gated")
    one, two = made.read("w3 w1")["tokens"][0]["anchors"], made.read("w3 w9 w9")["tokens"][0]["anchors"]
    assert [use["weight"] for use in one] == [use["weight"] for use in two]
    assert [use["in_context"] for use in one] != pytest.approx([use["in_context"] for use in two], rel=1e-3)


@pytest.mark.parametrize("attend", ["gated", "tokens", "anchors"])
def test_of_a_long_text_the_first_window_is_shown(attend):
    """Tokens and attention are those of the first `max_tokens` tokens by themselves, the label is the whole text's."""
    made = inspector(attend, max_tokens=4)
    long, first = made.read(TEXT), made.read(TEXT.rsplit(" ", 1)[0])
    assert (long["truncated"], first["truncated"]) == (True, False)
    assert len(long["tokens"]) == 4
    assert long["tokens"] == first["tokens"]
    assert long["attention"] == first["attention"]
    assert list(long["probabilities"].values()) == pytest.approx(made.classifier.predict_proba(TEXT).tolist())
    assert long["probabilities"] != first["probabilities"]


def test_a_word_after_the_first_window_is_refused():
    made = inspector("gated", max_tokens=4)
    with pytest.raises(InputError, match="after the first 4 tokens"):
        inspect_in_context(made.classifier, ["w5"], TEXT)


def test_a_text_without_tokens():
    made = inspector("gated", max_tokens=4)
    empty = made.read("")
    assert not empty["truncated"]
    assert [(token["token"], token["start"], token["end"], token["share"]) for token in empty["tokens"]] == [
        ("", 0, 0, 1)
    ]
    assert empty["attention"] == [[1.0]]
    assert list(empty["probabilities"].values()) == pytest.approx(made.classifier.predict_proba("").tolist())
    with pytest.raises(InputError, match="surrogate"):
        made.read("w3 \ud800")


@pytest.mark.parametrize("packed", [False, True])
def test_about_the_model(packed):
    made = inspector("gated", packed)
    about = made.about()
    assert json.loads(json.dumps(about, allow_nan=False)) == about
    book = codebook_of(made.classifier)
    assert about["labels"] == ["label 0", "label 1", "label 2"]
    assert (about["vocabulary"], about["dim"], about["attend"]) == (book.vocabulary, 32, "gated")
    assert len(about["anchors"]) == len(book.anchors)
    assert about == inspector("gated", packed).about()
    places = {(anchor["x"], anchor["y"]) for anchor in about["anchors"]}
    assert len(places) == len(about["anchors"])
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in places)


def test_bytes_are_those_of_the_file(tmp_path):
    for packed in (False, True):
        made = inspector("gated", packed)
        made.classifier.save(tmp_path / str(packed))
        stored = (tmp_path / str(packed) / "model.safetensors").stat().st_size
        assert 0 < stored - made.about()["bytes"] < 3000  # the header


def test_words_of_an_anchor_are_the_nearest_of_all_blocks():
    names = ["".join(letters) for letters in product("abcdefghijklmnopqrstu", repeat=3)]  # 9,261: more than one block
    plain = ragged_codebook([2] * (len(names) + 2), dim=8)
    book = Codebook.from_pairs(plain.anchors, plain.indices, plain.weights, plain.counts, word_tokenizer(names))
    rows = torch.nn.functional.normalize(book.rows()[2:], dim=1)
    found = nearest_words(book, torch.arange(12), 5)
    for anchor, near in zip(book.anchors, found, strict=True):
        best = (rows @ anchor).sort(descending=True)
        assert [float(rows[names.index(word)] @ anchor) for word in near] == pytest.approx(best.values[:5].tolist())
    assert {names.index(word) > 8192 for near in found for word in near} == {True, False}
