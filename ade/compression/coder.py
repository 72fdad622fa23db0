"""Code a table: rotate its rows, choose how many stages each row gets, and fit books and codes stage after stage.

The error of a row counts by the expected frequency of its token. A byte has a price, the same for all rows: a row gets
a stage if its weight, times the squared error that the stage removes, is above the price of the stage's bytes. The
price at which the table, or several of them together, has the wanted size is found by bisection.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ade.codebook import ENTRIES, Stage, TableShape
from ade.coded_layer import PackedTable
from ade.data.texts import GrowingArray
from ade.errors import InputError
from ade.progress import Report, silent
from ade.runtime.threads import cores

FINE = (0.5, 0.5, 0.5, 0.5, 1.0, 2.0, 4.0)  # bits of a weight in each stage, where the dimension allows; 9 in all
COARSE = (0.5, 0.5, 1.0, 2.0, 4.0)  # fewer stages, so fewer books
SHARED_FROM = 2.0  # bits: all pieces of a finer stage share one book, since their residuals are similar
BOOK_SHARE = 0.1  # of the bytes: where the books of FINE would take more, COARSE and one book a stage are tried
SAMPLE = 131_072  # rows that k-means sees
SHARED_SAMPLE = 65_536  # pieces that it sees for a shared book
TRIED = 16_384  # rows from which the worth of each stage is estimated
ROUNDS = 10  # of k-means
CHUNK = 2048  # rows compared with a book per product, which then stays in the cache
BLOCK = 16_384  # rows of the table that are rotated, and coded, together
FREQUENCY_FLOOR = 0.05  # of the mean frequency: no row counts less
SEED = 0

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class SourceTable:
    """A table to code, and what its errors cost: where several tables share a size, a byte has one price in all."""

    rows: Tensor  # (V, d)
    frequency: Tensor  # (V,) how often each row is expected
    exact: Sequence[int] = ()  # rows that stay whole
    metric: Tensor | None = None  # (d, d): the error e of a row counts as e @ metric @ e
    importance: float = 1.0  # what a squared error of 1 in every row costs, beside other tables
    exponent: float = 0.75  # of the frequency: the text it was counted in is not the text to come
    plain_share: float = 0.5  # of the plain squared error beside the metric


def plans_of(dim: int, size: int) -> list[list[Stage]]:
    """Return the stages to choose from for a table of `size` bytes, without their numbers of rows."""

    def plan(bits: Sequence[float], shared_from: float) -> list[Stage]:
        return [Stage(width, 0, 8 / width >= shared_from) for width in widths_of(dim, bits)]

    books = dim * ENTRIES * sum(bits < SHARED_FROM for bits in FINE)  # bytes, with one for every piece
    if books <= BOOK_SHARE * size:
        return [plan(FINE, SHARED_FROM)]
    return [plan(COARSE, SHARED_FROM), plan(FINE, 0.0)]


def widths_of(dim: int, bits: Sequence[float]) -> list[int]:
    """Return the numbers a code in stages of these bits: the divisors of the dimension that come nearest."""
    divisors = [n for n in range(1, dim + 1) if dim % n == 0]
    return [min(divisors, key=lambda n: (abs(math.log(n * each / 8)), n)) for each in bits]


def encode_table(
    table: Tensor,
    frequency: Tensor,
    exact: Sequence[int],
    size: int,
    metric: Tensor | None = None,
    report: Report = silent,
) -> PackedTable:
    """Code a table (V, d) in at most `size` bytes; arguments as of `SourceTable`."""
    return encode_tables([SourceTable(table, frequency, exact, metric)], size, report)[0]


def encode_tables(sources: Sequence[SourceTable], size: int, report: Report = silent) -> list[PackedTable]:
    """Code tables in at most `size` bytes together: those get more bytes whose errors cost more."""
    tables = [_Rows(source) for source in sources]
    total = sum(rows.table.numel() for rows in tables)
    choices = []
    for rows in tables:
        part = size * rows.table.numel() // total
        choices.append([_Plan(rows, stages, report) for stages in plans_of(rows.dim, part)])

    def error(plans: Sequence[_Plan]) -> float:
        price = _price(plans, size)
        return sum(plan.error(price) for plan in plans)

    best = min(product(*choices), key=error)
    price = _price(best, size)
    return [_encode(plan, price, report) for plan in best]


class _Rows:
    """The rows of a table: how much the error of each counts, and their coordinates in the rotated space."""

    def __init__(self, source: SourceTable) -> None:
        self.table, self.dim = source.rows, source.rows.shape[1]
        self.generator = torch.Generator().manual_seed(SEED)
        frequency = source.frequency.double().clamp(min=0)
        frequency = (frequency / frequency.mean().clamp(min=1e-30)).clamp(min=FREQUENCY_FLOOR)
        self.weight = frequency.pow(source.exponent).float()  # (V,)
        self.exact = torch.tensor(sorted(set(source.exact)), dtype=torch.long)
        self.coded = torch.nonzero(~torch.isin(torch.arange(len(self.table)), self.exact))[:, 0]

        self.mean, directions = self._principal(source)
        self.scale = directions.abs().amax(1, keepdim=True) / 127
        self.rotation = (directions / self.scale).round()  # (d, d): fits into signed bytes
        self.inverse = torch.linalg.inv((self.rotation * self.scale).double()).float()

        blocks = torch.arange(len(self.table)).split(BLOCK)
        energy = torch.cat([self.rotated(block).square().sum(1) for block in blocks])  # (V,): as the metric has it
        self.worth = self.weight * energy * (source.importance / self.weight.sum())  # of removing a row's whole error
        self.ascending = self.worth[self.coded].sort().values

    def _principal(self, source: SourceTable) -> tuple[Tensor, Tensor]:
        """Return the mean of the coded rows (d,) and the principal directions, as the metric has it (d, d).

        They are dealt out so that every piece of a code has one of each band of variance.
        """
        dim = self.dim
        weights = self.weight[self.coded].sqrt()  # between rows that all count the same, and rows by frequency
        mean = torch.zeros(dim)
        second = torch.zeros(dim, dim)
        total = weights.sum()
        for rows, weight in zip(self.coded.split(BLOCK), weights.split(BLOCK), strict=True):
            part = self.table[rows].float()
            mean += weight @ part
            second += (part * weight[:, None]).T @ part
        mean /= total

        root = inverse = plain = torch.eye(dim, dtype=torch.float64)
        if source.metric is not None:  # square root and its inverse, mixed with the plain error
            metric = source.metric.double().cpu()
            mixed = (1 - source.plain_share) * metric * dim / metric.trace() + source.plain_share * plain
            values, vectors = torch.linalg.eigh((mixed + mixed.T) / 2)
            root = vectors * values.sqrt() @ vectors.T
            inverse = vectors / values.sqrt() @ vectors.T
        covariance = root @ (second / total - torch.outer(mean, mean)).double() @ root
        directions = (torch.linalg.eigh(covariance).eigenvectors.flip(1).T @ inverse).float()  # largest first
        width = widths_of(dim, FINE)[0]  # of the first stage, in all plans
        dealt = torch.arange(dim).reshape(width, dim // width).T.flatten()
        return mean, directions[dealt]

    def rotated(self, rows: Tensor) -> Tensor:
        """Return rows (n,) less the mean, in coordinates of the quantised directions: (n, d)."""
        return (self.table[rows].float() - self.mean) @ self.inverse


class _Plan:
    """Stages to choose from for the rows of a table, and how much of the error each removes."""

    def __init__(self, rows: _Rows, stages: Sequence[Stage], report: Report) -> None:
        self.rows, self.stages = rows, stages
        sample = rows.coded[torch.randperm(len(rows.coded), generator=rows.generator)[:TRIED]]
        residual = rows.rotated(sample)
        weights = torch.ones(len(sample))
        whole, left = residual.square().sum(), [1.0]
        for number, stage in enumerate(stages):
            report("try", number, len(stages), {})
            if len(sample):
                _code(residual, weights, stage, rows.generator)
            left.append(float(residual.square().sum() / whole))
        self.left = torch.tensor(left)  # (stages + 1,): share of the squared error after 0, 1, ... stages

        cost = torch.tensor([rows.dim // stage.width for stage in stages], dtype=torch.float)
        gain = (self.left[:-1] - self.left[1:]) / cost  # of each stage for a byte
        self.gain = torch.cummin(gain, 0).values.clamp(min=0)  # falls from stage to stage

    def shape(self, price: float) -> TableShape:
        """Return the shape of the table at the price of a byte."""
        rows = self.rows
        counts = len(rows.ascending) - torch.searchsorted(rows.ascending, price / self.gain, right=True)
        pairs = zip(self.stages, counts.tolist(), strict=True)
        stages = tuple(replace(stage, rows=count) for stage, count in pairs if count)
        kind = str(rows.table.dtype).removeprefix("torch.")
        return TableShape(len(rows.table), rows.dim, len(rows.exact), stages, kind)

    def depths(self, price: float) -> Tensor:
        """Return the number of stages of each row (V,)."""
        return torch.searchsorted(price / self.gain, self.rows.worth)

    def error(self, price: float) -> float:
        """Return the error that is left, as it counts."""
        return float((self.rows.worth * self.left[self.depths(price)])[self.rows.coded].sum())


def _price(plans: Sequence[_Plan], size: int) -> float:
    """Return the lowest price of a byte at which tables have the wanted size."""

    def fits(price: float) -> bool:
        return sum(plan.shape(price).nbytes for plan in plans) <= size

    low = 0.0
    high = max(float(plan.rows.worth.max() * plan.gain.max()) for plan in plans)
    for _ in range(60):
        price = (low + high) / 2
        low, high = (low, price) if fits(price) else (price, high)
    if not fits(high):
        what = " and ".join(f"{len(plan.rows.table):,} x {plan.rows.dim}" for plan in plans)
        raise InputError(f"{size:,} bytes are too few for a table of {what}")
    return high


def _encode(plan: _Plan, price: float, report: Report) -> PackedTable:
    """Return the table with the stages that are worth their price."""
    rows = plan.rows
    shape = plan.shape(price)
    depths = plan.depths(price)
    packed = PackedTable(shape)
    packed.fill({"exact": rows.table[rows.exact], "mean": rows.mean})
    packed.fill({"rotation": rows.rotation, "rotation_scale": rows.scale})
    packed.set_depths(depths, rows.exact)

    order = rows.coded[torch.argsort(depths[rows.coded], descending=True, stable=True)]
    order = order[: shape.stages[0].rows if shape.stages else 0]
    rotated = GrowingArray(np.float32)  # memory-mapped where it is large
    for block in order.split(BLOCK):
        rotated.add(rows.rotated(block).numpy())
    residual = torch.from_numpy(rotated.array()).view(-1, rows.dim)  # (n, d)
    for number, stage in enumerate(shape.stages):
        report("code", number, len(shape.stages), {})
        weights = rows.weight[order[: stage.rows]]
        book, scale, codes = _code(residual[: stage.rows], weights, stage, rows.generator)
        packed.fill({f"codes_{number}": codes, f"book_{number}": book, f"scale_{number}": scale})
    report("code", len(shape.stages), len(shape.stages), {})
    return packed


def _code(residual: Tensor, weights: Tensor, stage: Stage, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return a stage's books, their scales, and the codes (pieces, n) of rows; subtracts what the codes stand for.

    `residual` (n, d) is what the stages before leave of rows that count by their weights (n,). Books are bytes
    (pieces or 1, ENTRIES, width), scales (pieces, 1, 1).
    """
    pieces = residual.shape[1] // stage.width
    chosen = torch.randperm(len(residual), generator=generator)[:SAMPLE]
    sample = residual[chosen]
    weight = weights[chosen].sqrt()  # a book is to serve rare rows too
    if stage.shared:
        parts = sample.reshape(-1, pieces, stage.width)  # (n, pieces, width)
        spread = parts.square().mean((0, 2)).sqrt().clamp(min=1e-12)  # (pieces,)
        some = torch.randperm(len(chosen) * pieces, generator=generator)[:SHARED_SAMPLE]
        scaled = (parts / spread[:, None]).reshape(-1, stage.width)[some]
        books = kmeans(scaled, weight[some // pieces])[None]
    else:
        columns = sample.split(stage.width, 1)
        spread = torch.ones(pieces)
        books = torch.stack(_in_threads(lambda piece: kmeans(columns[piece].contiguous(), weight), pieces))

    top = books.abs().amax((1, 2), keepdim=True).clamp(min=1e-12) / 127
    book = (books / top).round().to(torch.int8)
    scale = top * spread[:, None, None]
    entries = book * scale  # (pieces, ENTRIES, width)
    codes = torch.empty(pieces, len(residual), dtype=torch.uint8)

    def encode(start: int, piece: int) -> None:
        part = residual[start : start + BLOCK, piece * stage.width : (piece + 1) * stage.width]
        nearest = assign(part.contiguous(), entries[piece])
        codes[piece, start : start + BLOCK] = nearest
        part -= entries[piece][nearest]

    for start in range(0, len(residual), BLOCK):
        _in_threads(partial(encode, start), pieces)
    return book, scale, codes


def kmeans(pieces: Tensor, weights: Tensor) -> Tensor:
    """Return a book (ENTRIES, w) for pieces (n, w) that count by their weights (n,)."""
    generator = torch.Generator().manual_seed(SEED)
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


def assign(pieces: Tensor, book: Tensor) -> Tensor:
    """Return the nearest entry of a book (E, w) for every piece (n, w): (n,) int64."""
    bias, across = book.square().sum(1) / -2, book.T.contiguous()
    nearest = np.empty(len(pieces), np.int64)
    buffer = torch.empty(min(CHUNK, len(pieces)), len(book))  # one for all products: allocating takes longer
    for start in range(0, len(pieces), CHUNK):
        part = pieces[start : start + CHUNK]
        products = torch.addmm(bias, part, across, out=buffer[: len(part)])
        np.argmax(products.numpy(), 1, out=nearest[start : start + CHUNK])  # many times as fast as torch's
    return torch.from_numpy(nearest)


def _in_threads(work: Callable[[int], Result], count: int) -> list[Result]:
    """Do `count` pieces of work on all cores, each on one: the matrices of a piece are too small to be shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(cores()) as pool:
            return list(pool.map(work, range(count)))
    finally:
        torch.set_num_threads(threads)
