"""Projected inference on a GPU: the tables of `projection.py` held on the device, batches of bucketed shapes.

Small batches of a shape seen before are replayed as CUDA graphs: one launch instead of several. For models with SAT
and attention pooling; in `tokens` and `anchors` with fewer classes than a head is wide. Others run their own forward
pass.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.data.batches import Encoded, sorted_batches
from ade.data.tokenize import split_windows
from ade.lexicon import Lexicon
from ade.runtime.gpu_tables import Folded, Gates, Pairs, pairs_of
from ade.runtime.kernels import class_scores
from ade.runtime.lexicon_kernels import LexiconTables, lexicon_scores
from ade.runtime.projection import EPSILON, Projection

BATCH_TOKENS = 1 << 18  # tokens a batch: enough to fill the device
MOST_TEXTS = 32_768  # a batch: a grid has an end
LARGEST = 1 << 20  # elements of a Triton block
LARGEST_TABLE = 8 << 30  # bytes
MOST_ANCHORS = 4096  # whose gates are all worked out
BLOCK = 8192  # rows of the type table made at a time
GRAPHED = 1 << 16  # elements of a batch up to which it is the launching that takes the time
GRAPHS = 64  # shapes kept


class _Recorded(NamedTuple):
    """A graph, where it reads and where it writes."""

    graph: "torch.cuda.CUDAGraph"
    ids: Tensor
    lengths: Tensor
    scores: Tensor


class Accelerated:
    """A trained model as tables on a device; `logits` of texts."""

    def __init__(
        self, projection: Projection, device: torch.device, dtype: torch.dtype, lexicon: Lexicon | None = None
    ) -> None:
        self.device, self.labels, self.max_tokens = device, projection.labels, projection.longest
        self.lexicon = None if lexicon is None else LexiconTables.of(lexicon, device)
        expanded, gated = projection.attend == "anchors", projection.attend == "gated"
        self.mean, self.scale = projection.mean, projection.scale
        self.most = projection.most if expanded else 1  # elements a token
        pairs = self._pairs(projection)
        rows = self._kept(projection.anchor_rows) if expanded else self._types(projection, pairs, dtype)
        longest = projection.longest * (1 if projection.grouped else self.most)
        places = self._kept(projection.place_table(1 if projection.fixed else longest)).expand(longest, -1)
        folded = Folded(
            rows, places, projection.heads, projection.dim // projection.heads, projection.value,
            1 + projection.labels, pairs if expanded or gated else None,
            self._gates(projection, dtype) if gated else None, projection.grouped or projection.fixed,
        )  # fmt: skip
        self.folded = replace(folded, rows=folded.laid_out(rows.to(dtype)), places=folded.laid_out(places.to(dtype)))
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[int, ...], _Recorded | None] = OrderedDict()

    @staticmethod
    def fits(projection: Projection) -> bool:
        """Whether this path knows such a model."""
        width, gated = projection.dim // projection.heads, projection.attend == "gated"
        whole = width >= 16 and width & (width - 1) == 0
        longest = bucketed(projection.longest) * (projection.most if projection.attend == "anchors" else 1)
        held = 2 * longest * max(16, 2 * projection.labels) <= LARGEST  # one program pools a text
        if gated:
            held = held and len(projection.anchors) <= MOST_ANCHORS and projection.most**2 <= LARGEST // 64
        if projection.attend != "anchors":
            held = held and 4 * projection.pairs.vocabulary * len(projection.matrix) <= LARGEST_TABLE
        return projection.sat and whole and held and (gated or not projection.wide) and not projection.mean_pooling

    def _pairs(self, projection: Projection) -> Pairs:
        """All pairs, end to end."""
        types = np.arange(projection.pairs.vocabulary)
        parts = [projection.pairs.of(types[at : at + BLOCK]) for at in range(0, len(types), BLOCK)]
        counts = np.concatenate([there.sum(1) for _, _, there in parts])
        anchors, weights = (np.concatenate([part[i][part[2]] for part in parts]) for i in range(2))
        starts = np.cumsum(counts) - counts
        tables = (self._kept(array.astype(np.int32)) for array in (counts, starts, anchors))
        whole_numbers = dict(zip(("counts", "starts", "anchors"), tables, strict=True))
        return Pairs(**whole_numbers, weights=self._kept(weights), most=projection.most)

    def _kept(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _types(self, projection: Projection, pairs: Pairs, dtype: torch.dtype) -> Tensor:
        """B of every token type; the first two steps of `Projection.type_rows`, on the device."""
        centred, anchor_rows, shifted = map(
            self._kept, (projection.centred, projection.anchor_rows, projection.shifted)
        )
        parts = []
        for types in torch.arange(len(pairs.counts), device=self.device).split(BLOCK):
            index, weight, _ = pairs_of(pairs, types)
            composed = F.embedding_bag(index, centred, mode="sum", per_sample_weights=weight)
            weight = weight * torch.rsqrt(composed.square().sum(1, keepdim=True) + EPSILON)
            parts.append(
                (F.embedding_bag(index, anchor_rows, mode="sum", per_sample_weights=weight) + shifted).to(dtype)
            )
        return torch.cat(parts)

    def _gates(self, projection: Projection, dtype: torch.dtype) -> Gates:
        heard = np.hstack([projection.gate.T, projection.after])  # (d, K + 1 + C)
        centred = self._kept(projection.centred)
        kept = (self._kept(array) for array in (projection.gate_bias, projection.direct, projection.constant))
        bias, direct, constant = kept
        columns = self._kept(heard).to(dtype)
        return Gates(F.pad(columns, (0, -columns.shape[1] % 16)), bias, centred @ centred.T, direct, constant)

    @torch.inference_mode()
    def logits(self, texts: Encoded) -> np.ndarray:
        """Class scores of every text, in order."""
        texts = texts.to(self.device)
        windows, first = split_windows(texts.offsets, self.max_tokens)
        if len(windows) == len(texts.offsets):
            return self._batched(texts, self.scores)

        # A long text: the mean over its windows, weighted by their tokens; the lexicon reads all of it at once.
        attended = self._batched(Encoded(texts.ids, windows), partial(self.scores, lexicon=False))
        tokens = np.diff(windows).astype(np.float32)[:, None]
        scores = np.add.reduceat(attended * tokens, first) / np.add.reduceat(tokens, first)
        if self.lexicon is not None:
            scores = scores + self._batched(texts, partial(lexicon_scores, self.lexicon))
        return scores

    def _batched(self, texts: Encoded, score: Callable[[Tensor, Tensor], Tensor]) -> np.ndarray:
        """What `score` gives for every text, in order: (n, C)."""
        scores = torch.empty(len(texts), self.labels, device=self.device)  # (n, C)
        tokens = BATCH_TOKENS // (self.most**2 if self.folded.gates is None else 2)
        batches = sorted_batches(texts.lengths, tokens)
        for rows in (batch[at : at + MOST_TEXTS] for batch in batches for at in range(0, len(batch), MOST_TEXTS)):
            length = bucketed(int(texts.lengths[rows].max()))
            count = len(rows)
            if count * length * self.most <= GRAPHED:  # few shapes, so that they are seen again
                rows = np.pad(rows, (0, 2 ** (count - 1).bit_length() - count), mode="edge")
            ids, mask = texts.padded(rows, length)
            found = score(ids.int(), mask.sum(1, dtype=torch.int32))
            scores[torch.from_numpy(rows[:count]).to(self.device)] = found[:count]
        return scores.cpu().numpy()

    def scores(self, ids: Tensor, lengths: Tensor, lexicon: bool = True) -> Tensor:
        """Class scores (B, C) of a batch (B, L) int32 on the device, of which each text has (B,) int32."""
        if not ids.is_cuda or ids.numel() * self.most > GRAPHED:
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
        scores = class_scores(self.folded, ids, lengths) * self.scale + self.mean
        return scores + lexicon_scores(self.lexicon, ids, lengths) if lexicon and self.lexicon is not None else scores

    def _recorded(self, ids: Tensor, lengths: Tensor, lexicon: bool) -> _Recorded | None:
        """The graph of a shape, recorded when it is seen for the second time."""
        shape = (*ids.shape, lexicon)
        if shape not in self._seen:
            self._seen[shape] = None
            if len(self._seen) > GRAPHS:
                self._seen.popitem(last=False)
            return None
        if self._seen[shape] is None:
            graph, ids, lengths = torch.cuda.CUDAGraph(), ids.clone(), lengths.clone()
            with torch.cuda.graph(graph):
                scores = self._scores(ids, lengths, lexicon)
            self._seen[shape] = _Recorded(graph, ids, lengths, scores)
        self._seen.move_to_end(shape)
        return self._seen[shape]


def bucketed(length: int) -> int:
    """The length a batch is padded to: few distinct ones, so that few kernels are compiled."""
    step = 16 if length <= 128 else 64
    return -(-length // step) * step
