"""Measures this tree beside another commit, in turn and in one run: `python -m benchmarks beside REF`.

Figures of two runs differ by what else the machine did meanwhile; figures taken in turn do not. Both trees are asked in
processes of their own through what hardly changes between commits: `ade.train` and `ade.load` in mode `tokens`, the
command line, and its service under load.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ade.errors import InputError
from ade.progress import Report, silent
from benchmarks.library import write_toy
from benchmarks.records import ROOT
from benchmarks.subjects.service import CLIENTS, ade_serve, load, served

HERE = "this tree"
STEPS = (20, 120)  # of a short and a long training run, whose difference is timed
TOY = (8000, 256, 8000, 100)  # vocabulary, dimensions, rows, words of a text
SECONDS = 3.0  # of load on the service
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)

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
    ade.train(inputs / "rows.csv", teacher=inputs / "teacher", attend="tokens", steps=steps, lexicon=False,
              device=device, out=out, progress=False)
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


@dataclass(frozen=True)
class Tree:
    """A checkout, the folder of what it makes, and the steps of its training runs."""

    source: Path
    work: Path
    steps: tuple[int, int] = STEPS

    def measures(self) -> dict[str, Callable[[], Mapping[str, float]]]:
        """What is measured: each gives figures by their names."""
        asked: dict[str, Callable[[], Mapping[str, float]]] = {}
        for device in DEVICES:
            asked[f"training, {device}"] = partial(self.rate, "train", "steps/s", device)
            asked[f"predictions, {device}"] = partial(self.rate, "predict", "texts/s", device)
        model, text = self.work / "model", self.work.parent / "one.txt"
        asked["ade predict"] = partial(self.milliseconds, "of one text, ms", "-m", "ade", "predict", model, text)
        asked["import ade"] = partial(self.milliseconds, "ms", "-c", "import ade")
        asked["ade serve"] = self.service
        return asked

    def rate(self, what: str, unit: str, device: str) -> dict[str, float]:
        """What the script prints."""
        return {unit: float(self.script(what, device))}

    def milliseconds(self, unit: str, *words: object) -> dict[str, float]:
        """How long a command takes."""
        began = time.perf_counter()
        self.run(*words)
        return {unit: 1000 * (time.perf_counter() - began)}

    def service(self) -> dict[str, float]:
        """Requests a second of the service."""
        texts = (self.work.parent / "texts.txt").read_text("utf8").splitlines()
        rates = {}
        with served(ade_serve(self.work / "model"), self.source) as address:
            load(address, texts, 8, 0.2)  # the rows of the tokens are cached
            for clients in CLIENTS:
                rates[f"{clients} clients, requests/s"] = load(address, texts, clients, SECONDS)["requests_per_second"]
        return rates

    def script(self, what: str, device: str = "cpu") -> str:
        """What the script prints in this tree."""
        return self.run("-c", SCRIPT, what, self.work, device, *self.steps)

    def run(self, *words: object) -> str:
        """What Python prints with this tree's package; what it keeps, as codebooks, goes to the work folder."""
        own = {"PYTHONPATH": str(self.source), "ADE_CACHE": str(self.work / "cache"), "ADE_PROGRESS": "0"}
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(
            command, cwd=self.work, env={**os.environ, **own}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise InputError(f"{self.source}: {words[0]} failed: {done.stderr.strip()[-300:]}")
        return done.stdout


def beside(ref: str, repeats: int, steps: tuple[int, int] = STEPS, report: Report = silent) -> list[dict[str, Any]]:
    """Medians of both trees and their ratio, this tree's over the other's, for everything that is measured."""
    with tempfile.TemporaryDirectory() as temporary, worktree(ref) as other:
        folder = Path(temporary)
        write_inputs(folder)
        trees = {ref: Tree(other, folder / "other", steps), HERE: Tree(ROOT, folder / "here", steps)}
        for tree in trees.values():
            tree.work.mkdir()
            tree.script("prepare")
        asked = {name: tree.measures() for name, tree in trees.items()}

        rows = []
        for number, what in enumerate(asked[HERE]):
            found: dict[str, dict[str, list[float]]] = {}  # figure -> tree -> its values
            for turn in range(repeats):
                for name in (HERE, ref) if turn % 2 else (ref, HERE):
                    for figure, value in asked[name][what]().items():
                        found.setdefault(figure, {HERE: [], ref: []})[name].append(value)
            for figure, values in found.items():
                medians = {name: statistics.median(each) for name, each in values.items()}
                rows.append({"what": f"{what}, {figure}", **medians, "ratio": medians[HERE] / medians[ref]})
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
