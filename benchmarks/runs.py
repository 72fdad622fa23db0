"""The registry of what is measured, and how runs are made: what is recorded is not run again."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ade import InputError
from ade.progress import Report, silent
from benchmarks import records
from benchmarks.records import Places, Record, Run
from benchmarks.subjects import accuracy, compress, scale, sentence, service, speed
from benchmarks.subjects.peers import WITH_ENCODER
from benchmarks.tables import Table, named

SUBJECTS: tuple[ModuleType, ...] = (accuracy, compress, sentence, speed, service, scale)
TABLES: list[Table] = [named(make) for subject in SUBJECTS for make in subject.TABLES]
KINDS: dict[str, Callable[[Mapping[str, Any], Places, Report], dict[str, Any]]] = {
    kind: run for subject in SUBJECTS for kind, run in subject.KINDS.items()
}
ON_GPU = ("ade", "peer", "compress", "frontier", "encoder", "static_encoder")


def runs_of(table: str | None, cell: str = "") -> list[Run]:
    """The runs of a table (of all without one) in whose row, or row and column, `cell` occurs; each once."""
    if table is not None and all(table != each.name for each in TABLES):
        raise InputError(f"no table '{table}'; there are {', '.join(dict.fromkeys(each.name for each in TABLES))}")
    found: dict[str, Run] = {}
    for each in TABLES:
        if table in (None, each.name):
            for label, row in each.rows.items():
                for column, (runs, _) in row.items():
                    found |= {run.key: run for run in runs if cell in f"{label}, {column}"}
    return list(found.values())


def missing(runs: list[Run], known: list[Record], device: str) -> list[Run]:
    """The runs that have no record of these sources and packages, and are made on this device."""
    done = {record["key"] for record in known if records.is_current(record)}
    return [run for run in runs if run.key not in done and is_made_on(run, device)]


def is_made_on(run: Run, device: str) -> bool:
    """Peers without an encoder, bytes and look-ups are measured on the CPU, where they would be used."""
    if "device" in run.settings:
        return run.settings["device"] == device
    return device == "cpu" or (run.kind in ON_GPU and run.settings.get("peer", "") in ("", *WITH_ENCODER))


def reproduce(todo: list[Run], places: Places, folder: Path, jobs: int = 1, report: Report = silent) -> list[str]:
    """Make runs and write each down as it ends; what failed comes back as lines, the rest goes on."""
    device, failed = records.device_of(places.device), []
    made = (make(run, places, report) for run in todo) if jobs == 1 else _in_processes(todo, places, jobs)
    for done, (run, outcome) in enumerate(made):
        if isinstance(outcome, str):
            failed.append(f"{run.kind} {dict(run.settings)}: {outcome}")
        else:
            records.write(run, {**outcome, "device": device, "jobs": jobs, "versions": records.versions()}, folder)
        report("runs", done + 1, len(todo), {})
    return failed


def make(run: Run, places: Places, report: Report = silent) -> tuple[Run, dict[str, Any] | str]:
    """The figures of a run with the seconds it took and its identity, or why it failed."""
    kept = places.work / records.state()["sources"][:12]  # what another state of the code has made is not used
    places, began = replace(places, work=kept, read={}), time.perf_counter()
    try:
        figures = KINDS[run.kind](run.settings, places, report)
    except (InputError, ImportError, OSError, RuntimeError, ValueError) as error:
        return run, " ".join(str(error).split())[:200] or type(error).__name__
    seconds = time.perf_counter() - began
    return run, {"figures": figures, "seconds": seconds, "identity": records.identity(places.read)}


def _in_processes(todo: list[Run], places: Places, jobs: int) -> Iterator[tuple[Run, dict[str, Any] | str]]:
    """Several runs at once, each as it ends; what two of them need is made by one while the other waits."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool:
        waiting = {pool.submit(make, run, places): run for run in todo}
        for future in as_completed(waiting):
            failure = future.exception()  # a worker that was killed takes no other run's figures with it
            yield future.result() if failure is None else (waiting[future], f"{type(failure).__name__}: {failure}")


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
