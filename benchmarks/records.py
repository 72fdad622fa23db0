"""A run and what came of it: one line of `results/KIND-DEVICE.jsonl`, with the state of everything that it rests on."""

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ade.errors import InputError
from ade.files import new_file

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "scikit-learn", "fasttext", "model2vec")
Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What to run: the kind of measurement, and what tells it from others of that kind."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A hash of kind and settings."""
        return hashlib.sha256(json.dumps([self.kind, self.settings], sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Places:
    """Where a run finds what it reads, and what it has read so far."""

    data_dir: Path
    models_dir: Path
    work: Path  # what is kept between runs: codebooks, fine-tuned encoders, answers of teachers
    device: str
    read: dict[str, str] = field(default_factory=dict)  # name -> sha256 of its files

    def data(self, name: str) -> Path:
        """The folder or file of a data set."""
        return self._found(self.data_dir / name, "data set", "--data-dir")

    def model(self, name: str) -> Path:
        """The folder of a teacher, or of a model to compress."""
        return self._found(self.models_dir / name, "model", "--models-dir")

    def _found(self, path: Path, what: str, option: str) -> Path:
        if not path.exists():
            raise InputError(f"{path}: no such {what}; point {option} at the folder that holds it")
        self.read[path.name] = content_hash(path)
        return path


@cache
def content_hash(path: Path) -> str:
    """sha256 of a file, or of all files of a folder with their names."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return _hash_of((str(file.relative_to(path)).encode(), file.read_bytes()) for file in files)


@cache
def state() -> dict[str, str]:
    """Hashes of the sources of `ade/` and `benchmarks/` and of the list of installed packages.

    Not the commit: recording changes the tree, and a copy of it has no history.
    """
    package = (path for path in (ROOT / "ade").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    sources = sorted([*package, *(ROOT / "benchmarks").rglob("*.py")])
    installed = sorted({f"{each.metadata['Name']} {each.version}".lower() for each in distributions()})
    return {
        "sources": _hash_of((str(path.relative_to(ROOT)).encode(), path.read_bytes()) for path in sources),
        "packages": _hash_of((line.encode(), b"") for line in installed),
    }


def _hash_of(parts: Iterable[tuple[bytes, bytes]]) -> str:
    digest = hashlib.sha256()
    for name, content in parts:
        digest.update(hashlib.sha256(name).digest() + hashlib.sha256(content).digest())
    return digest.hexdigest()


def identity(read: Mapping[str, str]) -> dict[str, Any]:
    """What a record rests on: sources, packages, data and models; and one hash of all of it."""
    parts = {**state(), "read": dict(sorted(read.items()))}
    return {**parts, "sha256": hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()}


def is_current(record: Record) -> bool:
    """Whether a record was made by these sources and packages."""
    known = record.get("identity")
    return known is not None and all(known[name] == value for name, value in state().items())


def check_one_state(name: str, records: Iterable[Record]) -> None:
    """Raise `InputError` for a table whose records were made from different sources, packages or data.

    Packages are compared by device: a machine with a GPU has others. Records from before identities are let through;
    the table marks them.
    """
    seen: dict[str, str] = {}
    for record in records:
        known = record.get("identity")
        if known is None:
            continue
        device = record["device"]["kind"]
        parts = {"sources": known["sources"], f"packages ({device})": known["packages"], **known["read"]}
        for part, value in parts.items():
            if seen.setdefault(part, value) != value:
                raise InputError(
                    f"table {name}: records of two states, {part} is {seen[part][:8]} and {value[:8]}; "
                    "'python -m benchmarks reproduce' makes the older ones again"
                )


def load(folder: Path = RESULTS) -> list[Record]:
    """Every record."""
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text("utf8").splitlines())
    return [json.loads(line) for line in lines]


def write(run: Run, outcome: Mapping[str, Any], folder: Path = RESULTS) -> Record:
    """Write down what came of a run, in place of an older record of the same run on this kind of device."""
    record: Record = {"key": run.key, "kind": run.kind, "settings": dict(run.settings), **outcome}
    path = folder / f"{run.kind}-{record['device']['kind']}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    lines = path.read_text("utf8").splitlines() if path.exists() else []
    kept = [line for line in lines if json.loads(line)["key"] != run.key]
    with new_file(path) as draft:
        draft.write_text("".join(f"{line}\n" for line in [*kept, json.dumps(record)]), "utf8")
    return record


def device_of(kind: str) -> dict[str, Any]:
    """The machine a run is made on, in words."""
    import torch

    if kind == "cuda":
        return {"kind": "cuda", "name": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf8"))
    return {"kind": "cpu", "name": found[1] if found else platform.machine(), "threads": torch.get_num_threads()}


def versions() -> dict[str, str]:
    """The versions of the packages that matter most, to be read by people."""
    installed = {each.metadata["Name"].lower(): each.version for each in distributions()}
    return {name: installed[name] for name in PACKAGES if name in installed}
