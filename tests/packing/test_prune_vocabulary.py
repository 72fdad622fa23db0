"""Pruning a vocabulary loses rows and nothing else: the corpus is tokenized as before, other texts stay known."""

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from ade.errors import InputError
from ade.packing.prune_vocabulary import pruned
from tests.packing.every_kind import ALPHABET, CORPUS, KINDS, SPECIAL, TRAINING, every_kind, unlimited, whole

Pruned = tuple[Tokenizer, np.ndarray]  # the tokenizer, and the old id of each token
PARTS = ["[UNK]", "a", "##a", "b", "##b", "##bx", "ab", "aba", "bab"]


@cache
def fewer(kind: str) -> Pruned:
    return pruned(whole(kind), iter(CORPUS))


def wordpiece(tokens: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def check(before: Tokenizer, after: Pruned, corpus: list[str]) -> None:
    """What must hold of every pruned tokenizer: same tokens, contiguous ids, each with its own old id, in order."""
    exact, (smaller, rows) = unlimited(before), after
    for text in corpus:
        for part in ((text,), (text, text)):
            found, expected = smaller.encode(*part), exact.encode(*part)
            assert (found.tokens, rows[found.ids].tolist()) == (expected.tokens, expected.ids)
    old, new = exact.get_vocab(), smaller.get_vocab()
    assert sorted(new.values()) == list(range(len(rows)))
    assert {token: rows[number] for token, number in new.items()} == {token: old[token] for token in new}
    assert (np.diff(rows) > 0).all()


@every_kind
def test_the_corpus_is_tokenized_as_before_by_fewer_tokens(kind):
    check(whole(kind), fewer(kind), CORPUS)
    tokenizer, rows = fewer(kind)
    assert len(rows) < 0.9 * whole(kind).get_vocab_size()
    assert tokenizer.padding is None
    assert tokenizer.truncation is None
    again, same = pruned(tokenizer, CORPUS)
    assert again.to_str() == tokenizer.to_str()
    assert np.array_equal(same, np.arange(len(rows)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "word_level"])
@given(text=st.text(ALPHABET, max_size=40) | st.text(max_size=10))
def test_other_texts_get_no_new_unknown_tokens(kind, text):
    found, expected = fewer(kind)[0].encode(text), unlimited(whole(kind)).encode(text)
    for unknown in ("[UNK]", "<unk>"):
        assert found.tokens.count(unknown) <= expected.tokens.count(unknown)
    if kind in ("byte_level", "byte_fallback"):
        spelled = fewer(kind)[0].decode(found.ids, skip_special_tokens=False)
        assert spelled == whole(kind).decode(expected.ids, skip_special_tokens=False)


@every_kind
@given(text=st.text(ALPHABET, max_size=40))
def test_any_text_as_the_corpus_comes_out_as_before(kind, text):
    check(whole(kind), pruned(whole(kind), [text, "goal"]), [text])


@every_kind
def test_all_special_tokens_stay_special(kind):
    tokenizer = fewer(kind)[0]
    found, expected = (each.get_added_tokens_decoder() for each in (tokenizer, whole(kind)))
    assert [token.content for token in found.values()] == [token.content for token in expected.values()]
    for number, token in found.items():
        assert token.special
        assert tokenizer.encode(token.content, add_special_tokens=False).ids == [number]


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "word_parts"])
def test_bpe_keeps_no_token_out_of_reach(kind):
    model = json.loads(fewer(kind)[0].to_str())["model"]
    prefix = model["continuing_subword_prefix"] or ""
    made = {left + right[len(prefix) :] for left, right in model["merges"]}
    long = [token for token in model["vocab"] if len(token.removeprefix(prefix)) > 1]
    assert made >= {token for token in long if token not in SPECIAL and not token.startswith("<")}


def test_a_word_unknown_before_stays_unknown():
    """'abx' was unknown since 'ab' is longer than 'a'; without 'ab' it would be 'a', '##bx'."""
    found = pruned(wordpiece(PARTS), ["abx"])
    check(wordpiece(PARTS), found, ["abx"])
    assert found[0].encode("abx").tokens == ["[UNK]"]
    assert "bab" not in found[0].get_vocab()


def test_unigram_unknowns_cost_as_much_as_before():
    """What an unknown character costs depends on the least likely piece, here one the corpus never uses."""
    pieces = [("p", -20.0), ("x", -20.0), ("xb", -20.0), ("px", -1.0), ("z", -1.0), ("zz", -50.0)]
    before = Tokenizer(models.Unigram([*pieces, ("zp", -2.0), ("<unk>", 0.0)], unk_id=7))
    found = pruned(before, ["pxb", "px"])
    check(before, found, ["pxb", "px", "pq"])
    assert found[0].encode("pxb").tokens == ["p", "xb"]
    assert found[0].encode("q").ids == [found[0].token_to_id("<unk>")]
    assert "zp" not in found[0].get_vocab()


def test_gaps_in_the_ids_are_closed():
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 2, "goal": 6, "late": 7, "match": 11}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[A]", "[B]"])
    found, rows = pruned(tokenizer, ["match"])
    assert found.get_vocab() == {"[UNK]": 0, "match": 1, "[A]": 2, "[B]": 3}
    assert rows.tolist() == [2, 11, tokenizer.token_to_id("[A]"), tokenizer.token_to_id("[B]")]


@every_kind
def test_rare_tokens_are_dropped_and_split_into_others(kind):
    corpus = [*TRAINING, "rallied shareholders"]
    (every, rows), (frequent, fewer_rows) = (pruned(whole(kind), corpus, min_count=count) for count in (1, 6))
    assert set(fewer_rows) < set(rows)
    counts = np.bincount([i for text in corpus for i in every.encode(text).ids], minlength=len(rows))
    assert set(rows[counts >= 6]) <= set(fewer_rows)
    old = unlimited(whole(kind)).get_vocab()
    assert {token: fewer_rows[i] for token, i in frequent.get_vocab().items()} == {
        token: old[token] for token in frequent.get_vocab()
    }
    for text in corpus if kind != "word_level" else []:
        assert frequent.encode(text).tokens.count("[UNK]") == every.encode(text).tokens.count("[UNK]")


def test_what_cannot_be_pruned_is_refused():
    twice = Tokenizer(models.WordLevel({"[UNK]": 0, "goal": 2}, unk_token="[UNK]"))
    twice.add_special_tokens(["[A]"])
    lost = Tokenizer.from_str(whole("word_level").to_str())
    lost.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 9_999))
    ends = Tokenizer(models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>"))
    for tokenizer, says in (
        (twice, "two tokens with the same id"),
        (lost, "9999, which no token has"),
        (ends, "marks the ends of words"),
    ):
        with pytest.raises(InputError, match=says):
            pruned(tokenizer, CORPUS)
    for corpus in ([], ["", " \n"]):
        with pytest.raises(InputError, match="holds no text"):
            pruned(whole("wordpiece"), corpus)
