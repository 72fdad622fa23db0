"""Parts of a model as ONNX stores them: in whole bytes, by operations that ONNX has.

What a folder has in few bits is a byte a number here, what it has in float32 stays so. Rows are decoded as they are
read: none is made for every token.
"""

import numpy as np
import torch
from torch import Tensor, nn

from ade.codebook import Codebook
from ade.lexicon import Lexicon
from ade.packing.bits import pack_rows
from ade.packing.format import SCALE_STEPS, WEIGHT_LEVELS


def _keep(module: nn.Module, **arrays: np.ndarray) -> None:
    for name, array in arrays.items():
        module.register_buffer(name, torch.from_numpy(np.array(array)))


def _smallest(numbers: np.ndarray) -> np.ndarray:
    """Return whole numbers in as few bytes as the largest needs."""
    types, largest = (np.uint8, np.int16, np.int32, np.int64), numbers.max(initial=0)
    return numbers.astype(next(kind for kind in types if largest <= np.iinfo(kind).max))


class Bytes(nn.Module):
    """Rows in 8 bits a number with scales, in float16 where it can hold them, or in float32."""

    numbers: Tensor
    scales: Tensor  # float16: one a row, or one a column

    def __init__(self, rows: np.ndarray, scales: np.ndarray | None = None) -> None:
        super().__init__()
        self.scaled = scales is not None
        if scales is not None:
            rows = np.round(rows / scales.astype(np.float32)).astype(np.int8)
            _keep(self, scales=scales)
        _keep(self, numbers=rows)

    def forward(self, ids: Tensor | None = None) -> Tensor:
        """Return the rows of ids (...), or all rows: (..., d), float32."""
        rows = self.numbers if ids is None else self.numbers[ids]
        if rows.dtype == torch.float32:
            return rows  # `float()` would be traced as a cast
        if not self.scaled:
            return rows.float()
        return rows.float() * (self.scales if ids is None else self.scales[ids]).float()


class LinearInBytes(nn.Module):
    """A linear layer, its weight stored as a matrix (inputs, outputs)."""

    def __init__(self, layer: nn.Linear, bits: int) -> None:
        super().__init__()
        weight = layer.weight.detach().numpy()
        self.matrix = Bytes(weight.T, pack_rows(weight, bits)[1][None] if bits in (4, 8) else None)
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:
        """The weight as that of other linear layers, which some models ask for its type: (outputs, inputs)."""
        return self.matrix().T

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to (..., inputs)."""
        product = x @ self.matrix()
        return product if self.bias is None else product + self.bias


def linear_layers_in_bytes(model: nn.Module, bits: int = 0) -> None:
    """Store linear layers and embeddings in bytes; their weights are rounded to `bits` bits, 0 for not at all."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear):
            model.set_submodule(name, LinearInBytes(layer, bits))
        elif type(layer) is nn.Embedding:
            model.set_submodule(name, Bytes(layer.weight.detach().numpy()))


def halve(model: nn.Module) -> None:
    """Store what float16 can hold in float16."""
    for part in model.modules():
        if isinstance(part, Bytes) and not part.scaled and torch.equal(part.numbers.half().float(), part.numbers):
            part.numbers = part.numbers.half()


class PairsInBytes(nn.Module):
    """A codebook: a token's pairs are looked up, and its anchors summed by weight."""

    counts: Tensor  # (N,)
    indices: Tensor  # (P,)
    weights: Tensor  # (P,) int8, in levels of the token's scale; or float32
    scales: Tensor  # (N,) uint8: which of the grid
    grid: Tensor  # (256,) float32

    def __init__(self, book: Codebook) -> None:
        super().__init__()
        packing, arrays, weights = book.packing, book.stored()[1], book.weights
        self.packed, self.width, self.anchors = packing is not None, book.max_pairs, Bytes(book.anchors)
        if packing is not None:
            low, high = arrays["scale_range"].astype(np.float64)
            grid = low * (high / low) ** (np.arange(SCALE_STEPS + 1) / SCALE_STEPS)
            steps = weights / np.repeat(grid[arrays["scales"]], book.counts) * WEIGHT_LEVELS
            weights = np.round(steps).astype(np.int8)
            _keep(self, scales=arrays["scales"], grid=(grid / WEIGHT_LEVELS).astype(np.float32))
            scales = np.concatenate([arrays[f"{name}_scales"] for name in ("anchors", "own_8", "own_4")])
            self.anchors = Bytes(book.anchors, scales[:, None])
        _keep(self, counts=_smallest(book.counts), indices=_smallest(book.indices), weights=weights)

    def pairs(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return indices and weights of ids (...), padded with weight 0: each (..., k)."""
        counts = self.counts.long()
        column = torch.arange(self.width)
        real = column < counts[ids].unsqueeze(-1)
        slot = ((counts.cumsum(0) - counts)[ids].unsqueeze(-1) + column) * real
        weights = self.weights[slot].float() * real
        if self.packed:
            weights = weights * self.grid[self.scales[ids].long()].unsqueeze(-1)
        return self.indices[slot].long(), weights

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of tokens (n,): (n, d)."""
        index, weight = self.pairs(ids)
        return (weight.unsqueeze(1) @ self.anchors(index)).squeeze(1)


class ComputedPositions(nn.Module):
    """The encodings of positions, computed: stored, they would be half a megabyte of an average file."""

    frequency: Tensor  # (d / 2,)

    def __init__(self, dim: int, scale: float) -> None:
        super().__init__()
        self.dim, self.scale = dim, scale
        _keep(self, frequency=(10_000.0 ** (-np.arange(0, dim, 2) / dim)).astype(np.float32))

    def forward(self, count: int, like: Tensor) -> Tensor:
        """Return the encodings of the first `count` positions: (count, d)."""
        angle = torch.arange(count).float().unsqueeze(1) * self.frequency
        return self.scale * torch.stack([angle.sin(), angle.cos()], 2).flatten(1)[:, : self.dim]


class LexiconInBytes(nn.Module):
    """A lexicon. ONNX has no `searchsorted`: keys are found by halving, entries that occur again by sorting."""

    gaps: Tensor  # (n,): between ascending keys
    idf: Tensor  # (n,) uint8: which of the squares
    squares: Tensor  # (16,) float32
    bias: Tensor  # (C,)

    def __init__(self, lexicon: Lexicon) -> None:
        super().__init__()
        self.entries, self.vocabulary = len(lexicon), lexicon.vocabulary
        stored = lexicon.stored()[1]
        self.unit = float(stored["unit"][0])
        self.scores = Bytes(lexicon.scores / self.unit, stored["scales"][:, None])
        values, idf = np.unique(lexicon.idf, return_inverse=True)
        _keep(self, squares=values.astype(np.float32) ** 2, idf=_smallest(idf), bias=lexicon.bias)
        _keep(self, gaps=_smallest(np.diff(lexicon.keys, prepend=0)))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return what the entries of each text (B, L) add to its scores: (B, C)."""
        entry, counted = self.distinct(ids, mask)  # (B, M)
        sums = (self.scores(entry) * counted.unsqueeze(2)).sum(1) * self.unit  # (B, C)
        squares = self.squares[self.idf[entry].long()] * counted
        return sums / squares.sum(1, keepdim=True).sqrt().clamp(min=1e-12) + self.bias

    def distinct(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the entries of each text (B, L), and which of them to count: each (B, 2 L - 1)."""
        bigrams = self.vocabulary * (ids[:, :-1] + 1) + ids[:, 1:]
        wanted = torch.cat([ids, bigrams], 1)
        real = torch.cat([mask, mask[:, :-1] & mask[:, 1:]], 1)

        keys, below = self.gaps.long().cumsum(0), wanted * 0  # how many keys are below the wanted one
        for exponent in reversed(range(self.entries.bit_length())):
            last = below + (2**exponent - 1)  # of the keys that a step of 2^exponent passes
            passed = (last < self.entries) & (keys[last.clamp(max=self.entries - 1)] < wanted)
            below = below + passed.long() * 2**exponent
        entry = below.clamp(max=self.entries - 1)
        entry = torch.where(real & (keys[entry] == wanted), entry, self.entries)

        entry = entry.sort(1).values
        first = torch.cat([entry[:, :1] >= 0, entry[:, 1:] != entry[:, :-1]], 1)
        counted = first & (entry < self.entries)
        return entry * counted, counted
