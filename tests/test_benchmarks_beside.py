"""The measurement of two trees: both are asked, and the ratio is this tree's over the other's."""

import subprocess

import pytest

from ade.errors import InputError
from benchmarks import beside
from benchmarks.records import ROOT


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(beside, "TOY", (600, 16, 60, 20))


def test_both_trees_are_measured_in_turn(monkeypatch):
    """With a second tree whose answers are known: it is this one, and numbers stand in for measurements."""
    prepared, asked = [], []

    def rate(tree, what, unit, device):
        asked.append(tree.source)
        return {unit: 30.0 if tree.source == ROOT else 20.0}

    def run(tree, *words):
        assert (tree.source / "ade" / "__init__.py").is_file()
        assert (tree.work.parent / "rows.csv").is_file()
        prepared.append(tree.source)

    monkeypatch.setattr(beside.Tree, "run", run)
    monkeypatch.setattr(beside.Tree, "rate", rate)
    monkeypatch.setattr(beside.Tree, "milliseconds", lambda tree, *words: rate(tree, *words[:2], ""))
    monkeypatch.setattr(beside.Tree, "service", lambda tree: rate(tree, "", "requests/s", ""))
    rows = beside.beside("HEAD", repeats=2)
    assert [row["ratio"] for row in rows] == [1.5] * 5
    other = asked[0]
    assert asked[:4] == [other, ROOT, ROOT, other]
    assert prepared == [other, ROOT]
    assert not other.exists()
    listed = subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert str(other) not in listed


def test_figures_of_a_tree(tmp_path, monkeypatch):
    monkeypatch.setattr(beside, "SECONDS", 0.2)
    beside.write_inputs(tmp_path)
    tree = beside.Tree(ROOT, tmp_path / "here", (2, 60))
    tree.work.mkdir()
    tree.script("prepare")
    found = {f"{what}, {figure}": value for what, ask in tree.measures().items() for figure, value in ask().items()}
    assert {"training, cpu, steps/s", "ade predict, of one text, ms", "ade serve, 64 clients, requests/s"} < set(found)
    assert all(value > 0 for value in found.values())


def test_a_commit_that_is_not_there_is_named():
    with pytest.raises(InputError, match="nowhere"), beside.worktree("nowhere"):
        pass
