"""An embedding table in a number of bytes: codebooks over K, and ADE beside the ways people use, all measured alike.

Each method takes a table of unit rows and a budget and gives back the rows as it would serve them, with the bytes it
needs: codes, codebooks and scales all counted, numbers of codebooks in float16. None where nothing fits the budget. The
tokenizer is not counted here: it is the same whatever holds the table.
"""

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.compression.coder import CoderSettings, encode_table
from ade.distillation import count_tokens, distill
from ade.errors import InputError
from ade.packing.bits import from_half, quantised
from ade.packing.budget import distill_to_size, zipf
from ade.progress import Report, silent
from ade.settings import DistillationSettings
from ade.teachers import Teacher, load_teacher
from benchmarks.accuracy import Places, codebook_folder, codebook_for, load_rows
from benchmarks.records import Run
from benchmarks.tables import CODED, CODED_ALIKE, distillation_of

PAPER_SHAPE = (128_100, 768)
CHOOSING_ROWS, CHOOSING_ROUNDS = 20_000, 4  # the plain pairs' shape is chosen on so many rows
MOST_ANCHORS = 2_000
Compressed = tuple[np.ndarray, int] | None


def ade(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Compressed:
    """ADE, packed and budgeted."""
    try:
        codebook = distill_to_size(teacher, budget, DistillationSettings(), report=report)
    except InputError:
        return None
    return torch.cat([block for _, block in codebook.blocks()]).numpy(), codebook.nbytes


def coded(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Compressed:
    """The codes of `ade compress`, bytes by the frequency of Zipf's law, as `ade` has it."""
    return _coded(rows, zipf(len(rows)), budget, report)


def coded_alike(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Compressed:
    """The same codes, all rows counted alike."""
    return _coded(rows, torch.ones(len(rows)), budget, report)


def _coded(rows: np.ndarray, use: Tensor, budget: int, report: Report) -> Compressed:
    try:
        table = encode_table(torch.from_numpy(rows).half(), use, (), CoderSettings(budget), report=report)
    except InputError:
        return None
    found = torch.cat([table(part) for part in torch.arange(len(rows)).split(8192)])
    return found.numpy(), table.shape.nbytes("float16")


def plain_pairs(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Compressed:
    """The paper's storage: an int32 index and a float32 weight a pair, float32 anchors.

    How many pairs and how many anchors share the budget is chosen by the cosine on a sample of the rows; the codebook
    itself gets as many rounds as ours.
    """
    shapes = plain_shapes(budget, *rows.shape)
    if not shapes:
        return None
    some = np.sort(np.random.default_rng(0).permutation(len(rows))[:CHOOSING_ROWS])
    sample = Teacher(teacher.name, teacher.table[torch.from_numpy(some)], teacher.tokenizer)

    def cosine(shape: tuple[int, int]) -> float:
        pairs, anchors = shape
        settings = DistillationSettings(anchors=min(anchors, len(some)), pairs=pairs, rounds=CHOOSING_ROUNDS)
        return float(distill(sample, settings).about["cosine"])

    pairs, anchors = max(shapes, key=cosine) if len(shapes) > 1 else shapes[0]
    codebook = distill(teacher, DistillationSettings(anchors=anchors, pairs=pairs), report=report)
    return torch.cat([block for _, block in codebook.blocks()]).numpy(), codebook.paper_nbytes


def plain_shapes(budget: int, count: int, dim: int) -> list[tuple[int, int]]:
    """Every (pairs, anchors) of a table of this shape that spends the budget in the paper's storage."""
    found = []
    for pairs in range(1, budget // (8 * count) + 1):
        anchors = min(MOST_ANCHORS, count, (budget - 8 * count * pairs) // (4 * dim))
        if anchors >= max(2, pairs):
            found.append((pairs, anchors))
    return found


def product_quantiser(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Compressed:
    """faiss PQ, 8 bits a part, trained on all rows."""
    faiss: Any = import_module("faiss")
    count, dim = rows.shape
    most = (budget - 2 * 256 * dim) // count
    if most < 1:
        return None
    # Parts of as many numbers as can be, or one fewer: a zero fills these up and costs nothing.
    parts, wide = int(most), -(-dim // int(most))
    places = np.concatenate([np.arange(len(part)) + wide * i for i, part in enumerate(np.array_split(rows[0], parts))])
    filled = np.zeros((count, wide * parts), np.float32)
    filled[:, places] = rows
    coder = faiss.ProductQuantizer(wide * parts, parts, 8)
    coder.train(filled)
    return coder.decode(coder.compute_codes(filled))[:, places], count * parts + 2 * 256 * dim


def residual_quantiser(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Compressed:
    """faiss RQ, 8 bits a stage, trained on all rows."""
    faiss: Any = import_module("faiss")
    count, dim = rows.shape
    stages = int(budget // (count + 2 * 256 * dim))
    if stages < 1:
        return None
    coder = faiss.ResidualQuantizer(dim, stages, 8)
    coder.max_beam_size = 4
    coder.train(rows)
    return coder.decode(coder.compute_codes(rows)), stages * (count + 2 * 256 * dim)


def truncated_svd(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Compressed:
    """The leading directions, coordinates in int8 with a scale a row."""
    count, dim = rows.shape
    rank = int((budget - 2 * count) // (count + 2 * dim))
    if rank < 1:
        return None
    basis = np.linalg.eigh(rows.T @ rows)[1][:, ::-1][:, :rank]
    return _in_bits(rows @ basis, 8) @ basis.T, rank * (count + 2 * dim) + 2 * count


def clusters(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Compressed:
    """k-means: a token is its cluster's centre (model2vec's quantised vocabulary)."""
    faiss: Any = import_module("faiss")
    count, dim = rows.shape
    centres = int((budget - 2 * count) // (2 * dim))
    if centres < 2:
        return None
    means = faiss.Kmeans(dim, centres, niter=12, min_points_per_centroid=1, max_points_per_centroid=40, seed=0)
    means.train(rows)
    return means.centroids[means.index.search(rows, 1)[1][:, 0]], 2 * count + 2 * centres * dim


def int8_rows(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Compressed:
    """Every row in 8 bits a number, whatever the budget."""
    return _in_bits(rows, 8), rows.size + 2 * len(rows)


def int4_rows(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Compressed:
    """Every row in 4 bits a number, whatever the budget."""
    return _in_bits(rows, 4), rows.size // 2 + 2 * len(rows)


def _in_bits(rows: np.ndarray, bits: int) -> np.ndarray:
    numbers, scales = quantised(rows, bits)
    return numbers * from_half(scales)[:, None]


METHODS: dict[str, Callable[[Teacher, np.ndarray, int, Report], Compressed]] = {
    "ADE, packed": ade,
    CODED: coded,
    CODED_ALIKE: coded_alike,
    "paper's plain pairs": plain_pairs,
    "PQ (faiss)": product_quantiser,
    "RQ (faiss)": residual_quantiser,
    "SVD, int8": truncated_svd,
    "k-means": clusters,
    "int4 rows": int4_rows,
    "int8 rows": int8_rows,
}
UNSWEPT = ("int4 rows", "int8 rows")  # they have the size they have


def closeness(rows: np.ndarray, found: np.ndarray, frequency: np.ndarray, queries: int = 1000) -> dict[str, float]:
    """Cosine to unit rows: mean, weighted by frequency, 5th percentile; and how many of 10 neighbours stay the same."""
    near = F.normalize(torch.from_numpy(np.ascontiguousarray(found)).float(), dim=1)
    exact = torch.from_numpy(rows)
    cosine = (near * exact).sum(1)
    asked = torch.from_numpy(np.random.default_rng(0).permutation(len(rows))[:queries])
    kept = 0
    for some in asked.split(250):
        places = []
        for table in (exact, near):
            alike = table[some] @ table.T
            alike[torch.arange(len(some)), some] = -1
            places.append(alike.topk(min(10, len(rows) - 1)).indices)
        kept += int((places[0].unsqueeze(2) == places[1].unsqueeze(1)).sum())
    weight = torch.from_numpy(frequency / frequency.mean()).float()
    return {
        "cosine": float(cosine.mean()),
        "weighted_cosine": float((cosine * weight).mean()),
        "cosine_p5": float(torch.quantile(cosine, 0.05)),
        "recall_at_10": kept / (len(asked) * min(10, len(rows) - 1)),
    }


def run_compression(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """A codebook of the teacher at this K: what is on disk, in the paper's terms, and at the paper's width."""
    settings = distillation_of(run.settings["anchors"])
    codebook = codebook_for(places, run.settings["teacher"], settings, report)
    count, width = PAPER_SHAPE
    folder = codebook_folder(places, run.settings["teacher"], settings)
    table = 4 * codebook.vocabulary * codebook.dim
    on_disk = (folder / "codebook.safetensors").stat().st_size
    at_width = 4 * run.settings["anchors"] * width + 8 * count * settings["pairs"]
    figures = {
        "table_bytes": table,
        "bytes": on_disk,
        "ratio": table / on_disk,
        "paper_bytes": codebook.paper_nbytes,
        "paper_width_table_bytes": 4 * count * width,
        "paper_width_bytes": at_width,
        "paper_width_ratio": 4 * count * width / at_width,
        **{name: codebook.about[name] for name in ("cosine", "cosine_p5", "cosine_p50", "cosine_p95")},
    }
    return figures, {}


def run_size(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """One method at one budget: bytes, and how close the rows stay."""
    settings = run.settings
    source = places.teachers / settings["teacher"]
    teacher = load_teacher(source if source.exists() else settings["teacher"])
    texts = load_rows(places, {"data": "ag_news", "rows": 0})[0].texts
    frequency = count_tokens(teacher.tokenizer, texts, len(teacher.table)).numpy()
    return compressed(teacher, settings["method"], settings["budget"], frequency, report), {}


def frequencies_of(teacher: Teacher, corpus: Path | None) -> np.ndarray:
    """How often each token occurs in a file, or by its rank as Zipf's law has it."""
    if corpus is None:
        return zipf(len(teacher.table)).numpy()
    with open(corpus, encoding="utf8", errors="replace") as lines:
        return count_tokens(teacher.tokenizer, lines, len(teacher.table)).numpy()


def compressed(
    teacher: Teacher, method: str, budget: int, frequency: np.ndarray, report: Report = silent
) -> dict[str, Any]:
    """Bytes, seconds and closeness of one method; nothing but the budget where it cannot be kept."""
    rows = F.normalize(teacher.table.float(), dim=1).numpy()
    began = time.perf_counter()
    found = METHODS[method](teacher, rows, budget, report)
    if found is None:
        return {"bytes": 0}
    taken = time.perf_counter() - began
    return {"bytes": int(found[1]), "seconds": taken, **closeness(rows, found[0], frequency)}
