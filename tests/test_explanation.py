"""Contributions add up to the model's own scores: in every mode, with and without a lexicon, in windows."""

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ade.classifier import Classifier, predict_logits
from ade.data.batches import Encoded
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.errors import InputError
from ade.explanation import TokenContributions, Tokens, explain_text
from ade.lexicon import Lexicon
from ade.runtime.runtime import Runtime
from ade.training.lexicon_fit import pack_lexicon
from tests.conftest import ragged_codebook
from tests.runtime.test_projection import shaken

COUNTS = [1, 3, 2, 4] * 5
WORDS = [f"w{i}" for i in range(18)]


def lexicon_of(labels: int, vocabulary: int) -> Lexicon:
    draw = np.random.default_rng(0)
    pairs = vocabulary * (draw.integers(0, vocabulary, 120) + 1) + draw.integers(0, vocabulary, 120)
    keys = np.unique(np.concatenate([draw.permutation(vocabulary)[:12], pairs]))
    idf = draw.uniform(1, 9, len(keys)).astype(np.float32)
    scores = draw.standard_normal((len(keys), labels)).astype(np.float32)
    return Lexicon(vocabulary, keys, idf, scores, draw.standard_normal(labels).astype(np.float32))


def classifier_of(labels: int = 3, problem: str = SINGLE, lexicon: bool = True, **shape) -> Classifier:
    book = ragged_codebook(COUNTS, dim=32)
    model = shaken(book, labels, **{"heads": 2, **shape})
    model.config.problem_type = problem
    if problem == REGRESSION:
        model.config.scale = [3.0, 2.5]
    if lexicon:
        made = lexicon_of(labels, len(COUNTS))
        model.attach_lexicon(*pack_lexicon(made, 1.0, np.full(len(made), 3), problem))
    return Classifier(model, book.tokenizer)


def runtime_of(classifier: Classifier, folder) -> Runtime:
    classifier.save(folder, overwrite=True)
    return Runtime.load(folder)


def forward(classifier: Classifier, text: str) -> np.ndarray:
    """Scores by the forward pass of training, which knows nothing of contributions."""
    ids = torch.tensor(classifier.tokenizer.encode(text).ids or [0], dtype=torch.int32)
    return predict_logits(classifier.model, Encoded(ids, np.array([0, len(ids)])))[0]


def adds_up(explanation, scores: np.ndarray) -> None:
    assert explanation.scores == pytest.approx(scores, abs=1e-4)
    for i, name in enumerate(explanation.names):
        found = explanation.contributions(name)
        rest = found.bias + found.lexicon_bias
        assert sum(found.words) + sum(found.ngrams) + rest == pytest.approx(scores[i], abs=1e-4)
        assert sum(found.totals) + rest == pytest.approx(scores[i], abs=1e-4)
        assert found.score == pytest.approx(scores[i], abs=1e-4)
    assert sum(word.pooling_weight for word in explanation.words) == pytest.approx(1, abs=1e-5)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Classifier and Runtime of the same model, made when first asked for."""
    made = {}

    def pair(**shape):
        key = tuple(sorted(shape.items()))
        if key not in made:
            classifier = classifier_of(**shape)
            made[key] = classifier, runtime_of(classifier, tmp_path_factory.mktemp("model") / "model")
        return made[key]

    return pair


@pytest.mark.parametrize("lexicon", [True, False])
@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
@given(
    words=st.lists(st.sampled_from([*WORDS, "unknown", "!"]), max_size=20),
    labels=st.sampled_from([2, 5, 20]),
    max_tokens=st.sampled_from([4, 512]),
    shape=st.sampled_from([{}, {"pooling": "mean"}, {"sat": False}, {"positions": "each"}]),
)
def test_contributions_add_up_and_are_the_same_by_both_ways(pairs, attend, lexicon, words, labels, max_tokens, shape):
    classifier, runtime = pairs(labels=labels, attend=attend, lexicon=lexicon, max_tokens=max_tokens, **shape)
    text = " ".join(words)
    one, two = classifier.explain(text), runtime.explain(text)
    scores = forward(classifier, text)
    adds_up(one, scores)
    adds_up(two, scores)
    assert [word.text for word in one.words] == [word.text for word in two.words] == (words or [""])
    for first, second in zip((*one.words, *one.ngrams), (*two.words, *two.ngrams), strict=True):
        assert first.text == second.text
        for name in ("pooled", "lexicon", "contributions"):
            if hasattr(first, name):
                assert getattr(first, name) == pytest.approx(getattr(second, name), abs=1e-4)
    assert bool(one.ngrams) <= lexicon


@pytest.mark.parametrize(("problem", "labels"), [(MULTI, 4), (REGRESSION, 1), (SINGLE, 3)])
def test_every_kind_of_problem(pairs, problem, labels):
    text = "w3 w1 w4 w1 w5"
    for predictor in pairs(problem=problem, labels=labels, max_tokens=4):
        found = predictor.explain(text)
        adds_up(found, predictor.predict_scores([text])[0])
        if problem == REGRESSION:
            assert found.label == pytest.approx(predictor.predict(text), abs=1e-4)
            assert found.probabilities == {}
        else:
            assert found.label == predictor.predict(text)
            assert list(found.probabilities) == list(predictor.names)
            assert list(found.probabilities.values()) == pytest.approx(predictor.predict_proba(text).tolist(), abs=1e-5)
        plain = found.as_dict()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        best = predictor.names[int(found.scores.argmax())]
        assert found.contributions().label == best


def test_a_contribution_is_what_the_score_loses_without_its_term():
    """By hand: pooling weight, classifier row and token vector, one token at a time."""
    classifier = classifier_of(attend="gated", lexicon=False)
    model, text = classifier.model, "w3 w1 w4 w1 w5"
    ids = torch.tensor([classifier.tokenizer.encode(text).ids])
    with torch.no_grad():
        states = model.ade.states(ids, torch.ones_like(ids, dtype=torch.bool))[0][0]
        weights = model.pooler(states)[:, 0].softmax(0)
        rows = model.classifier.weight.detach()
    found = classifier.explain(text)
    for t, word in enumerate(found.words):
        for i, row in enumerate(rows):
            assert word.pooled[i] == pytest.approx(float(weights[t] * (row @ states[t])), abs=1e-5)
    assert found.bias == pytest.approx(model.classifier.bias.detach().numpy(), abs=1e-6)


def test_ngrams_are_named_and_counted_once():
    classifier = classifier_of(attend="tokens")
    lexicon = classifier.ngram_scores()
    text = "w3 w1 w4 w3 w1"
    ids = classifier.tokenizer.encode(text).ids
    found = {ngram.text: ngram for ngram in classifier.explain(text).ngrams}
    names = dict(zip(ids, text.split(), strict=True))
    keys = {int(key): i for i, key in enumerate(lexicon.keys)}
    v = lexicon.vocabulary
    expected = {names[i]: keys[i] for i in ids if i in keys}
    expected |= {
        f"{names[a]} {names[b]}": keys[v * (a + 1) + b] for a, b in itertools.pairwise(ids) if v * (a + 1) + b in keys
    }
    assert set(found) == set(expected)
    norm = np.sqrt((lexicon.idf[list(expected.values())] ** 2).sum())
    for name, entry in expected.items():
        assert found[name].contributions == pytest.approx(lexicon.scores[entry] / norm, abs=1e-5)
        assert [text[start:end] for start, end in found[name].spans] == [name] * text.count(name)


def test_an_ngram_is_divided_among_its_words():
    classifier = classifier_of(attend="tokens")
    found = classifier.explain("w3 w1 w4 w3 w1 w9")
    parts = sum(word.lexicon for word in found.words)
    assert parts == pytest.approx(sum(ngram.contributions for ngram in found.ngrams), abs=1e-9)
    assert np.abs(parts).max() > 0.01
    spans = [span for ngram in found.ngrams for span in ngram.spans]
    for word in found.words:
        inside = any(start <= word.start and word.end <= end for start, end in spans)
        assert inside == bool(np.abs(word.lexicon).max() > 0)


def test_the_strongest_ngrams_come_first_whatever_their_sign():
    found = classifier_of(attend="tokens").explain("w3 w1 w4 w3 w1 w9 w2 w7")
    values = [value for _, value in found.strongest_ngrams("label 1", 100)]
    assert sorted(values) == sorted(found.contributions("label 1").ngrams)
    assert [abs(value) for value in values] == sorted(map(abs, values), reverse=True)
    assert min(values) < 0 < max(values)
    assert len(found.strongest_ngrams("label 1", 2)) == 2


def test_texts_in_a_list_and_what_is_refused():
    classifier = classifier_of(attend="tokens")
    one, two = classifier.explain(["w1 w2", ""])
    assert (one.text, [word.text for word in one.words]) == ("w1 w2", ["w1", "w2"])
    assert [(word.text, word.start, word.end) for word in two.words] == [("", 0, 0)]
    assert classifier.explain([]) == []
    with pytest.raises(InputError, match="no label 'sport'; the labels are label 0, label 1, label 2"):
        one.contributions("sport")
    with pytest.raises(InputError, match="text 7 "):
        classifier.explain([None], first=7)


def test_words_of_several_pieces_and_ngrams_that_are_parts_of_words():
    tokens = Tokens(np.arange(5), ["[CLS]", "▁wad", "ing", "▁", "bird"], [(0, 0), (0, 3), (3, 6), (6, 7), (7, 11)])
    draw = np.random.default_rng(0)
    window = TokenContributions(np.full(5, 0.2), draw.standard_normal((5, 2)), np.zeros(2))
    keys = np.array([1, 2, 5 * (0 + 1) + 1, 5 * (2 + 1) + 3, 5 * (3 + 1) + 4])
    lexicon = Lexicon(5, keys, np.ones(5, np.float32), np.ones((5, 2), np.float32), np.zeros(2, np.float32))
    found = explain_text("wading bird", tokens, [window], lexicon, ("a", "b"), SINGLE)
    assert [(word.text, word.start, word.end, word.tokens) for word in found.words] == [
        ("[CLS]", 0, 0, (0,)), ("wading", 0, 6, (1, 2)), ("bird", 7, 11, (3, 4)),
    ]  # fmt: skip
    assert found.words[1].pooled == pytest.approx(window.contributions[1:3].sum(0))
    assert found.words[1].pooling_weight == pytest.approx(0.4)
    assert [ngram.text for ngram in found.ngrams] == ["[CLS] wad", "wad…", "…ing", "…ing", "bird"]
