"""A tokenizer is made compact: sorted, without a character map, with short scores; texts are split as before."""

import base64
import json

import numpy as np
from tokenizers import Tokenizer

from ade.packing import compact_tokenizer as module
from ade.packing.compact_tokenizer import compact
from ade.packing.tokenizer_file import packed_bytes
from tests.packing.every_kind import CORPUS, TRAINING, every_kind, unlimited, whole


def changed(tokenizer: Tokenizer, **parts: object) -> Tokenizer:
    """A tokenizer with other parts of its JSON; those of its model begin with `model_`."""
    spec = json.loads(tokenizer.to_str())
    for name, value in parts.items():
        (spec["model"] if name.startswith("model_") else spec)[name.removeprefix("model_")] = value
    return Tokenizer.from_str(json.dumps(spec))


@every_kind
def test_texts_are_split_as_before_and_every_token_keeps_its_row(kind):
    exact = unlimited(whole(kind))
    after, rows = compact(whole(kind), TRAINING)
    for text in [*TRAINING, *CORPUS]:
        assert after.encode(text).tokens == exact.encode(text).tokens
    assert {token: rows[number] for token, number in after.get_vocab().items()} == exact.get_vocab()
    assert len(packed_bytes(after)) <= len(packed_bytes(exact))
    again, same = compact(after, TRAINING)
    assert again.to_str() == after.to_str()
    assert np.array_equal(same, np.arange(len(same)))


def test_tokens_are_in_alphabetical_order_after_the_special_ones():
    after, _ = compact(whole("unigram"))
    names = sorted(after.get_vocab(with_added_tokens=False), key=after.token_to_id)
    assert names[:4] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    assert names[4:] == sorted(names[4:])


def test_scores_keep_as_many_digits_as_texts_need():
    pieces = {"[UNK]": -9.0, "▁ab": -2.0004, "▁a": -1.0001, "b": -1.0002, "c": -3.0}  # '▁ab' loses by 0.0001
    tokenizer = changed(
        whole("unigram"), model_vocab=list(pieces.items()), model_unk_id=0, added_tokens=[], post_processor=None
    )
    for texts, score in ((["ab", "c"], -2.0004), (["ac", "c"], -2.0), ([], -2.0)):
        after, _ = compact(tokenizer, texts)
        assert dict(json.loads(after.to_str())["model"]["vocab"])["▁ab"] == score
        if score != -2.0:
            assert after.encode("ab").tokens == tokenizer.encode("ab").tokens == ["▁a", "b"]
    one_of_many, _ = compact(tokenizer, ["ab", *["c"] * 1000])
    assert dict(json.loads(one_of_many.to_str())["model"]["vocab"])["▁ab"] == -2.0  # a thousandth may change


def character_map(pairs: dict[str, str]) -> str:
    """A sentencepiece character map of single-byte characters: a double array and the strings it leads to."""
    strings, nodes = b"", [0] * 512
    nodes[0] = 256 << 10  # the root: its children are at 256 ^ label
    for source, target in pairs.items():
        nodes[256 ^ ord(source)] = ord(source) | (1 << 8) | ((ord(source) ^ 256 ^ 257) << 10)
        nodes[257] = 1 << 31 | len(strings)
        strings += target.encode() + b"\0"
    trie = b"".join(node.to_bytes(4, "little") for node in nodes)
    return base64.b64encode(len(trie).to_bytes(4, "little") + trie + strings).decode()


def with_map(stored: str) -> Tokenizer:
    return changed(whole("unigram"), normalizer={"type": "Precompiled", "precompiled_charsmap": stored})


def test_a_character_map_that_is_not_nfkc_stays():
    after, _ = compact(with_map(character_map({"q": "k"})), TRAINING)
    assert after.normalizer.normalize_str("q") == "k"


def test_a_character_map_that_is_nfkc_is_replaced_unless_texts_show_a_difference(monkeypatch):
    monkeypatch.setattr(module, "DIFFERENT_CHARACTERS", 150_000)  # any map counts as NFKC
    module._is_nfkc.cache_clear()
    tokenizer = with_map(character_map({"q": "k"}))
    shown, _ = compact(tokenizer, ["q"])
    assert shown.normalizer.normalize_str("q") == "k"
    replaced, _ = compact(tokenizer, ["goal"])
    assert replaced.normalizer.normalize_str("ﬁ") == "fi"
    assert "Precompiled" not in replaced.to_str()
    module._is_nfkc.cache_clear()
