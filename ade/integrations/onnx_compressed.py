"""ONNX of an encoder with a packed table: codes stay codes, and the graph decodes the rows that it reads.

`model.onnx` maps `input_ids` and `attention_mask` to `last_hidden_state` and, for a sentence-transformers folder that
takes the mean or the first token, to `sentence_embedding`. The packed table is stored as in the folder; float16 weights
stay float16 in the file. All is computed in float32. The file is written only where ONNX Runtime gives the hidden
states that PyTorch gives. `model_q4.onnx` has the linear layers in 4 bits, too.
"""

import io
import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
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
from ade.compression.table import PackedTable
from ade.errors import InputError, first_line
from ade.files import MARKER, new_folder
from ade.integrations.onnx_export import AGREEMENT, FP32, ROUNDING, Batch, ExportedFile, check_installed, session_of
from ade.integrations.onnx_four_bits import in_four_bits
from ade.packing.coded import ENTRIES, WHOLE
from ade.progress import quiet

OPSET = 17
Q4 = "model_q4.onnx"
INPUTS, OUTPUT, POOLED = ("input_ids", "attention_mask"), "last_hidden_state", "sentence_embedding"
MODULES, POOLING, NORMALIZE = "modules.json", "1_Pooling", "Normalize"  # of sentence-transformers
ALIKE = 0.9  # cosine of a hidden state in 4 bits with the one before
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
    gains: Tensor

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

        if self.shape.stages:
            depth = sum((coded < stage.rows).long() for stage in self.shape.stages[1:]) + coded * 0
            total = total * self.gains[depth][..., None]
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


@dataclass(frozen=True)
class Pooling:
    """How a sentence-transformers folder makes one vector of the hidden states of a text."""

    first: bool  # the first token's; else the mean
    unit: bool  # of length 1

    @classmethod
    def of(cls, folder: Path) -> "Pooling | None":
        """Return the pooling of a folder; None where it has none, or one of another kind."""
        if not (folder / MODULES).is_file() or not (folder / POOLING / MARKER).is_file():
            return None
        modules, config = read_json(folder / MODULES), read_json(folder / POOLING / MARKER)
        mode = config.get("pooling_mode")
        chosen = (
            {str(mode)} if mode else {name for name, on in config.items() if name.startswith("pooling_mode_") and on}
        )
        unit = any(str(module["type"]).endswith(NORMALIZE) for module in modules)
        first, mean = chosen <= {"cls", "pooling_mode_cls_token"}, chosen <= {"mean", "pooling_mode_mean_tokens"}
        return cls(first, unit) if chosen and (first or mean) and len(modules) == 2 + unit else None

    def __call__(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of texts (B, d)."""
        if self.first:
            found = states[:, 0]
        else:
            there = mask[..., None].float()
            found = (states * there).sum(1) / there.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(found, dim=1) if self.unit else found


class _States(nn.Module):
    """An encoder as a function of two tensors."""

    def __init__(self, body: Any, pooling: Pooling | None = None) -> None:
        super().__init__()
        self.body, self.pooling = body, pooling

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Return the last hidden states (B, L, d) and, with a pooling, the vectors of texts (B, d)."""
        states = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return (states,) if self.pooling is None else (states, self.pooling(states, attention_mask))


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
    body, pooling = _body(source), Pooling.of(source)
    batches = list(_random_batches(body.config, seed))
    expected = _pytorch_outputs(_States(body, pooling), batches)
    whole = _traced(body, pooling)
    files = {FP32: _halved(whole), Q4: _halved(in_four_bits(whole))}
    compared = (_compare(files[FP32], batches, expected), _compare_rounded(files[Q4], batches, expected))

    for name, data in files.items():
        (folder / name).write_bytes(data)
    for name in TOKENIZER:
        if (inner / name).is_file():
            shutil.copyfile(inner / name, folder / name)
    config = read_json(inner / MARKER)
    del config["quantization_config"]  # of the safetensors file
    (folder / MARKER).write_text(json.dumps(config, indent=2) + "\n", "utf8")
    return compared


def _body(source: Path) -> Any:
    """Load the encoder, in float32."""
    model, _ = load_model(source)
    if is_decoder(model) or model.config.is_encoder_decoder:
        raise InputError(f"{source}: {type(model).__name__} is not an encoder; only encoders are exported to ONNX")
    body = nn.Module.float(model.base_model)  # transformers refuses it for quantized models; packed arrays stay
    body.set_attn_implementation("eager")
    return body.eval()


def _traced(body: Any, pooling: Pooling | None) -> bytes:
    """Return the graph of an encoder, its packed table as it is stored."""
    ids = torch.arange(TRACED[0] * TRACED[1]).reshape(TRACED)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    axes = {name: {0: "batch", 1: "length"} for name in (*INPUTS, OUTPUT)} | {POOLED: {0: "batch"}}
    outputs = [OUTPUT] if pooling is None else [OUTPUT, POOLED]
    file: Any = io.BytesIO()  # taken by every release, though not by the annotations of all
    embeddings = {name: module for name, module in coded_modules(body).items() if isinstance(module, CodedEmbedding)}
    for name, module in embeddings.items():
        body.set_submodule(name, Lookup(module))

    try:
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")  # about the exporter, and about Python values that are constant here
            torch.onnx.export(
                _States(body, pooling), (ids, mask), file, input_names=list(INPUTS), output_names=outputs,
                dynamic_axes={name: axes[name] for name in (*INPUTS, *outputs)}, opset_version=OPSET,
                do_constant_folding=False, dynamo=False,
            )  # fmt: skip
    except Exception as error:  # of the exporter: an operation that it does not know
        raise InputError(f"{type(body).__name__} cannot be exported to ONNX ({first_line(error)})") from None
    return file.getvalue()


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
def _pytorch_outputs(model: _States, batches: list[Batch]) -> list[list[np.ndarray]]:
    return [[output.numpy() for output in model(*map(torch.from_numpy, batch))] for batch in batches]


def _onnx_outputs(data: bytes, batches: list[Batch]) -> list[list[np.ndarray]]:
    session = session_of(data)
    return [session.run(None, dict(zip(INPUTS, batch, strict=True))) for batch in batches]


def _compare(data: bytes, batches: list[Batch], expected: list[list[np.ndarray]]) -> ExportedFile:
    """Refuse a graph whose outputs differ from PyTorch's by more than rounding."""
    error = _largest_difference(_onnx_outputs(data, batches), expected)
    top = max(float(np.abs(states).max()) for states, *_ in expected)
    if not error <= ROUNDING * max(1.0, top):  # nor where it is NaN
        raise InputError(f"{FP32}: {error:.2g} off PyTorch, where the largest number is {top:.2g}; nothing was written")
    return ExportedFile(FP32, len(data), error, _spread(expected), 1.0)


def _compare_rounded(data: bytes, batches: list[Batch], expected: list[list[np.ndarray]]) -> ExportedFile:
    """Refuse a graph in 4 bits whose hidden states point elsewhere; `same` is the share of those that do not."""
    found = _onnx_outputs(data, batches)
    cosines = []
    for (ours, *_), (theirs, *_), (_, mask) in zip(found, expected, batches, strict=True):
        products = (ours * theirs).sum(2) / (np.linalg.norm(ours, axis=2) * np.linalg.norm(theirs, axis=2) + 1e-12)
        cosines.append(products[mask.astype(bool)])
    same = float((np.concatenate(cosines) > ALIKE).mean())
    if not same >= AGREEMENT:
        raise InputError(f"{Q4}: {1 - same:.0%} of the hidden states point elsewhere in 4 bits; nothing was written")
    return ExportedFile(Q4, len(data), _largest_difference(found, expected), _spread(expected), same)


def _largest_difference(found: list[list[np.ndarray]], expected: list[list[np.ndarray]]) -> float:
    pairs = [pair for ours, theirs in zip(found, expected, strict=True) for pair in zip(ours, theirs, strict=True)]
    return max(float(np.abs(one - other).max()) for one, other in pairs)


def _spread(expected: list[list[np.ndarray]]) -> float:
    return max(float(states.max()) for states, *_ in expected) - min(float(states.min()) for states, *_ in expected)
