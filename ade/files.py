"""Output folders, written completely or not at all and by one process at a time; and finding model folders.

A folder may be written where it is missing, empty, or holds an earlier result (a marker file of its kind is in it).
The lock is a file that the operating system releases when the process ends, however it ends.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ade.errors import InputError, first_line

ENGLISH = "english"  # the encoder of the package
MARKER = "config.json"  # a folder with this file is a model folder
OWN_MODELS = "Ade"  # how the names of the classes of ADE models begin
LOCK = ".ade-lock"  # the lock file of a folder that is written in place, as a training run's
FILE_SUFFIXES = {".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".txt", ".gz", ".xz", ".zip", ".safetensors"}


def check_free(folder: Path, markers: Collection[str], allowed: bool, way_out: str = "--overwrite") -> None:
    """Raise `InputError` for a folder that may not be written.

    That is one with other files in it or, unless `allowed`, one with an earlier result, which has one of the
    `markers`. `way_out` names the flag that would allow it.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file, an output folder is needed")
    names = {path.name for path in folder.iterdir()} - {LOCK} if folder.exists() else set()
    if not names:
        return
    if not names & set(markers):
        raise InputError(f"{folder}: already holds something else; choose a new folder")
    if not allowed:
        raise InputError(f"{folder}: already holds an earlier result; choose a new folder or pass {way_out}")


@contextmanager
def new_folder(folder: Path, markers: Collection[str], overwrite: bool = False) -> Iterator[Path]:
    """Yield a draft folder to write into; it is renamed to `folder` when the block has ended without an error.

    Whether `folder` can be written is checked at once, before any long computation, and it stays locked meanwhile.
    """
    check_free(folder, markers, overwrite)
    folder = folder.resolve()  # a symbolic link stays one
    draft, old, lock = (folder.with_name(f".{folder.name}.ade-{what}") for what in ("draft", "old", "lock"))
    with created(folder.parent), locked(lock, folder), full_disk(folder):
        _clean_up(folder, draft, old)  # what a killed process left
        check_free(folder, markers, overwrite)  # again, now that no other process can write it
        try:
            draft.mkdir()
            yield draft
            for path in draft.rglob("*"):  # safetensors makes files that only their owner may read
                path.chmod(0o755 if path.is_dir() else 0o644)
            if folder.exists():
                os.replace(folder, old)
            os.replace(draft, folder)
        finally:
            _clean_up(folder, draft, old)


def _clean_up(folder: Path, draft: Path, old: Path) -> None:
    """Remove the draft and the replaced folder; restore the latter where nothing has taken its place."""
    if old.exists() and not folder.exists():
        os.replace(old, folder)
    for path in (draft, old):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a draft path to write to; it replaces `path` when the block has ended without an error."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with full_disk(path):
            yield draft
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Turn the error that safetensors raises for a full disk into an `InputError`."""
    try:
        yield
    except SafetensorError as error:
        raise InputError(f"{path}: cannot write ({error})") from None


@contextmanager
def created(folder: Path) -> Iterator[None]:
    """Create a folder and its parents; of those created, remove the ones that are empty at the end."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made a folder ({error.strerror})") from None
    try:
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()


@contextmanager
def locked(path: Path, folder: Path) -> Iterator[None]:
    """Hold the lock file of an output folder; raises `InputError` where another process holds it."""
    from filelock import FileLock, Timeout  # predictions do without

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"{folder}: another run is writing there; wait or choose a new folder") from None
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows does not remove open files
            path.unlink()  # before it is released: who has opened it meanwhile finds it gone and tries again
        lock.release()


def model_folder(source: str | Path, subfolder: str = "", **download: Any) -> Path:
    """Return a model folder; for a name on the hub, the folder its weights and JSON files were downloaded to.

    The name `english` is the encoder that comes with the package, unless there is a folder of that name.

    `download` are arguments of `huggingface_hub.snapshot_download`, as `revision`.
    """
    path, parts = Path(source), str(source).split("/")
    if str(source) == ENGLISH and not path.exists():
        return Path(__file__).parent / "encoders" / ENGLISH
    if path.exists() or not looks_like_hub_name(str(source)) or len(parts) != 2:
        return path / subfolder
    wanted = ["*.json", "*.packed.xz", "model.safetensors"]
    try:
        from huggingface_hub import snapshot_download

        patterns = [f"{subfolder}/{name}" for name in wanted] if subfolder else wanted
        return Path(snapshot_download(str(source), allow_patterns=patterns, **download)) / subfolder
    except Exception as error:  # unknown name, hub out of reach, package not installed
        raise InputError(f"{source}: neither a model folder nor a reachable hub name ({first_line(error)})") from None


def looks_like_hub_name(source: str) -> bool:
    """Whether a source that is not there may be a name on the hub: `name` or `owner/name`.

    A path is not: one that starts with a dot, a slash or ~, that has more parts, a file's ending, or a folder that
    exists as its first part.
    """
    parts = source.split("/")
    if len(parts) > 2 or "\\" in source or not all(part and part[0] not in ".~" for part in parts):
        return False
    if Path(source).suffix.lower() in FILE_SUFFIXES:
        return False
    return len(parts) == 1 or not Path(parts[0]).is_dir()


def kind_of(source: str | Path) -> str:
    """Return the name of the class a model folder was saved as; an empty string where it has none."""
    try:
        known = json.loads((model_folder(source) / MARKER).read_text("utf8")).get("architectures")
    except InputError:
        raise
    except (OSError, ValueError, AttributeError):
        return ""
    return str(known[0]) if isinstance(known, list) and known else ""


@contextmanager
def reading_model(folder: Path) -> Iterator[None]:
    """Turn any error of reading a model folder into an `InputError` of one line that names the folder."""
    if not (folder / MARKER).is_file():
        raise InputError(f"{folder}: not a model folder (no {MARKER}); make one with 'ade train'")
    try:
        yield
    except InputError as error:
        if str(folder) in str(error):
            raise
        raise InputError(f"{folder}: {error}") from None
    except Exception as error:  # of any library: the folder is damaged or of another kind
        raise InputError(f"{folder}: not a readable ADE model ({first_line(error)})") from None


def cache_folder() -> Path:
    """Return the folder of what is computed once and kept: $ADE_CACHE, or `ade` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("ADE_CACHE") or Path(home) / "ade")
