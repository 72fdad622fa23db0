"""Pruning a vocabulary loses rows and nothing else: the corpus is cut as before, other texts stay known."""

import json
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ade.errors import InputError
from ade.packing.prune_vocabulary import pruned
from ade.teachers import Teacher

TRAINING = [
    "the market rallied as banks reported higher profits and lower costs than traders had feared",
    "a rocket carrying the lunar probe reached its orbit before the comet could be photographed",
    "the coach praised his team after a late goal decided the final match of the league",
    "shareholders, regulators & brokers argued over 1,250 pages of reporting in 2024",
    "astronomers measured the planet's atmosphere while engineers repaired the probing antennas",
    "naïve café owners served crème brûlée and jalapeño soup",
] * 3
CORPUS = [TRAINING[0], "[CLS] the coach reported a profit", "", "prices of 東京 fell"]
ALPHABET = "".join(sorted(set("".join(TRAINING))))
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    cls, sep = (("[CLS]", tokenizer.token_to_id("[CLS]")), ("[SEP]", tokenizer.token_to_id("[SEP]")))
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    tokenizer.enable_truncation(4)  # what is cut off belongs to the corpus too
    tokenizer.enable_padding(length=4)
    return tokenizer


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.add_special_tokens(["<late>", "<later>"])
    late = ("<late>", tokenizer.token_to_id("<late>"))
    ends = processors.RobertaProcessing(late, ("[CLS]", tokenizer.token_to_id("[CLS]")))
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), ends])
    return tokenizer


def word_ends() -> Tokenizer:
    """BPE that marks where words go on and where they end."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="@", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = {"continuing_subword_prefix": "@", "end_of_word_suffix": "</w>"}
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False, **marks)
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """BPE as converted from sentencepiece: a merge for each way to build a token, bytes for unknown characters."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    alphabet = list("<>0123456789abcdefxABCDEF")  # what spells '<0x0A>': no byte stays for want of a letter
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(TRAINING, trainer)
    pieces = sorted(trained.get_vocab(), key=trained.token_to_id)
    names = ["<unk>", "<s>", *BYTES, *pieces]
    known = set(pieces)
    splits = [(piece[:i], piece[i:]) for piece in pieces for i in range(1, len(piece))]
    merges = [(left, right) for left, right in splits if left in known and right in known]
    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>"])
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=SPECIAL, unk_token="[UNK]", max_piece_length=8, show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.add_special_tokens(["[MASK]"])
    roles = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]", "[MASK]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [MASK]:1", special_tokens=roles
    )
    return tokenizer


def unigram_bytes() -> Tokenizer:
    pieces = [*((byte, -9.0) for byte in BYTES), *json.loads(unigram().to_str())["model"]["vocab"]]
    pieces += [(letter, -9.5) for letter in "<>0123456789abcdefxABCDEF" if letter not in ALPHABET]
    tokenizer = Tokenizer(models.Unigram([tuple(piece) for piece in pieces], 257, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(TRAINING, trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False))
    return tokenizer


def teacher_of(tokenizer: Tokenizer, surplus: int = 3) -> Teacher:
    rows = max(tokenizer.get_vocab().values()) + 1 + surplus
    return Teacher("tiny", torch.arange(rows, dtype=torch.float32)[:, None].repeat(1, 2), tokenizer)


def unlimited(tokenizer: Tokenizer) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def check(before: Teacher, after: Teacher, corpus: list[str]) -> None:
    """What must hold of every pruned teacher: same cuts, contiguous ids, and each token's own row, in the old order."""
    exact = unlimited(before.tokenizer)
    for text in corpus:
        assert after.tokenizer.encode(text).tokens == exact.encode(text).tokens
        assert after.tokenizer.encode(text, text).tokens == exact.encode(text, text).tokens
    old, new = exact.get_vocab(), after.tokenizer.get_vocab()
    assert sorted(new.values()) == list(range(len(after.table)))
    for token, number in new.items():
        assert torch.equal(after.table[number], before.table[old[token]])
    rows = after.table[:, 0].tolist()
    assert all(one < next_one for one, next_one in pairwise(rows))


MAKERS = (wordpiece, byte_level, word_ends, byte_fallback, unigram, unigram_bytes, word_level)
KINDS = {make.__name__: make for make in MAKERS}
every_kind = pytest.mark.parametrize("kind", list(KINDS))


@cache
def whole(kind: str) -> Teacher:
    return teacher_of(KINDS[kind]())


@cache
def fewer(kind: str) -> Teacher:
    return pruned(whole(kind), iter(CORPUS))


@every_kind
def test_the_corpus_is_cut_as_before_by_fewer_tokens(kind):
    check(whole(kind), fewer(kind), CORPUS)
    assert len(fewer(kind).table) < 0.9 * whole(kind).tokenizer.get_vocab_size()
    assert fewer(kind).tokenizer.padding is None
    assert fewer(kind).tokenizer.truncation is None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "word_level"])
@given(text=st.text(ALPHABET, max_size=40) | st.text(max_size=10))
def test_other_texts_get_no_new_unknown_tokens(kind, text):
    found, expected = fewer(kind).tokenizer.encode(text), unlimited(whole(kind).tokenizer).encode(text)
    for unknown in ("[UNK]", "<unk>"):
        assert found.tokens.count(unknown) <= expected.tokens.count(unknown)
    if kind in ("byte_level", "byte_fallback", "unigram_bytes"):
        spelled = fewer(kind).tokenizer.decode(found.ids, skip_special_tokens=False)
        assert spelled == whole(kind).tokenizer.decode(expected.ids, skip_special_tokens=False)


@every_kind
@given(text=st.text(ALPHABET, max_size=40))
def test_any_text_as_the_corpus_comes_out_as_before(kind, text):
    check(whole(kind), pruned(whole(kind), [text, "goal"]), [text])


@every_kind
def test_a_saved_tokenizer_encodes_the_same(kind, tmp_path):
    fewer(kind).tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*CORPUS, *TRAINING]:
        assert loaded.encode(text).ids == fewer(kind).tokenizer.encode(text).ids


@every_kind
def test_pruning_twice_changes_nothing(kind):
    again = pruned(fewer(kind), CORPUS)
    assert again.tokenizer.get_vocab() == fewer(kind).tokenizer.get_vocab()
    assert torch.equal(again.table, fewer(kind).table)


@every_kind
def test_all_special_tokens_stay_special(kind):
    found = fewer(kind).tokenizer.get_added_tokens_decoder()
    expected = whole(kind).tokenizer.get_added_tokens_decoder()
    assert [str(token.content) for token in found.values()] == [str(token.content) for token in expected.values()]
    for number, token in found.items():
        assert token.special
        assert fewer(kind).tokenizer.encode(token.content, add_special_tokens=False).ids == [number]


def test_post_processors_add_the_new_ids():
    for kind, ends in {
        "wordpiece": ("[CLS]", "[SEP]"),
        "byte_level": ("[CLS]", "<late>"),
        "unigram": ("[CLS]", "[SEP]"),
    }.items():
        tokenizer = fewer(kind).tokenizer
        ids = tokenizer.encode("goal").ids
        assert [ids[0], ids[-1]] == [tokenizer.token_to_id(name) for name in ends]
    tokenizer = fewer("unigram").tokenizer
    assert tokenizer.token_to_id("[MASK]") != whole("unigram").tokenizer.token_to_id("[MASK]")
    assert tokenizer.encode("goal", "goal").ids[-1] == tokenizer.token_to_id("[MASK]")


def test_bytes_all_stay():
    kept = fewer("byte_level").tokenizer.get_vocab()
    assert kept.keys() >= set(pre_tokenizers.ByteLevel.alphabet())
    assert fewer("byte_fallback").tokenizer.get_vocab().keys() >= set(BYTES)
    assert fewer("unigram_bytes").tokenizer.get_vocab().keys() >= set(BYTES)


def test_bpe_keeps_no_token_out_of_reach():
    for kind in ("byte_level", "byte_fallback", "word_ends"):
        model = json.loads(fewer(kind).tokenizer.to_str())["model"]
        skip = len(model["continuing_subword_prefix"] or "")
        made = {left + right[skip:] for left, right in model["merges"]}
        marks = (model["continuing_subword_prefix"] or "", model["end_of_word_suffix"] or "")
        long = [token for token in model["vocab"] if len(token.removeprefix(marks[0]).removesuffix(marks[1])) > 1]
        assert made >= {token for token in long if token not in SPECIAL and not token.startswith("<")}


class Written:
    """A tokenizer whose JSON is written another way, as other versions do it."""

    def __init__(self, tokenizer: Tokenizer, **model: object) -> None:
        self.tokenizer = tokenizer
        spec = json.loads(tokenizer.to_str())
        self.text = json.dumps({**spec, "model": {**spec["model"], **model}})

    def to_str(self) -> str:
        return self.text

    def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
        return self.tokenizer.get_vocab(with_added_tokens)


def test_merges_may_be_written_in_one_string():
    merges = json.loads(whole("byte_level").tokenizer.to_str())["model"]["merges"]
    assert isinstance(merges[0], list)
    written = Written(whole("byte_level").tokenizer, merges=[" ".join(merge) for merge in merges])
    found = pruned(Teacher("tiny", whole("byte_level").table, written), CORPUS)
    assert json.loads(found.tokenizer.to_str()) == json.loads(fewer("byte_level").tokenizer.to_str())


def test_a_token_with_a_character_without_a_piece_stays():
    vocabulary = ["[UNK]", "a", "##a", "b", "##b", "##bx", "ab", "aba", "bab"]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    found = pruned(teacher_of(tokenizer), ["aba"])
    assert found.tokenizer.encode("abx bax").tokens == ["a", "##bx", "[UNK]"]
    assert "bab" not in found.tokenizer.get_vocab()


def test_a_word_unknown_before_stays_unknown():
    """'abx' was unknown since 'ab' is longer than 'a'; without 'ab' it would be 'a', '##bx'."""
    vocabulary = ["[UNK]", "a", "##a", "b", "##b", "##bx", "ab", "aba", "bab"]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    teacher = teacher_of(tokenizer)
    found = pruned(teacher, ["abx"])
    check(teacher, found, ["abx"])
    assert found.tokenizer.encode("abx").tokens == ["[UNK]"]
    assert "bab" not in found.tokenizer.get_vocab()


def test_unigram_unknowns_cost_as_much_as_before():
    """What an unknown character costs depends on the least likely piece, here one the corpus never uses."""
    pieces = [("p", -20.0), ("x", -20.0), ("xb", -20.0), ("px", -1.0), ("z", -1.0), ("zz", -50.0)]
    teacher = teacher_of(Tokenizer(models.Unigram([*pieces, ("zp", -2.0), ("<unk>", 0.0)], unk_id=7)))
    found = pruned(teacher, ["pxb", "px"])
    assert found.tokenizer.encode("pxb").tokens == ["p", "xb"]
    check(teacher, found, ["pxb", "px", "pq"])
    assert found.tokenizer.encode("q").ids == [found.tokenizer.token_to_id("<unk>")]
    assert "zp" not in found.tokenizer.get_vocab()


def test_gaps_in_the_ids_are_closed():
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 2, "goal": 6, "late": 7, "match": 11}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[A]", "[B]"])
    found = pruned(Teacher("tiny", torch.arange(20.0)[:, None], tokenizer), ["match"])
    assert found.tokenizer.get_vocab() == {"[UNK]": 0, "match": 1, "[A]": 2, "[B]": 3}
    assert found.table[:, 0].tolist() == [2, 11, tokenizer.token_to_id("[A]"), tokenizer.token_to_id("[B]")]


def test_two_tokens_with_one_id_are_refused():
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "goal": 2}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[A]"])
    with pytest.raises(InputError, match="two tokens with the same id"):
        pruned(teacher_of(tokenizer), ["goal"])


@every_kind
def test_rare_tokens_are_dropped_and_split_into_others(kind):
    corpus = [*TRAINING, "rallied shareholders"]
    all_of_them, frequent = pruned(whole(kind), corpus), pruned(whole(kind), corpus, min_count=6)
    kept, names = frequent.tokenizer.get_vocab(), all_of_them.tokenizer.get_vocab()
    assert len(kept) < len(names)
    counts = dict.fromkeys(names, 0)
    for text in corpus:
        for token in all_of_them.tokenizer.encode(text).tokens:
            counts[token] += 1
    assert {token for token, count in counts.items() if count >= 6} <= kept.keys()
    for token, number in kept.items():
        assert torch.equal(frequent.table[number], all_of_them.table[names[token]])
    if kind != "word_level":
        for text in corpus:
            expected = all_of_them.tokenizer.encode(text).tokens.count("[UNK]")
            assert frequent.tokenizer.encode(text).tokens.count("[UNK]") == expected


def test_a_word_level_teacher_forgets_words():
    assert fewer("word_level").tokenizer.encode("the rocket").tokens == ["the", "[UNK]"]


def test_a_processor_with_an_id_of_no_token_is_refused():
    tokenizer = Tokenizer.from_str(whole("word_level").tokenizer.to_str())
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 9_999))
    with pytest.raises(InputError, match="9999, which no token has"):
        pruned(teacher_of(tokenizer), CORPUS)


def test_other_models_are_refused():
    with pytest.raises(InputError, match="cannot prune a Syllables vocabulary, only WordPiece, BPE"):
        pruned(Teacher("tiny", torch.zeros(9, 2), Written(whole("word_level").tokenizer, type="Syllables")), CORPUS)


@pytest.mark.parametrize("corpus", [[], ["", " \n"]])
def test_an_empty_corpus_is_refused(corpus):
    with pytest.raises(InputError, match="holds no text"):
        pruned(whole("wordpiece"), corpus)
