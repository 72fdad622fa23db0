"""Contributions add up to the model's own scores: in every mode, with and without a lexicon; of long texts."""

import itertools
import json
import re
from dataclasses import replace
from functools import cache
from html import unescape

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.errors import InputError
from ade.explanation import Tokens, explain_text
from ade.lexicon import Lexicon
from ade.trained_model import Classifier
from tests.conftest import ragged_codebook
from tests.models import oracle, random_model

WORDS = [f"w{i}" for i in range(16)]
TEXT = "w3 w1 w4 w1 w5"


@cache
def model_of(labels: int = 3, problem: str = SINGLE, lexicon: bool = True, **config) -> Classifier:
    more = {"mean": 3.0, "deviation": 2.5} if problem == REGRESSION else {}
    return Classifier(random_model(None, labels, lexicon, problem=problem, **config, **more))


@cache
def with_ngrams() -> Classifier:
    """A model with a lexicon that has half of all tokens and of all bigrams."""
    saved = model_of().saved
    draw, vocabulary = np.random.default_rng(0), saved.table.vocabulary
    keys = np.sort(draw.permutation(vocabulary * (vocabulary + 1))[: vocabulary * (vocabulary + 1) // 2])
    idf, scores = draw.uniform(1, 9, len(keys)).astype(np.float32), draw.standard_normal((len(keys), 3))
    lexicon = Lexicon(vocabulary, keys, idf, scores.astype(np.float32), np.ones(3, np.float32))
    return Classifier(replace(saved, lexicon=lexicon))


def adds_up(explanation, scores: np.ndarray) -> None:
    assert explanation.scores == pytest.approx(scores, abs=1e-4)
    totals = sum(word.total for word in explanation.words) + explanation.bias + explanation.lexicon_bias
    assert totals == pytest.approx(scores, abs=1e-4)
    assert sum(word.pooling_weight for word in explanation.words) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("lexicon", [True, False])
@pytest.mark.parametrize("attend", ["tokens", "anchors"])
@given(
    words=st.lists(st.sampled_from([*WORDS, "unknown", "!"]), max_size=20),
    labels=st.sampled_from([2, 5, 20]),
    max_tokens=st.sampled_from([4, 512]),
    shape=st.sampled_from([{}, {"pooling": "mean"}, {"sat": False}, {"positions": "none"}]),
)
def test_contributions_add_up_to_the_scores(attend, lexicon, words, labels, max_tokens, shape):
    model = model_of(labels=labels, attend=attend, lexicon=lexicon, max_tokens=max_tokens, **shape)
    text = " ".join(words)
    explanation = model.explain(text)
    adds_up(explanation, model.scores([text])[0])
    shown = words if lexicon else words[:max_tokens]  # attention reads the first tokens, the lexicon all of them
    assert [word.text for word in explanation.words] == (shown or [""])
    assert bool(explanation.ngrams) <= lexicon
    ids = np.array(model.tokenizer.encode(text).ids or [0])[:max_tokens]
    pooled = [word.pooled for word in explanation.words[: len(ids)]]  # a word is a token here
    assert np.array(pooled) == pytest.approx(oracle(model.saved).contributions(ids), abs=1e-4)


@pytest.mark.parametrize(("problem", "labels"), [(MULTI, 4), (REGRESSION, 1), (SINGLE, 3)])
def test_every_kind_of_problem(problem, labels):
    model = model_of(problem=problem, labels=labels, max_tokens=4)
    explanation = model.explain(TEXT)
    adds_up(explanation, model.scores([TEXT])[0])
    if problem == REGRESSION:
        assert explanation.label == pytest.approx(model.predict(TEXT).label, abs=1e-4)
        assert explanation.probabilities == {}
    else:
        assert explanation.label == model.predict(TEXT).label
        assert list(explanation.probabilities) == list(model.labels)
        expected = model.predict_proba(TEXT).tolist()
        assert list(explanation.probabilities.values()) == pytest.approx(expected, abs=1e-5)
    plain = explanation.as_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert explanation.index() == int(explanation.scores.argmax())
    assert [explanation.index(label) for label in model.labels] == list(range(labels))


@given(words=st.lists(st.sampled_from(WORDS), max_size=12), labels=st.sampled_from([2, 5]))
def test_a_margin_is_the_difference_of_two_scores_and_the_sum_of_its_words(words, labels):
    model = model_of(labels=labels)
    explanation = model.explain(" ".join(words))
    first, second = model.predict(" ".join(words), top_k=2).label
    margin = explanation.margin()
    assert (margin.label, margin.against) == (first, second)
    ratio = explanation.probabilities[first] / explanation.probabilities[second]
    assert margin.value == pytest.approx(np.log(ratio), abs=1e-4)
    assert sum(adds for _, adds in margin.words) + margin.rest == pytest.approx(margin.value)
    assert [word for word, _ in sorted(margin.words)] == sorted(words)
    assert [abs(adds) for _, adds in margin.words] == sorted((abs(adds) for _, adds in margin.words), reverse=True)
    back = explanation.margin(second, first)
    assert (back.value, back.rest) == pytest.approx((-margin.value, -margin.rest))


@pytest.mark.parametrize(("problem", "labels"), [(MULTI, 4), (REGRESSION, 1)])
def test_scores_that_do_not_compete_are_explained_by_themselves(problem, labels):
    explanation = model_of(problem=problem, labels=labels).explain(TEXT)
    margin = explanation.margin()
    assert (margin.against, margin.value) == (None, pytest.approx(explanation.scores.max()))
    assert repr(explanation).startswith(f"Explanation(score of {margin.label}: {margin.value:+.2f}; ")


def test_a_notebook_shows_the_text_with_what_each_word_adds():
    text = "w3 <b> w1 & w5"
    explanation = model_of().explain(text)
    page = explanation._repr_html_()
    shown = unescape(re.sub(r"<[^>]+>", "", page.split("pre-wrap")[1].split(">", 1)[1]))
    assert shown == text
    i, j = explanation.places()
    adds = [word.total[i] - word.total[j] for word in explanation.words]
    assert re.findall(r"title='(.*?)'", page) == [f"{each:+.3f}" for each in adds]


def test_ngrams_are_named_counted_once_and_divided_among_their_words():
    model, text = with_ngrams(), "w3 w1 w4 w3 w1 w9"
    lexicon, ids = model.saved.lexicon, model.tokenizer.encode(text).ids
    explanation = model.explain(text)
    ngrams = {ngram.text: ngram for ngram in explanation.ngrams}
    names = dict(zip(ids, text.split(), strict=True))
    keys = {int(key): i for i, key in enumerate(lexicon.keys)}
    v = lexicon.vocabulary
    expected = {names[i]: keys[i] for i in ids if i in keys}
    expected |= {
        f"{names[a]} {names[b]}": keys[v * (a + 1) + b] for a, b in itertools.pairwise(ids) if v * (a + 1) + b in keys
    }
    assert len(expected) > 2
    assert set(ngrams) == set(expected)
    norm = np.sqrt((lexicon.idf[list(expected.values())] ** 2).sum())
    for name, entry in expected.items():
        assert ngrams[name].contributions == pytest.approx(lexicon.scores[entry] / norm, abs=1e-5)
        assert [text[start:end] for start, end in ngrams[name].spans] == [name] * text.count(name)

    parts = sum(word.lexicon for word in explanation.words)
    assert parts == pytest.approx(sum(ngram.contributions for ngram in explanation.ngrams), abs=1e-9)
    spans = [span for ngram in explanation.ngrams for span in ngram.spans]
    for word in explanation.words:
        inside = any(start <= word.start and word.end <= end for start, end in spans)
        assert inside == bool(np.abs(word.lexicon).max() > 0)


def test_texts_without_words_and_what_is_refused():
    model = model_of()
    assert [(word.text, word.start, word.end) for word in model.explain("").words] == [("", 0, 0)]
    with pytest.raises(InputError, match="no label 'sport'; the labels are label 0, label 1, label 2"):
        model.explain("w1").index("sport")
    with pytest.raises(InputError, match="text 0 "):
        model.explain(None)


def test_words_of_several_pieces_and_ngrams_that_are_parts_of_words():
    tokens = Tokens(np.arange(5), ["[CLS]", "▁wad", "ing", "▁", "bird"], [(0, 0), (0, 3), (3, 6), (6, 7), (7, 11)])
    keys = np.array([1, 2, 5 * (0 + 1) + 1, 5 * (2 + 1) + 3, 5 * (3 + 1) + 4])
    lexicon = Lexicon(5, keys, np.ones(5, np.float32), np.ones((5, 2), np.float32), np.zeros(2, np.float32))
    saved = replace(random_model(ragged_codebook([1] * 5, dim=16).table, labels=2), lexicon=lexicon)
    scores = np.random.default_rng(0).standard_normal((5, 2))
    explanation = explain_text("wading bird", tokens, np.full(5, 0.2), scores, saved)
    words = [(word.text, word.start, word.end, word.tokens) for word in explanation.words]
    assert words == [("[CLS]", 0, 0, (0,)), ("wading", 0, 6, (1, 2)), ("bird", 7, 11, (3, 4))]
    own = 0.2 * (scores - saved.layers["head.bias"])
    assert explanation.words[1].pooled == pytest.approx(own[1:3].sum(0))
    assert explanation.words[1].pooling_weight == pytest.approx(0.4)
    assert [ngram.text for ngram in explanation.ngrams] == ["[CLS] wad", "wad…", "…ing", "…ing", "bird"]
