"""`ade train`: data as an argument, columns found, a teacher distilled once; test splits, resuming, epochs, presets."""

import io
import json

import pytest
from rich.console import Console

from ade import progress
from ade.folder import nbytes_of
from tests.cli.conftest import SPEED
from tests.conftest import topic_texts

QUICK = ["--set", "steps=60", "--set", "batch_size=16", "--set", "learning_rate=0.01", "--device", "cpu"]


@pytest.fixture
def reviews(tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    rows = zip(*topic_texts(150, 0), strict=True)
    (tmp_path / "reviews.csv").write_text("review;sentiment\n" + "".join(f"{text};{label}\n" for text, label in rows))
    return tmp_path / "reviews.csv"


def test_one_command(ade, reviews, teacher_folder, tmp_path):
    words = ("train", reviews, "--teacher", teacher_folder, *QUICK, "--size", "20kB")
    status, out, errors = ade(*words, "--out", tmp_path / "a", "--json")
    assert status == 0
    assert nbytes_of(tmp_path / "a") <= 20_000
    assert json.loads(out)["steps"] == 60
    assert errors == f"ade: {reviews}: texts of the column 'review', labels of 'sentiment'\n"
    assert len(list((tmp_path / "cache" / "codebooks").iterdir())) == 1

    status, out, errors = ade("evaluate", tmp_path / "a", reviews, "--json")
    assert json.loads(out)["accuracy"] > 0.6
    assert "column 'review'" in errors
    columns = ("--label-column", "sentiment", "--text-column", "review")
    assert ade("evaluate", tmp_path / "a", reviews, *columns, "--json")[1] == out


def test_remarks_come_before_training(ade, book, tmp_path):
    words = ("--from", book, "--set", "steps=2", "--device", "cpu", "--json", "--out")
    rows = [f"the goal {i};{i % 7 / 4}\n" for i in range(40)]
    (tmp_path / "decimals.csv").write_text("Satz;Note\n" + "".join(rows))
    status, out, errors = ade("train", tmp_path / "decimals.csv", *words, tmp_path / "a")
    assert (status, '"metric": "r2"' in out, "'--problem single-label' makes classes" in errors) == (0, True, True)
    assert "texts of the column 'Satz', labels of 'Note'" in errors
    (tmp_path / "numbers.csv").write_text("Satz;Art\n" + "the goal;1\n" * 60 + "the bank;2\n" * 30 + ";3\n" * 3)
    status, _, errors = ade("train", tmp_path / "numbers.csv", *words, tmp_path / "b")
    assert (status, errors.count("\n")) == (0, 3)
    assert "'--problem regression'" in errors
    assert "'--set class_weights=balanced'" in errors


def test_lines_of_progress_come_at_most_every_few_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    written = io.StringIO()
    report = progress.lines(Console(file=written, highlight=False))
    for second in range(13):
        now[0] = float(second)
        report("train", second, 13, {"loss": 0.5, "rate": 1234.0})
    assert written.getvalue() == "train 5/13 loss 0.500 1,234/s\ntrain 10/13 loss 0.500 1,234/s\n"


def test_bars_in_terminals_and_none_where_they_are_turned_off(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal
    with progress.shown() as report:  # the tests turn it off
        report("train", 1, 2, {})
    assert capsys.readouterr().err == ""
    with progress.shown(True) as report:
        report("train", 1, 2, {"loss": 0.5})
    assert "train" in capsys.readouterr().err


def test_distill_json(ade, teacher_folder, tmp_path):
    words = ["distill", "--teacher", teacher_folder, "--anchors", 8, "--pairs", 2]
    words += ["--set", "solver=gradient", "--set", "threshold=0.1"]
    status, out, errors = ade(*words, "--out", tmp_path / "book", "--json")
    result = json.loads(out)
    assert (status, errors) == (0, "")
    assert result["settings"]["solver"] == "gradient"
    assert 0 < result["cosine"] <= 1
    assert result["ratio"] == pytest.approx(result["teacher_bytes"] / result["bytes"])


def test_train_evaluates_a_test_split_and_resumes_to_the_same(ade, book, topic_folder, tmp_path):
    words = ("train", "--from", book, topic_folder, "--out", tmp_path / "m", *SPEED)
    status, out, _ = ade(*words, "--json")
    first = json.loads(out)
    assert status == 0
    assert first["test"]["n"] == 100
    assert ade(*words)[0] == 2  # the folder is taken
    assert json.loads(ade(*words, "--json", "--resume")[1]) == first
    status, out, _ = ade(*words, "--resume")
    assert f"{first['lexicon']['entries']:,}" in out


def test_train_says_when_there_is_no_lexicon(ade, book, tmp_path):
    rows = [f"{word},{'xy'[i % 2]}\n" for i, word in enumerate(["goal", "goal", "bank", "bank"] * 50)]
    (tmp_path / "random.csv").write_text("text,label\n" + "".join(rows))
    words = ("train", "--from", book, tmp_path / "random.csv", "--set", "steps=4", "--device", "cpu")
    assert "none: they did not lower the loss" in ade(*words, "--out", tmp_path / "a")[1]
    assert "n-grams" not in ade(*words, "--out", tmp_path / "b", "--set", "lexicon=false")[1]


@pytest.mark.parametrize("preset", ["strong", "paper"])
def test_epochs_are_as_many_as_are_asked_for(preset, ade, book, topic_folder, tmp_path, monkeypatch):
    """400 rows less those held back, 64 a step: 8 epochs lie between 7 and 9, with or without a teacher."""
    monkeypatch.setattr("ade.training.loop.PATIENCE", 1000)  # none of them stops early
    monkeypatch.setattr("ade.training.soft_targets.MAX_VARIANTS", 0)
    words = ["train", "--from", book, topic_folder, "--preset", preset, "--set", "batch_size=64", "--json"]
    words += ["--device", "cpu"]
    steps = {}
    for epochs in (7, 8, 9):
        status, out, errors = ade(*words, "--epochs", epochs, "--out", tmp_path / str(epochs))
        assert status == 0, errors
        steps[epochs] = json.loads(out)["steps"]
    assert steps[7] < steps[8] < steps[9] < 60
    status, out, errors = ade(*words, "--epochs", 8, "--out", tmp_path / "taught", "--distill-from", tmp_path / "9")
    assert status == 0, errors
    assert json.loads(out)["steps"] == steps[8]
