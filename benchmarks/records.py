"""A run and what came of it, as one line of `results/<table>-<device>.jsonl`; a line already there is not run again."""

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIMIT, FP32, INT8 = "tokenizer alone", "MiniLM-L6 fp32, PyTorch", "MiniLM-L6 int8, ONNX Runtime"  # of the speed table
FIRST, ALL = "first window", "whole text"  # what is read of a long text
RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "ade-embeddings",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "scikit-learn",
    "fasttext",
    "model2vec",
    "triton",
    "starlette",
    "uvicorn",
    "httptools",
    "uvloop",
    "ray",
    "accelerate",
)


@dataclass(frozen=True)
class Run:
    """What to run: the kind of thing and every setting it depends on."""

    table: str
    kind: str
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The same for the same kind and settings, whatever table asks."""
        text = json.dumps([self.kind, self.settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Every record, oldest first; of records with the same key on the same device the last one counts."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text("utf8").splitlines():
            record = json.loads(line)
            found[record["key"], record["device"]["kind"]] = record
    return list(found.values())


def append(
    run: Run, figures: Mapping[str, Any], conditions: Mapping[str, Any], folder: Path = RESULTS
) -> dict[str, Any]:
    """Write a run's figures down, with all that is needed to repeat it."""
    record = {
        "table": run.table,
        "key": run.key,
        "kind": run.kind,
        "settings": run.settings,
        "figures": figures,
        **conditions,
        "commit": _commit(),
        "versions": _versions(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{run.table}-{record['device']['kind']}.jsonl", "a", encoding="utf8") as file:
        file.write(json.dumps(record) + "\n")
    return record


def device_of(kind: str) -> dict[str, Any]:
    """The machine a run is made on, in words."""
    import torch

    if kind == "cuda":
        return {"kind": "cuda", "name": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return {"kind": "cpu", "name": _processor(), "threads": torch.get_num_threads()}


def fingerprint(*paths: Path) -> str:
    """sha256 of files, for telling whether two runs saw the same rows."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf8").splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    marker = Path(__file__).parent.parent / "COMMIT"  # a copy without its history may carry the commit as a file
    if marker.exists():
        return marker.read_text("utf8").strip()
    try:
        command = ["git", "rev-parse", "HEAD"]
        return subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
