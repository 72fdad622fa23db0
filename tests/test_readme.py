"""What the README shows works: its Python runs, its commands exist, its map and its numbers are true."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.test_architecture import imported_on_loading, modules

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf8")
CHAINS = {
    tuple(re.findall(r"ade\.[\w.]+", chain))
    for chain in re.findall(r"^ade\.[\w.]+(?:\s+-> ade\.[\w.]+)+$", README, re.MULTILINE)
}


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


def longest_chain(module: str) -> list[str]:
    """The longest chain of imports between our modules that starts with this one."""
    others = sorted(imported_on_loading(module) & set(modules()) - {module})
    return [f"ade.{module}", *max((longest_chain(other) for other in others), key=len, default=[])]


@pytest.mark.parametrize(("verb", "module"), [("predict", "runtime.runtime"), ("train", "training.loop")])
def test_the_longest_chain_of_imports_is_the_one_shown(verb, module):
    shown = {chain[chain.index(f"ade.{module}") :] for chain in CHAINS if f"ade.{module}" in chain}
    (chain,) = shown
    for one, other in pairwise(chain):
        assert other.removeprefix("ade.") in imported_on_loading(one.removeprefix("ade."))
    longest = longest_chain(module)
    assert len(chain) == len(longest), f"the longest of 'ade {verb}' is {' -> '.join(longest)}"


def test_the_numbers_are_the_recorded_ones():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "report", "--check"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
