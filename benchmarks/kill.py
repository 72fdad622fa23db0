"""Kill `ade distill` and `ade train` at random moments, and let their disk be full; then go on, and compare every byte.

    python -m benchmarks kill --kills 100 --full-disks 100

A command is killed (SIGKILL) either at one of its operations on files, counted by an audit hook, or after a part of the
time it takes. A full disk is a limit on the size of files (RLIMIT_FSIZE) at a random byte. Afterwards the same command
is run to its end, and its folder must hold what an undisturbed run writes, bit for bit, and nothing else.
"""

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.library import write_toy

TOY = (600, 16, 240, 10)  # vocabulary, dimensions, rows, words of a text
MAX_SECONDS = 600  # after which a command hangs
FINISHED = "already holds an earlier result"  # a kill after the last operation: all is written

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
Ended = tuple[int, str]  # exit status and errors
Disturbance = dict[str, Any]  # arguments of `run`
Command = tuple[str, ...]  # of ade, without its output folder; the same command goes on where it was killed


@dataclass(frozen=True)
class Undisturbed:
    """What a command writes when nothing happens to it, in how many operations on files and seconds."""

    files: dict[str, bytes]
    operations: int
    seconds: float


def write_data(folder: Path) -> dict[str, Command]:
    """Write a small teacher and labelled rows; returns the commands that are run on them."""
    write_toy(folder, *TOY)
    common = ("--teacher", str(folder / "teacher"), "--device", "cpu")
    steps = ("--set", "steps=40", "--set", "batch_size=16", "--json", "--resume")
    train = ("train", str(folder / "rows.csv"), *common, *steps)
    return {
        "distillation": ("distill", *common, "--anchors", "20", "--pairs", "3"),
        "training": train,
        "packed training": (*train, "--size", "30kB"),
    }


def run(command: Command, folder: Path, operation: int = -1, max_file: int = 0, seconds: float = MAX_SECONDS) -> Ended:
    """Exit status and errors of a command that writes to `out` in a folder, disturbed as the arguments say."""
    own = {"ADE_CACHE": str(folder / "cache"), "HF_DATASETS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", HOOK, str(operation), str(folder), *command, "--out", str(folder / "out")]
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (max_file, max_file)) if max_file else None
    try:
        done = subprocess.run(
            words, env={**os.environ, **own, "ADE_PROGRESS": "0"}, capture_output=True, text=True, timeout=seconds,
            preexec_fn=limit, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:  # it was killed
        return -signal.SIGKILL, ""
    return done.returncode, done.stderr


def undisturbed(command: Command, folder: Path) -> Undisturbed:
    """Run a command without a disturbance."""
    folder.mkdir()
    began = time.monotonic()
    status, errors = run(command, folder, operation=0)
    if status:
        raise RuntimeError(f"an undisturbed run failed: {errors[-500:]}")
    return Undisturbed(files_of(folder / "out"), int(errors.rpartition("operations: ")[2]), time.monotonic() - began)


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of every file below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def trial(command: Command, whole: Undisturbed, folder: Path, disturbances: Sequence[Disturbance]) -> str:
    """Disturb a command, let it end, and compare; returns what is wrong, or an empty string."""
    (folder / "cache").mkdir(parents=True)
    for how in disturbances:  # it is killed, or ends well, or names a full disk in one line
        status, errors = run(command, folder, **how)
        one_line = status == 2 and errors.count("\n") <= 1
        if status not in (0, -signal.SIGKILL) and not ("max_file" in how and one_line):
            return f"status {status}: {errors[-300:]}"

    status, errors = run(command, folder)
    if status and FINISHED not in errors:
        return f"could not go on: {errors[-300:]}"
    written = files_of(folder / "out")
    different = sorted(name for name in {*written, *whole.files} if written.get(name) != whole.files.get(name))
    left = sorted(path.name for path in folder.iterdir() if path.name not in ("out", "cache", ".out.ade-lock"))
    return f"different: {different}, left over: {left}" if different or left else ""


def try_kills(kills: int, full_disks: int, seed: int) -> Iterator[tuple[str, str]]:
    """Disturb the commands in turn; gives what was done, and what went wrong."""
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        commands = write_data(folder)
        wholes = {name: undisturbed(command, folder / name) for name, command in commands.items()}
        for number in range(kills + full_disks):
            name = list(commands)[number % len(commands)]
            whole = wholes[name]
            if number >= kills:
                how: Disturbance = {"max_file": generator.randint(1, max(map(len, whole.files.values())))}
            elif number // len(commands) % 2:
                how = {"seconds": generator.uniform(0, whole.seconds)}
            else:
                how = {"operation": generator.randint(1, whole.operations)}
            yield f"{name}, {how}", trial(commands[name], whole, folder / f"trial-{number}", [how])
