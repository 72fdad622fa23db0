"""The lexicon: tokens and pairs of neighbouring tokens whose scores are added to the model's.

A linear model over what a text says literally, beside the anchors' meaning. Its features are the distinct tokens and
the distinct pairs of neighbouring tokens of a whole text, weighted by inverse document frequency and scaled to unit
length:

    logits += bias + sum_f s_f / sqrt(sum_f idf_f^2)        over the entries f found in the text, s_f = idf_f w_f

Entries are further dictionary entries, and are stored as tokens are: a few (index, weight) pairs over shared rows of
class scores. Keys are stored in about 2 + log2(range / entries) bits each (Elias-Fano), inverse document frequencies
in 4 bits. `training/lexicon_fit.py` makes one. Loads numpy alone.
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
PREFIX = "lexicon."  # of its arrays in a model's state
SCORES = "scores."  # of those that hold the class scores, within


@dataclass(frozen=True)
class LexiconShape:
    """What the arrays of a stored lexicon cannot say themselves."""

    entries: int
    vocabulary: int
    scores: Mapping[str, int]  # the shape of the packed class scores: a "token" an entry, as wide as there are labels

    @property
    def low_bits(self) -> int:
        """Bits of a key that are stored as they are; the rest is a unary code."""
        return max(0, (key_range(self.vocabulary) // max(1, self.entries)).bit_length() - 1)

    def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and shape of every array but those of the class scores."""
        high = self.entries + (key_range(self.vocabulary) >> self.low_bits) + 1
        return {
            "keys_low": ("uint8", (-(-self.entries * self.low_bits // 8) + WORD_BYTES,)),
            "keys_high": ("uint8", (-(-high // 8),)),
            "idf": ("uint8", (-(-self.entries * IDF_BITS // 8) + WORD_BYTES,)),
            "idf_range": ("float32", (2,)),
            "bias": ("float32", (Shape(**self.scores).dim,)),
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)


def key_range(vocabulary: int) -> int:
    """Keys lie below this: a token's key is its id, a pair's is vocabulary * (first + 1) + second."""
    return vocabulary * (vocabulary + 1)


def keys_of(ids: np.ndarray, offsets: np.ndarray, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys of all tokens and neighbouring pairs of texts kept end to end, and the text each belongs to."""
    ids = ids.astype(np.int64)
    text = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    together = text[1:] == text[:-1]
    pairs = (vocabulary * (ids[:-1] + 1) + ids[1:])[together]
    return np.concatenate([ids, pairs]), np.concatenate([text, text[1:][together]])


class Lexicon:
    """A lexicon ready to score texts with numpy."""

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
        """Distinct entries of texts kept end to end, and the text each was found in, in the order of the texts."""
        if len(self) == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        keys, text = keys_of(ids, offsets, self.vocabulary)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
        known = self.keys[place] == keys
        both = np.sort(text[known] * len(self) + place[known])
        both = both[np.flatnonzero(np.diff(both, prepend=-1))]
        return both % len(self), both // len(self)

    def logits(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """What the lexicon adds to the class scores of texts kept end to end: (n, C)."""
        entry, text = self.found(ids, offsets)
        count = len(offsets) - 1
        scores = np.tile(self.bias, (count, 1))
        if len(entry):
            norm = np.sqrt(np.bincount(text, self.idf[entry] ** 2, count)).astype(np.float32)  # (n,)
            first = np.flatnonzero(np.diff(text, prepend=-1))  # where each text with an entry begins
            sums = np.add.reduceat(self.scores[entry], first, 0)
            scores[text[first]] += sums / norm[text[first], None]
        return scores


def pack_keys(keys: np.ndarray, shape: LexiconShape) -> dict[str, np.ndarray]:
    """Ascending keys in Elias-Fano form: low bits as they are, high bits as gaps in unary."""
    low, high = keys & ((1 << shape.low_bits) - 1), keys >> shape.low_bits
    marks = np.zeros(8 * shape.arrays()["keys_high"][1][0], np.uint8)
    marks[high + np.arange(len(keys))] = 1
    stream = pack_bits(low, shape.low_bits) if shape.low_bits else np.zeros(WORD_BYTES, np.uint8)
    return {"keys_low": stream, "keys_high": np.packbits(marks, bitorder="little")}


def unpack_keys(arrays: Mapping[str, np.ndarray], shape: LexiconShape) -> np.ndarray:
    """What `pack_keys` stored; refuses what it cannot have stored."""
    marks = np.flatnonzero(np.unpackbits(arrays["keys_high"], bitorder="little"))
    if len(marks) != shape.entries:
        raise InputError("the lexicon's keys do not add up; the file is damaged")
    places = np.arange(shape.entries)
    low = read_bits(arrays["keys_low"], shape.low_bits, places) if shape.low_bits else 0
    keys = ((marks - places) << shape.low_bits) | low
    if (np.diff(keys) <= 0).any() or keys.max(initial=0) >= key_range(shape.vocabulary):
        raise InputError("the lexicon's keys are not in order; the file is damaged")
    return keys


def pack_idf(idf: np.ndarray) -> dict[str, np.ndarray]:
    """Inverse document frequencies in 4 bits each, evenly between the smallest and the largest."""
    low, high = float(idf.min(initial=1.0)), float(idf.max(initial=1.0))
    steps = np.round((idf - low) / max(high - low, 1e-6) * (2**IDF_BITS - 1)).astype(np.int64)
    return {"idf": pack_bits(steps, IDF_BITS), "idf_range": np.array([low, high], np.float32)}


def unpack_idf(arrays: Mapping[str, np.ndarray], entries: int) -> np.ndarray:
    """What `pack_idf` stored: (n,) float32."""
    low, high = arrays["idf_range"].astype(np.float32)
    steps = read_bits(arrays["idf"], IDF_BITS, np.arange(entries))
    return (low + (high - low) * steps / (2**IDF_BITS - 1)).astype(np.float32)


def lexicon_of(config: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> Lexicon | None:
    """The lexicon of a model's config and arrays; None where it has none."""
    if not config.get("lexicon"):
        return None
    arrays = {name.removeprefix(PREFIX): array for name, array in state.items() if name.startswith(PREFIX)}
    try:
        return unpack(LexiconShape(**config["lexicon"]), arrays)
    except (TypeError, KeyError) as error:
        raise InputError(f"its lexicon is not one that can be ({error})") from None


def unpack(shape: LexiconShape, arrays: Mapping[str, np.ndarray]) -> Lexicon:
    """A stored lexicon, ready to score; `arrays` are those of `LexiconShape.arrays` and, with a prefix, the scores'."""
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
