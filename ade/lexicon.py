"""The lexicon: unigrams and bigrams of tokens whose scores are added to the model's.

A linear classifier beside the model. Its features are the distinct tokens and the distinct bigrams of a whole text,
weighted by inverse document frequency (idf) and scaled to unit length:

    scores += bias + sum_f s_f / sqrt(sum_f idf_f^2)        over the entries f found in the text, s_f = idf_f w_f

The scores s_f are stored in few bits, with a scale for each entry. `ade/fitting` fits a lexicon.
"""

from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from ade import plain
from ade.codebook import Stored
from ade.data.tokens import Ragged
from ade.errors import InputError
from ade.packing.bits import pack_rows, rows_stored, unpack_rows
from ade.packing.format import check_arrays, check_finite, layout_bytes
from ade.packing.keys import KeySizes, pack_keys, unpack_keys

MIN_TEXTS = 2  # training texts an n-gram must occur in to become an entry
CHUNK = 1 << 15  # texts per batch when n-grams are counted
BITS = 4  # of a score as it is stored


def key_end(vocabulary: int) -> int:
    """Return the number of possible keys: a token's key is its id, a bigram's vocabulary * (first + 1) + second."""
    return vocabulary * (vocabulary + 1)


def keys_of(texts: Ragged, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of all tokens, then of all bigrams of texts, and the number of the text of each."""
    ids = texts.ids.astype(np.int64)
    text = np.repeat(np.arange(len(texts)), texts.lengths)
    same_text = text[1:] == text[:-1]
    bigrams = (vocabulary * (ids[:-1] + 1) + ids[1:])[same_text]
    return np.concatenate([ids, bigrams]), np.concatenate([text, text[1:][same_text]])


def frequent_keys(texts: Ragged, vocabulary: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys that occur in at least `MIN_TEXTS` texts, ascending, and the number of texts of each.

    If there are more than `limit`, the most frequent ones.
    """
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for start in range(0, len(texts), CHUNK):
        chunk_keys, text = keys_of(texts.slice(start, min(start + CHUNK, len(texts))), vocabulary)

        # A key counts once per text, however often the text has it.
        order = np.lexsort((chunk_keys, text))
        chunk_keys, text = chunk_keys[order], text[order]
        first_in_text = (np.diff(chunk_keys, prepend=-1) != 0) | (np.diff(text, prepend=-1) != 0)
        distinct = chunk_keys[first_in_text]

        keys, inverse = np.unique(np.concatenate([keys, distinct]), return_inverse=True)
        added = np.concatenate([counts, np.ones(len(distinct), np.int64)])
        counts = np.bincount(inverse, added, len(keys)).astype(np.int64)

    frequent = counts >= MIN_TEXTS
    keys, counts = keys[frequent], counts[frequent]
    if len(keys) > limit:
        most_frequent = np.sort(np.argsort(-counts, kind="stable")[:limit])
        keys, counts = keys[most_frequent], counts[most_frequent]
    return keys, counts


class Lexicon(plain.Lexicon):
    """n entries with their scores of C labels; all in float32, keys in int64."""

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, texts: Ragged) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct entries of each text, and the number of the text of each, ascending."""
        keys, text = keys_of(texts, self.vocabulary)
        entry, count = self._entries(keys), len(self)

        # Distinct (text, entry), sorted: as one number each.
        combined = np.sort((text * count + entry)[entry < count])
        combined = combined[np.flatnonzero(np.diff(combined, prepend=-1))]  # `np.unique` takes twice as long
        return combined % max(1, count), combined // max(1, count)

    def _entries(self, keys: np.ndarray) -> np.ndarray:
        """Return the entry of each key, n where there is none."""
        entry = np.searchsorted(self.keys, keys)
        return np.where(self._keys_and_end[entry] == keys, entry, len(self))

    @cached_property
    def _keys_and_end(self) -> np.ndarray:
        """The keys, then one that no n-gram has."""
        return np.append(self.keys, -1)

    def added(self, texts: Ragged) -> np.ndarray:
        """Return what the lexicon adds to the scores of texts: (n, C)."""
        entry, text = self.find(texts)
        added = np.tile(self.bias, (len(texts), 1))
        if len(entry):
            norm = np.sqrt(np.bincount(text, self.idf[entry] ** 2, len(texts))).astype(np.float32)  # (n,)
            first = np.flatnonzero(np.diff(text, prepend=-1))  # the first entry of each text that has one
            sums = np.add.reduceat(self.scores[entry], first, 0)
            added[text[first]] += sums / norm[text[first], None]
        return added

    def contributions(self, ids: np.ndarray) -> list[tuple[int, list[int], np.ndarray]]:
        """Return length, positions and contribution (C,) of each entry of a text, which `added` adds to its bias."""
        keys, _ = keys_of(Ragged.of([ids]), self.vocabulary)
        places: dict[int, list[int]] = {}  # of the tokens first, then of the bigrams: as `keys_of` returns them
        for i, entry in enumerate(self._entries(keys).tolist()):
            if entry < len(self):
                places.setdefault(entry, []).append(i % len(ids))
        norm = np.sqrt((self.idf[list(places)].astype(np.float64) ** 2).sum())
        found = []
        for entry, at in places.items():
            length = 1 if self.keys[entry] < self.vocabulary else 2
            found.append((length, at, self.scores[entry].astype(np.float64) / norm))
        return found

    def select(self, entries: np.ndarray) -> "Lexicon":
        """Return the lexicon with some of its entries."""
        return Lexicon(self.vocabulary, self.keys[entries], self.idf[entries], self.scores[entries], self.bias)

    def stored(self) -> Stored:
        """Return sizes and arrays as they are stored; `read_lexicon` is the inverse."""
        # Scales are float16, and a regression's scores may be large: a power of 256 brings them near to 1.
        unit = 256.0 ** np.round(np.log2(np.abs(self.scores).max(initial=1e-30)) / 8)
        scores, scales = pack_rows(self.scores / unit, BITS)
        arrays = {"scores": scores, "scales": scales, "unit": np.array([unit], np.float32), "bias": self.bias}
        arrays |= pack_keys(self.keys, self.idf, key_end(self.vocabulary))
        return {"entries": len(self), "labels": len(self.bias), "vocabulary": self.vocabulary}, arrays

    def rounded(self) -> "Lexicon":
        """Return the lexicon as it will be read back."""
        return read_lexicon(*self.stored())

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays."""
        return sum(array.nbytes for array in self.stored()[1].values())


def read_lexicon(sizes: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Lexicon:
    """Return the lexicon that `stored` gave; raises `InputError` for damaged sizes or arrays."""
    try:
        entries, labels, vocabulary = (int(sizes[name]) for name in ("entries", "labels", "vocabulary"))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the sizes of its lexicon are not valid ({error})") from None
    if not (0 <= entries <= key_end(vocabulary) and labels >= 1):
        raise InputError("the sizes of its lexicon are not valid")
    keys, idf = unpack_keys(KeySizes(entries, key_end(vocabulary)), arrays)
    stored = rows_stored(entries, labels, BITS)
    layout = {"unit": ("float32", (1,)), "bias": ("float32", (labels,))}
    check_arrays(dict(zip(("scores", "scales"), stored, strict=True)) | layout, arrays)
    scores, bias = unpack_rows(arrays["scores"], arrays["scales"], labels) * arrays["unit"], arrays["bias"]
    for name, array in (("idf", idf), ("scales", arrays["scales"]), ("unit", arrays["unit"]), ("bias", bias)):
        check_finite(f"{name} of the lexicon", array)
    return Lexicon(vocabulary, keys, idf, scores, bias)


def add_lexicon(scores: np.ndarray, lexicon: Lexicon | None, texts: Ragged) -> np.ndarray:
    """Return the scores (n, C) of texts with what a lexicon adds to them; in torch `LexiconLayer` adds it."""
    return scores if lexicon is None else scores + lexicon.added(texts)


def entries_within(most_bytes: int, entries: int, vocabulary: int, labels: int) -> int:
    """Return the largest number of entries, at most `entries`, that are stored in `most_bytes`."""

    def nbytes(number: int) -> int:
        scores, scales = rows_stored(number, labels, BITS)
        layout = {"scores": scores, "scales": scales, **KeySizes(number, key_end(vocabulary)).arrays()}
        return layout_bytes(layout) + 4 * (1 + labels)

    return bisect_right(range(1, entries + 1), most_bytes, key=nbytes)
