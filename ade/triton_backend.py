"""Lookup tables on a GPU: scores of texts by Triton kernels, in batches padded to few distinct shapes."""

import numpy as np
import torch
from torch import Tensor

from ade.data.batches import DeviceTokens
from ade.data.tokens import Ragged, sorted_batches
from ade.folder import Saved
from ade.model import model_of
from ade.runtime import kernels
from ade.runtime.tables import LookupTables
from ade.torch_backends import TorchBackend

BATCH_TOKENS = 1 << 18  # tokens in a batch: enough to fill the device
MAX_BLOCK_ELEMENTS = 1 << 20  # of a Triton block
MAX_TABLE_BYTES = 8 << 30


def can_run(tables: LookupTables) -> bool:
    """Return whether the kernels can run a model; torch can run all of them."""
    config, head_width = tables.config, tables.dim // tables.config.heads
    pooled = 2 * bucketed(config.max_tokens) * max(16, 2 * tables.outputs)  # one program pools a text
    table_bytes = 4 * tables.table.vocabulary * tables.columns.total
    return (
        kernels.available
        and (config.sat and config.layers == 1 and config.pooling == "attention")
        and (head_width >= 16 and head_width.bit_count() == 1)  # widths of blocks are powers of two
        and tables.value_readout is None  # there are no more scores than a head is wide
        and pooled <= MAX_BLOCK_ELEMENTS
        and table_bytes <= MAX_TABLE_BYTES
    )


class TritonBackend(TorchBackend):
    """Lookup tables on a GPU for scores; the forward pass for all else."""

    def __init__(self, saved: Saved, tables: LookupTables, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(model_of(saved).to(device))
        self.config, self.tables = saved.config, kernels.device_tables(tables, device, dtype)

    @torch.inference_mode()
    def scores(self, texts: Ragged) -> np.ndarray:
        """Return the score of every label for each text, the lexicon's added: (n, C)."""
        device = self.model.device
        scores = torch.empty(len(texts), self.config.outputs, device=device)
        tokens = DeviceTokens(texts, device)
        for rows in sorted_batches(texts.lengths, BATCH_TOKENS):
            ids, mask = tokens.padded(rows, bucketed(int(texts.lengths[rows].max())))
            of_rows = self._scores(ids.int(), mask.sum(1, dtype=torch.int32))
            scores[torch.from_numpy(rows).to(device)] = of_rows
        return scores.cpu().numpy()

    def _scores(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores (B, C) of padded ids (B, L): attention reads the first tokens, the lexicon all of them."""
        first = ids[:, : self.config.max_tokens].contiguous()
        scores = kernels.class_scores(self.tables, first, lengths.clamp(max=self.config.max_tokens))
        scores = scores * self.config.deviation + self.config.mean
        if self.model.lexicon is None:
            return scores
        return scores + kernels.lexicon_scores(self.model.lexicon, ids, lengths)


def bucketed(length: int) -> int:
    """Return the length a batch is padded to: a multiple of 16 or 64, so that few kernels are compiled."""
    step = 16 if length <= 128 else 64
    return -(-length // step) * step
