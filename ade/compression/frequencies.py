"""How often each row of a table is expected to be read: from text, or from word lists of many languages.

What the tokenizer itself says (the probabilities of a Unigram model, the order in which merges were learned) fills in
the tokens that neither has.
"""

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from ade.data.tokens import encode_batch
from ade.errors import InputError
from ade.progress import Report, silent

BATCH = 2048  # texts tokenized at once
WORDS = 20_000  # of a language
FORMS: tuple[tuple[Callable[[str], str], str, float, int], ...] = (  # of a word; before it; share; words
    (str, " ", 0.80, WORDS), (str.capitalize, " ", 0.08, 8000), (str.upper, " ", 0.02, 2000),
    (str.capitalize, "", 0.08, 8000), (str, "", 0.02, 8000),  # where a text begins
)  # fmt: skip
WITHOUT_SPACES = ("zh", "ja")  # languages whose words stand without spaces
PUNCTUATION = {",": 0.05, ".": 0.05, "-": 0.01, "'": 0.01, '"': 0.01, "\n": 0.01}  # shares of tokens
PUNCTUATION |= dict.fromkeys("?!:;()/%", 0.003)
PUNCTUATION |= dict.fromkeys("\u3002\u3001\uff0c\uff1f\uff01\uff1a\uff08\uff09\u300c\u300d", 0.002)  # Chinese, Japanese
PUNCTUATION |= dict.fromkeys("\u0964\u060c\u061f\xbf\xa1\xab\xbb\u201c\u201d\u2019\u2013\u2014\u2026", 0.002)
NUMBERS = tuple(str(number) for number in (*range(101), *range(1900, 2031)))
EARLY = 1000  # the higher, the less the order of learning counts
LETTER = 4  # ranks that each letter of a BPE model is behind the one before
OWN = 0.5  # weight of the tokenizer's frequencies beside word lists
SMOOTHING = 0.3  # their weight beside counts
KNOWN, FALL = 0.6, 6  # languages with this share of single-token words count in full, others by (share / KNOWN) ** FALL
LANGUAGES, TEXTS, TEXT_WORDS = 32, 50, 12  # of generated texts: languages, texts of each, words of a text


def row_frequencies(tokenizer: Tokenizer, rows: int, texts: Sequence[str] = (), report: Report = silent) -> Tensor:
    """Return the expected share of each row (rows,): counted in texts if there are any, smoothed by what is known."""
    tokenizer = _plain(tokenizer)
    counts = torch.zeros(rows, dtype=torch.float64)
    for start in range(0, len(texts), BATCH):
        encodings = encode_batch(tokenizer, list(texts[start : start + BATCH]))
        ids = [token for encoding in encodings for token in encoding.ids]
        counts += torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=rows)
    if counts.sum() == 0:
        return _expected(tokenizer, rows, report)
    return (1 - SMOOTHING) * counts / counts.sum() + SMOOTHING * own_frequencies(tokenizer, rows)


def own_frequencies(tokenizer: Tokenizer, rows: int) -> Tensor:
    """Return what the tokenizer's model says of the share of each token (rows,); 0 for rows without a token.

    The probabilities of a Unigram model; else 1 / (rank + EARLY), by the order in which tokens were learned.
    """
    model = json.loads(tokenizer.to_str())["model"]
    shares = np.zeros(rows)
    if model["type"] == "Unigram":
        scores = np.array([score for _, score in model["vocab"]])
        scores = np.where(scores < 0, scores, -np.inf)  # special tokens have the score 0
        shares[: len(scores)] = np.exp(scores)[:rows]
    else:
        ranks = _merge_ranks(model) if model["type"] == "BPE" else model["vocab"]
        for token, number in model["vocab"].items():
            shares[number] = 1 / (ranks[token] + EARLY)
    return torch.from_numpy(shares / max(shares.sum(), 1e-300))


def _merge_ranks(model: Mapping[str, Any]) -> dict[str, int]:
    """Return the rank of every token of a BPE model.

    Letters, which are not learned, rank by the first merge that has them, or a few ranks a letter where that is
    earlier.
    """
    learned: dict[str, int] = {}
    first: dict[str, int] = {}  # merge that has a token as a part
    for rank, pair in enumerate(model["merges"]):
        parts = pair if isinstance(pair, list) else pair.split(" ", 1)
        learned.setdefault("".join(parts), rank)
        for part in parts:
            first.setdefault(part, rank)
    last = len(model["merges"])
    letters = sorted((token for token in model["vocab"] if token not in learned), key=lambda t: first.get(t, last))
    return learned | {letter: min(first.get(letter, last), LETTER * place) for place, letter in enumerate(letters)}


def _expected(tokenizer: Tokenizer, rows: int, report: Report) -> Tensor:
    """Return the expected share of each token by the frequencies of words in many languages.

    Those languages count in full that the tokenizer knows: where enough of their words are one token.
    """
    lists = word_lists()
    total = np.zeros(rows)
    for number, (language, words) in enumerate(lists.items()):
        report("words", number, len(lists), {})
        names = list(words)  # most frequent first
        frequencies = np.array(list(words.values()))
        frequencies /= frequencies.sum()
        shares = np.zeros(rows)  # of each token, and of words that are a single token
        whole = 0.0
        for form, space, share, most in FORMS:
            before = "" if language in WITHOUT_SPACES else space
            ids = _ids(tokenizer, [before + form(word) for word in names[:most]])
            weights = frequencies[:most]
            tokens = np.array([token for word in ids for token in word], np.int64)
            each = share * np.repeat(weights, [len(word) for word in ids])
            shares += np.bincount(tokens, each, minlength=rows)[:rows]
            if form is str and space:
                whole = float(weights[_whole(tokenizer, ids)].sum())
        total += shares / shares.sum() * min(1.0, whole / KNOWN) ** FALL
    report("words", len(lists), len(lists), {})
    total /= max(total.sum(), 1e-300)

    for mark, share in (*PUNCTUATION.items(), *((number, 0.02 / len(NUMBERS)) for number in NUMBERS)):
        for token in tokenizer.encode(mark, add_special_tokens=False).ids[-1:]:
            total[token] += share
    return (1 - OWN) * torch.from_numpy(total / total.sum()) + OWN * own_frequencies(tokenizer, rows)


def word_lists() -> dict[str, dict[str, float]]:
    """Return the most frequent words of each language that there is a list for, with their frequencies."""
    try:
        import wordfreq
    except ImportError:
        advice = "pip install 'ade-embeddings[compress]'; or give --corpus FILE"
        raise InputError(f"word frequencies need: {advice}") from None

    lists = {}
    for language in sorted(wordfreq.available_languages("small")):
        words = wordfreq.get_frequency_dict(language, "small")
        lists[language] = dict(islice(words.items(), WORDS))
    return lists


def generated_texts(tokenizer: Tokenizer, count: int) -> list[str]:
    """Return texts of words drawn by their frequencies, in the languages of which a tokenizer has most words whole."""
    tokenizer, lists = _plain(tokenizer), word_lists()
    whole = {}
    for language, words in lists.items():
        ids = _ids(tokenizer, [" " + word for word in list(words)[:500]])
        whole[language] = float(np.mean(_whole(tokenizer, ids)))
    known = sorted(sorted(lists, key=lambda language: -whole[language])[:LANGUAGES])

    texts, chooser = [], random.Random(1)
    for language in known:
        words = lists[language]
        space = "" if language in WITHOUT_SPACES else " "
        drawn = chooser.choices(list(words), list(words.values()), k=TEXTS * TEXT_WORDS)
        made = [space.join(drawn[at : at + TEXT_WORDS]) for at in range(0, len(drawn), TEXT_WORDS)]
        texts += made[: math.ceil(count / len(known))]
    return texts


def _whole(tokenizer: Tokenizer, words: list[list[int]]) -> np.ndarray:
    """Return which words, each as its ids, are a single token (words,).

    The mark of a space that SentencePiece puts before a text does not count, and the unknown token is no word.
    """
    name = getattr(tokenizer.model, "unk_token", None)
    mark = tokenizer.token_to_id("\u2581")
    unknown = tokenizer.token_to_id(name) if name else None
    bare = [ids[1:] if ids[:1] == [mark] else ids for ids in words]
    return np.array([len(ids) == 1 and ids[0] != unknown for ids in bare], bool)


def _ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that neither pads nor truncates, as that of some models does."""
    if tokenizer.padding is None and tokenizer.truncation is None:
        return tokenizer
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_padding()
    plain.no_truncation()
    return plain
