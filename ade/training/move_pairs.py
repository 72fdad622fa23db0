"""Move pairs between tokens during training (`--adapt`): to tokens with large gradients, at a constant number of pairs.

The gradient with respect to a token's coefficients (one per anchor) says how much a pair with each anchor would lower
the loss. It is accumulated between validations. At a validation, pairs whose weight is negligible beside their token's
largest are removed, and as many are added, each to the token and the anchor with the largest accumulated gradient.
Anchors that no pair uses in the end are removed from the model.
"""

from functools import partial

import torch
from torch import Tensor

from ade.configuration import AdeConfig
from ade.embedding import AnchorEmbedding
from ade.model import AdeForSequenceClassification

NEGLIGIBLE = 0.02  # relative to a token's largest weight: a smaller pair may move (unpacked codebooks)
GROWTH = 2  # a token may get up to as many times the maximum number of pairs (unpacked codebooks)
MAX_MOVED = 0.05  # fraction of all pairs that move at a time


class PairMover:
    """Accumulates the gradients of a layer's coefficients during training, and moves its pairs on request."""

    def __init__(self, layer: AnchorEmbedding) -> None:
        self.layer = layer
        limit = _largest_count(layer.max_pairs) if layer.packing else min(GROWTH * layer.max_pairs, 255)
        layer.max_pairs = max(layer.max_pairs, min(limit, len(layer.anchors)))
        self.shared = (layer.packing.shared if layer.packing else 0) or len(layer.anchors)
        self.gradient = torch.zeros(len(layer.counts), len(layer.anchors), device=layer.anchors.device)  # (N, K)
        layer.coefficients_hook = self._watch

    def _watch(self, ids: Tensor, coefficients: Tensor) -> None:
        """Called by the layer in each forward pass: accumulate the gradient once it is known."""
        coefficients.register_hook(partial(self._accumulate, ids))

    def _accumulate(self, ids: Tensor, gradient: Tensor) -> None:
        self.gradient.index_add_(0, ids, gradient.to(self.gradient.dtype))

    @torch.no_grad()
    def move(self, moments: list[Tensor]) -> int:
        """Move pairs and the optimizer's moments of their weights; returns their number. Then accumulate anew."""
        layer = self.layer
        owner = torch.repeat_interleave(layer.counts.long())  # (P,): the token of each pair
        negligible = self._negligible_pairs(owner)
        token, anchor = self._new_pairs(owner, min(len(negligible), max(1, int(MAX_MOVED * len(owner)))))
        count = len(token)
        if count:
            stays = torch.ones_like(owner, dtype=torch.bool)
            stays[negligible[:count]] = False

            # Pairs lie in the order of their tokens; new ones start with weight 0 and without moments.
            owners = torch.cat([owner[stays], token])
            order = owners.argsort(stable=True)
            layer.indices.copy_(torch.cat([layer.indices[stays].long(), anchor])[order])
            layer.counts.copy_(torch.bincount(owners, minlength=len(layer.counts)))
            for values in (layer.weights, *moments):
                values.copy_(torch.cat([values[stays], values.new_zeros(count)])[order])
        self.gradient.zero_()
        return count

    def _negligible_pairs(self, owner: Tensor) -> Tensor:
        """Pairs whose weight is negligible beside their token's largest, the smallest first."""
        layer = self.layer
        size = layer.weights.abs()
        largest = torch.zeros(len(layer.counts), device=size.device).scatter_reduce(0, owner, size, "amax")
        relative = size / largest[owner].clamp(min=1e-12)

        # A token's largest pair always stays: of several, the first.
        number = torch.arange(len(size), device=size.device)
        candidates = torch.where(size == largest[owner], number, len(size))
        first_largest = torch.full_like(layer.offsets, len(size)).scatter_reduce(0, owner, candidates, "amin")
        relative[first_largest] = torch.inf

        # In a packed codebook a weight is negligible if it is rounded to 0.
        levels = 2 ** (layer.packing.weight_bits - 1) - 1 if layer.packing else 0
        threshold = 0.5 / levels if levels else NEGLIGIBLE
        return relative.argsort(stable=True)[: int((relative < threshold).sum())]

    def _new_pairs(self, owner: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Up to `count` tokens, each with the anchor of its largest gradient among those it has no pair with."""
        layer = self.layer
        gradient = self.gradient.abs()
        gradient[owner, layer.indices.long()] = 0
        gradient[:, self.shared :] = 0  # anchors that belong to one token each

        full = layer.counts.long() >= layer.max_pairs
        kept_whole = torch.zeros_like(full)
        kept_whole[owner[layer.indices.long() >= self.shared]] = True
        largest, anchor = gradient.masked_fill((full | kept_whole).unsqueeze(1), 0).max(1)
        token = largest.argsort(descending=True, stable=True)[: min(count, int((largest > 0).sum()))]
        return token, anchor[token]


def _largest_count(max_pairs: int) -> int:
    """The largest number of pairs whose code has as many bits as that of `max_pairs`."""
    return 2 ** (max_pairs + 1).bit_length() - 2


@torch.no_grad()
def without_unused_anchors(model: AdeForSequenceClassification) -> AdeForSequenceClassification:
    """The model without anchors that no pair uses, `max_pairs` reduced to the pairs its tokens have."""
    layer = model.ade.embedding
    assert isinstance(layer, AnchorEmbedding)
    used = torch.bincount(layer.indices.long(), minlength=len(layer.anchors)) > 0
    settings = {**model.config.to_dict(), "max_pairs": int(layer.counts.max())}
    if layer.packing is not None:
        shared = layer.packing.shared or len(used)
        settings["packing"] = {**settings["packing"], "shared": int(used[:shared].sum())}
    smaller = AdeForSequenceClassification(AdeConfig.from_dict({**settings, "anchors": int(used.sum())}))

    new_index = used.cumsum(0) - 1
    state = model.state_dict()
    state["ade.embedding.anchors"] = layer.anchors[used]
    state["ade.embedding.indices"] = new_index[layer.indices.long()].to(layer.indices.dtype)
    smaller.load_state_dict(state)
    return smaller.to(model.device).eval()
