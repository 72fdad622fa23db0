"""The lexicon: keys, scores and storage, against the definition, entry by entry."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ade import lexicon as module
from ade.data.tokens import Ragged
from ade.errors import InputError
from ade.lexicon import Lexicon, entries_within, frequent_keys, key_end, keys_of, read_lexicon
from tests.models import random_lexicon

VOCABULARY = 13
TEXTS = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12), min_size=1, max_size=6)


def slow_scores(lexicon: Lexicon, text: list[int]) -> np.ndarray:
    """The definition: distinct entries, divided by the norm of their inverse document frequencies."""
    place = {int(key): i for i, key in enumerate(lexicon.keys)}
    keys = {*text, *(VOCABULARY * (first + 1) + second for first, second in pairwise(text))}
    entries = [place[key] for key in keys if key in place]
    norm = np.sqrt(sum(float(lexicon.idf[i]) ** 2 for i in entries))
    total = sum((lexicon.scores[i].astype(float) for i in entries), np.zeros(len(lexicon.bias)))
    return lexicon.bias + (total / norm if entries else 0)


@given(TEXTS, st.integers(1, 5))
def test_scores_are_those_of_the_definition(texts, labels):
    lexicon = random_lexicon(VOCABULARY, labels)
    expected = np.stack([slow_scores(lexicon, text) for text in texts])
    np.testing.assert_allclose(lexicon.added(Ragged.of(texts)), expected, rtol=1e-4, atol=1e-5)


@given(TEXTS)
def test_the_contributions_of_entries_where_they_stand_add_up_to_the_scores(texts):
    lexicon = random_lexicon(VOCABULARY, 3)
    for text in texts:
        found = lexicon.contributions(np.array(text, np.int32))
        total = sum((each for _, _, each in found), np.zeros(3)) + lexicon.bias
        np.testing.assert_allclose(total, slow_scores(lexicon, text), rtol=1e-4, atol=1e-5)
        spelled = [{tuple(text[at : at + length]) for at in places} for length, places, _ in found]
        assert all(len(each) == 1 for each in spelled)  # an entry is the same wherever it stands
        at = {(length, place) for length, places, _ in found for place in places}
        keys = [(1, i, key) for i, key in enumerate(text)]
        keys += [(2, i, VOCABULARY * (a + 1) + b) for i, (a, b) in enumerate(pairwise(text))]
        assert at == {(length, i) for length, i, key in keys if key in lexicon.keys}


def test_keys_are_of_tokens_then_of_neighbours_of_one_text():
    keys, text = keys_of(Ragged.of([[3, 0], [2], [1, 1, 0]]), 4)
    assert keys.tolist() == [3, 0, 2, 1, 1, 0, 16, 9, 8]
    assert text.tolist() == [0, 0, 1, 2, 2, 2, 0, 2, 2]
    assert key_end(4) == 4 * (3 + 1) + 3 + 1


@given(TEXTS, st.integers(1, 9))
def test_frequent_keys_are_those_of_several_texts_however_often_each_has_them(texts, limit):
    seen = [{*text, *(VOCABULARY * (a + 1) + b for a, b in pairwise(text))} for text in texts]
    counts = {key: sum(key in one for one in seen) for key in sorted(set().union(*seen))}
    frequent = sorted((key for key in counts if counts[key] >= 2), key=lambda key: (-counts[key], key))[:limit]
    for chunk in (2, 100):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "CHUNK", chunk)
            keys, found = frequent_keys(Ragged.of(texts), VOCABULARY, limit)
        assert keys.tolist() == sorted(frequent)
        assert found.tolist() == [counts[key] for key in sorted(frequent)]


def test_entries_are_distinct_and_in_the_order_of_the_texts():
    lexicon = Lexicon(4, np.array([1, 9, 16]), np.ones(3), np.eye(3), np.zeros(3))
    entry, text = lexicon.find(Ragged.of([[3, 0, 3, 0], [2], [1, 1, 1]]))
    assert (entry.tolist(), text.tolist()) == ([2, 0, 1], [0, 2, 2])
    chosen = lexicon.select(np.array([0, 2]))
    assert (len(chosen), chosen.keys.tolist(), chosen.scores.tolist()) == (2, [1, 16], [[1, 0, 0], [0, 0, 1]])
    empty = lexicon.select(np.empty(0, np.int64))
    assert empty.added(Ragged.of([[1, 2]])).tolist() == [[0, 0, 0]]
    assert empty.contributions(np.array([1, 2])) == []


def test_what_is_stored_is_read_back():
    lexicon = random_lexicon(VOCABULARY, 4)
    sizes, arrays = lexicon.stored()
    again = read_lexicon(sizes, arrays)
    assert again.vocabulary == VOCABULARY
    for name in ("keys", "idf", "scores", "bias"):
        np.testing.assert_allclose(getattr(again, name), getattr(lexicon, name), rtol=1e-6)
    assert lexicon.nbytes == sum(array.nbytes for array in arrays.values())
    for name, array in again.stored()[1].items():
        assert np.array_equal(array, arrays[name])


@given(st.integers(1, 3000), st.integers(1, 90), st.integers(60, 70_000), st.floats(0, 1.2))
def test_as_many_entries_are_kept_as_fit(entries, labels, vocabulary, share):
    def nbytes(count: int) -> int:
        keys, ones = np.arange(count), np.ones(count, np.float32)
        zeros = np.zeros((count, labels), np.float32)
        return Lexicon(vocabulary, keys, ones, zeros, np.zeros(labels, np.float32)).nbytes

    limit = int(share * nbytes(entries))
    kept = entries_within(limit, entries, vocabulary, labels)
    assert kept == 0 or nbytes(kept) <= limit
    assert kept == entries or nbytes(kept + 1) > limit


def test_damage_is_refused():
    sizes, arrays = random_lexicon(VOCABULARY, 3).stored()
    for name in ("keys_high", "bias", "scores", "scales"):
        with pytest.raises(InputError, match=name):
            read_lexicon(sizes, {**arrays, name: arrays[name][:-1]})
    for lie in ({"entries": sizes["entries"] - 1}, {"labels": 9}, {"labels": 0}, {"vocabulary": 2}):
        with pytest.raises(InputError):
            read_lexicon({**sizes, **lie}, arrays)
    for name in sizes:
        with pytest.raises(InputError, match="sizes of its lexicon are not valid"):
            read_lexicon({other: size for other, size in sizes.items() if other != name}, arrays)
    with pytest.raises(InputError, match="damaged"):
        read_lexicon(sizes, {**arrays, "keys_high": arrays["keys_high"] ^ np.uint8(255)})
