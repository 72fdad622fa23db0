"""An embedding table in a number of bytes: the paper's codebooks over K, and ADE beside the ways people use."""

from collections.abc import Mapping
from typing import Any

import numpy as np

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
PACKED, CODED = "ADE, packed", "ADE, coded"
METHODS = (PACKED, CODED, "PQ (faiss)", "RQ (faiss)")


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


def in_bytes(figure: str) -> Table:
    """One figure of every method at every budget."""
    rows: dict[str, dict[str, list[Run]]] = {}
    for method in METHODS:
        runs = {mib: Run("size", {"teacher": TEACHER, "method": method, "budget": int(mib * MIB)}) for mib in BUDGETS}
        rows[method] = {f"{mib} MiB": [run] for mib, run in runs.items()}
    return grid("method", rows, Figure(figure, figure, digits(3), better=1), compare="column")


def size() -> Table:
    """DeBERTa-v3-xsmall's table in a number of bytes, tokenizer apart: mean cosine."""
    return in_bytes("cosine")


def size_by_frequency() -> Table:
    """The same: mean cosine, rows weighted by their frequency in AG News."""
    return in_bytes("weighted_cosine")


TABLES = (compression, size, size_by_frequency)


def run_compression(settings: Mapping[str, Any], places: Places, report: Report) -> dict[str, Any]:
    """A codebook with K anchors: bytes on disk, and in the paper's storage at the paper's width."""
    folder = library.codebook_of(places, settings, report)
    saved = ade.Saved.read(folder)
    codebook = saved.table
    assert isinstance(codebook, ade.Codebook)
    on_disk, table = (folder / "model.safetensors").stat().st_size, 4 * codebook.vocabulary * codebook.dim
    count, width = PAPER_SHAPE
    at_width = 4 * settings["anchors"] * width + 8 * count * codebook.max_pairs
    return {
        "anchors": settings["anchors"],
        "bytes": on_disk,
        "ratio": table / on_disk,
        "paper_width_bytes": at_width,
        "paper_width_ratio": 4 * count * width / at_width,
        "cosine": saved.config.metadata["cosine"],
        "cosine_p5": saved.config.metadata["cosine_p5"],
    }


def run_size(settings: Mapping[str, Any], places: Places, report: Report) -> dict[str, Any]:
    """One method at one budget: bytes, and how close the rows stay; nothing but 0 bytes where it cannot be kept."""
    teacher = ade.load_teacher(places.model(settings["teacher"]))
    rows = library.unit(teacher.table.float().numpy())
    served = serve(settings["method"], teacher, rows, settings["budget"], report)
    if served is None:
        return {"bytes": 0}
    cosine = (library.unit(served[0]) * rows).sum(1)
    texts = library.load_split(places, "ag_news", "train").texts
    frequency = count_tokens(teacher.tokenizer, texts, len(rows)).numpy()
    weighted = float(np.average(cosine, weights=frequency))
    return {"bytes": int(served[1]), "cosine": float(cosine.mean()), "weighted_cosine": weighted}


def serve(method: str, teacher: ade.Teacher, rows: np.ndarray, budget: int, report: Report) -> Served:
    """Unit rows as a method would serve them; ours know frequencies, those of Zipf's law by the order of tokens."""
    if method == PACKED:
        return library.packed_rows(teacher, budget, report)
    frequency = library.zipf(len(rows))
    if method == CODED:
        return library.coded_rows(rows, frequency, budget, report)
    return WAYS[method](rows, budget, frequency.numpy())


KINDS = {"compression": run_compression, "size": run_size}
