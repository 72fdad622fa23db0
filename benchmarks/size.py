"""Bytes and closeness of codebooks against the teacher's whole table; the paper's own shape by exact accounting."""

import time
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn import functional as F

from ade.distillation import count_tokens
from ade.packing.budget import zipf
from ade.progress import Report, silent
from ade.teachers import Teacher, load_teacher
from benchmarks.accuracy import Places, codebook_folder, codebook_for, load_rows
from benchmarks.compressors import METHODS, closeness
from benchmarks.records import Run
from benchmarks.tables import distillation_of

PAPER_SHAPE = (128_100, 768)


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
    """One way to squeeze the teacher's table into a budget: bytes, and how close it stays."""
    settings = run.settings
    source = places.teachers / settings["teacher"]
    teacher = load_teacher(source if source.exists() else settings["teacher"])
    texts = load_rows(places, {"data": "ag_news", "rows": 0})[0].texts
    frequency = count_tokens(teacher.tokenizer, texts, len(teacher.table)).numpy()
    return squeezed(teacher, settings["method"], settings["budget"], frequency, report), {}


def frequencies_of(teacher: Teacher, corpus: Path | None) -> np.ndarray:
    """How often each token occurs in a file, or by its rank as Zipf's law has it."""
    if corpus is None:
        return zipf(len(teacher.table)).numpy()
    with open(corpus, encoding="utf8", errors="replace") as lines:
        return count_tokens(teacher.tokenizer, lines, len(teacher.table)).numpy()


def squeezed(
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
