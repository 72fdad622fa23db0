"""`ade predict`: formats, columns, thresholds, explanations, notices, pipes that stay open, files of any length."""

import csv
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import ade as package
from ade.cli.display import SAMPLE, say_unknown_tokens
from ade.cli.making import texts_in
from ade.data.dataset import Dataset
from ade.data.tags import TaggedDataset
from ade.settings import STRONG
from ade.training.loop import fit_model
from tests.conftest import PATIENT, topic_texts, word_tokenizer

ROWS = [
    {"id": "1", "text": "the coach and the team", "label": "money", "note": "a, b"},
    {"id": "2", "text": "lunar probe", "label": "space", "note": "c\nd"},
    {"id": "3", "text": "the bank and the market", "label": "sport", "note": ""},
]
FOUND = ["sport", "space", "money"]


def write_rows(folder, kind):
    path = folder / f"rows.{kind}"
    if kind == "csv":
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(ROWS[0]))
            writer.writeheader()
            writer.writerows(ROWS)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_text("".join(row["text"] + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize(("kind", "output"), [("csv", "tsv"), ("jsonl", "csv"), ("parquet", "jsonl")])
def test_other_columns_are_kept(kind, output, ade, trained, tmp_path):
    written = tmp_path / f"out.{output}"
    assert ade("predict", trained, write_rows(tmp_path, kind), "--output", written) == (0, "", "")
    if output == "jsonl":
        rows = [json.loads(line) for line in written.read_text().splitlines()]
    else:
        with open(written, newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t" if output == "tsv" else ","))
    assert [{name: row[name] for name in ROWS[0]} for row in rows] == ROWS
    assert [row["prediction"] for row in rows] == FOUND
    assert all(0 < float(row["probability"]) <= 1 for row in rows)
    assert set(rows[0]) == {*ROWS[0], "prediction", "probability"}


def test_a_name_that_says_nothing_needs_the_format(ade, trained, tmp_path):
    (tmp_path / "data.dat").write_text("text;label\nlunar probe;x\n")
    assert len(ade("predict", trained, tmp_path / "data.dat")[1].splitlines()) == 2
    status, out, _ = ade("predict", trained, tmp_path / "data.dat", "--format", "csv", "--json")
    assert status == 0
    row = json.loads(out)
    assert list(row) == ["text", "label", "prediction", "probability"]
    assert (row["label"], row["prediction"]) == ("x", "space")


def test_the_text_column_is_said_and_can_be_named(ade, trained, tmp_path):
    (tmp_path / "a.csv").write_text("review,summary,stars\nlunar probe,the coach,5\n")
    status, out, errors = ade("predict", trained, tmp_path / "a.csv")
    assert (status, out.split("\t")[0]) == (0, "space")
    assert errors == f"ade: {tmp_path / 'a.csv'}: texts of the column 'review'\n"
    status, out, errors = ade("predict", trained, tmp_path / "a.csv", "--text-column", "summary", "--quiet")
    assert (status, out.split("\t")[0], errors) == (0, "sport", "")
    status, _, errors = ade("predict", trained, tmp_path / "a.csv", "--text-column", "sumary")
    assert (status, "no column 'sumary'" in errors) == (2, True)


@pytest.fixture
def objects(ade):
    """Predictions as objects of JSON."""
    return lambda *words: [json.loads(line) for line in ade("predict", *words, "--json")[1].splitlines()]


@pytest.fixture
def cells(ade, tmp_path):
    """The cells that predictions fill in a CSV file, row by row."""

    def read(*words):
        assert ade("predict", *words, "--output", tmp_path / "cells.csv", "--overwrite") == (0, "", "")
        with open(tmp_path / "cells.csv", newline="") as file:
            return list(csv.reader(file))

    return read


def test_the_most_probable_labels(ade, cells, objects, trained, tmp_path):
    path = write_rows(tmp_path, "txt")
    for row, label in zip(objects(trained, path, "--top-k", 2), FOUND, strict=True):
        assert [row["prediction"], row["probability"]] == [*row["top"][0].values()]
        assert (row["prediction"], len(row["top"])) == (label, 2)
        assert row["top"][0]["probability"] >= row["top"][1]["probability"]

    header, first, *_ = cells(trained, path, "--top-k", 9)
    row = dict(zip(header, first, strict=True))
    assert {row[f"top_{i}"] for i in (1, 2, 3)} == set(FOUND)  # there are no more than three
    assert "top_4" not in row
    assert row["prediction"] == row["top_1"] == "sport"
    assert row["probability"] == row["top_1_probability"]

    _, out, _ = ade("predict", trained, path, "--top-k", 3)
    assert out.splitlines()[0].split("\t") == [*first[1:3], *first[5:]]  # the first label once


def test_below_the_threshold_there_is_no_label(ade, cells, objects, trained, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("the coach and the team\nthe of and\n")
    sure, unsure = (row["probability"] for row in objects(trained, path))
    assert unsure < sure
    limit = ("--threshold", (sure + unsure) / 2)
    _, out, _ = ade("predict", trained, path, *limit)
    assert [line.split("\t")[0] for line in out.splitlines()] == ["sport", ""]
    assert [row["prediction"] for row in objects(trained, path, *limit)] == ["sport", None]
    assert [row[1] for row in cells(trained, path, *limit)] == ["prediction", "sport", ""]


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(ade, trained, tmp_path):
    path = write_rows(tmp_path, "csv")
    (tmp_path / "old.csv").write_text("text,prediction\nlunar probe,x\n")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": null}\n')
    before = sorted(each.name for each in tmp_path.iterdir())
    for words, message in (
        ((path, "--output", tmp_path / "old.csv"), "already exists"),
        ((path, "--output", tmp_path / "out.xlsx"), "which format?"),
        ((path, "--output", tmp_path / "none" / "out.csv"), "not a file in a folder that exists"),
        ((path, "--output", tmp_path / "out.csv", "--json"), "leave out --output"),
        ((path, "--explain", "--top-k", 2), "leave out --top-k"),
        ((path, "--top-k", 0), "top-k"),
        ((path, "--threshold", 2), "threshold"),
        ((path, "--format", "excel"), "excel"),
        ((tmp_path / "old.csv", "--output", tmp_path / "out.csv"), "a column 'prediction' already"),
        ((tmp_path / "bad.jsonl", "--output", tmp_path / "out.csv"), "row 2: column 'text' holds no text"),
    ):
        status, out, errors = ade("predict", trained, *words)
        assert (status, out) == (2, ""), words
        assert message in errors
        assert errors.count("\n") == 1, errors
    assert sorted(each.name for each in tmp_path.iterdir()) == before
    assert ade("predict", trained, path, "--output", tmp_path / "old.csv", "--overwrite")[0] == 0
    assert (tmp_path / "old.csv").read_text().count("\n") > 3


def test_a_file_without_rows_still_has_a_header(ade, trained, tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n")
    assert ade("predict", trained, tmp_path / "a.csv", "--output", tmp_path / "b.csv") == (0, "", "")
    assert (tmp_path / "b.csv").read_text() == "text,label,prediction,probability\n"


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        ((), ["the coach\n", "lunar probe\n"]),
        (("--format", "csv"), ["id,text\n1,the coach\n", "2,lunar probe\n"]),
        (("--format", "json", "--json"), ['{"text": "the coach"}\n', '{"text": "lunar probe"}\n']),
        (("--explain", "--json"), ["the coach\n", "lunar probe\n"]),
    ],
)
def test_a_line_is_answered_while_the_pipe_stays_open(flags, lines, trained):
    """Each line is sent only after the answer to the one before it has been read."""
    command = [sys.executable, "-m", "ade", "predict", trained, "-", *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            if "csv" in flags:
                process.stdin.write(lines[0].splitlines(True)[0])
            for sent, label in zip(lines, ("sport", "space"), strict=True):
                process.stdin.write(sent.splitlines(True)[-1])
                process.stdin.flush()
                answer = process.stdout.readline()
                assert label in answer
            process.stdin.close()
            assert process.wait(timeout=PATIENT) == 0
        finally:
            process.kill()


# Predict a file in the same process twice, the second one twelve times as long, and print the growth of the peak.
PEAK = """
import resource, sys
from ade.cli import main as cli

def run(*words):
    sys.argv = ["ade", "predict", *words]
    try:
        cli.main()
    except SystemExit as ended:
        assert not ended.code, ended.code
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

model, short, long, out = sys.argv[1:]
first = run(model, short, "--output", out, "--overwrite")
print(run(model, long, "--output", out, "--overwrite") - first)
"""


def test_memory_does_not_grow_with_the_file(trained, tmp_path):
    pytest.importorskip("resource")
    line = "the coach and the team " + "x" * 680 + "\n"  # 700 bytes: 42 MB in all
    for name, rows in (("short", 5_000), ("long", 60_000)):
        with open(tmp_path / f"{name}.csv", "w") as file:
            file.write("text\n")
            file.writelines(line for _ in range(rows))
    files = [tmp_path / name for name in ("short.csv", "long.csv", "out.jsonl")]
    command = [sys.executable, "-c", PEAK, trained, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20_000  # kilobytes
    with open(tmp_path / "out.jsonl") as file:
        assert sum(1 for _ in file) == 60_000


@pytest.fixture(scope="module")
def several(codebook, tmp_path_factory):
    """Folders of a multi-label model, a regression model and a tagger."""
    folder = tmp_path_factory.mktemp("several")
    words = ["goal", "bank", "orbit"]
    settings = replace(STRONG, steps=60, batch_size=16, learning_rate=0.01, device="cpu")
    pairs = [(a, b) for a in words for b in words] * 8
    sets = {
        "multi": Dataset(
            [f"{a} {b}" for a, b in pairs], np.array([[w in pair for w in words] for pair in pairs]), tuple(words)
        ),
        "number": Dataset([a for a, _ in pairs], np.array([words.index(a) for a, _ in pairs], np.float32), ("value",)),
        "tagger": TaggedDataset(
            [[a, b] for a, b in pairs],
            [np.array([words.index(a), words.index(b)]) for a, b in pairs],
            ("B-goal", "O", "B-orbit"),
        ),
    }
    for name, data in sets.items():
        fit_model(codebook, data, settings=settings, out=folder / name)
    return folder


def test_a_multi_label_model_takes_another_threshold(cells, objects, several, tmp_path):
    (tmp_path / "a.txt").write_text("goal bank\n")
    words = (several / "multi", tmp_path / "a.txt", "--top-k", 3)
    (row,) = objects(*words)
    likely = {each["label"]: each["probability"] for each in row["top"] if each["probability"] >= 0.5}
    assert dict(zip(row["prediction"], row["probability"], strict=True)) == likely
    for limit, expected in ((0, ["goal", "bank", "orbit"]), (1, [])):
        assert objects(*words, "--threshold", limit)[0]["prediction"] == expected
    assert cells(several / "multi", tmp_path / "a.txt", "--threshold", 0)[1][1] == "goal|bank|orbit"


def test_a_number_has_no_probability(ade, cells, objects, several, tmp_path):
    (tmp_path / "a.txt").write_text("goal\n")
    (row,) = objects(several / "number", tmp_path / "a.txt")
    assert set(row) == {"text", "prediction"}
    assert cells(several / "number", tmp_path / "a.txt")[1] == ["goal", f"{row['prediction']:.6g}"]
    for flag in (("--top-k", 2), ("--threshold", 0.5)):
        status, _, errors = ade("predict", several / "number", tmp_path / "a.txt", *flag)
        assert (status, "this model predicts a number, or tags" in errors) == (2, True)


def test_tags_of_a_row(ade, cells, objects, several, tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n7,goal orbit\n")
    (row,) = objects(several / "tagger", tmp_path / "a.csv")
    assert (row["id"], row["words"], len(row["prediction"])) == ("7", ["goal", "orbit"], 2)
    tags = " ".join(row["prediction"])
    assert cells(several / "tagger", tmp_path / "a.csv")[1] == ["7", "goal orbit", "goal orbit", tags]
    _, out, _ = ade("predict", several / "tagger", tmp_path / "a.csv")
    assert out == f"goal\t{row['prediction'][0]}\norbit\t{row['prediction'][1]}\n\n"
    status, _, errors = ade("predict", several / "tagger", tmp_path / "a.csv", "--top-k", 2)
    assert (status, "this model predicts a number, or tags" in errors) == (2, True)


# -- explanations --------------------------------------------------------------------------------------------------


def test_explanations_are_tables_or_objects(ade, trained, tmp_path):
    lines = ["the coach and the team", "lunar probe", ""]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    model = package.load(trained)
    explanations = [model.explain(line) for line in lines]
    status, out, errors = ade("predict", trained, tmp_path / "in.txt", "--explain")
    assert (status, errors) == (0, "")
    assert "\x1b" not in out
    for explanation, part in zip(explanations, out.split("\n\n"), strict=False):
        label, margin, shown = explanation.label, explanation.margin(), part.splitlines()
        assert shown[0].split("  ") == [label, f"{explanation.probabilities[label]:.4f}"]
        assert f"adds to {margin.name}" in shown[1]
        rows = [line.rsplit(maxsplit=1) for line in shown[2 : 4 + len(margin.words)]]
        assert [(row[0], float(row[1])) for row in rows[:-2]] == [(word, round(adds, 3)) for word, adds in margin.words]
        assert [row[0].strip() for row in rows[-2:]] == ["special tokens and bias", "sum"]
        printed = [float(row[1]) for row in rows]
        assert sum(printed[:-1]) == pytest.approx(printed[-1], abs=1e-9)  # it adds up as printed
        assert printed[-1] == round(margin.value, 3)
    _, out, _ = ade("predict", trained, tmp_path / "in.txt", "--explain", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [each.as_dict() for each in explanations]


def test_numbers_are_explained_and_taggers_refused(ade, several, tmp_path):
    (tmp_path / "in.txt").write_text("goal\n")
    status, out, _ = ade("predict", several / "number", tmp_path / "in.txt", "--explain")
    assert (status, "adds to the number" in out) == (0, True)
    status, out, errors = ade("predict", several / "tagger", tmp_path / "in.txt", "--explain")
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert "a tagger" in errors


# -- texts whose tokens are unknown --------------------------------------------------------------------------------

CHINESE = ["电池 很 差 goal", "相机 非常 好 bank", "屏幕 很 好 orbit", "价格 太 高 market"]
SAID = "% of the tokens of these texts are unknown or single bytes: "


def test_training_says_it_before_and_predicting_once(ade, trained, teacher_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    chinese = [(text, "ab"[i % 2]) for i, text in enumerate(CHINESE * 10)]
    english = zip(*topic_texts(60, 0), strict=True)
    for name, rows, said in (("english.csv", english, False), ("chinese.csv", chinese, True)):
        with open(tmp_path / name, "w", newline="", encoding="utf8") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
        words = ("train", tmp_path / name, "--teacher", teacher_folder, "--out", tmp_path / f"{name}-model")
        status, _, errors = ade(*words, "--set", "steps=5")
        assert status == 0, errors
        assert errors.count(SAID) == said
        assert ("75% of" in errors and "--teacher" in errors) is said
    for texts, said in ((CHINESE * 200, True), (["the coach and the team"] * 200, False)):
        (tmp_path / "texts.txt").write_text("\n".join(texts), "utf8")
        status, printed, errors = ade("predict", trained, tmp_path / "texts.txt")
        assert (status, printed.count("\n")) == (0, len(texts))
        assert errors.count(SAID) == errors.count("ade:") == said


def test_a_part_of_all_texts_is_examined(capsys):
    tokenizer = word_tokenizer(["a"])
    for known, said in ((3, True), (5, False)):  # rows may be sorted
        say_unknown_tokens(tokenizer, ["a"] * known * SAMPLE + ["x"] * SAMPLE, "so")
        assert capsys.readouterr().err.startswith(f"ade: 25{SAID}") == said
    sentences = TaggedDataset([["a", "x"]], [np.zeros(2, np.int64)], ("O",))
    say_unknown_tokens(tokenizer, texts_in(sentences), "so")
    assert capsys.readouterr().err.startswith(f"ade: 50{SAID}")
