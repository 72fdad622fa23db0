"""`ade predict --explain`: a table, JSON lines, colours on a terminal alone."""

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from ade.cli.display import print_explanation
from ade.data.problems import TAGGER
from ade.runtime.runtime import Runtime
from tests.test_explanation import classifier_of

LINES = ["w3 w1 w4", "w5 w9", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("explain") / "model"
    classifier_of(attend="gated").save(out)
    return out


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    out = tmp_path_factory.mktemp("lines") / "in.txt"
    out.write_text("\n".join(LINES) + "\n")
    return out


def test_a_table_where_there_is_no_terminal(ade, folder, file):
    status, out, err = ade("predict", folder, file, "--explain")
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    parts = out.split("\n\n")
    for text, part in zip(LINES, parts, strict=False):
        explanation = Runtime.load(folder).explain(text)
        found, lines = explanation.contributions(), part.splitlines()
        assert lines[0].split("  ") == [found.label, f"{explanation.probabilities[found.label]:.4f}"]
        rows = [line.split() for line in lines[2 : 2 + len(explanation.words)]]
        assert [row[-3] for row in rows] == [f"{total:+.3f}" for total in found.totals]
        assert [row[0] for row in rows if len(row) == 4] == text.split()
        assert f"score of {found.label}: {found.score:.3f} = " in lines[-1]
    assert "strongest n-grams: '" in out


def test_an_object_per_line(ade, folder, file):
    status, out, _ = ade("predict", folder, file, "--explain", "--json")
    assert status == 0
    found = [json.loads(line) for line in out.splitlines()]
    assert found == [each.as_dict() for each in Runtime.load(folder).explain(LINES)]


def test_words_have_colours_and_signs_on_a_terminal(folder):
    explanation = Runtime.load(folder).explain("w3 w1 w4 w9 w5")
    to = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=100)
    print_explanation(to, explanation)
    line = to.file.getvalue().splitlines()[1]
    totals = explanation.contributions().totals
    most = max(map(abs, totals))
    for word, total in zip(explanation.words, totals, strict=True):
        colour = "32m" if total > 0 else "31m"
        assert (f"{colour}{word.text}" in line) == (abs(total) > 0.1 * most)
        assert (f"{total:+.2f}" in line) == (abs(total) > 0.25 * most)
    assert {total > 0 for total in totals} == {True, False}


def test_numbers_are_explained_too(tmp_path, ade):
    classifier = classifier_of(labels=1, problem="regression", attend="tokens")
    classifier.save(tmp_path / "model")
    (tmp_path / "in.txt").write_text("w3 w1\n")
    status, out, _ = ade("predict", tmp_path / "model", tmp_path / "in.txt", "--explain")
    assert status == 0
    assert "score of the number: " in out
    assert out.splitlines()[0] == f"{classifier.predict('w3 w1'):.6g}"


def test_torch_is_not_loaded_and_taggers_are_refused(folder, file, tmp_path, ade):
    program = (
        "import sys; sys.argv = ['ade', 'predict', *sys.argv[1:], '--explain']\n"
        "from ade.cli import main as cli\n"
        "try:\n    cli.main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder), str(file)], capture_output=True, check=True)
    assert b"score of" in done.stdout
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": [TAGGER]}))
    status, out, err = ade("predict", tmp_path, file, "--explain")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "a tagger" in err
