"""Texts -> token ids, kept end to end in one array, and batches of texts of about the same length.

Short texts are not padded to long ones, and a batch is cut out of the array by a handful of tensor
operations on whichever device holds it: no Python loop over texts or tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from ade.data.tokenize import tokenize
from ade.progress import Report, silent


@dataclass(frozen=True)
class Encoded:
    """Token ids of many texts, one after the other; text i is `ids[offsets[i]:offsets[i + 1]]`, never empty."""

    ids: Tensor  # (total,) int32
    offsets: np.ndarray  # (n + 1,) int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each text."""
        return np.diff(self.offsets)  # (n,)

    def first(self, count: int) -> "Encoded":
        """The same texts, cut to their first tokens."""
        lengths = np.minimum(self.lengths, count)
        if (lengths == self.lengths).all():
            return self
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        kept = np.repeat(self.offsets[:-1] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Encoded(self.ids[torch.from_numpy(kept)], offsets)

    def to(self, device: torch.device) -> "Encoded":
        """The same with the ids on a device."""
        return Encoded(self.ids.to(device), self.offsets)

    def place(self, rows: np.ndarray) -> np.ndarray:
        """Where the texts at these rows start, and how long they are: (2, B)."""
        starts = self.offsets[rows]
        return np.stack([starts, self.offsets[rows + 1] - starts])

    def cut(self, place: Tensor, length: int, fill: int = 0) -> tuple[Tensor, Tensor]:
        """The texts at a place (2, B) on the device as (ids, mask), padded to a length of at least the longest."""
        column = torch.arange(length, device=self.ids.device)
        mask = column < place[1].unsqueeze(1)  # (B, L)
        ids = self.ids[torch.where(mask, place[0].unsqueeze(1) + column, 0)].long()
        return torch.where(mask, ids, fill), mask

    def padded(self, rows: np.ndarray, length: int = 0, fill: int = 0) -> tuple[Tensor, Tensor]:
        """The texts at these rows as (ids, mask), padded to the longest of them, or to a length of at least that."""
        place = self.place(rows)
        on_device = torch.from_numpy(place).to(self.ids.device, non_blocking=True)
        return self.cut(on_device, length or int(place[1].max()), fill)


def encode(tokenizer: Tokenizer, texts: Sequence[str], max_length: int, report: Report = silent) -> Encoded:
    """Tokenize texts, cut to `max_length` tokens. A text without any token becomes one token, id 0."""
    ids, offsets = tokenize(tokenizer, texts, max_length, report)
    return Encoded(torch.from_numpy(ids), offsets)


def shuffled_batches(lengths: np.ndarray, size: int, seed: int) -> list[np.ndarray]:
    """All rows once, in random batches of texts of about the same length: the order of one epoch."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(lengths))
    pool = size * 64  # rows sorted among themselves: large enough to save padding, small enough to stay random
    batches: list[np.ndarray] = []
    for start in range(0, len(order), pool):
        rows = order[start : start + pool]
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        batches.extend(rows[i : i + size] for i in range(0, len(rows), size))
    return [batches[i] for i in generator.permutation(len(batches))]


def sorted_batches(lengths: np.ndarray, tokens: int = 16384) -> Iterator[np.ndarray]:
    """All rows once, longest first, in batches of about as many tokens: for evaluation."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, tokens // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size
