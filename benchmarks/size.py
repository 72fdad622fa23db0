"""Bytes and closeness of codebooks against the teacher's whole table; the paper's own shape by exact accounting."""

from typing import Any

from ade.progress import Report
from ade.settings import DistillationSettings
from benchmarks.accuracy import Places, codebook_folder, codebook_for
from benchmarks.records import Run

PAPER_SHAPE = (128_100, 768)


def run_compression(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """A codebook of the teacher at this K: what is on disk, in the paper's terms, and at the paper's width."""
    settings = vars(DistillationSettings(anchors=run.settings["anchors"])).copy()
    settings.pop("device")
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
