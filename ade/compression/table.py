"""A packed table as a layer: its arrays as buffers, rows by token, and products with all rows, never unfolded.

`ade/packing/coded.py` says what the arrays are.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ade.embedding import TensorCache
from ade.packing.coded import ENTRIES, WHOLE, TableShape

BLOCK = 8192  # rows decoded at a time
FEW = 8  # vectors whose products are summed by code


def type_name(dtype: torch.dtype) -> str:
    """Return the name of a type, as in 'float16'."""
    return str(dtype).removeprefix("torch.")


class PackedTable(nn.Module):
    """The arrays of a packed table as buffers; reads rows, and multiplies by all of them without unfolding them."""

    depths: Tensor  # (V / 2,) two rows a byte: the number of stages of each, or WHOLE
    exact: Tensor  # (exact, d)
    mean: Tensor  # (d,)
    rotation: Tensor  # (d, d) int8
    rotation_scale: Tensor  # (d, 1)
    gains: Tensor  # (stages,): of rows of 1, 2, ... stages

    def __init__(self, shape: TableShape, exact_dtype: torch.dtype = torch.float16) -> None:
        super().__init__()
        self.shape = shape
        for name, (size, kind) in shape.arrays(type_name(exact_dtype)).items():
            self.register_buffer(name, torch.zeros(size, dtype=getattr(torch, kind)))
        self._slots = TensorCache[Tensor]()
        self._placed: Tensor | None = None  # the slots last returned

    @torch.no_grad()
    def fill(self, arrays: Mapping[str, Tensor]) -> None:
        """Set arrays by name."""
        for name, array in arrays.items():
            self.get_buffer(name).copy_(array)

    def set_depths(self, depths: Tensor, exact: Tensor) -> None:
        """Store the number of stages of every row (V,), and which rows stay whole."""
        stored = depths.to(torch.uint8)
        stored[exact] = WHOLE
        stored = nn.functional.pad(stored, (0, len(stored) % 2))
        self.fill({"depths": stored[::2] | (stored[1::2] << 4)})

    def check_depths(self) -> None:
        """Raise InputError unless the numbers of stages are those that the shape says."""
        self.shape.check_depths(self.depths_of_rows())

    def depths_of_rows(self) -> Tensor:
        """Return the number of stages of every row (V,), or WHOLE."""
        both = torch.stack([self.depths & 15, self.depths >> 4], 1)
        return both.flatten()[: self.shape.rows]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PackedTable":
        """Move the arrays, but leave their types: a model in bfloat16 has the same books and scales."""

        def moved(array: Tensor) -> Tensor:
            after = fn(array)
            return after if after.dtype == array.dtype else array.to(after.device)

        super()._apply(moved, recurse)
        if self._placed is not None and not self.depths.is_meta:
            self.slots()  # on the new device, for graphs
        return self

    def slots(self) -> Tensor:
        """Return the place of every row (V,): whole rows first, then by falling number of stages."""
        if torch.compiler.is_compiling() and self._placed is not None:
            return self._placed  # whether the cache is valid cannot be traced
        self._placed = self._slots.get([self.depths], self._place_rows)
        return self._placed

    @torch.no_grad()
    def _place_rows(self) -> Tensor:
        order = torch.argsort(self.depths_of_rows().int(), descending=True, stable=True)
        slots = torch.empty(self.shape.rows, dtype=torch.int32, device=order.device)
        slots[order] = torch.arange(self.shape.rows, dtype=torch.int32, device=order.device)
        return slots

    def directions(self) -> Tensor:
        """Return the rotation (d, d), float32."""
        return self.rotation * self.rotation_scale

    def center(self) -> Tensor:
        """Return the mean (d,), float32."""
        return self.mean

    def lengthening(self) -> Tensor:
        """Return the gains (stages,), float32."""
        return self.gains

    def book(self, number: int) -> Tensor:
        """Return the books of a stage, float32: (pieces, ENTRIES, width)."""
        return self.get_buffer(f"book_{number}") * self.get_buffer(f"scale_{number}")

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ids (...): (..., d), float32."""
        return self.rows_at(self.slots()[ids.flatten()].long()).reshape(*ids.shape, self.shape.dim)

    def rows_at(self, slots: Tensor) -> Tensor:
        """Return the rows at these places (n,): (n, d), float32."""
        coded = slots - self.shape.exact
        rows = self.center() + self.coefficients(coded) @ self.directions()
        if self.shape.exact:
            whole = self.exact[slots.clamp(max=self.shape.exact - 1)]
            rows = torch.where((coded < 0)[:, None], whole.float(), rows)
        return rows

    def coefficients(self, coded: Tensor) -> Tensor:
        """Return the sum of the codes of rows, by their place among the coded rows (n,): (n, d)."""
        total = torch.zeros(len(coded), self.shape.dim, device=coded.device)
        for number, stage in enumerate(self.shape.stages):
            codes = self.get_buffer(f"codes_{number}")[:, coded.clamp(0, stage.rows - 1)]  # (pieces, n)
            total = total + self._decoded(number, codes) * (coded < stage.rows)[:, None]
        return self._lengthened(total, coded)

    def _lengthened(self, total: Tensor, coded: Tensor) -> Tensor:
        """Return sums of codes (n, d) times the gains of rows of so many stages, by their place among the coded."""
        if not self.shape.stages:
            return total
        depth = sum((coded < stage.rows).long() for stage in self.shape.stages[1:]) + torch.zeros_like(coded)
        return total * self.lengthening()[depth][:, None]

    def _decoded(self, number: int, codes: Tensor) -> Tensor:
        """Return what codes of a stage (pieces, n) stand for: (n, d)."""
        book = self.book(number)
        entries = codes.T.long() + ENTRIES * torch.arange(len(book), device=codes.device)  # (n, pieces)
        return F.embedding(entries, book.flatten(0, 1)).flatten(1)

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the products of vectors (..., d) with every row: (..., V), float32.

        A few vectors: every entry of every book is multiplied once, then the products are summed by code. Many: blocks
        of sums of codes are decoded and multiplied. Neither unfolds the table.
        """
        flat = hidden.reshape(-1, self.shape.dim).float()  # (n, d)
        return self.by_slot(flat)[:, self.slots().long()].reshape(*hidden.shape[:-1], self.shape.rows)

    def by_slot(self, flat: Tensor) -> Tensor:
        """Return the products of vectors (n, d) with every row, in the order of their places: (n, V), float32."""
        return self._summed_products(flat) if len(flat) <= FEW else self._block_products(flat)

    def _block_products(self, flat: Tensor) -> Tensor:
        found, rotated = self.products_without_codes(flat)
        coded = found[:, self.shape.exact :]
        for start in range(0, coded.shape[1], BLOCK):
            end = min(start + BLOCK, coded.shape[1])
            coded[:, start:end] += rotated @ self._block_coefficients(start, end).T
        return found

    def _block_coefficients(self, start: int, end: int) -> Tensor:
        """Return the sums of codes of neighbouring places among the coded rows: (end - start, d)."""
        total = torch.zeros(end - start, self.shape.dim, device=self.mean.device)
        for number, stage in enumerate(self.shape.stages):
            rows = min(stage.rows, end) - start  # that have this stage: the first of the block
            if rows <= 0:
                break
            total[:rows] += self._decoded(number, self.get_buffer(f"codes_{number}")[:, start : start + rows])
        return self._lengthened(total, torch.arange(start, end, device=total.device))

    def products_without_codes(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return the products with whole rows and with the mean (n, V), and the vectors to multiply codes by (n, d).

        The vectors are rotated rather than the rows: there are far fewer of them.
        """
        found = torch.empty(len(flat), self.shape.rows, device=flat.device)
        # Copies: where in memory the arrays of a file lie would change the last bit of a product.
        whole, center = self.exact.to(torch.float32, copy=True), self.center().clone()
        found[:, : self.shape.exact] = flat @ whole.T
        found[:, self.shape.exact :] = (flat @ center)[:, None]
        return found, flat @ self.directions().T

    def _summed_products(self, flat: Tensor) -> Tensor:
        found, rotated = self.products_without_codes(flat)
        summed = torch.zeros(len(flat), self.shape.rows - self.shape.exact, device=flat.device)
        for number, stage in enumerate(self.shape.stages):
            pieces = rotated.unflatten(1, (-1, stage.width)).transpose(0, 1)  # (pieces, n, width)
            products = pieces @ self.book(number).transpose(1, 2)  # (pieces, n, ENTRIES)
            codes, size = self.get_buffer(f"codes_{number}"), BLOCK if flat.device.type == "cpu" else stage.rows
            for start in range(0, stage.rows, size):  # blocks that stay in the cache of a CPU
                index = codes[:, start : start + size].long()  # (pieces, rows)
                for vector in range(len(flat)):
                    summed[vector, start : start + index.shape[1]] += products[:, vector].gather(1, index).sum(0)
        for gain, (begin, end) in zip(self.lengthening(), self.shape.ranges(), strict=True):
            summed[:, begin:end] *= gain
        found[:, self.shape.exact :] += summed
        return found
