"""The model: grouped positions, the Segment-Aware Transformer (SAT), attention pooling, a head.

The setting `attend` chooses between two readings of the paper:
  tokens   anchors are summed into tokens, SAT attends over L tokens (Algorithm 1 as printed)
  anchors  SAT attends over the expanded anchor sequence of length sum k_i (the paper's SAT section)
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils import ModelOutput

from ade.configuration import CLASSIFIER, ENCODER, FEED_FORWARD, TAGGER
from ade.data.problems import MULTI, REGRESSION
from ade.embedding import AnchorEmbedding, LexiconLayer, Positions, linear, real_tokens, table_layer
from ade.folder import Saved
from ade.huggingface_config import AdeConfig
from ade.pretrained import AdePreTrainedModel

EXPECTED_TOKENS = 4096  # tokens whose positions are made at once
SIMILARITY = 5.0  # weight of the batch's similarities in an encoder's loss
SHORT = 4  # vectors truncated to a fourth count too, so that they can be truncated in use


class SegmentAwareTransformer(nn.Module):
    """SAT: one multi-head self-attention, no feed-forward block; 4 (d^2 + d) parameters."""

    def __init__(self, dim: int, heads: int, bits: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.projection = linear(dim, 3 * dim, bits)  # W^Q, W^K, W^V side by side
        self.output = linear(dim, dim, bits)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the attention output (B, T, d) of elements (B, T, d), without the residual connection."""
        split = self.projection(x).view(*x.shape[:2], 3, self.heads, x.shape[2] // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, H, T, d / H)
        heads = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])  # (B, H, T, d / H)
        return self.output(heads.transpose(1, 2).reshape(x.shape))


class TransformerLayer(nn.Module):
    """A layer after SAT: attention and a feed-forward block, each after a LayerNorm and with a residual."""

    def __init__(self, dim: int, heads: int, bits: int = 0) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.sat = SegmentAwareTransformer(dim, heads, bits)
        self.inner = linear(dim, FEED_FORWARD * dim, bits)
        self.outer = linear(FEED_FORWARD * dim, dim, bits)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the layer's output (B, T, d) for elements (B, T, d)."""
        x = x + self.sat(self.attention_norm(x), mask)
        return x + self.outer(F.relu(self.inner(self.norm(x))))


class AdeModel(AdePreTrainedModel):
    """Table, positions and SAT: token ids -> contextual vectors of the elements SAT attends over."""

    def __init__(self, saved: Saved) -> None:
        super().__init__(saved)
        config, dim = saved.config, saved.table.dim
        self.embedding = table_layer(saved.table)
        self.norm = nn.LayerNorm(dim)
        scale = 0.0 if config.positions == "none" else config.position_scale
        expected = min(config.max_tokens, EXPECTED_TOKENS) + 16  # batches are padded a little
        self.positions = Positions(dim, scale, expected)
        self.sat = SegmentAwareTransformer(dim, config.heads, config.layer_bits) if config.sat else None
        further = (TransformerLayer(dim, config.heads, config.layer_bits) for _ in range(config.layers - 1))
        self.layers = nn.ModuleList(further)
        self.dropout = nn.Dropout(config.dropout)
        self.load_layers(saved)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        """Return contextual vectors of the tokens: (B, L, d)."""
        return BaseModelOutput(last_hidden_state=self.token_states(input_ids, attention_mask))

    def token_states(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return contextual vectors of the tokens (B, L, d); over anchors, the mean of each token's."""
        length = ids.shape[1]
        states, real, word = self.states(ids, mask)
        if word is not None:
            length, there = max(1, length), real.unsqueeze(2).to(states.dtype)
            states = sum_by_token(states * there, word, length) / sum_by_token(there, word, length).clamp(min=1)
        return states[:, : ids.shape[1]]

    def states(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return contextual vectors (B, T, d) of the elements SAT attends over, and the mask (B, T) of the real ones.

        In `anchors` mode also the token of each element (B, T); None where elements are tokens.
        """
        ids, mask = real_tokens(ids, mask)
        mask = self._drop_tokens(mask)
        word = None
        if self.settings.attend == "anchors":
            states, mask, word = self._anchors(ids, mask)
        else:
            states = self._tokens(ids)
        if self.sat is not None:
            states = states + self.sat(states, mask)
        for layer in self.layers:
            states = layer(states, mask)
        return states, mask, word

    def _tokens(self, ids: Tensor) -> Tensor:
        """Algorithm 1: anchors are added up, then normalised: (B, L, d)."""
        # Each distinct token is composed once: finding them makes a GPU wait, and fails in ONNX.
        every = ids.is_cuda or torch.onnx.is_in_onnx_export()
        types, inverse = (ids.flatten(), None) if every else ids.unique(return_inverse=True)
        rows = self.norm(self.embedding(types).to(self.norm.weight.dtype))  # (U, d)
        tokens = rows.view(*ids.shape, -1) if inverse is None else F.embedding(inverse, rows)
        return self.dropout(tokens + self.positions(ids.shape[1], rows))  # (B, L, d)

    def _anchors(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Section SAT: the anchors of all tokens, one after the other: (B, T, d), with mask and token of each."""
        assert isinstance(self.embedding, AnchorEmbedding)
        anchor, weight, word, mask = self.embedding.expand(ids, mask)
        grouped = self.settings.positions == "grouped"
        encodings = self.positions(ids.shape[1] if grouped else anchor.shape[1], self.norm.weight)
        if encodings.ndim:
            encodings = F.embedding(word, encodings) if grouped else encodings
        # The anchor is normalised, then scaled: LayerNorm of beta * a would forget beta.
        element = F.embedding(anchor, self.norm(self.embedding.all_anchors())) * weight.unsqueeze(2)
        return self.dropout(element + encodings), mask, word

    def _drop_tokens(self, mask: Tensor) -> Tensor:
        """Token dropout: in training, mask a random fraction (up to `token_dropout`) of each text, never its first."""
        if not self.training or self.settings.token_dropout == 0:
            return mask
        fraction = torch.rand(len(mask), 1, device=mask.device) * self.settings.token_dropout
        kept = torch.rand(mask.shape, device=mask.device) >= fraction
        first = mask.cumsum(1) == 1  # padding may come before it
        return mask & (kept | first)


class ModelWithHead(AdePreTrainedModel):
    """A model whose head reads one pooled vector a text or, of a tagger, the vector of each token."""

    def __init__(self, saved: Saved) -> None:
        super().__init__(saved)
        self.ade = AdeModel(saved)
        config, dim = saved.config, saved.table.dim
        if config.pools:
            self.pooler = linear(dim, 1, config.layer_bits).requires_grad_(config.pooling == "attention")
        self.dropout = nn.Dropout(0.0 if self.kind == ENCODER else config.dropout)
        self.head = linear(dim, config.outputs, config.layer_bits)
        self.lexicon = LexiconLayer(saved.lexicon) if saved.lexicon is not None else None
        self.load_layers(saved)

    def pooled(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return the mean of a text's elements by their pooling weights: (B, d).

        Attention reads the first tokens of a text, a lexicon all of it.
        """
        read = slice(self.settings.max_tokens)
        states, real, _ = self.ade.states(ids[:, read], None if mask is None else mask[:, read])  # (B, T, d), (B, T)
        return self.pool(states, real)

    def pool(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the mean of elements (B, T, d) by their pooling weights: (B, d)."""
        return (self.pooling_weights(states, mask).unsqueeze(1) @ states).squeeze(1)

    def pooling_weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the weight of each element in the pooled vector, (B, T): a softmax of scores, or equal weights."""
        if self.settings.pooling == "mean":
            return (mask / mask.sum(1, keepdim=True)).to(states.dtype)
        return self.pooler(states).squeeze(2).masked_fill(~mask, -torch.inf).softmax(1)

    def token_scores(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return pooling weights (B, L) and scores (B, L, C), the bias included, of tokens, without the lexicon."""
        states, real, word = self.ade.states(ids, mask)
        weights = self.pooling_weights(states, real).float().unsqueeze(2)  # (B, T, 1)
        scores = self.head(states).float() * self.settings.deviation + self.settings.mean  # (B, T, C)
        if word is not None:  # a token has several elements
            added, weights = (sum_by_token(each, word, ids.shape[1]) for each in (weights * scores, weights))
            scores = added / weights.clamp(min=1e-12)
        return weights.squeeze(2), scores


class AdeForSequenceClassification(ModelWithHead):
    """The paper's classifier: contextual vectors, attention pooling, dropout, one linear layer."""

    kind = CLASSIFIER

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        """Return scores (B, C), and the loss where labels are given.

        Labels are class numbers (B,), probabilities (B, C), or the numbers (B,) of a regression.
        """
        ids, mask = real_tokens(input_ids, attention_mask)
        logits = self.head(self.dropout(self.pooled(ids, mask)))  # (B, C)
        if (self.settings.mean, self.settings.deviation) != (0, 1):
            logits = logits.float() * self.settings.deviation + self.settings.mean
        if self.lexicon is not None:
            logits = logits.float() + self.lexicon(ids, mask)
        loss = None if labels is None else self._loss(logits.float(), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.settings.problem == REGRESSION:
            return F.mse_loss(logits.view_as(labels), labels.to(logits.dtype))
        if self.settings.problem == MULTI:
            labels = labels.to(logits.dtype)
            return F.binary_cross_entropy_with_logits(logits, labels, pos_weight=self.class_weights)
        return F.cross_entropy(logits, labels, self.class_weights)


@dataclass
class SentenceEmbeddingOutput(ModelOutput):
    """Unit vectors of texts, and the loss where those of a teacher are given."""

    loss: Tensor | None = None
    embeddings: Tensor | None = None  # (B, D)


class AdeForSentenceEmbedding(ModelWithHead):
    """An encoder of texts: contextual vectors, pooling, one linear layer, unit length."""

    kind = ENCODER

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_: Any
    ) -> SentenceEmbeddingOutput:
        """Return unit vectors (B, D), and the loss where those of a teacher are given as labels."""
        vectors = self.unit_vectors(self.pooled(input_ids, attention_mask))
        return SentenceEmbeddingOutput(None if labels is None else embedding_loss(vectors, labels), vectors)

    def unit_vectors(self, pooled: Tensor) -> Tensor:
        """Return the unit vectors (B, D) of pooled ones (B, d)."""
        return F.normalize(self.head(pooled).float(), dim=1)


class AdeForTokenClassification(ModelWithHead):
    """A tagger, which labels every token: contextual vectors, dropout, one linear layer."""

    kind = TAGGER

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_: Any
    ) -> TokenClassifierOutput:
        """Return scores (B, L, C), and the cross-entropy of the tokens whose label (B, L) is not -100."""
        logits = self.head(self.dropout(self.ade.token_states(input_ids, attention_mask)))
        if labels is None:
            return TokenClassifierOutput(logits=logits)

        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), self.class_weights)
        return TokenClassifierOutput(loss=loss, logits=logits)

    def token_scores(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return equal weights (B, L) and the scores (B, L, C) of tokens."""
        _, real = real_tokens(ids, mask)
        return real / real.sum(1, keepdim=True), self(ids, mask).logits


TorchModel = AdeForSequenceClassification | AdeForSentenceEmbedding | AdeForTokenClassification
MODELS: dict[str, type[TorchModel]] = {
    each.kind: each for each in (AdeForSequenceClassification, AdeForSentenceEmbedding, AdeForTokenClassification)
}


def model_of(saved: Saved) -> TorchModel:
    """Return a model as a PyTorch module of its kind."""
    return MODELS[saved.config.kind](saved)


def sum_by_token(values: Tensor, word: Tensor, length: int) -> Tensor:
    """Return the sums (B, L, n) of the values (B, T, n) of elements that belong to the tokens `word` (B, T)."""
    sums = values.new_zeros(len(values), length, values.shape[2])
    return sums.scatter_add(1, word.unsqueeze(2).expand_as(values), values)


def embedding_loss(vectors: Tensor, wanted: Tensor) -> Tensor:
    """Return how far unit vectors (B, D) are from the wanted ones, each and in their similarities to one another.

    Vectors truncated to a fourth shall have the similarities of whole ones.
    """
    wanted = F.normalize(wanted.to(vectors.dtype), dim=1)
    similarities = wanted @ wanted.T  # (B, B)
    short = F.normalize(vectors[:, : max(1, vectors.shape[1] // SHORT)], dim=1)
    pairs = torch.stack([F.mse_loss(each @ each.T, similarities) for each in (vectors, short)]).mean()
    return (1 - (vectors * wanted).sum(1)).mean() + SIMILARITY * pairs


AutoModel.register(AdeConfig, AdeModel)
AutoModelForSequenceClassification.register(AdeConfig, AdeForSequenceClassification)
AutoModelForTokenClassification.register(AdeConfig, AdeForTokenClassification)
