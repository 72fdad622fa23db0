"""The table of an encoder in codes: for teachers of so many tokens that finding pairs would take very long."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ade.compression.coded_table import CodedTable
from ade.compression.coder import CoderSettings, encode_table
from ade.compression.use import row_use
from ade.data.tokenizer_file import packed_bytes
from ade.errors import InputError
from ade.packing.coded import ENTRIES
from ade.packing.compact_tokenizer import compact
from ade.packing.prune_vocabulary import pruned
from ade.packing.whole_folder import MIN_COUNTS, MOST_TEXTS, Division, divide_encoder, evenly
from ade.progress import Report, silent
from ade.teachers import Teacher

CODED_FROM = 100_000  # tokens of a teacher
BITS = 0.5  # of a weight: with fewer, tokens that the texts do not have are dropped
MOST_SPECIAL = 64  # special tokens whose rows stay whole
BOOKS = 6  # of all stages, about


@dataclass(frozen=True, eq=False)
class EncoderTable:
    """A teacher's table on its way into an encoder: as it came, before its rows are trained and coded."""

    teacher: Teacher  # its tokens are those that the encoder will have
    use: Tensor  # (V,) how often each row is expected
    special: Sequence[int]  # rows that stay whole
    division: Division  # of the encoder's bytes

    def rows(self) -> Tensor:
        """Return the rows (V, d) in float32, scaled so that they have unit variance on average."""
        table = self.teacher.table.float()
        return table * (table.shape[1] ** 0.5 / table.norm(dim=1).mean().clamp(min=1e-12))

    def coded(self, rows: Tensor, report: Report = silent) -> CodedTable:
        """Return the table of these rows (V, d), in as many bytes as the division has for it."""
        settings = CoderSettings(self.division.codebook)
        table = encode_table(rows.half(), self.use, self.special, settings, report=report)
        return CodedTable(table, self.teacher.tokenizer, self.teacher.about)


def table_for_encoder(teacher: Teacher, texts: Sequence[str], size: int, outputs: int, layers: int = 1) -> EncoderTable:
    """Return what of a teacher's table an encoder takes whose folder has at most `size` bytes.

    Arguments as for `distill_for_encoder`; the numbers of the tokens are those of the returned tokenizer.
    """
    known, dim = evenly(texts, MOST_TEXTS), teacher.table.shape[1]
    for min_count in (0, *MIN_COUNTS):
        small, _ = compact(pruned(teacher, known, min_count) if min_count else teacher, known)
        enough = int(BITS / 8 * small.table.numel()) + dim * (BOOKS * ENTRIES + dim)
        division = divide_encoder(size, len(packed_bytes(small.tokenizer)), dim, outputs, layers, enough)
        if division.codebook >= enough:
            break
    if division.codebook < enough:
        needed = size - division.codebook + enough
        raise InputError(
            f"{size:,} bytes are too few for this teacher and these texts; an encoder needs at least about {needed:,}: "
            f"{division.tokenizer:,} for the tokenizer, {division.layers:,} for the layers, {enough:,} for the table"
        )
    use = row_use(small.tokenizer, len(small.table), known)
    return EncoderTable(small, use, special_rows(small), division)


def special_rows(teacher: Teacher) -> list[int]:
    """Return the rows of a teacher's special tokens, which stay whole in a table in codes; the first ones of many."""
    added = teacher.tokenizer.get_added_tokens_decoder()
    return [n for n, token in sorted(added.items()) if token.special and n < len(teacher.table)][:MOST_SPECIAL]
