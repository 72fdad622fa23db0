"""Kill `ade distill` and `ade train` at random moments, and let their disk be full; then go on, and compare every byte.

    python -m benchmarks.kill --kills 100 --full-disks 100

A command is killed (SIGKILL) either at one of its operations on files, counted by an audit hook, or after a share of
the time it takes. A full disk is a limit on the size of files (RLIMIT_FSIZE) at a random byte. Afterwards the same
command is run to its end, and its folder must hold what an undisturbed run writes, bit for bit, and nothing else.
"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

WORDS, DIM, ROWS = 600, 16, 240
Done = subprocess.CompletedProcess[str]
VARYING = {"metrics.jsonl"}  # holds times
PATIENCE = 600  # seconds after which a command hangs
REFUSED = "already holds an earlier result"  # a kill after the last operation: all is written

# Runs `ade` with the words after the first two. It is killed at operation FIRST on files under the folder SECOND; with
# 0 it ends, and prints the number of operations.
HOOK = """
import os, signal, sys
at, root = int(sys.argv[1]), sys.argv[2]
sys.argv[1:3] = []
seen = 0

def count(event, given):
    global seen
    writes = event == "open" and isinstance(given[1], str) and set(given[1]) & set("wxa+")
    writes = writes or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod")
    if not writes or not given or not str(given[0]).startswith(root):
        return
    seen += 1
    if seen == at:
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
try:
    from ade.cli.main import main
    main()
finally:
    if at == 0:
        print(f"operations: {seen}", file=sys.stderr)
"""


@dataclass(frozen=True)
class Stage:
    """A command of `ade`, without its output folder, and how it goes on where it was killed."""

    words: tuple[str, ...]
    again: tuple[str, ...] = ()


@dataclass(frozen=True)
class Whole:
    """What an undisturbed run of a stage writes, in how many operations on files and seconds."""

    files: dict[str, bytes]
    operations: int
    seconds: float


def write_data(folder: Path, seed: int = 0) -> dict[str, Stage]:
    """Write a small teacher and labelled rows; returns the stages that run on them."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers

    generator = np.random.default_rng(seed)
    words = [f"w{i}" for i in range(WORDS)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    teacher, rows = folder / "teacher", folder / "rows.csv"
    teacher.mkdir()
    tokenizer.save(str(teacher / "tokenizer.json"))
    save_file(
        {"weight": generator.standard_normal((WORDS + 1, DIM)).astype(np.float32)}, teacher / "embeddings.safetensors"
    )

    labels = generator.integers(0, 2, ROWS)
    texts = [" ".join(words[i] for i in generator.integers(0, WORDS // 2, 8) + label * WORDS // 2) for label in labels]
    rows.write_text("text,label\n" + "".join(f"{t},{n}\n" for t, n in zip(texts, labels, strict=True)), "utf8")

    common = ("--device", "cpu", "--quiet")
    distill = ("distill", "--teacher", str(teacher), *common)
    train = ("train", str(rows), "--teacher", str(teacher), "--steps", "40", "--batch-size", "16", "--json", *common)
    return {
        "distillation": Stage((*distill, "--anchors", "20", "--pairs", "3")),
        "packed distillation": Stage((*distill, "--size", "20kB")),
        "training": Stage(train, ("--resume",)),
        "packed training": Stage((*train, "--size", "30kB"), ("--resume",)),
    }


def command(stage: Stage, folder: Path, at: int = -1) -> list[str]:
    """The command of a stage that writes to `out` in a folder, killed at an operation on files there."""
    return [sys.executable, "-c", HOOK, str(at), str(folder), *stage.words, "--out", str(folder / "out"), *stage.again]


def environment(folder: Path) -> dict[str, str]:
    """One thread, and a cache in the folder."""
    own = {"ADE_CACHE": str(folder / "cache"), "HF_DATASETS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own, "ADE_PROGRESS": "0"}


def whole_run(stage: Stage, folder: Path) -> Whole:
    """Run a stage undisturbed."""
    folder.mkdir()
    began = time.monotonic()
    done = run(stage, folder, 0)
    if done.returncode:
        raise RuntimeError(f"an undisturbed run failed: {done.stderr[-500:]}")
    operations = int(done.stderr.rpartition("operations: ")[2])
    return Whole(files_of(folder / "out"), operations, time.monotonic() - began)


def run(stage: Stage, folder: Path, at: int = -1, prepare: Callable[[], None] | None = None) -> Done:
    """Run the command of a stage."""
    return subprocess.run(
        command(stage, folder, at), env=environment(folder), capture_output=True, text=True, timeout=PATIENCE,
        preexec_fn=prepare, check=False,
    )  # fmt: skip


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of every file below a folder, but of those that hold times."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in VARYING)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def kill_at_operation(stage: Stage, folder: Path, at: int) -> str:
    """Run a stage until it is killed at an operation on files; a run that has fewer of them ends as usual."""
    done = run(stage, folder, at)
    return "" if done.returncode in (0, -signal.SIGKILL) else f"status {done.returncode} at operation {at}"


def kill_after(stage: Stage, folder: Path, seconds: float) -> str:
    """Run a stage and kill it after some time."""
    process = subprocess.Popen(
        command(stage, folder), env=environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return ""


def fill_disk(stage: Stage, folder: Path, size: int) -> str:
    """Run a stage that cannot write a file beyond `size` bytes: it ends with one line, or without an error."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = run(stage, folder, prepare=limit)
    ended_well = done.returncode in (0, 2) and done.stderr.count("\n") <= 1
    return "" if ended_well else f"status {done.returncode} where a file ends at byte {size}: {done.stderr[-300:]}"


def trial(stage: Stage, whole: Whole, folder: Path, disturb: Callable[[], str]) -> str:
    """Disturb a stage, let it end, and compare; returns what is wrong, or an empty string."""
    (folder / "cache").mkdir(parents=True)
    if wrong := disturb():
        return wrong
    done = run(stage, folder)
    if done.returncode and REFUSED not in done.stderr:
        return f"could not go on: {done.stderr[-300:]}"

    found = files_of(folder / "out")
    different = sorted(name for name in {*found, *whole.files} if found.get(name) != whole.files.get(name))
    left = sorted(path.name for path in folder.iterdir() if path.name not in ("out", "cache", ".out.ade-lock"))
    if different or left:
        return f"different: {different}, left over: {left}"
    return ""


def trials(stages: dict[str, Stage], folder: Path, kills: int, full_disks: int, seed: int) -> Iterator[tuple[str, str]]:
    """Disturb the stages in turn; gives what was done, and what went wrong."""
    generator = random.Random(seed)
    wholes = {name: whole_run(stage, folder / f"whole-{i}") for i, (name, stage) in enumerate(stages.items())}
    names = list(stages)
    for number in range(kills + full_disks):
        name, here = names[number % len(names)], folder / f"trial-{number}"
        stage, whole = stages[name], wholes[name]
        if number >= kills:
            size = generator.randint(1, max(map(len, whole.files.values())))
            what, disturb = f"files end at byte {size}", lambda s=stage, f=here, n=size: fill_disk(s, f, n)
        elif number // len(names) % 2:
            seconds = generator.uniform(0, whole.seconds)
            what, disturb = f"killed after {seconds:.2f} s", lambda s=stage, f=here, n=seconds: kill_after(s, f, n)
        else:
            at = generator.randint(1, whole.operations)
            what, disturb = f"killed at operation {at}", lambda s=stage, f=here, n=at: kill_at_operation(s, f, n)
        yield f"{name}, {what}", trial(stage, whole, here, disturb)


def main(
    kills: Annotated[int, typer.Option(help="Number of kills.", min=0)] = 100,
    full_disks: Annotated[int, typer.Option(help="Number of runs on a disk that fills up.", min=0)] = 100,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Kill and fill, and say what went wrong."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wrong = []
        for what, problem in trials(write_data(folder), folder, kills, full_disks, seed):
            print(f"{what}: {problem or 'the same bytes'}", file=sys.stderr, flush=True)
            wrong += [f"{what}: {problem}"] if problem else []
    print(json.dumps({"kills": kills, "full_disks": full_disks, "wrong": wrong}))
    raise typer.Exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)
