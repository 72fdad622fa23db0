"""Texts -> token ids, end to end in one array. Loads numpy and tokenizers alone."""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Encoding, Tokenizer

from ade.errors import InputError, first_line
from ade.progress import Report, silent

CHUNK = 4096  # texts tokenized, and held while streaming, at a time
WINDOWS = 64  # of max_tokens each: what is read of a text at most
CHARS = 16  # characters of a long text that are tokenized for each token to keep, more where they do not suffice
SPARE = 64  # tokens that must follow the last one kept in a prefix: what the cut changes at its end is among them
SPACE = re.compile(r"[ \t\r\n\u3000]")  # where a text may be cut
TRUNCATION = {"strategy": "longest_first", "stride": 0, "direction": "right"}  # beside max_length


def read_tokenizer(path: Path, known: int | None = None) -> Tokenizer:
    """A tokenizer.json; whatever is wrong with it is one clear error, as are more tokens than a model has `known`."""
    if not path.is_file():
        raise InputError(f"{path.parent}: has no {path.name}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more precise
        raise InputError(f"{path}: not a readable tokenizer.json ({first_line(error)})") from None
    if known is not None and tokenizer.get_vocab_size() > known:
        raise InputError(f"{path}: knows {tokenizer.get_vocab_size():,} tokens, the model {known:,}")
    return tokenizer


def around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens a tokenizer puts before and after a text."""
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
    """Token ids of texts, end to end, and where each starts; cut to `max_length`. A text without any token is id 0.

    Errors count the texts from `first`.
    """
    parts: list[np.ndarray] = []
    lengths: list[int] = []
    for encodings in encode_chunks(tokenizer, texts, max_length, report, first=first):
        rows = [encoding.ids or [0] for encoding in encodings]
        count = [len(row) for row in rows]
        parts.append(np.fromiter(chain.from_iterable(rows), np.int32, sum(count)))
        lengths.extend(count)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    return np.concatenate(parts or [np.empty(0, np.int32)]), offsets


def split_windows(offsets: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts kept end to end, cut into windows of at most `size` tokens: their offsets, and each text's first window."""
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
    """The encodings of texts, cut to `max_length` tokens, some thousand texts at a time.

    Of a long text only a prefix is tokenized, to the same tokens. `special` puts special tokens around every text,
    `offsets` gives each token its place in the text.
    """
    if special and max_length <= tokenizer.num_special_tokens_to_add(False):
        raise InputError(f"max_tokens is {max_length}, but the tokenizer puts as many special tokens around every text")
    if tokenizer.padding is not None or tokenizer.truncation != {**TRUNCATION, "max_length": max_length}:
        tokenizer = Tokenizer.from_str(tokenizer.to_str())  # the caller's stays as it is
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length)

    for start in range(0, len(texts), CHUNK):
        some = list(texts[start : start + CHUNK])
        yield _encode_prefixes(tokenizer, some, max_length, first + start, special, offsets)
        report("tokenize", min(start + CHUNK, len(texts)), len(texts), {})


def _encode_prefixes(
    tokenizer: Tokenizer, texts: list[str], max_length: int, first: int, special: bool, offsets: bool
) -> list[Encoding]:
    """Encodings of texts, tokenizing no more of a long one than its first `max_length` tokens need."""
    check_texts(texts, first)
    around_each = tokenizer.num_special_tokens_to_add(False) if special else 0

    def spare(encoding: Encoding) -> int:
        """Tokens past the last one that is kept."""
        return sum(len(part.ids) - around_each for part in encoding.overflowing)

    chars = CHARS * (max_length + SPARE)
    prefixes = [_prefix(text, chars) for text in texts]
    found = encode_batch(tokenizer, prefixes, first, special, offsets)

    short = [i for i, text in enumerate(texts) if len(prefixes[i]) < len(text)]
    while short := [i for i in short if len(prefixes[i]) < len(texts[i]) and spare(found[i]) < SPARE]:
        chars *= 4
        for i in short:
            prefixes[i] = _prefix(texts[i], chars)
            found[i] = encode_batch(tokenizer, [prefixes[i]], first + i, special, offsets)[0]
    return found


def _prefix(text: str, chars: int) -> str:
    """The text up to the first space after so many characters, so that no word is split; all of it without one."""
    space = SPACE.search(text, chars) if len(text) > chars else None
    return text[: space.start()] if space else text


def encode_batch(
    tokenizer: Tokenizer, texts: list[str], first: int = 0, special: bool = True, offsets: bool = False
) -> list[Encoding]:
    """What the tokenizer makes of texts as it is set; whatever it cannot read is one clear error."""
    call = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
    try:
        return call(texts, add_special_tokens=special)
    except Exception as error:  # tokenizers raises nothing more precise
        check_texts(texts, first)
        raise _unreadable(tokenizer, texts, first, error) from None


def check_texts(texts: Sequence[str], first: int = 0) -> None:
    """Refuse what is not a string (None, nan), or is one that no file can hold."""
    for i, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise InputError(f"text {i} (counted from 0) is {text!r:.40}, not a string")
        if not text.isascii():
            try:
                text.encode("utf8")
            except UnicodeEncodeError:
                raise InputError(
                    f"text {i} (counted from 0) has half of a surrogate pair, which is no character"
                ) from None


def _unreadable(tokenizer: Tokenizer, texts: list[str], first: int, error: Exception) -> InputError:
    """Which text the tokenizer fails on, and why."""
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


def _alone() -> None:
    """A forked child has none of the tokenizer's threads: waiting for them would never end."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone)
