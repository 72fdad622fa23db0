"""Projected inference on a GPU: the tables of `tables.py` on the device, batches padded to few distinct shapes.

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

from ade.data.batches import Encoded, sorted_batches
from ade.data.tokenize import average_windows, split_windows
from ade.lexicon import Lexicon
from ade.lexicon_layer import LexiconTables
from ade.runtime.gpu_tables import device_tables
from ade.runtime.kernels import class_scores
from ade.runtime.lexicon_kernels import lexicon_scores
from ade.runtime.tables import Tables

BATCH_TOKENS = 1 << 18  # tokens in a batch: enough to fill the device
MAX_BATCH_TEXTS = 32_768  # a grid of programs has a largest size
MAX_BLOCK_ELEMENTS = 1 << 20  # of a Triton block
MAX_TABLE_BYTES = 8 << 30
MAX_GATED_ANCHORS = 4096  # the gates of all anchors are computed for every token
MAX_GRAPH_ELEMENTS = 1 << 16  # up to here launching the kernels takes longer than running them
MAX_GRAPHS = 64  # shapes whose graphs are kept


class _Recorded(NamedTuple):
    """A CUDA graph with the tensors it reads and writes."""

    graph: "torch.cuda.CUDAGraph"
    ids: Tensor
    lengths: Tensor
    scores: Tensor


def unsupported(tables: Tables) -> str | None:
    """Why the kernels cannot run a model; None where they can."""
    if tables.norm is not None:
        return "its table is coded"
    options, gated = tables.options, tables.options.gated
    head_width, max_pairs = tables.dim // options.heads, tables.pairs.max_pairs
    elements = bucketed(options.max_tokens) * (max_pairs if options.expanded else 1)
    pooled = 2 * elements * max(16, 2 * tables.labels)  # one program pools a text
    table_bytes = 4 * tables.vocabulary * tables.columns.projected

    requirements = [
        (options.sat, "it has no attention layer"),
        (tables.depth is None, "it has several layers"),
        (not options.mean_pooling, "it pools by the mean"),
        (head_width >= 16 and head_width.bit_count() == 1, "the width of its heads is not a power of two above 8"),
        (gated or tables.value_readout is None, "it has more labels than its heads are wide"),
        (pooled <= MAX_BLOCK_ELEMENTS, "its texts may be too long for one program to pool"),
        (options.expanded or table_bytes <= MAX_TABLE_BYTES, "the rows of its token types are too large"),
        (not gated or len(tables.anchor_rows) <= MAX_GATED_ANCHORS, "it has too many anchors to gate"),
        (not gated or max_pairs**2 <= MAX_BLOCK_ELEMENTS // 64, "its tokens have too many pairs to gate"),
    ]
    return next((reason for met, reason in requirements if not met), None)


class GpuModel:
    """Class scores of texts from the tables of a trained model on a GPU."""

    def __init__(
        self, tables: Tables, device: torch.device, dtype: torch.dtype, lexicon: Lexicon | None = None
    ) -> None:
        options = tables.options
        self.device, self.labels, self.max_tokens = device, tables.labels, options.max_tokens
        self.target_mean, self.target_scale = options.target_mean, options.target_scale
        self.lexicon = None if lexicon is None else LexiconTables.of(lexicon, device)
        self.tables = device_tables(tables, device, dtype)
        self.elements_per_token = tables.pairs.max_pairs if options.expanded else 1  # at most
        self._lock = threading.Lock()
        self._graphs: OrderedDict[tuple[int, ...], _Recorded | None] = OrderedDict()  # None: seen once

    @torch.inference_mode()
    def logits(self, texts: Encoded) -> np.ndarray:
        """Class scores of texts, in their order: (n, C)."""
        texts = texts.to(self.device)
        windows, first = split_windows(texts.offsets, self.max_tokens)
        if len(windows) == len(texts.offsets):
            return self._batched(texts, self.scores)

        # Attention runs over windows of a long text, the lexicon over all of it.
        attended = self._batched(Encoded(texts.ids, windows), partial(self.scores, lexicon=False))
        scores = average_windows(attended, windows, first)
        if self.lexicon is not None:
            scores = scores + self._batched(texts, partial(lexicon_scores, self.lexicon))
        return scores

    def _batched(self, texts: Encoded, score: Callable[[Tensor, Tensor], Tensor]) -> np.ndarray:
        """Scores (n, C) of texts, in their order, by a function of padded ids (B, L) and lengths (B,)."""
        scores = torch.empty(len(texts), self.labels, device=self.device)
        for rows in self._batches(texts.lengths):
            length, count = bucketed(int(texts.lengths[rows].max())), len(rows)
            if count * length * self.elements_per_token <= MAX_GRAPH_ELEMENTS:
                # Fill small batches up to a power of two, so that few shapes occur and their graphs are reused.
                rows = np.pad(rows, (0, 2 ** (count - 1).bit_length() - count), mode="edge")
            ids, mask = texts.padded(rows, length)
            found = score(ids.int(), mask.sum(1, dtype=torch.int32))
            scores[torch.from_numpy(rows[:count]).to(self.device)] = found[:count]
        return scores.cpu().numpy()

    def _batches(self, lengths: np.ndarray) -> Iterator[np.ndarray]:
        """Every text once, by number, in batches the device can hold."""
        tokens = BATCH_TOKENS // (self.elements_per_token**2 if self.tables.gates is None else 2)
        for batch in sorted_batches(lengths, tokens):
            yield from (batch[start : start + MAX_BATCH_TEXTS] for start in range(0, len(batch), MAX_BATCH_TEXTS))

    def scores(self, ids: Tensor, lengths: Tensor, lexicon: bool = True) -> Tensor:
        """Class scores (B, C) of padded ids (B, L) int32 on the device, with the texts' lengths (B,) int32."""
        if not ids.is_cuda or ids.numel() * self.elements_per_token > MAX_GRAPH_ELEMENTS:
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
        scores = class_scores(self.tables, ids, lengths) * self.target_scale + self.target_mean
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
