"""Batches of texts of similar length, padded at the model's door: nowhere else do token ids become a matrix.

A batch is cut out of the token ids by a few tensor operations on whichever device holds them: no Python loop over texts
or tokens.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ade.data.tokens import Ragged, sorted_batches


class DeviceTokens:
    """Token ids of texts on a device, to cut batches out of."""

    def __init__(self, texts: Ragged, device: torch.device, max_tokens: int | None = None) -> None:
        """Texts count as truncated to `max_tokens`; on the CPU, where they may be memory-mapped, nothing is copied."""
        if max_tokens is not None and device.type != "cpu":
            texts = texts.first(max_tokens)
        self.ids = torch.from_numpy(texts.ids).to(device)  # (T,) int32
        self.starts = texts.offsets[:-1]  # (n,)
        self.lengths = texts.lengths if max_tokens is None else np.minimum(texts.lengths, max_tokens)  # (n,)

    def spans(self, rows: np.ndarray) -> np.ndarray:
        """Start and length of texts by number: (2, B)."""
        return np.stack([self.starts[rows], self.lengths[rows]])

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


def padded_batches(
    texts: Ragged, device: torch.device, tokens: int = 16384, fill: int = 0
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Every text once: row numbers (B,), ids and mask (B, L) of batches of at most `tokens` tokens, longest first."""
    on_device = DeviceTokens(texts, device)
    for rows in sorted_batches(texts.lengths, tokens):
        yield (rows, *on_device.padded(rows, fill=fill))


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
