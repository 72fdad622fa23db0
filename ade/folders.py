"""Writing results so that a crash, a full disk or Ctrl-C never leaves half of one behind."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ade.errors import InputError


def check_free(folder: Path, ours: set[str], allowed: bool, way_out: str = "--overwrite") -> None:
    """Refuse an output folder that holds something else, or one of ours (a file named so is in it) unless allowed."""
    if folder.is_file():
        raise InputError(f"{folder}: is a file, an output folder is needed")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not any((folder / name).exists() for name in ours):
        raise InputError(f"{folder}: already holds something else; choose a new folder")
    if not allowed:
        raise InputError(f"{folder}: already holds an earlier result; choose a new folder or pass {way_out}")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into that takes the name `folder` only when all of it has been written."""
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    draft.chmod(0o755)
    try:
        yield draft
        for path in draft.iterdir():  # safetensors writes for the owner alone
            path.chmod(0o644)
        if folder.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
            os.replace(folder, old / "old")
            os.replace(draft, folder)
            shutil.rmtree(old)
        else:
            os.replace(draft, folder)
    except SafetensorError as error:  # what safetensors makes of a full disk
        raise InputError(f"{folder}: cannot write ({error})") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A path to write to that replaces `path` in one step, only when all of it has been written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except SafetensorError as error:
        raise InputError(f"{path}: cannot write ({error})") from None
    finally:
        draft.unlink(missing_ok=True)
