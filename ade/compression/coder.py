"""Code a table: rotate it, choose how many stages each row gets for the bytes at hand, and find books and codes.

A row's error counts by its expected use. With a price on every byte, a stage is worth its bytes for the rows whose use,
times what the stage takes off their error, is above the price; the price that meets the budget is found by bisection.
Stages whose codes are equally wide are searched together (`joint_codes.py`), the others one after the other.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ade.compression.joint_codes import refit, search_nested
from ade.compression.table import PackedTable, type_name
from ade.devices import cores
from ade.errors import InputError
from ade.packing.coded import ENTRIES, Stage, TableShape
from ade.progress import Report, silent

FINE = (0.5, 0.5, 0.5, 0.5, 1.0, 2.0, 4.0)  # bits of a weight in each stage, where the dimension allows; 9 in all
COARSE = (0.5, 0.5, 1.0, 2.0, 4.0)  # fewer stages, so fewer books
SHARED_FROM = 2.0  # bits: all pieces of a finer stage share one book, as their residuals are alike
BOOK_SHARE = 0.1  # of the bytes: where the books of FINE would take more, COARSE and sharing them all are tried
SAMPLE = 131_072  # rows that k-means sees
ALIKE = 65_536  # pieces of all places that it sees for a shared book
TRIED = 16_384  # rows that tell what each stage is worth
ROUNDS = 10  # of k-means
TOGETHER = 3  # times that the books of equally wide stages are fitted anew, all at once
CHUNK = 2048  # rows compared with a book at a time, so that the products stay in the cache
USE_FLOOR = 0.05  # of the mean use: no row is taken for unused
PLAIN = 0.5  # share of the plain squared error beside a metric
EXPONENT = 0.75  # of the use: the text that use was counted in is never the text to come


Result = TypeVar("Result")


@dataclass(frozen=True)
class CoderSettings:
    """What a caller may choose."""

    size: int  # bytes of the packed table
    seed: int = 0
    exponent: float = EXPONENT
    plain: float = PLAIN


class Plan(NamedTuple):
    """Stages that a table may have: numbers a code in each, and from how many bits on pieces share one book."""

    widths: list[int]
    shared_from: float

    def stages(self, counts: Sequence[int]) -> tuple[Stage, ...]:
        """The stages that have rows, given how many each has."""
        made = [Stage(w, n, 8 / w >= self.shared_from) for w, n in zip(self.widths, counts, strict=True) if n]
        return tuple(made)


def plans_of(dim: int, size: int) -> list[Plan]:
    """The plans to choose from for a table of `size` bytes."""
    books = dim * ENTRIES * sum(bits < SHARED_FROM for bits in FINE)  # bytes, with one for every piece
    if books <= BOOK_SHARE * size:
        return [Plan(widths_of(dim, FINE), SHARED_FROM)]
    return [Plan(widths_of(dim, COARSE), SHARED_FROM), Plan(widths_of(dim, FINE), 0.0)]


def widths_of(dim: int, bits: Sequence[float]) -> list[int]:
    """Numbers a code in each stage of so many bits: the divisors of the dimension that come nearest."""
    divisors = [n for n in range(1, dim + 1) if dim % n == 0]
    return [min(divisors, key=lambda n: (abs(math.log(n * each / 8)), n)) for each in bits]


def encode_table(
    table: Tensor,
    use: Tensor,
    exact: Sequence[int],
    settings: CoderSettings,
    metric: Tensor | None = None,
    report: Report = silent,
) -> PackedTable:
    """Code a table (V, d) in so many bytes.

    `use` (V,) is how often each row is expected; `exact` rows stay whole. With a `metric` (d, d), the error e of a row
    counts as e @ metric @ e: directions that matter more are kept better.
    """
    return _Coder(table, use, exact, settings, metric, report).encode()


def assign(pieces: Tensor, book: Tensor) -> Tensor:
    """Return the nearest entry of a book (E, w) for every piece (n, w): (n,) int64."""
    bias, across = book.square().sum(1) / -2, book.T.contiguous()
    nearest = np.empty(len(pieces), np.int64)
    products = torch.empty(min(CHUNK, len(pieces)), len(book))  # one buffer: allocating it anew takes longer
    for start in range(0, len(pieces), CHUNK):
        part = pieces[start : start + CHUNK]
        found = torch.addmm(bias, part, across, out=products[: len(part)])
        np.argmax(found.numpy(), 1, out=nearest[start : start + CHUNK])  # many times as fast as torch's
    return torch.from_numpy(nearest)


def kmeans(pieces: Tensor, weights: Tensor, seed: int) -> Tensor:
    """Return a book of ENTRIES for pieces (n, w) that count by their weights."""
    generator = torch.Generator().manual_seed(seed)
    if len(pieces) < ENTRIES:
        return torch.nn.functional.pad(pieces, (0, 0, 0, ENTRIES - len(pieces)))
    book = pieces[torch.multinomial(weights, ENTRIES, generator=generator)]
    for _ in range(ROUNDS):
        nearest = assign(pieces, book)
        mass = torch.zeros(ENTRIES).index_add_(0, nearest, weights)
        sums = torch.zeros_like(book).index_add_(0, nearest, pieces * weights[:, None])
        fresh = pieces[torch.multinomial(weights, ENTRIES, generator=generator)]
        book = torch.where(mass[:, None] > 0, sums / mass[:, None].clamp(min=1e-30), fresh)
    return book


def _roots(dim: int, metric: Tensor | None, share: float = PLAIN) -> tuple[Tensor, Tensor]:
    """Return the square root of a metric and its inverse, in float64; the plain error has a share in it."""
    plain = torch.eye(dim, dtype=torch.float64)
    if metric is None:
        return plain, plain
    mixed = metric.double().cpu()
    mixed = (1 - share) * mixed * dim / mixed.trace() + share * plain
    values, vectors = torch.linalg.eigh((mixed + mixed.T) / 2)
    return vectors * values.sqrt() @ vectors.T, vectors / values.sqrt() @ vectors.T


class _Coder:
    """A table on its way into codes."""

    def __init__(
        self,
        table: Tensor,
        use: Tensor,
        exact: Sequence[int],
        settings: CoderSettings,
        metric: Tensor | None,
        report: Report,
    ) -> None:
        self.table, self.settings, self.report = table, settings, report
        self.root, self.unroot = _roots(table.shape[1], metric, settings.plain)  # (d, d) each
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.exact = torch.tensor(sorted(set(exact)), dtype=torch.long)
        use = use.double().clamp(min=0)
        use = (use / use.mean().clamp(min=1e-30)).clamp(min=USE_FLOOR)
        self.weight = use.pow(settings.exponent).float()  # (V,)
        whole = torch.zeros(len(table), dtype=torch.bool)
        whole[self.exact] = True
        self.coded = torch.nonzero(~whole)[:, 0]  # rows to code

    def encode(self) -> PackedTable:
        """Fit the rotation, decide, then fit stage after stage."""
        self.mean, rotation, quantized, scale = self._rotation()
        self.inverse = torch.linalg.inv(rotation.double()).float()
        plan, depths = self._planned()
        order = self.coded[torch.argsort(depths[self.coded], descending=True, stable=True)]
        shape = self._shape(plan, depths)
        packed = PackedTable(shape, self.table.dtype)
        packed.fill(
            {"exact": self.table[self.exact], "mean": self.mean, "rotation": quantized, "rotation_scale": scale}
        )
        packed.set_depths(depths, self.exact)
        packed.fill({"gains": torch.ones(len(shape.stages))})

        coded = shape.stages[0].rows if shape.stages else 0
        residual, weights, number = self._rotated(order[:coded]), self.weight[order], 0
        for stages in _equally_wide(shape.stages):
            self.report("code", number, len(shape.stages), {})
            residual = residual[: stages[0].rows]
            books, scales = self._fit_books(residual, weights, stages)
            codes = _encode(residual, _whole(books, scales), stages)
            for book, scale, code in zip(books, scales, codes, strict=True):
                packed.fill({f"codes_{number}": code, f"book_{number}": book, f"scale_{number}": scale})
                number += 1
        self.report("code", len(shape.stages), len(shape.stages), {})
        return packed

    def _planned(self) -> tuple[Plan, Tensor]:
        """Return the plan that leaves the least error in the budget, and how many stages each row gets (V,)."""
        worth, found = self.weight * self._energy(), []  # of removing all of a row's error
        plans = plans_of(self.table.shape[1], self.settings.size)
        for plan in plans:
            left = self._left_after_each_stage(plan)
            depths = self._depths(plan, left, worth)
            found.append((float((worth * left[depths])[self.coded].sum()), plan, depths))
        _, plan, depths = min(found, key=lambda each: each[0])
        return plan, depths

    def _shape(self, plan: Plan, depths: Tensor) -> TableShape:
        counts = [int((depths[self.coded] > number).sum()) for number in range(len(plan.widths))]
        rows, dim = self.table.shape
        return TableShape(rows, dim, len(self.exact), plan.stages(counts))

    def _rotation(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return mean, rotation (d, d), and the rotation as bytes with a scale for each row.

        The principal directions, dealt out so that every piece of a code has one of each band of variance.
        """
        weights = self.weight[self.coded].sqrt()  # between rows alike and rows by use
        dim, total = self.table.shape[1], weights.sum()
        mean, second = torch.zeros(dim), torch.zeros(dim, dim)
        for rows, weight in zip(self.coded.split(16384), weights.split(16384), strict=True):
            part = self.table[rows].float()
            mean += weight @ part
            second += (part * weight[:, None]).T @ part
        mean /= total
        covariance = self.root @ (second / total - torch.outer(mean, mean)).double() @ self.root
        directions = (torch.linalg.eigh(covariance).eigenvectors.flip(1).T @ self.unroot).float()  # largest first
        width = widths_of(dim, FINE)[0]  # of the first stage, in all plans
        dealt = torch.arange(dim).reshape(width, dim // width).T.flatten()
        directions = directions[dealt]
        scale = directions.abs().amax(1, keepdim=True) / 127
        quantized = (directions / scale).round()
        return mean, quantized * scale, quantized.to(torch.int8), scale

    def _rotated(self, rows: Tensor) -> Tensor:
        """Rows less the mean, as coefficients of the quantised directions."""
        found = torch.empty(len(rows), self.table.shape[1])
        for start in range(0, len(rows), 16384):
            part = rows[start : start + 16384]
            found[start : start + len(part)] = (self.table[part].float() - self.mean) @ self.inverse
        return found

    def _left_after_each_stage(self, plan: Plan) -> Tensor:
        """Return the share of the squared error left after 0, 1, ... stages, from a sample of rows."""
        chosen = self.coded[torch.randperm(len(self.coded), generator=self.generator)[:TRIED]]
        residual, count = self._rotated(chosen), len(chosen)
        whole, left = residual.square().sum(), [1.0]
        for stages in _equally_wide(plan.stages([count] * len(plan.widths))):
            self.report("try", len(left) - 1, len(plan.widths), {})
            some = [replace(stage, rows=max(1, count - n * count // len(stages))) for n, stage in enumerate(stages)]
            books = _whole(*self._fit_books(residual, torch.ones(count), some))
            before = residual
            for depth in range(1, len(stages) + 1):
                residual = before.clone()
                _encode(residual, books[:depth], stages[:depth])
                left.append(float(residual.square().sum() / whole))
        return torch.tensor(left)

    def _depths(self, plan: Plan, left: Tensor, worth: Tensor) -> Tensor:
        """Return how many stages each row gets (V,): the most that the price allows, for the price of the budget."""
        dim, dtype = self.table.shape[1], type_name(self.table.dtype)
        cost = torch.tensor([dim // width for width in plan.widths], dtype=torch.float)
        gain = (left[:-1] - left[1:]) / cost  # of each stage for a byte; falls from stage to stage
        gain = torch.cummin(gain, 0).values

        def depths_at(price: float) -> Tensor:
            return (worth[:, None] * gain > price).sum(1)

        def too_large(depths: Tensor) -> bool:
            return self._shape(plan, depths).nbytes(dtype) > self.settings.size

        low, high = 0.0, float(worth.max() * gain.max())
        for _ in range(60):
            price = (low + high) / 2
            low, high = (price, high) if too_large(depths_at(price)) else (low, price)
        depths = depths_at(high)
        if too_large(depths):
            raise InputError(f"{self.settings.size:,} bytes are too few for a table of {len(self.table):,} x {dim}")
        return depths

    def _energy(self) -> Tensor:
        """Return the squared length of every row, less the mean, as the metric has it: (V,)."""
        root = self.root.float()
        return torch.cat([((part.float() - self.mean) @ root).square().sum(1) for part in self.table.split(16384)])

    def _fit_books(
        self, residual: Tensor, weights: Tensor, stages: Sequence[Stage]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the books of equally wide stages as bytes, and their scales, for what is left of rows (n, d).

        Rows are in order of their number of stages; a book is (pieces or 1, ENTRIES, width), a scale (pieces, 1, 1).
        """
        width, shared, seed = stages[0].width, stages[0].shared, self.settings.seed
        pieces = residual.shape[1] // width
        chosen = torch.randperm(len(residual), generator=self.generator)[:SAMPLE].sort().values
        sample, weight = residual[chosen], weights[chosen].sqrt()  # a book is to serve rare rows too
        counts = [int(torch.searchsorted(chosen, stage.rows)) for stage in stages]  # of the sample
        spread = torch.ones(pieces)
        if shared:
            parts = sample.reshape(-1, pieces, width)  # (n, pieces, width)
            spread = parts.square().mean((0, 2)).sqrt().clamp(min=1e-12)
            some = torch.randperm(len(chosen) * pieces, generator=self.generator)[:ALIKE].sort().values
            alike = (parts / spread[:, None]).reshape(-1, width)[some]
            counts = [int(torch.searchsorted(some, count * pieces)) for count in counts]
            found = [fit_books(alike, weight[some // pieces], counts, seed)]
        else:
            parts = sample.split(width, 1)
            found = _at_once(lambda piece: fit_books(parts[piece].contiguous(), weight, counts, seed), pieces)

        books = torch.stack(found, 1)  # (stages, pieces or 1, ENTRIES, width)
        top = books.abs().amax((2, 3), keepdim=True).clamp(min=1e-12) / 127
        return list((books / top).round().to(torch.int8)), list(top * spread[:, None, None])


def fit_books(pieces: Tensor, weights: Tensor, counts: Sequence[int], seed: int) -> Tensor:
    """Return the books (stages, ENTRIES, w) of pieces (n, w), of which the first `counts[s]` have stage s."""
    left, books = pieces.clone(), []
    for count in counts:
        book = kmeans(left[:count], weights[:count], seed)
        left[:count] -= book[assign(left[:count], book)]
        books.append(book)
    found = torch.stack(books)
    for _ in range(TOGETHER if len(counts) > 1 else 0):
        codes, _ = search_nested(pieces, found, counts)
        found = refit(pieces, weights, codes, found)
    return found


def _equally_wide(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Stages one after the other, those of the same width together."""
    return [list(some) for _, some in groupby(stages, lambda stage: (stage.width, stage.shared))]


def _whole(books: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Return books as they are read: (stages, pieces, ENTRIES, width)."""
    return torch.stack([book * scale for book, scale in zip(books, scales, strict=True)])


def _encode(residual: Tensor, books: Tensor, stages: Sequence[Stage]) -> list[Tensor]:
    """Return the codes (pieces, rows) of each stage, and take what they stand for off the residual (n, d), in place."""
    pieces, width = books.shape[1], stages[0].width
    counts = [stage.rows for stage in stages]
    codes = [torch.empty(pieces, count, dtype=torch.uint8) for count in counts]

    def encode(piece: int) -> None:
        part = residual[:, piece * width : (piece + 1) * width]
        found, left = search_nested(part.contiguous(), books[:, piece], counts)
        for stage, code in zip(codes, found, strict=True):
            stage[piece] = code
        part.copy_(left)

    _at_once(encode, pieces)
    return codes


def _at_once(work: Callable[[int], Result], count: int) -> list[Result]:
    """Do pieces of work on all cores, each on one: the matrices of a piece are too small to be shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(cores()) as pool:
            return list(pool.map(work, range(count)))
    finally:
        torch.set_num_threads(threads)
