"""Building blocks of an ONNX graph: the graph itself, and reading packed numbers and a codebook's pairs inside it.

Whatever follows from constants alone (where each token's pairs begin, numbers out of their bits) is written as nodes on
constants: a runtime computes them once, on loading, and the file stays as small as the packed arrays.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np

from ade.errors import InputError
from ade.packing import format as packing
from ade.packing.format import Shape

OPSET = 17  # the first with LayerNormalization
IR = 8  # the file format of that time: old runtimes read it
Value = str | int | float | list[int] | np.ndarray  # the name of a node's output, or a constant


class Graph:
    """Nodes and constants, named in the order they are added: `graph.Add(x, 1)` adds a node and returns its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self._names: dict[object, str] = {}  # of equal nodes and of equal constants

    def __getattr__(self, operator: str) -> Callable[..., str]:
        if not operator[0].isupper():
            raise AttributeError(operator)
        return partial(self.node, operator)

    def node(self, operator: str, *inputs: Value, name: str = "", unused_outputs: int = 0, **attributes: Any) -> str:
        """Add a node and return the name of its first output; equal nodes are added once."""
        from onnx import helper

        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        key = (operator, *names, str(attributes), name)
        if key not in self._names:
            output = name or f"{operator}_{len(self.nodes)}"
            outputs = [output, *(f"{output}_{i + 1}" for i in range(unused_outputs))]
            self.nodes.append(helper.make_node(operator, names, outputs, **attributes))
            self._names[key] = output
        return self._names[key]

    def constant(self, value: int | float | list[int] | np.ndarray) -> str:
        """The name of a constant: integers are int64, other numbers float32, arrays keep their type."""
        if not isinstance(value, np.ndarray):
            value = np.asarray(value, np.float32 if isinstance(value, float) else np.int64)
        key = (str(value.dtype), value.shape, value.tobytes())
        if key not in self._names:
            self._names[key] = f"constant_{len(self.constants)}"
            self.constants[self._names[key]] = value
        return self._names[key]

    def cast(self, value: Value, dtype: str) -> str:
        """Cast to a type, named as ONNX names it: "FLOAT", "INT64", "BOOL"."""
        from onnx import TensorProto

        return self.Cast(value, to=getattr(TensorProto, dtype))

    def size(self, value: str, axis: int) -> str:
        """The size of an axis: ()."""
        return self.Gather(self.Shape(value), axis)

    def shape(self, *sizes: Value | list[int]) -> str:
        """Sizes, each a number or (), side by side: (number of axes,)."""
        return self.Concat(*(self.Reshape(size, [1]) for size in sizes), axis=0)

    def model(self, outputs: Mapping[str, list[str | int]]) -> bytes:
        """The serialized model: `input_ids` and `attention_mask` in, float outputs of these shapes out."""
        from onnx import TensorProto, checker, helper, numpy_helper

        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "ade",
            [info(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")],
            [info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="ade")
        model.ir_version = IR
        checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())


# -- packed numbers: `packing.format`, as nodes ----------------------------------------------------------------------


def read_bits(g: Graph, stream: np.ndarray, width: int, positions: str) -> str:
    """Unsigned numbers of `width` bits at these positions of a stream, as int64: `format.read_bits`."""
    bit = g.Mul(positions, width)
    byte, shift = g.Div(bit, 8), g.Gather(2 ** np.arange(8), g.Mod(bit, 8))

    word = g.cast(g.Gather(stream, byte), "INT64")
    for i in range(1, -(-(width + 7) // 8)):
        word = g.Add(word, g.Mul(g.cast(g.Gather(stream, g.Add(byte, i)), "INT64"), 256**i))
    return g.Mod(g.Div(word, shift), 2**width)


def unpack_nibbles(g: Graph, packed: np.ndarray, dim: int) -> str:
    """Two signed numbers a byte (m, d / 2), as float32 (m, d): `format.from_nibbles`."""
    byte = g.Unsqueeze(g.cast(packed, "INT32"), [2])
    sixteen = np.array(16, np.int32)
    both = g.Reshape(g.Concat(g.Mod(byte, sixteen), g.Div(byte, sixteen), axis=2), [0, -1])
    return g.Sub(g.cast(g.Slice(both, [0], [dim], [1]), "FLOAT"), 8.0)


def scale_rows(g: Graph, rows: str, scales: np.ndarray) -> str:
    """Rows (m, d) times their scales (m,), which are stored as the bits of float16."""
    return g.Mul(rows, g.cast(scales.view(np.float16)[:, None], "FLOAT"))


def smallest_integers(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers in as few bytes as the largest needs."""
    largest = int(numbers.max(initial=0))
    if numbers.min(initial=0) < 0:
        raise InputError("an index or a count is below 0; the model is damaged")
    return numbers.astype(np.uint8 if largest < 2**8 else np.int16 if largest < 2**15 else np.int32)


# -- pairs: `packing.pairs`, as nodes --------------------------------------------------------------------------------


class Pairs(Protocol):
    """Anchors, and the (index, weight) pairs of tokens or of lexicon entries over them."""

    def anchors(self) -> str:
        """Every anchor: (K, d)."""

    def of(self, ids: str) -> tuple[str, str, str]:
        """Indices and weights of tokens (n,), padded with weight 0, and which are real: each (n, k)."""


def pair_slots(g: Graph, counts: str, ids: str, fewest: int) -> tuple[str, str]:
    """Where the pairs of tokens (n,) lie among all pairs, of which every token has `counts` (N,): (n, k).

    Also which of the slots are real: as many as the token has, or `fewest` where that is more. Others are 0.
    """
    own = g.Max(g.Gather(counts, ids), fewest)  # (n,)
    column = g.Range(0, g.ReduceMax(own, keepdims=0), 1)  # (k,)
    real = g.Less(column, g.Unsqueeze(own, [1]))

    start = g.Gather(g.CumSum(counts, 0, exclusive=1), ids)
    return g.Where(real, g.Add(g.Unsqueeze(start, [1]), column), 0), real


class PlainPairs:
    """The pairs of a model that is not packed, one token after the other; indices in as few bytes as K needs."""

    def __init__(self, g: Graph, arrays: Mapping[str, np.ndarray]) -> None:
        self.g = g
        self.table, self.weights = arrays["anchors"].astype(np.float32), arrays["weights"].astype(np.float32)
        self.indices, self.counts = (smallest_integers(arrays[name]) for name in ("indices", "counts"))

    def anchors(self) -> str:
        """Every anchor: (K, d)."""
        return self.g.constant(self.table)

    def of(self, ids: str) -> tuple[str, str, str]:
        """Indices and weights of tokens (n,), padded with weight 0, and which are real: each (n, k)."""
        g = self.g
        slot, real = pair_slots(g, g.cast(self.counts, "INT64"), ids, 0)
        weight = g.Where(real, g.Gather(self.weights, slot), 0.0)
        return g.cast(g.Gather(self.indices, slot), "INT64"), weight, real


class PackedPairs:
    """The pairs of a packed codebook, read from its stream of bits: `format.lookup` and `format.all_anchors`."""

    def __init__(self, g: Graph, shape: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> None:
        self.g, self.shape, self.arrays = g, Shape(**shape), arrays
        packing.check(self.shape, arrays)

    def anchors(self) -> str:
        """Every anchor (K, d): shared ones first, then rows kept whole in 8 and in 4 bits."""
        g, shape, arrays = self.g, self.shape, self.arrays
        if shape.anchor_bits == 16:
            parts = [g.cast(arrays["anchors"].view(np.float16), "FLOAT")]
        else:
            parts = [scale_rows(g, g.cast(arrays["anchors"], "FLOAT"), arrays["anchor_scales"])]
        if shape.whole_8:
            parts.append(scale_rows(g, g.cast(arrays["whole_8"], "FLOAT"), arrays["whole_8_scales"]))
        if shape.whole_4:
            parts.append(scale_rows(g, unpack_nibbles(g, arrays["whole_4"], shape.dim), arrays["whole_4_scales"]))
        return g.Concat(*parts, axis=0)

    def of(self, ids: str) -> tuple[str, str, str]:
        """Indices and weights of tokens (n,), padded with weight 0, and which are real: each (n, k)."""
        g, shape = self.g, self.shape
        codes = read_bits(g, self.arrays["codes"], shape.count_bits, g.Range(0, shape.vocabulary, 1))  # (N,)
        counts = g.Max(g.Sub(codes, 1), 0)  # pairs in the stream: none for a row kept whole
        slot, real = pair_slots(g, counts, ids, 1)

        word = read_bits(g, self.arrays["pairs"], shape.index_bits + shape.weight_bits, slot)  # (n, k)
        index = g.Mod(word, 2**shape.index_bits)
        levels = 2 ** (shape.weight_bits - 1) - 1
        weight = g.Div(g.cast(g.Sub(g.Div(word, 2**shape.index_bits), levels), "FLOAT"), float(levels))

        if shape.whole_8 + shape.whole_4:
            whole = g.Unsqueeze(g.Gather(g.Equal(counts, 0), ids), [1])  # (n, 1)
            index = g.Where(whole, g.Unsqueeze(g.Gather(self._own_anchors(codes), ids), [1]), index)
            weight = g.Where(whole, 1.0, weight)

        low, high = (float(end) for end in self.arrays["scale_range"])
        grid = (low * (high / low) ** (np.arange(packing.SCALE_STEPS + 1) / packing.SCALE_STEPS)).astype(np.float32)
        scale = g.Gather(grid, g.cast(g.Gather(self.arrays["scales"], ids), "INT64"))  # (n,)
        return index, g.Where(real, g.Mul(weight, g.Unsqueeze(scale, [1])), 0.0), real

    def _own_anchors(self, codes: str) -> str:
        """For each token whose row is kept whole, the index of the anchor that is its row: (N,)."""
        g, shape = self.g, self.shape
        fine, coarse = (g.Equal(codes, code) for code in (packing.WHOLE_8, packing.WHOLE_4))
        before = [g.CumSum(g.cast(kind, "INT64"), 0, exclusive=1) for kind in (fine, coarse)]
        return g.Where(fine, g.Add(before[0], shape.anchors), g.Add(before[1], shape.anchors + shape.whole_8))
