"""The codebook: shared anchors and, for each token, a few (index, weight) pairs (Vocabulary Projection).

The sparse record below is the one stored form. Pairs of all tokens lie end to end, token after token, so
tokens may have any number of pairs, at least one. Weights are on the scale of unit vectors: anchors have
norm one, and so have the composed rows, up to what the pairs cannot express.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from ade.data.tokenize import read_tokenizer
from ade.errors import InputError
from ade.files import new_folder
from ade.packing.format import Packing, Shape, all_anchors, check, check_finite, lookup, pack

MARKER = "codebook.json"
TENSORS = "codebook.safetensors"


@dataclass(frozen=True, eq=False)
class Codebook:
    """Anchors A, and for token i the pairs (I_i, beta_i) with k_i = counts[i] >= 1."""

    anchors: Tensor  # (K, d) float32
    indices: Tensor  # (P,) int16 or int32: which anchor
    weights: Tensor  # (P,) float32: how much of it
    counts: Tensor  # (N,) uint8 or int32: k_i
    tokenizer: Tokenizer
    about: Mapping[str, Any] = field(default_factory=dict)  # where it came from and how close it is
    packing: Packing | None = None  # in how many bits it is stored, where that is fewer

    def __post_init__(self) -> None:
        if self.counts.numel() == 0 or int(self.counts.min()) < 1:
            raise InputError("every token needs at least one pair")
        pairs = int(self.counts.sum(dtype=torch.int64))
        if not len(self.indices) == len(self.weights) == pairs:
            raise InputError(f"{len(self.indices)} indices, {len(self.weights)} weights, the counts add up to {pairs}")
        if int(self.indices.min()) < 0 or int(self.indices.max()) >= len(self.anchors):
            raise InputError(f"an index lies outside the {len(self.anchors)} anchors")
        check_finite({name: getattr(self, name).numpy() for name in ("anchors", "weights")})

    def __repr__(self) -> str:
        pairs = len(self.indices) / self.vocabulary
        return f"Codebook({self.vocabulary:,} tokens, {len(self.anchors):,} anchors, {pairs:.1f} pairs, d={self.dim})"

    @classmethod
    def from_pairs(
        cls,
        anchors: Tensor,
        indices: Tensor,
        weights: Tensor,
        counts: Tensor,
        tokenizer: Tokenizer,
        packing: Packing | None = None,
        **about: Any,
    ) -> "Codebook":
        """A codebook from ragged pairs of any integer type, stored in the smallest that fits."""
        index_type = torch.int16 if len(anchors) <= 2**15 else torch.int32
        count_type = torch.uint8 if int(counts.max()) < 2**8 else torch.int32
        return cls(
            anchors.float().cpu().contiguous(),
            indices.to("cpu", index_type),
            weights.float().cpu().contiguous(),
            counts.to("cpu", count_type),
            tokenizer,
            about,
            packing,
        )

    @classmethod
    def from_transform(
        cls, anchors: Tensor, transform: Tensor, threshold: float, tokenizer: Tokenizer, **about: Any
    ) -> "Codebook":
        """The paper's Vocabulary Projection: I_i = {j : T_ij >= tau} of a dense transform, k_i clamped to >= 1.

        Weights may be signed here, so their size is what is compared; a row with none above keeps its largest.
        """
        size = transform.abs()  # (N, K)
        keep = size >= threshold
        keep.scatter_(1, size.argmax(1, keepdim=True), True)
        rows, columns = keep.nonzero(as_tuple=True)
        return cls.from_pairs(anchors, columns, transform[rows, columns], keep.sum(1), tokenizer, **about)

    @property
    def vocabulary(self) -> int:
        """N, the number of tokens."""
        return len(self.counts)

    @property
    def dim(self) -> int:
        """d, the width of an anchor."""
        return self.anchors.shape[1]

    @property
    def max_pairs(self) -> int:
        """The most pairs any token has."""
        return int(self.counts.max())

    @cached_property
    def offsets(self) -> Tensor:
        """Where each token's pairs start; one entry more than tokens."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.counts.cumsum(0, dtype=torch.int64)])  # (N + 1,)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays: the size of the file on disk, but for its short header."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors().values())

    @property
    def paper_nbytes(self) -> int:
        """Bytes in the paper's accounting: float32 anchors, an int32 index and a float32 weight a pair."""
        return 4 * self.anchors.numel() + 8 * len(self.indices)

    def pairs_of(self, token: int) -> tuple[Tensor, Tensor]:
        """The anchor indices and weights of one token."""
        start, stop = self.offsets[token : token + 2].tolist()
        return self.indices[start:stop].long(), self.weights[start:stop]

    def rows(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Composed rows of the tokens from `start` to `stop` (of all, where neither is given): what the pairs say."""
        offsets = self.offsets[start : (self.vocabulary if stop is None else stop) + 1]
        pairs = slice(int(offsets[0]), int(offsets[-1]))
        indices, weights = self.indices[pairs].long(), self.weights[pairs]
        return F.embedding_bag(
            indices, self.anchors, offsets[:-1] - offsets[0], mode="sum", per_sample_weights=weights
        )  # (stop - start, d)

    def blocks(self, size: int = 8192) -> Iterator[tuple[int, Tensor]]:
        """All composed rows, a block at a time, each with the token it starts at: the whole table is never built."""
        for start in range(0, self.vocabulary, size):
            yield start, self.rows(start, min(start + size, self.vocabulary))

    def thresholded(self, threshold: float) -> "Codebook":
        """Without the pairs whose weight is smaller than the threshold; each token keeps its largest."""
        owner = torch.repeat_interleave(torch.arange(self.vocabulary), self.counts.long())  # (P,)
        size = self.weights.abs()
        largest = torch.zeros(self.vocabulary).scatter_reduce(0, owner, size, "amax")
        first = torch.full((self.vocabulary,), len(size)).scatter_reduce(
            0, owner, torch.where(size == largest[owner], torch.arange(len(size)), len(size)), "amin"
        )
        keep = size >= threshold
        keep[first] = True
        counts = torch.zeros(self.vocabulary, dtype=torch.int64).index_add(0, owner, keep.long())
        return replace(
            self, indices=self.indices[keep], weights=self.weights[keep], counts=counts.to(self.counts.dtype)
        )

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write `codebook.safetensors`, `codebook.json` and `tokenizer.json`, all of them or nothing."""
        with new_folder(Path(folder), {MARKER}, overwrite) as draft:
            self.write(draft)

    def write(self, folder: Path) -> None:
        """Write the files of a codebook folder into a folder as it is."""
        save_file(self._tensors(), folder / TENSORS)
        form: dict[str, Any] = {"format": 1}
        if self.packing is not None:
            form = {"format": 2, "packing": self.packing.as_dict(), "packed": asdict(self._packed[0])}
        (folder / MARKER).write_text(json.dumps({**form, **self.about}, indent=2) + "\n", "utf8")
        self.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)

    @classmethod
    def load(cls, folder: str | Path) -> "Codebook":
        """Read a codebook folder."""
        folder = Path(folder)
        if not (folder / MARKER).is_file():
            raise InputError(f"{folder}: not a codebook folder (no {MARKER}); make one with 'ade distill'")
        try:
            about = json.loads((folder / MARKER).read_text("utf8"))
        except ValueError as error:
            raise InputError(f"{folder / MARKER}: not readable JSON ({error})") from None
        form = about.pop("format", None) if isinstance(about, dict) else None
        if form not in (1, 2):
            raise InputError(f"{folder / MARKER}: a codebook format this version does not know")
        try:
            with safe_open(folder / TENSORS, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise InputError(f"{folder / TENSORS}: not a readable safetensors file ({error})") from None
        tokenizer = read_tokenizer(folder / "tokenizer.json")
        if form == 2:
            arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
            try:
                packing, shape = Packing(**about.pop("packing")), Shape(**about.pop("packed"))
                return _unpacked(shape, arrays, packing, tokenizer, about)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{folder}: damaged, or not a packed codebook ({error})") from None
        if set(tensors) != {"anchors", "indices", "weights", "counts"}:
            raise InputError(
                f"{folder / TENSORS}: not a codebook, it holds {', '.join(sorted(tensors)[:5]) or 'nothing'}"
            )
        try:
            return cls(**tensors, tokenizer=tokenizer, about=about)
        except InputError as error:
            raise InputError(f"{folder / TENSORS}: not a whole codebook: {error}") from None

    @cached_property
    def _packed(self) -> tuple[Shape, dict[str, np.ndarray]]:
        assert self.packing is not None
        anchors, indices, weights = (tensor.numpy() for tensor in (self.anchors, self.indices, self.weights))
        return pack(anchors, indices, weights, self.counts.numpy().astype(np.int64), self.packing)

    def rounded(self) -> "Codebook":
        """The codebook as it will be read back, where it is packed."""
        return self if self.packing is None else _unpacked(*self._packed, self.packing, self.tokenizer, self.about)

    def _tensors(self) -> dict[str, Tensor]:
        if self.packing is not None:
            return {name: torch.from_numpy(array) for name, array in self._packed[1].items()}
        return {
            "anchors": self.anchors,
            "indices": self.indices,
            "weights": self.weights,
            "counts": self.counts,
        }


def _unpacked(
    shape: Shape, arrays: Mapping[str, np.ndarray], packing: Packing, tokenizer: Tokenizer, about: Mapping[str, Any]
) -> Codebook:
    starts = check(shape, arrays)
    parts = [lookup(shape, arrays, starts, np.arange(at, min(at + 8192, shape.vocabulary)))
        for at in range(0, shape.vocabulary, 8192)]  # fmt: skip
    index, weight, there = (np.concatenate(part) for part in zip(*parts, strict=True))
    anchors = torch.from_numpy(all_anchors(shape, arrays))
    kept, weights = torch.from_numpy(index[there]), torch.from_numpy(weight[there].astype(np.float32))
    made = Codebook.from_pairs(anchors, kept, weights, torch.from_numpy(there.sum(1)), tokenizer, packing)
    return replace(made, about=about)
