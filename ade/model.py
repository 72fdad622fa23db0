"""The model: grouped positions, the Segment-Aware Transformer (SAT), attention pooling, a classifier.

The paper's Algorithm 1 in three readings, one setting `attend`:
  tokens   anchors are summed into tokens, SAT attends over L tokens (Algorithm 1 as printed)
  anchors  SAT attends over the expanded anchor sequence of length sum k_i (the paper's SAT section)
  gated    SAT attends over tokens; what each token hears gates its own anchors, and it is composed again
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput, TokenClassifierOutput

from ade.codebook import Codebook
from ade.configuration import AdeConfig
from ade.data.problems import MULTI, REGRESSION, SINGLE, scale_of
from ade.embedding import (
    DENSE_ANCHORS,
    AnchorEmbedding,
    Dictionary,
    LexiconLayer,
    PackedEmbedding,
    PackedLinear,
    linear,
    real_tokens,
)
from ade.lexicon import LexiconShape
from ade.packing.bits import pack_layer
from ade.packing.format import Packing, check, pack
from ade.settings import Architecture


def sinusoidal(positions: Tensor, dim: int) -> Tensor:
    """Sinusoidal encodings of integer positions of any shape: (..., dim), sines and cosines in turn."""
    half = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32)
    angle = positions.unsqueeze(-1).float() * torch.exp(half * (-math.log(10000.0) / dim))
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :dim]


def grouped_positions(counts: Tensor) -> Tensor:
    """GPE's position indices: word i repeated k_i times, [3, 1, 4] -> [0, 0, 0, 1, 2, 2, 2, 2]."""
    return torch.repeat_interleave(counts.clamp(min=1))


def _spread(rows: Tensor, place: Tensor) -> Tensor:
    """Rows of distinct tokens put where the tokens stand: (B, L, ...); on a GPU each token has a row already."""
    return rows.view(*place.shape, -1) if rows.is_cuda else F.embedding(place, rows)


class SegmentAwareTransformer(nn.Module):
    """SAT: one multi-head self-attention, no feed-forward block; 4 (d^2 + d) parameters."""

    def __init__(self, dim: int, heads: int, bits: int = 0, packed: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.projection = linear(dim, 3 * dim, bits, packed)  # W^Q, W^K, W^V side by side
        self.output = linear(dim, dim, bits, packed)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """What each element of (B, T, d) hears from the unmasked ones, before it is added to the element."""
        query, key, value = self._split(x)
        heard = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        return self.output(heard.transpose(1, 2).reshape(x.shape))

    def attention(self, x: Tensor, mask: Tensor) -> Tensor:
        """How much of what each element hears comes from each other one: (B, H, T, T), the softmax `forward` uses."""
        query, key, _ = self._split(x)
        scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
        return scores.masked_fill(~mask[:, None, None, :], -torch.inf).softmax(3)

    def _split(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        split = self.projection(x).view(batch, length, 3, self.heads, dim // self.heads)
        return split.permute(2, 0, 3, 1, 4)  # queries, keys and values, each (B, H, T, d / H)


class AdePreTrainedModel(PreTrainedModel):
    """What every ADE model shares with transformers: its config and how fresh weights start."""

    config_class = AdeConfig
    base_model_prefix = "ade"
    accepts_loss_kwargs = False  # the loss is a mean: Trainer divides it where it accumulates
    _weights: tuple[Any, Tensor] | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything stored, for numpy: what is packed as it is, the rest in float32."""
        tensors = {name: tensor.detach().cpu() for name, tensor in self.state_dict().items()}
        return {name: (t.float() if t.is_floating_point() else t).numpy() for name, t in tensors.items()}

    @classmethod
    def from_codebook(
        cls,
        codebook: Codebook,
        labels: Sequence[str] = ("value",),
        architecture: Architecture | None = None,
        **more: Any,
    ) -> Self:
        """A fresh model on top of a codebook; `more` is problem, dropout and whatever else `AdeConfig` has."""
        architecture, packing = architecture or Architecture(), codebook.packing
        config = AdeConfig(
            vocab_size=codebook.vocabulary,
            hidden_size=codebook.dim,
            anchors=len(codebook.anchors),
            pairs=len(codebook.indices),
            max_pairs=codebook.max_pairs,
            id2label=dict(enumerate(labels)),
            label2id={name: i for i, name in enumerate(labels)},
            attend=architecture.attend,
            sat=architecture.sat,
            positions=architecture.positions,
            pooling=architecture.pooling,
            num_attention_heads=architecture.heads or None,
            max_tokens=architecture.max_tokens,
            packing=None if packing is None else replace(packing, layer_bits=architecture.layer_bits).as_dict(),
            **more,
        )
        model = cls(config)
        layer = model.base_model.embedding
        assert isinstance(layer, AnchorEmbedding)
        layer.load_codebook(codebook)
        return model

    @torch.no_grad()
    def packed(self) -> Self:
        """The same model in as few bits as its packing says; itself, where it has none or is packed already."""
        if not self.config.packing or self.config.packed:
            return self
        packing = Packing(**self.config.packing)
        state, inside = self.arrays(), "embedding." if self.base_model is self else "ade.embedding."
        anchors, indices, weights, counts = (
            state.pop(inside + name) for name in ("anchors", "indices", "weights", "counts")
        )
        shape, arrays = pack(anchors, indices, weights, counts.astype(np.int64), packing)
        kept = {inside + name: array for name, array in arrays.items()}
        for name, array in state.items():
            layer = name.removesuffix(".weight")
            if array.ndim == 2 and layer != name:
                kept[name], kept[f"{layer}.scales"] = pack_layer(array, packing.layer_bits)
            else:
                kept[name] = array
        check(shape, arrays)
        made = type(self)(AdeConfig.from_dict({**self.config.to_dict(), "packed": asdict(shape)}))
        made.load_state_dict({name: torch.from_numpy(array) for name, array in kept.items()})
        return made.to(self.device).eval()

    def _class_weights(self, like: Tensor) -> Tensor | None:
        """How much each class counts in the loss, on the device; kept, since no recorded step could make it.

        Weights of other classes than the model has, as under a new head, say nothing.
        """
        given = self.config.class_weights
        if given is None or len(given) != like.shape[-1]:
            return None
        wanted = (tuple(given), like.device, like.dtype)
        if self._weights is None or self._weights[0] != wanted:
            with torch.inference_mode(False):
                self._weights = (wanted, torch.tensor(given, device=like.device, dtype=like.dtype))
        return self._weights[1]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            if not getattr(module.weight, "_is_hf_initialized", False):
                nn.init.xavier_uniform_(module.weight)
            if module.bias is not None and not getattr(module.bias, "_is_hf_initialized", False):
                nn.init.zeros_(module.bias)
        elif isinstance(module, PackedLinear) and not getattr(module.bias, "_is_hf_initialized", False):
            for tensor in (*module.buffers(), *module.parameters()):  # a head of another size starts with nothing
                nn.init.zeros_(tensor)
        elif isinstance(module, nn.LayerNorm) and not getattr(module.weight, "_is_hf_initialized", False):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, AnchorEmbedding) and not getattr(module.anchors, "_is_hf_initialized", False):
            nn.init.normal_(module.anchors)
            nn.init.normal_(module.weights)


class AdeModel(AdePreTrainedModel):
    """Codebook, positions and SAT: token ids -> contextual vectors of the elements SAT attends over."""

    def __init__(self, config: AdeConfig) -> None:
        super().__init__(config)
        packing = Packing(**config.packing) if config.packing else None
        if config.packed:
            self.embedding: Dictionary = PackedEmbedding(config.packed)
        else:
            self.embedding = AnchorEmbedding(
                config.vocab_size, config.anchors, config.hidden_size, config.pairs, config.max_pairs, packing
            )
        self.norm = nn.LayerNorm(config.hidden_size)
        bits = packing.layer_bits if packing else 0
        shape = (config.hidden_size, config.num_attention_heads, bits, bool(config.packed))
        self.sat = SegmentAwareTransformer(*shape) if config.sat else None
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        """Contextual vectors of the tokens: (B, L, d)."""
        return BaseModelOutput(last_hidden_state=self.token_states(input_ids, attention_mask))

    def token_states(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Contextual vectors of the tokens (B, L, d); in `anchors` mode each is the mean of its anchors'."""
        return self._token_states(*real_tokens(ids, mask))[:, : ids.shape[1]]

    def _token_states(self, ids: Tensor, mask: Tensor) -> Tensor:
        mask = self._visible(mask)
        states, there = self._states(ids, mask)  # (B, T, d)
        if self.config.attend != "anchors":
            return states
        word = self.embedding.expand(ids, mask)[2].unsqueeze(2)  # (B, T, 1)
        sums = states.new_zeros(*ids.shape, states.shape[2])
        sums = sums.scatter_add(1, word.expand_as(states), states * there.unsqueeze(2))
        counts = states.new_zeros(*ids.shape, 1).scatter_add(1, word, there.unsqueeze(2).to(states.dtype))
        return sums / counts.clamp(min=1)

    def states(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Contextual vectors (B, T, d) and the mask (B, T) of the real ones."""
        ids, mask = real_tokens(ids, mask)
        return self._states(ids, self._visible(mask))

    def _states(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if self.sat is not None and self.config.attend == "gated":
            types, place = self._types(ids)
            return self._attend_gated(types, place, self._each_position(ids), mask), mask
        x, mask = self.elements(ids, mask)
        return (x if self.sat is None else x + self.sat(x, mask)), mask

    def elements(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What SAT attends over, (B, T, d), and its mask: one element for each token, or for each of its anchors."""
        if self.config.attend == "anchors":
            return self._anchors(ids, mask)
        types, place = self._types(ids)  # the look-up runs once for each distinct token
        return self._tokens(types, place, self._each_position(ids)), mask

    def _tokens(self, types: Tensor, place: Tensor, position: Tensor) -> Tensor:
        rows = self.norm(self.embedding.compose(types))  # (U, d)
        return self.dropout(_spread(rows, place) + position)  # (B, L, d)

    def _anchors(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        anchor, weight, word, mask = self.embedding.expand(ids, mask)
        each = torch.arange(anchor.shape[1], device=ids.device)
        position = self._positions(word if self.config.positions == "grouped" else each)
        # The anchor is normalised, then scaled: LayerNorm of beta * a would forget beta.
        element = F.embedding(anchor, self.norm(self.embedding.table())) * weight.unsqueeze(2)
        return self.dropout(element + position), mask  # (B, T, d)

    def _attend_gated(self, types: Tensor, place: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        heard = self._context(types, place, position, mask)
        anchors = self.embedding.table()
        if len(anchors) <= DENSE_ANCHORS:
            mixture = self.gates(heard) * _spread(self.embedding.coefficients(types), place)  # (B, L, K)
            composed = mixture @ anchors
        else:  # too many anchors to weigh them all: only a token's own
            index, weight, _ = self.embedding.pairs_of(types)
            own = F.embedding(index[place], anchors)  # (B, L, k, d)
            gate = 2 * torch.sigmoid((own @ heard.unsqueeze(3)).squeeze(3) / self.config.hidden_size**0.5)
            composed = ((gate * weight[place]).unsqueeze(2) @ own).squeeze(2)
        return self.dropout(self.norm(composed) + position) + heard

    def heard(self, ids: Tensor, mask: Tensor) -> Tensor | None:
        """What gates each token's anchors: (B, L, d); nothing in a mode without gates."""
        if self.sat is None or self.config.attend != "gated":
            return None
        return self._context(*self._types(ids), self._each_position(ids), mask)

    def _context(self, types: Tensor, place: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        assert self.sat is not None
        return self.sat(self._tokens(types, place, position), mask)  # (B, L, d)

    def gates(self, heard: Tensor) -> Tensor:
        """How much a context turns each anchor up or down: between 0 and 2, 1 where it says nothing."""
        return 2 * torch.sigmoid(heard @ self.embedding.table().T / self.config.hidden_size**0.5)  # (..., K)

    def _types(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Distinct tokens and where each token finds its own; on a GPU the tokens themselves, which needs no sync."""
        if ids.is_cuda:
            return ids.flatten(), torch.arange(ids.numel(), device=ids.device).view(ids.shape)
        return ids.unique(return_inverse=True)

    def _each_position(self, ids: Tensor) -> Tensor:
        return self._positions(torch.arange(ids.shape[1], device=ids.device))  # (L, d)

    def _positions(self, positions: Tensor) -> Tensor:
        if self.config.positions == "none" or self.config.position_scale == 0:
            return torch.zeros((), device=positions.device, dtype=self.norm.weight.dtype)
        encoded = self.config.position_scale * sinusoidal(positions, self.config.hidden_size)
        return encoded.to(self.norm.weight.dtype)

    def _visible(self, mask: Tensor) -> Tensor:
        """Whole-token dropout: while training each text loses a random share of its tokens, never the first."""
        if not self.training or self.config.token_dropout == 0:
            return mask
        share = torch.rand(len(mask), 1, device=mask.device) * self.config.token_dropout
        kept = torch.rand(mask.shape, device=mask.device) >= share
        return mask & (kept | (mask.cumsum(1) == 1))  # wherever the first stands: padding may come before it


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
        """Class logits, and the loss where labels are given: classes (B,), probabilities (B, C), numbers (B,)."""
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
        """Class scores (B, C); of texts longer than `max_tokens` the mean over windows, weighted by their tokens."""
        size, (batch, length) = self.config.max_tokens, ids.shape
        if length <= size:
            return self._scores(ids, mask)
        count = -(-length // size)
        ids, mask = (F.pad(tensor, (0, count * size - length)).view(-1, size) for tensor in (ids, mask))
        tokens = mask.sum(1)  # (B * count,): of each window
        there = tokens.nonzero()[:, 0]
        scores = self._scores(ids[there], mask[there]) * tokens[there].unsqueeze(1)
        sums = scores.new_zeros(batch, scores.shape[1]).index_add(0, there // count, scores)
        return sums / tokens.view(batch, count).sum(1, keepdim=True)

    def _scores(self, ids: Tensor, mask: Tensor) -> Tensor:
        states, mask = self.ade.states(ids, mask)  # (B, T, d), (B, T)
        return self.classifier(self.dropout(self.pool(states, mask)))  # (B, C)

    def attach_lexicon(self, shape: LexiconShape, arrays: Mapping[str, np.ndarray]) -> None:
        """Add a fitted lexicon's scores to the model's from now on."""
        self.config.lexicon = shape.as_dict()
        self.lexicon = LexiconLayer(self.config.lexicon)
        self.lexicon.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
        self.lexicon.to(self.device)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """By the problem the config states; where it does not, by what the labels look like, as transformers does."""
        config = self.config
        if config.problem_type is None:
            several = MULTI if labels.is_floating_point() else SINGLE
            config.problem_type = REGRESSION if config.num_labels == 1 else several
        if config.problem_type == REGRESSION:
            return F.mse_loss(logits.view_as(labels), labels.to(logits.dtype))
        weight = self._class_weights(logits)
        if config.problem_type == MULTI:
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), pos_weight=weight)
        return F.cross_entropy(logits, labels, weight)

    def pool(self, states: Tensor, mask: Tensor) -> Tensor:
        """The elements' mean, weighted by how much the pooler listens to each."""
        return (self.listening(states, mask).unsqueeze(1) @ states).squeeze(1)  # (B, d)

    def listening(self, states: Tensor, mask: Tensor) -> Tensor:
        """The share of the pooled vector each element has: a softmax over one score an element, or all alike."""
        if self.config.pooling == "mean":
            return (mask / mask.sum(1, keepdim=True)).to(states.dtype)  # (B, T)
        return self.pooler(states).squeeze(2).masked_fill(~mask, -torch.inf).softmax(1)  # (B, T)


class AdeForTokenClassification(AdePreTrainedModel):
    """A label for every token: contextual vectors, dropout, one linear layer."""

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
        """Logits (B, L, C), and the cross-entropy of the tokens whose label (B, L) is not -100."""
        logits = self.classifier(self.dropout(self.ade.token_states(input_ids, attention_mask)))
        if labels is None:
            return TokenClassifierOutput(logits=logits)
        flat, wanted = logits.float().flatten(0, 1), labels.flatten()  # (B L, C), (B L,)
        weight = self._class_weights(flat)
        total = F.cross_entropy(flat, wanted, weight, reduction="sum")
        known = wanted >= 0
        counted = known.sum() if weight is None else (weight[wanted.clamp(min=0)] * known).sum()
        loss = total / counted.clamp(min=1e-6)  # nothing, not NaN, where no token has a label
        return TokenClassifierOutput(loss=loss, logits=logits)


def count_parameters(dim: int = 768, labels: int = 4, anchors: int = 100) -> dict[str, int]:
    """The paper's parameter table, counted on a real model; anchors and pairs are frozen, so not in the total."""
    with torch.device("meta"):
        config = AdeConfig(vocab_size=anchors, hidden_size=dim, anchors=anchors, max_pairs=1, num_labels=labels)
        model = AdeForSequenceClassification(config)
    assert model.ade.sat is not None
    assert isinstance(model.ade.embedding, AnchorEmbedding)
    parts = {
        "contextualizer": model.ade.sat,
        "layernorm": model.ade.norm,
        "pooler": model.pooler,
        "classifier": model.classifier,
    }
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
    return {
        **counts,
        "total_trainable": sum(counts.values()),
        "anchors_frozen": model.ade.embedding.anchors.numel(),
    }


AutoModel.register(AdeConfig, AdeModel)
AutoModelForSequenceClassification.register(AdeConfig, AdeForSequenceClassification)
AutoModelForTokenClassification.register(AdeConfig, AdeForTokenClassification)
