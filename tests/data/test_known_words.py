"""Words that are looked up give the ids that the tokenizer gives, of any text; whatever is not plain is left to it."""

from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from ade.data import known_words, tokens
from ade.data.known_words import KnownWords
from ade.data.tokens import encode_chunks, tokenize_chunks
from tests.conftest import word_tokenizer

PIECES = ["a", "b", "ab", "##a", "##b", "##ab", "don", "t", "'", "##1", "1", ",", "_", "é", "e", "$", "[", "]", "mask"]


def wordpiece(lowercase: bool = True, special: bool = True) -> Tokenizer:
    names = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate([*names, *PIECES])}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if special:
        made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 1), ("[SEP]", 2)])
    made.add_special_tokens(names)
    return made


def known_of(tokenizer: Tokenizer) -> KnownWords:
    known = tokens.known_words(tokenizer)
    assert known is not None
    return known


def ids_by_tokenizer(tokenizer: Tokenizer, texts: list[str], max_length: int) -> list[list[int]]:
    return [encoding.ids or [0] for chunk in encode_chunks(tokenizer, texts, max_length) for encoding in chunk]


def ids_by_words(tokenizer: Tokenizer, texts: list[str], max_length: int, known: KnownWords) -> list[list[int]]:
    return [ids.tolist() for chunk in tokenize_chunks(tokenizer, texts, max_length, known) for ids in chunk]


PARTS = ["[MASK]", "[mask]", "[SEP]", "a" * 33, "ab" * 60, "don't", " ", "İ", "ﬁ"]
TEXTS = st.lists(
    st.one_of(
        st.text(st.sampled_from("abAB dont',1_$é\t\n\r\x0b\x1c\x7f\u00a0\u200b[]"), max_size=40),
        st.lists(st.sampled_from(["[MASK]", "[mask]", "[SEP]", "a" * 33, "ab" * 60, "don't", " ", "İ", "ﬁ"])).map(
            "".join
        ),
        st.text(max_size=20),
    ),
    max_size=6,
)


@settings(max_examples=200)
@given(texts=TEXTS, lowercase=st.booleans(), special=st.booleans(), max_length=st.sampled_from([3, 8, 500]))
def test_the_ids_are_the_tokenizers_own(texts, lowercase, special, max_length):
    tokenizer = wordpiece(lowercase, special)
    known, expected = known_of(tokenizer), ids_by_tokenizer(tokenizer, texts, max_length)
    for _ in range(2):  # the second time from what was remembered
        assert ids_by_words(tokenizer, texts, max_length, known) == expected


def test_what_is_looked_up_and_what_is_left_to_the_tokenizer():
    known = known_of(wordpiece())
    plain = ["ab don't", "A\tb\nab", "", "a_1$"]
    assert None not in known.ids(plain, 20, 99)
    assert set(known.known) == {"ab", "don", "'", "t", "a", "b", "_", "1", "$"}
    left = ["café", "a\x0bb", "a[MASK]b", "a" * (known_words.MAX_CHARS + 1), "a\u200bb"]
    assert known.ids([*left, "ab"], 20, 99) == [None] * len(left) + [[1, 6, 2]]
    assert known.ids(["a b ab", "ab"], 20, max_chars=5) == [None, [1, 6, 2]]


def test_words_are_forgotten_before_they_are_too_many(monkeypatch):
    monkeypatch.setattr(known_words, "MAX_WORDS", 4)
    tokenizer = wordpiece()
    known = known_of(tokenizer)
    for texts in (["a b ab don"], ["t a"], ["a b ab don t '"]):
        assert ids_by_words(tokenizer, texts, 20, known) == ids_by_tokenizer(tokenizer, texts, 20)
        assert len(known.known) <= 6


def test_tokenizers_of_other_kinds_are_left_alone():
    assert tokens.known_words(word_tokenizer(["a"])) is None
    other = wordpiece()
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    assert tokens.known_words(other) is None
    added = wordpiece()
    added.add_tokens(["new york"])  # is found in the normalized text, with any spaces
    assert tokens.known_words(added) is None


def test_many_texts_on_many_cores_go_to_the_tokenizer(monkeypatch):
    tokenizer = wordpiece()
    known = known_of(tokenizer)
    monkeypatch.setattr(tokens.os, "cpu_count", lambda: tokens.SOME_CORES + 1)
    texts = ["ab a"] * (tokens.FEW_TEXTS + 1)
    assert ids_by_words(tokenizer, texts, 20, known) == ids_by_tokenizer(tokenizer, texts, 20)
    assert known.known == {}
    ids_by_words(tokenizer, texts[1:], 20, known)
    assert set(known.known) == {"ab", "a"}
