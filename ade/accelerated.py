"""Projected inference on a GPU: the tables of `projection.py` held on the device, batches of bucketed shapes.

For `tokens` and `anchors` with fewer classes than a head is wide; other models run their own forward pass there.
"""

import numpy as np
import torch
from torch import Tensor

from ade.batching import Encoded, sorted_batches
from ade.kernels import Elements, Folded, class_scores
from ade.projection import Projection

BATCH_TOKENS = 1 << 18  # tokens a batch: enough to fill the device
LARGEST = 1 << 20  # elements of a Triton block
MOST_TEXTS = 32_768  # a batch: a grid has an end
BLOCK = 8192  # rows of the type table made at a time


class Accelerated:
    """A trained model as tables on a device; `logits` of texts."""

    def __init__(self, projection: Projection, device: torch.device, dtype: torch.dtype) -> None:
        self.expanded, self.most = projection.attend == "anchors", projection.most
        self.grouped, self.fixed = projection.grouped, projection.fixed
        self.device, self.labels = device, projection.labels
        if self.expanded:
            rows = torch.from_numpy(projection.anchor_rows)
            self.counts, self.starts = (self._kept(array) for array in (projection.counts, projection.starts))
            self.indices, self.beta = (self._kept(array) for array in (projection.indices, projection.beta))
        else:
            blocks = range(0, len(projection.counts), BLOCK)
            types = np.arange(len(projection.counts))
            rows = torch.cat(
                [torch.from_numpy(projection.type_rows(types[at : at + BLOCK])).to(dtype) for at in blocks]
            )
        longest = projection.longest * (self.most if self.expanded and not self.grouped else 1)
        places = torch.from_numpy(projection.place_table(1 if self.fixed else longest))
        self.folded = Folded(
            rows.to(device, dtype), places.to(device, dtype), projection.heads,
            projection.dim // projection.heads, 1 + projection.labels,
        )  # fmt: skip

    @staticmethod
    def fits(projection: Projection) -> bool:
        """Whether this path knows such a model."""
        width = projection.dim // projection.heads
        whole = width >= 16 and width & (width - 1) == 0
        longest = bucketed(projection.longest) * (projection.most if projection.attend == "anchors" else 1)
        held = 2 * longest * max(16, 2 * projection.labels) <= LARGEST  # one program pools a text
        return projection.sat and whole and held and not (projection.wide or projection.mean_pooling)

    def _kept(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def elements(self, ids: Tensor, mask: Tensor) -> Elements:
        """A padded batch (B, L) as elements: shapes follow from the batch's alone, so nothing waits for the device."""
        batch, length = ids.shape
        place = torch.zeros(length, device=ids.device) if self.fixed else torch.arange(length, device=ids.device)
        lengths = mask.sum(1)
        if not self.expanded:
            position = torch.where(mask, place, -1).int()
            return Elements(ids.int(), position, torch.ones_like(ids, dtype=torch.float32), lengths.int())
        column = torch.arange(self.most, device=ids.device)
        there = (column < self.counts[ids].unsqueeze(2)) & mask.unsqueeze(2)  # (B, L, k)
        slot = torch.where(there, self.starts[ids].unsqueeze(2) + column, 0)
        there = there.flatten(1)  # (B, L k)
        position = place.repeat_interleave(self.most).expand(batch, -1)
        if not self.grouped and not self.fixed:
            position = there.cumsum(1) - 1
        return Elements(
            self.indices[slot].flatten(1).int(), torch.where(there, position, -1).int(),
            self.beta[slot].flatten(1), (lengths * self.most).int(),
        )  # fmt: skip

    @torch.inference_mode()
    def logits(self, texts: Encoded) -> np.ndarray:
        """Class scores of every text, in order."""
        texts = texts.to(self.device)
        scores = torch.empty(len(texts), self.labels, device=self.device)  # (n, C)
        tokens = BATCH_TOKENS // (self.most**2 if self.expanded else 1)
        batches = sorted_batches(texts.lengths, tokens)
        for rows in (batch[at : at + MOST_TEXTS] for batch in batches for at in range(0, len(batch), MOST_TEXTS)):
            ids, mask = texts.padded(rows, bucketed(int(texts.lengths[rows].max())))
            scores[torch.from_numpy(rows).to(self.device)] = class_scores(self.folded, self.elements(ids, mask))
        return scores.cpu().numpy()


def bucketed(length: int) -> int:
    """The length a batch is padded to: few distinct ones, so that few kernels are compiled."""
    step = 16 if length <= 128 else 64
    return -(-length // step) * step
