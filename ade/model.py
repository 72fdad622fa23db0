"""The model: grouped positions, the Segment-Aware Transformer (SAT), attention pooling, a classifier.

The setting `attend` chooses between three readings of the paper's Algorithm 1:
  tokens   anchors are summed into tokens, SAT attends over L tokens (Algorithm 1 as printed)
  anchors  SAT attends over the expanded anchor sequence of length sum k_i (the paper's SAT section)
  gated    SAT attends over tokens; each token's attention output gates its anchors, then it is composed again
"""

import copy
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput, TokenClassifierOutput

from ade.coded_embedding import CodedDictionary
from ade.config_values import FEED_FORWARD
from ade.configuration import AdeConfig
from ade.data.problems import MULTI, REGRESSION, SINGLE, scale_of
from ade.embedding import (
    DENSE_ANCHORS,
    AnchorEmbedding,
    Dictionary,
    PackedEmbedding,
    linear,
    real_tokens,
)
from ade.lexicon import LexiconShape
from ade.lexicon_layer import LexiconLayer
from ade.packing.format import Packing
from ade.positions import sinusoidal
from ade.pretrained import AdePreTrainedModel


def _scatter_rows(rows: Tensor, inverse: Tensor) -> Tensor:
    """Scatter rows of distinct tokens back to token positions: (B, L, ...); on a GPU they are one per token already."""
    return rows.view(*inverse.shape, -1) if rows.is_cuda else F.embedding(inverse, rows)


class SegmentAwareTransformer(nn.Module):
    """SAT: one multi-head self-attention, no feed-forward block; 4 (d^2 + d) parameters."""

    def __init__(self, dim: int, heads: int, bits: int = 0, packed: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.projection = linear(dim, 3 * dim, bits, packed)  # W^Q, W^K, W^V side by side
        self.output = linear(dim, dim, bits, packed)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the attention output (B, T, d) of elements (B, T, d), without the residual connection."""
        query, key, value = self._split(x)
        heads = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])  # (B, H, T, d / H)
        return self.output(heads.transpose(1, 2).reshape(x.shape))

    def attention(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the attention weights that `forward` uses: (B, H, T, T), queries in rows, keys in columns."""
        query, key, _ = self._split(x)
        scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
        return scores.masked_fill(~mask[:, None, None, :], -torch.inf).softmax(3)

    def _split(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        split = self.projection(x).view(batch, length, 3, self.heads, dim // self.heads)
        return split.permute(2, 0, 3, 1, 4)  # queries, keys and values, each (B, H, T, d / H)


class TransformerLayer(nn.Module):
    """A further layer after SAT: attention and a feed-forward block, each after a LayerNorm and with a residual."""

    def __init__(self, dim: int, heads: int, bits: int = 0, packed: bool = False) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.sat = SegmentAwareTransformer(dim, heads, bits, packed)
        self.inner = linear(dim, FEED_FORWARD * dim, bits, packed)
        self.outer = linear(FEED_FORWARD * dim, dim, bits, packed)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the layer's output (B, T, d) for elements (B, T, d)."""
        x = x + self.sat(self.attention_norm(x), mask)
        return x + self.outer(F.relu(self.inner(self.norm(x))))


class AdeModel(AdePreTrainedModel):
    """Codebook, positions and SAT: token ids -> contextual vectors of the elements SAT attends over."""

    def __init__(self, config: AdeConfig) -> None:
        super().__init__(config)
        packing = Packing(**config.packing) if config.packing else None
        if config.coded:
            self.embedding: Dictionary = CodedDictionary(config.coded, bool(config.packed))
        elif config.packed:
            self.embedding = PackedEmbedding(config.packed)
        else:
            self.embedding = AnchorEmbedding(
                config.vocab_size, config.anchors, config.hidden_size, config.pairs, config.max_pairs, packing
            )
        self.norm = nn.LayerNorm(config.hidden_size)
        bits = packing.layer_bits if packing else 0
        shape = (config.hidden_size, config.num_attention_heads, bits, bool(config.packed))
        self.sat = SegmentAwareTransformer(*shape) if config.sat else None
        self.layers = nn.ModuleList(TransformerLayer(*shape) for _ in range(config.layers - 1))
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        """Return contextual vectors of the tokens: (B, L, d)."""
        return BaseModelOutput(last_hidden_state=self.token_states(input_ids, attention_mask))

    def token_states(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return contextual vectors of the tokens (B, L, d); in `anchors` mode the mean over each token's anchors."""
        length = ids.shape[1]
        ids, mask = real_tokens(ids, mask)
        mask = self._drop_tokens(mask)
        states, real = self._states(ids, mask)  # (B, T, d)
        if self.config.attend != "anchors":
            return states[:, :length]

        word = self.embedding.expand(ids, mask).word.unsqueeze(2)  # (B, T, 1)
        sums = states.new_zeros(*ids.shape, states.shape[2])
        sums = sums.scatter_add(1, word.expand_as(states), states * real.unsqueeze(2))
        counts = states.new_zeros(*ids.shape, 1).scatter_add(1, word, real.unsqueeze(2).to(states.dtype))
        return (sums / counts.clamp(min=1))[:, :length]

    def states(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return contextual vectors (B, T, d) of the elements SAT attends over and the mask (B, T) of the real ones."""
        ids, mask = real_tokens(ids, mask)
        return self._states(ids, self._drop_tokens(mask))

    def _states(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        states, mask = self._first_layer(ids, mask)
        for layer in self.layers:
            states = layer(states, mask)
        return states, mask

    def _first_layer(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if self.sat is not None and self.config.attend == "gated":
            return self._attend_gated(ids, mask), mask
        x, mask = self.elements(ids, mask)
        return (x if self.sat is None else x + self.sat(x, mask)), mask

    def elements(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the elements SAT attends over, tokens or in `anchors` mode anchors, (B, T, d), and their mask."""
        if self.config.attend == "anchors":
            return self._anchors(ids, mask)
        return self._tokens(*self._distinct(ids), self._word_positions(ids)), mask

    def _tokens(self, types: Tensor, inverse: Tensor, position: Tensor) -> Tensor:
        composed = self.embedding.compose(types)  # (U, d): each distinct token is composed once
        rows = self.norm(composed.to(self.norm.weight.dtype))
        return self.dropout(_scatter_rows(rows, inverse) + position)  # (B, L, d)

    def _anchors(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        anchor, weight, word, mask = self.embedding.expand(ids, mask)
        each = torch.arange(anchor.shape[1], device=ids.device)
        position = self._positions(word if self.config.positions == "grouped" else each)
        # The anchor is normalised, then scaled: LayerNorm of beta * a would forget beta.
        element = F.embedding(anchor, self.norm(self.embedding.table())) * weight.unsqueeze(2)
        return self.dropout(element + position), mask  # (B, T, d)

    def _attend_gated(self, ids: Tensor, mask: Tensor) -> Tensor:
        types, inverse = self._distinct(ids)
        position = self._word_positions(ids)
        context = self._context(types, inverse, position, mask)  # (B, L, d)

        # Compose every token again, each of its anchors scaled by a gate.
        anchors = self.embedding.table()
        if len(anchors) <= DENSE_ANCHORS:
            mixture = self.gates(context) * _scatter_rows(self.embedding.coefficients(types), inverse)  # (B, L, K)
            composed = mixture @ anchors
        else:  # gates of all anchors would not fit into memory: only those of the token's own
            index, weight, _ = self.embedding.pairs_of(types)
            own = F.embedding(index[inverse], anchors)  # (B, L, k, d)
            gate = 2 * torch.sigmoid((own @ context.unsqueeze(3)).squeeze(3) / self.config.hidden_size**0.5)
            composed = ((gate * weight[inverse]).unsqueeze(2) @ own).squeeze(2)
        return self.dropout(self.norm(composed) + position) + context

    def context(self, ids: Tensor, mask: Tensor) -> Tensor | None:
        """Return the attention output that gates each token's anchors, (B, L, d); None in a mode without gates."""
        if self.sat is None or self.config.attend != "gated":
            return None
        return self._context(*self._distinct(ids), self._word_positions(ids), mask)

    def _context(self, types: Tensor, inverse: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        assert self.sat is not None
        return self.sat(self._tokens(types, inverse, position), mask)  # (B, L, d)

    def gates(self, context: Tensor) -> Tensor:
        """Return the factor of each anchor's weight in a context (..., d): (..., K), between 0 and 2, 1 is neutral."""
        return 2 * torch.sigmoid(context @ self.embedding.table().T / self.config.hidden_size**0.5)

    def _distinct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return distinct tokens (U,) and the index (B, L) of each token among them.

        On a GPU all tokens are returned as they are: finding the distinct ones would make the CPU wait for the GPU.
        """
        if ids.is_cuda:
            return ids.flatten(), torch.arange(ids.numel(), device=ids.device).view(ids.shape)
        return ids.unique(return_inverse=True)

    def _word_positions(self, ids: Tensor) -> Tensor:
        return self._positions(torch.arange(ids.shape[1], device=ids.device))  # (L, d)

    def _positions(self, positions: Tensor) -> Tensor:
        if self.config.positions == "none" or self.config.position_scale == 0:
            return torch.zeros((), device=positions.device, dtype=self.norm.weight.dtype)
        encoded = self.config.position_scale * sinusoidal(positions, self.config.hidden_size)
        return encoded.to(self.norm.weight.dtype)

    def _drop_tokens(self, mask: Tensor) -> Tensor:
        """Token dropout: in training, mask a random fraction (up to `token_dropout`) of each text, never its first."""
        if not self.training or self.config.token_dropout == 0:
            return mask
        fraction = torch.rand(len(mask), 1, device=mask.device) * self.config.token_dropout
        kept = torch.rand(mask.shape, device=mask.device) >= fraction
        first = mask.cumsum(1) == 1  # padding may come before it
        return mask & (kept | first)


class AdeForSequenceClassification(AdePreTrainedModel):
    """The paper's classifier: contextual vectors, attention pooling, dropout, one linear layer."""

    def __init__(self, config: AdeConfig) -> None:
        super().__init__(config)
        self.ade = AdeModel(config)
        bits, packed = (Packing(**config.packing).layer_bits if config.packing else 0), bool(config.packed)
        self.pooler = linear(config.hidden_size, 1, bits, packed).requires_grad_(config.pooling == "attention")
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = linear(config.hidden_size, config.num_labels, bits, packed)
        self.lexicon = LexiconLayer(config.lexicon) if config.lexicon else None
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        """Return class logits (B, C), and the loss where labels are given.

        Labels are class numbers (B,), probabilities (B, C), or the numbers (B,) of a regression.
        """
        ids, mask = real_tokens(input_ids, attention_mask)
        logits = self._over_windows(ids, mask)  # (B, C)

        mean, deviation = scale_of(self.config.problem_type, self.config.scale)
        if (mean, deviation) != (0, 1):
            logits = logits.float() * deviation + mean
        if self.lexicon is not None:
            logits = logits.float() + self.lexicon(ids, mask)

        loss = None if labels is None else self._loss(logits.float(), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _over_windows(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return class scores (B, C): the mean over windows of `max_tokens`, weighted by their number of tokens."""
        size, (batch, length) = self.config.max_tokens, ids.shape
        if length <= size:
            return self._scores(ids, mask)
        count = -(-length // size)  # windows of a text
        ids, mask = (F.pad(tensor, (0, count * size - length)).view(-1, size) for tensor in (ids, mask))

        tokens = mask.sum(1)  # (B * count,): of each window
        filled = tokens.nonzero()[:, 0]
        scores = self._scores(ids[filled], mask[filled]) * tokens[filled].unsqueeze(1)
        sums = scores.new_zeros(batch, scores.shape[1]).index_add(0, filled // count, scores)
        return sums / tokens.view(batch, count).sum(1, keepdim=True)

    def _scores(self, ids: Tensor, mask: Tensor) -> Tensor:
        states, mask = self.ade.states(ids, mask)  # (B, T, d), (B, T)
        return self.classifier(self.dropout(self.pool(states, mask)))  # (B, C)

    def attach_lexicon(self, shape: LexiconShape, arrays: Mapping[str, np.ndarray]) -> None:
        """Add the scores of a fitted lexicon to the model's own."""
        self.config.lexicon = shape.as_dict()
        self.lexicon = LexiconLayer(self.config.lexicon)
        self.lexicon.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
        self.lexicon.to(self.device)

    def without_lexicon(self) -> Self:
        """A copy of the model that adds no n-gram scores."""
        made = copy.deepcopy(self)
        made.lexicon, made.config.lexicon = None, None
        return made

    @property
    def lexicon_nbytes(self) -> int:
        """Bytes of the stored lexicon; 0 without one."""
        return 0 if self.lexicon is None else sum(buffer.nbytes for buffer in self.lexicon.buffers())

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss for the config's `problem_type`, which is inferred from the labels where it is not set."""
        config = self.config
        if config.problem_type is None:  # as transformers infers it
            classification = MULTI if labels.is_floating_point() else SINGLE
            config.problem_type = REGRESSION if config.num_labels == 1 else classification

        if config.problem_type == REGRESSION:
            return F.mse_loss(logits.view_as(labels), labels.to(logits.dtype))
        weight = self._class_weights(logits)
        if config.problem_type == MULTI:
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), pos_weight=weight)
        return F.cross_entropy(logits, labels, weight)

    def pool(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the mean of the elements (B, T, d) by their pooling weights: (B, d)."""
        return (self.pooling_weights(states, mask).unsqueeze(1) @ states).squeeze(1)

    def pooling_weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the weight of each element in the pooled vector, (B, T): a softmax of scores, or equal weights."""
        return pooling_weights(self.pooler if self.config.pooling == "attention" else None, states, mask)


def pooling_weights(pooler: nn.Module | None, states: Tensor, mask: Tensor) -> Tensor:
    """Return a softmax of the scores that a layer gives the elements (B, T, d), or equal weights: (B, T)."""
    if pooler is None:
        return (mask / mask.sum(1, keepdim=True)).to(states.dtype)
    return pooler(states).squeeze(2).masked_fill(~mask, -torch.inf).softmax(1)


class AdeForTokenClassification(AdePreTrainedModel):
    """A tagger, which labels every token: contextual vectors, dropout, one linear layer."""

    def __init__(self, config: AdeConfig) -> None:
        super().__init__(config)
        self.ade = AdeModel(config)
        bits = Packing(**config.packing).layer_bits if config.packing else 0
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = linear(config.hidden_size, config.num_labels, bits, bool(config.packed))
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_: Any
    ) -> TokenClassifierOutput:
        """Return logits (B, L, C), and the cross-entropy of the tokens whose label (B, L) is not -100."""
        logits = self.classifier(self.dropout(self.ade.token_states(input_ids, attention_mask)))
        if labels is None:
            return TokenClassifierOutput(logits=logits)

        flat, target = logits.float().flatten(0, 1), labels.flatten()  # (B L, C), (B L,)
        weight, labelled = self._class_weights(flat), target >= 0
        total = F.cross_entropy(flat, target, weight, reduction="sum")
        counted = labelled.sum() if weight is None else (weight[target.clamp(min=0)] * labelled).sum()
        loss = total / counted.clamp(min=1e-6)  # 0, not NaN, where no token has a label
        return TokenClassifierOutput(loss=loss, logits=logits)


AutoModel.register(AdeConfig, AdeModel)
AutoModelForSequenceClassification.register(AdeConfig, AdeForSequenceClassification)
AutoModelForTokenClassification.register(AdeConfig, AdeForTokenClassification)
