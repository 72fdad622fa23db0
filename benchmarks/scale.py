"""Growth in rows, workers and processes, by the commands a user runs: rows a second and peak memory.

The rows are those of a data set, repeated as often as needed. Memory is anonymous memory (what the system cannot drop
and read again), sampled while the command runs; a command's time includes its start.
"""

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.data.dataset import Dataset
from ade.devices import cores
from ade.errors import InputError
from ade.model import AdeForSequenceClassification
from ade.progress import Report
from ade.settings import Architecture
from benchmarks.accuracy import Places, codebook_for, load_rows
from benchmarks.records import Run
from benchmarks.tables import TEACHER

ROOT = Path(__file__).parent.parent
INTERVAL = 0.02  # seconds between two samples of memory
LAUNCH = ["accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--mixed_precision", "no"]
LAUNCH += ["--dynamo_backend", "no", "--main_process_port", "0", "--num_processes"]
Figures = tuple[dict[str, Any], dict[str, Any]]


class Measured(NamedTuple):
    """What a command took, and what it printed."""

    seconds: float
    peak_bytes: int
    out: str


def run_engines(run: Run, places: Places, report: Report) -> Figures:
    """`ade predict` in one process, and with Ray's workers, on the same Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet

    rows, codebook, about = _prepared(run, places, report)
    count, figures = run.settings["rows"], {}
    with _folder(places) as folder:
        _save_model(codebook, rows, folder / "model")
        with pyarrow.parquet.ParquetWriter(
            folder / "rows.parquet", pa.schema([("id", pa.int64()), ("text", pa.string())])
        ) as file:
            for first, texts in _chunks(rows, count):
                file.write_table(pa.table({"id": range(first, first + len(texts)), "text": texts}))

        command = ("ade", "predict", folder / "model", folder / "rows.parquet", "--output")
        done = measured(*command, folder / "one.csv")
        figures["one process"] = {"rows_per_second": count / done.seconds, "peak_bytes": done.peak_bytes}
        for number, workers in enumerate(run.settings["workers"]):
            report("engines", number, len(run.settings["workers"]), {})
            out = folder / f"ray-{workers}"
            done = measured(*command, out, "--engine", "ray", "--workers", workers)
            found = sum(pyarrow.parquet.read_metadata(path).num_rows for path in out.glob("*.parquet"))
            if found != count:
                raise InputError(f"Ray with {workers} workers wrote {found:,} rows of {count:,}")
            figures[f"Ray, workers: {workers}"] = {"rows_per_second": count / done.seconds}
    return figures, {"data": about, "cores": cores()}


def run_processes(run: Run, places: Places, report: Report) -> Figures:
    """`ade train` in so many processes of so many threads."""
    rows, codebook, about = _prepared(run, places, report)
    figures = {}
    ways = run.settings["ways"]
    with _folder(places) as folder:
        codebook.save(folder / "book")
        _write_csv(folder / "train.csv", rows, len(rows))
        common: list[Any] = ["train", folder / "train.csv", "--codebook", folder / "book", "--device", "cpu"]
        common += ["--steps", run.settings["steps"], "--quiet", "--json"]
        for number, (processes, threads) in enumerate(ways):
            report("processes", number, len(ways), {})
            launch = (*LAUNCH, processes, "-m", "ade") if processes > 1 else ("ade",)
            out = folder / f"model-{number}"
            done = measured(*launch, *common, "--out", out, threads=threads)
            steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf8").splitlines()]
            rate = sum(step["rate"] for step in steps) / len(steps)
            accuracy = json.loads(done.out)["dev_accuracy"]
            name = f"processes: {processes}, threads of each: {threads}"
            figures[name] = {"texts_per_second": rate, "dev_accuracy": accuracy, "seconds": done.seconds}
    return figures, {"data": about, "cores": cores()}


def run_scale(run: Run, places: Places, report: Report) -> Figures:
    """`ade train` for a few steps and `ade predict` on a file of so many rows."""
    rows, codebook, about = _prepared(run, places, report)
    count = run.settings["rows"]
    with _folder(places) as folder:
        codebook.save(folder / "book")
        _write_csv(folder / "rows.csv", rows, count)
        figures: dict[str, Any] = {"file_bytes": (folder / "rows.csv").stat().st_size}
        model = folder / "model"
        words = ("ade", "train", folder / "rows.csv", "--codebook", folder / "book", "--out", model, "--device", "cpu")
        done = measured(*words, "--steps", run.settings["steps"], "--quiet", "--json", cache=folder / "cache")
        figures["train"] = {"seconds": done.seconds, "peak_bytes": done.peak_bytes}
        report("scale", 1, 2, {})
        done = measured("ade", "predict", model, folder / "rows.csv", "--output", folder / "out.csv", "--quiet")
        figures["predict"] = {"rows_per_second": count / done.seconds, "peak_bytes": done.peak_bytes}
    return figures, {"data": about, "cores": cores()}


def measured(*words: Any, threads: int = 0, cache: Path | None = None) -> Measured:
    """Run a module with Python and sample the memory of the process and of its children."""
    own = {"PYTHONPATH": str(ROOT), "ADE_PROGRESS": "0"} | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    own |= {"ADE_CACHE": str(cache), "HF_DATASETS_CACHE": str(cache)} if cache is not None else {}
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | own
    if os.environ.get("PYTHONPATH"):
        environment["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
    command, peak, began = [sys.executable, "-m", *map(str, words)], 0, time.perf_counter()
    with TemporaryDirectory() as folder, open(f"{folder}/out", "w+") as out, open(f"{folder}/errors", "w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment)
        while process.poll() is None:
            peak = max(peak, sum(map(_anonymous_bytes, _with_children(process.pid))))
            time.sleep(INTERVAL)
        seconds = time.perf_counter() - began
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            raise InputError(f"{' '.join(command[2:5])} failed: {errors.read()[-150:]}")
        return Measured(seconds, peak, out.read())


def _with_children(process: int) -> list[int]:
    try:
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has ended, or this is no Linux
        return [process]
    return [process, *(each for child in found for each in _with_children(int(child)))]


def _anonymous_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def _prepared(run: Run, places: Places, report: Report) -> tuple[Dataset, Codebook, dict[str, Any]]:
    rows, _, about = load_rows(places, {"data": run.settings["data"], "rows": run.settings.get("sample", 0)})
    return rows, codebook_for(places, TEACHER, run.settings["distillation"], report), about


@contextmanager
def _folder(places: Places) -> Iterator[Path]:
    places.work.mkdir(parents=True, exist_ok=True)  # a folder for temporary files may be held in memory
    with TemporaryDirectory(dir=places.work.resolve()) as folder:
        yield Path(folder)


def _save_model(codebook: Codebook, rows: Dataset, folder: Path) -> None:
    """An untrained model: how well it is trained does not change its speed."""
    model = AdeForSequenceClassification.from_codebook(codebook, rows.names, Architecture())
    Classifier(model.eval(), codebook.tokenizer).save(folder)


def _chunks(rows: Dataset, count: int, size: int = 50_000) -> Iterator[tuple[int, list[str]]]:
    texts = islice(cycle(list(rows.texts)), count)
    for first in range(0, count, size):
        yield first, list(islice(texts, size))


def _write_csv(path: Path, rows: Dataset, count: int) -> None:
    pairs = cycle(zip(rows.texts, (rows.names[label] for label in rows.labels), strict=True))
    with open(path, "w", newline="", encoding="utf8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(islice(pairs, count))
