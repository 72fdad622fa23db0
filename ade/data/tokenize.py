"""Texts -> token ids, end to end in one array. Loads numpy and tokenizers alone."""

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ade.errors import InputError, first_line
from ade.progress import Report, silent

CHUNK = 4096  # texts tokenized, and held while streaming, at a time


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
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int, report: Report = silent
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of texts, end to end, and where each starts; cut to `max_length`. A text without any token is id 0."""
    if max_length <= tokenizer.num_special_tokens_to_add(False):
        raise InputError(f"max_tokens is {max_length}, but the tokenizer puts as many special tokens around every text")
    if tokenizer.truncation is None or tokenizer.truncation["max_length"] != max_length:
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        tokenizer.enable_truncation(max_length)
    parts: list[np.ndarray] = []
    lengths: list[int] = []
    for start in range(0, len(texts), CHUNK):
        rows = [encoding.ids or [0] for encoding in tokenizer.encode_batch_fast(list(texts[start : start + CHUNK]))]
        count = [len(row) for row in rows]
        parts.append(np.fromiter(chain.from_iterable(rows), np.int32, sum(count)))
        lengths.extend(count)
        report("tokenize", min(start + CHUNK, len(texts)), len(texts), {})
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    return np.concatenate(parts or [np.empty(0, np.int32)]), offsets


def _alone() -> None:
    """A forked child has none of the tokenizer's threads: waiting for them would never end."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone)
