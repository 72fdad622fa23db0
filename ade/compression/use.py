"""How often each row of a table is expected to be read: from text, or from word lists of many languages."""

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ade.errors import InputError

BATCH = 2048  # texts tokenized at once
WITHOUT_SPACES = ("zh", "ja")  # languages whose words stand without spaces
WORDS = 20_000  # of a language
FORMS = ((str, 0.85, WORDS), (str.capitalize, 0.13, 8000), (str.upper, 0.02, 2000))  # of a word, shares, how many
PUNCTUATION = {",": 0.05, ".": 0.05, "-": 0.01, "'": 0.01, '"': 0.01, "\n": 0.01}  # shares of tokens
PUNCTUATION |= dict.fromkeys("?!:;()/%", 0.003) | dict.fromkeys("\u3002\u3001\uff0c", 0.002)
NUMBERS = tuple(str(number) for number in (*range(101), *range(1900, 2031)))


def count_use(tokenizer: Any, texts: Iterable[str], rows: int) -> Tensor:
    """Count the tokens of texts: (rows,)."""
    counts = np.zeros(rows, np.float64)
    for batch in _batches(texts):
        for ids in tokenizer(batch, add_special_tokens=True)["input_ids"]:
            counts += np.bincount(np.asarray(ids, np.int64), minlength=rows)[:rows] if len(ids) else 0
    return torch.from_numpy(counts)


def expected_use(tokenizer: Any, rows: int, languages: Sequence[str] = ()) -> Tensor:
    """Return the expected share of each token (rows,) by the frequencies of words in many languages.

    Without `languages`, those of the word lists, each counting by how well the tokenizer knows it: the share of its
    words that are one token, cubed. Raises InputError where the word lists are not installed.
    """
    if importlib.util.find_spec("wordfreq") is None:
        raise InputError("word frequencies need: pip install 'ade-embeddings[compress]'; or give --corpus FILE")
    import wordfreq

    known = sorted(wordfreq.available_languages("small"))
    missing = set(languages) - set(known)
    if missing:
        raise InputError(f"no word list for {', '.join(sorted(missing))}; there are: {' '.join(known)}")
    total, everything = np.zeros(rows), 0.0
    for language in languages or known:
        shares, single = _use_in(tokenizer, rows, wordfreq.get_frequency_dict(language, "small"), language)
        weight = 1.0 if languages else single**3
        total, everything = total + weight * shares, everything + weight
    total /= everything
    for mark, share in (*PUNCTUATION.items(), *((number, 0.02 / len(NUMBERS)) for number in NUMBERS)):
        ids = tokenizer(mark, add_special_tokens=False)["input_ids"]
        for token in ids[-1:]:
            total[token] += share
    return torch.from_numpy(total)


def _use_in(tokenizer: Any, rows: int, words: dict[str, float], language: str) -> tuple[np.ndarray, float]:
    """Return the share of each token in a language, and the share of its words that are a single token."""
    before = "" if language in WITHOUT_SPACES else " "
    shares, single, everything = np.zeros(rows), 0.0, sum(words.values())
    names, frequencies = list(words), np.array(list(words.values())) / everything  # most frequent first
    for form, share, most in FORMS:
        for start in range(0, min(most, len(names)), BATCH):
            batch = [before + form(word) for word in names[start : start + BATCH]]
            found = tokenizer(batch, add_special_tokens=False)["input_ids"]
            lengths = np.array([len(ids) for ids in found])
            weights = share * frequencies[start : start + BATCH]
            ids = np.concatenate([np.asarray(ids, np.int64) for ids in found]) if lengths.sum() else np.zeros(0, int)
            shares += np.bincount(ids, np.repeat(weights, lengths), minlength=rows)[:rows]
            single += float(weights[lengths <= 1].sum()) if form is str else 0.0
    return shares / shares.sum(), single / FORMS[0][1]


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
