import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from ade.data import tokenize as module
from ade.data.tag_tokens import encode_sentences
from ade.data.tokenize import tokenize
from ade.errors import InputError
from tests.conftest import FILLER, WORDS, word_tokenizer

CORPUS = [" ".join(FILLER), *(" ".join(words) for words in WORDS.values()), "it's 12 o'clock, isn't it?"] * 20
KINDS = ["words", "wordpiece", "byte-level", "unigram", "no words"]


def _made(kind: str) -> Tokenizer:
    """A tokenizer of each family, trained on a few words."""
    if kind == "words":
        return word_tokenizer([word for words in WORDS.values() for word in words])
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=120, special_tokens=special))
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        return tokenizer
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=kind == "unigram")
        trainer = trainers.UnigramTrainer(
            vocab_size=90, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


MADE = {kind: _made(kind) for kind in KINDS}
PIECES = st.sampled_from(
    [*FILLER, *WORDS["sport"], "unheard", "x" * 40, "it's", "e\u0301", "\u4f60\u597d", "12,5", "[SEP]"]
)
GAPS = st.sampled_from([" ", " ", " ", "  ", "\n", "\t", "   \n", "\u00a0", "\u3000", "-", ""])
TEXTS = st.lists(st.tuples(PIECES, GAPS), max_size=60).map(lambda parts: "".join(a + b for a, b in parts))


def _whole(tokenizer: Tokenizer, text: str, length: int) -> list[int]:
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.enable_truncation(length)
    return tokenizer.encode(text).ids or [0]


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), length=st.integers(3, 12))
def test_a_text_cut_before_tokenizing_has_the_tokens_of_the_whole_text(kind, texts, length):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHARS", 2)  # so that these short texts are cut, and some prefixes do not suffice
        patch.setattr(module, "SPARE", 4)
        ids, offsets = tokenize(MADE[kind], texts, length)
    for i, text in enumerate(texts):
        assert ids[offsets[i] : offsets[i + 1]].tolist() == _whole(MADE[kind], text, length)


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_long_text_only_the_beginning_is_read(kind):
    seen = []

    class Watched:
        """The tokenizer, with a count of the characters it is given."""

        def __init__(self, inner: Tokenizer) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        def encode_batch_fast(self, texts: list[str], **options: object) -> object:
            seen.extend(map(len, texts))
            return self.inner.encode_batch_fast(texts, **options)

    tokenizer = Tokenizer.from_str(MADE[kind].to_str())
    tokenizer.enable_truncation(64)
    text = "the goal of the match in a league " * 20_000
    ids, _ = tokenize(Watched(tokenizer), [text, "short", text], 64)
    assert sum(seen) < 20_000
    assert ids[:64].tolist() == _whole(tokenizer, text, 64)


def test_a_text_of_spaces_is_read_to_its_end():
    text = " " * 100_000 + "goal match"
    assert tokenize(MADE["words"], [text], 8)[0].tolist() == MADE["words"].encode("goal match").ids
    assert tokenize(MADE["words"], ["x" * 100_000], 8)[0].tolist() == [1]  # nowhere to cut: one unknown word


def test_long_sentences_of_words_are_cut_alike():
    sentence = ["goal", "the", "match"] * 30_000
    encoded, words = encode_sentences(MADE["byte-level"], [sentence, ["goal"]], 16)
    assert encoded.ids[:16].tolist() == _whole(MADE["byte-level"], " ".join(sentence), 16)
    assert encoded.lengths.tolist() == [16, len(MADE["byte-level"].encode("goal").ids)]
    assert words[words >= 0].tolist() == [*range(int(words[:16].max()) + 1), 0]


def test_settings_of_the_file_do_not_change_what_is_kept():
    """Truncation on the left, overlaps or padding in a tokenizer.json are for other uses than ours."""
    odd = Tokenizer.from_str(MADE["words"].to_str())
    odd.enable_truncation(3, stride=1, direction="left")
    odd.enable_padding(length=9)
    ids, offsets = tokenize(odd, ["goal match team league", "coach"], 3)
    assert ids.tolist() == [*MADE["words"].encode("goal match team").ids, *MADE["words"].encode("coach").ids]
    assert offsets.tolist() == [0, 3, 4]
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
    assert tokenize(tokenizer, ["goal"], 8)[0].tolist() == [0]
    with pytest.raises(InputError, match=r"text 1 .*no token for unknown words"):
        tokenize(tokenizer, ["goal", "unheard goal"], 8)
    plain = Tokenizer(models.BPE({"g": 0}, []))  # this family leaves out what it does not know
    assert np.array_equal(tokenize(plain, ["xg"], 8)[0], [0])
