"""Expected use: counts of texts, what a tokenizer says of its own tokens, word lists."""

import json
import math
import sys
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ade.compression import frequencies
from ade.compression.frequencies import generated_texts, own_frequencies, row_frequencies, word_lists
from ade.errors import InputError

TEXTS = ["the cat sat on the mat", "the dog sat", "a cat and the dog"] * 20


def trained(kind: str) -> Tokenizer:
    known: dict[str, Any] = {"vocab_size": 60, "special_tokens": ["<unk>"]}
    model, trainer = {
        "Unigram": (models.Unigram(), trainers.UnigramTrainer(unk_token="<unk>", **known)),
        "BPE": (models.BPE(unk_token="<unk>"), trainers.BpeTrainer(**known)),
        "WordPiece": (models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer(**known)),
    }[kind]
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace() if kind == "Unigram" else pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


@pytest.mark.parametrize("kind", ["Unigram", "BPE", "WordPiece"])
def test_own_frequencies_are_a_distribution_over_the_rows(kind: str) -> None:
    tokenizer = trained(kind)
    rows = tokenizer.get_vocab_size() + 3
    shares = own_frequencies(tokenizer, rows)
    assert shares.shape == (rows,)
    assert bool((shares >= 0).all())
    assert float(shares.sum()) == pytest.approx(1)
    assert not bool(shares[-3:].any())  # rows without a token
    if kind == "BPE":  # tokens learned early are used more
        merges = json.loads(tokenizer.to_str())["model"]["merges"]
        first, last = (tokenizer.token_to_id("".join(merges[at])) for at in (0, -1))
        assert shares[first] > shares[last] > 0


def test_letters_rank_by_the_first_merge_that_has_them() -> None:
    letters = [chr(0x4E00 + number) for number in range(500)]  # more than a text has
    vocabulary = {token: number for number, token in enumerate([*letters, "t", "h", "th"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("t", "h")]))
    shares = own_frequencies(tokenizer, len(vocabulary)).tolist()
    assert shares[vocabulary["t"]] == max(shares)
    assert shares[vocabulary["h"]] > shares[vocabulary[letters[0]]]  # of no merge
    assert shares[vocabulary["th"]] > shares[vocabulary[letters[0]]]


def test_a_unigram_model_says_the_probabilities_of_its_tokens() -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("the", -1.0), ("dog", -3.0)], 0))
    shares = own_frequencies(tokenizer, 4)
    assert float(shares[0]) == float(shares[3]) == 0
    assert float(shares[1] / shares[2]) == pytest.approx(math.exp(2))


def test_use_follows_the_texts_and_leaves_no_row_out() -> None:
    tokenizer = trained("WordPiece")
    use = row_frequencies(tokenizer, tokenizer.get_vocab_size(), ["dog"] * 50)
    assert int(use.argmax()) == tokenizer.token_to_id("dog")
    assert bool((use > 0).all())


LISTS = {
    "de": {"und": 0.5, "katze": 0.3, "hund": 0.2},
    "en": {"the": 0.6, "cat": 0.3, "dog": 0.1},
    "zh": {"\u732b": 0.7, "\u72d7": 0.3},
}


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short lists of words in place of those of wordfreq."""
    monkeypatch.setattr(frequencies, "word_lists", lambda: LISTS)


def test_without_text_words_say_what_is_used(lists: None) -> None:
    tokenizer = trained("WordPiece")
    use = row_frequencies(tokenizer, tokenizer.get_vocab_size())
    assert float(use.sum()) == pytest.approx(1, rel=1e-6)
    assert use[tokenizer.token_to_id("the")] > use[tokenizer.token_to_id("dog")]


def test_texts_are_generated_in_languages_that_the_tokenizer_knows(
    lists: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frequencies, "LANGUAGES", 1)
    words = {"[UNK]": 0, "und": 1, "katze": 2, "hund": 3}  # in Chinese every word is one unknown token
    texts = generated_texts(Tokenizer(models.WordPiece(words, unk_token="[UNK]")), 20)
    assert len(texts) == 20
    assert {word for text in texts for word in text.split()} == {*LISTS["de"]}

    monkeypatch.setattr(frequencies, "LANGUAGES", 3)
    texts = generated_texts(trained("WordPiece"), 6)  # two of each language
    assert ["\u732b" in text for text in texts] == [False] * 4 + [True] * 2
    assert not any(" " in text for text in texts[4:])


def test_word_lists_are_those_of_wordfreq() -> None:
    pytest.importorskip("wordfreq")
    lists = word_lists()
    assert {"en", "fi", "zh"} <= {*lists}
    assert lists["en"]["the"] > lists["en"]["house"] > 0


def test_missing_word_lists_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    with pytest.raises(InputError, match="give --corpus FILE"):
        word_lists()


def test_padding_and_truncation_of_a_tokenizer_are_no_use_of_its_tokens(lists: None) -> None:
    tokenizer = trained("WordPiece")
    padded = Tokenizer.from_str(tokenizer.to_str())
    padded.enable_padding(length=16, pad_id=0, pad_token="<unk>")
    padded.enable_truncation(2)
    rows = tokenizer.get_vocab_size()
    for texts in ((), TEXTS):
        assert row_frequencies(padded, rows, texts).tolist() == row_frequencies(tokenizer, rows, texts).tolist()
    assert padded.padding is not None  # the model's own is left as it is
    assert generated_texts(padded, 3) == generated_texts(tokenizer, 3)
