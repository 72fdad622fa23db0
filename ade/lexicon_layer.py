"""The lexicon in PyTorch: its tables on a device, the look-up of a text's n-grams, and the layer the model adds."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ade.lexicon import Lexicon


class LexiconTables(NamedTuple):
    """A lexicon on a device. `squares` and `scores` have a row of zeros at the end, for keys without an entry."""

    vocabulary: int
    keys: Tensor  # (n,) int64, ascending
    squares: Tensor  # (n + 1,) float32: squared inverse document frequencies
    scores: Tensor  # (n + 1, C) float32
    bias: Tensor  # (C,) float32


class LexiconLayer(nn.Module):
    """A lexicon as a layer: token ids -> what its entries add to the scores. Nothing is trained."""

    def __init__(self, lexicon: Lexicon) -> None:
        super().__init__()
        self.lexicon = lexicon
        squares = np.append(lexicon.idf**2, 0).astype(np.float32)
        scores = np.vstack([lexicon.scores, np.zeros_like(lexicon.bias)]).astype(np.float32)
        arrays = {"keys": lexicon.keys, "squares": squares, "scores": scores, "bias": lexicon.bias.astype(np.float32)}
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.array(array)), persistent=False)

    def tables(self) -> LexiconTables:
        """Return the tables on the layer's device."""
        names = ("keys", "squares", "scores", "bias")
        return LexiconTables(self.lexicon.vocabulary, *(self.get_buffer(name) for name in names))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return what the entries of each text add to its scores: (B, C)."""
        tables = self.tables()
        return sum_distinct(tables, look_up(tables, ids, mask))


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
