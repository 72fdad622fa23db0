"""ONNX: a model for other runtimes, written only where its outputs are the model's own.

Torch's exporter traces the forward pass of training, with the parts of `onnx_parts` in place of the model's own.
Tokenizer and `config.json` go with the graph: all that a runtime without Python needs. An encoder of `ade compress`
keeps its coded table, and gets a second graph, its linear layers in 4 bits.
"""

import io
import json
import logging
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ade import __version__
from ade.codebook import Codebook
from ade.coded_layer import PackedTable
from ade.compression.checkpoint import load_model, read_json, transformer_folder
from ade.compression.outputs import is_decoder
from ade.compression.quantizer import is_compressed
from ade.configuration import ENCODER, TAGGER
from ade.data.problems import MULTI, REGRESSION
from ade.data.tokens import special_tokens_around
from ade.errors import InputError, first_line
from ade.files import MARKER, new_folder
from ade.folder import Saved
from ade.integrations.onnx_parts import ComputedPositions, LexiconInBytes, PairsInBytes, halve, linear_layers_in_bytes
from ade.model import model_of
from ade.progress import quiet
from ade.trained_model import TrainedModel, load

ONNX, Q4 = "model.onnx", "model_q4.onnx"
LIMITS = {ONNX: 1e-4, Q4: 0.4}  # norm of a file's error, relative to that of the model's own outputs
OPSET = 17
INPUTS = ("input_ids", "attention_mask")
STATES, POOLED = "last_hidden_state", "sentence_embedding"  # outputs of compressed encoders
COMPARED = ((1, 1), (3, 2), (16, 7), (8, 24), (2, 1024))  # texts x tokens of the batches compared
BLOCK = 32  # weights of a linear layer with a common scale, in 4 bits
Batch = tuple[Tensor, Tensor]  # token ids and mask, (B, L) int64 each


@dataclass(frozen=True)
class ExportedFile:
    """A file of an export."""

    file: str
    bytes: int
    error: float  # norm of the difference from the model's own outputs, relative to their norm


def export(source: str | Path | TrainedModel, folder: str | Path, overwrite: bool = False) -> tuple[ExportedFile, ...]:
    """Write a classifier, an encoder or a compressed encoder as ONNX, with its tokenizer and labels.

    The files are first compared with the model on random texts; where one differs, nothing is written and an
    `InputError` is raised.
    """
    import onnxruntime.quantization  # noqa: F401 - where it is missing, an error before the work

    with new_folder(Path(folder), {ONNX}, overwrite) as draft:
        if isinstance(source, TrainedModel):
            return _write_model(source, draft)
        if is_compressed(Path(source)):
            return _write_compressed(Path(source), draft)
        return _write_model(load(source), draft)


class Exported(nn.Module):
    """A model as a function of token ids and mask (B, L)."""

    outputs: tuple[str, ...]  # the names of what it returns

    def graph(self) -> bytes:
        """Return the graph, for any number of texts and tokens."""
        ids = torch.ones(2, 5, dtype=torch.long)
        mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
        axes = {name: {0: "batch", 1: "length"} for name in (*INPUTS, *self.outputs)}
        axes |= {name: {0: "batch"} for name in self.outputs if name != STATES}
        file: Any = io.BytesIO()
        try:
            with warnings.catch_warnings(), quiet():
                warnings.simplefilter("ignore")  # the newer exporter takes half a minute, and needs another package
                torch.onnx.export(
                    self, (ids, mask), file, input_names=list(INPUTS), output_names=list(self.outputs),
                    dynamic_axes=axes, opset_version=OPSET, do_constant_folding=False, dynamo=False,
                )  # fmt: skip
        except Exception as error:  # of the exporter: an operation that it does not know
            raise InputError(f"this model cannot be exported to ONNX ({first_line(error)})") from None
        return file.getvalue()


def _random_batches(sources: Sequence[np.ndarray], longest: int) -> list[Batch]:
    """Return batches of several shapes; their texts, of random lengths, are cut from the sources in turn."""
    generator, batches = np.random.default_rng(0), []
    for rows, length in COMPARED:
        columns = np.arange(max(1, min(length, longest)))
        mask = columns < generator.integers(1, len(columns) + 1, (rows, 1))
        mask[0] = True
        texts = []
        for row in range(rows):
            source = sources[row % len(sources)]
            texts.append(source[(generator.integers(len(source)) + columns) % len(source)])
        batches.append((torch.from_numpy(np.stack(texts)), torch.from_numpy(mask).long()))
    return batches


def _compare(name: str, graph: bytes, batches: list[Batch], expected: list[Sequence[Tensor]]) -> ExportedFile:
    """Raise `InputError` for a graph whose outputs are not the expected ones."""
    session, squares = session_of(graph), np.zeros(2)
    for (ids, mask), own in zip(batches, expected, strict=True):
        outputs = session.run(None, dict(zip(INPUTS, (ids.numpy(), mask.numpy()), strict=True)))
        for output, wanted in zip(outputs, own, strict=True):
            squares += np.square(output - wanted.numpy()).sum(), wanted.square().sum().item()
    error = float(np.sqrt(squares[0] / max(squares[1], 1e-12)))
    if not error <= LIMITS[name]:  # nor where it is NaN
        raise InputError(f"{name}: {error:.2g} off the model, at most {LIMITS[name]:.2g} would do; nothing was written")
    return ExportedFile(name, len(graph), error)


def session_of(graph: bytes) -> Any:
    """Load a graph into ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


# -- classifiers and encoders ----------------------------------------------------------------------------------------


def _write_model(source: TrainedModel, folder: Path) -> tuple[ExportedFile]:
    config = source.saved.config
    if config.kind == TAGGER:
        raise InputError("ONNX is for classifiers and encoders; this is a tagger")
    if config.attend != "tokens":
        raise InputError("ONNX is for attention over tokens; this model attends over anchors")
    saved = source.saved.rounded()  # as it is stored
    vocabulary, generator = saved.table.vocabulary, np.random.default_rng(0)
    sources = [generator.permutation(vocabulary)]
    if saved.lexicon is not None:  # bigrams at random are hardly ever entries
        keys = generator.permutation(saved.lexicon.keys)
        tokens = np.stack([keys // vocabulary - 1, keys % vocabulary], 1).ravel()  # of a token, the first is -1
        sources.insert(0, tokens[tokens >= 0])
    batches = _random_batches(sources, config.max_tokens * 4 // 3 + 1)

    model = Scores(saved).eval()
    with torch.inference_mode():
        expected = [model(*batch) for batch in batches]
    model.store_in_bytes(saved)
    graph = model.graph()
    file = _compare(ONNX, graph, batches, expected)

    (folder / ONNX).write_bytes(graph)
    source.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    before, after = special_tokens_around(source.tokenizer)
    described: dict[str, Any] = {
        "ade": __version__,
        "max_tokens": config.max_tokens,  # that attention reads
        "max_length": source.tokens_read,  # to which a text is truncated
        "before": before,  # special tokens around every text, within max_length
        "after": after,
    }
    if config.kind == ENCODER:
        described["dim"] = config.output_size
    else:
        described |= {"problem": config.problem, "labels": list(config.labels)}
    (folder / MARKER).write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", "utf8")
    return (file,)


class Scores(Exported):
    """A classifier or an encoder."""

    def __init__(self, saved: Saved) -> None:
        super().__init__()
        self.model: Any = model_of(saved)
        self.problem = saved.config.problem
        self.outputs = ("embeddings",) if saved.config.kind == ENCODER else ("logits", "probabilities")
        if self.problem == REGRESSION:
            self.outputs = ("logits",)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return scores (B, C) and, where the problem has any, probabilities (B, C); or unit vectors (B, D)."""
        scores = self.model(ids, mask)[0]
        if len(self.outputs) == 1:
            return (scores,)
        return scores, scores.sigmoid() if self.problem == MULTI else scores.softmax(1)

    def store_in_bytes(self, saved: Saved) -> None:
        """Put parts that are stored in whole bytes in place of the model's own."""
        model, config = self.model, saved.config
        if isinstance(saved.table, Codebook):
            model.ade.embedding = PairsInBytes(saved.table)
        else:
            model.ade.embedding = PackedTable.of_table(saved.table)
        if config.positions != "none":
            model.ade.positions = ComputedPositions(saved.table.dim, config.position_scale)
        if saved.lexicon is not None:
            model.lexicon = LexiconInBytes(saved.lexicon)
        linear_layers_in_bytes(model, config.layer_bits)
        halve(model)


# -- compressed encoders -----------------------------------------------------------------------------------------------


def _write_compressed(source: Path, folder: Path) -> tuple[ExportedFile, ...]:
    model = States(source)
    config = model.body.config
    padding, longest = config.pad_token_id or 0, getattr(config, "max_position_embeddings", 1024)
    ids = np.random.default_rng(0).permutation(np.arange(padding + 1, config.vocab_size))
    batches = _random_batches([ids], longest - padding - 2)  # some count positions from after the padding
    with torch.inference_mode():
        expected = [model(*batch) for batch in batches]
    linear_layers_in_bytes(model)
    graphs = {Q4: _in_four_bits(model.graph())}
    halve(model)
    graphs = {ONNX: model.graph(), **graphs}
    files = tuple(_compare(name, graph, batches, expected) for name, graph in graphs.items())

    inner = source / transformer_folder(source)
    for name, graph in graphs.items():
        (folder / name).write_bytes(graph)
    for path in inner.glob("*token*.json"):  # tokenizer.json, tokenizer_config.json, special_tokens_map.json
        shutil.copyfile(path, folder / path.name)
    described = read_json(inner / MARKER)
    del described["quantization_config"]  # of the safetensors file
    (folder / MARKER).write_text(json.dumps(described, indent=2) + "\n", "utf8")
    return files


class States(Exported):
    """A compressed encoder: hidden states and, with the modules of sentence-transformers, vectors of texts."""

    def __init__(self, source: Path) -> None:
        super().__init__()
        model, _ = load_model(source)
        if is_decoder(model) or model.config.is_encoder_decoder:
            raise InputError(f"{source}: {type(model).__name__} is not an encoder; only encoders are exported to ONNX")
        self.body: Any = nn.Module.float(model.base_model)  # transformers refuses it for quantized models
        self.body.set_attn_implementation("eager")
        self.modules_after, self.outputs = nn.ModuleList(), (STATES,)
        if (source / "modules.json").is_file():
            from sentence_transformers import SentenceTransformer

            self.modules_after.extend(list(SentenceTransformer(str(source), device="cpu"))[1:])
            self.outputs = (STATES, POOLED)
        self.eval()

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return the last hidden states (B, L, d) and, with a pooling, the vectors of texts (B, d)."""
        states = self.body(input_ids=ids, attention_mask=mask).last_hidden_state
        features = {"token_embeddings": states, "attention_mask": mask}
        for module in self.modules_after:
            features = module(features)
        return (states, features[POOLED]) if POOLED in features else (states,)


def _in_four_bits(graph: bytes) -> bytes:
    """Return a graph with every product with a stored matrix in 4 bits: ONNX Runtime's operator MatMulNBits."""
    import onnx

    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)  # the quantizer would set up logging for the whole process
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    logging.getLogger().removeHandler(handler)
    quantizer = MatMulNBitsQuantizer(onnx.load_model_from_string(graph), block_size=BLOCK, is_symmetric=False)
    quantizer.process()
    return quantizer.model.model.SerializeToString()
