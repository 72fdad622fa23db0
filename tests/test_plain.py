"""The method in plain numpy gives what was frozen; what it says of tokens and elements adds up."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ade.folder import Saved
from ade.plain import Lexicon, Model, Pairs, lexicon_scores, sinusoidal, softmax
from ade.trained_model import unit
from tests.frozen.cases import CASES, TEXTS, WORDS
from tests.frozen.models import EXPLAINED, write
from tests.models import oracle, random_model
from tests.test_frozen import arrays, assert_near, own  # noqa: F401 - a fixture

IDS = np.array([3, 1, 5, 5, 0, 2])


def ids_of(text: str) -> np.ndarray:
    return np.array([WORDS.index(word) if word in WORDS else 1 for word in text.split()])


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_it_gives_what_is_frozen(case, arrays, tmp_path):  # noqa: F811
    write(case, tmp_path / "model")
    model, frozen = oracle(Saved.read(tmp_path / "model")), own(arrays, case.name)
    if case.task == "vectors":
        assert_near(unit(np.stack([model.scores(ids_of(text)) for text in TEXTS])), frozen["vectors"])
        return
    if case.task == "tags":
        assert_near(model.token_scores(ids_of(TEXTS[0])), frozen["token_scores"])
        return
    assert_near(np.stack([model.scores(ids_of(text)) for text in TEXTS]), frozen["scores"])
    assert_near(np.stack([model.pooled(ids_of(text)) for text in TEXTS]), frozen["pooled"])
    for i in EXPLAINED:
        assert_near(model.contributions(ids_of(TEXTS[i])), frozen[f"word_scores_{i}"])


@pytest.mark.parametrize("attend", ["tokens", "anchors"])
@pytest.mark.parametrize("pooling", ["attention", "mean"])
def test_contributions_the_bias_and_the_lexicon_add_up_to_the_scores(attend, pooling):
    saved = random_model(lexicon=True, attend=attend, pooling=pooling, mean=3.5, deviation=1.5)
    model = oracle(saved)
    bias = model.weights["head.bias"] * 1.5 + 3.5
    without = replace(model, lexicon=None).scores(IDS)
    np.testing.assert_allclose(model.contributions(IDS).sum(0) + bias, without, rtol=1e-5)
    np.testing.assert_allclose(without + lexicon_scores(model.lexicon, IDS), model.scores(IDS), rtol=1e-6)
    assert np.abs(model.scores(IDS) - without).max() > 0.01


@pytest.mark.parametrize("dim", [1, 7, 8, 64])
def test_sines_and_cosines_of_falling_frequencies_side_by_side(dim):
    places = np.array([0, 1, 5, 499])
    for row, place in zip(sinusoidal(places, dim), places, strict=True):
        angles = [place / 10_000 ** (2 * (i // 2) / dim) for i in range(dim)]
        expected = [math.cos(angle) if i % 2 else math.sin(angle) for i, angle in enumerate(angles)]
        np.testing.assert_allclose(row, expected, atol=1e-6)


def test_a_model_without_other_settings_reads_its_head_as_it_is():
    table = Pairs(np.eye(4), np.array([0, 1]), np.array([1.0, 2]), np.array([1, 1]))
    weights = {"norm.weight": np.ones(4), "norm.bias": np.zeros(4), "pooler.weight": np.ones((1, 4))}
    weights |= {"pooler.bias": np.zeros(1), "head.weight": np.ones((2, 4)), "head.bias": np.zeros(2)}
    model = Model(table, weights, heads=1)
    np.testing.assert_allclose(model.scores(np.array([0, 1])), model.pooled(np.array([0, 1])).sum() * np.ones(2))
    np.testing.assert_allclose(softmax(np.array([1e4, 1e4, 0])), [0.5, 0.5, 0])


def test_a_lexicon_adds_up_its_distinct_entries_over_their_length():
    """Of 5 tokens, token 2 and the bigram 2, 3 are entries; 2 stands there twice."""
    lexicon = Lexicon(
        5, np.array([2, 5 * 3 + 3, 5 * 3 + 4]), np.array([3.0, 4.0, 9.0]), np.eye(3), np.array([1.0, 2, 3])
    )
    np.testing.assert_allclose(lexicon_scores(lexicon, np.array([2, 3, 0, 2])), [1.2, 2.2, 3])
    np.testing.assert_allclose(lexicon_scores(lexicon, np.array([0, 1])), [1, 2, 3])


def test_keys_of_bigrams_of_a_large_vocabulary_do_not_overflow():
    lexicon = Lexicon(100_000, np.array([100_000 * 70_001 + 5]), np.ones(1), np.ones((1, 2)), np.zeros(2))
    assert lexicon_scores(lexicon, np.array([70_000, 5], np.int32)).tolist() == [1, 1]


def test_an_anchor_is_normalised_before_it_is_scaled():
    """Otherwise LayerNorm would forget how much of an anchor a token has."""
    table = Pairs(np.eye(4)[:2] * 3, np.array([0, 0]), np.array([0.5, 2.0]), np.array([1, 1]))
    weights = {"norm.weight": np.ones(4), "norm.bias": np.zeros(4)}
    x, word = Model(table, weights, heads=1, attend="anchors", positions="none").elements(np.array([0, 1]))
    np.testing.assert_allclose(x[1], 4 * x[0])
    assert word.tolist() == [0, 1]


def test_the_code_of_the_page_about_it_runs(capsys):
    page = (Path(__file__).parent.parent / "docs" / "plain.md").read_text("utf8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    _, scores, summed = capsys.readouterr().out.splitlines()
    assert scores == summed
    assert {*re.findall(r"`(?:Model|Pairs)\.(\w+)`", page)} <= {*dir(Model), *dir(Pairs)}
