"""A table that will be coded is trained whole first: every token of the texts learns a vector of its own.

Codes say which entries of shared books a row is made of, and training cannot change them. So they are found for rows
that have learned what the encoder needs of them, instead of for those of the teacher.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ade.codebook import Codebook
from ade.compression.encoder_table import EncoderTable
from ade.data.batches import encode
from ade.data.texts import Texts
from ade.progress import Report
from ade.sentence_encoder import SentenceEncoder
from ade.settings import Architecture, EncoderSettings, TrainingSettings
from ade.training.checkpoints import Existing
from ade.training.encoder_task import EncoderTask
from ade.training.loop import fit_task

AFTERWARDS = 3  # training of the coded table has one in so many of the steps, and of the learning rate
LAYER = "ade.embedding."


@dataclass(frozen=True, eq=False)
class TrainedRows:
    """Rows of all tokens (V, d), and the other weights that were trained with them, by name."""

    rows: Tensor
    weights: Mapping[str, Tensor]


def train_rows(
    table: EncoderTable,
    data: Texts,
    vectors: np.ndarray,
    settings: TrainingSettings,
    architecture: Architecture,
    folder: Path,
    existing: Existing,
    report: Report,
) -> TrainedRows:
    """Train an encoder on the whole rows of a table; tokens that the texts do not have keep theirs.

    The run is kept in a folder of its own, where it is continued.
    """
    rows, tokenizer = table.rows(), table.teacher.tokenizer
    used = np.unique(encode(tokenizer, data, architecture.max_tokens, report).ids.numpy())  # (U,)
    codebook = _one_anchor_a_token(rows, torch.from_numpy(used).long(), table)
    start = {f"{LAYER}anchors": codebook.anchors, f"{LAYER}weights": torch.ones(len(rows))}

    def told(what: str, done: int, total: int, metrics: Mapping[str, Any]) -> None:
        report("rows" if what == "train" else what, done, total, metrics)

    def task() -> EncoderTask:
        return EncoderTask(codebook, data, vectors, architecture, {}, settings.seed, told)

    chosen = replace(settings, train_weights=False)
    encoder: SentenceEncoder = fit_task(task, codebook, chosen, architecture, folder, existing, told, start)
    state = {name: values.detach().cpu() for name, values in encoder.model.state_dict().items()}
    rows[torch.from_numpy(used).long()] = state[f"{LAYER}anchors"].float()
    return TrainedRows(rows, {name: values for name, values in state.items() if not name.startswith(LAYER)})


def afterwards(settings: EncoderSettings) -> EncoderSettings:
    """The settings for training the books of a table whose rows were trained whole."""
    steps = max(1, settings.steps // AFTERWARDS) if settings.steps else 0
    rate = settings.learning_rate / AFTERWARDS
    return replace(settings, steps=steps, epochs=settings.epochs / AFTERWARDS, learning_rate=rate)


def _one_anchor_a_token(rows: Tensor, used: Tensor, table: EncoderTable) -> Codebook:
    """A codebook in which every token that is used has an anchor of its own; all others have the first."""
    index = torch.zeros(len(rows), dtype=torch.long)
    index[used] = torch.arange(len(used))
    once = torch.ones(len(rows))
    return Codebook.from_pairs(rows[used], index, once, once.long(), table.teacher.tokenizer)
