"""Texts -> `Ragged`, the token ids of all of them; unknown tokens; and the words of a text that tokens belong to.

A word that the tokenizer splits into several pieces is put together again: by the characters on both sides of a token's
border, not by the tokenizer's own notion of a word, since some have none and others count punctuation to the word.
Imports numpy and tokenizers alone.
"""

import os
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np
from tokenizers import Encoding, Tokenizer, pre_tokenizers

from ade.data.known_words import KnownWords
from ade.data.problems import is_unicode
from ade.data.texts import GrowingArray
from ade.errors import InputError, first_line
from ade.progress import Report, silent

CHUNK = 4096  # texts tokenized at a time, and held in memory while streaming
LEXICON_TOKENS = 1 << 15  # maximum number of tokens of a text that a lexicon reads; the rest is ignored
FEW_TEXTS, SOME_CORES = 64, 6  # up to which words are looked up
CHARS = 16  # of a long text, characters tokenized per token that is kept; all of them if they do not suffice
SPARE = 64  # tokens a prefix must have after the last one that is kept
MAX_SHARE = 0.2  # of unknown tokens; above, another teacher is worth trying
MAX_COUNTED = 512  # tokens of each text in which unknown ones are counted, where the tokenizer does not truncate
UNSEEN = "\U0010fffd"  # the last character for private use, which no vocabulary has
SPACE = re.compile(r"[ \t\r\n\u3000]")  # where a text may be cut
TRUNCATION = {"strategy": "longest_first", "stride": 0, "direction": "right"}  # apart from max_length
SPACE_MARKS = "▁Ġ"  # how tokenizers write the space before a word
APOSTROPHES = "'\u2019"
JOINER = "\u200d"  # holds the parts of one emoji, or of one letter of an Indic script, together
# Scripts written without spaces between words: their tokens stay as they are.
UNSPACED = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Ragged:
    """The tokens of text i are `ids[offsets[i]:offsets[i + 1]]`; every text has at least one."""

    ids: np.ndarray  # (T,) int32; memory-mapped where there are very many
    offsets: np.ndarray  # (n + 1,) int64

    @classmethod
    def of(cls, texts: Sequence[Sequence[int] | np.ndarray]) -> "Ragged":
        """Put the token ids of texts one after the other."""
        offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)]).astype(np.int64)
        ids = np.concatenate([np.asarray(text, np.int32) for text in texts]) if len(texts) else np.empty(0, np.int32)
        return cls(ids, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[np.ndarray]:
        for start, end in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            yield self.ids[start:end]

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each text: (n,)."""
        return np.diff(self.offsets)

    def first(self, count: int) -> "Ragged":
        """Return the texts truncated to `count` tokens; themselves where none is longer."""
        lengths = self.lengths
        if lengths.max(initial=0) <= count:
            return self
        kept = np.minimum(lengths, count)
        runs = np.stack([kept, lengths - kept], 1).ravel()  # of each text, the tokens that stay, and those that go
        stays = np.repeat(np.tile([True, False], len(self)), runs)  # (T,)
        return Ragged(self.ids[stays], np.concatenate([[0], np.cumsum(kept)]))

    def take(self, rows: np.ndarray) -> "Ragged":
        """Return the texts of these row numbers, in this order."""
        starts, lengths = self.offsets[rows], self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        place = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Ragged(self.ids[place], offsets)

    def slice(self, start: int, end: int) -> "Ragged":
        """Return the texts from `start` up to `end`, without copying their tokens."""
        offsets = self.offsets[start : end + 1]
        return Ragged(self.ids[offsets[0] : offsets[-1]], offsets - offsets[0])

    def __add__(self, other: "Ragged") -> "Ragged":
        offsets = np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]])
        return Ragged(np.concatenate([self.ids, other.ids]), offsets)


def sorted_batches(lengths: np.ndarray, tokens: int = 16384) -> Iterator[np.ndarray]:
    """Yield every text once, longest first, in batches of at most `tokens` tokens, padding included."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, tokens // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size


def truncating(tokenizer: Tokenizer, max_length: int) -> Tokenizer:
    """A copy of a tokenizer that truncates to `max_length` tokens and does not pad."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.enable_truncation(max_length)
    return copy


def special_tokens_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids of the special tokens that a tokenizer adds before and after a text."""
    if tokenizer.num_special_tokens_to_add(False) == 0:
        return [], []
    for candidates in (lambda: ["a", "1", "."], lambda: sorted(tokenizer.get_vocab())):  # the second takes long
        for text in candidates():
            found = tokenizer.encode(text)
            own = [i for i, special in enumerate(found.special_tokens_mask) if not special]
            if own:
                return found.ids[: own[0]], found.ids[own[-1] + 1 :]
    raise InputError("the tokenizer finds no token in any text")


def tokenize(tokenizer: Tokenizer, texts: Sequence[str], max_length: int, report: Report = silent) -> Ragged:
    """Token ids of texts, truncated to `max_length` tokens; those of very many texts are memory-mapped."""
    ids, lengths = GrowingArray(np.int32), array("q")
    known = known_words(tokenizer) if len(texts) > FEW_TEXTS else None
    for part in tokenize_chunks(tokenizer, texts, max_length, known):
        ids.add(part.ids)
        lengths.extend(part.lengths.tolist())
        report("tokenize", len(lengths), len(texts), {})
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.frombuffer(lengths, np.int64), out=offsets[1:])
    return Ragged(ids.array(), offsets)


def known_words(tokenizer: Tokenizer) -> KnownWords | None:
    """Words whose ids are remembered, none yet; None for a tokenizer that does not go word by word."""
    return KnownWords.of(tokenizer, lambda: special_tokens_around(tokenizer))


def tokenize_chunks(
    tokenizer: Tokenizer, texts: Iterable[str], max_length: int, known: KnownWords | None = None
) -> Iterator[Ragged]:
    """Token ids of up to `CHUNK` texts each, truncated to `max_length` tokens; a text without tokens becomes id 0.

    Those of texts whose words are `known` are looked up. One core does that; many of them tokenize faster.
    """
    tokenizer = _truncating_to(tokenizer, max_length, special=True)
    for chunk in _chunks(texts):
        looked_up = known is not None and (len(chunk) <= FEW_TEXTS or (os.cpu_count() or 1) <= SOME_CORES)
        found: list[list[int] | None] = [None] * len(chunk)
        if known is not None and looked_up:
            found = known.ids(chunk, max_length, CHARS * (max_length + SPARE))
        others = [i for i, ids in enumerate(found) if ids is None]
        if others:
            encodings = _encode_prefixes(tokenizer, [chunk[i] for i in others], max_length, True, False)
            for i, encoding in zip(others, encodings, strict=True):
                found[i] = encoding.ids
        yield Ragged.of([ids or [0] for ids in found])


def encode_chunks(
    tokenizer: Tokenizer, texts: Iterable[str], max_length: int, special: bool = True, offsets: bool = False
) -> Iterator[list[Encoding]]:
    """Encodings of texts, truncated to `max_length` tokens, in lists of up to `CHUNK`.

    Of a long text only a prefix is tokenized, with the same result. `special` adds special tokens, `offsets` computes
    each token's character span.
    """
    tokenizer = _truncating_to(tokenizer, max_length, special)
    for chunk in _chunks(texts):
        yield _encode_prefixes(tokenizer, chunk, max_length, special, offsets)


def _truncating_to(tokenizer: Tokenizer, max_length: int, special: bool) -> Tokenizer:
    if special and max_length <= tokenizer.num_special_tokens_to_add(False):
        raise InputError(f"max_tokens is {max_length}, but the tokenizer adds as many special tokens to every text")
    if tokenizer.padding is not None or tokenizer.truncation != {**TRUNCATION, "max_length": max_length}:
        return truncating(tokenizer, max_length)
    return tokenizer


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    source, first = iter(texts), 0
    while chunk := list(islice(source, CHUNK)):
        check_texts(chunk, first)
        yield chunk
        first += len(chunk)


def _encode_prefixes(
    tokenizer: Tokenizer, texts: list[str], max_length: int, special: bool, offsets: bool
) -> list[Encoding]:
    """Encodings of texts, tokenizing only as much of long ones as their first `max_length` tokens need."""
    chars = CHARS * (max_length + SPARE)
    prefixes = [_prefix(text, chars) for text in texts]
    encodings = encode_batch(tokenizer, prefixes, special, offsets)

    # Where a prefix has too few tokens, all of the text is tokenized: cutting may change the last ones.
    special_tokens = tokenizer.num_special_tokens_to_add(False) if special else 0
    for i, text in enumerate(texts):
        if len(prefixes[i]) < len(text):
            tokens_after = sum(len(part.ids) - special_tokens for part in encodings[i].overflowing)
            if tokens_after < SPARE:
                encodings[i] = encode_batch(tokenizer, [text], special, offsets)[0]
    return encodings


def _prefix(text: str, chars: int) -> str:
    """The text up to the first space after `chars` characters, so that no word is split; all of it without one."""
    space = SPACE.search(text, chars) if len(text) > chars else None
    return text[: space.start()] if space else text


def encode_batch(tokenizer: Tokenizer, texts: list[str], special: bool = True, offsets: bool = False) -> list[Encoding]:
    """Encodings of texts with the tokenizer's own settings; an `InputError` quotes a text that cannot be tokenized."""
    call = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
    try:
        return call(texts, add_special_tokens=special)
    except Exception as error:  # tokenizers raises nothing more precise
        if len(texts) > 1:  # which of them is it
            for text in texts:
                encode_batch(tokenizer, [text], special, offsets)
        message = f"the tokenizer fails on {texts[0]!r:.40} ({first_line(error)})"
        if "unk" in str(error).lower():
            message += "; it needs a token for unknown words in its tokenizer.json"
        raise InputError(message) from None


def check_texts(texts: Iterable[str], first: int = 0) -> None:
    """Raise an error for texts that are not strings (None, nan), or not valid Unicode; they count from `first`."""
    for i, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise InputError(f"text {i} (counted from 0) is {text!r:.40}, not a string")
        if not is_unicode(text):
            raise InputError(f"text {i} (counted from 0) has half of a surrogate pair, which is no character")


def unknown_share(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Fraction of the tokens of texts, special tokens apart, that are unknown or single bytes; 0 where there are none.

    The embeddings of such tokens say nothing about a text. Bytes of ASCII are characters and do not count.
    """
    max_length = tokenizer.truncation["max_length"] if tokenizer.truncation else MAX_COUNTED
    chunks = encode_chunks(tokenizer, texts, max_length, special=False)
    ids = np.fromiter((token for chunk in chunks for encoding in chunk for token in encoding.ids), np.int64)
    return float(np.isin(ids, unknown_ids(tokenizer)).mean()) if len(ids) else 0.0


def unknown_ids(tokenizer: Tokenizer) -> np.ndarray:
    """Ids of the unknown token and of the tokens that are one byte of a character outside ASCII."""
    try:
        ids = {token.id for token in tokenizer.model.tokenize(UNSEEN)}
    except Exception:  # a model without an unknown token; tokenizers raises nothing more precise
        ids = set()
    spelled = [f"<0x{byte:02X}>" for byte in range(0x80, 0x100)]  # as sentencepiece spells bytes
    steps = [step for step in (tokenizer.normalizer, tokenizer.pre_tokenizer) if step is not None]
    if any(b'"ByteLevel"' in step.__getstate__() for step in steps):  # a character stands for each byte, as in GPT-2
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        in_ascii = range(0x100, 0x122)  # those of the bytes of ASCII that cannot be printed
        spelled += sorted(each for each in alphabet if ord(each) >= 0x80 and ord(each) not in in_ascii)
    known = (tokenizer.token_to_id(token) for token in spelled)
    return np.array(sorted(ids.union(number for number in known if number is not None)), np.int64)


@dataclass
class Pieces:
    """The tokens of one word, and the characters of the text it stands for: none where it is a special token."""

    tokens: list[int] = field(default_factory=list)
    start: int = 0
    end: int = 0


def group_pieces(text: str, tokens: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[Pieces]:
    """Group the tokens of a text into words, in order; every token is in exactly one. Words have no space around."""
    words: list[Pieces] = []
    spaces: list[int] = []  # tokens that are only a space: they belong to the word after it
    for i, (token, (start, end)) in enumerate(zip(tokens, spans, strict=True)):
        part = text[start:end]
        if (part and not part.strip()) or (not part and token and not token.strip(SPACE_MARKS)):
            spaces.append(i)
            continue

        start, end = end - len(part.lstrip()), start + len(part.rstrip())
        last = words[-1] if words and not spaces and words[-1].end > words[-1].start else None
        if last is not None and part and (start < last.end or (start == last.end and is_inside_word(text, start))):
            last.tokens.append(i)
            last.end = max(last.end, end)
        else:
            words.append(Pieces([*spaces, i], start, end))
            spaces = []

    if spaces:  # at the end of the text
        if not words:
            words.append(Pieces())
        words[-1].tokens += spaces
    return words


def is_inside_word(text: str, at: int) -> bool:
    """Whether the characters before and at this position belong to one word."""
    before, after = text[at - 1], text[at]
    if JOINER in (before, after) or unicodedata.category(after)[0] == "M":
        return True
    if _is_unspaced(before) or _is_unspaced(after):
        return False
    if before in APOSTROPHES:
        return at > 1 and text[at - 2].isalpha() and after.isalpha()
    if after in APOSTROPHES:
        return before.isalpha() and at + 1 < len(text) and text[at + 1].isalpha()
    return _is_letter(before) and _is_letter(after)


def _is_letter(character: str) -> bool:
    """Whether a character is a letter, a digit, or a mark on one of them."""
    return unicodedata.category(character)[0] in "LNM"


def _is_unspaced(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in UNSPACED)


def _disable_parallelism() -> None:
    """After a fork the child does not have the tokenizer's threads, and would wait for them forever."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disable_parallelism)
