"""Codes of several stages found together: books and codes of a piece, such that their sum is near to it.

Stage after stage, each taking the entry nearest to what is left, is quick but greedy: an entry that is second best now
may leave what the next stage codes better. A beam search keeps the best few sums, and with the codes at hand all books
are fitted anew at once, by least squares (additive quantization).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

BEAM = 8  # sums of entries kept from stage to stage
FURTHER = 2  # entries tried after each of them
CHUNK = 512  # pieces searched at a time: with fewer, threads wait for each other
DAMPING = 0.1  # of the least squares, in pieces: entries that few pieces have stay near where they were


def search(pieces: Tensor, books: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes (S, n) of the sums of one entry of each book (S, E, w) near to pieces (n, w), and what is left."""
    codes = np.empty((len(books), len(pieces)), np.uint8)
    left = np.empty(tuple(pieces.shape), np.float32)
    biases, across = books.square().sum(2) / -2, books.transpose(1, 2).contiguous()
    scorers = list(zip(biases, across, books.numpy(), strict=True))
    buffer = torch.empty(min(CHUNK, len(pieces)) * BEAM, books.shape[1])  # one: allocating it anew takes longer
    for start in range(0, len(pieces), CHUNK):
        part = pieces[start : start + CHUNK].numpy()
        codes[:, start : start + CHUNK], left[start : start + CHUNK] = _search_chunk(part, scorers, buffer)
    return torch.from_numpy(codes), torch.from_numpy(left)


def _search_chunk(
    pieces: np.ndarray, scorers: Sequence[tuple[Tensor, Tensor, np.ndarray]], buffer: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Search for pieces (n, w); of each stage what is added to products (E,), entries (w, E) and entries (E, w)."""
    count, width = pieces.shape
    left = pieces[:, None]  # (n, kept, w): what each sum leaves
    gained = np.zeros((count, 1), np.float32)  # (n, kept): half of the squared error that it takes off
    codes = np.empty((0, count, 1), np.uint8)  # (stages, n, kept)
    rows = np.arange(count)[:, None]
    for number, (bias, across, book) in enumerate(scorers):
        last, kept = number == len(scorers) - 1, left.shape[1]
        # By torch, which can be told to use one thread here: pieces are searched on all cores at once.
        flat = torch.from_numpy(left.reshape(-1, width))  # (n * kept, w)
        products = torch.addmm(bias, flat, across, out=buffer[: len(flat)]).numpy()
        further = 1 if last else (FURTHER if kept > 1 else BEAM)
        best, entry = _largest(products, further)  # (n * kept, further)
        total = (gained[:, :, None] + best.reshape(count, kept, further)).reshape(count, -1)
        wanted = 1 if last else min(BEAM, total.shape[1])
        place = np.argpartition(-total, wanted - 1, axis=1)[:, :wanted]
        before, chosen = place // further, entry.reshape(count, -1)[rows, place]  # (n, wanted)
        left = left[rows, before] - book[chosen]
        gained = total[rows, place]
        codes = np.concatenate([codes[:, rows, before], chosen[None].astype(np.uint8)])
    return codes[:, :, 0], left[:, 0]


def _largest(products: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest numbers of each row and their places: (n, count) each. Overwrites the numbers."""
    rows = np.arange(len(products))
    values, places = np.empty((len(products), count), np.float32), np.empty((len(products), count), np.int64)
    for number in range(count):
        places[:, number] = products.argmax(1)  # many times as fast as sorting
        values[:, number] = products[rows, places[:, number]]
        products[rows, places[:, number]] = -np.inf
    return values, places


def search_nested(pieces: Tensor, books: Tensor, counts: Sequence[int]) -> tuple[list[Tensor], Tensor]:
    """The same where only the first `counts[s]` pieces have stage s; its codes are (counts[s],)."""
    left = pieces.clone()
    codes = [torch.empty(count, dtype=torch.uint8) for count in counts]
    ends = [*counts[1:], 0]
    for depth, (end, start) in enumerate(zip(counts, ends, strict=True), 1):
        if start == end:
            continue
        found, left[start:end] = search(pieces[start:end], books[:depth])
        for stage, code in zip(codes, found, strict=False):
            stage[start:end] = code
    return codes, left


def refit(pieces: Tensor, weights: Tensor, codes: list[Tensor], books: Tensor) -> Tensor:
    """Return the books (S, E, w) whose sums by these codes are nearest to the pieces, which count by their weights."""
    stages, entries, width = books.shape
    size = stages * entries
    normal, sums = torch.zeros(size * size), torch.zeros(size, width)
    places = [code.long() + entries * number for number, code in enumerate(codes)]
    for first in places:
        sums.index_add_(0, first, pieces[: len(first)] * weights[: len(first), None])
        for second in places:
            both = min(len(first), len(second))
            normal.index_add_(0, first[:both] * size + second[:both], weights[:both])
    damping = DAMPING * float(weights.mean())
    normal = normal.view(size, size) + damping * torch.eye(size)
    return torch.linalg.solve(normal, sums + damping * books.flatten(0, 1)).view_as(books)
