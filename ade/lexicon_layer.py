"""The lexicon in PyTorch: its tables on a device, the look-up of a text's n-grams, and the layer the model adds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ade.embedding import PackedEmbedding, TensorCache
from ade.lexicon import Lexicon, LexiconShape, unpack


@dataclass(frozen=True)
class LexiconTables:
    """A lexicon on a device. `squares` and `scores` have a row of zeros at the end, for keys without an entry."""

    vocabulary: int
    keys: Tensor  # (n,) int64, ascending
    squares: Tensor  # (n + 1,) float32: squared inverse document frequencies
    scores: Tensor  # (n + 1, C) float32
    bias: Tensor  # (C,) float32

    @classmethod
    def of(cls, lexicon: Lexicon, device: torch.device) -> "LexiconTables":
        """Copy a lexicon to a device."""
        squares = np.append(lexicon.idf**2, 0).astype(np.float32)
        scores = np.vstack([lexicon.scores, np.zeros_like(lexicon.bias)]).astype(np.float32)
        arrays = (lexicon.keys, squares, scores, lexicon.bias.astype(np.float32))
        with torch.inference_mode(False):
            return cls(lexicon.vocabulary, *(torch.from_numpy(array).to(device) for array in arrays))


@torch.no_grad()
def look_up(tables: LexiconTables, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the entry of each token, then of each bigram that starts with it, n where there is none: (B, 2 L)."""
    no_entry, token = len(tables.keys), ids.long()
    bigram = tables.vocabulary * (token + 1) + token.roll(-1, 1)
    key = torch.cat([token, bigram], 1)
    real = torch.cat([mask, mask & F.pad(mask[:, 1:], (0, 1))], 1)  # the last token starts no bigram

    found = torch.searchsorted(tables.keys, key).clamp(max=no_entry - 1)
    return torch.where(real & (tables.keys[found] == key), found, no_entry)


def sum_distinct(tables: LexiconTables, entries: Tensor) -> Tensor:
    """Sum the scores of each text's distinct entries, divide by their norm and add the bias: (B, C)."""
    entry = entries.long().sort(1).values
    repeated = F.pad(entry[:, 1:] == entry[:, :-1], (1, 0))
    entry = entry.masked_fill(repeated, len(tables.keys))
    norm = tables.squares[entry].sum(1, keepdim=True).sqrt().clamp(min=1e-12)  # (B, 1)
    return F.embedding_bag(entry, tables.scores, mode="sum") / norm + tables.bias


class LexiconLayer(nn.Module):
    """A stored lexicon as a layer: token ids -> what its entries add to the class scores. Nothing is trained."""

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__()
        self.shape = LexiconShape(**shape)
        for name, (kind, size) in self.shape.arrays().items():
            self.register_buffer(name, torch.zeros(size, dtype=getattr(torch, kind)))
        self.scores = PackedEmbedding(self.shape.scores)
        self._tables = TensorCache[LexiconTables]()

    def unpacked(self) -> Lexicon:
        """Return the same lexicon for numpy."""
        tensors = {name: tensor.detach().cpu() for name, tensor in self.state_dict().items()}
        return unpack(self.shape, {n: (t.float() if t.is_floating_point() else t).numpy() for n, t in tensors.items()})

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return what the entries of each text add to its class scores: (B, C)."""
        device = self.get_buffer("bias").device
        tables = self._tables.get(self.buffers(), lambda: LexiconTables.of(self.unpacked(), device))
        return sum_distinct(tables, look_up(tables, ids, mask))
