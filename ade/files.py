"""Folders: results written so that a crash, a full disk or Ctrl-C leaves no half of one; where a model lies."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ade.errors import InputError, first_line

MARKER = "config.json"  # what makes a folder a model folder


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
    """Around the reading of a model folder: whatever is wrong with it is one clear error."""
    if not (folder / MARKER).is_file():
        raise InputError(f"{folder}: not a model folder (no {MARKER}); make one with 'ade train'")
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever the libraries make of a foreign or broken folder
        raise InputError(f"{folder}: not a readable ADE model ({first_line(error)})") from None
