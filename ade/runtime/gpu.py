"""Scores of texts from lookup tables on a GPU, in batches padded to few distinct shapes.

Small batches of a shape seen before are replayed as CUDA graphs: one launch instead of several. `unsupported` says
which models this path cannot run; they use their own forward pass.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ade.data.batches import DeviceTokens
from ade.data.tokens import Ragged, sorted_batches
from ade.embedding import LexiconLayer
from ade.runtime.kernels import class_scores, device_tables
from ade.runtime.lexicon_kernels import lexicon_scores
from ade.runtime.tables import LookupTables

BATCH_TOKENS = 1 << 18  # tokens in a batch: enough to fill the device
MAX_BATCH_TEXTS = 32_768  # a grid of programs has a largest size
MAX_BLOCK_ELEMENTS = 1 << 20  # of a Triton block
MAX_TABLE_BYTES = 8 << 30
MAX_GRAPH_TOKENS = 1 << 16  # up to here launching the kernels takes longer than running them
MAX_GRAPHS = 64  # shapes whose graphs are kept


class _Recorded(NamedTuple):
    """A CUDA graph with the tensors it reads and writes."""

    graph: "torch.cuda.CUDAGraph"
    ids: Tensor
    lengths: Tensor
    scores: Tensor


def unsupported(tables: LookupTables) -> str | None:
    """Why the kernels cannot run a model; None where they can."""
    config, head_width = tables.config, tables.dim // tables.config.heads
    pooled = 2 * bucketed(config.max_tokens) * max(16, 2 * tables.outputs)  # one program pools a text
    table_bytes = 4 * tables.table.vocabulary * tables.columns.total

    requirements = [
        (config.sat, "it has no attention layer"),
        (config.layers == 1, "it has several layers"),
        (config.pooling == "attention", "it pools by the mean"),
        (head_width >= 16 and head_width.bit_count() == 1, "the width of its heads is not a power of two above 8"),
        (tables.value_readout is None, "it has more labels than its heads are wide"),
        (pooled <= MAX_BLOCK_ELEMENTS, "its texts may be too long for one program to pool"),
        (table_bytes <= MAX_TABLE_BYTES, "the rows of its token types are too large"),
    ]
    return next((reason for met, reason in requirements if not met), None)


class GpuScores:
    """Scores of texts from the tables of a trained model on a GPU."""

    def __init__(
        self, tables: LookupTables, device: torch.device, dtype: torch.dtype, lexicon: LexiconLayer | None = None
    ) -> None:
        """`lexicon` is on the device; without one only the model's own scores are given."""
        self.config, self.device, self.outputs = tables.config, device, tables.outputs
        self.lexicon = lexicon
        self.tables = device_tables(tables, device, dtype)
        self._lock = threading.Lock()
        self._graphs: OrderedDict[tuple[int, ...], _Recorded | None] = OrderedDict()  # None: seen once

    @torch.inference_mode()
    def pooled(self, texts: Ragged) -> np.ndarray:
        """Return the scores of texts, in their order: (n, C)."""
        attended = texts.first(self.config.max_tokens)  # attention reads the first tokens, the lexicon all
        if self.lexicon is None or attended is texts:
            return self._batched(attended, self.scores)
        scores = self._batched(attended, partial(self.scores, lexicon=False))
        return scores + self._batched(texts, partial(lexicon_scores, self.lexicon))

    def _batched(self, texts: Ragged, score: Callable[[Tensor, Tensor], Tensor]) -> np.ndarray:
        """Scores (n, C) of texts, in their order, by a function of padded ids (B, L) and lengths (B,)."""
        scores = torch.empty(len(texts), self.outputs, device=self.device)
        tokens = DeviceTokens(texts, self.device)
        for rows in self._batches(texts.lengths):
            length, count = bucketed(int(texts.lengths[rows].max())), len(rows)
            if count * length <= MAX_GRAPH_TOKENS:
                # Fill small batches up to a power of two, so that few shapes occur and their graphs are reused.
                rows = np.pad(rows, (0, 2 ** (count - 1).bit_length() - count), mode="edge")
            ids, mask = tokens.padded(rows, length)
            of_rows = score(ids.int(), mask.sum(1, dtype=torch.int32))
            scores[torch.from_numpy(rows[:count]).to(self.device)] = of_rows[:count]
        return scores.cpu().numpy()

    def _batches(self, lengths: np.ndarray) -> Iterator[np.ndarray]:
        """Every text once, by number, in batches the device can hold."""
        for batch in sorted_batches(lengths, BATCH_TOKENS):
            yield from (batch[start : start + MAX_BATCH_TEXTS] for start in range(0, len(batch), MAX_BATCH_TEXTS))

    def scores(self, ids: Tensor, lengths: Tensor, lexicon: bool = True) -> Tensor:
        """Class scores (B, C) of padded ids (B, L) int32 on the device, with the texts' lengths (B,) int32."""
        if not ids.is_cuda or ids.numel() > MAX_GRAPH_TOKENS:
            return self._scores(ids, lengths, lexicon)
        with self._lock:
            recorded = self._recorded(ids, lengths, lexicon)
            if recorded is None:
                return self._scores(ids, lengths, lexicon)
            recorded.ids.copy_(ids)
            recorded.lengths.copy_(lengths)
            recorded.graph.replay()
            return recorded.scores.clone()

    def _scores(self, ids: Tensor, lengths: Tensor, lexicon: bool) -> Tensor:
        scores = class_scores(self.tables, ids, lengths) * self.config.deviation + self.config.mean
        if self.lexicon is None or not lexicon:
            return scores
        return scores + lexicon_scores(self.lexicon, ids, lengths)

    def _recorded(self, ids: Tensor, lengths: Tensor, lexicon: bool) -> _Recorded | None:
        """The graph of a batch's shape, recorded when the shape is seen for the second time; None the first time."""
        shape = (*ids.shape, lexicon)
        if shape not in self._graphs:
            self._graphs[shape] = None
            if len(self._graphs) > MAX_GRAPHS:
                self._graphs.popitem(last=False)
            return None
        if self._graphs[shape] is None:
            graph, ids, lengths = torch.cuda.CUDAGraph(), ids.clone(), lengths.clone()
            with torch.cuda.graph(graph):
                scores = self._scores(ids, lengths, lexicon)
            self._graphs[shape] = _Recorded(graph, ids, lengths, scores)
        self._graphs.move_to_end(shape)
        return self._graphs[shape]


def bucketed(length: int) -> int:
    """The length a batch is padded to: a multiple of 16 or 64, so that few kernels are compiled."""
    step = 16 if length <= 128 else 64
    return -(-length // step) * step
