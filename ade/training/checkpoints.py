"""The folder of a training run: progress that survives interruption, then the finished model in its place.

While a run goes on the folder holds `run.json` (which run it is), `checkpoint.safetensors` (the state after a step;
replaced in one move, so a full disk or a kill leaves the last good one), `best.safetensors` and `metrics.jsonl`. When
it is done all but the last give way to the model's own files and `training.json`.
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

from ade.classifier import Classifier, Tagger
from ade.errors import InputError
from ade.files import LOCK, check_free, created, locked, new_file, new_folder

RUN, LAST, BEST = "run.json", "checkpoint.safetensors", "best.safetensors"
METRICS, DONE = "metrics.jsonl", "training.json"
# Drafts of a process that was killed.
LEFTOVER = re.compile(r"\.(run|checkpoint|best|metrics)\.\w+\.\d+|finished|\.finished[-.].*")
Existing = Literal["refuse", "resume", "overwrite"]


@contextmanager
def claimed(folder: Path, existing: Existing) -> Iterator[None]:
    """Around a run: its folder is there and locked, and holds nothing but a run that may be resumed or overwritten."""
    _check(folder, existing)
    with created(folder), locked(folder / LOCK, folder):
        _check(folder, existing)  # again: it is ours alone only now
        yield


def _check(folder: Path, existing: Existing) -> None:
    markers = {RUN, LAST, DONE}
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if all(name in (BEST, METRICS, LOCK) or LEFTOVER.fullmatch(name) for name in names):
        markers = names  # working files alone: a run was killed early
    check_free(folder, markers, existing != "refuse", "--resume or --overwrite")


class RunFolder:
    """One run's folder; `identity` says which run it is (settings, data, codebook), so that no other is resumed."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity = json.loads(json.dumps(identity))

    def begin(self, existing: Existing) -> None:
        """Remove what may not stay: an earlier run that is overwritten, and whatever a killed process left."""
        for path in self.folder.iterdir():
            if path.name != LOCK and (existing == "overwrite" or LEFTOVER.fullmatch(path.name)):
                _remove(path)
        if self.finished:
            self._tidy()
        elif (self.folder / RUN).exists():
            self._check_same(RUN)
        elif (self.folder / LAST).exists():
            raise InputError(f"{self.folder}: a checkpoint without {RUN}, which says what run it is; pass --overwrite")
        else:
            with new_file(self.folder / RUN) as draft:
                draft.write_text(json.dumps({"identity": self.identity}, indent=2) + "\n", "utf8")

    @property
    def finished(self) -> bool:
        """Whether this very run has been completed in this folder."""
        if not (self.folder / DONE).exists():
            return False
        self._check_same(DONE)
        return True

    def load(self) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]] | None:
        """Progress, state and best weights of the last checkpoint; None where there is none yet."""
        if not (self.folder / LAST).exists():
            return None
        state, about = _read(self.folder / LAST)
        return json.loads(about["progress"]), state, _read(self.folder / BEST)[0]

    def save(self, progress: Mapping[str, Any], state: dict[str, Tensor], best: dict[str, Tensor] | None) -> None:
        """Keep the state after a step, and the best weights where they are new."""
        about = {"progress": json.dumps(progress)}
        try:
            if best is not None:
                with new_file(self.folder / BEST) as draft:
                    save_file(best, draft)
            with new_file(self.folder / LAST) as draft:
                save_file(state, draft, about)
        except (OSError, InputError) as error:
            reason = f"cannot write the checkpoint ({error}); the last good one is kept, go on with --resume"
            raise InputError(f"{self.folder}: {reason}") from None

    def log(self, figures: Mapping[str, float]) -> None:
        """Add a line to `metrics.jsonl`."""
        known = {name: value if math.isfinite(value) else None for name, value in figures.items()}  # JSON has no NaN
        with open(self.folder / METRICS, "a", encoding="utf8") as file:
            file.write(json.dumps(known) + "\n")

    def finish(self, predictor: Classifier | Tagger, figures: Mapping[str, Any]) -> None:
        """Put the finished model in place of the checkpoints."""
        with new_folder(self.folder / "finished", {DONE}, overwrite=True) as draft:
            predictor.write(draft)
            (draft / DONE).write_text(json.dumps({**figures, "identity": self.identity}, indent=2) + "\n", "utf8")
        for path in sorted((self.folder / "finished").iterdir(), key=lambda path: path.name == DONE):
            os.replace(path, self.folder / path.name)
        self._tidy()

    def _tidy(self) -> None:
        """Remove what a finished run needs no more."""
        for name in ("finished", LAST, BEST, RUN):
            _remove(self.folder / name)

    def _check_same(self, name: str) -> None:
        """Refuse a folder whose run is another one."""
        path = self.folder / name
        try:
            other = dict(json.loads(path.read_text("utf8"))["identity"])
        except (ValueError, TypeError, KeyError):
            raise InputError(f"{path}: does not say what run it is of; start over with --overwrite") from None
        for key, value in self.identity.items():
            if other.get(key) != value:
                raise InputError(
                    f"{self.folder}: the run there had {key} = {other.get(key)}, not {value}; "
                    "resume with the same settings or choose a new folder"
                )

    def forget_after(self, step: int) -> None:
        """Drop what was logged after this step: the steps after it are about to be run again."""
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
    except (ValueError, KeyError):  # torn by a kill in the middle of writing
        return float("inf")


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable checkpoint ({error}); start over with --overwrite") from None
