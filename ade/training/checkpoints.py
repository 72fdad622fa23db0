"""The folder of a training run: progress that survives interruption, then the finished model in its place.

While a run goes on the folder holds `checkpoint.safetensors` (the state after a step; replaced in one move,
so a full disk or a kill leaves the last good one), `best.safetensors` and `metrics.jsonl`. When it is done the
first two give way to the model's own files and `training.json`.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ade.classifier import Classifier, Tagger
from ade.errors import InputError
from ade.files import check_free, new_file, new_folder

LAST, BEST, METRICS, DONE = "checkpoint.safetensors", "best.safetensors", "metrics.jsonl", "training.json"
Existing = Literal["refuse", "resume", "overwrite"]


def check_run_folder(folder: Path, existing: Existing) -> None:
    """Refuse a folder that holds something else, or a run that may be neither resumed nor overwritten."""
    alone = folder.is_dir() and {path.name for path in folder.iterdir()} == {
        METRICS
    }  # died before its first checkpoint
    check_free(folder, {METRICS} if alone else {LAST, DONE}, existing != "refuse", "--resume or --overwrite")


class RunFolder:
    """One run's folder; `identity` says which run it is (settings, data, codebook), so that no other is resumed."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity = json.loads(json.dumps(identity))

    def begin(self, existing: Existing) -> None:
        """Make the folder; an earlier run in it goes where `existing` says so."""
        check_run_folder(self.folder, existing)
        if existing == "overwrite" and self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def finished(self) -> bool:
        """Whether this very run has been completed in this folder."""
        path = self.folder / DONE
        return path.exists() and self._same(json.loads(path.read_text("utf8"))["identity"])

    def load(self) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]] | None:
        """Progress, state and best weights of the last checkpoint; None where there is none yet."""
        if not (self.folder / LAST).exists():
            return None
        state, about = _read(self.folder / LAST)
        self._same(json.loads(about["identity"]))
        return json.loads(about["progress"]), state, _read(self.folder / BEST)[0]

    def save(self, progress: Mapping[str, Any], state: dict[str, Tensor], best: dict[str, Tensor] | None) -> None:
        """Keep the state after a step, and the best weights where they are new."""
        about = {"identity": json.dumps(self.identity), "progress": json.dumps(progress)}
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
        with open(self.folder / METRICS, "a", encoding="utf8") as file:
            file.write(json.dumps(figures) + "\n")

    def finish(self, predictor: Classifier | Tagger, figures: Mapping[str, Any]) -> None:
        """Put the finished model in place of the checkpoints."""
        with new_folder(self.folder / "finished") as draft:
            predictor.write(draft)
            (draft / DONE).write_text(json.dumps({**figures, "identity": self.identity}, indent=2) + "\n", "utf8")
        for path in sorted((self.folder / "finished").iterdir(), key=lambda path: path.name == DONE):
            os.replace(path, self.folder / path.name)
        (self.folder / "finished").rmdir()
        for name in (LAST, BEST):
            (self.folder / name).unlink(missing_ok=True)

    def _same(self, other: Mapping[str, Any]) -> bool:
        for name, value in self.identity.items():
            if other.get(name) != value:
                raise InputError(
                    f"{self.folder}: the run there had {name} = {other.get(name)}, not {value}; "
                    "resume with the same settings or choose a new folder"
                )
        return True

    def forget_after(self, step: int) -> None:
        """Drop what was logged after this step: the steps after it are about to be run again."""
        path = self.folder / METRICS
        lines = path.read_text("utf8").splitlines(keepends=True) if path.exists() else []
        with new_file(path) as draft:
            draft.write_text("".join(line for line in lines if _step_of(line) <= step), "utf8")


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
