"""The lexicon: unigrams and bigrams of tokens whose scores are added to the model's.

A linear classifier beside the model. Its features are the distinct tokens and the distinct bigrams of a whole text,
weighted by inverse document frequency (idf) and scaled to unit length:

    logits += bias + sum_f s_f / sqrt(sum_f idf_f^2)        over the entries f found in the text, s_f = idf_f w_f

The class scores s_f are stored as a codebook stores tokens: a few (index, weight) pairs over shared rows of scores.
Keys take about 2 + log2(range / entries) bits each (Elias-Fano coding), idf values 4 bits. `training/lexicon_fit.py`
fits a lexicon; this file imports only numpy.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ade.errors import InputError
from ade.packing.bits import WORD_BYTES, pack_bits, read_bits
from ade.packing.format import Shape
from ade.packing.pairs import PackedPairs

IDF_BITS = 4
MAX_LOW_BITS = 25  # what a bit stream is read in: `packing.bits.read_bits`
PREFIX = "lexicon."  # of the lexicon's arrays in a model's state dict
SCORES = "scores."  # after it, of the arrays of the packed class scores


@dataclass(frozen=True)
class LexiconShape:
    """The sizes of a stored lexicon, from which the shapes of its arrays follow."""

    entries: int
    vocabulary: int
    scores: Mapping[str, int]  # `packing.format.Shape` of the class scores: a row per entry, a column per label

    @property
    def low_bits(self) -> int:
        """Low bits of a key that are stored as they are; the high bits are coded in unary."""
        wanted = (key_range(self.vocabulary) // max(1, self.entries)).bit_length() - 1
        return min(max(0, wanted), MAX_LOW_BITS)

    def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return type and shape of every array except those of the class scores."""
        high = self.entries + (key_range(self.vocabulary) >> self.low_bits) + 1
        return {
            "keys_low": ("uint8", (-(-self.entries * self.low_bits // 8) + WORD_BYTES,)),
            "keys_high": ("uint8", (-(-high // 8),)),
            "idf": ("uint8", (-(-self.entries * IDF_BITS // 8) + WORD_BYTES,)),
            "idf_range": ("float32", (2,)),
            "bias": ("float32", (Shape(**self.scores).dim,)),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the sizes as a dictionary, ready for JSON."""
        return asdict(self)


def key_range(vocabulary: int) -> int:
    """Return the number of possible keys: a token's key is its id, a bigram's vocabulary * (first + 1) + second."""
    return vocabulary * (vocabulary + 1)


def keys_of(ids: np.ndarray, offsets: np.ndarray, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of all tokens and bigrams of texts, and the number of the text of each.

    The tokens of text i are `ids[offsets[i]:offsets[i + 1]]`.
    """
    ids = ids.astype(np.int64)
    text = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    same_text = text[1:] == text[:-1]
    bigrams = (vocabulary * (ids[:-1] + 1) + ids[1:])[same_text]
    return np.concatenate([ids, bigrams]), np.concatenate([text, text[1:][same_text]])


class Lexicon:
    """An unpacked lexicon, which scores texts with numpy."""

    def __init__(
        self, vocabulary: int, keys: np.ndarray, idf: np.ndarray, scores: np.ndarray, bias: np.ndarray
    ) -> None:
        self.vocabulary = vocabulary
        self.keys = keys  # (n,) int64, ascending
        self.idf = idf  # (n,) float32
        self.scores = scores  # (n, C) float32
        self.bias = bias  # (C,) float32

    def __len__(self) -> int:
        return len(self.keys)

    def found(self, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct entries of each text and the number of the text of each, in the order of the texts."""
        if len(self) == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        keys, text = keys_of(ids, offsets, self.vocabulary)
        entry = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
        known = self.keys[entry] == keys

        # Distinct (text, entry), sorted: as one number each.
        combined = np.sort(text[known] * len(self) + entry[known])
        combined = combined[np.flatnonzero(np.diff(combined, prepend=-1))]
        return combined % len(self), combined // len(self)

    def logits(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return what the lexicon adds to the class scores of texts: (n, C)."""
        entry, text = self.found(ids, offsets)
        count = len(offsets) - 1
        scores = np.tile(self.bias, (count, 1))
        if len(entry):
            norm = np.sqrt(np.bincount(text, self.idf[entry] ** 2, count)).astype(np.float32)  # (n,)
            first = np.flatnonzero(np.diff(text, prepend=-1))  # the first entry of each text that has one
            sums = np.add.reduceat(self.scores[entry], first, 0)
            scores[text[first]] += sums / norm[text[first], None]
        return scores

    def contributions(self, ids: np.ndarray) -> list[tuple[int, list[int], np.ndarray]]:
        """Return length, positions and contribution (C,) of each entry of a text, which `logits` adds to its bias."""
        keys, _ = keys_of(ids, np.array([0, len(ids)]), self.vocabulary)
        entry = np.minimum(np.searchsorted(self.keys, keys), max(0, len(self) - 1))
        known = np.flatnonzero(self.keys[entry] == keys) if len(self) else np.empty(0, np.int64)

        places: dict[int, list[int]] = {}  # of the tokens first, then of the bigrams: as `keys_of` returns them
        for i in known.tolist():
            places.setdefault(int(entry[i]), []).append(i % len(ids))
        norm = np.sqrt((self.idf[list(places)].astype(np.float64) ** 2).sum())
        return [
            (1 if self.keys[one] < self.vocabulary else 2, at, self.scores[one].astype(np.float64) / norm)
            for one, at in places.items()
        ]


def pack_keys(keys: np.ndarray, shape: LexiconShape) -> dict[str, np.ndarray]:
    """Store ascending keys in Elias-Fano form: low bits as they are, high bits as gaps in unary."""
    low, high = keys & ((1 << shape.low_bits) - 1), keys >> shape.low_bits
    marks = np.zeros(8 * shape.arrays()["keys_high"][1][0], np.uint8)
    marks[high + np.arange(len(keys))] = 1
    stream = pack_bits(low, shape.low_bits) if shape.low_bits else np.zeros(WORD_BYTES, np.uint8)
    return {"keys_low": stream, "keys_high": np.packbits(marks, bitorder="little")}


def unpack_keys(arrays: Mapping[str, np.ndarray], shape: LexiconShape) -> np.ndarray:
    """Return the keys that `pack_keys` stored; raises `InputError` for damaged arrays."""
    marks = np.flatnonzero(np.unpackbits(arrays["keys_high"], bitorder="little"))
    if len(marks) != shape.entries:
        raise InputError("the lexicon's keys do not add up; the file is damaged")
    entry = np.arange(shape.entries)
    low = read_bits(arrays["keys_low"], shape.low_bits, entry) if shape.low_bits else 0
    keys = ((marks - entry) << shape.low_bits) | low
    if (np.diff(keys) <= 0).any() or keys.max(initial=0) >= key_range(shape.vocabulary):
        raise InputError("the lexicon's keys are not in order; the file is damaged")
    return keys


def pack_idf(idf: np.ndarray) -> dict[str, np.ndarray]:
    """Store idf values in 4 bits each, on an even grid between the smallest and the largest."""
    low, high = float(idf.min(initial=1.0)), float(idf.max(initial=1.0))
    steps = np.round((idf - low) / max(high - low, 1e-6) * (2**IDF_BITS - 1)).astype(np.int64)
    return {"idf": pack_bits(steps, IDF_BITS), "idf_range": np.array([low, high], np.float32)}


def unpack_idf(arrays: Mapping[str, np.ndarray], entries: int) -> np.ndarray:
    """Return the idf values that `pack_idf` stored: (n,) float32."""
    low, high = arrays["idf_range"].astype(np.float32)
    steps = read_bits(arrays["idf"], IDF_BITS, np.arange(entries))
    return (low + (high - low) * steps / (2**IDF_BITS - 1)).astype(np.float32)


def lexicon_of(config: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> Lexicon | None:
    """Return the lexicon of a model's config and state dict; None where it has none."""
    if not config.get("lexicon"):
        return None
    arrays = {name.removeprefix(PREFIX): array for name, array in state.items() if name.startswith(PREFIX)}
    try:
        return unpack(LexiconShape(**config["lexicon"]), arrays)
    except (TypeError, KeyError) as error:
        raise InputError(f"the sizes of its lexicon are not valid ({error})") from None


def unpack(shape: LexiconShape, arrays: Mapping[str, np.ndarray]) -> Lexicon:
    """Unpack a lexicon; `arrays` are those of `LexiconShape.arrays` and, under `SCORES`, those of the class scores."""
    for name, (kind, size) in shape.arrays().items():
        found = arrays.get(name)
        if found is None or str(found.dtype) != kind or found.shape != size:
            raise InputError(f"'{PREFIX}{name}' should be {kind} of shape {size}")
    packed = PackedPairs(shape.scores, {name.removeprefix(SCORES): arrays[name] for name in arrays if SCORES in name})
    keys = unpack_keys(arrays, shape)
    if packed.vocabulary != len(keys):
        raise InputError("the lexicon has not as many scores as keys; the file is damaged")

    shared = packed.anchors()  # (m, C)
    scores = np.empty((len(keys), shared.shape[1]), np.float32)
    for start in range(0, len(keys), 1 << 16):
        index, weight, _ = packed.of(np.arange(start, min(start + (1 << 16), len(keys))))
        scores[start : start + len(index)] = np.einsum("nk,nkc->nc", weight, shared[index])
    return Lexicon(shape.vocabulary, keys, unpack_idf(arrays, len(keys)), scores, arrays["bias"])
