"""The output folder of a training run: a checkpoint while it runs, the finished model after that.

During a run the folder holds `run.json` (settings and hashes that identify the run), `checkpoint.safetensors`
(progress, state after a step and the best weights so far, replaced atomically), and in a second phase what that starts
from. When the run is done, they are replaced by the model's own files and `training.json`.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open

from ade.errors import InputError
from ade.files import LOCK, check_free, created, locked, new_file, new_folder
from ade.folder import Saved
from ade.settings import TrainingSettings

if TYPE_CHECKING:
    from torch import Tensor

RUN, CHECKPOINT, DONE = "run.json", "checkpoint.safetensors", "training.json"
PHASE, FINISHED = "phase", "finished"  # folders: what the second phase starts from, and the finished model's draft
PROGRESS = "progress.json"  # of the first phase, in the folder of the second
# Temporary files of a process that was killed, those of safetensors among them.
LEFTOVER = re.compile(r"\.(run|checkpoint)\.\w+\.\d+|finished|\.(finished|phase)[-.].*|\.tmp\w{6}")
SHAPE = ("attend", "sat", "layers", "positions", "pooling", "heads", "max_tokens", "layer_bits")
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
    shape = {name: getattr(start.config, name) for name in SHAPE}
    return {**{name: value for name, value in asdict(settings).items() if name != "device"}, **shape, **hashes}


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
    markers = {RUN, CHECKPOINT, DONE}
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if all(name in (PHASE, LOCK) or LEFTOVER.fullmatch(name) for name in names):
        markers = names  # only working files: a run was killed early
    if existing == "refuse" and names & {RUN, CHECKPOINT} and DONE not in names:
        raise InputError(f"{folder}: holds an interrupted run; use --resume to continue it, or pass --overwrite")
    check_free(folder, markers, existing != "refuse", "--resume or --overwrite")


class RunFolder:
    """The folder of one run, which the caller has claimed; `identity` tells the run from others."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], existing: Existing) -> None:
        """Remove an earlier run if overwriting, remove leftovers, and write or check `run.json`."""
        self.folder = folder
        self.identity = json.loads(json.dumps(identity))
        for path in self.folder.iterdir():
            if path.name != LOCK and (existing == "overwrite" or LEFTOVER.fullmatch(path.name)):
                _remove(path)
        if self.finished:
            self._tidy()
        elif (self.folder / RUN).exists() or (self.folder / CHECKPOINT).exists():
            self._check_same(RUN)
        else:
            _write_json(self.folder / RUN, {"identity": self.identity})

    @property
    def finished(self) -> bool:
        """Whether the folder holds this run, completed; another completed run is refused."""
        if not (self.folder / DONE).exists():
            return False
        self._check_same(DONE)
        return True

    def load(self) -> "tuple[dict[str, Any], dict[str, Tensor]] | None":
        """Progress and state of the last checkpoint; None if there is none."""
        path = self.folder / CHECKPOINT
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
            with new_file(self.folder / CHECKPOINT) as draft:
                save_file(state, draft, {"progress": json.dumps(progress)})
        except (OSError, InputError) as error:
            reason = f"cannot write the checkpoint ({error}); the last one is kept, continue with --resume"
            raise InputError(f"{self.folder}: {reason}") from None

    def save_phase(self, start: Saved, progress: Mapping[str, Any]) -> None:
        """Write what the second phase starts from, and the progress of the first, whose checkpoint is done with."""
        with new_folder(self.folder / PHASE, {PROGRESS}, overwrite=True) as draft:
            start.write(draft)
            _write_json(draft / PROGRESS, progress)
        _remove(self.folder / CHECKPOINT)

    def load_phase(self) -> tuple[Saved, dict[str, Any]] | None:
        """What the second phase starts from, and the progress of the first; None in the first phase."""
        path = self.folder / PHASE
        return (Saved.read(path), json.loads((path / PROGRESS).read_text("utf8"))) if path.exists() else None

    def finish(self, saved: Saved, steps: int = 0, validations: Sequence[Mapping[str, float]] = ()) -> None:
        """Replace the checkpoints by the finished model; `training.json`, with the result, is written last."""
        known = {name: value for name, value in saved.config.metadata.items() if name in RESULTS}
        result = {**known, "steps": steps, "validations": list(validations), "identity": self.identity}
        with new_folder(self.folder / FINISHED, {DONE}, overwrite=True) as draft:
            saved.write(draft)
            _write_json(draft / DONE, result)
        for path in sorted((self.folder / FINISHED).iterdir(), key=lambda path: path.name == DONE):
            os.replace(path, self.folder / path.name)
        self._tidy()

    def _tidy(self) -> None:
        """Remove the working files of a finished run."""
        for name in (FINISHED, CHECKPOINT, PHASE, RUN):
            _remove(self.folder / name)

    def _check_same(self, name: str) -> None:
        """Refuse a folder whose file `name` identifies another run."""
        path = self.folder / name
        try:
            other = dict(json.loads(path.read_text("utf8"))["identity"])
        except (OSError, ValueError, TypeError, KeyError):
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
