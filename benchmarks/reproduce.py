"""Run the tables: what is recorded under the same settings is not run again; several runs at once where asked for."""

import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from ade.errors import InputError
from ade.progress import Report, silent
from benchmarks import records
from benchmarks.accuracy import (
    Places,
    codebook_for,
    codebook_for_size,
    lesson_of,
    load_lesson,
    load_rows,
    run_ade,
    run_lexicon,
    run_main_job,
)
from benchmarks.compress import run_compress
from benchmarks.compress_onnx import run_compress_onnx
from benchmarks.compress_speed import run_compress_speed
from benchmarks.compression import run_compression, run_size
from benchmarks.context import run_context
from benchmarks.explain import run_explain
from benchmarks.fairness import run_fairness
from benchmarks.frontier import run_frontier
from benchmarks.growth import run_growth, run_stages
from benchmarks.install import run_install
from benchmarks.joint import run_joint
from benchmarks.lexicon_costs import run_fit, run_rates
from benchmarks.multilingual import run_multilingual
from benchmarks.peers import run_peer
from benchmarks.quick import quick
from benchmarks.records import Run
from benchmarks.scale import run_engines, run_processes, run_scale
from benchmarks.sentence import run_encoder, run_encoder_rates, run_static
from benchmarks.service import run_service
from benchmarks.speed import run_distillation, run_latency, run_lookup, run_parameters, run_training
from benchmarks.tables import SHALLOW, TABLES, runs_of
from benchmarks.throughput import run_throughput
from benchmarks.windows import run_windows

KINDS = {
    "demo": run_main_job,
    "ade": run_ade,
    "lexicon": run_lexicon,
    "joint": run_joint,
    "lexicon_fit": run_fit,
    "lexicon_rates": run_rates,
    "windows": run_windows,
    "peer": run_peer,
    "context": run_context,
    "explain": run_explain,
    "compression": run_compression,
    "compress": run_compress,
    "compress_onnx": run_compress_onnx,
    "compress_speed": run_compress_speed,
    "frontier": run_frontier,
    "size": run_size,
    "sentence_encoder": run_encoder,
    "multilingual_encoder": run_multilingual,
    "static_encoder": run_static,
    "encoder_rates": run_encoder_rates,
    "latency": run_latency,
    "distillation": run_distillation,
    "training": run_training,
    "throughput": run_throughput,
    "service": run_service,
    "fairness": run_fairness,
    "growth": run_growth,
    "stages": run_stages,
    "lookup": run_lookup,
    "install": run_install,
    "parameters": run_parameters,
    "engines": run_engines,
    "processes": run_processes,
    "scale": run_scale,
}
TIMES = ("latency", "distillation", "training", "lexicon_fit", "lexicon_rates")
CODED = ("ade", "lexicon", "joint", "context", "explain", "windows")  # kinds that use a codebook and may run at once
GUESS = {  # seconds, before there is a record
    "demo": {"cpu": 220.0},
    "ade": {"cuda": 40.0, "cpu": 900.0},
    "peer": {"cuda": 60.0, "cpu": 120.0},
    "lexicon": {"cuda": 20.0, "cpu": 60.0},
    "joint": {"cuda": 120.0, "cpu": 2400.0},
    "windows": {"cuda": 60.0, "cpu": 1800.0},
    "lexicon_fit": {"cuda": 100.0, "cpu": 1800.0},
    "lexicon_rates": {"cuda": 30.0, "cpu": 180.0},
    "context": {"cuda": 120.0, "cpu": 900.0},
    "explain": {"cuda": 60.0, "cpu": 600.0},
    "compression": {"cpu": 60.0},
    "compress": {"cuda": 120.0, "cpu": 1200.0},
    "compress_onnx": {"cpu": 600.0},
    "compress_speed": {"cpu": 600.0},
    "frontier": {"cuda": 60.0, "cpu": 180.0},
    "sentence_encoder": {"cuda": 200.0, "cpu": 4000.0},
    "multilingual_encoder": {"cuda": 400.0, "cpu": 12_000.0},
    "static_encoder": {"cpu": 120.0},
    "encoder_rates": {"cpu": 120.0},
    "size": {"cpu": 90.0},
    "throughput": {"cpu": 120.0},
    "service": {"cpu": 120.0},
    "fairness": {"cpu": 90.0},
    "growth": {"cpu": 240.0},
    "engines": {"cpu": 1500.0},
    "processes": {"cpu": 600.0},
    "scale": {"cpu": 1800.0},
    "latency": {"cuda": 200.0, "cpu": 130.0},
    "distillation": {"cuda": 20.0, "cpu": 250.0},
    "training": {"cuda": 20.0, "cpu": 900.0},
}


def plan(table: str | None, device: str, only_quick: bool, folder: Path, cell: str = "") -> tuple[list[Run], float]:
    """The runs that are still to be made, and roughly how many seconds they will take."""
    if table is not None and table not in TABLES:
        raise InputError(f"no table '{table}'; there are {', '.join(TABLES)}")
    wanted = quick() if only_quick else [run for name in TABLES if table in (None, name) for run in runs_of(name, cell)]
    known = records.load(folder)
    # Accuracy is the same on any device, so one record will do; a time belongs to the device it was measured on.
    done = {record["key"] for record in known if record["kind"] not in TIMES or record["device"]["kind"] == device}
    todo: dict[str, Run] = {}
    for run in wanted:
        if run.key not in done and (device == "cpu" or _uses_gpu(run)):
            todo.setdefault(run.key, run)
    taken: dict[str, list[float]] = {}
    for record in known:
        if record["device"]["kind"] == device:
            taken.setdefault(record["kind"], []).append(record["seconds"])

    def guess(run: Run) -> float:
        return statistics.median(taken[run.kind]) if run.kind in taken else GUESS.get(run.kind, {}).get(device, 30.0)

    return list(todo.values()), sum(map(guess, todo.values())) * (0.05 if only_quick else 1.0)


def _uses_gpu(run: Run) -> bool:
    """Peers without a neural encoder, bytes and look-ups are measured on the CPU, where they would be used."""
    if run.kind == "peer":
        return run.settings["peer"] not in SHALLOW
    encoders = ("compress", "frontier", "sentence_encoder", "multilingual_encoder")
    neural = ("ade", "joint", "context", "explain", "windows", *encoders)
    return run.kind in (*neural, *TIMES)


def reproduce(todo: list[Run], places: Places, folder: Path, jobs: int = 1, report: Report = silent) -> list[str]:
    """Make the runs and write each down as it ends; what failed comes back as lines, the rest goes on."""
    device = records.device_of(places.device)
    failed = []

    def finish(done: int, run: Run, outcome: Mapping[str, Any] | str) -> None:
        if isinstance(outcome, str):
            failed.append(f"{run.table} {run.kind}: {outcome}")
        else:
            conditions = {**outcome["conditions"], "device": device, "seconds": outcome["seconds"], "jobs": jobs}
            records.append(run, outcome["figures"], conditions, folder)
        report("runs", done + 1, len(todo), {})

    report("runs", 0, len(todo), {})
    if jobs == 1:
        for done, run in enumerate(todo):
            finish(done, run, _make(run, places, report))
        return failed
    for run in todo:  # codebooks first, so that no two runs at once make the same
        if "folder_size" in run.settings:
            codebook_for_size(places, run.settings, load_rows(places, run.settings)[0], report)
        elif run.kind in CODED:
            codebook_for(
                places, run.settings["teacher"], run.settings["distillation"], report, run.settings.get("corpus")
            )
    for done, (run, outcome) in enumerate(_at_once(todo, places, jobs)):
        finish(done, run, outcome)
    return failed


def _at_once(todo: list[Run], places: Places, jobs: int) -> Iterator[tuple[Run, dict[str, Any] | str]]:
    """Several runs at a time, each as it ends; those that learn from one encoder wait for its answers."""
    lessons: dict[str, list[Run]] = {}
    for run in todo:
        lessons.setdefault(lesson_of(run.settings) if run.kind == "ade" else "", []).append(run)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool:
        first: dict[Future[Any], list[Run]] = {
            pool.submit(_ask, runs[0], places): runs for lesson, runs in lessons.items() if lesson
        }
        waiting: dict[Future[Any], Run] = {pool.submit(_make, run, places): run for run in lessons.get("", [])}
        while first or waiting:
            for future in wait([*first, *waiting], return_when=FIRST_COMPLETED).done:
                if future in waiting:
                    failure = future.exception()  # a worker that was killed takes no other run with it
                    yield (
                        waiting.pop(future),
                        future.result() if failure is None else f"{type(failure).__name__}: {failure}",
                    )
                else:
                    waiting |= {pool.submit(_make, run, places): run for run in first.pop(future)}


def _ask(run: Run, places: Places) -> None:
    """Fine-tune the encoder a run learns from and let it answer; what goes wrong, the run will say."""
    with contextlib.suppress(InputError, ImportError, OSError, RuntimeError, ValueError):
        load_lesson(places, run.settings)


def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


def _make(run: Run, places: Places, report: Report = silent) -> dict[str, Any] | str:
    began = time.perf_counter()
    try:
        figures, conditions = KINDS[run.kind](run, places, report)
    except (InputError, ImportError, OSError, RuntimeError, ValueError) as error:
        return " ".join(str(error).split())[:200] or type(error).__name__
    return {"figures": figures, "conditions": conditions, "seconds": time.perf_counter() - began}
