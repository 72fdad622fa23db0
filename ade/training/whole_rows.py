"""A table that will be coded is trained whole first: every token of the texts learns a vector of its own.

Codes say which entries of shared books a row is made of, and training cannot change them. So they are found for rows
that have learned what the encoder needs of them, instead of for those of the teacher.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from ade.codebook import Codebook
from ade.compression.encoder_table import EncoderTable
from ade.data.batches import Encoded
from ade.data.texts import Texts
from ade.errors import InputError
from ade.progress import Report
from ade.sentence_encoder import SentenceEncoder
from ade.settings import Architecture, EncoderSettings, TrainingSettings
from ade.training.checkpoints import Existing
from ade.training.codebooks import rows_folder
from ade.training.encoder_task import EncoderTask
from ade.training.loop import chosen_values, fit_task

SHORTER = 3  # times: the training of a coded table, after that of its rows, and its learning rate
LAYER = "ade.embedding."


@dataclass(frozen=True, eq=False)
class TrainedRows:
    """Rows of all tokens (V, d), and the other weights that were trained with them, by name."""

    rows: Tensor
    weights: Mapping[str, Tensor]


def train_rows(
    table: EncoderTable,
    data: Texts,
    encoded: Encoded,
    vectors: np.ndarray,
    settings: TrainingSettings,
    architecture: Architecture,
    report: Report,
) -> TrainedRows:
    """Train an encoder on the whole rows of a table; tokens that the texts, also given tokenized, lack keep theirs.

    The run has a folder in the cache, where it is continued, or read if it is finished.
    """
    rows, tokenizer = table.rows(), table.teacher.tokenizer
    settings = replace(settings, train_weights=False)
    architecture = replace(architecture, layer_bits=Architecture().layer_bits)  # the layers are not packed yet
    used = torch.from_numpy(np.unique(encoded.ids.numpy())).long()
    codebook = _one_anchor_a_token(rows, used, tokenizer)
    start = {f"{LAYER}anchors": codebook.anchors, f"{LAYER}weights": torch.ones(len(rows))}
    folder = rows_folder(table.teacher, data, vectors, chosen_values(settings, architecture))
    began = False

    def report_rows(what: str, done: int, total: int, metrics: Mapping[str, Any]) -> None:
        nonlocal began
        began = began or what == "train"
        report("rows" if what == "train" else what, done, total, metrics)

    def fit(existing: Existing) -> SentenceEncoder:
        def task() -> EncoderTask:
            return EncoderTask(codebook, encoded, vectors, architecture, {}, settings.seed)

        encoder: SentenceEncoder = fit_task(
            task, codebook, settings, architecture, folder, existing, report_rows, start
        )
        return encoder

    try:
        encoder = fit("resume")
    except InputError:
        if began:
            raise
        encoder = fit("overwrite")  # the folder is damaged; where it cannot be used at all, that is said now
    state = {name: values.detach().cpu() for name, values in encoder.model.state_dict().items()}
    rows[used] = state[f"{LAYER}anchors"].float()
    return TrainedRows(rows, {name: values for name, values in state.items() if not name.startswith(LAYER)})


def settings_for_books(settings: EncoderSettings) -> EncoderSettings:
    """The settings for training the books of a table whose rows were trained whole."""
    steps = max(1, settings.steps // SHORTER) if settings.steps else 0
    rate = settings.learning_rate / SHORTER
    return replace(settings, steps=steps, epochs=settings.epochs / SHORTER, learning_rate=rate)


def _one_anchor_a_token(rows: Tensor, used: Tensor, tokenizer: Tokenizer) -> Codebook:
    """A codebook in which every token that is used has its row for an anchor; all others have the first."""
    index = torch.zeros(len(rows), dtype=torch.long)
    index[used] = torch.arange(len(used))
    once = torch.ones(len(rows))
    return Codebook.from_pairs(rows[used], index, once, once.long(), tokenizer)
