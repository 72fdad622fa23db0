"""An embedding table in a number of bytes: codebooks over K, and ADE beside the ways people use."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import ade
from ade.distillation import count_tokens
from benchmarks import library
from benchmarks.library import Report
from benchmarks.records import Places, Run
from benchmarks.subjects.accuracy import ANCHORS, PAPER_STORAGE, TEACHER
from benchmarks.subjects.quantizers import WAYS, Served
from benchmarks.tables import Figure, Table, digits, grid, listing, nbytes

PAPER_SHAPE = (128_100, 768)
MIB = 2**20
BUDGETS = (1, 1.85, 2, 4, 8)  # MiB; 1.85 is a hundredth of the table
SWEPT = ("ADE, packed", "ADE, coded", "ADE, coded, rows alike", "paper's plain pairs",
         "PQ (faiss)", "RQ (faiss)", "SVD, int8", "k-means")  # fmt: skip
FIXED = ("int4 rows", "int8 rows")  # they take the bytes that they take
CHOOSING_ROWS, CHOOSING_ROUNDS, MAX_ANCHORS = 20_000, 4, 2_000  # for choosing the shape of the paper's pairs
QUERIES = 1000  # rows whose neighbours are compared


def in_bytes(figure: str) -> Table:
    """One figure of every method at every budget."""

    def run(method: str, budget: int) -> list[Run]:
        return [Run("size", {"teacher": TEACHER, "method": method, "budget": budget})]

    rows = {method: {f"{mib} MiB": run(method, int(mib * MIB)) for mib in BUDGETS} for method in SWEPT}
    rows |= {method: {"any": run(method, 0)} for method in FIXED}
    return grid("method", rows, Figure(figure, figure, digits(3), better=1), compare="column")


def size() -> Table:
    """DeBERTa-v3-xsmall's table in a number of bytes, tokenizer apart: mean cosine."""
    return in_bytes("cosine")


def size_by_frequency() -> Table:
    """The same: mean cosine, rows weighted by their frequency in AG News."""
    return in_bytes("weighted_cosine")


def size_worst_rows() -> Table:
    """The same: 5th percentile of the cosine."""
    return in_bytes("cosine_p5")


def size_neighbours() -> Table:
    """The same: of a row's ten nearest neighbours, the share that stays."""
    return in_bytes("recall_at_10")


def compression() -> Table:
    """Codebooks of DeBERTa-v3-xsmall's table over K, tokenizer apart; at width 768 in the paper's storage."""
    figures = [
        Figure("bytes, d=384", "bytes", nbytes),
        Figure("ratio", "ratio", digits(1, "x")),
        Figure("cosine", "cosine", digits(3)),
        Figure("cosine, 5%", "cosine_p5", digits(3)),
        Figure("MiB at d=768", lambda figures: figures["paper_width_bytes"] / MIB, digits(2)),
        Figure("ratio at d=768", "paper_width_ratio", digits(1, "x")),
        Figure("paper's MiB", lambda figures: PAPER_STORAGE.get(figures["anchors"]), digits(2)),
    ]
    return listing("K", {str(k): [Run("compression", {"teacher": TEACHER, "anchors": k})] for k in ANCHORS}, figures)


TABLES = (compression, size, size_by_frequency, size_worst_rows, size_neighbours)


def run_compression(settings: Mapping[str, Any], places: Places, report: Report) -> dict[str, Any]:
    """A codebook with so many anchors: bytes on disk, in the paper's terms, and at the paper's width."""
    folder = library.codebook_of(places, settings, report)
    saved = ade.Saved.read(folder)
    codebook = saved.table
    assert isinstance(codebook, ade.Codebook)
    on_disk, table = (folder / "model.safetensors").stat().st_size, 4 * codebook.vocabulary * codebook.dim
    count, width = PAPER_SHAPE
    at_width = 4 * settings["anchors"] * width + 8 * count * codebook.max_pairs
    closeness = {name: saved.config.metadata[name] for name in ("cosine", "cosine_p5", "cosine_p50", "cosine_p95")}
    return {
        "anchors": settings["anchors"], "table_bytes": table, "bytes": on_disk, "ratio": table / on_disk,
        "paper_bytes": codebook.paper_nbytes, "paper_width_bytes": at_width,
        "paper_width_ratio": 4 * count * width / at_width, **closeness,
    }  # fmt: skip


def run_size(settings: Mapping[str, Any], places: Places, report: Report) -> dict[str, Any]:
    """One method at one budget: bytes, and how close the rows stay; nothing but 0 bytes where it cannot be kept."""
    teacher = ade.load_teacher(library.teacher_path(places, settings["teacher"]))
    texts = library.load_split(places, settings.get("corpus", "ag_news"), "train").texts
    frequency = count_tokens(teacher.tokenizer, texts, len(teacher.table)).numpy()
    rows = F.normalize(teacher.table.float(), dim=1).numpy()
    began = time.perf_counter()
    served = serve(settings["method"], teacher, rows, settings["budget"], report)
    if served is None:
        return {"bytes": 0}
    seconds = time.perf_counter() - began
    return {"bytes": int(served[1]), "seconds": seconds, **closeness(rows, served[0], frequency)}


def serve(method: str, teacher: ade.Teacher, rows: np.ndarray, budget: int, report: Report) -> Served:
    """Unit rows as a method would serve them; ours know frequencies, those of Zipf's law by the order of tokens."""
    if method == "ADE, packed":
        return library.packed_rows(teacher, budget, report)
    if method.startswith("ADE, coded"):
        alike = method.endswith("alike")
        return library.coded_rows(rows, torch.ones(len(rows)) if alike else library.zipf(len(rows)), budget, report)
    if method == "paper's plain pairs":
        return plain_pairs(teacher, rows, budget, report)
    return WAYS[method](rows, budget, library.zipf(len(rows)).numpy())


def plain_pairs(teacher: ade.Teacher, rows: np.ndarray, budget: int, report: Report) -> Served:
    """The paper's storage: an int32 index and a float32 weight a pair, float32 anchors.

    How many pairs and how many anchors share the budget is chosen by the cosine on a sample of the rows.
    """
    shapes = plain_shapes(budget, *rows.shape)
    if not shapes:
        return None
    some = np.sort(np.random.default_rng(0).permutation(len(rows))[:CHOOSING_ROWS])
    sample = ade.Teacher(teacher.name, teacher.table[torch.from_numpy(some)], teacher.tokenizer)

    def cosine(shape: tuple[int, int]) -> float:
        pairs, anchors = shape
        chosen = ade.DistillationSettings(anchors=min(anchors, len(some)), pairs=pairs, rounds=CHOOSING_ROUNDS)
        return float(ade.distill(sample, chosen).config.metadata["cosine"])

    pairs, anchors = max(shapes, key=cosine) if len(shapes) > 1 else shapes[0]
    codebook = ade.distill(teacher, ade.DistillationSettings(anchors=anchors, pairs=pairs), report=report)
    assert isinstance(codebook.table, ade.Codebook)
    return codebook.table.rows(np.arange(len(rows))), codebook.table.paper_nbytes


def plain_shapes(budget: int, count: int, dim: int) -> list[tuple[int, int]]:
    """Every (pairs, anchors) of a table of this shape that spends the budget in the paper's storage."""
    shapes = []
    for pairs in range(1, budget // (8 * count) + 1):
        anchors = min(MAX_ANCHORS, count, (budget - 8 * count * pairs) // (4 * dim))
        if anchors >= max(2, pairs):
            shapes.append((pairs, anchors))
    return shapes


def closeness(rows: np.ndarray, served: np.ndarray, frequency: np.ndarray) -> dict[str, float]:
    """Cosine to unit rows: mean, weighted by frequency, 5th percentile; and the share of 10 neighbours that stay."""
    exact, near = torch.from_numpy(rows), F.normalize(torch.from_numpy(np.ascontiguousarray(served)).float(), dim=1)
    cosine = (near * exact).sum(1)
    asked = torch.from_numpy(np.random.default_rng(0).permutation(len(rows))[:QUERIES])
    most, kept = min(10, len(rows) - 1), 0
    for some in asked.split(250):
        neighbours = []
        for table in (exact, near):
            similarity = table[some] @ table.T
            similarity[torch.arange(len(some)), some] = -1
            neighbours.append(similarity.topk(most).indices)
        kept += int((neighbours[0].unsqueeze(2) == neighbours[1].unsqueeze(1)).sum())
    weight = torch.from_numpy(frequency / frequency.mean()).float()
    return {
        "cosine": float(cosine.mean()),
        "weighted_cosine": float((cosine * weight).mean()),
        "cosine_p5": float(torch.quantile(cosine, 0.05)),
        "recall_at_10": kept / (len(asked) * most),
    }


KINDS = {"compression": run_compression, "size": run_size}
