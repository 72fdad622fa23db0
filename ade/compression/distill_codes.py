"""A teacher's table in the codes of `ade compress`, as a folder that models are trained on in place of a codebook.

Codes are nearer to the teacher than anchors and pairs of as many bytes, and found faster; but their entries are pieces
of vectors, so that a model attends over tokens alone, and no anchors can be shown.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ade.compression.coded_table import TABLE_JSON, TOKENIZER_BYTES, CodedTable
from ade.compression.coder import CoderSettings, encode_table
from ade.compression.encoder_table import special_rows
from ade.compression.table import PackedTable
from ade.data.tokenizer_file import packed_bytes
from ade.errors import InputError
from ade.packing.budget import zipf
from ade.packing.coded import ENTRIES
from ade.packing.compact_tokenizer import compact
from ade.progress import Report, silent
from ade.pursuit import importance_of
from ade.teachers import Teacher

BOOKS = 3  # of all stages, in a table of few bytes
MEASURED = 8192  # rows at a time


def distill_codes(
    teacher: Teacher, size: int, frequencies: Tensor | None = None, seed: int = 0, report: Report = silent
) -> CodedTable:
    """Distil a teacher into a coded table whose folder has at most `size` bytes, tokenizer included.

    The tokens are numbered in another order than the teacher's. `frequencies` (N,), as from `count_tokens`, say how
    often a token occurs; without them, those of Zipf's law.
    """
    small, order = compact(teacher)
    count, dim = small.table.shape
    tokens = len(teacher.table)
    use = zipf(tokens) if frequencies is None else importance_of(frequencies, tokens)
    use = use[torch.from_numpy(order)].double()
    tokenizer = len(packed_bytes(small.tokenizer))
    special = special_rows(small)
    left, least = size - tokenizer - TABLE_JSON, dim * (BOOKS * ENTRIES + dim + 2 * len(special)) + count
    if left < least:
        raise InputError(
            f"{size:,} bytes are too few for codes of {count:,} tokens: they need at least about "
            f"{size - left + least:,}, {tokenizer:,} of them for the tokenizer; leave out --codes, or allow more"
        )
    rows = F.normalize(small.table.float()) * dim**0.5  # what counts is the direction; numbers are of size 1
    packed = encode_table(rows.half(), use, special, CoderSettings(left, seed), report=report)
    cosines = _cosines(rows, packed)
    about = {"cosine": float(cosines.mean()), "cosine_by_use": float(cosines.double() @ (use / use.sum()))}
    return CodedTable(packed, small.tokenizer, {**teacher.about, **about, TOKENIZER_BYTES: tokenizer})


def _cosines(rows: Tensor, packed: PackedTable) -> Tensor:
    """Return the cosine of every row to what is stored of it: (N,); 1 for rows of zeros."""
    parts = torch.arange(len(rows)).split(MEASURED)
    found = torch.cat([F.cosine_similarity(rows[part], packed(part), dim=1) for part in parts])
    return torch.where(rows.norm(dim=1) > 0, found, torch.ones_like(found))
