"""A packed tokenizer is the same tokenizer in fewer bytes; what is damaged or too large is refused in one line."""

import json
import lzma
import random

import pytest
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from ade.errors import InputError
from ade.packing import tokenizer_file as module
from ade.packing.tokenizer_file import (
    CONFIG,
    PACKED,
    TOKENIZER,
    packed_bytes,
    read_packed,
    read_tokenizer,
    special_tokens,
    write_tokenizer,
)
from ade.teachers import load_teacher
from tests.conftest import word_tokenizer
from tests.packing.every_kind import ALPHABET, TRAINING, every_kind, unlimited, whole


def without_last_bits(tokenizer: Tokenizer) -> dict:
    """A tokenizer as plain data, its scores rounded: the library's JSON reader may be one bit off."""
    spec = json.loads(tokenizer.to_str())
    if spec["model"]["type"] == "Unigram":
        spec["model"]["vocab"] = [(token, round(score, 12)) for token, score in spec["model"]["vocab"]]
    return spec


@every_kind
@pytest.mark.parametrize("packed", [True, False])
def test_a_written_tokenizer_is_the_same_tokenizer_without_truncation(kind, packed, tmp_path):
    write_tokenizer(whole(kind), tmp_path, packed, 77)
    found, expected = read_tokenizer(tmp_path), unlimited(whole(kind))
    special_tokens(expected)  # names a token for padding
    assert without_last_bits(found) == without_last_bits(expected)
    draw = random.Random(0)
    texts = [*TRAINING, *("".join(draw.choices(ALPHABET, k=30)) for _ in range(50))]
    assert [e.ids for e in found.encode_batch(texts)] == [e.ids for e in expected.encode_batch(texts)]
    config = json.loads((tmp_path / CONFIG).read_text())
    assert config["model_max_length"] == 77
    assert config["tokenizer_class"] == ("AdeTokenizer" if packed else "PreTrainedTokenizerFast")
    assert found.token_to_id(config["pad_token"]) is not None
    assert {path.name for path in tmp_path.iterdir()} == {CONFIG, PACKED if packed else TOKENIZER}


def test_a_published_tokenizer_takes_a_ninth_of_its_bytes(tmp_path):
    tokenizer = load_teacher("wordllama").tokenizer  # BPE, 32,000 tokens
    for packed in (True, False):
        write_tokenizer(tokenizer, tmp_path, packed, 512)
    sizes = [(tmp_path / name).stat().st_size for name in (PACKED, TOKENIZER)]
    assert sizes[0] < sizes[1] / 9
    assert read_packed(tmp_path / PACKED).to_str() == tokenizer.to_str()


@given(
    tokens=st.lists(st.text(max_size=80), min_size=1, max_size=30, unique=True), scale=st.sampled_from([1, 1e-7, 1e4])
)
def test_any_tokens_and_scores_come_back(tokens, scale):
    scores = [round(-3.7 * (i + 1), 2) * scale for i in range(len(tokens))]
    spec = json.loads(Tokenizer(models.Unigram(list(zip(tokens, scores, strict=True)), 0)).to_str())
    packed = json.loads(json.dumps(module._pack(spec)))
    assert json.dumps(module._unpack(packed)["model"]) == json.dumps(spec["model"])


def test_ids_with_gaps_and_merges_without_a_token_are_kept_as_they_are(tmp_path):
    gaps = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 5}, unk_token="[UNK]"))
    merges = [["a", "b"]]
    assert module._packed_merges({"merges": merges}, {"a": 0, "b": 1}) == merges
    (tmp_path / PACKED).write_bytes(packed_bytes(gaps))
    assert read_packed(tmp_path / PACKED).get_vocab() == gaps.get_vocab()


def spoiled(data: bytes) -> dict[str, bytes]:
    columns = json.loads(lzma.decompress(data))
    columns["model"]["vocab"]["tokens"]["shared"] = columns["model"]["vocab"]["tokens"]["shared"][:-1]
    return {
        "cut short": data[: len(data) // 2],
        "changed": data[:40] + bytes([data[40] ^ 255]) + data[41:],
        "no xz": b"{}",
        "no JSON": lzma.compress(b"{"),
        "no tokenizer": lzma.compress(b'{"packed": true}'),
        "columns of different lengths": lzma.compress(json.dumps(columns).encode()),
        "empty": b"",
    }


@pytest.mark.parametrize("damage", list(spoiled(packed_bytes(word_tokenizer(["a"])))))
def test_a_damaged_file_is_refused_in_one_line(damage, tmp_path):
    data = packed_bytes(word_tokenizer([f"w{i}" for i in range(50)]))
    (tmp_path / PACKED).write_bytes(spoiled(data)[damage])
    with pytest.raises(InputError, match="not a readable packed tokenizer") as caught:
        read_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_that_decompresses_to_too_much_is_refused_before_it_does(tmp_path):
    bomb = lzma.compress(bytes(module.MAX_BYTES + 1), preset=0)
    assert len(bomb) < 100_000
    (tmp_path / PACKED).write_bytes(bomb)
    with pytest.raises(InputError, match="more than 67,108,864 bytes"):
        read_tokenizer(tmp_path)


def test_special_tokens_are_found_by_their_usual_spellings():
    found = special_tokens(word_tokenizer(["[CLS]", "</s>", "a"]))
    assert found == {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "eos_token": "</s>"}


def test_where_no_token_is_for_padding_a_special_one_is_taken_or_one_that_no_text_has():
    def made(*words: str) -> Tokenizer:
        return Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))

    special = made("a", "b")
    special.add_special_tokens([AddedToken("<b>", special=True), AddedToken("<a>", special=True)])
    assert special_tokens(special) == {"pad_token": "<b>"}
    pieces = Tokenizer(models.WordPiece({"a": 0, "b": 1, "##ab": 2, "##b": 3}, unk_token="a"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    assert special_tokens(pieces) == {"pad_token": "##ab"}  # the longest that is not tokenized to itself
    assert [token.content for token in pieces.get_added_tokens_decoder().values()] == ["##ab"]
    assert special_tokens(made("a", "b")) == {"pad_token": "a"}
