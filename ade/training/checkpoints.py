"""The output folder of a training run: a checkpoint while it runs, the finished model after that.

During a run everything is in the folder `checkpoint`: `run.json` (settings and hashes that identify the run),
`state.safetensors` (progress, state after a step and the best weights so far, replaced atomically), and the folder
`second`, which a second phase starts from and where it has its own state. When the run is done, it makes way for the
model's own files and `training.json`.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open

from ade.errors import InputError
from ade.files import LOCK, check_free, created, locked, new_file, new_folder
from ade.folder import Saved
from ade.settings import Architecture, TrainingSettings

if TYPE_CHECKING:
    from torch import Tensor

CHECKPOINT, DONE = "checkpoint", "training.json"  # in the folder of a run, while it goes on and when it is done
RUN, STATE, SECOND, FINISHED = "run.json", "state.safetensors", "second", "finished"  # in the folder `checkpoint`
RESULTS = ("dev", "estimate", "lexicon", "kept")  # of a model's metadata, in `training.json`, too
Existing = Literal["refuse", "resume", "overwrite"]


def identity_of(settings: TrainingSettings, start: Saved, data: Iterable[np.ndarray]) -> dict[str, Any]:
    """Return what tells runs apart: their settings, and hashes of the data and of what they start from."""
    begins = [array for _, array in sorted({**start.table.stored()[1], **start.layers}.items())]
    hashes = {}
    for name, arrays in (("data", data), ("start", begins)):
        digest = hashlib.sha256()
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        hashes[name] = digest.hexdigest()[:16]
    shape = {entry.name: getattr(start.config, entry.name) for entry in fields(Architecture)}
    identity = {**asdict(settings), **shape, **hashes}
    del identity["device"]  # a run may go on elsewhere
    return identity


@contextmanager
def claimed(out: str | Path | None, existing: Existing) -> Iterator[None]:
    """Create and lock the folder of a run, if it has one; refuse content that may not be resumed or overwritten."""
    if out is None:
        yield
        return
    folder = Path(out)
    if not (folder / LOCK).exists():  # else ask first whether a run is going on
        _check(folder, existing)
    with created(folder), locked(folder / LOCK, folder):
        _check(folder, existing)  # again: another process may have written before the lock was ours
        yield


def _check(folder: Path, existing: Existing) -> None:
    if existing == "refuse" and (folder / CHECKPOINT).exists() and not (folder / DONE).exists():
        raise InputError(f"{folder}: holds an interrupted run; use --resume to continue it, or pass --overwrite")
    check_free(folder, {CHECKPOINT, DONE}, existing != "refuse", "--resume or --overwrite")


class RunFolder:
    """The folder of one run, which the caller has claimed; `identity` tells the run from others."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], existing: Existing) -> None:
        """Remove an earlier run if overwriting, and what a killed one left; write or check `run.json`."""
        self.folder, self.work = folder, folder / CHECKPOINT
        self.identity = json.loads(json.dumps(identity))
        if existing == "overwrite":
            _remove(self.work)
            self.work.mkdir()  # before anything else goes: a kill leaves a folder that is known to be ours
            for path in folder.iterdir():
                if path.name not in (LOCK, CHECKPOINT):
                    _remove(path)
        if self.finished:
            _remove(self.work)
            return
        if not (self.work / RUN).exists():
            _remove(self.work)
            self.work.mkdir()
            _write_json(self.work / RUN, {"identity": self.identity})
        self._check_same(self.work / RUN)
        for path in self.work.iterdir():
            if path.name not in (RUN, STATE, SECOND):
                _remove(path)

    @property
    def finished(self) -> bool:
        """Whether the folder holds this run, completed; another completed run is refused."""
        if not (self.folder / DONE).exists():
            return False
        self._check_same(self.folder / DONE)
        return True

    def second_start(self, make: Callable[[], Saved]) -> Saved:
        """Return what the second phase starts from, made unless that is done; its state is apart from the first's."""
        if not (self.work / SECOND).exists():
            make().save(self.work / SECOND)
        start = Saved.read(self.work / SECOND)
        self.work /= SECOND
        return start

    def load(self) -> "tuple[dict[str, Any], dict[str, Tensor]] | None":
        """Progress and state of the last checkpoint; None if there is none."""
        path = self.work / STATE
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return json.loads(file.metadata()["progress"]), state
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: not a readable checkpoint ({error}); start over with --overwrite") from None

    def save(self, progress: Mapping[str, Any], state: "dict[str, Tensor]") -> None:
        """Write a checkpoint: progress and state after a step."""
        from safetensors.torch import save_file

        try:
            with new_file(self.work / STATE) as draft:
                save_file(state, draft, {"progress": json.dumps(progress)})
        except (OSError, InputError) as error:
            reason = f"cannot write the checkpoint ({error}); the last one is kept, continue with --resume"
            raise InputError(f"{self.folder}: {reason}") from None

    def finish(self, saved: Saved, steps: int = 0, validations: Sequence[Mapping[str, float]] = ()) -> None:
        """Replace the checkpoints by the finished model; `training.json`, with the result, is written last."""
        known = {name: value for name, value in saved.config.metadata.items() if name in RESULTS}
        result = {**known, "steps": steps, "validations": list(validations), "identity": self.identity}
        with new_folder(self.work / FINISHED, {DONE}, overwrite=True) as draft:
            saved.write(draft)
            _write_json(draft / DONE, result)
        for path in sorted((self.work / FINISHED).iterdir(), key=lambda path: path.name == DONE):
            os.replace(path, self.folder / path.name)
        _remove(self.folder / CHECKPOINT)

    def _check_same(self, path: Path) -> None:
        """Refuse a folder whose `run.json` or `training.json` identifies another run."""
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


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with new_file(path) as draft:
        draft.write_text(json.dumps(content, indent=2) + "\n", "utf8")
