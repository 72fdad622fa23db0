"""ONNX of an encoder with a packed table: codes stay codes, and the graph decodes the rows that it reads.

`model.onnx` maps `input_ids` and `attention_mask` to `last_hidden_state`. The packed table is stored as in the folder;
float16 weights stay float16 in the file. All is computed in float32. The file is written only where ONNX Runtime gives
the hidden states that PyTorch gives.
"""

import io
import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ade.compression.folder import read_json, transformer_folder
from ade.compression.head import CodedEmbedding
from ade.compression.quantizer import METHOD
from ade.compression.replacement import coded_modules
from ade.compression.source import is_decoder, load_model
from ade.compression.table import ENTRIES, WHOLE, PackedTable
from ade.errors import InputError, first_line
from ade.files import MARKER, new_folder
from ade.integrations.onnx_export import FP32, ROUNDING, Batch, ExportedFile, check_installed, session_of
from ade.progress import quiet

OPSET = 17
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "last_hidden_state"
BATCH_SHAPES = ((1, 1), (3, 2), (16, 7), (8, 24), (2, 128))  # texts x tokens of the batches compared
TRACED = (2, 5)  # texts x tokens that the graph is traced with
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


class Lookup(nn.Module):
    """A packed embedding in operations that ONNX has, for ids (B, L) of any size."""

    depths: Tensor
    exact: Tensor
    mean: Tensor
    rotation: Tensor
    rotation_scale: Tensor

    def __init__(self, embedding: CodedEmbedding) -> None:
        super().__init__()
        table: PackedTable = embedding.packed
        self.shape, self.scale = table.shape, embedding.scale
        for name, array in table.state_dict().items():
            self.register_buffer(name, array)
        if self.exact.dtype == torch.bfloat16:  # few runtimes have it
            self.exact = self.exact.float()

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ids (B, L): (B, L, d), float32."""
        coded = self.slots()[ids].long() - self.shape.exact  # place among the coded rows, below 0 for whole ones
        total = coded[..., None].float() * 0  # (B, L, 1), whatever the number of stages
        for number, stage in enumerate(self.shape.stages):
            known = (coded < stage.rows)[..., None]
            total = total + self.decoded(number, coded.clamp(0, stage.rows - 1)) * known

        rows = self.mean + total @ (self.rotation.float() * self.rotation_scale)
        if self.shape.exact:
            whole = self.exact[coded.clamp(-self.shape.exact, -1) + self.shape.exact].float()
            rows = torch.where((coded < 0)[..., None], whole, rows)
        return rows if self.scale is None else rows * self.scale

    def decoded(self, number: int, places: Tensor) -> Tensor:
        """Return what a stage adds to the rows at these places (B, L): (B, L, d)."""
        book = self.get_buffer(f"book_{number}").float() * self.get_buffer(f"scale_{number}")  # (pieces, ENTRIES, w)
        codes = self.get_buffer(f"codes_{number}")[:, places].long()  # (pieces, B, L)
        first = torch.arange(len(book))[:, None, None] * ENTRIES  # entry of each piece's book
        return book.flatten(0, 1)[codes + first].permute(1, 2, 0, 3).flatten(2)

    def slots(self) -> Tensor:
        """Return the place of every row (V,), as `PackedTable` has it, from the packed depths.

        Runtimes compute this once, on loading: it depends on no input.
        """
        pairs = self.depths.int()
        depths = torch.stack([pairs % 16, pairs // 16], 1).flatten()[: self.shape.rows]  # (V,)
        counts = [stage.rows for stage in self.shape.stages]  # rows with more than 0, 1, ... stages
        found = depths * 0  # not zeros, which would be stored
        for depth in (WHOLE, *range(len(counts) + 1)):
            before = 0 if depth == WHOLE else self.shape.exact + (counts[depth] if depth < len(counts) else 0)
            same = (depths == depth).int()
            found = found + same * (same.cumsum(0, dtype=torch.int32) - 1 + before)
        return found


class _States(nn.Module):
    """An encoder as a function of two tensors."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the last hidden states (B, L, d)."""
        return self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def is_compressed(folder: Path) -> bool:
    """Whether this is the folder of a model whose tables `ade compress` has packed."""
    try:
        config = read_json(folder / transformer_folder(folder) / MARKER)
    except InputError:
        return False
    quantization = config.get("quantization_config") if isinstance(config, dict) else None
    return isinstance(quantization, dict) and quantization.get("quant_method") == METHOD


def export_encoder(
    source: str | Path, out: str | Path, overwrite: bool = False, seed: int = 0
) -> tuple[ExportedFile, ...]:
    """Write a compressed encoder as ONNX, with its tokenizer and config.

    The hidden states are first compared with PyTorch's on random texts, drawn from `seed`; where they differ, nothing
    is written and an `InputError` is raised.
    """
    with new_folder(Path(out), {FP32}, overwrite) as draft:
        return write_encoder(Path(source), draft, seed)


def write_encoder(source: Path, folder: Path, seed: int = 0) -> tuple[ExportedFile, ...]:
    """Write the files of an export into a folder that exists."""
    check_installed()
    inner = source / transformer_folder(source)
    body = _body(source)
    batches = list(_random_batches(body.config, seed))
    expected = _pytorch_states(body, batches)
    data = _traced(body)
    compared = _compare(data, batches, expected)

    (folder / FP32).write_bytes(data)
    for name in TOKENIZER:
        if (inner / name).is_file():
            shutil.copyfile(inner / name, folder / name)
    config = read_json(inner / MARKER)
    del config["quantization_config"]  # of the safetensors file
    (folder / MARKER).write_text(json.dumps(config, indent=2) + "\n", "utf8")
    return (compared,)


def _body(source: Path) -> Any:
    """Load the encoder, in float32."""
    model, _ = load_model(source)
    if is_decoder(model) or model.config.is_encoder_decoder:
        raise InputError(f"{source}: {type(model).__name__} is not an encoder; only encoders are exported to ONNX")
    body = nn.Module.float(model.base_model)  # transformers refuses it for quantized models; packed arrays stay
    body.set_attn_implementation("eager")
    return body.eval()


def _traced(body: Any) -> bytes:
    """Return the graph of an encoder, its packed table as it is stored."""
    ids = torch.arange(TRACED[0] * TRACED[1]).reshape(TRACED)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    axes = {name: {0: "batch", 1: "length"} for name in (*INPUTS, OUTPUT)}
    file: Any = io.BytesIO()  # taken by every release, though not by the annotations of all
    embeddings = {name: module for name, module in coded_modules(body).items() if isinstance(module, CodedEmbedding)}
    for name, module in embeddings.items():
        body.set_submodule(name, Lookup(module))

    try:
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")  # about the exporter, and about Python values that are constant here
            torch.onnx.export(
                _States(body), (ids, mask), file, input_names=list(INPUTS), output_names=[OUTPUT], dynamic_axes=axes,
                opset_version=OPSET, do_constant_folding=False, dynamo=False,
            )  # fmt: skip
    except Exception as error:  # of the exporter: an operation that it does not know
        raise InputError(f"{type(body).__name__} cannot be exported to ONNX ({first_line(error)})") from None
    return _halved(file.getvalue())


def _halved(data: bytes) -> bytes:
    """Store float32 arrays that float16 can hold in float16, cast in the graph; runtimes do that once, on loading."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load_model_from_string(data)
    casts = []
    for stored in model.graph.initializer:
        if stored.data_type != onnx.TensorProto.FLOAT:
            continue
        array = numpy_helper.to_array(stored)
        with np.errstate(over="ignore"):
            half = array.astype(np.float16)
        if array.size > 1 and np.array_equal(half.astype(np.float32), array):
            name = stored.name
            stored.CopyFrom(numpy_helper.from_array(half, f"{name}.half"))
            casts.append(helper.make_node("Cast", [f"{name}.half"], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model.SerializeToString()


def _random_batches(config: Any, seed: int) -> Iterator[Batch]:
    """Random texts in batches of several shapes, padded as the model's tokenizer pads."""
    generator = np.random.default_rng(seed)
    longest = getattr(config, "max_position_embeddings", 0) or max(length for _, length in BATCH_SHAPES)
    padding = config.pad_token_id or 0
    for batch, length in BATCH_SHAPES:
        length = max(1, min(length, longest - padding - 2))  # some count positions from after the padding id
        mask = np.arange(length) < generator.integers(1, length + 1, (batch, 1))
        mask[0] = True
        ids = np.where(mask, generator.integers(padding + 1, config.vocab_size, mask.shape), padding)
        yield ids, mask.astype(np.int64)


@torch.inference_mode()
def _pytorch_states(body: Any, batches: list[Batch]) -> list[np.ndarray]:
    states = _States(body)
    return [states(torch.from_numpy(ids), torch.from_numpy(mask)).numpy() for ids, mask in batches]


def _compare(data: bytes, batches: list[Batch], expected: list[np.ndarray]) -> ExportedFile:
    """Refuse a graph whose hidden states differ from PyTorch's by more than rounding."""
    session = session_of(data)
    found = [session.run([OUTPUT], dict(zip(INPUTS, batch, strict=True)))[0] for batch in batches]
    error = max(float(np.abs(one - other).max()) for one, other in zip(found, expected, strict=True))
    top = max(float(np.abs(states).max()) for states in expected)
    if not error <= ROUNDING * max(1.0, top):  # nor where it is NaN
        raise InputError(f"{FP32}: {error:.2g} off PyTorch, where the largest number is {top:.2g}; nothing was written")
    spread = max(float(states.max()) for states in expected) - min(float(states.min()) for states in expected)
    return ExportedFile(FP32, len(data), error, spread, 1.0)
