"""AdeForSentenceEmbedding: one vector a text, trained to be where an encoder's vector of the same text is.

Pooled contextual vectors and one linear map. With one attention layer that is the arithmetic of a classifier whose
labels are the dimensions of the vector, so everything that runs classifiers fast runs these too.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.utils import ModelOutput

from ade.configuration import AdeConfig
from ade.embedding import linear, real_tokens
from ade.model import AdeModel, pooling_weights
from ade.packing.format import Packing
from ade.pretrained import AdePreTrainedModel

SIMILARITY = 5.0  # weight of the batch's similarities in the loss
SHORT = 4  # vectors truncated to a fourth count too, so that they can be truncated in use


@dataclass
class SentenceEmbeddingOutput(ModelOutput):
    """Unit vectors of texts, and the loss where those of a teacher are given."""

    loss: Tensor | None = None
    embeddings: Tensor | None = None  # (B, D)


class AdeForSentenceEmbedding(AdePreTrainedModel):
    """An encoder of texts: contextual vectors, pooling, one linear layer, unit length."""

    def __init__(self, config: AdeConfig) -> None:
        super().__init__(config)
        self.ade = AdeModel(config)
        bits, packed = (Packing(**config.packing).layer_bits if config.packing else 0), bool(config.packed)
        self.pooler = linear(config.hidden_size, 1, bits, packed).requires_grad_(config.pooling == "attention")
        self.output = linear(config.hidden_size, config.output_size, bits, packed)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_: Any
    ) -> SentenceEmbeddingOutput:
        """Return unit vectors (B, D), and the loss where the unit vectors (B, D) of a teacher are given as labels."""
        vectors = self.vectors(*self.ade.states(*real_tokens(input_ids, attention_mask)))
        return SentenceEmbeddingOutput(None if labels is None else embedding_loss(vectors, labels), vectors)

    def vectors(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the unit vectors (B, D) of texts from contextual vectors (B, T, d), of which `mask` are real."""
        weights = pooling_weights(self.pooler if self.config.pooling == "attention" else None, states, mask)
        return F.normalize(self.output((weights.unsqueeze(1) @ states).squeeze(1)).float(), dim=1)


def embedding_loss(vectors: Tensor, wanted: Tensor) -> Tensor:
    """Return how far unit vectors (B, D) are from the wanted ones, each and in their similarities to one another.

    The similarities are those of whole vectors and of vectors truncated to a fourth, which shall have the whole ones'.
    """
    wanted = F.normalize(wanted.to(vectors.dtype), dim=1)
    similarities = wanted @ wanted.T  # (B, B)
    short = F.normalize(vectors[:, : max(1, vectors.shape[1] // SHORT)], dim=1)
    pairs = torch.stack([_squared_difference(each, similarities) for each in (vectors, short)]).mean()
    return (1 - (vectors * wanted).sum(1)).mean() + SIMILARITY * pairs


def _squared_difference(vectors: Tensor, similarities: Tensor) -> Tensor:
    return (vectors @ vectors.T - similarities).square().mean()
