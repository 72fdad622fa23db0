"""A packed table in place of a model's embedding, and in place of its output layer.

Modules that share one table, as an embedding and its tied head do, refer to one `PackedTable`: the owner has it as a
submodule, the others hold it outside of their submodules, so that it is moved, counted and saved once.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ade.coded_layer import PackedTable
from ade.errors import InputError

NO_WEIGHT = "a packed table has no `weight`, and cannot be resized: change the original model, then compress it again"


class PackedModule(nn.Module):
    """What both have in common: a packed table, owned or shared, and the dtype of the module that it replaces."""

    like: Tensor  # (0,) in the dtype of the model, which `model.to(dtype)` changes
    placeholder: Tensor | None = None

    def __init__(self, table: PackedTable, weight: Tensor, owned: bool) -> None:
        super().__init__()
        if owned:
            self.table = table
        self._shared = (table,)  # a tuple: not a submodule
        self.size = tuple(weight.shape)  # of the replaced table
        self.register_buffer("like", torch.empty(0, dtype=weight.dtype), persistent=False)

    @property
    def packed(self) -> PackedTable:
        """The table, of this module or of the one it is shared with."""
        return self._shared[0]

    @property
    def table_device(self) -> torch.device:
        """Where the table is, which need not be where this module's inputs are."""
        return self.packed.mean.device

    @property
    def owned(self) -> bool:
        """Whether the table is saved and moved with this module."""
        return "table" in self._modules

    def __getattr__(self, name: str) -> Any:
        if name != "weight":
            return super().__getattr__(name)
        if self.placeholder is None:
            raise AttributeError(NO_WEIGHT)  # so that hasattr() says False
        return self.placeholder

    def while_loading(self, loading: bool) -> None:
        """Have a `weight` without content while a model is loaded, as some models initialise those of their parts.

        It is marked as initialised, which transformers respects.
        """
        self.placeholder = torch.empty(self.size, dtype=self.like.dtype, device="meta") if loading else None
        if self.placeholder is not None:
            self.placeholder._is_hf_initialized = True  # type: ignore[attr-defined]


class RowReader:
    """What a packed embedding has for a weight: single rows can be read, as Gemma 4 reads that of padding."""

    def __init__(self, embedding: "PackedEmbedding") -> None:
        self._embedding = embedding

    def __getitem__(self, key: Any) -> Tensor:
        row, *columns = key if isinstance(key, tuple) else (key,)
        if not isinstance(row, int):
            raise AttributeError(NO_WEIGHT)
        return self._embedding.rows(torch.tensor(row, device=self._embedding.table_device))[tuple(columns)]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(NO_WEIGHT)


class PackedEmbedding(PackedModule):
    """Rows of a packed table by id, in the model's dtype, multiplied where the replaced embedding multiplied them.

    A table with a row of every layer for each token has each layer's slice as a row of the packed table.
    """

    def __init__(self, table: PackedTable, replaced: nn.Embedding, owned: bool = True) -> None:
        super().__init__(table, replaced.weight, owned)
        self.num_embeddings = replaced.num_embeddings
        self.embedding_dim = replaced.embedding_dim
        self.slices = self.embedding_dim // table.shape.dim
        self.padding_idx = replaced.padding_idx
        scale, rounded = scale_of(replaced)
        self._factor = torch.tensor(scale, device="cpu") if rounded else scale

    def __getattr__(self, name: str) -> Any:
        if name == "weight" and self.placeholder is None:
            return RowReader(self)
        return super().__getattr__(name)

    def rows(self, input_ids: Tensor) -> Tensor:
        """Return the rows of ids (...) as the table has them: (..., d)."""
        ids = input_ids.to(self.table_device)
        if self.slices > 1:
            ids = ids[..., None] * self.slices + torch.arange(self.slices, device=ids.device)  # (..., slices)
        rows = self.packed(ids).to(device=input_ids.device, dtype=self.like.dtype)
        return rows.flatten(-2) if self.slices > 1 else rows

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the rows of ids (...), scaled: (..., d)."""
        rows = self.rows(input_ids)
        if self._factor is None:
            return rows
        return rows * (self._factor.to(self.like.dtype) if isinstance(self._factor, Tensor) else self._factor)


class PackedHead(PackedModule):
    """Products of vectors with every row of a packed table, without unfolding it, plus the bias."""

    def __init__(self, table: PackedTable, replaced: nn.Linear, owned: bool = True) -> None:
        super().__init__(table, replaced.weight, owned)
        self.in_features = replaced.in_features
        self.out_features = replaced.out_features
        self.bias = replaced.bias  # the same parameter: it may be tied, too

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the logits of vectors (..., d): (..., V), in their dtype."""
        scores = self.packed.scores(hidden.to(self.table_device)).to(hidden.device)
        if self.bias is not None:
            scores = scores + self.bias
        return scores.to(hidden.dtype)


Packed = PackedEmbedding | PackedHead


def packed_module(table: PackedTable, replaced: nn.Module, name: str, owned: bool = True) -> Packed:
    """Return the module to put in place of another; raises InputError where that cannot be."""
    if not isinstance(replaced, nn.Embedding | nn.Linear):
        raise InputError(f"{name} is {type(replaced).__name__}: only nn.Embedding and nn.Linear can be packed")
    given = tuple(replaced.weight.shape)
    size = (table.shape.rows, table.shape.dim)
    slices = given[1] // size[1] if isinstance(replaced, nn.Embedding) else 1
    if (given[0] * slices, given[1]) != (size[0], size[1] * slices):
        raise InputError(f"{name} is {given[0]} x {given[1]}, the packed table {size[0]} x {size[1]}")
    if isinstance(replaced, nn.Embedding):
        return PackedEmbedding(table, replaced, owned).train(replaced.training)
    return PackedHead(table, replaced, owned).train(replaced.training)


def scale_of(embedding: nn.Embedding) -> tuple[float | None, bool]:
    """Return what an embedding multiplies its rows by, and whether that number is rounded to the model's dtype first.

    Gemma's embeddings keep it as `scalar_embed_scale` beside a buffer, those of Bart's family as `embed_scale`.
    """
    if embedding.max_norm is not None:
        raise InputError(f"{type(embedding).__name__} with max_norm cannot be packed")
    rounded: Any = getattr(embedding, "scalar_embed_scale", None)
    if rounded is not None:
        return float(rounded), True
    scale: Any = getattr(embedding, "embed_scale", None)
    if scale is not None and not isinstance(scale, Tensor):
        return float(scale), False
    if type(embedding).forward is not nn.Embedding.forward:
        raise InputError(f"{type(embedding).__name__} does more than looking rows up: it cannot be packed")
    return None, False
