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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ade.errors import InputError
from ade.progress import Report, silent

ROOT = Path(__file__).parent.parent
HERE = "this tree"
STEPS = {"cpu": (20, 120), "cuda": (100, 1100)}  # of a short and a long training run, whose difference is timed
ROWS, VALIDATION, TEXTS = 8000, 200, 8000  # to train on, to validate on, to predict
VOCABULARY, WORDS = (8000, 256), 100  # shape of the teacher's table; most words of a text
REPEATS = 5  # turns

# Run in each tree as `python -c SCRIPT what folder device short long`; prints one number.
SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
import ade

what, folder, device = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
short, long = map(int, sys.argv[4:6])


def train(steps, out=None):
    began = time.perf_counter()
    rows, validation = folder.parent / "rows.csv", folder.parent / "validation.csv"
    given = {"teacher": folder.parent / "teacher", "validation": validation, "progress": False}
    ade.train(rows, steps=steps, lexicon=False, device=device, out=out, **given)
    return time.perf_counter() - began


def loaded():
    if device == "cpu":
        return ade.load(folder / "model")
    try:
        return ade.load(folder / "model", device=device)
    except TypeError:
        return ade.Classifier.load(folder / "model", device)


def scorer(model, texts):
    ids = [encoding.ids for encoding in model.tokenizer.encode_batch(texts)]
    offsets, ids = np.cumsum([0, *map(len, ids)]), np.concatenate(ids)
    if not hasattr(getattr(model, "backend", None), "scores"):  # before backends
        return lambda: model.scores(ids, offsets)
    from ade.data.tokens import Ragged
    return lambda: model.backend.scores(Ragged(ids, offsets))


if what == "prepare":
    train(short, folder / "model")
elif what == "train":
    train(short)  # distils, and warms up
    print((long - short) / (train(long) - train(short)))
else:
    texts = (folder.parent / "texts.txt").read_text("utf8").splitlines()
    model = loaded()
    work = (lambda: model.predict(texts)) if what == "predict" else scorer(model, texts)
    work()
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    print(len(texts) / sorted(taken)[2])
"""


class Measure(NamedTuple):
    """What both trees are asked: arguments of SCRIPT for a rate, or the words of a command that is timed."""

    name: str
    rate: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def of(self, tree: Path, work: Path) -> float:
        """One figure of a tree: a rate, or the milliseconds of a command."""
        if self.rate:
            return float(run_in(tree, work, "-c", SCRIPT, self.rate[0], str(work), *self.rate[1:]))
        began = time.perf_counter()
        run_in(tree, work, *(word.format(work=work) for word in self.command))
        return 1000 * (time.perf_counter() - began)


def measures(cuda: bool, steps: Mapping[str, Sequence[int]]) -> list[Measure]:
    """What is measured; on a GPU where there is one."""
    on_gpu = []
    if cuda:
        on_gpu.append(Measure("training on the GPU, steps/s", ("train", "cuda", *map(str, steps["cuda"]))))
        on_gpu.append(Measure("scores of token ids on the GPU, texts/s", ("scores", "cuda", "0", "0")))
    return [
        Measure("training on the CPU, steps/s", ("train", "cpu", *map(str, steps["cpu"]))),
        Measure("predictions by tables on the CPU, texts/s", ("predict", "cpu", "0", "0")),
        *on_gpu,
        Measure("ade predict of one text, ms", command=("-m", "ade", "predict", "{work}/model", "{work}/../one.txt")),
        Measure("import ade, ms", command=("-c", "import ade")),
    ]


def beside(
    ref: str, repeats: int = REPEATS, steps: Mapping[str, Sequence[int]] = STEPS, report: Report = silent
) -> list[dict[str, Any]]:
    """Medians of both trees and their ratio, this tree's over the other's, for everything that is measured."""
    import torch

    with tempfile.TemporaryDirectory() as temporary, worktree(ref) as other:
        trees = {HERE: (ROOT, Path(temporary) / "here"), ref: (other, Path(temporary) / "other")}
        write_inputs(Path(temporary))
        for tree, work in trees.values():
            work.mkdir()
            run_in(tree, work, "-c", SCRIPT, "prepare", str(work), "cpu", str(steps["cpu"][0]), "0")

        rows, asked = [], measures(torch.cuda.is_available(), steps)
        for number, measure in enumerate(asked):
            figures: dict[str, list[float]] = {name: [] for name in trees}
            for turn in range(repeats):
                for name in (HERE, ref) if turn % 2 else (ref, HERE):
                    figures[name].append(measure.of(*trees[name]))
            medians = {name: statistics.median(values) for name, values in figures.items()}
            rows.append({"what": measure.name, **medians, "ratio": medians[HERE] / medians[ref]})
            report("beside", number + 1, len(asked), {})
    return rows


def write_inputs(folder: Path) -> None:
    """A random teacher, rows to train and to validate on, texts to predict, and one text by itself.

    Words are drawn by Zipf's law, those of a text from the half of the vocabulary that its label names. Nothing is
    taken from packages or the network, so that this runs anywhere.
    """
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers

    generator, (count, dim) = np.random.default_rng(0), VOCABULARY
    teacher = folder / "teacher"
    teacher.mkdir()
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(count)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(teacher / "tokenizer.json"))
    save_file({"weight": generator.normal(size=(count, dim)).astype(np.float32)}, teacher / "embeddings.safetensors")

    labels = generator.integers(0, 4, ROWS + VALIDATION + TEXTS)
    words = np.minimum(generator.zipf(1.3, (len(labels), WORDS)), count // 4) * 4 - 1 - labels[:, None]
    lines = [" ".join(f"w{i}" for i in row[: 5 + n % (WORDS - 5)]) for n, row in enumerate(words)]
    rows = [f"{line},{label}" for line, label in zip(lines, labels, strict=True)]
    for name, some in (("rows", rows[:ROWS]), ("validation", rows[ROWS : ROWS + VALIDATION])):
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *some, ""]), "utf8")
    (folder / "texts.txt").write_text("\n".join(lines[-TEXTS:]) + "\n", "utf8")
    (folder / "one.txt").write_text(lines[-1] + "\n", "utf8")


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
