"""The table of one model in many sizes: `ade compress` beside the ways people use, all judged by the model's outputs.

Each way takes the table (V, d), a size and the expected use of the rows, and gives back the rows as it would serve them
with the bytes that it needs: codes, books and scales all counted, numbers of books and scales in float16. Special
tokens stay whole for all of them. The rows are put into the model, which then has the tasks of `compress.py`.
"""

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ade.compression.compress import compress, special_token_rows
from ade.compression.source import is_decoder, load_model, source_folder
from ade.compression.use import row_use
from ade.devices import resolve_device
from ade.progress import Report
from ade.settings import CompressionSettings, parse_size
from benchmarks.accuracy import Places
from benchmarks.compress import PREFIX, encoder_of, perplexities, similarity, tatoeba
from benchmarks.records import Run
from benchmarks.tables_compress import OURS, SOURCE

GROUP = 32  # numbers with one scale
SHRINKAGE = np.linspace(0.5, 1.0, 6, dtype=np.float32)  # scales tried, relative to the one that clips nothing
TRAINED, BEAM = 32_768, 4  # rows that RQ is trained on; codes kept while a row is coded
Served = tuple[np.ndarray, int]  # rows and bytes


def run_frontier(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """One way in one size: bytes of the table, and the tasks of the model with it; of a decoder its perplexities."""
    settings = run.settings
    with tempfile.TemporaryDirectory() as work, source_folder(places.teachers / settings["model"]) as folder:
        if settings["method"] == OURS:
            chosen = CompressionSettings(size=settings["size"], device=places.device)
            used = compress(folder, Path(work) / "model", chosen, report=report).table["after"]
            model, tokenizer = load_model(Path(work) / "model")
        else:
            model, tokenizer = load_model(folder)
            used = replace_rows(model, tokenizer, settings["method"], settings["size"], report)
        torch.nn.Module.float(model).to(resolve_device(places.device))

    rows, dim = model.config.vocab_size, model.config.hidden_size
    figures = {"bytes": used, "bits": 8 * used / (rows * dim)}
    if is_decoder(model):
        return {**figures, **perplexities(model, tokenizer, places, settings, report)}, {}

    encode = encoder_of(model, tokenizer, PREFIX.get(settings["model"], ""))
    found = tatoeba(encode, places.data / "tatoeba", settings["languages"], settings["rows"])
    judged = similarity(encode, places.data / "stsb", settings["similarity"], settings["pairs"])
    return {**figures, "tatoeba": found, "stsb": judged}, {}


@torch.no_grad()
def replace_rows(model: Any, tokenizer: Any, method: str, size: str, report: Report) -> int:
    """Put the rows that a way serves into a model, a tied head among it; returns their bytes."""
    weight = model.get_input_embeddings().weight
    if method == SOURCE:
        return weight.numel() * weight.element_size()
    table = weight.float().numpy().copy()
    use = row_use(tokenizer.backend_tokenizer, len(table), report=report).numpy()
    rows, used = METHODS[method](table, parse_size(size) if size else 0, use)

    special = special_token_rows(tokenizer, weight, used)  # the rows that ours keeps whole
    rows[special] = table[special]
    weight.data = torch.from_numpy(rows)
    return used + 2 * len(special) * table.shape[1]


def product_quantizer(table: np.ndarray, size: int, use: np.ndarray) -> Served:
    """faiss PQ, 8 bits a part; every part has as many numbers."""
    faiss: Any = import_module("faiss")
    count, dim = table.shape
    most = (size - 2 * 256 * dim) // count
    parts = max(n for n in range(1, dim + 1) if dim % n == 0 and n <= most)
    coder = faiss.ProductQuantizer(dim, parts, 8)
    coder.train(table)
    return coder.decode(coder.compute_codes(table)), count * parts + 2 * 256 * dim


def residual_quantizer(table: np.ndarray, size: int, use: np.ndarray) -> Served:
    """faiss RQ, 8 bits a stage, trained on a sample of the rows."""
    faiss: Any = import_module("faiss")
    count, dim = table.shape
    stages = size // (count + 2 * 256 * dim)
    coder = faiss.ResidualQuantizer(dim, stages, 8)
    coder.max_beam_size = 1
    chosen = np.random.default_rng(0).permutation(count)[:TRAINED]
    coder.train(np.ascontiguousarray(table[chosen]))
    coder.max_beam_size = BEAM
    return coder.decode(coder.compute_codes(table)), stages * (count + 2 * 256 * dim)


def trimmed(table: np.ndarray, size: int, use: np.ndarray) -> Served:
    """The rows of the highest expected use in 8 bits, all others as their mean; an int32 for every row says which."""
    count, dim = table.shape
    kept = np.argsort(-use, kind="stable")[: (size - 4 * count) // _group_bytes(1, dim, 8)]
    gone = np.ones(count, bool)
    gone[kept] = False
    rows = np.empty_like(table)
    rows[kept] = in_groups(table[kept], 8)
    rows[gone] = table[gone].mean(0) if gone.any() else 0
    return rows, _group_bytes(len(kept), dim, 8) + 4 * count


def in_bits(bits: int) -> Callable[[np.ndarray, int, np.ndarray], Served]:
    """All rows in so many bits a number, rounded to the nearest, with a scale for every group."""
    return lambda table, size, use: (in_groups(table, bits), _group_bytes(len(table), table.shape[1], bits))


def with_offsets(bits: int) -> Callable[[np.ndarray, int, np.ndarray], Served]:
    """All rows in so many bits a number: levels from the least to the largest of a group, kept as offset and scale."""

    def served(table: np.ndarray, size: int, use: np.ndarray) -> Served:
        rows, most = np.empty_like(table), 2**bits - 1
        for start in range(0, len(table), 16_384):
            part = table[start : start + 16_384]
            groups = part.reshape(-1, GROUP)
            least = groups.min(1, keepdims=True).astype(np.float16).astype(np.float32)
            scale = ((groups.max(1, keepdims=True) - least) / most).astype(np.float16).astype(np.float32).clip(1e-7)
            levels = np.round((groups - least) / scale).clip(0, most)
            rows[start : start + 16_384] = (levels * scale + least).reshape(part.shape)
        return rows, _group_bytes(len(table), table.shape[1], bits) + 2 * table.size // GROUP

    return served


def in_groups(table: np.ndarray, bits: int) -> np.ndarray:
    """Round to the nearest of 2 ** bits levels around zero; the scale of a group is that of least squared error."""
    found = np.empty_like(table)
    for start in range(0, len(table), 16_384):
        part = table[start : start + 16_384]
        groups = part.reshape(-1, GROUP)
        best, least = np.zeros_like(groups), np.full(len(groups), np.inf, np.float32)
        largest = np.abs(groups).max(1) / (2 ** (bits - 1) - 0.5)
        for shrunk in SHRINKAGE if bits < 8 else SHRINKAGE[-1:]:
            scale = (largest * shrunk).astype(np.float16).astype(np.float32).clip(1e-7)[:, None]
            levels = np.floor(groups / scale).clip(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            rounded = (levels + 0.5) * scale
            error = np.square(rounded - groups).sum(1)
            better = error < least
            best[better], least[better] = rounded[better], error[better]
        found[start : start + 16_384] = best.reshape(part.shape)
    return found


def _group_bytes(count: int, dim: int, bits: int) -> int:
    return count * (dim * bits // 8 + 2 * (dim // GROUP))


METHODS: dict[str, Callable[[np.ndarray, int, np.ndarray], Served]] = {
    "int8": in_bits(8),
    "int4": in_bits(4),
    "int3": in_bits(3),
    "int2": in_bits(2),
    "int4, offsets": with_offsets(4),
    "int3, offsets": with_offsets(3),
    "int2, offsets": with_offsets(2),
    "PQ (faiss)": product_quantizer,
    "RQ (faiss)": residual_quantizer,
    "trimmed vocabulary": trimmed,
}
