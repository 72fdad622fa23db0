"""The output folder of a training run: checkpoints while it runs, the finished model after that.

During a run the folder holds `run.json` (settings and hashes that identify the run), `checkpoint.safetensors` (the
state after a step, replaced atomically), `best.safetensors` (the best weights so far) and `metrics.jsonl`. When the run
is done, all but the last are replaced by the model's own files and `training.json`.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ade.classifier import Stored
from ade.errors import InputError
from ade.files import LOCK, check_free, created, locked, new_file, new_folder

RUN, LAST, BEST = "run.json", "checkpoint.safetensors", "best.safetensors"
METRICS, DONE = "metrics.jsonl", "training.json"
# Temporary files of a process that was killed, those of safetensors among them.
LEFTOVER = re.compile(r"\.(run|checkpoint|best|metrics)\.\w+\.\d+|finished|\.finished[-.].*|\.tmp\w{6}")
Existing = Literal["refuse", "resume", "overwrite"]


@contextmanager
def claimed(folder: Path, existing: Existing) -> Iterator[None]:
    """Context manager: create and lock the folder of a run; refuse content that may not be resumed or overwritten."""
    if not (folder / LOCK).exists():  # else ask first whether a run is going on
        _check(folder, existing)
    with created(folder), locked(folder / LOCK, folder):
        _check(folder, existing)  # again: another process may have written before the lock was ours
        yield


def _check(folder: Path, existing: Existing) -> None:
    markers = {RUN, LAST, DONE}
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if all(name in (BEST, METRICS, LOCK) or LEFTOVER.fullmatch(name) for name in names):
        markers = names  # only working files: a run was killed early
    if existing == "refuse" and names & {RUN, LAST} and DONE not in names:
        raise InputError(f"{folder}: holds an interrupted run; use --resume to continue it, or pass --overwrite")
    check_free(folder, markers, existing != "refuse", "--resume or --overwrite")


class RunFolder:
    """The folder of one run; `identity` (settings, hashes of data and codebook) tells it from other runs."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity = json.loads(json.dumps(identity))

    def begin(self, existing: Existing) -> None:
        """Prepare the folder: remove an earlier run if overwriting, remove leftovers, write or check `run.json`."""
        for path in self.folder.iterdir():
            if path.name != LOCK and (existing == "overwrite" or LEFTOVER.fullmatch(path.name)):
                _remove(path)
        if self.finished:
            self._tidy()
        elif (self.folder / RUN).exists():
            self._check_same(RUN)
        elif (self.folder / LAST).exists():
            raise InputError(f"{self.folder}: a checkpoint without {RUN}, which identifies the run; pass --overwrite")
        else:
            with new_file(self.folder / RUN) as draft:
                draft.write_text(json.dumps({"identity": self.identity}, indent=2) + "\n", "utf8")

    def check(self) -> None:
        """Refuse a folder that holds another run."""
        for name in (RUN, DONE):
            if (self.folder / name).exists():
                self._check_same(name)

    @property
    def finished(self) -> bool:
        """Whether the folder holds this run, completed; another completed run is refused."""
        if not (self.folder / DONE).exists():
            return False
        self._check_same(DONE)
        return True

    def load(self) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]] | None:
        """Progress, state and best weights of the last checkpoint; None if there is none."""
        if not (self.folder / LAST).exists():
            return None
        state, metadata = _read(self.folder / LAST)
        return json.loads(metadata["progress"]), state, _read(self.folder / BEST)[0]

    def save(self, progress: Mapping[str, Any], state: dict[str, Tensor], best: dict[str, Tensor] | None) -> None:
        """Write a checkpoint of the state after a step, and of the best weights if they are new."""
        metadata = {"progress": json.dumps(progress)}
        try:
            if best is not None:
                with new_file(self.folder / BEST) as draft:
                    save_file(best, draft)
            with new_file(self.folder / LAST) as draft:
                save_file(state, draft, metadata)
        except (OSError, InputError) as error:
            reason = f"cannot write the checkpoint ({error}); the last one is kept, continue with --resume"
            raise InputError(f"{self.folder}: {reason}") from None

    def log(self, metrics: Mapping[str, float]) -> None:
        """Append a line to `metrics.jsonl`."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no NaN
        with open(self.folder / METRICS, "a", encoding="utf8") as file:
            file.write(json.dumps(finite) + "\n")

    def finish(self, predictor: Stored[Any], result: Mapping[str, Any]) -> None:
        """Replace the checkpoints by the finished model; `training.json`, with the result, is written last."""
        with new_folder(self.folder / "finished", {DONE}, overwrite=True) as draft:
            predictor.write(draft)
            (draft / DONE).write_text(json.dumps({**result, "identity": self.identity}, indent=2) + "\n", "utf8")
        for path in sorted((self.folder / "finished").iterdir(), key=lambda path: path.name == DONE):
            os.replace(path, self.folder / path.name)
        self._tidy()

    def _tidy(self) -> None:
        """Remove the working files of a finished run."""
        for name in ("finished", LAST, BEST, RUN):
            _remove(self.folder / name)

    def _check_same(self, name: str) -> None:
        """Refuse a folder whose file `name` identifies another run."""
        path = self.folder / name
        try:
            other = dict(json.loads(path.read_text("utf8"))["identity"])
        except (ValueError, TypeError, KeyError):
            raise InputError(f"{path}: does not identify its run; start over with --overwrite") from None
        for key, value in self.identity.items():
            if other.get(key) != value:
                raise InputError(
                    f"{self.folder}: the run there had {key} = {other.get(key)}, not {value}; "
                    "resume with the same settings or choose a new folder"
                )

    def forget_after(self, step: int) -> None:
        """Remove logged metrics of later steps, which will be run again."""
        path = self.folder / METRICS
        lines = path.read_text("utf8").splitlines(keepends=True) if path.exists() else []
        with new_file(path) as draft:
            draft.write_text("".join(line for line in lines if _step_of(line) <= step), "utf8")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):  # the process was killed while writing the line
        return float("inf")


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable checkpoint ({error}); start over with --overwrite") from None
