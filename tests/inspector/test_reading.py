"""What the page is given: the model's own predictions, weights and attention, and what every anchor adds."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ade import plain
from ade.errors import InputError
from ade.folder import nbytes_of
from ade.inspector.reading import Inspector, anchor_map, anchor_parts, attention_weights
from ade.trained_model import Classifier
from tests.models import packed_codebook, random_model

TEXT = "w3 w1 w4 w1 w5"
ATTEND = pytest.mark.parametrize("attend", ["tokens", "anchors"])


def inspector(attend: str = "tokens", packed: bool = False, **config) -> Inspector:
    table, more = (packed_codebook(), {"layer_bits": 8}) if packed else (None, {})
    return Inspector(Classifier(random_model(table, attend=attend, heads=2, **config, **more).rounded()), nearest=4)


@pytest.mark.parametrize("packed", [False, True])
@ATTEND
def test_a_reading_is_what_the_model_does(attend, packed):
    made = inspector(attend, packed)
    reading = made.read(TEXT)
    assert json.loads(json.dumps(reading, allow_nan=False)) == reading
    probabilities = dict(zip(made.classifier.labels, made.classifier.predict_proba(TEXT).tolist(), strict=True))
    assert reading["probabilities"] == pytest.approx(probabilities, abs=1e-5)
    assert reading["label"] == made.classifier.predict(TEXT).label
    assert [TEXT[token["start"] : token["end"]] for token in reading["tokens"]] == TEXT.split()
    attention = np.array(reading["attention"])
    assert attention.sum(1) == pytest.approx(np.ones(5), abs=1e-5)
    assert attention.std() > 0.01  # it does attend to something
    if attend == "tokens":
        x, _ = made.model.elements(np.array([5, 3, 6, 3, 7]))
        assert attention == pytest.approx(attention_weights(made.model, x).mean(0), abs=1e-5)

    # The scores follow from the shares and the states, so the shares are those the model pools with.
    if attend == "tokens":  # over anchors a token's state is the mean of several
        layers, states = made.classifier.saved.layers, made.model.states(np.array([5, 3, 6, 3, 7]))[0]
        shares = [token["share"] for token in reading["tokens"]]
        scores = layers["head.weight"] @ (shares @ states) + layers["head.bias"]
        assert scores == pytest.approx(made.classifier.scores([TEXT])[0], abs=1e-4)

    # What is shown of a token adds up to what the explanation says of its word.
    for token, word in zip(reading["tokens"], reading["explanation"]["words"], strict=True):
        anchors = np.sum([use["adds"] for use in token["anchors"]], axis=0)
        assert anchors + token["others"] + token["constant"] == pytest.approx(word["pooled"], abs=1e-5)
        weights = [abs(use["weight"]) for use in token["anchors"]]
        assert weights == sorted(weights, reverse=True)


def test_attention_is_what_the_layer_mixes_values_by():
    model = in_double(inspector().model)
    x, _ = model.elements(np.array([5, 3, 6, 3, 7]))
    _, _, value = np.split(plain.linear(x, "sat.projection", model.weights), 3, axis=1)
    mixed = [alpha @ v for alpha, v in zip(attention_weights(model, x), np.split(value, 2, axis=1), strict=True)]
    expected = plain.attention(x, "sat.", model.weights, model.heads)
    np.testing.assert_allclose(plain.linear(np.hstack(mixed), "sat.output", model.weights), expected, rtol=1e-10)


def in_double(model: plain.Model) -> plain.Model:
    table = model.table
    wide = plain.Pairs(table.anchors.astype(float), table.indices, table.weights.astype(float), table.counts)
    return replace(model, table=wide, weights={name: array.astype(float) for name, array in model.weights.items()})


@ATTEND
@pytest.mark.parametrize(
    "shape", [{}, {"pooling": "mean"}, {"sat": False}, {"positions": "none"}, {"mean": 3.0, "deviation": 2.5}]
)
def test_the_parts_of_a_token_add_up_to_its_contribution(attend, shape):
    model = in_double(inspector(attend, **shape).model)
    ids = np.array([5, 3, 6, 3, 7, 17])
    expected, parts = model.contributions(ids), anchor_parts(model, ids)
    assert [len(each) for each in parts.anchors] == [len(model.table.of(i)[0]) for i in ids]
    own = np.stack([each.sum(0) for each in parts.anchors])
    np.testing.assert_allclose(own + parts.others + parts.constant, expected, rtol=1e-10, atol=1e-12)
    assert np.abs(own).max() > 0.01
    takes_from_others = attend == "tokens" and shape.get("sat", True)
    assert (np.abs(parts.others).max() > 0.01) == takes_from_others


def test_what_other_tokens_add_goes_with_their_values():
    """By hand: without the value of one token, the contribution of another changes by what that one gave it."""
    model, ids = in_double(inspector().model), np.array([5, 3, 6])
    x, _ = model.elements(ids)
    width, d = x.shape[1] // model.heads, x.shape[1]
    value = x @ model.weights["sat.projection.weight"][2 * d :].T  # (L, d), without the bias
    alpha = attention_weights(model, x)
    taken = np.zeros(d)
    for h in range(model.heads):
        part = slice(h * width, (h + 1) * width)
        taken[part] = alpha[h, 0, 1] * value[1, part] + alpha[h, 0, 2] * value[2, part]
    pooling = model.pooling_weights(model.states(ids)[0])[0]
    expected = pooling * model.weights["head.weight"] @ model.weights["sat.output.weight"] @ taken
    np.testing.assert_allclose(anchor_parts(model, ids).others[0], expected, rtol=1e-10)


def test_an_anchor_of_no_weight_adds_nothing():
    model, token = in_double(inspector().model), 5
    weights = model.table.weights.copy()
    weights[model.table.counts[:token].sum()] = 0
    parts = anchor_parts(replace(model, table=replace(model.table, weights=weights)), np.array([token]))
    assert np.abs(parts.anchors[0][0]).max() == 0
    assert np.abs(parts.anchors[0][1]).max() > 0.01


def test_several_layers_show_weights_alone():
    reading = inspector(layers=2).read(TEXT)
    assert all(token["others"] is None for token in reading["tokens"])
    assert all(use["adds"] is None for token in reading["tokens"] for use in token["anchors"])
    assert np.array(reading["attention"]).sum(1) == pytest.approx(np.ones(5), abs=1e-5)


def test_words_of_a_text_with_what_they_add_to_the_margin():
    made = inspector()
    tokens = {token["token"]: token for token in made.read(TEXT)["tokens"][::-1]}  # the first of each word
    name, words = made.words_in(TEXT, ["w3", "w4", "w1"])
    first, second = made.classifier.predict(TEXT, top_k=2).label
    assert name == f"{first} over {second}"
    i, j = map(made.classifier.labels.index, (first, second))
    for word in words:
        anchors = tokens[word["word"]]["anchors"]
        uses = [(use["anchor"], use["weight"], use["adds"][i] - use["adds"][j]) for use in anchors]
        assert uses == [(use["anchor"], use["weight"], use["adds"]) for use in word["anchors"]]
    with pytest.raises(InputError, match="does not stand"):
        made.words_in(TEXT, ["w9"])
    with pytest.raises(InputError, match="after the first 4 tokens"):
        inspector(max_tokens=4).words_in(TEXT, ["w5"])


@ATTEND
def test_of_a_long_text_the_first_tokens_are_shown(attend):
    made = inspector(attend, max_tokens=4)
    long, first = made.read(TEXT), made.read(TEXT.rsplit(" ", 1)[0])
    assert (long["truncated"], first["truncated"], len(long["tokens"])) == (True, False, 4)
    for name in ("tokens", "attention", "probabilities"):
        assert long[name] == first[name]


def test_a_text_without_tokens():
    made = inspector()
    empty = made.read("")
    (token,) = empty["tokens"]
    assert (token["token"], token["start"], token["end"], token["share"]) == ("", 0, 0, 1)
    assert (empty["truncated"], empty["attention"]) == (False, [[1.0]])
    assert list(empty["probabilities"].values()) == pytest.approx(made.classifier.predict_proba("").tolist(), abs=1e-5)
    with pytest.raises(InputError, match="surrogate"):
        made.read("w3 \ud800")


@pytest.mark.parametrize("packed", [False, True])
def test_about_the_model(packed, tmp_path):
    made = inspector(packed=packed)
    about, book = made.about(), made.table.codebook
    assert json.loads(json.dumps(about, allow_nan=False)) == about == inspector(packed=packed).about()
    assert about["labels"] == ["label 0", "label 1", "label 2"]
    assert (about["vocabulary"], about["dim"], about["attend"]) == (book.vocabulary, book.dim, "tokens")
    places = {(anchor["x"], anchor["y"]) for anchor in about["anchors"]}
    assert len(places) == len(about["anchors"]) == len(book.anchors)
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in places)
    made.classifier.save(tmp_path / "model")
    stored = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert 0 < stored - about["bytes"] < 3000  # the header
    assert stored < nbytes_of(tmp_path / "model")


def test_similar_anchors_lie_together_on_the_map():
    generator = np.random.default_rng(3)
    groups = np.repeat(np.eye(3, 16), 15, 0) + 0.1 * generator.standard_normal((45, 16))
    points = anchor_map(groups)
    distance = np.linalg.norm(points[:, None] - points, axis=2) + 9 * np.eye(45)
    assert (distance.argmin(1) // 15 == np.arange(45) // 15).all()
    for anchors in (groups, np.ones((6, 4)), np.eye(2, 8)):  # equal ones or few
        points = anchor_map(anchors)
        assert points.min() >= 0
        assert points.max() <= 1
        np.testing.assert_array_equal(anchor_map(anchors.copy()), points)
