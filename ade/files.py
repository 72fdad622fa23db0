"""Output folders, locked and written so that no half of a result is left; and where a model lies.

A folder is ours where one of the marker files of its kind is in it. Only a missing folder, an empty one or one of ours
is ever written into, by one process at a time: the lock is a file that the system releases however that process ends.
"""

import contextlib
import errno
import json
import os
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ade.errors import InputError, first_line

MARKER = "config.json"  # what makes a folder a model folder
LOCK = ".ade-lock"  # the lock file of a folder that is filled in place
TAKEN = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}  # what a lock says that another process holds


def check_free(folder: Path, markers: Collection[str], allowed: bool, way_out: str = "--overwrite") -> None:
    """Refuse an output folder that holds something else, or one of ours (a marker is in it) unless allowed."""
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
    """A folder to write into that takes the name `folder` only when all of it has been written.

    That it can be written is made sure of at once, before anything takes time, and nobody else may write it meanwhile.
    """
    check_free(folder, markers, overwrite)
    folder = folder.resolve()  # a link stays a link
    draft, old, lock = (folder.with_name(f".{folder.name}.ade-{what}") for what in ("draft", "old", "lock"))
    with made(folder.parent), locked(lock, folder), full_disk(folder):
        _settle(folder, draft, old)
        check_free(folder, markers, overwrite)  # again: it is ours alone only now
        try:
            draft.mkdir()
            yield draft
            for path in draft.iterdir():  # safetensors writes for the owner alone
                path.chmod(0o644)
            if folder.exists():
                os.replace(folder, old)
            os.replace(draft, folder)
        finally:
            _settle(folder, draft, old)


def _settle(folder: Path, draft: Path, old: Path) -> None:
    """Remove what was on the way in or out; what was there before comes back where nothing took its place."""
    if old.exists() and not folder.exists():
        os.replace(old, folder)
    for path in (draft, old):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A path to write to that replaces `path` in one step, only when all of it has been written."""
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
    """What safetensors makes of a full disk, as one clear error."""
    try:
        yield
    except SafetensorError as error:
        raise InputError(f"{path}: cannot write ({error})") from None


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make a folder and the folders above it; those that are still empty at the end go again."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made a folder ({error.strerror})") from None
    try:
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError):  # it holds something
                path.rmdir()


@contextmanager
def locked(path: Path, folder: Path) -> Iterator[None]:
    """Hold the lock file of an output folder; refuse the folder where another process holds it."""
    descriptor = _held(path, folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows does not remove what is open
            path.unlink()  # while it is held: who has opened it meanwhile finds it gone, and looks again
        os.close(descriptor)


def _held(path: Path, folder: Path) -> int:
    """The lock file, opened and locked; still the one at its path, not one that its last holder has removed."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
        try:
            _lock(descriptor)
        except OSError as error:
            if error.errno in TAKEN:
                os.close(descriptor)
                raise InputError(f"{folder}: another run is writing there; wait or choose a new folder") from None
            return descriptor  # a file system without locks
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def model_folder(source: str | Path) -> Path:
    """A model folder as it is; a name on the hub as a folder of what a model needs from there, nothing that runs."""
    path, parts = Path(source), str(source).split("/")
    if path.exists() or len(parts) != 2 or not all(parts) or parts[0] in (".", ".."):
        return path
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(str(source), allow_patterns=["*.json", "model.safetensors"]))
    except Exception as error:  # no such name, the hub out of reach, the package not there
        raise InputError(f"{source}: neither a model folder nor a reachable hub name ({first_line(error)})") from None


def kind_of(source: str | Path) -> str:
    """The class a model folder was saved as; nothing where the folder does not say."""
    try:
        known = json.loads((model_folder(source) / MARKER).read_text("utf8")).get("architectures")
    except InputError:
        raise
    except (OSError, ValueError, AttributeError):
        return ""
    return str(known[0]) if isinstance(known, list) and known else ""


@contextmanager
def reading_model(folder: Path) -> Iterator[None]:
    """Around the reading of a model folder: whatever is wrong with it is one clear error that names it."""
    if not (folder / MARKER).is_file():
        raise InputError(f"{folder}: not a model folder (no {MARKER}); make one with 'ade train'")
    try:
        yield
    except InputError as error:
        if str(folder) in str(error):
            raise
        raise InputError(f"{folder}: {error}") from None
    except Exception as error:  # whatever the libraries make of a foreign or broken folder
        raise InputError(f"{folder}: not a readable ADE model ({first_line(error)})") from None
