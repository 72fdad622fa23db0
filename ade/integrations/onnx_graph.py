"""A trained model as an ONNX graph: nodes and constants made from its stored arrays, nothing traced.

The codebook stays a codebook: a token's pairs are looked up, its anchors gathered and summed by weight, as in
`embedding.py`; a table of N rows exists neither in the file nor while it runs. The pairs of a model that is not packed
lie end to end, an index in as few bytes as K needs; those of a packed one are the stream of bits of `packing.py`, read
in the graph. What follows from constants alone (where each token's pairs begin, weights out of their bits) is written
as nodes on constants, which a runtime works out once, on loading.

n is batch x length, k the pairs of the token of a batch that has most, T the elements attended over.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ade.data.problems import MULTI, REGRESSION, scale_of
from ade.errors import InputError
from ade.packing import format as packing
from ade.packing.format import Shape
from ade.packing.pairs import EMBEDDING_PREFIX
from ade.runtime.tables import EPSILON

OPSET = 17  # the first with LayerNormalization
IR = 8  # the file format of that time: old runtimes read it
HIDDEN = float(np.finfo(np.float32).min)  # added to the scores of what is masked: its exponential is exactly 0
Value = str | int | float | list[int] | np.ndarray  # the name of a node's output, or a constant


class Graph:
    """Nodes and constants, named in the order they are made: `graph.Add(x, 1)` adds a node, and gives its name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self._known: dict[object, str] = {}

    def __getattr__(self, kind: str) -> Callable[..., str]:
        if not kind[0].isupper():
            raise AttributeError(kind)
        return partial(self.node, kind)

    def node(self, kind: str, *inputs: Value, name: str = "", **attributes: Any) -> str:
        """The output's name of a new node; equal nodes are made once."""
        from onnx import helper

        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        key = (kind, *names, str(attributes), name)
        if key not in self._known:
            self._known[key] = name or f"{kind}_{len(self.nodes)}"
            self.nodes.append(helper.make_node(kind, names, [self._known[key]], **attributes))
        return self._known[key]

    def constant(self, value: int | float | list[int] | np.ndarray) -> str:
        """The name of a constant: whole numbers are int64, others float32, arrays what they are."""
        if not isinstance(value, np.ndarray):
            value = np.asarray(value, np.float32 if isinstance(value, float) else np.int64)
        key = (str(value.dtype), value.shape, value.tobytes())
        if key not in self._known:
            self._known[key] = f"constant_{len(self.constants)}"
            self.constants[self._known[key]] = value
        return self._known[key]

    def cast(self, value: Value, kind: str) -> str:
        """As another type, named as ONNX names it."""
        from onnx import TensorProto

        return self.Cast(value, to=getattr(TensorProto, kind))

    def model(self, outputs: Mapping[str, list[str | int]]) -> bytes:
        """The whole file: token ids and mask in, these float outputs out."""
        from onnx import TensorProto, checker, helper, numpy_helper

        info = helper.make_tensor_value_info
        made = helper.make_graph(
            self.nodes,
            "ade",
            [info(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")],
            [info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="ade")
        model.ir_version = IR
        checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())


def graph_of(config: Mapping[str, Any], state: Mapping[str, np.ndarray], problem: str) -> bytes:
    """A stored model, packed or not, as an ONNX file: `logits`, and `probabilities` where the problem has any."""
    g = Graph()
    layers = _Layers(g, config, state)
    ids, mask = _real_tokens(g)  # (B, L)
    pairs: _Pairs = _Packed(g, config, state) if config.get("packed") else _Plain(g, state)
    states, mask = _states(g, config, layers, pairs, ids, mask)  # (B, T, d), (B, T)
    share = _listening(g, config, layers, states, mask)  # (B, 1, T)
    pooled = g.Squeeze(g.MatMul(share, states), [1])  # (B, d)
    mean, scale = scale_of(problem, config.get("scale"))
    if (mean, scale) == (0, 1):
        logits = layers.linear("classifier", pooled, name="logits")  # (B, C)
    else:
        wide = g.Mul(layers.linear("classifier", pooled), np.array(scale, np.float32))
        logits = g.Add(wide, np.array(mean, np.float32), name="logits")
    outputs: dict[str, list[str | int]] = {"logits": ["batch", len(state["classifier.bias"])]}
    if problem != REGRESSION:
        kind = g.Sigmoid if problem == MULTI else partial(g.Softmax, axis=-1)
        outputs[kind(logits, name="probabilities")] = outputs["logits"]
    return g.model(outputs)


def _real_tokens(g: Graph) -> tuple[str, str]:
    """Token ids and which are real (B, L); a text without any token is one of id 0: `embedding.real_tokens`."""
    missing = g.Sub(1, g.Min(g.Gather(g.Shape("input_ids"), 1), 1))  # one, where no text has a token
    pads = g.Concat([0, 0, 0], g.Unsqueeze(missing, [0]), axis=0)
    ids, number = (g.Pad(name, pads) for name in ("input_ids", "attention_mask"))
    mask = g.cast(number, "BOOL")
    first = g.Equal(g.Range(0, g.Gather(g.Shape(ids), 1), 1), 0)  # (L,)
    empty = g.And(first, g.Not(g.cast(g.ReduceMax(g.cast(mask, "INT64"), axes=[1]), "BOOL")))  # (B, L)
    return g.Where(empty, 0, ids), g.Or(mask, empty)


def _states(
    g: Graph, config: Mapping[str, Any], layers: "_Layers", pairs: "_Pairs", ids: str, mask: str
) -> tuple[str, str]:
    """Contextual vectors (B, T, d) and the mask (B, T) of the real ones: `AdeModel.states`, in its three readings."""
    shape = g.Shape(ids)  # (2,)
    length = g.Gather(shape, 1)  # ()
    index, weight, there = pairs.of(g.Reshape(ids, [-1]))  # (n, k)
    if config["attend"] == "anchors":
        index, weight, word, mask = _expanded(g, index, weight, there, mask, shape)  # (B, T)
        own = g.Gather(layers.norm(pairs.anchors()), index)  # (B, T, d)
        x = g.Mul(own, g.Unsqueeze(weight, [2]))
        grouped = config["positions"] == "grouped"
        place = layers.positions(length if grouped else g.Gather(g.Shape(mask), 1))
        if place is not None:
            x = g.Add(x, g.Gather(place, word) if grouped else place)
        return (g.Add(x, layers.sat(x, mask)) if config["sat"] else x), mask
    own = g.Gather(pairs.anchors(), index)  # (n, k, d)
    place = layers.positions(length)  # (L, d)

    def placed(weight: str) -> str:
        """Tokens composed with these weights, normalised, where they stand: (B, L, d)."""
        rows = layers.norm(g.Squeeze(g.MatMul(g.Unsqueeze(weight, [1]), own), [1]))  # (n, d)
        rows = g.Reshape(rows, g.Concat(shape, [-1], axis=0))
        return rows if place is None else g.Add(rows, place)

    x = placed(weight)
    if not config["sat"]:
        return x, mask
    heard = layers.sat(x, mask)  # (B, L, d)
    if config["attend"] == "tokens":
        return g.Add(x, heard), mask
    column = g.Reshape(heard, [-1, config["hidden_size"], 1])  # (n, d, 1)
    gate = g.Sigmoid(g.Mul(g.Squeeze(g.MatMul(own, column), [2]), config["hidden_size"] ** -0.5))  # (n, k)
    return g.Add(placed(g.Mul(g.Mul(gate, weight), 2.0)), heard), mask


def _expanded(g: Graph, index: str, weight: str, there: str, mask: str, shape: str) -> tuple[str, str, str, str]:
    """Tokens replaced by their anchors, in order: which, their weights, their words, and which are real: (B, T)."""
    batch = g.Slice(shape, [0], [1])
    flat = g.Concat(batch, [-1], axis=0)
    real = g.Reshape(g.And(there, g.Reshape(mask, [-1, 1])), flat)  # (B, L k)
    count = g.CumSum(g.cast(real, "INT64"), 1)
    ends = g.ReduceMax(count, axes=[1])  # (B, 1)
    longest = g.ReduceMax(ends, keepdims=0)  # T
    found = g.Transpose(g.NonZero(real))  # (S, 2): text, and place among its L k
    column = g.Unsqueeze(g.Sub(g.GatherND(count, found), 1), [1])  # (S, 1)
    text, slot = g.Slice(found, [0], [1], [1]), g.Slice(found, [1], [2], [1])
    empty = g.Expand(0, g.Concat(batch, g.Unsqueeze(longest, [0]), axis=0))
    source = g.ScatterND(empty, g.Concat(text, column, axis=1), g.Squeeze(slot, [1]))  # (B, T)
    index, weight = (g.GatherElements(g.Reshape(each, flat), source, axis=1) for each in (index, weight))
    word = g.Div(source, g.Gather(g.Shape(there), 1))
    return index, weight, word, g.Less(g.Range(0, longest, 1), ends)


def _listening(g: Graph, config: Mapping[str, Any], layers: "_Layers", states: str, mask: str) -> str:
    """The share of the pooled vector each element has: (B, 1, T)."""
    if config["pooling"] == "mean":
        real = g.cast(mask, "FLOAT")
        return g.Unsqueeze(g.Div(real, g.ReduceSum(real, [1])), [1])
    score = layers.linear("pooler", g.Reshape(states, [-1, config["hidden_size"]]))  # (n, 1)
    score = g.Add(g.Reshape(score, g.Shape(mask)), _unheard(g, mask))
    return g.Unsqueeze(g.Softmax(score, axis=-1), [1])


def _unheard(g: Graph, mask: str) -> str:
    """What to add to a score: nothing, or so much that it vanishes."""
    return g.Where(mask, 0.0, HIDDEN)


class _Layers:
    """The layers on top of the codebook, their weights as they are stored."""

    def __init__(self, g: Graph, config: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> None:
        self.g, self.state = g, state
        self.dim, self.heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        self.scale = 0.0 if config["positions"] == "none" else float(config["position_scale"])

    def linear(self, layer: str, x: str, rows: slice = slice(None), scale: float = 1.0, name: str = "") -> str:
        """A layer, or some of its outputs, of rows (n, d), times a number."""
        weight, bias = self.state[f"{layer}.weight"][rows], self.state[f"{layer}.bias"][rows].astype(np.float32)
        scales = self.state.get(f"{layer}.scales")
        stored = self.g.constant(weight.astype(np.float32)) if scales is None else self._narrow(weight, scales[rows])
        return self.g.Gemm(x, stored, bias, alpha=scale, beta=scale, transB=1, name=name)

    def _narrow(self, weight: np.ndarray, scales: np.ndarray) -> str:
        if len(scales) == 0:
            return self.g.cast(weight.view(np.float16), "FLOAT")
        numbers = self.g.cast(weight, "FLOAT") if weight.dtype == np.int8 else from_nibbles(self.g, weight, self.dim)
        return scaled(self.g, numbers, scales)

    def norm(self, x: str) -> str:
        """LayerNorm."""
        gain, shift = (self.state[f"ade.norm.{name}"].astype(np.float32) for name in ("weight", "bias"))
        return self.g.LayerNormalization(x, gain, shift, axis=-1, epsilon=EPSILON)

    def positions(self, count: str) -> str | None:
        """Sinusoidal encodings of the first `count` positions: (count, d); nothing where there are none."""
        g = self.g
        if self.scale == 0:
            return None
        half = np.arange(0, self.dim, 2, dtype=np.float32)
        turn = np.exp(half * np.float32(-math.log(10000.0) / self.dim)).astype(np.float32)
        angle = g.Mul(g.Unsqueeze(g.cast(g.Range(0, count, 1), "FLOAT"), [1]), turn)  # (count, d / 2)
        both = g.Concat(g.Unsqueeze(g.Sin(angle), [2]), g.Unsqueeze(g.Cos(angle), [2]), axis=2)
        encoded = g.Slice(g.Reshape(both, [0, -1]), [0], [self.dim], [1])
        return g.Mul(encoded, self.scale)

    def sat(self, x: str, mask: str) -> str:
        """What each element of (B, T, d) hears from the unmasked ones."""
        g, dim, width = self.g, self.dim, self.dim // self.heads
        flat, shape = g.Reshape(x, [-1, dim]), g.Shape(mask)
        split = g.Concat(shape, [self.heads, width], axis=0)
        parts = []
        for i, (scale, order) in enumerate(((width**-0.5, [0, 2, 1, 3]), (1.0, [0, 2, 3, 1]), (1.0, [0, 2, 1, 3]))):
            part = self.linear("ade.sat.projection", flat, slice(i * dim, (i + 1) * dim), scale)
            parts.append(g.Transpose(g.Reshape(part, split), perm=order))
        query, key, value = parts  # (B, H, T, d / H), (B, H, d / H, T), (B, H, T, d / H)
        scores = g.Add(g.MatMul(query, key), g.Unsqueeze(_unheard(g, mask), [1, 2]))
        heard = g.Transpose(g.MatMul(g.Softmax(scores, axis=-1), value), perm=[0, 2, 1, 3])
        output = self.linear("ade.sat.output", g.Reshape(heard, [-1, dim]))
        return g.Reshape(output, g.Concat(shape, [dim], axis=0))


class _Plain:
    """The pairs of a model that is not packed: all of them end to end."""

    def __init__(self, g: Graph, state: Mapping[str, np.ndarray]) -> None:
        self.g = g
        part = {name: state[EMBEDDING_PREFIX + name] for name in ("anchors", "indices", "weights", "counts")}
        self.table, self.weights = part["anchors"].astype(np.float32), part["weights"].astype(np.float32)
        self.indices, self.counts = (smallest(part[name]) for name in ("indices", "counts"))

    def anchors(self) -> str:
        """Every anchor: (K, d)."""
        return self.g.constant(self.table)

    def of(self, ids: str) -> tuple[str, str, str]:
        """Anchors and weights of tokens (n,), padded with weight 0, and which are real: each (n, k)."""
        g = self.g
        counts = g.cast(self.counts, "INT64")  # (N,)
        column, there = _columns(g, g.Gather(counts, ids))
        start = g.Gather(g.CumSum(counts, 0, exclusive=1), ids)
        slot = g.Where(there, g.Add(g.Unsqueeze(start, [1]), column), 0)
        weight = g.Where(there, g.Gather(self.weights, slot), 0.0)
        return g.cast(g.Gather(self.indices, slot), "INT64"), weight, there


class _Packed:
    """The pairs of a packed model: `packing.lookup` and `packing.all_anchors`, as nodes."""

    def __init__(self, g: Graph, config: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> None:
        self.g, self.shape = g, Shape(**config["packed"])
        self.arrays = {name: state[EMBEDDING_PREFIX + name] for name in self.shape.arrays()}
        packing.check(self.shape, self.arrays)

    def anchors(self) -> str:
        """Every anchor (K, d), shared ones first."""
        g, shape, arrays = self.g, self.shape, self.arrays
        if shape.anchor_bits == 16:
            parts = [g.cast(arrays["anchors"].view(np.float16), "FLOAT")]
        else:
            parts = [scaled(g, g.cast(arrays["anchors"], "FLOAT"), arrays["anchor_scales"])]
        if shape.whole_8:
            parts.append(scaled(g, g.cast(arrays["whole_8"], "FLOAT"), arrays["whole_8_scales"]))
        if shape.whole_4:
            parts.append(scaled(g, from_nibbles(g, arrays["whole_4"], shape.dim), arrays["whole_4_scales"]))
        return g.Concat(*parts, axis=0)

    def of(self, ids: str) -> tuple[str, str, str]:
        """Anchors and weights of tokens (n,), padded with weight 0, and which are real: each (n, k)."""
        g, shape = self.g, self.shape
        codes = bits(g, self.arrays["codes"], shape.count_bits, g.Range(0, shape.vocabulary, 1))  # (N,)
        pairs = g.Max(g.Sub(codes, 1), 0)  # in the stream: none for a row kept whole
        column, there = _columns(g, g.Max(g.Gather(pairs, ids), 1))
        start = g.Gather(g.CumSum(pairs, 0, exclusive=1), ids)
        slot = g.Where(there, g.Add(g.Unsqueeze(start, [1]), column), 0)
        word = bits(g, self.arrays["pairs"], shape.index_bits + shape.weight_bits, slot)  # (n, k)
        index = g.Mod(word, 2**shape.index_bits)
        levels = 2 ** (shape.weight_bits - 1) - 1
        share = g.Div(g.cast(g.Sub(g.Div(word, 2**shape.index_bits), levels), "FLOAT"), float(levels))
        if shape.whole_8 + shape.whole_4:
            whole = g.Unsqueeze(g.Gather(g.Equal(pairs, 0), ids), [1])  # (n, 1)
            index = g.Where(whole, g.Unsqueeze(g.Gather(self._own(codes), ids), [1]), index)
            share = g.Where(whole, 1.0, share)
        low, high = (float(end) for end in self.arrays["scale_range"])
        grid = (low * (high / low) ** (np.arange(packing.SCALE_STEPS + 1) / packing.SCALE_STEPS)).astype(np.float32)
        scale = g.Gather(grid, g.cast(g.Gather(self.arrays["scales"], ids), "INT64"))  # (n,)
        return index, g.Where(there, g.Mul(share, g.Unsqueeze(scale, [1])), 0.0), there

    def _own(self, codes: str) -> str:
        """The number of the anchor that is a token's row, for tokens whose row is kept whole: (N,)."""
        g, shape = self.g, self.shape
        fine, coarse = (g.Equal(codes, code) for code in (packing.WHOLE_8, packing.WHOLE_4))
        before = [g.CumSum(g.cast(kind, "INT64"), 0, exclusive=1) for kind in (fine, coarse)]
        return g.Where(fine, g.Add(before[0], shape.anchors), g.Add(before[1], shape.anchors + shape.whole_8))


_Pairs = _Plain | _Packed


def _columns(g: Graph, count: str) -> tuple[str, str]:
    """0, 1, ... up to the largest count (k,), and which of them each count (n,) has: (n, k)."""
    column = g.Range(0, g.ReduceMax(count, keepdims=0), 1)
    return column, g.Less(column, g.Unsqueeze(count, [1]))


def bits(g: Graph, stream: np.ndarray, width: int, places: str) -> str:
    """Numbers at these places of a stream of bits: `bits.read_bits`, as nodes."""
    bit = g.Mul(places, width)
    byte, shift = g.Div(bit, 8), g.Gather(2 ** np.arange(8), g.Mod(bit, 8))
    word = g.cast(g.Gather(stream, byte), "INT64")
    for i in range(1, -(-(width + 7) // 8)):
        word = g.Add(word, g.Mul(g.cast(g.Gather(stream, g.Add(byte, i)), "INT64"), 256**i))
    return g.Mod(g.Div(word, shift), 2**width)


def from_nibbles(g: Graph, packed: np.ndarray, dim: int) -> str:
    """What `bits.in_nibbles` packed (m, d / 2), as float32 (m, d)."""
    byte = g.Unsqueeze(g.cast(packed, "INT32"), [2])
    sixteen = np.array(16, np.int32)
    both = g.Reshape(g.Concat(g.Mod(byte, sixteen), g.Div(byte, sixteen), axis=2), [0, -1])
    return g.Sub(g.cast(g.Slice(both, [0], [dim], [1]), "FLOAT"), 8.0)


def scaled(g: Graph, numbers: str, scales: np.ndarray) -> str:
    """Rows (m, d) times their scales, which are stored in 16 bits."""
    return g.Mul(numbers, g.cast(scales.view(np.float16)[:, None], "FLOAT"))


def smallest(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers in as few bytes as the largest needs."""
    most = int(numbers.max(initial=0))
    if numbers.min(initial=0) < 0:
        raise InputError("an index or a count is below 0; the model is damaged")
    return numbers.astype(np.uint8 if most < 2**8 else np.int16 if most < 2**15 else np.int32)
