"""`ade train reviews.csv --out model/`: data as an argument, columns found, a teacher distilled once."""

import io
import json

import pytest
from rich.console import Console

from ade.cli import display
from ade.cli.sizes import folder_sizes
from tests.conftest import topic_texts

QUICK = ["--steps", "60", "--batch-size", "16", "--learning-rate", "0.01", "--device", "cpu"]


@pytest.fixture
def reviews(tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    rows = zip(*topic_texts(150, 0), strict=True)
    (tmp_path / "reviews.csv").write_text("review;sentiment\n" + "".join(f"{text};{label}\n" for text, label in rows))
    return tmp_path / "reviews.csv"


def test_one_command(ade, reviews, teacher_folder, tmp_path):
    words = ("train", reviews, "--teacher", teacher_folder, *QUICK)
    status, out, errors = ade(*words, "--out", tmp_path / "a", "--json")
    assert status == 0
    assert json.loads(out)["steps"] == 60
    assert errors == f"ade: {reviews}: texts of the column 'review', labels of 'sentiment'\n"
    assert len(list((tmp_path / "cache" / "codebooks").iterdir())) == 1

    status, out, errors = ade("evaluate", tmp_path / "a", reviews, "--json")
    assert json.loads(out)["accuracy"] > 0.8
    assert "column 'review'" in errors
    data = ("--data", reviews, "--label-column", "sentiment", "--text-column", "review")
    assert ade("evaluate", tmp_path / "a", *data, "--json")[1] == out


def test_data_is_given_once(ade, reviews, tmp_path):
    for words in (("train",), ("train", reviews, "--data", reviews)):
        status, _, errors = ade(*words, "--out", tmp_path / "m")
        assert (status, errors) == (2, "ade: give the dataset once: as an argument, or with --data\n")


def test_a_size(ade, reviews, teacher_folder, tmp_path):
    words = ("train", reviews, "--teacher", teacher_folder, *QUICK, "--size")
    assert ade(*words, "20kB", "--out", tmp_path / "m")[0] == 0
    assert folder_sizes(tmp_path / "m")["bytes"] <= 20_000
    status, _, errors = ade(*words, "2kB", "--out", tmp_path / "n")
    assert (status, "too few" in errors) == (2, True)


def test_the_options_are_named_where_columns_are_not_found(ade, reviews, tmp_path):
    reviews.write_text("n,m,k\n1,2,3\n")
    status, _, errors = ade("train", reviews, "--out", tmp_path / "m")
    assert (status, "--text-column" in errors) == (2, True)
    status, _, errors = ade("train", reviews, "--out", tmp_path / "m", "--text-column", "n", "--label-column", "x")
    assert (status, "no column 'x', the columns are n, m, k (--label-column)" in errors) == (2, True)
    assert not (tmp_path / "m").exists()


def test_lines_of_progress_come_at_most_every_few_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    written = io.StringIO()
    report = display._Lines(Console(file=written, highlight=False))
    for second in range(13):
        now[0] = float(second)
        report("train", second, 13, {"loss": 0.5, "rate": 1234.0})
    assert written.getvalue() == "train 5/13 loss 0.500 1,234/s\ntrain 10/13 loss 0.500 1,234/s\n"


def test_bars_in_terminals_and_none_where_they_are_turned_off(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal
    with display.progress() as report:  # the tests turn it off
        report("train", 1, 2, {})
    assert capsys.readouterr().err == ""
    with display.progress(True) as report:
        report("train", 1, 2, {"loss": 0.5})
    assert "train" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    with display.progress(True) as report:
        report("train", 1, 2, {"loss": 0.5})
    assert capsys.readouterr().err == ""
