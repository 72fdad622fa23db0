"""The paper's storage: codebooks of an embedding table over the number of anchors."""

from collections.abc import Mapping
from typing import Any

import ade
from ade.progress import Report
from benchmarks import library
from benchmarks.records import Places, Run
from benchmarks.subjects.accuracy import ANCHORS, TEACHER
from benchmarks.tables import Figure, Table, digits, listing, nbytes

PAPER_STORAGE = {100: 8.49, 200: 8.79, 300: 9.08, 500: 9.28}  # MiB, table 375.3
PAPER_SHAPE = (128_100, 768)
MIB = 2**20


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


TABLES = (compression,)
KINDS = {"compression": run_compression}
