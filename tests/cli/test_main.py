"""The command line, run as a user runs it; every verb, and every bad input the same way: one line, status 2."""

import json
from functools import partial

import numpy as np
import pytest

from ade import __version__
from ade.cli import demo, display
from ade.data.problems import Prediction, Tagged
from ade.files import new_folder
from ade.settings import DistillationSettings
from ade.training.checkpoints import claimed
from tests.cli.conftest import SPEED


def test_from_teacher_to_prediction(ade, teacher_folder, topic_folder, tmp_path):
    book, model = tmp_path / "book", tmp_path / "model"
    distill = ("distill", "--teacher", teacher_folder, "--out", book, "--anchors", 10, "--pairs", 3)
    train = ("train", "--codebook", book, "--data", topic_folder, "--out", model, *SPEED)
    for words in (distill, train):
        status, _, errors = ade(*words)
        assert (status, errors) == (0, "")

    status, out, _ = ade("evaluate", model, "--data", topic_folder, "--json")
    figures = json.loads(out)
    assert status == 0
    expected = {"accuracy", "macro_f1", "precision", "recall", "n", "labels", "confusion", "classes", "confused"}
    assert set(figures) == expected
    assert figures["accuracy"] > 0.9
    assert figures["n"] == 100
    (tmp_path / "texts.txt").write_text("the coach and the team\n\nlunar probe\n")
    status, out, _ = ade("predict", model, tmp_path / "texts.txt")
    lines = [line.split("\t") for line in out.splitlines()]
    assert [label for label, _ in lines][::2] == ["sport", "space"]
    assert len(lines) == 3
    assert all(0 <= float(probability) <= 1 for _, probability in lines)
    status, out, _ = ade("predict", model, tmp_path / "texts.txt", "--json")
    assert json.loads(out)["predictions"][2]["label"] == "space"
    for source in (book, model):
        status, out, _ = ade("inspect", source, "bank", "comet", "--json")
        words = json.loads(out)["words"]
        assert [word["word"] for word in words] == ["bank", "comet"]
        assert 1 <= len(words[0]["anchors"]) <= 3
        assert words[0]["anchors"][0]["nearest"]


def test_every_verb_speaks_to_people_too(ade, trained, topic_folder):
    for words, expected in (
        (("evaluate", trained, "--data", topic_folder), "macro F1"),
        (("inspect", trained, "bank"), "nearest words"),
        (("params",), "2,367,749"),
    ):
        status, out, errors = ade(*words)
        assert (status, errors) == (0, "")
        assert expected in out
        assert max(map(len, out.splitlines())) <= 80
        assert "\x1b" not in out


def test_params_json(ade):
    status, out, _ = ade("params", "--json")
    assert status == 0
    assert json.loads(out)["total_trainable"] == 2_367_749


def test_a_target_that_cannot_be_written_is_found_out_first(
    ade, book, trained, teacher_folder, topic_folder, tmp_path, monkeypatch
):
    """Before the work: a file stands where a folder is needed."""
    for place in ("distillation.distill", "training.loop._prepare", "integrations.onnx_export.write_export"):
        monkeypatch.setattr(f"ade.{place}", lambda *_, **__: pytest.fail("worked in vain"))
    (tmp_path / "file").touch()
    for words in (
        ("distill", "--teacher", teacher_folder),
        ("train", "--codebook", book, "--data", topic_folder),
        ("train", "--codebook", book, "--data", topic_folder, "--distill-from", trained),
        ("export", trained),
    ):
        for out, message in ((tmp_path / "file", "is a file"), (tmp_path / "file" / "out", "cannot be made a folder")):
            status, _, errors = ade(*words, "--out", out)
            assert status == 2
            assert message in errors, errors


def test_a_folder_that_another_process_writes_is_refused(ade, book, trained, teacher_folder, topic_folder, tmp_path):
    out = tmp_path / "out"
    with claimed(out, "refuse"):
        status, _, errors = ade("train", "--codebook", book, "--data", topic_folder, "--out", out)
        assert (status, f"{out}: another run is writing there" in errors) == (2, True)
    with new_folder(out, set()) as draft:
        for words in (("distill", "--teacher", teacher_folder), ("export", trained)):
            status, _, errors = ade(*words, "--out", out)
            assert (status, f"{out}: another run is writing there" in errors) == (2, True)
        assert draft.exists()


def test_bad_input_is_one_line_and_nothing_half_written(ade, book, trained, topic_folder, teacher_folder, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious.txt").write_text("mine")
    one_class = tmp_path / "one.csv"
    one_class.write_text("text,label\na,x\nb,x\n")
    unseen = tmp_path / "unseen"
    unseen.mkdir()
    (unseen / "train.csv").write_text("text,label\ngoal,x\nbank,y\n" * 5)
    (unseen / "test.csv").write_text("text,label\ngoal,z\n")
    empty = tmp_path / "empty.csv"
    empty.touch()
    out = tmp_path / "out"
    distill = ("distill", "--teacher", teacher_folder, "--out", out)
    train = ("train", "--codebook", book, "--out", out)
    before = sorted(path.name for path in tmp_path.iterdir())
    cases = [
        ((*distill, "--anchors", 5000), "5000 anchors, but the teacher has only"),
        ((*distill, "--anchors", 5, "--pairs", 6), "pairs must lie between"),
        (("distill", "--teacher", tmp_path / "none.txt", "--out", out), "none.txt"),
        (("distill", "--teacher", teacher_folder, "--out", full), "something else"),
        ((*distill, "--solver", "magic"), "magic"),
        ((*distill, "--corpus", tmp_path / "none.txt"), "No such file"),
        ((*train, "--data", tmp_path / "none.csv"), "no such file"),
        ((*train, "--data", empty), "empty"),
        ((*train, "--data", one_class), "at least two classes"),
        ((*train, "--data", topic_folder, "--text-column", "body"), "no column 'body'"),
        ((*train, "--data", unseen), "not trained on: z"),
        ((*train, "--data", topic_folder, "--heads", 3), "not divisible by 3 heads"),
        ((*train, "--data", topic_folder, "--epochs", 1, "--steps", 1), "give one of them"),
        (("train", "--codebook", full, "--data", topic_folder, "--out", out), "not a codebook folder"),
        (("train", "--codebook", book, "--data", topic_folder, "--out", full), "something else"),
        (("evaluate", full, "--data", topic_folder), "not a model folder"),
        (("evaluate", trained, "--data", topic_folder, "--split", "dev"), "has no dev file"),
        (("predict", trained, tmp_path / "none.txt"), "No such file"),
        (("predict", trained, trained / "model.safetensors"), "not UTF-8"),
        (("inspect", full, "word"), "not a model folder"),
        (("params", "--dim", 0), "dim"),
        (("nonsense",), "nonsense"),
        ((*train,), "data"),
    ]
    for words, message in cases:
        status, output, errors = ade(*words)
        assert (status, output) == (2, ""), words
        assert message in errors, (words, errors)
        assert errors.startswith("ade: ")
        assert errors.count("\n") == 1, errors
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (full / "precious.txt").read_text() == "mine"


def test_no_words_at_all_is_a_call_for_help(ade):
    status, out, _ = ade()
    assert status == 0
    assert "distill" in out
    assert out.count("\n") > 10


def test_labels_that_look_like_markup(ade, book, tmp_path):
    (tmp_path / "odd.csv").write_text("text,label\n" + "goal,[/x]\nbank,[bold]\n" * 20)
    words = ("train", "--codebook", book, "--data", tmp_path / "odd.csv", "--out", tmp_path / "odd", *SPEED)
    assert ade(*words)[0] == 0
    status, out, _ = ade("evaluate", tmp_path / "odd", "--data", tmp_path / "odd.csv")
    assert status == 0
    assert "[/x]" in out


def test_the_main_job(ade, tmp_path, monkeypatch):
    """`ade run`, cut short: everything happens and everything is shown."""

    def fewer_rows(*words, load=demo.load_dataset):
        rows = load(*words)
        return rows.take(np.arange(0, len(rows), 30))

    monkeypatch.setattr(demo, "load_dataset", fewer_rows)
    monkeypatch.setattr(demo, "DistillationSettings", partial(DistillationSettings, anchors=50, pairs=4, rounds=1))
    status, out, errors = ade("run", "--epochs", "0.5", "--out", tmp_path / "demo")
    assert (status, errors) == (0, "")
    for expected in (
        "TF-IDF + linear SVM",
        "ADE without lexicon",
        "smaller, mean cosine",
        "bank",
        "spring",
        "nearest words",
    ):
        assert expected in out
    assert max(map(len, out.splitlines())) <= 80
    status, out, _ = ade("predict", tmp_path / "demo" / "ade", "--json", "README.md")
    assert status == 0


def test_labels_with_line_breaks_and_tabs_stay_on_their_line(ade, book, tmp_path):
    rows = [{"text": "goal", "label": "team\nplay"}, {"text": "bank", "label": "mon\tey\u2028"}] * 20
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("train", "--codebook", book, "--data", tmp_path / "odd.jsonl", "--out", tmp_path / "odd", *SPEED)
    assert ade(*words)[0] == 0
    (tmp_path / "texts.txt").write_text("goal\nbank\n")
    status, out, _ = ade("predict", tmp_path / "odd", tmp_path / "texts.txt")
    assert status == 0
    assert [line.split("\t")[0] for line in out.splitlines()] == [r"team\nplay", r"mon\tey\u2028"]
    status, out, _ = ade("predict", tmp_path / "odd", tmp_path / "texts.txt", "--json")
    assert [each["label"] for each in json.loads(out)["predictions"]] == ["team\nplay", "mon\tey\u2028"]
    status, out, _ = ade("evaluate", tmp_path / "odd", "--data", tmp_path / "odd.jsonl")
    assert status == 0
    assert r"team\nplay" in out


def test_several_labels_stay_on_their_line_too():
    found = Prediction(["a\nb", "c"], [0.75, 0.5])
    assert display.format_prediction(found) == "a\\nb|c\t0.7500|0.5000\n"
    assert display.format_prediction(Tagged(["a\x85b"], ["B-X"])) == "a\\x85b\tB-X\n\n"


def test_a_seed_out_of_bounds_is_one_line(ade, trained, book, topic_folder, teacher_folder, tmp_path):
    out = tmp_path / "out"
    for seed in (99999999999999, -1):
        for words in (
            ("train", "--codebook", book, "--data", topic_folder, "--out", out),
            ("distill", "--teacher", teacher_folder, "--out", out),
            ("export", trained, "--out", out),
            ("run", "--out", out),
        ):
            status, printed, errors = ade(*words, "--seed", seed)
            assert (status, printed) == (2, ""), words
            assert "seed" in errors
            assert ("4294967295" if seed > 0 else "0") in errors
            assert errors.count("\n") == 1
    assert not out.exists()
    words = ("train", "--codebook", book, "--data", topic_folder, "--out", out, "--steps", 3, "--device", "cpu")
    assert ade(*words, "--seed", 4294967295)[0] == 0


def test_only_what_is_random_takes_a_seed(ade):
    for verb, random in (
        *((verb, True) for verb in ("distill", "train", "run", "export")),
        *((verb, False) for verb in ("evaluate", "predict", "inspect", "params", "serve")),
    ):
        status, out, _ = ade(verb, "--help")
        assert (status, "--seed" in out) == (0, random), verb


def test_version(ade):
    assert ade("--version") == (0, f"ade {__version__}\n", "")


def test_a_byte_order_mark_is_no_part_of_the_first_text(ade, trained, tmp_path):
    (tmp_path / "plain.txt").write_text("goal\n")
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbfgoal\n")
    assert ade("predict", trained, tmp_path / "marked.txt") == ade("predict", trained, tmp_path / "plain.txt")
