"""Change a tokenizer so that its packed file is small; texts are split as before, or nearly so.

- Tokens are numbered in alphabetical order: neighbours then share their beginnings, which are not stored again. The
  table's rows follow. BPE keeps its order, from which its merges follow.
- sentencepiece's character map, a third of a megabyte, is replaced by Unicode's NFKC, which it was made from.
- The scores of Unigram are rounded to few digits: few enough that not more than one text in a thousand is split in
  another way, where two ways are about equally likely.

The last two are undone where texts are given and more of them than that are split differently. A model is trained and
used with the changed tokenizer, so training and prediction always agree.
"""

import base64
import json
import sys
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer, normalizers

from ade.errors import InputError
from ade.packing.prune_vocabulary import encoded, rewritten, without_truncation

DIGITS = (1, 2, 3, 4)  # decimal digits of scores that are tried
DIGITS_UNCHECKED = 3  # without texts to check them on
TOLERANCE = 0.001  # fraction of texts that may be split differently
CHECKED_TEXTS = 20_000  # at most; evenly spaced among those given
NFKC = [{"type": "Nmt"}, {"type": "NFKC"}]  # what sentencepiece's usual character map does
DIFFERENT_CHARACTERS = 8  # characters that the two may normalise differently, of about 150,000
Json = dict[str, Any]


def compact(tokenizer: Tokenizer, texts: Sequence[str] = ()) -> tuple[Tokenizer, np.ndarray]:
    """Return a tokenizer whose packed file is smaller, and the old id of each of its tokens.

    `texts` are what the effect on tokenization is checked on. A tokenizer of an unknown kind stays as it is.
    """
    try:
        spec, original = without_truncation(tokenizer)
    except InputError:
        return tokenizer, np.arange(tokenizer.get_vocab_size())

    sample = [texts[i] for i in range(0, len(texts), max(1, -(-len(texts) // CHECKED_TEXTS)))]
    before = list(encoded(original, sample))
    spec = _with_nfkc(spec, sample, before)
    spec = _with_rounded_scores(spec, sample, before)
    return _in_order(spec, original)


def _changed(spec: Json, texts: Sequence[str], before: Sequence[np.ndarray]) -> float:
    """The fraction of texts that a tokenizer splits differently."""
    after = encoded(Tokenizer.from_str(json.dumps(spec)), texts)
    changed = sum(not np.array_equal(new, old) for new, old in zip(after, before, strict=True))
    return changed / max(1, len(texts))


def _with_nfkc(spec: Json, texts: Sequence[str], before: Sequence[np.ndarray]) -> Json:
    """The tokenizer with NFKC in place of sentencepiece's character map, where both do the same."""
    normalizer = spec["normalizer"] or {"type": "none"}
    parts = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    if not any(part["type"] == "Precompiled" for part in parts):
        return spec

    changed: list[Json] = []
    for part in parts:
        replaceable = part["type"] == "Precompiled" and _is_nfkc(part["precompiled_charsmap"])
        changed.extend(NFKC if replaceable else [part])
    candidate = {**spec, "normalizer": {"type": "Sequence", "normalizers": changed}}
    return candidate if _changed(candidate, texts, before) <= TOLERANCE else spec


@cache
def _is_nfkc(character_map: str) -> bool:
    """Whether a character map normalises each character as `NFKC` does, apart from a few."""
    theirs = normalizers.Precompiled(base64.b64decode(character_map))
    ours = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    different = 0
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        if unicodedata.category(character) in ("Cn", "Co", "Cs"):  # unassigned, for private use, surrogates
            continue
        different += theirs.normalize_str(character) != ours.normalize_str(character)
        if different > DIFFERENT_CHARACTERS:
            return False
    return True


def _with_rounded_scores(spec: Json, texts: Sequence[str], before: Sequence[np.ndarray]) -> Json:
    """The tokenizer with scores of the fewest digits that split texts as before; unchanged where it has no scores."""
    if spec["model"]["type"] != "Unigram":
        return spec
    for digits in DIGITS if len(texts) else (DIGITS_UNCHECKED,):
        scores = [[token, round(score, digits)] for token, score in spec["model"]["vocab"]]
        candidate = {**spec, "model": {**spec["model"], "vocab": scores}}
        if _changed(candidate, texts, before) <= TOLERANCE:
            return candidate
    return spec


def _in_order(spec: Json, original: Tokenizer) -> tuple[Tokenizer, np.ndarray]:
    """The tokenizer with its tokens in alphabetical order, added tokens first, and the old id of each."""
    added = {token["id"] for token in spec["added_tokens"]}

    def place(number: int) -> tuple[bool, str]:
        return (number not in added, "" if number in added else str(original.id_to_token(number)))

    kept = set(original.get_vocab(with_added_tokens=True).values())
    return rewritten(spec, kept, None if spec["model"]["type"] == "BPE" else place)
