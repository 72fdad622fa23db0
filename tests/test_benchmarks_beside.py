"""The measurement of two trees: both are asked, and the ratio is this tree's over the other's."""

import subprocess

import pytest

from ade.errors import InputError
from benchmarks import beside


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(beside, "TOY", (600, 16, 60, 20))


def test_both_trees_are_measured_in_turn(monkeypatch):
    """With a second tree whose answers are known: it is this one, and numbers stand in for measurements."""
    prepared, asked = [], []

    def measure(tree, work, words):
        asked.append(tree)
        return 30.0 if tree == beside.ROOT else 20.0

    def run_in(tree, work, *words):
        assert (tree / "ade" / "__init__.py").is_file()
        assert (work.parent / "rows.csv").is_file()
        prepared.append(tree)

    monkeypatch.setattr(beside, "measure", measure)
    monkeypatch.setattr(beside, "run_in", run_in)
    rows = beside.beside("HEAD", repeats=2, steps=(2, 4))
    assert [row["ratio"] for row in rows] == [1.5] * 4
    other, here = asked[0], beside.ROOT
    assert asked[:4] == [other, here, here, other]
    assert prepared == [here, other]
    assert not other.exists()
    listed = subprocess.run(["git", "worktree", "list"], cwd=here, capture_output=True, text=True, check=True).stdout
    assert str(other) not in listed


def test_figures_of_a_tree(tmp_path):
    beside.write_inputs(tmp_path)
    work = tmp_path / "here"
    work.mkdir()
    beside.run_in(beside.ROOT, work, "-c", beside.SCRIPT, "prepare", str(work), "cpu", "2", "0")
    for what, words in beside.measures(work, ["cpu"], (2, 60)).items():
        assert beside.measure(beside.ROOT, work, words) > 0, what


def test_a_commit_that_is_not_there_is_named():
    with pytest.raises(InputError, match="nowhere"), beside.worktree("nowhere"):
        pass
