"""The table of an encoder whose teacher has very many tokens: its rows are trained, then coded, then their books.

Finding pairs for so many tokens would take very long. Codes say which entries of shared books a row is made of, and
training cannot change them; so they are found for rows that have learned what the encoder needs of them, instead of for
those of the teacher, in the second phase of the same run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ade.codebook import ENTRIES, CodedTable, TableShape
from ade.coded_layer import PackedTable
from ade.compression.coder import encode_table
from ade.compression.frequencies import row_frequencies
from ade.folder import Saved
from ade.folder_budget import ENCODER_TEXTS, ByteShares, ModelParts, evenly, fit_vocabulary
from ade.progress import Report
from ade.settings import TrainingSettings
from ade.teachers import Teacher

BITS = 0.5  # of a weight: with fewer, tokens that the texts do not have are dropped
BOOKS = 6  # of all stages, about
MAX_SPECIAL = 64  # special tokens whose rows stay exact
SHORTER = 3  # the second phase has a third of the steps, and of the learning rate


@dataclass(eq=False)
class RowTable:
    """A teacher's table on its way into an encoder, and the second phase of training, in which it has codes."""

    teacher: Teacher  # its tokens are those that the encoder will have
    frequencies: Tensor  # (V,) how often each row is expected
    shares: ByteShares  # of the encoder's bytes
    settings: TrainingSettings  # of the second phase

    def rows(self) -> Tensor:
        """Return the rows (V, d) in float32, scaled so that they have unit variance on average."""
        table = self.teacher.table.float()
        return table * (table.shape[1] ** 0.5 / table.norm(dim=1).mean().clamp(min=1e-12))

    def exact(self, ids: np.ndarray) -> Saved:
        """Return what the first phase starts from: the rows of these tokens are exact and no row has codes."""
        rows, index = self.rows(), torch.from_numpy(ids).long()
        table = PackedTable(TableShape(len(rows), rows.shape[1], len(ids), ()))
        table.set_depths(torch.zeros(len(rows)), index)
        table.fill({"exact": rows[index]})
        return self.teacher.as_saved(table.to_table())

    def start(self, trained: Saved, report: Report) -> Saved:
        """Return the model of the first phase with coded rows; those of tokens that no text has are the teacher's."""
        assert isinstance(trained.table, CodedTable)
        rows, ids = self.rows(), trained.table.exact_rows
        rows[ids] = torch.from_numpy(trained.table.rows(ids))
        size, special = self.shares.codebook, special_rows(self.teacher)
        table = encode_table(rows.half(), self.frequencies, special, size, report=report).to_table()
        return replace(trained, config=replace(trained.config, layer_bits=self.shares.layer_bits), table=table)


def special_rows(teacher: Teacher) -> list[int]:
    """Return the rows of a teacher's special tokens, which stay exact in a coded table; the first ones of many."""
    added = teacher.tokenizer.get_added_tokens_decoder()
    return [n for n, token in sorted(added.items()) if token.special and n < len(teacher.table)][:MAX_SPECIAL]


def row_table(
    teacher: Teacher, texts: Sequence[str], size: int, outputs: int, layers: int, training: TrainingSettings
) -> RowTable:
    """Return what of a teacher's table an encoder takes whose folder has at most `size` bytes.

    `outputs` is the width of its vectors, `training` the settings of the first phase; the numbers of the tokens are
    those of the returned teacher's tokenizer.
    """
    second = replace(
        training,
        steps=max(1, training.steps // SHORTER) if training.steps else 0,
        epochs=training.epochs and training.epochs / SHORTER,
        learning_rate=training.learning_rate / SHORTER,
    )
    dim = teacher.table.shape[1]

    def enough(small: Teacher) -> int:
        return int(BITS / 8 * small.table.numel()) + dim * (BOOKS * ENTRIES + dim)

    small, _, shares = fit_vocabulary(teacher, texts, size, ModelParts(outputs, layers), enough)
    shares.check(enough(small))
    frequencies = row_frequencies(small.tokenizer, len(small.table), evenly(texts, ENCODER_TEXTS))
    return RowTable(small, frequencies, shares, second)
