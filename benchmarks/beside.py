"""Measures this tree beside another commit, in turn and in one run: `python -m benchmarks beside REF`.

Figures of two runs differ by what else the machine did meanwhile; figures taken in turn do not. Both trees are asked in
processes of their own through what hardly changes between commits: the command line, `ade.train` and `ade.load`.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ade.errors import InputError
from benchmarks.library import Report, silent, write_toy

ROOT = Path(__file__).parent.parent
HERE = "this tree"
STEPS = (20, 120)  # of a short and a long training run, whose difference is timed
TOY = (8000, 256, 8000, 100)  # vocabulary, dimensions, rows, words of a text
REPEATS = 5  # turns

# Run in each tree as `python -c SCRIPT what folder device short long`; "train" and "predict" print a rate.
SCRIPT = """
import sys, time
from pathlib import Path
import ade

what, folder, device = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
short, long = map(int, sys.argv[4:6])
inputs = folder.parent


def train(steps, out=None):
    began = time.perf_counter()
    ade.train(inputs / "rows.csv", teacher=inputs / "teacher", steps=steps, lexicon=False, device=device, out=out,
              progress=False)
    return time.perf_counter() - began


if what == "prepare":
    train(short, folder / "model")
elif what == "train":
    train(short)  # distils, and warms up
    print((long - short) / (train(long) - train(short)))
else:
    texts = (inputs / "texts.txt").read_text("utf8").splitlines()
    model = ade.load(folder / "model", device=device)
    model.predict(texts)
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        model.predict(texts)
        taken.append(time.perf_counter() - began)
    print(len(texts) / sorted(taken)[2])
"""


def measures(work: Path, devices: Sequence[str], steps: Sequence[int]) -> dict[str, tuple[str, ...]]:
    """What is measured, with the words after `python`: a script that prints a rate, or a command that is timed."""
    asked: dict[str, tuple[str, ...]] = {}
    for device in devices:
        arguments = (str(work), device, *map(str, steps))
        asked[f"training, {device}, steps/s"] = ("-c", SCRIPT, "train", *arguments)
        asked[f"predictions, {device}, texts/s"] = ("-c", SCRIPT, "predict", *arguments)
    asked["ade predict of one text, ms"] = ("-m", "ade", "predict", str(work / "model"), str(work.parent / "one.txt"))
    asked["import ade, ms"] = ("-c", "import ade")
    return asked


def measure(tree: Path, work: Path, words: Sequence[str]) -> float:
    """One figure of a tree: the rate that is printed, or milliseconds."""
    began = time.perf_counter()
    printed = run_in(tree, work, *words)
    return float(printed) if SCRIPT in words else 1000 * (time.perf_counter() - began)


def beside(
    ref: str, repeats: int = REPEATS, steps: Sequence[int] = STEPS, report: Report = silent
) -> list[dict[str, Any]]:
    """Medians of both trees and their ratio, this tree's over the other's, for everything that is measured."""
    import torch

    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    with tempfile.TemporaryDirectory() as temporary, worktree(ref) as other:
        trees = {HERE: (ROOT, Path(temporary) / "here"), ref: (other, Path(temporary) / "other")}
        write_inputs(Path(temporary))
        for tree, work in trees.values():
            work.mkdir()
            run_in(tree, work, "-c", SCRIPT, "prepare", str(work), "cpu", str(steps[0]), "0")

        rows, asked = [], {name: measures(work, devices, steps) for name, (_, work) in trees.items()}
        for number, what in enumerate(asked[HERE]):
            figures: dict[str, list[float]] = {name: [] for name in trees}
            for turn in range(repeats):
                for name in (HERE, ref) if turn % 2 else (ref, HERE):
                    figures[name].append(measure(*trees[name], asked[name][what]))
            medians = {name: statistics.median(values) for name, values in figures.items()}
            rows.append({"what": what, **medians, "ratio": medians[HERE] / medians[ref]})
            report("beside", number + 1, len(asked[HERE]), {})
    return rows


def write_inputs(folder: Path) -> None:
    """A teacher and rows to train on, the texts to predict, and one text by itself."""
    texts = write_toy(folder, *TOY)
    (folder / "texts.txt").write_text("\n".join([*texts, ""]), "utf8")
    (folder / "one.txt").write_text(texts[-1] + "\n", "utf8")


@contextmanager
def worktree(ref: str) -> Iterator[Path]:
    """A commit of this repository in a folder of its own; or the folder of another checkout, as it is."""
    if Path(ref).is_dir():
        yield Path(ref).resolve()
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "tree"
        _git("worktree", "add", "--detach", str(folder), ref)
        try:
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _git(*words: str) -> None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"git {words[0]} failed: {done.stderr.strip().splitlines()[-1]}")


def run_in(tree: Path, work: Path, *words: str) -> str:
    """What Python prints with a tree's package; what it keeps, as codebooks, goes to the folder `work`."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "ADE_CACHE": str(work / "cache"), "ADE_PROGRESS": "0"}
    done = subprocess.run(
        [sys.executable, *words], cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"{tree}: {words[0]} failed: {done.stderr.strip()[-300:]}")
    return done.stdout
