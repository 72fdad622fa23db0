"""Pairs that move while a model is trained: their number stays, they go to the tokens whose gradient asks for more.

The gradient of a token's coefficients says, for every anchor, how much the loss would gain from a pair with it. It is
summed up between two looks at the dev split. At a look, pairs that have stopped mattering (their weight rounds to
nothing beside the token's largest) are taken away, and as many are given, each to the token and the anchor that were
asked for most. Anchors that nobody uses in the end are left out of the model.
"""

from functools import partial

import torch
from torch import Tensor

from ade.configuration import AdeConfig
from ade.embedding import AnchorEmbedding
from ade.model import AdeForSequenceClassification

SMALL = 0.02  # of a token's largest weight: a pair below does not matter
ROOM = 2  # times the pairs a token may have had before
SHARE = 0.05  # of all pairs move at a time, at most


class Adapter:
    """Listens to a layer while it is trained, and moves its pairs when asked."""

    def __init__(self, layer: AnchorEmbedding) -> None:
        self.layer = layer
        room = _coded(layer.max_pairs) if layer.packing else min(ROOM * layer.max_pairs, 255)
        layer.max_pairs = max(layer.max_pairs, min(room, len(layer.anchors)))
        self.shared = (layer.packing.shared if layer.packing else 0) or len(layer.anchors)
        self.asked = torch.zeros(len(layer.counts), len(layer.anchors), device=layer.anchors.device)  # (N, K)
        layer.coefficients_hook = self._listen

    def _listen(self, ids: Tensor, coefficients: Tensor) -> None:
        coefficients.register_hook(partial(self._add, ids))

    def _add(self, ids: Tensor, gradient: Tensor) -> None:
        self.asked.index_add_(0, ids, gradient.to(self.asked.dtype))

    @torch.no_grad()
    def move(self, beside: list[Tensor]) -> int:
        """Move pairs, and what an optimizer keeps `beside` their weights; how many there were. Then listen anew."""
        layer = self.layer
        owner = torch.repeat_interleave(layer.counts.long())  # (P,)
        smallest = self._small(owner)
        token, anchor = self._wanted(owner, min(len(smallest), max(1, int(SHARE * len(owner)))))
        count = len(token)
        if count:
            gone = torch.zeros_like(owner, dtype=torch.bool)
            gone[smallest[:count]] = True
            owners = torch.cat([owner[~gone], token])
            sorted_by = owners.argsort(stable=True)
            layer.indices.copy_(torch.cat([layer.indices[~gone].long(), anchor])[sorted_by])
            layer.counts.copy_(torch.bincount(owners, minlength=len(layer.counts)))
            for values in (layer.weights, *beside):
                values.copy_(torch.cat([values[~gone], values.new_zeros(count)])[sorted_by])
        self.asked.zero_()
        return count

    def _small(self, owner: Tensor) -> Tensor:
        """Pairs whose weight rounds to nothing beside their token's largest, which it keeps; the smallest first."""
        layer = self.layer
        size = layer.weights.abs()
        largest = torch.zeros(len(layer.counts), device=size.device).scatter_reduce(0, owner, size, "amax")
        share = size / largest[owner].clamp(min=1e-12)
        place = torch.arange(len(size), device=size.device)
        first = torch.where(size == largest[owner], place, len(size))
        share[torch.full_like(layer.offsets, len(size)).scatter_reduce(0, owner, first, "amin")] = torch.inf
        levels = 2 ** (layer.packing.weight_bits - 1) - 1 if layer.packing else 0
        order = share.argsort(stable=True)
        return order[: int((share < (0.5 / levels if levels else SMALL)).sum())]

    def _wanted(self, owner: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Up to so many tokens, each with the anchor it was asked for most and has not, in the order of asking."""
        layer = self.layer
        asked = self.asked.abs()
        asked[owner, layer.indices.long()] = 0
        asked[:, self.shared :] = 0  # these belong to one token each
        full = layer.counts.long() >= layer.max_pairs
        whole = torch.zeros_like(full)
        whole[owner[layer.indices.long() >= self.shared]] = True
        best, anchor = asked.masked_fill((full | whole).unsqueeze(1), 0).max(1)
        token = best.argsort(descending=True, stable=True)[: min(count, int((best > 0).sum()))]
        return token, anchor[token]


def _coded(most: int) -> int:
    """The most pairs of a token whose code is as long as that of `most`: one more lengthens every token's."""
    return 2 ** (most + 1).bit_length() - 2


@torch.no_grad()
def settled(model: AdeForSequenceClassification) -> AdeForSequenceClassification:
    """The model with room for the pairs its tokens have, and without shared anchors that no pair uses."""
    layer = model.ade.embedding
    assert isinstance(layer, AnchorEmbedding)
    used = torch.bincount(layer.indices.long(), minlength=len(layer.anchors)) > 0
    settings = {**model.config.to_dict(), "max_pairs": int(layer.counts.max())}
    if layer.packing is not None:
        shared = layer.packing.shared or len(used)
        settings["packing"] = {**settings["packing"], "shared": int(used[:shared].sum())}
    made = AdeForSequenceClassification(AdeConfig.from_dict({**settings, "anchors": int(used.sum())}))
    number = used.cumsum(0) - 1
    state = model.state_dict()
    state["ade.embedding.anchors"] = layer.anchors[used]
    state["ade.embedding.indices"] = number[layer.indices.long()].to(layer.indices.dtype)
    made.load_state_dict(state)
    return made.to(model.device).eval()
