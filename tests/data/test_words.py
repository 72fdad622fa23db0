"""Tokens are put together to words: with pieces, punctuation, spaces of their own, and scripts without spaces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ade.data.words import group_pieces


def words_of(text: str, *spans: tuple[int, int]) -> list[str]:
    return [text[word.start : word.end] for word in group_pieces(text, ["x"] * len(spans), spans)]


@pytest.mark.parametrize(
    ("text", "borders", "words"),
    [
        ("unbelievable bank", (0, 2, 9, 12, 17), ["unbelievable", "bank"]),
        ("bank, shore", (0, 4, 5, 11), ["bank", ",", "shore"]),
        ("don't 'stop'", (0, 3, 4, 5, 7, 11, 12), ["don't", "'", "stop", "'"]),
        ("well-known", (0, 4, 5, 10), ["well", "-", "known"]),
        ("中国人", (0, 1, 2, 3), ["中", "国", "人"]),
        ("हिन्दी", (0, 2, 3, 6), ["हिन्दी"]),  # a vowel sign and a virama at a border
        ("كتاب جديد", (0, 2, 4, 9), ["كتاب", "جديد"]),
        ("covid19", (0, 5, 7), ["covid19"]),
    ],
)
def test_a_border_inside_a_word_does_not_split_it(text, borders, words):
    spans = list(itertools.pairwise(borders))
    assert words_of(text, *spans) == words


def test_bytes_of_one_character_are_one_word():
    assert words_of("a 🚀", (0, 1), (2, 3), (2, 3), (2, 3)) == ["a", "🚀"]
    assert words_of("👩‍🚀", (0, 1), (1, 2), (2, 3)) == ["👩‍🚀"]


def test_a_space_belongs_to_the_word_after_it():
    text = "a !"
    found = group_pieces(text, ["▁a", "▁", "!"], [(0, 1), (1, 2), (2, 3)])
    assert [(word.tokens, text[word.start : word.end]) for word in found] == [([0], "a"), ([1, 2], "!")]
    found = group_pieces("a ", ["▁a", "▁"], [(0, 1), (1, 2)])
    assert [word.tokens for word in found] == [[0, 1]]
    (only,) = group_pieces(" ", ["▁"], [(0, 1)])
    assert (only.tokens, only.start, only.end) == ([0], 0, 0)


def test_special_tokens_are_words_of_their_own():
    found = group_pieces("bank", ["[CLS]", "ba", "##nk", "[SEP]"], [(0, 0), (0, 2), (2, 4), (0, 0)])
    assert [(word.tokens, word.start, word.end) for word in found] == [([0], 0, 0), ([1, 2], 0, 4), ([3], 0, 0)]


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["the bank of the river and the bankers"], trainer)
    return tokenizer


@given(text=st.text(max_size=40))
def test_every_token_is_in_one_word_and_words_follow_each_other(byte_level, text):
    encoding = byte_level.encode(text)
    found = group_pieces(text, encoding.tokens, encoding.offsets)
    assert sorted(token for word in found for token in word.tokens) == list(range(len(encoding.ids)))
    real = [word for word in found if word.end > word.start]
    assert all(one.end <= two.start for one, two in itertools.pairwise(real))
    assert all(text[word.start : word.end] == text[word.start : word.end].strip() for word in real)
