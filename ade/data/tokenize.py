"""Texts -> token ids in one array. Imports only numpy and tokenizers, so that the light runtime can use it."""

import os
import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from tokenizers import Encoding, Tokenizer

from ade.data.rows import is_unicode
from ade.data.spilling import SpilledArray
from ade.errors import InputError, first_line
from ade.progress import Report, silent

CHUNK = 4096  # texts tokenized at a time, and held in memory while streaming
WINDOWS = 64  # maximum number of windows of max_tokens per text; the rest of a text is ignored
CHARS = 16  # of a long text, characters tokenized per token that is kept; more if they do not suffice
SPARE = 64  # tokens a prefix must have after the last one that is kept, since cutting may change the last ones
SPACE = re.compile(r"[ \t\r\n\u3000]")  # where a text may be cut
TRUNCATION = {"strategy": "longest_first", "stride": 0, "direction": "right"}  # apart from max_length


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
    for text in ("a", "1", ".", *sorted(tokenizer.get_vocab())):
        found = tokenizer.encode(text)
        own = [i for i, special in enumerate(found.special_tokens_mask) if not special]
        if own:
            return found.ids[: own[0]], found.ids[own[-1] + 1 :]
    raise InputError("the tokenizer finds no token in any text")


def tokenize(
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int, report: Report = silent, first: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of texts in one array, and offsets: text i is `ids[offsets[i]:offsets[i + 1]]`.

    Texts are truncated to `max_length` tokens; a text without tokens becomes id 0. Errors count the texts from `first`.
    The ids of very many texts are memory-mapped.
    """
    ids, lengths = SpilledArray(np.int32), array("q")
    for encodings in encode_chunks(tokenizer, texts, max_length, report, first=first):
        rows = [encoding.ids or [0] for encoding in encodings]
        count = [len(row) for row in rows]
        ids.add(np.fromiter(chain.from_iterable(rows), np.int32, sum(count)))
        lengths.extend(count)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.frombuffer(lengths, np.int64), out=offsets[1:])
    return ids.array(), offsets


def split_windows(offsets: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Split texts in one array into windows of at most `size` tokens: offsets of the windows, and each text's first."""
    lengths = np.diff(offsets)
    counts = np.maximum(1, -(-lengths // size))  # (n,)
    first = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum())) - np.repeat(first, counts)
    starts = np.repeat(offsets[:-1], counts) + within * size
    return np.append(starts, offsets[-1]), first


def average_windows(scores: np.ndarray, windows: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Scores of texts (n, C) from those of their windows: the mean weighted by tokens; arguments as `split_windows`."""
    tokens = np.diff(windows).astype(np.float32)[:, None]
    return np.add.reduceat(scores * tokens, first) / np.add.reduceat(tokens, first)


def encode_chunks(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    max_length: int,
    report: Report = silent,
    first: int = 0,
    special: bool = True,
    offsets: bool = False,
) -> Iterator[list[Encoding]]:
    """Encodings of texts, truncated to `max_length` tokens, in lists of up to `CHUNK`.

    Of a long text only a prefix is tokenized, with the same result. `special` adds special tokens, `offsets` computes
    each token's character span.
    """
    if special and max_length <= tokenizer.num_special_tokens_to_add(False):
        raise InputError(f"max_tokens is {max_length}, but the tokenizer adds as many special tokens to every text")
    if tokenizer.padding is not None or tokenizer.truncation != {**TRUNCATION, "max_length": max_length}:
        tokenizer = truncating(tokenizer, max_length)

    for start in range(0, len(texts), CHUNK):
        chunk = list(texts[start : start + CHUNK])
        yield _encode_prefixes(tokenizer, chunk, max_length, first + start, special, offsets)
        report("tokenize", min(start + CHUNK, len(texts)), len(texts), {})


def _encode_prefixes(
    tokenizer: Tokenizer, texts: list[str], max_length: int, first: int, special: bool, offsets: bool
) -> list[Encoding]:
    """Encodings of texts, tokenizing only as much of long ones as their first `max_length` tokens need."""
    check_texts(texts, first)
    special_tokens = tokenizer.num_special_tokens_to_add(False) if special else 0

    def spare(encoding: Encoding) -> int:
        """Number of tokens after the last one that is kept."""
        return sum(len(part.ids) - special_tokens for part in encoding.overflowing)

    chars = CHARS * (max_length + SPARE)
    prefixes = [_prefix(text, chars) for text in texts]
    encodings = encode_batch(tokenizer, prefixes, first, special, offsets)

    # Prefixes that have too few tokens are made four times as long, until they have enough or are the whole text.
    short = [i for i, text in enumerate(texts) if len(prefixes[i]) < len(text)]
    while short := [i for i in short if len(prefixes[i]) < len(texts[i]) and spare(encodings[i]) < SPARE]:
        chars *= 4
        for i in short:
            prefixes[i] = _prefix(texts[i], chars)
            encodings[i] = encode_batch(tokenizer, [prefixes[i]], first + i, special, offsets)[0]
    return encodings


def _prefix(text: str, chars: int) -> str:
    """The text up to the first space after `chars` characters, so that no word is split; all of it without one."""
    space = SPACE.search(text, chars) if len(text) > chars else None
    return text[: space.start()] if space else text


def encode_batch(
    tokenizer: Tokenizer, texts: list[str], first: int = 0, special: bool = True, offsets: bool = False
) -> list[Encoding]:
    """Encodings of texts with the tokenizer's own settings; an `InputError` names a text that cannot be tokenized."""
    call = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
    try:
        return call(texts, add_special_tokens=special)
    except Exception as error:  # tokenizers raises nothing more precise
        check_texts(texts, first)
        raise _unreadable(tokenizer, texts, first, error) from None


def check_texts(texts: Sequence[str], first: int = 0) -> None:
    """Raise an error for texts that are not strings (None, nan), or not valid Unicode."""
    for i, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise InputError(f"text {i} (counted from 0) is {text!r:.40}, not a string")
        if not is_unicode(text):
            raise InputError(f"text {i} (counted from 0) has half of a surrogate pair, which is no character")


def _unreadable(tokenizer: Tokenizer, texts: list[str], first: int, error: Exception) -> InputError:
    """An error that names the text the tokenizer fails on, and the reason."""
    for i, text in enumerate(texts, first):
        try:
            tokenizer.encode(text)
        except Exception as own:
            if "unk" in str(own).lower():
                return InputError(
                    f"text {i} (counted from 0) has a word the tokenizer does not know, and it has no token for "
                    f"unknown words; give its tokenizer.json one ({first_line(own)})"
                )
            return InputError(f"text {i} (counted from 0): the tokenizer fails ({first_line(own)})")
    return InputError(f"the tokenizer fails ({first_line(error)})")


def _disable_parallelism() -> None:
    """After a fork the child does not have the tokenizer's threads, and would wait for them forever."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disable_parallelism)
