"""Texts with the same meaning, as translations: an encoder learns one vector for them, the mean of the teacher's.

A teacher of many languages places a sentence and its translation near to each other, not at the same point, and a small
encoder cannot follow every difference between them. Where it is told which texts mean the same, it need not.
"""

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from ade.data.rows import open_text
from ade.data.spilling import SpilledArray
from ade.data.tables import reading_errors
from ade.errors import InputError

ROWS = 65_536  # vectors read at a time
SOME = 100_000  # lines that show how translations differ


class Lines(NamedTuple):
    """Which texts mean the same: the members of all lines, one after the other."""

    members: np.ndarray  # int64: numbers of texts
    offsets: np.ndarray  # (lines + 1,) int64: line i has members[offsets[i]:offsets[i + 1]]


def read_translations(files: list[Path], add: Callable[[str], int | None]) -> Lines:
    """Read lines of texts with the same meaning, separated by tabs; `add` returns the number of a text that is one."""
    members, offsets = array("q"), array("q", [0])
    for file in files:
        with reading_errors(file, "text"), open_text(file) as lines:
            for number, line in enumerate(lines, 1):
                texts = line.rstrip("\r\n").split("\t")
                if line.strip() and len(texts) < 2:
                    raise InputError(f"{file}, line {number}: one text; a line has two or more, separated by tabs")
                found = dict.fromkeys(place for text in texts if (place := add(text)) is not None)
                if len(found) > 1:
                    members.extend(found)
                    offsets.append(len(members))
    return Lines(np.frombuffer(members, np.int64), np.frombuffer(offsets, np.int64))


def shared_vectors(vectors: np.ndarray, lines: Lines) -> np.ndarray:
    """Return vectors (n, D) in which each text of a line has the mean of the line; of several lines, their mean."""
    if not len(lines.members):
        return vectors
    means = _means(vectors, lines.members, lines.offsets)
    order = np.argsort(lines.members, kind="stable")
    texts, firsts = np.unique(lines.members[order], return_index=True)
    number = np.repeat(np.arange(len(means)), np.diff(lines.offsets))  # of each member's line
    shared = _means(means, number[order], np.append(firsts, len(order)))  # (texts, D)

    found = SpilledArray(np.float16)
    for start in range(0, len(vectors), ROWS):
        part = np.array(vectors[start : start + ROWS])
        first, end = np.searchsorted(texts, [start, start + len(part)])
        part[texts[first:end] - start] = shared[first:end]
        found.add(part.ravel())
    return found.array().reshape(vectors.shape)


def _means(vectors: np.ndarray, members: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the means, as unit vectors, of groups of vectors; group i has members[offsets[i]:offsets[i + 1]]."""
    found = SpilledArray(np.float16)
    for start in range(0, len(offsets) - 1, ROWS):
        some = offsets[start : start + ROWS + 1]
        part = torch.from_numpy(vectors[members[some[0] : some[-1]]]).float()  # casts faster than numpy
        group = torch.from_numpy(np.repeat(np.arange(len(some) - 1), np.diff(some)))
        sums = torch.zeros(len(some) - 1, part.shape[1]).index_add_(0, group, part)
        found.add(F.normalize(sums, dim=1).half().numpy().ravel())
    return found.array().reshape(-1, vectors.shape[1])


def differences(vectors: np.ndarray, lines: Lines) -> np.ndarray:
    """Return what the first texts of lines have more than the last: vectors (lines, D), float32; of at most SOME."""
    chosen = np.linspace(0, len(lines.offsets) - 2, min(SOME, len(lines.offsets) - 1)).astype(np.int64)
    first, last = lines.members[lines.offsets[chosen]], lines.members[lines.offsets[chosen + 1] - 1]
    return vectors[first].astype(np.float32) - vectors[last].astype(np.float32)
