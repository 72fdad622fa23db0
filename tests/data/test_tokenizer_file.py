"""A packed tokenizer is the same tokenizer in fewer bytes; what is damaged or too large is refused in one line."""

import json
import lzma
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from ade.data import tokenizer_file as module
from ade.data.tokenizer_file import PACKED, TOKENIZER, packed_bytes, read_packed, read_tokenizer, write_tokenizer
from ade.errors import InputError
from ade.teachers import load_teacher
from tests.conftest import word_tokenizer
from tests.packing.test_prune_vocabulary import ALPHABET, KINDS, TRAINING, every_kind


def without_last_bits(tokenizer: Tokenizer) -> dict:
    """A tokenizer as plain data, its scores rounded: the library's JSON reader may be one bit off."""
    spec = json.loads(tokenizer.to_str())
    if spec["model"]["type"] == "Unigram":
        spec["model"]["vocab"] = [(token, round(score, 12)) for token, score in spec["model"]["vocab"]]
    return spec


@every_kind
def test_a_packed_tokenizer_is_the_same_tokenizer(kind, tmp_path):
    tokenizer = KINDS[kind]()
    write_tokenizer(tokenizer, tmp_path, packed=True)
    found = read_tokenizer(tmp_path)
    assert without_last_bits(found) == without_last_bits(tokenizer)  # truncation and padding, too
    draw = random.Random(0)
    texts = [*TRAINING, *("".join(draw.choices(ALPHABET, k=30)) for _ in range(50))]
    assert [e.ids for e in found.encode_batch(texts)] == [e.ids for e in tokenizer.encode_batch(texts)]


def test_a_published_tokenizer_takes_a_ninth_of_its_bytes(tmp_path):
    tokenizer = load_teacher("wordllama").tokenizer  # BPE, 32,000 tokens
    for packed in (True, False):
        write_tokenizer(tokenizer, tmp_path, packed)
    sizes = [(tmp_path / name).stat().st_size for name in (PACKED, TOKENIZER)]
    assert sizes[0] < sizes[1] / 9
    assert read_packed(tmp_path / PACKED).to_str() == tokenizer.to_str()


@given(tokens=st.lists(st.text(max_size=80), min_size=1, max_size=30, unique=True), scale=st.sampled_from([1, 1e-7]))
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


def _spoiled(data: bytes) -> dict[str, bytes]:
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


@pytest.mark.parametrize("damage", list(_spoiled(packed_bytes(word_tokenizer(["a"])))))
def test_a_damaged_file_is_refused_in_one_line(damage, tmp_path):
    data = packed_bytes(word_tokenizer([f"w{i}" for i in range(50)]))
    (tmp_path / PACKED).write_bytes(_spoiled(data)[damage])
    with pytest.raises(InputError, match="not a readable packed tokenizer") as caught:
        read_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_that_decompresses_to_too_much_is_refused_before_it_does(tmp_path):
    bomb = lzma.compress(bytes(module.MAX_BYTES + 1), preset=0)
    assert len(bomb) < 100_000
    (tmp_path / PACKED).write_bytes(bomb)
    with pytest.raises(InputError, match="more than 67,108,864 bytes"):
        read_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_and_one_of_too_many_tokens(tmp_path):
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        read_tokenizer(tmp_path)
    write_tokenizer(word_tokenizer(["a"]), tmp_path, packed=True)
    assert read_tokenizer(tmp_path, 3).get_vocab_size() == 3
    with pytest.raises(InputError, match="knows 3 tokens, the model 2"):
        read_tokenizer(tmp_path, 2)
