"""What the README shows works: its Python runs, its commands exist, its figures are the recorded ones."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf8")


def test_the_python_runs(tmp_path):
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert code.strip().count("\n") <= 12
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    accuracy, labels, nearest = done.stdout.splitlines()
    assert 0.4 < float(accuracy) < 1
    assert "animal" in labels
    assert len(nearest.split(",")) == 6
    assert done.stderr == ""


def test_the_map_names_every_room_and_every_file_of_the_method():
    named = set(re.findall(r"^  ([\w/]+?)(?:\.py|/) ", README, re.MULTILINE))
    real = {path.stem for path in (ROOT / "ade").iterdir() if not path.name.startswith("__")} - {"py"}
    assert named == real


@pytest.mark.parametrize("verb", re.findall(r"^ade (\w+)", README, re.MULTILINE))
def test_the_commands_exist(verb, ade):
    status, out, _ = ade(verb, "--help")
    assert status == 0
    assert "--json" in out


def test_the_figures_are_the_recorded_ones():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "report", "--check"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
