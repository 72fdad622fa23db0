"""Linear layers of an ONNX graph in 4 bits: `MatMulNBits`, an operator of ONNX Runtime and of onnxruntime-web.

The weights of a layer are cut into blocks along its inputs; each block has a float16 scale and a zero point of 4 bits:
(code - zero) * scale.
"""

from typing import Any

import numpy as np

BLOCKS = (64, 32, 16)  # numbers of a block: the first that divides the inputs of a layer
TOP = 15  # the highest code
SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)  # of a block's range that the codes may span; the best is taken
DOMAIN = "com.microsoft"


def in_four_bits(data: bytes) -> bytes:
    """Return a graph with every product with a stored matrix in 4 bits; everything else stays as it is."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load_model_from_string(data)
    graph = model.graph
    stored = {array.name: array for array in graph.initializer}
    transposed = {node.output[0]: node.input[0] for node in graph.node if _turns(node) and node.input[0] in stored}
    made: list[Any] = []
    for node in graph.node:
        if node.op_type != "MatMul" or node.input[1] not in transposed:
            continue
        name = transposed[node.input[1]]
        weight = numpy_helper.to_array(stored[name])  # (outputs, inputs)
        block = next((size for size in BLOCKS if weight.shape[1] % size == 0), None)
        if weight.dtype != np.float32 or block is None:
            continue
        parts = dict(zip(("codes", "scales", "zeros"), quantized(weight, block), strict=True))
        made += [numpy_helper.from_array(array, f"{name}.{part}") for part, array in parts.items()]
        small = helper.make_node(
            "MatMulNBits", [node.input[0], *(f"{name}.{part}" for part in parts)], list(node.output), node.name,
            domain=DOMAIN, K=weight.shape[1], N=weight.shape[0], bits=4, block_size=block,
        )  # fmt: skip
        node.CopyFrom(small)
    graph.initializer.extend(made)
    _drop_unused(graph)
    if made:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return model.SerializeToString()


def quantized(weight: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes, scales and zero points of a matrix (N, K), as `MatMulNBits` takes them.

    Codes (N, blocks, block / 2) uint8, two a byte; scales (N * blocks,) float32 that float16 can hold; zero points
    (N * bytes,) uint8, two a byte in each row.
    """
    blocks = weight.reshape(len(weight), -1, block)  # (N, blocks, block)
    low, high = np.minimum(blocks.min(2), 0), np.maximum(blocks.max(2), 0)
    best = np.full(low.shape, np.inf)
    codes, scales = np.zeros(blocks.shape, np.uint8), np.zeros(low.shape, np.float32)
    zeros = np.zeros(low.shape, np.uint8)
    for share in SHARES:
        scale = np.maximum((high - low) * share / TOP, 1e-7).astype(np.float16).astype(np.float32)
        zero = np.clip(np.round(-low * share / scale), 0, TOP)
        code = np.clip(np.round(blocks / scale[..., None]) + zero[..., None], 0, TOP)
        error = np.square((code - zero[..., None]) * scale[..., None] - blocks).sum(2)
        better = error < best
        best[better], scales[better], zeros[better], codes[better] = (
            error[better], scale[better], zero[better], code[better],
        )  # fmt: skip
    zeros = np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2)))
    return codes[..., ::2] | codes[..., 1::2] << 4, scales.flatten(), (zeros[:, ::2] | zeros[:, 1::2] << 4).flatten()


def _turns(node: Any) -> bool:
    return node.op_type == "Transpose" and list(node.attribute[0].ints) == [1, 0]


def _drop_unused(graph: Any) -> None:
    """Remove transpositions and arrays that nothing reads any more."""
    wanted = {output.name for output in graph.output} | {name for node in graph.node for name in node.input}
    nodes = [node for node in graph.node if not _turns(node) or node.output[0] in wanted]
    used = {name for node in nodes for name in node.input}
    arrays = [array for array in graph.initializer if array.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(arrays)
