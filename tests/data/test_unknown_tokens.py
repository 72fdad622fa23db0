"""Texts that a tokenizer does not fit are found, whichever kind of tokenizer it is."""

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ade.data.unknown_tokens import MAX_SHARE, unknown_ids, unknown_share
from tests.conftest import word_tokenizer

ENGLISH = [
    "the battery is poor but the camera is great",
    "a great camera",
    "the phone is poor, and a battery is a battery",
]
GERMAN = "der Akku hält nicht lange, aber die Kamera ist schön"
CHINESE = "这个手机的电池很差但是相机非常好"
ARABIC = "البطارية ضعيفة لكن الكاميرا رائعة"
EMOJI = "😀🎉👍🏽"


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(ENGLISH, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    return tokenizer


def byte_fallback() -> Tokenizer:
    words = ["▁the", "▁battery", "▁is", "▁poor", "▁", *"abcdefghijklmnopqrstuvwxyz"]
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = [("<unk>", 0.0), *((byte, -20.0) for byte in spelled), *((word, -float(len(words))) for word in words)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, 0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=["<pad>", "<unk>"], unk_token="<unk>")
    tokenizer.train_from_iterator(ENGLISH, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.train_from_iterator(ENGLISH, trainer)
    ends = (("[SEP]", tokenizer.token_to_id("[SEP]")), ("[CLS]", tokenizer.token_to_id("[CLS]")))
    tokenizer.post_processor = processors.BertProcessing(*ends)
    tokenizer.enable_padding(length=64)
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, byte_fallback, unigram, word_piece])
def test_texts_it_was_made_for_have_none_and_other_scripts_do(make):
    tokenizer = make()
    assert unknown_share(tokenizer, ["the battery is poor", "is the battery poor"]) == 0
    for text in (CHINESE, ARABIC, EMOJI):
        assert unknown_share(tokenizer, [text]) > MAX_SHARE, text
        mixed = unknown_share(tokenizer, ["the battery is poor"] * 20 + [text])
        assert 0 < mixed < unknown_share(tokenizer, [text])


def test_of_a_byte_level_tokenizer_bytes_of_characters_count_and_ascii_does_not():
    tokenizer = byte_level()
    assert unknown_share(tokenizer, ["x\x00\t\x7f~ QZ"]) == 0  # not learned, but whole characters
    assert unknown_share(tokenizer, ["ä"]) == 1
    assert unknown_share(tokenizer, ["xä"]) == pytest.approx(2 / 3)
    assert unknown_share(tokenizer, [CHINESE]) == 1
    assert 0 < unknown_share(tokenizer, [GERMAN]) < MAX_SHARE
    assert len(unknown_ids(tokenizer)) == 128


def test_characters_of_a_vocabulary_that_is_not_byte_level_are_no_bytes():
    tokenizer = word_tokenizer(["ä", "é", "Ģ"])
    assert unknown_share(tokenizer, ["ä é Ģ"]) == 0
    assert unknown_share(tokenizer, ["ä o"]) == 0.5
    np.testing.assert_array_equal(unknown_ids(tokenizer), [1])


def test_byte_fallback_counts_bytes_but_not_the_line_break():
    tokenizer = byte_fallback()
    assert unknown_share(tokenizer, ["the\nbattery"]) == 0
    assert len(unknown_ids(tokenizer)) == 128
    assert unknown_share(tokenizer, ["is ä"]) == 2 / 4  # "▁is", "▁" and two bytes


def test_special_tokens_and_padding_do_not_count():
    assert unknown_share(word_piece(), ["电"]) == 1


@pytest.mark.parametrize("texts", [[], [""], ["", " "]])
def test_no_tokens_at_all(texts):
    assert unknown_share(word_tokenizer(["a"]), texts) == 0


def test_a_vocabulary_without_an_unknown_token():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="[UNK]"))
    assert unknown_share(tokenizer, ["a", "b"]) == 0
