"""The lexicon on a GPU: two Triton kernels, each with a reference implementation in plain PyTorch.

`find_entries` looks up every token and every bigram by binary search over the sorted keys; `add_entries` sums the
scores of a text's distinct entries and divides by the norm of their inverse document frequencies.
"""

import torch
from torch import Tensor

from ade.embedding import LexiconLayer

try:
    import triton
    import triton.language as tl
except ImportError:  # not on every platform
    triton = None

KEYS_PER_PROGRAM = 128  # keys looked up by a program
ENTRIES_PER_STEP = 32  # entries compared with as many others at a time


def lexicon_scores(tables: LexiconLayer, ids: Tensor, lengths: Tensor) -> Tensor:
    """Scores (B, C) the lexicon gives padded ids (B, L) int32, with the texts' lengths (B,) int32."""
    if triton is not None and ids.is_cuda:
        return add_entries(tables, find_entries(tables, ids, lengths))
    return tables.added(find_reference(tables, ids, lengths))


def find_reference(tables: LexiconLayer, ids: Tensor, lengths: Tensor) -> Tensor:
    """The entry of each token, then of each bigram that starts with it, n where there is none: (B, 2 L) int32."""
    mask = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)
    return tables.entries(ids, mask).int()


if triton is not None:

    @triton.jit
    def _find(  # type: ignore[no-untyped-def]
        ids, lengths, keys, out, count, length, vocabulary, STEPS: tl.constexpr, BLOCK: tl.constexpr
    ):  # fmt: skip
        place, text = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
        inside, is_bigram = place < 2 * length, place >= length
        at = tl.where(is_bigram, place - length, place)
        real = inside & (at + tl.where(is_bigram, 1, 0) < tl.load(lengths + text))
        token = tl.load(ids + text * length + at, mask=real, other=0).to(tl.int64)
        after = tl.load(ids + text * length + at + 1, mask=real & is_bigram, other=0).to(tl.int64)
        key = tl.where(is_bigram, vocabulary * (token + 1) + after, token)
        lower = tl.zeros((BLOCK,), tl.int32)  # keys below the one wanted
        for step in tl.static_range(STEPS):
            probe = lower + (1 << (STEPS - 1 - step))
            within = probe <= count
            below = tl.load(keys + probe - 1, mask=within, other=0) < key
            lower = tl.where(within & below, probe, lower)
        known = real & (lower < count)
        known = known & (tl.load(keys + lower, mask=known, other=-1) == key)
        tl.store(out + text * 2 * length + place, tl.where(known, lower, count), mask=inside)

    @triton.jit
    def _add(  # type: ignore[no-untyped-def]
        entries, squares, scores, bias, out, count, width, labels, STEPS: tl.constexpr, BLOCK: tl.constexpr,
        COLUMNS: tl.constexpr,
    ):  # fmt: skip
        text, lane, column = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, COLUMNS)
        written = column < labels
        total = tl.zeros((COLUMNS,), tl.float32)
        norm = tl.zeros((BLOCK,), tl.float32)
        for step in range(STEPS):
            place = step * BLOCK + lane
            entry = tl.load(entries + text * width + place, mask=place < width, other=count)
            repeated = tl.zeros((BLOCK,), tl.int32)
            for earlier in range(step + 1):
                other_place = earlier * BLOCK + lane
                other = tl.load(entries + text * width + other_place, mask=other_place < width, other=count)
                same = (entry[:, None] == other[None, :]) & (other_place[None, :] < place[:, None])
                repeated += tl.sum(same.to(tl.int32), 1)
            kept = (entry < count) & (repeated == 0)
            norm += tl.load(squares + entry, mask=kept, other=0.0)
            rows = tl.load(
                scores + entry[:, None] * labels + column[None, :], mask=kept[:, None] & written[None, :], other=0.0
            )
            total += tl.sum(rows, 0)
        length = tl.sqrt(tl.sum(norm, 0))
        added = total / tl.maximum(length, 1e-12) + tl.load(bias + column, mask=written, other=0.0)
        tl.store(out + text * labels + column, added, mask=written)


def find_entries(tables: LexiconLayer, ids: Tensor, lengths: Tensor) -> Tensor:
    """`find_reference` in one kernel."""
    batch, length = ids.shape
    count = len(tables.keys)
    found = torch.empty(batch, 2 * length, dtype=torch.int32, device=ids.device)
    _find[triton.cdiv(2 * length, KEYS_PER_PROGRAM), batch](
        ids, lengths, tables.keys, found, count, length, tables.vocabulary,
        STEPS=count.bit_length(), BLOCK=KEYS_PER_PROGRAM,
    )  # fmt: skip
    return found


def add_entries(tables: LexiconLayer, entries: Tensor) -> Tensor:
    """`LexiconLayer.added` in one kernel, one program for each text."""
    batch, width = entries.shape
    labels = len(tables.bias)
    added = torch.empty(batch, labels, dtype=torch.float32, device=entries.device)
    _add[(batch,)](
        entries, tables.squares, tables.scores, tables.bias, added, len(tables.keys), width, labels,
        STEPS=triton.cdiv(width, ENTRIES_PER_STEP), BLOCK=ENTRIES_PER_STEP,
        COLUMNS=max(2, triton.next_power_of_2(labels)), num_warps=4,
    )  # fmt: skip
    return added
