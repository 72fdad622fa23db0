"""What the README shows works: its Python and its commands run; all numbers are the recorded ones."""

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

from ade.data.sources import load_dataset

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf8")
MAX_LINES = 150
FIRST_SCREEN = 24  # lines


def test_the_python_runs(tmp_path, monkeypatch, capsys):
    """On some of the glosses, in a file: all of them take a minute."""
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert code.strip().count("\n") <= 7
    glosses = load_dataset("wordnet")
    with open(tmp_path / "glosses.csv", "w", newline="", encoding="utf8") as file:
        some = range(0, len(glosses), 20)
        csv.writer(file).writerows([("text", "label"), *((glosses.texts[i], glosses.labels[i]) for i in some)])
    code = code.replace('"wordnet"', '"glosses.csv"')
    assert "glosses.csv" in code

    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr()
    labels, words, label = printed.out.splitlines()
    animal = str(glosses.names.index("animal"))
    assert animal in labels
    assert set(re.findall(r"'(\w+)'", words)) == {"a", "wading", "bird", "with", "long", "legs"}
    assert label == animal
    assert printed.err == ""


def test_the_commands_from_a_csv_to_predictions_run_as_printed(ade, tmp_path, monkeypatch):
    rows = [("battery is great, really good", "good"), ("poor battery, bad and slow", "bad")] * 40
    for name in ("reviews.csv", "test.csv"):
        lines = (f'"{i} {text}",{label}\n' for i, (text, label) in enumerate(rows))
        (tmp_path / name).write_text("review,sentiment\n" + "".join(lines))
    (tmp_path / "new_texts.txt").write_text("great battery\nbad and slow\n")
    shown = re.search(r"## From a CSV to predictions\n\n```\n(.*?)```", README, re.DOTALL)[1].splitlines()
    commands = [shlex.split(line, comments=True) for line in shown]
    assert {words[0] for words in commands} == {"ade"}
    assert [words[1] for words in commands] == ["train", "predict", "predict", "evaluate", "inspect", "serve"]

    monkeypatch.chdir(tmp_path)
    printed = []
    for words in commands[:-1]:  # tests/service starts the service
        status, out, errors = ade(*words[1:])
        assert status == 0, errors
        printed.append(out)
    assert [line.split("\t")[0] for line in printed[1].splitlines()] == ["good", "bad"]


def test_it_is_short_and_the_commands_for_a_checkout_are_on_the_first_screen():
    lines = README.splitlines()
    assert len(lines) <= MAX_LINES
    assert {line.split("  ")[0] for line in lines[:FIRST_SCREEN]} >= {"make run", "make test"}


def test_what_it_links_to_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert len(links) > 20
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_numbers_are_the_recorded_ones():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "report", "--check"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
