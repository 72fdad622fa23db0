"""A coded table as a torch layer: its arrays as buffers, rows by token, and products with all rows.

The whole table is never unpacked. `ade/codebook.py` says what the arrays are; a table that is trained has books,
mean and, on request, rotation as parameters of the same names.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ade.codebook import ENTRIES, WHOLE, CodedTable, TableShape

BLOCK = 8192  # rows decoded per product
FEW = 8  # vectors whose products are summed by code


class PackedTable(nn.Module):
    """The arrays of a coded table, read as they are stored."""

    depths: Tensor  # (V / 2,) two rows a byte: the number of stages of each, or WHOLE
    exact: Tensor  # (exact, d)
    mean: Tensor  # (d,)
    rotation: Tensor  # (d, d) int8
    rotation_scale: Tensor  # (d, 1)
    places: Tensor  # (V,) int32: of every row; exact rows come first, then by falling number of stages

    def __init__(self, shape: TableShape) -> None:
        super().__init__()
        self.shape = shape
        for name, (size, kind) in shape.arrays().items():
            self.register_buffer(name, torch.zeros(size, dtype=getattr(torch, kind)))
        self.register_buffer("places", torch.arange(shape.rows, dtype=torch.int32), persistent=False)
        self.register_load_state_dict_post_hook(lambda module, _: module.order_rows())

    @torch.no_grad()
    def fill(self, arrays: Mapping[str, Tensor]) -> None:
        """Set arrays by name."""
        for name, array in arrays.items():
            getattr(self, name).copy_(array)
        if "depths" in arrays:
            self.order_rows()

    def to_table(self) -> CodedTable:
        """Return the table in numpy."""
        return CodedTable(self.shape, {name: array.cpu().numpy() for name, array in self.state_dict().items()})

    @classmethod
    def of_table(cls, table: CodedTable) -> "PackedTable":
        """Return a table of numpy as a layer."""
        packed = cls(table.shape)
        packed.fill({name: torch.from_numpy(np.array(array)) for name, array in table.arrays.items()})
        return packed

    def set_depths(self, depths: Tensor, exact: Tensor) -> None:
        """Store the number of stages of every row (V,), and which rows stay exact."""
        stored = depths.to(torch.uint8)
        stored[exact] = WHOLE
        stored = F.pad(stored, (0, len(stored) % 2))
        self.fill({"depths": stored[::2] | (stored[1::2] << 4)})

    def check_depths(self) -> None:
        """Raise InputError unless the numbers of stages are those of the shape."""
        self.shape.check_depths(self._depths_of_rows().cpu().numpy())

    def _depths_of_rows(self) -> Tensor:
        both = torch.stack([self.depths % 16, self.depths // 16], 1)  # no shifts: ONNX has none of opset 17
        return both.flatten()[: self.shape.rows]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PackedTable":
        """Move the arrays, but leave their types: a model in bfloat16 has the same books and scales."""

        def moved(array: Tensor) -> Tensor:
            after = fn(array)
            return after if after.dtype == array.dtype else array.to(after.device)

        super()._apply(moved, recurse)
        return self

    def order_rows(self) -> None:
        """Compute the places of the rows, after `depths` was set."""
        self.places = self._ordered()

    def _ordered(self) -> Tensor:
        row = torch.arange(self.shape.rows, device=self.depths.device)
        rank = row - self.shape.rows * self._depths_of_rows().long()  # by falling number of stages, then by row
        return rank.argsort().argsort().int()

    def directions(self) -> Tensor:
        """Return the rotation (d, d), float32."""
        return self.rotation * self.rotation_scale

    def book(self, number: int) -> Tensor:
        """Return the books of a stage, float32: (pieces, ENTRIES, width)."""
        book: Tensor = getattr(self, f"book_{number}")
        return book * self.get_buffer(f"scale_{number}")

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ids (...): (..., d), float32."""
        # A graph of ONNX computes the places, which would take 4 bytes a row.
        places = self._ordered() if torch.onnx.is_in_onnx_export() else self.places
        place = places[ids.flatten()].long()  # (n,)
        coded = place - self.shape.exact  # place among the coded rows
        total = self.mean.new_zeros(coded.shape[0], self.shape.dim)
        for number, stage in enumerate(self.shape.stages):
            codes = self.get_buffer(f"codes_{number}")[:, coded.clamp(0, stage.rows - 1)]  # (pieces, n)
            total = total + self._decoded(number, codes) * (coded < stage.rows)[:, None]

        rows = self.mean + total @ self.directions()  # (n, d)
        if self.shape.exact:
            whole = self.exact[place.clamp(max=self.shape.exact - 1)]
            rows = torch.where((coded < 0)[:, None], whole.float(), rows)
        return rows.reshape(*ids.shape, self.shape.dim)

    def _decoded(self, number: int, codes: Tensor) -> Tensor:
        """Return what codes of a stage (pieces, n) stand for: (n, d)."""
        book = self.book(number)
        entries = codes.T.long() + ENTRIES * torch.arange(len(book), device=codes.device)  # (n, pieces)
        return F.embedding(entries, book.flatten(0, 1)).flatten(1)

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the products of vectors (..., d) with every row: (..., V), float32.

        The vectors are rotated rather than the rows: there are far fewer of them. For a few vectors, every entry of
        every book is multiplied once, then the products are summed by code. For many, blocks of rows are decoded and
        multiplied.
        """
        flat = hidden.reshape(-1, self.shape.dim).float()  # (n, d)
        scores = torch.empty(len(flat), self.shape.rows, device=flat.device)  # (n, V), by place
        # Copies: where in memory the arrays of a file lie would change the last bit of a product.
        whole, mean = self.exact.to(torch.float32, copy=True), self.mean.clone()
        scores[:, : self.shape.exact] = flat @ whole.T
        scores[:, self.shape.exact :] = (flat @ mean)[:, None]

        rotated, coded = flat @ self.directions().T, scores[:, self.shape.exact :]
        if len(flat) <= FEW:
            coded += self._summed_products(rotated)
        else:
            for start in range(0, coded.shape[1], BLOCK):
                end = min(start + BLOCK, coded.shape[1])
                coded[:, start:end] += rotated @ self._block(start, end).T
        return scores[:, self.places.long()].reshape(*hidden.shape[:-1], self.shape.rows)

    def _block(self, start: int, end: int) -> Tensor:
        """Return the sums of codes of neighbouring places among the coded rows: (end - start, d)."""
        total = torch.zeros(end - start, self.shape.dim, device=self.mean.device)
        for number, stage in enumerate(self.shape.stages):
            rows = min(stage.rows, end) - start  # that have this stage: the first of the block
            if rows <= 0:
                break
            total[:rows] += self._decoded(number, self.get_buffer(f"codes_{number}")[:, start : start + rows])
        return total

    def _summed_products(self, rotated: Tensor) -> Tensor:
        """Return the products of rotated vectors (n, d) with the codes of all coded rows, by place."""
        summed = torch.zeros(len(rotated), self.shape.rows - self.shape.exact, device=rotated.device)
        for number, stage in enumerate(self.shape.stages):
            pieces = rotated.unflatten(1, (-1, stage.width)).transpose(0, 1)  # (pieces, n, width)
            products = pieces @ self.book(number).transpose(1, 2)  # (pieces, n, ENTRIES)
            codes = self.get_buffer(f"codes_{number}")
            size = BLOCK if rotated.device.type == "cpu" else stage.rows  # blocks that stay in the cache of a CPU
            for start in range(0, stage.rows, size):
                index = codes[:, start : start + size].long()  # (pieces, rows)
                for vector in range(len(rotated)):
                    summed[vector, start : start + index.shape[1]] += products[:, vector].gather(1, index).sum(0)
        return summed


class TrainableTable(PackedTable):
    """A coded table whose books and mean, and on request rotation, are float32 parameters; the codes stay.

    Without any codes, the exact rows are parameters. The scale of a stage says only how the pieces that share a book
    differ; it is not trained.
    """

    def __init__(self, table: PackedTable, rotation: bool = True) -> None:
        """Take over the rows of a table."""
        super().__init__(table.shape)
        self.rotates, arrays = rotation, table.state_dict()
        if rotation:
            arrays |= {"rotation": table.directions(), "rotation_scale": torch.ones_like(table.rotation_scale)}
        for number, stage in enumerate(self.shape.stages):
            scale = arrays[f"scale_{number}"]  # (pieces, 1, 1)
            common = scale.abs().mean(0, keepdim=True) if stage.shared else scale
            arrays[f"book_{number}"] = arrays[f"book_{number}"] * common
            arrays[f"scale_{number}"] = scale / torch.where(common == 0, 1, common)

        books = [f"book_{number}" for number in range(len(self.shape.stages))]
        for name in ("mean", *(["rotation"] if rotation else []), *(books or ["exact"])):
            delattr(self, name)
            self.register_parameter(name, nn.Parameter(arrays.pop(name).float().clone()))
        self.fill(arrays)

    def to_table(self) -> CodedTable:
        """Return the table in numpy, its books in bytes again."""
        return self.packed().to_table()

    @torch.no_grad()
    def packed(self) -> PackedTable:
        """Return the table with its arrays as bytes again."""
        arrays = self.state_dict()
        if self.rotates:
            top = _byte_scale(self.rotation, 1)
            arrays |= {"rotation": (self.rotation / top).round(), "rotation_scale": top}
        for number in range(len(self.shape.stages)):
            book = arrays[f"book_{number}"]
            top = _byte_scale(book, (1, 2))  # one for all pieces where they share the book
            arrays[f"book_{number}"] = (book / top).round()
            arrays[f"scale_{number}"] = arrays[f"scale_{number}"] * top
        table = PackedTable(self.shape)
        table.fill(arrays)
        return table


def _byte_scale(values: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """Return what the values are divided by, along dimensions, to fit into signed bytes."""
    return values.abs().amax(dims, keepdim=True).clamp(min=1e-12) / 127
