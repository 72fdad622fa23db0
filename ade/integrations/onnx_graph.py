"""A trained model as an ONNX graph: nodes and constants built from its stored arrays, nothing traced.

The codebook stays a codebook: a token's pairs are looked up, its anchors gathered and summed by weight, as in
`embedding.py`; a table of N rows exists neither in the file nor while it runs. Texts longer than `max_tokens` are read
in windows, as in `model.py`.

Shapes: B texts of L tokens, W windows of S tokens; n = W S tokens, k pairs of the token that has most, T elements that
SAT attends over.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ade.config_values import EPSILON
from ade.data.problems import MULTI, REGRESSION, scale_of
from ade.integrations.onnx_coded import coded_rows
from ade.integrations.onnx_lexicon import lexicon_logits
from ade.integrations.onnx_nodes import Graph, PackedPairs, Pairs, PlainPairs, scale_rows, unpack_nibbles
from ade.lexicon import PREFIX, LexiconShape
from ade.packing.pairs import EMBEDDING_PREFIX
from ade.packing.unpack import inputs_of
from ade.positions import frequencies

MASKED_SCORE = float(np.finfo(np.float32).min)  # added to the scores of what is masked: its exponential is exactly 0
Config = Mapping[str, Any]
State = Mapping[str, np.ndarray]


def build_graph(config: Config, state: State, problem: str) -> bytes:
    """A stored model, packed or not, as an ONNX file: `logits`, and `probabilities` where the problem has any."""
    g = Graph()
    ids, mask = real_tokens(g)  # (B, L)
    logits = window_mean(g, config, state, ids, mask)  # (B, C)

    mean, deviation = scale_of(problem, config.get("scale"))
    if (mean, deviation) != (0, 1):
        logits = g.Add(g.Mul(logits, float(deviation)), float(mean))

    if config.get("lexicon"):
        shape = LexiconShape(**config["lexicon"])
        logits = g.Add(logits, lexicon_logits(g, shape, arrays_below(state, PREFIX), ids, mask))

    logits = g.Identity(logits, name="logits")
    outputs: dict[str, list[str | int]] = {logits: ["batch", len(state["classifier.bias"])]}
    if problem != REGRESSION:
        activation = g.Sigmoid if problem == MULTI else partial(g.Softmax, axis=-1)
        outputs[activation(logits, name="probabilities")] = outputs[logits]
    return g.model(outputs)


def build_encoder_graph(config: Config, state: State) -> bytes:
    """A stored encoder, packed or not, as an ONNX file: `embeddings`, unit vectors of texts."""
    g = Graph()
    ids, mask = real_tokens(g)  # (B, L)
    vectors = window_scores(g, config, state, ids, mask)  # (B, D)
    embeddings = g.LpNormalization(vectors, axis=-1, p=2, name="embeddings")
    return g.model({embeddings: ["batch", len(state["output.bias"])]})


def arrays_below(state: State, prefix: str) -> dict[str, np.ndarray]:
    """The arrays of a part of the model, by their names within it."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def real_tokens(g: Graph) -> tuple[str, str]:
    """Token ids and which are real (B, L); a text without any token is one of id 0: `embedding.real_tokens`."""
    missing = g.Sub(1, g.Min(g.size("input_ids", 1), 1))  # one, where no text has a token
    pads = g.shape(0, 0, 0, missing)
    ids, number = (g.Pad(name, pads) for name in ("input_ids", "attention_mask"))

    mask = g.cast(number, "BOOL")
    first = g.Equal(g.Range(0, g.size(ids, 1), 1), 0)  # (L,)
    empty = g.And(first, g.Not(g.cast(g.ReduceMax(g.cast(mask, "INT64"), axes=[1]), "BOOL")))  # (B, L)
    return g.Where(empty, 0, ids), g.Or(mask, empty)


# -- windows -------------------------------------------------------------------------------------------------------


class Windows(NamedTuple):
    """Texts cut into windows of at most `max_tokens` tokens; windows without a real token are left out."""

    ids: str  # (W, S)
    mask: str  # (W, S)
    slot: str  # (W,): which of the B * count windows, those left out among them
    tokens: str  # (B, count, 1) float: real tokens of each of these


def split_windows(g: Graph, ids: str, mask: str, max_tokens: int) -> Windows:
    """Cut texts (B, L) into windows; a batch of at most `max_tokens` is one window a text, as long as it is."""
    length = g.size(ids, 1)
    width = g.Min(length, max_tokens)
    count = g.Div(g.Add(length, g.Sub(width, 1)), width)

    pads = g.shape(0, 0, 0, g.Sub(g.Mul(count, width), length))
    ids, number = (g.Reshape(g.Pad(each, pads), g.shape(-1, width)) for each in (ids, g.cast(mask, "INT64")))

    tokens = g.ReduceSum(number, [1], keepdims=0)  # (B * count,)
    slot = g.Squeeze(g.NonZero(tokens), [0])
    tokens = g.cast(g.Reshape(tokens, g.shape(-1, count, 1)), "FLOAT")
    return Windows(g.Gather(ids, slot), g.cast(g.Gather(number, slot), "BOOL"), slot, tokens)


def window_mean(g: Graph, config: Config, state: State, ids: str, mask: str) -> str:
    """Class scores (B, C): the mean over a text's windows, weighted by their tokens."""
    windows = split_windows(g, ids, mask, int(config["max_tokens"]))
    scores = window_scores(g, config, state, windows.ids, windows.mask)  # (W, C)
    labels = len(state["classifier.bias"])

    every = g.Mul(g.size(ids, 0), g.size(windows.tokens, 1))  # B * count
    scores = g.ScatterND(g.Expand(0.0, g.shape(every, labels)), g.Unsqueeze(windows.slot, [1]), scores)
    scores = g.Reshape(scores, g.shape(-1, g.size(windows.tokens, 1), labels))  # (B, count, C)

    # Divided first: the weight of a text's only window is exactly 1.
    weight = g.Div(windows.tokens, g.ReduceSum(windows.tokens, [1]))
    return g.ReduceSum(g.Mul(scores, weight), [1], keepdims=0)


# -- a window --------------------------------------------------------------------------------------------------------


def window_scores(g: Graph, config: Config, state: State, ids: str, mask: str) -> str:
    """Class scores of windows (W, S): contextual vectors, pooling, the classifier's layer: (W, C)."""
    layers = Layers(g, config, state)
    head = "classifier" if "classifier.bias" in state else "output"  # of an encoder
    states, mask = first_layer(g, config, layers, state, ids, mask)  # (W, T, d), (W, T)
    for number in range(int(config.get("layers", 1)) - 1):
        states = layers.further(f"ade.layers.{number}", states, mask)
    weights = pooling_weights(g, config, layers, states, mask)  # (W, 1, T)
    return layers.linear(head, g.Squeeze(g.MatMul(weights, states), [1]))


def first_layer(g: Graph, config: Config, layers: "Layers", state: State, ids: str, mask: str) -> tuple[str, str]:
    """Contextual vectors (W, T, d) of what SAT attends over, and which are real."""
    arrays = arrays_below(state, EMBEDDING_PREFIX)
    if config.get("coded"):
        return coded_states(g, config, layers, arrays_below(arrays, "coded."), ids, mask)
    pairs: Pairs = PackedPairs(g, config["packed"], arrays) if config.get("packed") else PlainPairs(g, arrays)
    read = anchor_states if config["attend"] == "anchors" else token_states
    return read(g, config, layers, pairs, ids, mask)


def coded_states(g: Graph, config: Config, layers: "Layers", table: State, ids: str, mask: str) -> tuple[str, str]:
    """Contextual vectors of the tokens (W, S, d) of a model with a coded table, and which are real."""
    rows = layers.norm(coded_rows(g, config["coded"], table, g.Reshape(ids, [-1])))  # (n, d)
    x = g.Reshape(rows, g.Concat(g.Shape(ids), [-1], axis=0))
    positions = layers.positions(g.size(ids, 1))  # (S, d)
    x = x if positions is None else g.Add(x, positions)
    return (g.Add(x, layers.sat(x, mask)) if config["sat"] else x), mask


def anchor_states(g: Graph, config: Config, layers: "Layers", pairs: Pairs, ids: str, mask: str) -> tuple[str, str]:
    """Contextual vectors of the expanded anchor sequence (W, T, d), and which are real: `attend="anchors"`."""
    index, weight, real = pairs.of(g.Reshape(ids, [-1]))  # (n, k)
    index, weight, word, mask = expand_anchors(g, index, weight, real, mask)  # (W, T)
    x = g.Mul(g.Gather(layers.norm(pairs.anchors()), index), g.Unsqueeze(weight, [2]))  # (W, T, d)

    grouped = config["positions"] == "grouped"
    positions = layers.positions(g.size(ids if grouped else mask, 1))
    if positions is not None:
        x = g.Add(x, g.Gather(positions, word) if grouped else positions)
    return (g.Add(x, layers.sat(x, mask)) if config["sat"] else x), mask


def token_states(g: Graph, config: Config, layers: "Layers", pairs: Pairs, ids: str, mask: str) -> tuple[str, str]:
    """Contextual vectors of the tokens (W, S, d), and which are real: `attend="tokens"` and `"gated"`."""
    index, weight, _ = pairs.of(g.Reshape(ids, [-1]))  # (n, k)
    own = g.Gather(pairs.anchors(), index)  # (n, k, d)
    positions = layers.positions(g.size(ids, 1))  # (S, d)

    def compose(weight: str) -> str:
        """Tokens composed with these weights, normalised, with their positions: (W, S, d)."""
        rows = layers.norm(g.Squeeze(g.MatMul(g.Unsqueeze(weight, [1]), own), [1]))  # (n, d)
        rows = g.Reshape(rows, g.Concat(g.Shape(ids), [-1], axis=0))
        return rows if positions is None else g.Add(rows, positions)

    x = compose(weight)
    if not config["sat"]:
        return x, mask
    context = layers.sat(x, mask)  # (W, S, d)
    if config["attend"] == "tokens":
        return g.Add(x, context), mask

    column = g.Reshape(context, [-1, config["hidden_size"], 1])  # (n, d, 1)
    gate = g.Sigmoid(g.Mul(g.Squeeze(g.MatMul(own, column), [2]), config["hidden_size"] ** -0.5))  # (n, k)
    return g.Add(compose(g.Mul(g.Mul(gate, weight), 2.0)), context), mask


def expand_anchors(g: Graph, index: str, weight: str, real: str, mask: str) -> tuple[str, str, str, str]:
    """Tokens (W, S) replaced by their anchors (n, k), in order: `Dictionary.expand`.

    Anchors, their weights, the positions of their tokens, and which are real: each (W, T).
    """
    batch = g.size(mask, 0)
    flat = g.shape(batch, -1)
    real_flat = g.Reshape(g.And(real, g.Reshape(mask, [-1, 1])), flat)  # (W, S k)
    count = g.CumSum(g.cast(real_flat, "INT64"), 1)
    ends = g.ReduceMax(count, axes=[1])  # (W, 1): anchors of each text
    longest = g.ReduceMax(ends, keepdims=0)  # T

    # For each of the (W, T) elements, which of its text's S k slots it comes from.
    found = g.Transpose(g.NonZero(real_flat))  # (sum of ends, 2): text and slot
    column = g.Unsqueeze(g.Sub(g.GatherND(count, found), 1), [1])
    text, slot = g.Slice(found, [0], [1], [1]), g.Slice(found, [1], [2], [1])
    source = g.ScatterND(g.Expand(0, g.shape(batch, longest)), g.Concat(text, column, axis=1), g.Squeeze(slot, [1]))

    index, weight = (g.GatherElements(g.Reshape(each, flat), source, axis=1) for each in (index, weight))
    word = g.Div(source, g.size(real, 1))
    return index, weight, word, g.Less(g.Range(0, longest, 1), ends)


def pooling_weights(g: Graph, config: Config, layers: "Layers", states: str, mask: str) -> str:
    """The weight each element has in the pooled vector, 0 where it is masked: (W, 1, T)."""
    if config["pooling"] == "mean":
        real = g.cast(mask, "FLOAT")
        return g.Unsqueeze(g.Div(real, g.ReduceSum(real, [1])), [1])
    score = layers.linear("pooler", g.Reshape(states, [-1, config["hidden_size"]]))  # (W T, 1)
    score = g.Add(g.Reshape(score, g.Shape(mask)), masking(g, mask))
    return g.Unsqueeze(g.Softmax(score, axis=-1), [1])


def masking(g: Graph, mask: str) -> str:
    """What is added to scores before a softmax: 0, or the lowest number where they are masked."""
    return g.Where(mask, 0.0, MASKED_SCORE)


class Layers:
    """The layers on top of the codebook, their weights as they are stored."""

    def __init__(self, g: Graph, config: Config, state: State) -> None:
        self.g, self.state = g, state
        self.dim, self.heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        self.position_scale = 0.0 if config["positions"] == "none" else float(config["position_scale"])

    def linear(self, layer: str, x: str, outputs: slice = slice(None), scale: float = 1.0) -> str:
        """A linear layer, or some of its outputs, of rows (n, d), times a number."""
        weight, bias = self.state[f"{layer}.weight"][outputs], self.state[f"{layer}.bias"][outputs]
        scales = self.state.get(f"{layer}.scales")
        if scales is None:
            stored = self.g.constant(weight.astype(np.float32))
        else:
            stored = self._unpack_weight(weight, scales[outputs], inputs_of(layer, self.dim))
        return self.g.Gemm(x, stored, bias.astype(np.float32), alpha=scale, beta=scale, transB=1)

    def _unpack_weight(self, weight: np.ndarray, scales: np.ndarray, inputs: int) -> str:
        """A packed layer's weight in float32: `format.layer_weight`."""
        if len(scales) == 0:
            return self.g.cast(weight.view(np.float16), "FLOAT")
        numbers = self.g.cast(weight, "FLOAT") if weight.dtype == np.int8 else unpack_nibbles(self.g, weight, inputs)
        return scale_rows(self.g, numbers, scales)

    def norm(self, x: str, layer: str = "ade.norm") -> str:
        """LayerNorm."""
        gain, shift = (self.state[f"{layer}.{name}"].astype(np.float32) for name in ("weight", "bias"))
        return self.g.LayerNormalization(x, gain, shift, axis=-1, epsilon=EPSILON)

    def positions(self, count: str) -> str | None:
        """Sinusoidal encodings of the first `count` positions (count, d), None without positions: `sinusoidal`.

        Computed in the graph: a table of `max_tokens` rows would be half a megabyte of an average file.
        """
        g = self.g
        if self.position_scale == 0:
            return None
        position = g.Unsqueeze(g.cast(g.Range(0, count, 1), "FLOAT"), [1])
        angle = g.Mul(position, frequencies(self.dim, np.arange(0)))  # (count, d / 2)
        both = g.Concat(g.Unsqueeze(g.Sin(angle), [2]), g.Unsqueeze(g.Cos(angle), [2]), axis=2)
        encoded = g.Slice(g.Reshape(both, [0, -1]), [0], [self.dim], [1])
        return g.Mul(encoded, self.position_scale)

    def further(self, layer: str, x: str, mask: str) -> str:
        """A layer after SAT, on elements (W, T, d): `ade.model.TransformerLayer`."""
        g = self.g
        x = g.Add(x, self.sat(self.norm(x, f"{layer}.attention_norm"), mask, f"{layer}.sat"))
        rows = g.Reshape(self.norm(x, f"{layer}.norm"), [-1, self.dim])
        wide = g.Relu(self.linear(f"{layer}.inner", rows))
        return g.Add(x, g.Reshape(self.linear(f"{layer}.outer", wide), g.Shape(x)))

    def sat(self, x: str, mask: str, layer: str = "ade.sat") -> str:
        """The attention output of each element of (W, T, d) over the unmasked ones: `SegmentAwareTransformer`."""
        g, dim, width = self.g, self.dim, self.dim // self.heads
        flat, split = g.Reshape(x, [-1, dim]), g.Concat(g.Shape(mask), [self.heads, width], axis=0)

        def heads(part: int, order: list[int], scale: float = 1.0) -> str:
            """Queries (part 0), keys (1) or values (2) of every head, their axes in this order."""
            outputs = slice(part * dim, (part + 1) * dim)
            return g.Transpose(g.Reshape(self.linear(f"{layer}.projection", flat, outputs, scale), split), perm=order)

        query = heads(0, [0, 2, 1, 3], scale=width**-0.5)  # (W, H, T, d / H)
        key = heads(1, [0, 2, 3, 1])  # (W, H, d / H, T)
        value = heads(2, [0, 2, 1, 3])  # (W, H, T, d / H)

        scores = g.Add(g.MatMul(query, key), g.Unsqueeze(masking(g, mask), [1, 2]))  # (W, H, T, T)
        context = g.Transpose(g.MatMul(g.Softmax(scores, axis=-1), value), perm=[0, 2, 1, 3])
        output = self.linear(f"{layer}.output", g.Reshape(context, [-1, dim]))
        return g.Reshape(output, g.Shape(x))
