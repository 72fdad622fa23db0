"""ADE trained from a teacher and a data set: accuracy and its kin, training time, bytes."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ade.codebook import MARKER, Codebook
from ade.data import EMBEDDED, Dataset, load_dataset
from ade.demo import run_demo
from ade.distillation import distill
from ade.errors import InputError
from ade.evaluation import evaluate
from ade.progress import Report
from ade.settings import Architecture, DistillationSettings, TrainingSettings
from ade.teachers import load_teacher
from ade.training import train
from benchmarks.records import Run, fingerprint
from benchmarks.tables import REVISION


@dataclass(frozen=True)
class Places:
    """Where a run finds what it needs."""

    data: Path
    teachers: Path
    work: Path  # codebooks are kept here between runs
    device: str


def load_rows(places: Places, name: str, rows: int) -> tuple[Dataset, Dataset, dict[str, Any]]:
    """Train and test rows of a data set, and what tells them from others; `rows` > 0 takes that many of each."""
    folder = places.data / name
    if not folder.is_dir():
        raise InputError(f"{folder}: no such data set; point --data-dir at the folder that holds it")
    parts = [load_dataset(folder, split) for split in ("train", "test")]
    if rows:
        generator = np.random.default_rng(0)
        parts = [part.take(np.sort(generator.permutation(len(part))[:rows])) for part in parts]
    about = {
        "name": name,
        "train_rows": len(parts[0]),
        "test_rows": len(parts[1]),
        "sha256": fingerprint(folder / "train.csv", folder / "test.csv"),
    }
    return parts[0], parts[1], about


def codebook_for(places: Places, teacher: str, settings: dict[str, Any], report: Report) -> Codebook:
    """The codebook of these settings: from the work folder, or distilled now and kept there."""
    folder = codebook_folder(places, teacher, settings)
    if not (folder / MARKER).exists():
        loaded = load_teacher(places.teachers / teacher)
        made = distill(loaded, DistillationSettings(**settings, device=places.device), report=report)
        if not (folder / MARKER).exists():  # another process may have been quicker
            made.save(folder)
    return Codebook.load(folder)


def codebook_folder(places: Places, teacher: str, settings: dict[str, Any]) -> Path:
    """Where the codebook of these settings is kept."""
    return places.work / "codebooks" / "-".join([teacher, f"r{REVISION}", *(str(value) for value in settings.values())])


def run_main_job(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """The main job of `make run`: glosses with the embedded teacher, the peer, and SAT left out."""
    demo = run_demo(places.work / "demo", run.settings["seed"], run.settings["epochs"], report)
    rows, test = load_dataset(EMBEDDED, "train"), load_dataset(EMBEDDED, "test")
    return demo.as_dict(), {"data": {"name": EMBEDDED, "train_rows": len(rows), "test_rows": len(test)}}


def run_ade(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and conditions of one ADE run."""
    settings = run.settings
    rows, test, about = load_rows(places, settings["data"], settings["rows"])
    codebook = codebook_for(places, settings["teacher"], settings["distillation"], report)
    training = TrainingSettings(**settings["training"], device=places.device)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        out = Path(folder) / "model"
        classifier = train(
            codebook, rows, None, training, Architecture(**settings["architecture"]), out, "refuse", report
        )
        seconds = time.perf_counter() - began
        nbytes = (out / "model.safetensors").stat().st_size
    figures = {**evaluate(classifier, test).as_dict(), "train_seconds": seconds, "bytes": nbytes}
    return {**figures, "cosine": codebook.about["cosine"]}, {"data": about}
