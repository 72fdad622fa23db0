"""Token ids of many texts in one array, and batches of texts of similar length.

Short texts are not padded to the length of long ones, and a batch is made from the array by a few tensor operations on
whichever device holds it: no Python loop over texts or tokens.
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
    """Token ids of texts, concatenated: text i is `ids[offsets[i]:offsets[i + 1]]`, never empty."""

    ids: Tensor  # (total,) int32
    offsets: np.ndarray  # (n + 1,) int64

    longest: int | None = None  # texts count as truncated to so many tokens

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each text: (n,)."""
        return self._truncated(np.diff(self.offsets))

    def _truncated(self, lengths: np.ndarray) -> np.ndarray:
        return lengths if self.longest is None else np.minimum(lengths, self.longest)

    def first(self, count: int) -> "Encoded":
        """The same texts, truncated to `count` tokens; the ids are not copied."""
        return Encoded(self.ids, self.offsets, count)

    def to(self, device: torch.device) -> "Encoded":
        """The same texts with the ids on a device; on another one than they are, only those that are not truncated."""
        if device.type == self.ids.device.type or self.longest is None:
            return Encoded(self.ids.to(device), self.offsets, self.longest)
        copied = self.copied()
        return Encoded(copied.ids.to(device), copied.offsets)

    def copied(self) -> "Encoded":
        """The same texts in an array that has nothing else: what is truncated is left out."""
        return self.take(np.arange(len(self)))

    def take(self, rows: np.ndarray) -> "Encoded":
        """The texts at the given row indices, in this order, copied."""
        starts, lengths = self.spans(rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        kept = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Encoded(self.ids[torch.from_numpy(kept)], offsets)

    def spans(self, rows: np.ndarray) -> np.ndarray:
        """Start and length of texts by number: (2, B)."""
        starts = self.offsets[rows]
        return np.stack([starts, self._truncated(self.offsets[rows + 1] - starts)])

    def gather(self, spans: Tensor, length: int, fill: int = 0) -> tuple[Tensor, Tensor]:
        """Ids and mask (B, length) of texts, padded with `fill`; `spans` (2, B) is on the device of the ids."""
        starts, lengths = spans.unsqueeze(2)  # each (B, 1)
        column = torch.arange(length, device=self.ids.device)
        mask = column < lengths  # (B, L)
        ids = self.ids[torch.where(mask, starts + column, 0)].long()
        return torch.where(mask, ids, fill), mask

    def padded(self, rows: np.ndarray, length: int = 0, fill: int = 0) -> tuple[Tensor, Tensor]:
        """Ids and mask (B, L) of texts by number, padded with `fill` to the longest of them, or to `length`."""
        spans = self.spans(rows)
        on_device = torch.from_numpy(spans).to(self.ids.device, non_blocking=True)
        return self.gather(on_device, length or int(spans[1].max()), fill)


def encode(tokenizer: Tokenizer, texts: Sequence[str], max_length: int, report: Report = silent) -> Encoded:
    """Tokenize texts, truncated to `max_length` tokens. A text without any token becomes one token, id 0."""
    ids, offsets = tokenize(tokenizer, texts, max_length, report)
    return Encoded(torch.from_numpy(ids), offsets)


def shuffled_batches(lengths: np.ndarray, size: int, seed: int) -> list[np.ndarray]:
    """The batches of one epoch: every row once, in random order, texts of similar length together."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(lengths))
    pool = size * 64  # rows sorted by length at a time: enough to save padding, few enough to stay random
    batches: list[np.ndarray] = []
    for start in range(0, len(order), pool):
        rows = order[start : start + pool]
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        batches.extend(rows[i : i + size] for i in range(0, len(rows), size))
    return [batches[i] for i in generator.permutation(len(batches))]


def sorted_batches(lengths: np.ndarray, tokens: int = 16384) -> Iterator[np.ndarray]:
    """Batches for evaluation: every row once, longest first, each with at most `tokens` tokens, padding included."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, tokens // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size
