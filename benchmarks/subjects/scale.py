"""Growth in rows by the commands a user runs, and what an install brings.

The rows are those of AG News, repeated as often as needed. Memory is anonymous memory (what the system cannot drop and
read again), sampled while the command runs; a command's time includes its start.
"""

import csv
import os
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, NamedTuple

import psutil

from ade import Dataset, InputError
from benchmarks import library
from benchmarks.library import Report
from benchmarks.records import ROOT, Places, Run
from benchmarks.subjects.accuracy import TEACHER
from benchmarks.tables import Figure, Table, digits, listing, nbytes

ROWS, STEPS = (100_000, 1_000_000, 10_000_000), 200
INTERVAL = 0.02  # seconds between two samples of memory
TOOLS = ("pip", "setuptools")  # of an environment itself
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


TABLES = (install, scale)


class Measured(NamedTuple):
    """What a command took."""

    seconds: float
    peak_bytes: int


def run_scale(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """`ade train` for a few steps and `ade predict` on a file of so many rows."""
    rows, _, _ = library.load_rows(places, {"data": "ag_news"})
    book, count = library.codebook_of(places, {"teacher": TEACHER}, report), settings["rows"]
    with TemporaryDirectory(dir=work_folder(places)) as work:
        folder = Path(work)
        write_csv(folder / "rows.csv", rows, count)
        words = ("ade", "train", folder / "rows.csv", "--from", book, "--out", folder / "model", "--device", "cpu")
        trained = measured(*words, "--set", f"steps={settings.get('steps', STEPS)}", cache=folder / "cache")
        out = folder / "out.csv"
        predicted = measured("ade", "predict", folder / "model", folder / "rows.csv", "--output", out)
        return {
            "file_bytes": (folder / "rows.csv").stat().st_size,
            "train": {"seconds": trained.seconds, "peak_bytes": trained.peak_bytes},
            "predict": {"rows_per_second": count / predicted.seconds, "peak_bytes": predicted.peak_bytes},
        }


def work_folder(places: Places) -> Path:
    """The work folder: one for temporary files may be held in memory."""
    places.work.mkdir(parents=True, exist_ok=True)
    return places.work.resolve()


def measured(*words: Any, cache: Path | None = None) -> Measured:
    """Run a module with Python and sample its memory."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))}
    environment |= {"ADE_PROGRESS": "0"} | ({"ADE_CACHE": str(cache)} if cache is not None else {})
    command, peak, began = [sys.executable, "-m", *map(str, words)], 0, time.perf_counter()
    with TemporaryFile("w+") as errors:
        process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process))
            time.sleep(INTERVAL)
        seconds = time.perf_counter() - began
        errors.seek(0)
        if process.returncode:
            raise InputError(f"{' '.join(command[2:5])} failed: {errors.read()[-150:]}")
        return Measured(seconds, peak)


def anonymous_bytes(process: Any) -> int:
    """Anonymous memory of a process; 0 where it has ended."""
    try:
        memory = process.memory_info()
    except psutil.Error:
        return 0
    return memory.rss - memory.shared


def write_csv(file: Path, rows: Dataset, count: int) -> None:
    """Rows of texts and labels, repeated as often as needed."""
    pairs = cycle(zip(rows.texts, (rows.names[label] for label in rows.labels), strict=True))
    with open(file, "w", newline="", encoding="utf8") as opened:
        csv.writer(opened).writerows([("text", "label"), *islice(pairs, count)])


def run_install(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Build the wheel, install it into a new environment and add up what lies there."""
    extra = settings["extra"]
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        venv.create(folder / "new", with_pip=True)
        python = folder / "new" / "bin" / "python"
        pip(python, "install", "-c", ROOT / "constraints.txt", f"{wheel}[{extra}]" if extra else wheel)
        (packages,) = (folder / "new" / "lib").glob("python*/site-packages")
        own = [each for each in packages.iterdir() if each.name.split("-")[0] not in TOOLS]
        files = [path for each in own for path in (each.rglob("*") if each.is_dir() else [each])]
        return {"bytes": sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())}


def pip(python: Any, *words: Any) -> None:
    """Run pip; what went wrong is an `InputError`."""
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"pip {words[0]} failed: {done.stderr.strip()[-150:]}")


KINDS = {"scale": run_scale, "install": run_install}
