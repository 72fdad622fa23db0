"""A tokenizer is made compact: sorted, without a character map, with short scores; texts are split as before."""

import base64
import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from ade.data.tokenizer_file import packed_bytes
from ade.packing import compact_tokenizer as module
from ade.packing.compact_tokenizer import compact
from ade.teachers import Teacher
from tests.packing.test_prune_vocabulary import CORPUS, KINDS, TRAINING, every_kind, teacher_of, unigram, unlimited


@every_kind
def test_texts_are_split_as_before_and_every_token_keeps_its_row(kind):
    before = teacher_of(KINDS[kind]())
    after, rows = compact(before, TRAINING)
    exact = unlimited(before.tokenizer)
    for text in [*TRAINING, *CORPUS]:
        assert after.tokenizer.encode(text).tokens == exact.encode(text).tokens
    assert torch.equal(after.table, before.table[torch.from_numpy(rows)])
    old, new = exact.get_vocab(), after.tokenizer.get_vocab()
    assert {token: rows[number] for token, number in new.items()} == old
    assert len(packed_bytes(after.tokenizer)) <= len(packed_bytes(exact))
    again, same = compact(after, TRAINING)
    assert again.tokenizer.to_str() == after.tokenizer.to_str()
    assert np.array_equal(same, np.arange(len(same)))


def test_tokens_are_in_alphabetical_order_after_the_special_ones():
    after, _ = compact(teacher_of(unigram()))
    names = sorted(after.tokenizer.get_vocab(with_added_tokens=False), key=after.tokenizer.token_to_id)
    special = [token for token in names if after.tokenizer.token_to_id(token) < 4]
    assert special == ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    assert names[4:] == sorted(names[4:])


def scores_of(teacher: Teacher) -> dict[str, float]:
    return dict(json.loads(teacher.tokenizer.to_str())["model"]["vocab"])


def test_scores_keep_as_many_digits_as_texts_need():
    spec = json.loads(unigram().to_str())
    pieces = {"[UNK]": -9.0, "▁ab": -2.0004, "▁a": -1.0001, "b": -1.0002, "c": -3.0}  # '▁ab' loses by 0.0001
    spec["model"] |= {"vocab": list(pieces.items()), "unk_id": 0}
    spec["added_tokens"], spec["post_processor"] = [], None
    teacher = teacher_of(Tokenizer.from_str(json.dumps(spec)))
    assert teacher.tokenizer.encode("ab").tokens == ["▁a", "b"]
    exact, _ = compact(teacher, ["ab", "c"])
    assert exact.tokenizer.encode("ab").tokens == ["▁a", "b"]
    assert scores_of(exact)["▁ab"] == -2.0004
    short, _ = compact(teacher, ["ac", "c"])
    assert scores_of(short)["▁ab"] == -2.0
    unchecked, _ = compact(teacher)
    assert scores_of(unchecked)["▁ab"] == -2.0


def character_map(pairs: dict[str, str]) -> str:
    """A sentencepiece character map of single-byte characters: a double array and the strings it leads to."""
    strings, nodes = b"", [0] * 512
    nodes[0] = 256 << 10  # the root: its children are at 256 ^ label
    for source, target in pairs.items():
        leaf = ord(source) | (1 << 8) | ((ord(source) ^ 256 ^ 257) << 10)
        nodes[256 ^ ord(source)] = leaf
        nodes[257] = 1 << 31 | len(strings)
        strings += target.encode() + b"\0"
    trie = b"".join(node.to_bytes(4, "little") for node in nodes)
    return base64.b64encode(len(trie).to_bytes(4, "little") + trie + strings).decode()


def with_map(stored: str) -> Teacher:
    spec = json.loads(unigram().to_str())
    spec["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": stored}
    return teacher_of(Tokenizer.from_str(json.dumps(spec)))


def test_a_character_map_that_is_not_nfkc_stays():
    teacher = with_map(character_map({"q": "k"}))
    assert teacher.tokenizer.normalizer.normalize_str("q") == "k"
    after, _ = compact(teacher, TRAINING)
    assert after.tokenizer.normalizer.normalize_str("q") == "k"


def test_a_character_map_that_is_nfkc_is_replaced_unless_texts_show_a_difference(monkeypatch):
    monkeypatch.setattr(module, "DIFFERENT_CHARACTERS", 150_000)  # any map counts as NFKC
    module._is_nfkc.cache_clear()
    teacher = with_map(character_map({"q": "k"}))
    shown, _ = compact(teacher, ["q"])
    assert shown.tokenizer.normalizer.normalize_str("q") == "k"
    replaced, _ = compact(teacher, ["goal"])
    assert replaced.tokenizer.normalizer.normalize_str("ﬁ") == "fi"
    assert "Precompiled" not in replaced.tokenizer.to_str()
    module._is_nfkc.cache_clear()


@pytest.mark.parametrize("texts", [(), TRAINING])
def test_a_tokenizer_of_two_tokens_with_one_id_stays_as_it_is(texts, teacher):
    spec = json.loads(teacher.tokenizer.to_str())
    spec["model"]["vocab"]["twin"] = 3
    twin = Teacher("twin", teacher.table, Tokenizer.from_str(json.dumps(spec)))
    after, rows = compact(twin, texts)
    assert after is twin
    assert np.array_equal(rows, np.arange(len(teacher.table)))
