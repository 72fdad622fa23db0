"""Ways to squeeze an embedding table into a number of bytes: ours and those people use, all measured alike.

Each takes a table of unit rows and a budget and gives back the rows as it would serve them, with the bytes it needs:
codes, codebooks and scales all counted, numbers of codebooks in float16. None where nothing fits the budget.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ade.distillation import distill
from ade.errors import InputError
from ade.packing.format import from_half, quantised
from ade.progress import Report
from ade.settings import DistillationSettings
from ade.teachers import Teacher

SAMPLE = 40_000  # rows that codebooks of peers are trained on
Squeezed = tuple[np.ndarray, int] | None


def ade(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Squeezed:
    """ADE, packed and budgeted."""
    try:
        codebook = distill(teacher, DistillationSettings(size=str(budget)), report=report)
    except InputError:
        return None
    return torch.cat([block for _, block in codebook.blocks()]).numpy(), codebook.nbytes


def plain_pairs(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Squeezed:
    """The paper's storage: an int32 index and a float32 weight a pair, float32 anchors."""
    count, dim = rows.shape
    pairs = max(1, int((budget - 4 * 100 * dim) // (8 * count)))
    anchors = min(500, (budget - 8 * count * pairs) // (4 * dim))
    if anchors < pairs or anchors < 2:
        return None
    codebook = distill(teacher, DistillationSettings(anchors=int(anchors), pairs=pairs, rounds=6), report=report)
    return torch.cat([block for _, block in codebook.blocks()]).numpy(), codebook.paper_nbytes


def product_quantiser(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Squeezed:
    """faiss PQ, 8 bits a part."""
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
    coder.train(_sample(filled))
    return coder.decode(coder.compute_codes(filled))[:, places], count * parts + 2 * 256 * dim


def residual_quantiser(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Squeezed:
    """faiss RQ, 8 bits a stage."""
    faiss: Any = import_module("faiss")
    count, dim = rows.shape
    stages = int(budget // (count + 2 * 256 * dim))
    if stages < 1:
        return None
    coder = faiss.ResidualQuantizer(dim, stages, 8)
    coder.max_beam_size = 4
    coder.train(_sample(rows)[: SAMPLE // 4])
    return coder.decode(coder.compute_codes(rows)), stages * (count + 2 * 256 * dim)


def truncated_svd(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Squeezed:
    """The leading directions, coordinates in int8 with a scale a row."""
    count, dim = rows.shape
    rank = int((budget - 2 * count) // (count + 2 * dim))
    if rank < 1:
        return None
    basis = np.linalg.eigh(rows.T @ rows)[1][:, ::-1][:, :rank]
    return _in_bits(rows @ basis, 8) @ basis.T, rank * (count + 2 * dim) + 2 * count


def clusters(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Squeezed:
    """k-means: a token is its cluster's centre (model2vec's quantised vocabulary)."""
    faiss: Any = import_module("faiss")
    count, dim = rows.shape
    centres = int((budget - 2 * count) // (2 * dim))
    if centres < 2:
        return None
    means = faiss.Kmeans(dim, centres, niter=12, min_points_per_centroid=1, max_points_per_centroid=40, seed=0)
    means.train(rows)
    return means.centroids[means.index.search(rows, 1)[1][:, 0]], 2 * count + 2 * centres * dim


def int8_rows(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Squeezed:
    """Every row in 8 bits a number, whatever the budget."""
    return _in_bits(rows, 8), rows.size + 2 * len(rows)


def int4_rows(teacher: Teacher, rows: np.ndarray, budget: int, report: Report) -> Squeezed:
    """Every row in 4 bits a number, whatever the budget."""
    return _in_bits(rows, 4), rows.size // 2 + 2 * len(rows)


def _in_bits(rows: np.ndarray, bits: int) -> np.ndarray:
    numbers, scales = quantised(rows, bits)
    return numbers * from_half(scales)[:, None]


def _sample(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows[np.random.default_rng(0).permutation(len(rows))[:SAMPLE]])


METHODS: dict[str, Callable[[Teacher, np.ndarray, int, Report], Squeezed]] = {
    "ADE, packed": ade,
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
