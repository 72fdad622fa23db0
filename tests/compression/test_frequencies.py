"""Expected use: counts of texts, what a tokenizer says of its own tokens, word lists."""

import importlib.util
import json
import math
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ade.compression.frequencies import best_known, own_frequencies, row_frequencies, word_lists
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


needs_lists = pytest.mark.skipif(importlib.util.find_spec("wordfreq") is None, reason="wordfreq is not installed")


@needs_lists
def test_without_text_words_say_what_is_used() -> None:
    lists = word_lists(["en", "fi"])
    assert set(lists) == {"en", "fi"}
    assert lists["en"]["the"] > lists["en"]["house"] > 0
    with pytest.raises(InputError, match="no word list for xx"):
        word_lists(["xx"])

    tokenizer = trained("WordPiece")
    use = row_frequencies(tokenizer, tokenizer.get_vocab_size(), languages=["en"])
    assert float(use.sum()) == pytest.approx(1, rel=1e-6)
    assert use[tokenizer.token_to_id("the")] > use[tokenizer.token_to_id("dog")]


@needs_lists
def test_the_languages_a_tokenizer_knows_best_are_chosen() -> None:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=["<unk>"])
    tokenizer.train_from_iterator(list(word_lists(["de"])["de"])[:2000], trainer)
    assert list(best_known(tokenizer, ["fi", "ru", "de"], 1)) == ["de"]

    words = list(word_lists(["en"])["en"])[:500]
    english = Tokenizer(
        models.WordPiece({"[UNK]": 0, **{word: n for n, word in enumerate(words, 1)}}, unk_token="[UNK]")
    )
    english.pre_tokenizer = pre_tokenizers.Whitespace()
    assert list(best_known(english, (), 1)) == ["en"]  # in Chinese every word is one unknown token


def test_missing_word_lists_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "wordfreq" else found(name, *rest)
    )
    with pytest.raises(InputError, match="give --corpus FILE"):
        word_lists()


@needs_lists
def test_padding_and_truncation_of_a_tokenizer_are_no_use_of_its_tokens() -> None:
    tokenizer = trained("WordPiece")
    padded = Tokenizer.from_str(tokenizer.to_str())
    padded.enable_padding(length=16, pad_id=0, pad_token="<unk>")
    padded.enable_truncation(2)
    rows = tokenizer.get_vocab_size()
    for texts in ((), TEXTS):
        assert (
            row_frequencies(padded, rows, texts, ["en"]).tolist()
            == row_frequencies(tokenizer, rows, texts, ["en"]).tolist()
        )
    assert padded.padding is not None  # the model's own is left as it is
    assert list(best_known(padded, (), 3)) == list(best_known(tokenizer, (), 3))
