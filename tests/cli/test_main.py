"""The command line, run as a user runs it; every verb, and every bad input the same way: one line, status 2."""

import json
import os
import signal
import subprocess
import sys

import pytest

from ade import __version__
from ade.cli import display
from ade.data.problems import Prediction, Tagged
from ade.files import new_folder
from ade.training.checkpoints import BEST, LAST, METRICS, RUN, claimed
from tests.conftest import PATIENT

SPEED = ["--steps", "400", "--batch-size", "16", "--learning-rate", "0.01", "--device", "cpu"]


@pytest.fixture
def book(ade, teacher_folder, tmp_path):
    status, _, errors = ade(
        "distill", "--teacher", teacher_folder, "--out", tmp_path / "book", "--anchors", 10, "--pairs", 3
    )
    assert (status, errors) == (0, "")
    return tmp_path / "book"


@pytest.fixture
def model(ade, book, topic_folder, tmp_path):
    status, _, errors = ade("train", "--codebook", book, "--data", topic_folder, "--out", tmp_path / "model", *SPEED)
    assert (status, errors) == (0, "")
    return tmp_path / "model"


def test_from_teacher_to_prediction(ade, book, model, topic_folder, tmp_path):
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


def test_every_verb_speaks_to_people_too(ade, book, model, topic_folder):
    for words, expected in (
        (("evaluate", model, "--data", topic_folder), "macro F1"),
        (("inspect", model, "bank"), "nearest words"),
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


def test_distill_json_and_corpus(ade, teacher_folder, tmp_path):
    (tmp_path / "corpus.txt").write_text("the goal\nthe match\n" * 10)
    words = (
        "distill",
        "--teacher",
        teacher_folder,
        "--anchors",
        8,
        "--pairs",
        2,
        "--json",
        "--corpus",
        tmp_path / "corpus.txt",
    )
    status, out, errors = ade(*words, "--out", tmp_path / "book", "--solver", "gradient", "--threshold", 0.1)
    result = json.loads(out)
    assert (status, errors) == (0, "")
    assert result["settings"]["solver"] == "gradient"
    assert 0 < result["cosine"] <= 1
    assert result["ratio"] == pytest.approx(result["teacher_bytes"] / result["bytes"])


def test_train_evaluates_a_test_split_and_resumes_to_the_same(ade, book, topic_folder, tmp_path):
    words = (
        "train",
        "--codebook",
        book,
        "--data",
        topic_folder,
        "--out",
        tmp_path / "m",
        *SPEED,
        "--attend",
        "gated",
        "--json",
    )
    status, out, _ = ade(*words)
    first = json.loads(out)
    assert status == 0
    assert first["test"]["n"] == 100
    assert ade(*words)[0] == 2  # the folder is taken
    status, out, _ = ade(*words, "--resume")
    assert json.loads(out) == first
    status, out, _ = ade(*words[:-1], "--resume")  # without --json
    assert f"{first['lexicon']['entries']:,} entries, weight" in out


def test_train_says_when_there_is_no_lexicon(ade, book, tmp_path):
    rows = [f"{word},{'xy'[i % 2]}\n" for i, word in enumerate(["goal", "goal", "bank", "bank"] * 50)]
    (tmp_path / "random.csv").write_text("text,label\n" + "".join(rows))
    words = ("train", "--codebook", book, "--data", tmp_path / "random.csv", "--steps", 4, "--device", "cpu")
    assert "none: it did not lower the loss on dev" in ade(*words, "--out", tmp_path / "a")[1]
    assert "lexicon" not in ade(*words, "--out", tmp_path / "b", "--no-lexicon")[1]


@pytest.mark.parametrize("preset", ["strong", "paper"])
def test_epochs_are_as_many_as_are_asked_for(preset, ade, book, topic_folder, tmp_path, monkeypatch):
    """400 rows less those held back, 64 a step: 8 epochs lie between 7 and 9, with or without a teacher."""
    monkeypatch.setattr("ade.training.loop.PATIENCE", 1000)  # none of them stops early
    words = ["train", "--codebook", book, "--data", topic_folder, "--preset", preset, "--batch-size", 64, "--json"]
    words += ["--device", "cpu"]
    steps = {}
    for epochs in (7, 8, 9):
        status, out, errors = ade(*words, "--epochs", epochs, "--out", tmp_path / str(epochs))
        assert status == 0, errors
        steps[epochs] = json.loads(out)["steps"]
    assert steps[7] < steps[8] < steps[9] < 60
    status, out, errors = ade(*words, "--epochs", 8, "--out", tmp_path / "taught", "--distill-from", tmp_path / "9",
                              "--variants", 0)  # fmt: skip
    assert status == 0, errors
    assert json.loads(out)["steps"] == steps[8]


def test_help_says_how_long_it_trains(ade):
    status, out, _ = ade("train", "--help")
    assert status == 0
    assert "by default 8" in " ".join(out.split())


def test_a_target_that_cannot_be_written_is_found_out_first(
    ade, book, model, teacher_folder, topic_folder, tmp_path, monkeypatch
):
    """Before the work: a file stands where a folder is needed."""
    for place in ("distillation.distill", "training.loop._prepare", "integrations.onnx_export.write_export"):
        monkeypatch.setattr(f"ade.{place}", lambda *_, **__: pytest.fail("worked in vain"))
    (tmp_path / "file").touch()
    for words in (
        ("distill", "--teacher", teacher_folder),
        ("train", "--codebook", book, "--data", topic_folder),
        ("train", "--codebook", book, "--data", topic_folder, "--distill-from", model),
        ("export", model),
    ):
        for out, message in ((tmp_path / "file", "is a file"), (tmp_path / "file" / "out", "cannot be made a folder")):
            status, _, errors = ade(*words, "--out", out)
            assert status == 2
            assert message in errors, errors


def test_a_folder_that_another_process_writes_is_refused(ade, book, model, teacher_folder, topic_folder, tmp_path):
    out = tmp_path / "out"
    with claimed(out, "refuse"):
        status, _, errors = ade("train", "--codebook", book, "--data", topic_folder, "--out", out)
        assert (status, f"{out}: another run is writing there" in errors) == (2, True)
    with new_folder(out, set()) as draft:
        for words in (("distill", "--teacher", teacher_folder), ("export", model)):
            status, _, errors = ade(*words, "--out", out)
            assert (status, f"{out}: another run is writing there" in errors) == (2, True)
        assert draft.exists()


def test_no_sat_and_paper_preset(ade, book, topic_folder, tmp_path):
    words = ("train", "--codebook", book, "--data", topic_folder, "--steps", 5, "--json", "--device", "cpu")
    assert ade(*words, "--out", tmp_path / "a", "--no-sat")[0] == 0
    assert json.loads((tmp_path / "a" / "config.json").read_text())["sat"] is False
    assert ade(*words, "--out", tmp_path / "b", "--preset", "paper")[0] == 0
    assert json.loads((tmp_path / "b" / "training.json").read_text())["identity"]["learning_rate"] == 2e-5


def test_bad_input_is_one_line_and_nothing_half_written(ade, book, model, topic_folder, teacher_folder, tmp_path):
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
        (("evaluate", model, "--data", topic_folder, "--split", "dev"), "has no dev file"),
        (("predict", model, tmp_path / "none.txt"), "No such file"),
        (("predict", model, model / "model.safetensors"), "not UTF-8"),
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


def _python(*words, **options):
    command = [sys.executable, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def _ade(*words, **options):
    return _python("-m", "ade", *words, **options)


def test_predict_reads_standard_input(model):
    with _ade("predict", model, "-", stdin=subprocess.PIPE) as process:
        out, errors = process.communicate("the coach\nlunar probe\n", timeout=PATIENT)
    assert [line.split("\t")[0] for line in out.splitlines()] == ["sport", "space"]
    assert errors == ""
    assert process.returncode == 0


# `ade`, held at its second checkpoint: it says so, and goes no further until it is stopped.
HELD = """
import signal, sys, time
from ade.cli import main as cli
from ade.training.checkpoints import RunFolder

signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal: a shell's background jobs ignore it
save, saved = RunFolder.save, []

def hold(self, *given):
    save(self, *given)
    saved.append(1)
    if len(saved) == 2:
        print("held", flush=True)
        while True:
            time.sleep(0.01)

RunFolder.save = hold
cli.main()
"""


def test_ctrl_c_leaves_a_run_that_can_go_on(book, topic_folder, tmp_path):
    words = ("train", "--codebook", book, "--data", topic_folder, "--out", tmp_path / "m", *SPEED)
    with _python("-c", HELD, *words) as process:
        try:
            assert process.stdout.readline() == "held\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENT)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors == "ade: interrupted; use --resume to continue\n"
    assert set(os.listdir(tmp_path / "m")) == {RUN, LAST, BEST, METRICS}
    with _ade(*words, "--resume", "--json") as process:
        out, errors = process.communicate(timeout=PATIENT)
    assert errors == ""
    assert json.loads(out)["test"]["accuracy"] > 0.9
    steps = [json.loads(line)["step"] for line in (tmp_path / "m" / METRICS).read_text().splitlines()]
    assert steps == list(range(20, 401, 20))  # the first two before it was stopped, every other one after


def test_a_reader_that_stops_early_is_no_error(model, tmp_path):
    (tmp_path / "many.txt").write_text("the coach\n" * 20_000)
    with _ade("predict", model, tmp_path / "many.txt") as process:
        assert process.stdout.readline().startswith("sport")
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=PATIENT) == 0
    assert errors == ""


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


def test_the_main_job(ade, tmp_path):
    """`ade run`, cut short: everything happens and everything is shown."""
    status, out, errors = ade("run", "--epochs", "0.02", "--out", tmp_path / "demo")
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


def test_help_is_quick_to_import():
    """Help and errors answer without loading torch."""
    code = "import sys, ade.cli.main; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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


def test_a_seed_out_of_bounds_is_one_line(ade, model, book, topic_folder, teacher_folder, tmp_path):
    out = tmp_path / "out"
    for seed in (99999999999999, -1):
        for words in (
            ("train", "--codebook", book, "--data", topic_folder, "--out", out),
            ("distill", "--teacher", teacher_folder, "--out", out),
            ("export", model, "--out", out),
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


def test_bash_completes_verbs_and_options():
    for words, count, expected in (("ade tr", 1, "train"), ("ade train --code", 2, "--codebook")):
        environment = {**os.environ, "_ADE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
        code = "import sys; sys.argv = ['ade']; from ade.cli.main import main; main()"
        with _python("-c", code, env=environment) as process:
            out, errors = process.communicate(timeout=PATIENT)
        assert (out.split(), errors) == ([expected], "")


def test_ctrl_c_in_other_verbs_says_only_that(model):
    """A verb that cannot be resumed does not suggest --resume."""
    code = (
        "import signal, sys\nfrom ade.cli import main as cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\ncli.main()"
    )
    with _python("-c", code, "predict", model, "-", stdin=subprocess.PIPE) as process:
        process.stdin.write("the coach\n" * 5000)  # more than is predicted at a time, so that lines come back
        process.stdin.flush()
        assert process.stdout.readline().startswith("sport")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENT)
    assert (process.returncode, errors) == (130, "ade: interrupted\n")


def test_a_byte_order_mark_is_no_part_of_the_first_text(ade, model, tmp_path):
    (tmp_path / "plain.txt").write_text("goal\n")
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbfgoal\n")
    assert ade("predict", model, tmp_path / "marked.txt") == ade("predict", model, tmp_path / "plain.txt")
