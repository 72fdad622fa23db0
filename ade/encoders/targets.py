"""The vectors that an encoder learns: a teacher's, mapped linearly to a space that a small encoder can follow.

A teacher of many languages places a sentence and its translation near to each other, not at the same point. Where lines
of texts with the same meaning are given, all texts of a line get the mean of their vectors, and directions count less
the more translations differ in them: language and style, rather than meaning (whitening by the covariance within lines,
as in linear discriminant analysis). Where most of every vector is the same, as in e5, that is subtracted: it tells no
text from another. Last, vectors are rotated so that their first dimensions carry the most: that changes no cosine, and
they can be truncated.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.data.streams import open_lines
from ade.data.texts import GrowingArray
from ade.errors import InputError

BLOCK = 65_536  # vectors mapped per product
COMMON = 0.5  # of the squared length of unit vectors: where their mean has more, it is subtracted
RIDGE = 0.5  # of the mean variance within lines, added to every direction's
MIN_LINES = 1_000  # with fewer the variances are not known well enough
MAX_LINES = 100_000  # that show how translations differ


class Lines(NamedTuple):
    """Which texts mean the same: the members of all lines, one after the other."""

    members: np.ndarray  # int64: numbers of texts
    offsets: np.ndarray  # (lines + 1,) int64: line i has members[offsets[i]:offsets[i + 1]]


def read_translations(files: Sequence[Path], add: Callable[[str], int | None]) -> Lines:
    """Read lines of texts with the same meaning, separated by tabs; `add` returns a text's number, None if empty."""
    members, offsets = array("q"), array("q", [0])
    for file in files:
        with open_lines(file) as lines:
            for number, line in enumerate(lines, 1):
                texts = line.rstrip("\r\n").split("\t")
                if line.strip() and len(texts) < 2:
                    raise InputError(f"{file}, line {number}: one text; a line has two or more, separated by tabs")
                group = dict.fromkeys(place for text in texts if (place := add(text)) is not None)
                if len(group) > 1:
                    members.extend(group)
                    offsets.append(len(members))
    return Lines(np.frombuffer(members, np.int64), np.frombuffer(offsets, np.int64))


def target_vectors(vectors: np.ndarray, lines: Lines, dim: int) -> np.ndarray:
    """Return what an encoder learns (n, dim), float16, from a teacher's unit vectors (n, D)."""
    scaling = _scaling(vectors, lines)
    vectors = shared_vectors(vectors, lines)
    mean = torch.stack([block.sum(0) for block in _blocks(vectors)]).sum(0) / len(vectors)  # (D,)
    if mean.square().sum() <= COMMON:
        mean = torch.zeros_like(mean)

    def mapped() -> Iterator[Tensor]:
        for block in _blocks(vectors):
            centred = block - mean
            yield F.normalize(centred if scaling is None else centred @ scaling, dim=1)

    moment = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    for block in mapped():
        moment += block.T @ block
    basis = np.linalg.eigh(moment.numpy())[1][:, ::-1][:, :dim].astype(np.float32)  # of the largest eigenvalues first
    # Eigenvectors have no sign of their own; with one that does not depend on the library, runs are the same.
    basis *= np.where(basis[np.abs(basis).argmax(0), np.arange(dim)] < 0, -1, 1).astype(np.float32)

    rotated = GrowingArray(np.float16)
    for block in mapped():
        rotated.add((block @ torch.from_numpy(basis)).half().numpy().ravel())
    return rotated.array().reshape(len(vectors), dim)


def _blocks(vectors: np.ndarray) -> Iterator[Tensor]:
    for start in range(0, len(vectors), BLOCK):
        yield torch.from_numpy(np.array(vectors[start : start + BLOCK])).float()  # casts faster than numpy


def _scaling(vectors: np.ndarray, lines: Lines) -> Tensor | None:
    """Return the map (D, D) after which translations differ about as much in every direction; None with few lines."""
    count = len(lines.offsets) - 1
    if count < MIN_LINES:
        return None
    chosen = np.linspace(0, count - 1, min(MAX_LINES, count)).astype(np.int64)
    first, last = lines.members[lines.offsets[chosen]], lines.members[lines.offsets[chosen + 1] - 1]
    differences = torch.from_numpy(vectors[first].astype(np.float32) - vectors[last].astype(np.float32)).double()
    values, directions = torch.linalg.eigh(differences.T @ differences / len(differences))
    variances = values.clamp(min=0) + RIDGE * values.mean()
    if not variances.min() > 0:  # all translations have the same vectors
        return None
    return (directions / variances.sqrt() @ directions.T).float()


def shared_vectors(vectors: np.ndarray, lines: Lines) -> np.ndarray:
    """Return vectors (n, D) in which each text of a line has the mean of the line; of several lines, their mean."""
    if not len(lines.members):
        return vectors
    means = _means(vectors, lines.members, lines.offsets)
    order = np.argsort(lines.members, kind="stable")
    texts, firsts = np.unique(lines.members[order], return_index=True)
    line = np.repeat(np.arange(len(means)), np.diff(lines.offsets))  # of each member
    shared = _means(means, line[order], np.append(firsts, len(order)))  # (texts, D)

    result = GrowingArray(np.float16)
    for start in range(0, len(vectors), BLOCK):
        block = np.array(vectors[start : start + BLOCK])
        first, end = np.searchsorted(texts, [start, start + len(block)])
        block[texts[first:end] - start] = shared[first:end]
        result.add(block.ravel())
    return result.array().reshape(vectors.shape)


def _means(vectors: np.ndarray, members: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the means, as unit vectors, of groups of vectors; group i has members[offsets[i]:offsets[i + 1]]."""
    means = GrowingArray(np.float16)
    for start in range(0, len(offsets) - 1, BLOCK):
        bounds = offsets[start : start + BLOCK + 1]
        block = torch.from_numpy(vectors[members[bounds[0] : bounds[-1]]]).float()
        group = torch.from_numpy(np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)))
        sums = torch.zeros(len(bounds) - 1, block.shape[1]).index_add_(0, group, block)
        means.add(F.normalize(sums, dim=1).half().numpy().ravel())
    return means.array().reshape(-1, vectors.shape[1])
