"""Tables for exact inference: everything linear in a trained model multiplied together once, with numpy alone.

Everything between the look-up and the attention softmax is linear in the layer's input x = row + position, and
everything after the softmax is linear in the attention output. So one matrix B gives all that is needed of a row:

  query and key of every head         (the scale of the attention scores and the biases included)
  value of every head                 its part of the pooling score and of the class scores, W_c W_o W_v x; the plain
                                      value vector in `gated` mode, or where that is shorter
  own scores                          what the row adds to these scores through the residual connection, W_c x

`row B` is kept per token type (`tokens`, `gated`) or per anchor (`anchors`), `position B` per position. In `gated` mode
a token is composed again from gated anchors; LayerNorm of that sum needs no vector, only the Gram matrix of the
token's own few anchors. W is the number of columns of B, K the number of anchors, k the most pairs of a token, C the
number of labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from ade.config_values import EPSILON, check_config
from ade.data.problems import scale_of
from ade.errors import InputError
from ade.packing.bits import layer_weight
from ade.packing.coded import NO_PAIRS, CodedRows
from ade.packing.pairs import Pairs, stored_rows
from ade.positions import sinusoidal
from ade.runtime.depth import Dense, Depth, read_layers

MAX_GRAM_ANCHORS = 2048  # up to here the inner products of all anchors are kept


@dataclass(frozen=True)
class Options:
    """The part of a model's configuration that inference depends on."""

    attend: str  # "tokens", "anchors" or "gated"
    sat: bool  # whether there is an attention layer
    heads: int
    mean_pooling: bool
    grouped_positions: bool  # an anchor has the position of its word, not one of its own
    position_scale: float  # 0 without positions
    max_tokens: int
    target_mean: float  # of a regression model; 0 and 1 otherwise
    target_scale: float

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Options":
        """Read the configuration of a model."""
        sat, attend, positions = bool(config["sat"]), str(config["attend"]), config["positions"]
        if not sat and attend == "gated":
            attend = "tokens"  # the gates are computed from the attention output: there is none
        mean, scale = scale_of(config.get("problem_type"), config.get("scale"))
        return cls(
            attend=attend,
            sat=sat,
            heads=int(config["num_attention_heads"]),
            mean_pooling=config["pooling"] == "mean",
            grouped_positions=positions == "grouped",
            position_scale=0.0 if positions == "none" else float(config["position_scale"]),
            max_tokens=int(config["max_tokens"]),
            target_mean=mean,
            target_scale=scale,
        )

    @property
    def gated(self) -> bool:
        """Whether tokens are composed again from gated anchors."""
        return self.attend == "gated"

    @property
    def expanded(self) -> bool:
        """Whether attention runs over anchors instead of tokens."""
        return self.attend == "anchors"


@dataclass(frozen=True)
class Columns:
    """Which columns of a row hold what. Slices of parts a model does not have are empty."""

    query: slice  # d: the heads side by side
    key: slice  # d
    value: slice  # H value_width
    own_scores: slice  # 1 + C: pooling score, class scores
    anchors: slice  # k, only of token types in `gated` mode, like what follows: numbers of the token's anchors
    direct: slice  # k (1 + C): what each anchor adds to the scores, before the division by the standard deviation
    gram: slice  # k k: inner products of the token's weighted anchors

    @classmethod
    def of(cls, attention_width: int, values: int, scores: int, gated_pairs: int) -> "Columns":
        """The slices one after the other; `gated_pairs` is k in `gated` mode and 0 otherwise."""
        k = gated_pairs
        widths = (attention_width, attention_width, values, scores, k, k * scores, k * k)
        return cls(*(slice(start, stop) for start, stop in pairwise(accumulate(widths, initial=0))))

    @property
    def projected(self) -> int:
        """W: the number of columns made by B, which come first."""
        return int(self.own_scores.stop)

    @property
    def total(self) -> int:
        """The number of columns of a token type's row."""
        return int(self.gram.stop)


@dataclass(frozen=True)
class Composition:
    """What is needed to compose and normalise a token from its anchors without building its vector."""

    shift: np.ndarray  # (W,): B of LayerNorm's bias
    centred: np.ndarray  # (K, d): anchors less their mean, over sqrt(d)
    gram: np.ndarray | None  # (K, K): inner products of `centred`; None where K is large


@dataclass(frozen=True)
class Norm:
    """LayerNorm of whole rows."""

    weight: np.ndarray  # (d,)
    bias: np.ndarray  # (d,)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Normalise rows (n, d)."""
        centred = rows - rows.mean(1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(1, keepdims=True) + np.float32(EPSILON))
        return centred / deviation * self.weight + self.bias


@dataclass(frozen=True)
class Gates:
    """What is needed to gate a token's anchors by the attention output, in `gated` mode."""

    weight: np.ndarray  # (K, d): attention output -> scores of the gates
    bias: np.ndarray  # (K,)
    direct: np.ndarray  # (K, 1 + C): what an anchor adds to the scores, before the division by the standard deviation
    constant: np.ndarray  # (1 + C,): what LayerNorm's bias adds to the scores


@dataclass(frozen=True)
class Tables:
    """A trained model as tables."""

    options: Options
    source: Pairs | CodedRows
    columns: Columns
    matrix: np.ndarray  # (W, d): B
    bias: np.ndarray  # (W,)
    anchor_rows: np.ndarray  # (K, W): B of every anchor, LayerNorm's weight included
    composition: Composition | None  # except in `anchors` mode, and of a coded table
    value_readout: np.ndarray | None  # (d, 1 + C): attention output -> scores, where values are plain vectors
    gates: Gates | None  # in `gated` mode
    classifier_bias: np.ndarray  # (C,): part of the own scores already
    depth: Depth | None = None  # layers after SAT; the scores of the tables are then SAT's output vectors
    norm: Norm | None = None  # of a coded table, which has no anchors to fold LayerNorm into

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return self.source.vocabulary

    @property
    def pairs(self) -> Pairs:
        """The pairs of tokens; raises InputError for a coded table, which has none."""
        if isinstance(self.source, CodedRows):
            raise InputError(NO_PAIRS)
        return self.source

    @property
    def dim(self) -> int:
        """The width of an anchor."""
        return self.matrix.shape[1]

    @property
    def labels(self) -> int:
        """The number of labels, or the width of an encoder's vectors."""
        if self.depth is not None:
            return len(self.depth.readout.bias) - 1
        return self.columns.projected - self.columns.own_scores.start - 1

    @property
    def value_width(self) -> int:
        """Columns of one head's value."""
        return (self.columns.value.stop - self.columns.value.start) // self.options.heads

    def position_rows(self, count: int) -> np.ndarray:
        """B of the first `count` positions with its bias: (count, W); a single row in a model without positions."""
        scale = self.options.position_scale
        encoded = sinusoidal(np.arange(count if scale else 1), self.dim)
        return (scale * encoded) @ self.matrix.T + self.bias


class _Linear(NamedTuple):
    """Weights and biases of a linear layer, or of some of its outputs."""

    weight: np.ndarray  # (outputs, inputs) float64
    bias: np.ndarray  # (outputs,) float64


class _Attention(NamedTuple):
    """The layers of segment-aware attention; the scale of the attention scores is in the query."""

    query: _Linear
    key: _Linear
    value: _Linear
    output: _Linear


def fold(config: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> Tables:
    """Multiply a model's layers into tables.

    Args:
        config: the model's configuration, as in `config.json`.
        state: the arrays of `model.safetensors`, packed or not.
    """
    check_config(config)
    options, source = Options.of(config), stored_rows(config, state)
    coded, anchors = isinstance(source, CodedRows), source.anchors()  # (K, d)
    dim, heads = anchors.shape[1], options.heads
    if dim % heads:
        raise InputError(f"dimension {dim} is not divisible by {heads} heads")

    # The pooler and the classifier read the same vectors, so they are one matrix: (1 + C, d).
    head = "classifier" if "classifier.bias" in state else "output"  # of an encoder
    classifier_bias = state[f"{head}.bias"]
    weight = np.vstack([_weight(state, "pooler", dim)[0], _weight(state, head, dim)])
    readout = _Linear(weight, np.append(0.0, classifier_bias))

    # With further layers, what the tables give is not yet read out: the identity takes the place of the classifier.
    depth = None
    if layers := read_layers(partial(_layer, state), state, dim, heads):
        depth = Depth(layers, Dense(readout.weight.T.astype(np.float32), readout.bias.astype(np.float32)))
        readout = _Linear(np.vstack([np.zeros(dim), np.eye(dim)]), np.zeros(1 + dim))
    scores = len(readout.bias)

    # A head's value is stored as its part of the scores, unless the vector is needed or is no longer than that.
    attention = _attention_layers(state, dim, heads) if options.sat else None
    plain_values = options.gated or scores > dim // heads
    parts = [readout] if attention is None else _projected_parts(attention, readout, heads, plain_values)
    matrix, bias = (np.concatenate(each).astype(np.float32) for each in zip(*parts, strict=True))
    columns = Columns.of(
        attention_width=dim if options.sat else 0,
        values=len(parts[2].weight) if options.sat else 0,
        scores=scores,
        gated_pairs=source.max_pairs if options.gated else 0,
    )

    gain, shift = (state[f"ade.norm.{name}"].astype(np.float32) for name in ("weight", "bias"))
    centred = anchors - anchors.mean(1, keepdims=True)
    if options.expanded:  # each anchor is normalised by itself
        deviation = np.sqrt((centred**2).mean(1, keepdims=True) + EPSILON)
        anchor_rows, composition = (centred / deviation * gain + shift) @ matrix.T, None
    else:  # the sum of a token's anchors is normalised, so the division comes later
        anchor_rows = (centred * gain) @ matrix.T
        composition = None if coded else _composition(centred, matrix @ shift)

    value_readout = gates = None
    if attention is not None and plain_values:
        value_readout = (readout.weight @ attention.output.weight).T.astype(np.float32)
    if attention is not None and options.gated:
        gates = _gates(anchors, attention.output, readout, centred * gain, shift)
    norm = Norm(gain, shift) if coded else None
    return Tables(
        options, source, columns, matrix, bias, anchor_rows, composition, value_readout, gates, classifier_bias, depth,
        norm,
    )  # fmt: skip


def _weight(state: Mapping[str, np.ndarray], layer: str, inputs: int) -> np.ndarray:
    """The weights of a layer in float64, unpacked where they are packed."""
    weight, scales = state[f"{layer}.weight"], state.get(f"{layer}.scales")
    return (weight if scales is None else layer_weight(weight, scales, inputs)).astype(np.float64)


def _layer(state: Mapping[str, np.ndarray], layer: str, inputs: int) -> _Linear:
    return _Linear(_weight(state, layer, inputs), state[f"{layer}.bias"].astype(np.float64))


def _attention_layers(state: Mapping[str, np.ndarray], dim: int, heads: int) -> _Attention:
    projection, output = (_layer(state, f"ade.sat.{name}", dim) for name in ("projection", "output"))
    query, key, value = (
        _Linear(projection.weight[part], projection.bias[part])
        for part in (slice(dim), slice(dim, 2 * dim), slice(2 * dim, None))
    )
    scale = (dim // heads) ** -0.5
    return _Attention(_Linear(query.weight * scale, query.bias * scale), key, value, output)


def _projected_parts(attention: _Attention, readout: _Linear, heads: int, plain_values: bool) -> list[_Linear]:
    """Query, key, value and own scores: the rows of B and its bias."""
    query, key, value, output = attention
    if not plain_values:
        dim = value.weight.shape[1]
        value_readout = readout.weight @ output.weight  # (1 + C, d)
        of_head = value_readout.reshape(-1, heads, dim // heads).transpose(1, 0, 2)  # (H, 1 + C, d / H)
        weight = of_head @ value.weight.reshape(heads, dim // heads, dim)  # (H, 1 + C, d)
        bias = of_head @ value.bias.reshape(heads, -1, 1)  # (H, 1 + C, 1)
        value = _Linear(weight.reshape(-1, dim), bias.ravel())

    # The bias of the output layer is the same for every element, so it goes into the element's own scores.
    own_scores = _Linear(readout.weight, readout.bias + readout.weight @ output.bias)
    return [query, key, value, own_scores]


def _composition(centred: np.ndarray, shift: np.ndarray) -> Composition:
    scaled = centred * np.float32(centred.shape[1] ** -0.5)
    return Composition(shift, scaled, scaled @ scaled.T if len(scaled) <= MAX_GRAM_ANCHORS else None)


def _gates(anchors: np.ndarray, output: _Linear, readout: _Linear, scaled: np.ndarray, shift: np.ndarray) -> Gates:
    """Tables of the gates; `scaled` are the centred anchors times LayerNorm's weight, `shift` is its bias."""
    root = anchors.shape[1] ** 0.5
    return Gates(
        weight=(anchors @ output.weight / root).astype(np.float32),
        bias=(anchors @ output.bias / root).astype(np.float32),
        direct=scaled @ readout.weight.T.astype(np.float32),
        constant=(readout.weight @ shift).astype(np.float32),
    )
