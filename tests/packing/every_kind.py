"""A trained tokenizer of every kind, to prune and to pack."""

from functools import cache

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

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


def word_parts() -> Tokenizer:
    """BPE that marks where words go on."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="@"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = {"continuing_subword_prefix": "@"}
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


def word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(TRAINING, trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False))
    return tokenizer


def unlimited(tokenizer: Tokenizer) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


MAKERS = (wordpiece, byte_level, word_parts, byte_fallback, unigram, word_level)
KINDS = {make.__name__: make for make in MAKERS}
every_kind = pytest.mark.parametrize("kind", list(KINDS))


@cache
def whole(kind: str) -> Tokenizer:
    return KINDS[kind]()
