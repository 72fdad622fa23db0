"""The two installs: bytes of the packages that `pip install ade-embeddings`, with and without extras, brings."""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from ade.errors import InputError
from ade.progress import Report
from benchmarks.accuracy import Places
from benchmarks.records import Run

ROOT = Path(__file__).parent.parent
TOOLS = ("pip", "setuptools")  # of the environment itself


def run_install(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Build the wheel, install it into a new environment and add up what lies there."""
    extra = run.settings["extra"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        venv.create(folder / "new", with_pip=True)
        python = folder / "new" / "bin" / "python"
        _pip(python, "install", "-c", ROOT / "constraints.txt", f"{wheel}[{extra}]" if extra else wheel)

        (packages,) = (folder / "new" / "lib").glob("python*/site-packages")
        own = [each for each in packages.iterdir() if each.name.split("-")[0] not in TOOLS]
        files = [path for each in own for path in (each.rglob("*") if each.is_dir() else [each])]
        nbytes = sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())
        torch = next((each.name.split("-")[1] for each in packages.glob("torch-*.dist-info")), None)
    return {"bytes": nbytes, "torch": torch and torch.removesuffix(".dist")}, {}


def _pip(python: Any, *words: Any) -> None:
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"pip {words[0]} failed: {done.stderr.strip()[-150:]}")
