"""ADE trained from a teacher and a data set: accuracy and its kin, training time, bytes."""

import hashlib
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ade.cli.demo import run_demo
from ade.cli.sizes import folder_sizes
from ade.codebook import MARKER, Codebook
from ade.data.dataset import Dataset
from ade.data.loading import EMBEDDED, has_split, load_dataset
from ade.data.tokenize import WINDOWS, tokenize
from ade.devices import resolve_device
from ade.distillation import count_tokens, distill
from ade.errors import InputError
from ade.evaluation import evaluate, evaluate_scores
from ade.packing.whole_folder import Division, distill_for_model
from ade.progress import Report, silent
from ade.settings import EPOCHS, Architecture, DistillationSettings, TeachingSettings, TrainingSettings, parse_size
from ade.teachers import contextual_teacher, load_teacher
from ade.training.lexicon_fit import fit_lexicon
from ade.training.lexicon_loss import Ragged, Validation
from ade.training.loop import fit_model
from ade.training.schedule import held_back
from ade.training.soft_targets import LabelTeacher, taught
from benchmarks.encoders import FineTuned
from benchmarks.records import Run, fingerprint
from benchmarks.tables import CONTEXTUAL, REVISION


@dataclass(frozen=True)
class Places:
    """Where a run finds what it needs."""

    data: Path
    teachers: Path
    work: Path  # codebooks are kept here between runs
    device: str


def load_rows(places: Places, settings: Mapping[str, Any]) -> tuple[Dataset, Dataset, dict[str, Any]]:
    """Train and test rows of a run, and what tells them from others.

    `rows` > 0 takes that many of each split; `per_class` that many of each class of train, drawn by the run's seed.
    """
    name = settings["data"]
    source = places.data / name
    if not source.is_dir():
        if name != EMBEDDED:
            raise InputError(f"{source}: no such data set; point --data-dir at the folder that holds it")
        source = Path(EMBEDDED)
    train_rows, test_rows = load_dataset(source, "train"), load_dataset(source, "test")
    if settings["rows"]:
        generator = np.random.default_rng(0)
        train_rows, test_rows = (
            part.take(np.sort(generator.permutation(len(part))[: settings["rows"]])) for part in (train_rows, test_rows)
        )
    if settings.get("per_class"):
        generator = np.random.default_rng(seed_of(settings))
        chosen = [
            generator.permutation(np.flatnonzero(train_rows.labels == label))[: settings["per_class"]]
            for label in range(len(train_rows.names))
        ]
        train_rows = train_rows.take(np.sort(np.concatenate(chosen)))
    files = [source / "train.csv", source / "test.csv"]
    about = {
        "name": name,
        "train_rows": len(train_rows),
        "test_rows": len(test_rows),
        "sha256": fingerprint(*files) if files[0].exists() else _fingerprint_of(train_rows, test_rows),
    }
    return train_rows, test_rows, about


def _fingerprint_of(*parts: Dataset) -> str:
    return hashlib.sha256("\n".join(text for part in parts for text in part.texts).encode("utf8")).hexdigest()


def seed_of(settings: Mapping[str, Any]) -> int:
    """The seed of a run of ours or of a peer."""
    return int(settings["seed"] if "seed" in settings else settings["training"]["seed"])


def lesson_of(settings: Mapping[str, Any]) -> str:
    """What runs that learn from the same encoder, on the same rows, have in common; empty for a run without one."""
    if "encoder" not in settings:
        return ""
    drawn = seed_of(settings) if settings.get("per_class") else 0
    return json.dumps([drawn, *(settings.get(name) for name in ("encoder", "data", "rows", "per_class", "teaching"))])


def load_lesson(
    places: Places, settings: Mapping[str, Any], report: Report = silent
) -> tuple[Dataset, Dataset | None, Dataset, dict[str, Any]]:
    """Train, dev and test rows of a run, train with the answers of an encoder fine-tuned on it where there is one."""
    rows, test, about = load_rows(places, settings)
    source = places.data / settings["data"]
    dev = None
    if source.is_dir() and has_split(source, "dev"):
        dev = load_dataset(source, "dev").relabelled(rows.names)
    if "encoder" not in settings:
        return rows, dev, test, about
    if dev is None:  # rows the encoder must not see
        rows, dev = held_back(rows, 0)
    folder = places.work / "encoders" / f"{settings['encoder']}-{settings['data']}-{_fingerprint_of(rows)[:12]}"
    if not folder.exists():
        tuned = FineTuned(places.teachers / settings["encoder"], rows.names, places.device)
        tuned.fit(rows, 0, report).save(folder)
    teacher = LabelTeacher.load(folder, rows.names, places.device)
    teacher.cache = places.work / "answers"
    return taught(rows, teacher, TeachingSettings(**settings["teaching"]), (), report), dev, test, about


def training_of(recorded: dict[str, Any], device: str) -> TrainingSettings:
    """The settings of a recorded run: the usual epochs were not asked for where steps are fitted to the rows."""
    settings = TrainingSettings(**{"lexicon": False, **recorded}, device=device)  # older records know no lexicon
    return replace(settings, epochs=None) if settings.fit_to_data and settings.epochs == EPOCHS else settings


def codebook_for(
    places: Places, teacher: str, settings: dict[str, Any], report: Report, corpus: str | None = None
) -> Codebook:
    """The codebook of these settings: from the work folder, or distilled now and kept there.

    With a `corpus`, tokens count by how often they occur in the training rows of that data set.
    """
    folder = codebook_folder(places, teacher, settings, corpus)
    if not (folder / MARKER).exists():
        name = teacher.removesuffix(CONTEXTUAL)
        source = places.teachers / name if (places.teachers / name).exists() else name
        loaded = contextual_teacher(source, places.device, report) if teacher != name else load_teacher(source)
        frequencies = None
        if corpus:
            texts = load_rows(places, {"data": corpus, "rows": 0})[0].texts
            frequencies = count_tokens(loaded.tokenizer, texts, len(loaded.table))
        made = distill(loaded, DistillationSettings(**settings, device=places.device), frequencies, report)
        if not (folder / MARKER).exists():  # another process may have been quicker
            made.save(folder)
    return Codebook.load(folder)


def codebook_folder(places: Places, teacher: str, settings: dict[str, Any], corpus: str | None = None) -> Path:
    """Where the codebook of these settings is kept."""
    parts = [teacher, f"r{REVISION}", *(str(value) for value in settings.values()), *([corpus] if corpus else [])]
    return places.work / "codebooks" / "-".join(parts)


def codebook_for_size(places: Places, settings: Mapping[str, Any], rows: Dataset, report: Report) -> Codebook:
    """The codebook for a model folder of a size in all: from the work folder, or distilled now and kept there."""
    size = settings["folder_size"]
    fingerprint_of_rows = _fingerprint_of(rows)[:12]
    folder = codebook_folder(places, settings["teacher"], settings["distillation"], f"{size}-{fingerprint_of_rows}")
    if not (folder / MARKER).exists():
        distillation = DistillationSettings(**settings["distillation"], device=places.device)
        teacher = load_teacher(places.teachers / settings["teacher"])
        made, _ = distill_for_model(teacher, rows.texts, parse_size(size), rows.names, distillation, report=report)
        if not (folder / MARKER).exists():  # another process may have been quicker
            made.save(folder)
    return Codebook.load(folder)


def run_main_job(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """The main job of `make run`: glosses with the embedded teacher, the peer, and SAT left out."""
    demo = run_demo(places.work / "demo", run.settings["seed"], run.settings["epochs"], report)
    rows, test = load_dataset(EMBEDDED, "train"), load_dataset(EMBEDDED, "test")
    return demo.as_dict(), {"data": {"name": EMBEDDED, "train_rows": len(rows), "test_rows": len(test)}}


def run_ade(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics, sizes and conditions of one ADE run."""
    settings = run.settings
    rows, dev, test, about = load_lesson(places, settings, report)
    training, shape = training_of(settings["training"], places.device), Architecture(**settings["architecture"])
    if "folder_size" in settings:
        codebook = codebook_for_size(places, settings, rows, report)
        division = Division(**codebook.about["division"])
        training = replace(training, lexicon=division.lexicon > 0, lexicon_size=str(division.lexicon or ""))
        shape = replace(shape, layer_bits=division.layer_bits)
    else:
        codebook = codebook_for(places, settings["teacher"], settings["distillation"], report, settings.get("corpus"))
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        out = Path(folder) / "model"
        classifier = fit_model(codebook, rows, dev, training, shape, out, "refuse", report)
        seconds = time.perf_counter() - began
        needed = folder_sizes(out)
    figures = {**evaluate(classifier, test).as_dict(), **needed, "train_seconds": seconds}
    if "division" in codebook.about:
        figures["division"] = {**codebook.about["division"], "lexicon": classifier.model.lexicon_nbytes}
    return {**figures, "cosine": codebook.about["cosine"]}, {"data": about}


def run_lexicon(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics of the lexicon without a model: fitted as beside one, with a model's scores of zero."""
    settings = run.settings
    rows, dev, test, about = load_lesson(places, settings, report)
    given = dev is not None
    if dev is None:
        rows, dev = held_back(rows, settings["seed"])
    codebook = codebook_for(places, settings["teacher"], settings["distillation"], report)

    def tokens(part: Dataset) -> Ragged:
        return Ragged(*tokenize(codebook.tokenizer, list(part.texts), WINDOWS * Architecture().max_tokens))

    began = time.perf_counter()
    zeros = np.zeros((len(dev), len(rows.names)), np.float32)
    fitted = fit_lexicon(
        tokens(rows), rows.labels, rows.problem, Validation(tokens(dev), dev.relabelled(rows.names).labels, zeros),
        codebook.vocabulary, resolve_device(places.device), held_back=not given, report=report,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    assert fitted is not None
    scores = fitted.lexicon().logits(*tokens(test))
    metrics = evaluate_scores(test.relabelled(rows.names), scores, rows.names).as_dict()
    tokenizer = len(codebook.tokenizer.to_str().encode("utf8"))
    sizes = {"bytes": fitted.nbytes + tokenizer, "model_bytes": fitted.nbytes, "tokenizer_bytes": tokenizer}
    return {**metrics, **sizes, "train_seconds": seconds}, {"data": about}
