"""`ade distill --codes`: a teacher's table in codes, as a folder that models are trained on in place of a codebook.

Codes are nearer to the teacher than anchors and pairs of as many bytes, and found faster; but their entries are pieces
of vectors, so that a model attends over tokens alone, and no anchors can be shown.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.budget import zipf
from ade.codebook import ENTRIES
from ade.compression.coder import CoderSettings, encode_table
from ade.errors import InputError
from ade.folder import Saved
from ade.packing.compact_tokenizer import compact
from ade.packing.tokenizer_file import packed_bytes
from ade.progress import Report, silent
from ade.pursuit import importance_of
from ade.teachers import Teacher

FOLDER_JSON = 6_000  # bytes of config.json, and of the header of the arrays, at most
BOOKS = 3  # of all stages, in a table of few bytes
MAX_SPECIAL = 64  # special tokens whose rows stay exact


def distill_codes(
    teacher: Teacher, size: int, frequencies: Tensor | None = None, seed: int = 0, report: Report = silent
) -> Saved:
    """Distil a teacher into a coded table whose folder has at most `size` bytes, tokenizer included.

    The tokens are numbered in another order than the teacher's. `frequencies` (N,), as from `count_tokens`, say how
    often a token occurs; without them, those of Zipf's law.
    """
    count = len(teacher.table)
    shares = zipf(count) if frequencies is None else importance_of(frequencies, count)
    tokenizer, order = compact(teacher.tokenizer)
    small, shares = teacher.take(tokenizer, order), shares[torch.from_numpy(order)].double()

    count, dim = small.table.shape
    nbytes, special = len(packed_bytes(tokenizer)), special_rows(small)
    left, least = size - nbytes - FOLDER_JSON, dim * (BOOKS * ENTRIES + dim + 2 * len(special)) + count
    if left < least:
        raise InputError(
            f"{size:,} bytes are too few for codes of {count:,} tokens: they need at least about "
            f"{size - left + least:,}, {nbytes:,} of them for the tokenizer; leave out --codes, or allow more"
        )
    rows = F.normalize(small.table.float()) * dim**0.5  # what counts is the direction; numbers are of size 1
    table = encode_table(rows.half(), shares, special, CoderSettings(left, seed), report=report).to_table()

    cosines = F.cosine_similarity(rows, torch.from_numpy(table.rows(np.arange(count))), dim=1).double()
    cosines[rows.norm(dim=1) == 0] = 1
    by_use = float(cosines @ (shares / shares.sum()))
    return small.as_saved(table, cosine=float(cosines.mean()), cosine_by_use=by_use, tokenizer_bytes=nbytes)


def special_rows(teacher: Teacher) -> list[int]:
    """Return the rows of a teacher's special tokens, which stay exact in a coded table; the first ones of many."""
    added = teacher.tokenizer.get_added_tokens_decoder()
    return [n for n, token in sorted(added.items()) if token.special and n < len(teacher.table)][:MAX_SPECIAL]
