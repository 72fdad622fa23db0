"""Growth in rows by the commands a user runs, and what an install brings.

The rows are those of AG News, repeated as often as needed. Memory is anonymous memory (what the system cannot drop and
read again), sampled while the command runs; a command's time includes its start.
"""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from ade import Dataset, InputError
from ade.progress import Report
from benchmarks import library
from benchmarks.records import ROOT, Places, Run
from benchmarks.subjects.accuracy import TEACHER
from benchmarks.tables import Figure, Table, digits, listing, nbytes

ROWS, STEPS = (100_000, 1_000_000, 10_000_000), 200
INTERVAL = 0.02  # seconds between two samples of memory
Outcome = dict[str, Any]


def install() -> Table:
    """All packages that `pip install` brings, the CPU build of torch among them."""
    extras = {"ade-embeddings": "", "ade-embeddings[train]": "train"}
    rows = {name: [Run("install", {"extra": extra})] for name, extra in extras.items()}
    return listing("install", rows, [Figure("size", "bytes", nbytes)])


def scale() -> Table:
    """`ade train` for 200 steps and `ade predict` on a CSV file: peak memory and time."""
    figures = [
        Figure("file", "file_bytes", nbytes),
        Figure("train, memory", "train.peak_bytes", nbytes),
        Figure("time", "train.seconds", digits(0, " s")),
        Figure("predict, memory", "predict.peak_bytes", nbytes),
        Figure("rate", "predict.rows_per_second", digits(0, " rows/s")),
    ]
    return listing("rows", {f"{rows:,}": [Run("scale", {"rows": rows})] for rows in ROWS}, figures)


def run_scale(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """`ade train` for a few steps and `ade predict` on a file of so many rows."""
    rows, _, _ = library.load_rows(places, {"data": "ag_news"})
    book, count = library.codebook_of(places, {"teacher": TEACHER}, report), settings["rows"]
    with TemporaryDirectory(dir=places.work.resolve()) as work:  # one for temporary files may be held in memory
        folder, steps = Path(work), settings.get("steps", STEPS)
        write_csv(folder / "rows.csv", rows, count)
        train = ("train", folder / "rows.csv", "--from", book.resolve(), "--out", folder / "model", "--device", "cpu")
        predict = ("predict", folder / "model", folder / "rows.csv", "--output", folder / "out.csv")
        trained, predicted = measured(folder, *train, "--set", f"steps={steps}"), measured(folder, *predict)
        predicted["rows_per_second"] = count / predicted["seconds"]
        return {"file_bytes": (folder / "rows.csv").stat().st_size, "train": trained, "predict": predicted}


def measured(folder: Path, *words: object) -> Outcome:
    """Seconds and peak memory of a command of ade."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ADE_PROGRESS": "0", "ADE_CACHE": str(folder / "cache")}
    command, peak, began = [sys.executable, "-m", "ade", *map(str, words)], 0, time.perf_counter()
    with open(folder / "errors.txt", "w+", encoding="utf8") as errors:
        process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        while process.poll() is None:
            with suppress(psutil.Error):  # it has ended
                memory = process.memory_info()
                peak = max(peak, memory.rss - memory.shared)
            time.sleep(INTERVAL)
        errors.seek(0)
        if process.returncode:
            raise InputError(f"ade {words[0]} failed: {errors.read()[-150:]}")
    return {"seconds": time.perf_counter() - began, "peak_bytes": peak}


def write_csv(file: Path, rows: Dataset, count: int) -> None:
    """Rows of texts and labels, repeated as often as needed."""
    pairs = cycle(zip(rows.texts, (rows.names[label] for label in rows.labels), strict=True))
    with open(file, "w", newline="", encoding="utf8") as opened:
        csv.writer(opened).writerows([("text", "label"), *islice(pairs, count)])


def run_install(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Build the wheel, install it with what it needs into a folder, and add up what lies there."""
    extra = f"[{settings['extra']}]" if settings["extra"] else ""
    with TemporaryDirectory() as work:
        pip("wheel", "--no-deps", "--wheel-dir", work, ROOT)
        (wheel,) = Path(work).glob("*.whl")
        packages = Path(work) / "packages"
        pip("install", "--target", packages, "-c", ROOT / "constraints.txt", f"{wheel}{extra}")
        files = (file for file in packages.rglob("*") if file.is_file() and not file.is_symlink())
        return {"bytes": sum(file.stat().st_size for file in files)}


def pip(*words: object) -> None:
    """Run pip; what went wrong is an `InputError`."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"pip {words[0]} failed: {done.stderr.strip()[-150:]}")


TABLES = (install, scale)
KINDS = {"scale": run_scale, "install": run_install}
