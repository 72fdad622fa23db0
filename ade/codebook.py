"""The codebook: shared anchors and, for each token, a few (index, weight) pairs (Vocabulary Projection).

The pairs of all tokens are stored one after the other, so tokens may have any number of pairs, at least one. Anchors
of a distilled codebook have norm one, and so have the composed rows, up to the error of their approximation.
"""

import hashlib
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

from ade.data.tokenizer_file import read_tokenizer, write_tokenizer
from ade.errors import InputError
from ade.files import new_folder
from ade.packing.format import Packing, Shape, all_anchors, check, check_finite, lookup, pack

MARKER = "codebook.json"
TENSORS = "codebook.safetensors"
BLOCK = 8192  # tokens composed or unpacked at a time


@dataclass(frozen=True, eq=False)
class Codebook:
    """Anchors A, and for token i the pairs (I_i, beta_i) with k_i = counts[i] >= 1."""

    anchors: Tensor  # (K, d) float32
    indices: Tensor  # (P,) int16 or int32: which anchor
    weights: Tensor  # (P,) float32: how much of it
    counts: Tensor  # (N,) uint8 or int32: k_i
    tokenizer: Tokenizer
    about: Mapping[str, Any] = field(default_factory=dict)  # its teacher, settings and how close it is to the teacher
    packing: Packing | None = None  # in how many bits it is stored; None for full precision

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
        """Make a codebook from pairs of any integer type, stored in the smallest type that fits.

        Token i has the `counts[i]` pairs of `indices` and `weights` that follow those of the tokens before it; `about`
        is stored in `codebook.json`.
        """
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
        """The largest number of pairs of any token."""
        return int(self.counts.max())

    @cached_property
    def offsets(self) -> Tensor:
        """Position of each token's first pair, then the number of pairs: (N + 1,)."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.counts.cumsum(0, dtype=torch.int64)])  # (N + 1,)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays: the size of `codebook.safetensors` without its short header."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors().values())

    @property
    def paper_nbytes(self) -> int:
        """Bytes as the paper counts them: float32 anchors, an int32 index and a float32 weight for each pair."""
        return 4 * self.anchors.numel() + 8 * len(self.indices)

    def digest(self) -> str:
        """Return a hash of anchors and weights."""
        found = hashlib.sha256()
        for values in (self.weights, self.anchors):
            found.update(np.ascontiguousarray(values.numpy()).data)
        return found.hexdigest()[:16]

    def pairs_of(self, token: int) -> tuple[Tensor, Tensor]:
        """Return the anchor indices and weights of one token."""
        start, stop = self.offsets[token : token + 2].tolist()
        return self.indices[start:stop].long(), self.weights[start:stop]

    def rows(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the composed rows of the tokens from `start` up to `stop`, by default of all."""
        offsets = self.offsets[start : (self.vocabulary if stop is None else stop) + 1]
        own = slice(int(offsets[0]), int(offsets[-1]))
        indices, weights = self.indices[own].long(), self.weights[own]
        return F.embedding_bag(
            indices, self.anchors, offsets[:-1] - offsets[0], mode="sum", per_sample_weights=weights
        )  # (stop - start, d)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[int, Tensor]]:
        """Yield all composed rows in blocks of `size`, each with its first token; the whole table is never built."""
        for start in range(0, self.vocabulary, size):
            yield start, self.rows(start, min(start + size, self.vocabulary))

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write `codebook.safetensors`, `codebook.json` and the tokenizer; nothing where one of them fails."""
        with new_folder(Path(folder), {MARKER}, overwrite) as draft:
            self.write(draft)

    def write(self, folder: Path) -> None:
        """Write the files of a codebook into an existing folder."""
        save_file(self._tensors(), folder / TENSORS)
        description: dict[str, Any] = {"format": 1}
        if self.packing is not None:
            description = {"format": 2, "packing": self.packing.as_dict(), "packed": asdict(self._packed[0])}
        (folder / MARKER).write_text(json.dumps({**description, **self.about}, indent=2) + "\n", "utf8")
        write_tokenizer(self.tokenizer, folder, packed=self.packing is not None)

    @classmethod
    def load(cls, folder: str | Path) -> "Codebook":
        """Read a codebook folder."""
        folder = Path(folder)
        version, about = _read_description(folder)
        tensors = _read_tensors(folder / TENSORS)
        tokenizer = read_tokenizer(folder)

        if version == 2:  # packed
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
            anchors, indices, weights, counts = (tensors[name] for name in ("anchors", "indices", "weights", "counts"))
            return cls(anchors, indices, weights, counts, tokenizer, about)
        except InputError as error:
            raise InputError(f"{folder / TENSORS}: not a whole codebook: {error}") from None

    @cached_property
    def _packed(self) -> tuple[Shape, dict[str, np.ndarray]]:
        assert self.packing is not None
        anchors, indices, weights = (tensor.numpy() for tensor in (self.anchors, self.indices, self.weights))
        return pack(anchors, indices, weights, self.counts.numpy().astype(np.int64), self.packing)

    def rounded(self) -> "Codebook":
        """Return the codebook as it will be read back from disk: with its values rounded, where it is packed."""
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


def _read_description(folder: Path) -> tuple[int, dict[str, Any]]:
    """Return the format version of a codebook folder and the rest of its `codebook.json`."""
    path = folder / MARKER
    if not path.is_file():
        raise InputError(f"{folder}: not a codebook folder (no {MARKER}); make one with 'ade distill'")
    try:
        about = json.loads(path.read_text("utf8"))
    except ValueError as error:
        raise InputError(f"{path}: not readable JSON ({error})") from None
    version = about.pop("format", None) if isinstance(about, dict) else None
    if version not in (1, 2):
        raise InputError(f"{path}: a codebook format this version does not know")
    return version, about


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from None


def _unpacked(
    shape: Shape, arrays: Mapping[str, np.ndarray], packing: Packing, tokenizer: Tokenizer, about: Mapping[str, Any]
) -> Codebook:
    """Return the codebook that packed arrays hold."""
    block_starts = check(shape, arrays)
    found = [
        lookup(shape, arrays, block_starts, np.arange(first, min(first + BLOCK, shape.vocabulary)))
        for first in range(0, shape.vocabulary, BLOCK)
    ]
    index, weight, real = (np.concatenate(part) for part in zip(*found, strict=True))  # (N, k)

    anchors, counts = torch.from_numpy(all_anchors(shape, arrays)), torch.from_numpy(real.sum(1))
    indices, weights = torch.from_numpy(index[real]), torch.from_numpy(weight[real].astype(np.float32))
    return replace(Codebook.from_pairs(anchors, indices, weights, counts, tokenizer, packing), about=about)
