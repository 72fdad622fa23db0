"""Texts become token ids, whatever the tokenizer; what of them is unknown, and to which words they belong."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from ade.data import tokens as module
from ade.data.tags import encode_sentences
from ade.data.tokens import MAX_SHARE, Ragged, group_pieces, tokenize, unknown_ids, unknown_share
from ade.errors import InputError
from tests.conftest import FILLER, WORDS, word_tokenizer
from tests.packing.every_kind import unlimited, whole

SOME = [[5, 1, 2], [7], [4, 4, 4, 4], [9, 8]]
CHINESE = "这个手机的电池很差但是相机非常好"
KINDS = ["words", "wordpiece", "byte_level", "unigram", "no words"]
MADE = {kind: unlimited(whole(kind)) for kind in ("wordpiece", "byte_level", "unigram")}
MADE["words"] = word_tokenizer([word for words in WORDS.values() for word in words])
MADE["no words"] = unlimited(whole("unigram"))
MADE["no words"].pre_tokenizer = pre_tokenizers.Metaspace(split=False)
PIECES = st.sampled_from(
    [*FILLER, *WORDS["sport"], "unheard", "x" * 40, "it's", "e\u0301", "\u4f60\u597d", "12,5", "[SEP]"]
)
GAPS = st.sampled_from([" ", " ", " ", "  ", "\n", "\t", "   \n", "\u00a0", "\u3000", "-", ""])
TEXTS = st.lists(st.tuples(PIECES, GAPS), max_size=60).map(lambda parts: "".join(a + b for a, b in parts))


def _whole(tokenizer: Tokenizer, text: str, length: int) -> list[int]:
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.enable_truncation(length)
    return tokenizer.encode(text).ids or [0]


def test_texts_and_parts_are_those_of_the_lists():
    texts = Ragged.of(SOME)
    assert len(texts) == 4
    assert texts.lengths.tolist() == [3, 1, 4, 2]
    assert [text.tolist() for text in texts] == SOME
    assert len(Ragged.of([])) == 0
    assert [text.tolist() for text in texts.first(2)] == [text[:2] for text in SOME]
    assert texts.first(4) is texts
    assert [text.tolist() for text in texts.take(np.array([2, 0, 2]))] == [SOME[2], SOME[0], SOME[2]]
    assert [text.tolist() for text in texts.slice(1, 3)] == SOME[1:3]
    assert [text.tolist() for text in texts.slice(1, 3) + texts.first(1)] == [*SOME[1:3], [5], [7], [4], [9]]


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), length=st.integers(3, 12))
def test_a_text_cut_before_tokenizing_has_the_tokens_of_the_whole_text(kind, texts, length):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHARS", 2)  # so that these short texts are cut, and some prefixes do not suffice
        patch.setattr(module, "SPARE", 4)
        found = tokenize(MADE[kind], texts, length)
    assert [text.tolist() for text in found] == [_whole(MADE[kind], text, length) for text in texts]


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_long_text_only_the_beginning_is_read(kind, monkeypatch):
    seen, encode_batch = [], module.encode_batch
    monkeypatch.setattr(module, "encode_batch", lambda *given: seen.extend(given[1]) or encode_batch(*given))
    text = "the goal of the match in a league " * 20_000
    found = tokenize(MADE[kind], [text, "short", text], 64)
    assert sum(map(len, seen)) < 20_000
    assert next(iter(found)).tolist() == _whole(MADE[kind], text, 64)


def test_a_text_of_spaces_is_read_to_its_end():
    text = " " * 100_000 + "goal match"
    assert tokenize(MADE["words"], [text], 8).ids.tolist() == MADE["words"].encode("goal match").ids
    assert tokenize(MADE["words"], ["x" * 100_000], 8).ids.tolist() == [1]  # nowhere to cut: one unknown word


def test_long_sentences_of_words_are_cut_alike():
    sentence = ["goal", "the", "match"] * 30_000
    encoded, words = encode_sentences(MADE["byte_level"], [sentence, ["goal"]], 16)
    assert encoded.ids[:16].tolist() == _whole(MADE["byte_level"], " ".join(sentence), 16)
    assert encoded.lengths.tolist() == [16, len(MADE["byte_level"].encode("goal").ids)]
    assert words[words >= 0].tolist() == [*range(int(words[:16].max()) + 1), 0]


def test_settings_of_the_file_do_not_change_what_is_kept():
    """Truncation on the left, overlaps or padding in a tokenizer.json are for other uses than ours."""
    odd = Tokenizer.from_str(MADE["words"].to_str())
    odd.enable_truncation(3, stride=1, direction="left")
    odd.enable_padding(length=9)
    found = tokenize(odd, ["goal match team league", "coach"], 3)
    assert [text.tolist() for text in found] == [
        MADE["words"].encode(text).ids for text in ("goal match team", "coach")
    ]
    assert odd.padding is not None  # the caller's tokenizer is left as it was


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(None, "None, not a string"), (float("nan"), "nan, not"), (("a", "b"), "not a string"), ("a\ud800", "surrogate")],
)
def test_what_is_no_text_is_named(wrong, message):
    with pytest.raises(InputError, match=message) as raised:
        tokenize(MADE["words"], ["goal", "match", wrong, "team"], 8)
    assert "text 2 " in str(raised.value)
    with pytest.raises(InputError, match="text 5002 "):
        tokenize(MADE["words"], ["goal"] * 5002 + [wrong], 8)


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"goal": 0}),
        models.WordPiece({"goal": 0}),
        models.Unigram([(piece, -1.0) for piece in ("goal", *"goal")]),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_tokenizer_without_a_token_for_unknown_words(model):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert tokenize(tokenizer, ["goal"], 8).ids.tolist() == [0]
    with pytest.raises(InputError, match=r"fails on 'unheard goal' .*token for unknown words"):
        tokenize(tokenizer, ["goal", "unheard goal"], 8)
    plain = Tokenizer(models.BPE({"g": 0}, []))  # this family leaves out what it does not know
    assert tokenize(plain, ["xg"], 8).ids.tolist() == [0]


def byte_fallback() -> Tokenizer:
    words = ["▁the", "▁goal", "▁match", "▁", *"abcdefghijklmnopqrstuvwxyz"]
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = [("<unk>", 0.0), *((byte, -20.0) for byte in spelled), *((word, -float(len(words))) for word in words)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, 0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level", "unigram", "byte fallback"])
def test_texts_a_tokenizer_was_made_for_have_no_unknown_tokens_and_other_scripts_do(kind):
    tokenizer = byte_fallback() if kind == "byte fallback" else MADE[kind]
    assert unknown_share(tokenizer, ["the goal match", "match the goal"]) == 0
    for text in (CHINESE, "البطارية ضعيفة لكن الكاميرا رائعة", "😀🎉👍🏽"):
        assert unknown_share(tokenizer, [text]) > MAX_SHARE, text
        assert 0 < unknown_share(tokenizer, ["the goal match"] * 20 + [text]) < unknown_share(tokenizer, [text])
    if kind == "wordpiece":
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        tokenizer.enable_padding(length=64)
        assert unknown_share(tokenizer, ["电"]) == 1  # neither padding nor special tokens count


def test_bytes_of_characters_count_and_ascii_does_not():
    byte_level = MADE["byte_level"]
    assert unknown_share(byte_level, ["x\x00\t\x7f~ QZ"]) == 0  # not learned, but whole characters
    assert unknown_share(byte_level, ["ä"]) == pytest.approx(2 / 3)  # of a space and two bytes
    assert len(unknown_ids(byte_level)) == 128
    assert unknown_share(byte_fallback(), ["the\ngoal"]) == 0
    assert unknown_share(byte_fallback(), ["match ä"]) == 2 / 4  # "▁match", "▁" and two bytes
    assert len(unknown_ids(byte_fallback())) == 128
    words = word_tokenizer(["ä", "é", "Ģ"])  # not of bytes
    assert (unknown_share(words, ["ä é Ģ"]), unknown_share(words, ["ä o"])) == (0, 0.5)
    np.testing.assert_array_equal(unknown_ids(words), [1])


def test_no_tokens_at_all_and_none_for_unknown_words():
    for texts in ([], [""], ["", " "]):
        assert unknown_share(word_tokenizer(["a"]), texts) == 0
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="[UNK]"))
    assert unknown_share(tokenizer, ["a", "b"]) == 0


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
    spans = list(pairwise(borders))
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


@given(text=st.text(max_size=40))
def test_every_token_is_in_one_word_and_words_follow_each_other(text):
    encoding = MADE["byte_level"].encode(text)
    found = group_pieces(text, encoding.tokens, encoding.offsets)
    assert sorted(token for word in found for token in word.tokens) == list(range(len(encoding.ids)))
    real = [word for word in found if word.end > word.start]
    assert all(one.end <= two.start for one, two in pairwise(real))
    assert all(text[word.start : word.end] == text[word.start : word.end].strip() for word in real)
