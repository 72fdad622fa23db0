"""What all verbs share: help, `--set`, --quiet and --verbose, one line for every bad input, tables that fit."""

import json
import re
from pathlib import Path

import pytest
import typer

from ade import __version__
from ade.cli import demo, display, inspection
from ade.cli.main import app_with
from ade.cli.making import TRAINING, training_facts
from ade.cli.writing import Output, format_output
from ade.decision import Prediction, Tagged
from ade.errors import InputError
from ade.files import looks_like_hub_name, new_folder
from ade.training.checkpoints import claimed
from tests.cli.conftest import SPEED

VERBS = typer.main.get_command(app_with()).commands
MAX_OPTIONS, MAX_TRAINING_OPTIONS, MAX_IN_ALL, SCREEN = 18, 16, 110, 40


# -- help ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_short_and_shows_every_default(verb, ade):
    status, out, _ = ade(verb, "--help")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    context = VERBS[verb].make_context(verb, [], resilient_parsing=True)
    options = [each for each in VERBS[verb].params if each.param_type_name == "option"]
    assert len(options) <= (MAX_TRAINING_OPTIONS if verb == "train" else MAX_OPTIONS)
    for option in options:
        if option.default not in (None, False, "") and not callable(option.default):
            assert "default: " in option.get_help_record(context)[1], option.name


def test_help_fits_a_screen_and_cuts_no_sentence(ade):
    options = sum(each.param_type_name == "option" for verb in VERBS.values() for each in verb.params)
    assert options + len(typer.main.get_command(app_with()).params) <= MAX_IN_ALL
    for words in (("--help",), ("train", "--help")):
        assert ade(*words)[1].count("\n") <= SCREEN
    assert ade() == ade("--help")  # no words at all are a call for help
    listed = dict(re.findall(r"^  ([\w-]+) {2,}(\w.*)$", ade("--help")[1].split("Commands:")[1], re.MULTILINE))
    assert {*listed} == {*VERBS}
    for verb, sentence in listed.items():
        assert sentence == VERBS[verb].help.split("\n")[0]


def test_version(ade):
    assert ade("--version") == (0, f"ade {__version__}\n", "")


def test_settings_without_an_option_are_listed(ade):
    status, out, _ = ade("train", "--set", "help")  # needs nothing else
    text = " ".join(out.split())
    assert status == 0
    assert "batch_size 64 (paper: 32) texts per optimizer step" in text
    assert "lexicon true (paper: false)" in text
    assert max(map(len, out.splitlines())) <= 100
    for setting in TRAINING.options:  # these have one
        assert f"\n{setting} " not in out
    assert "max_texts" in ade("serve", "--set", "help")[1]


def test_settings_are_read_by_their_type():
    given = ["steps=100", "learning-rate=0.02", "lexicon=false", "attend=anchors", "lexicon_size=1kB"]
    assert TRAINING.parse(given) == {
        "steps": 100, "learning_rate": 0.02, "lexicon": False, "attend": "anchors", "lexicon_size": "1kB",
    }  # fmt: skip
    assert TRAINING.parse(None) == {}
    for word, message in (
        ("steps", "write NAME=VALUE"),
        ("steps=many", "a whole number is needed, not 'many'"),
        ("dropout=", "a number is needed"),
        ("lexicon=maybe", "one of true, false, not 'maybe'"),
        ("attend=all", "one of tokens, anchors, not 'all'"),
        ("droput=0.1", "no setting 'droput'; do you mean dropout?"),
        ("device=cpu", "no setting 'device'"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            TRAINING.parse([word])


def test_quiet_and_verbose_stand_anywhere(ade, trained, tmp_path):
    (tmp_path / "a.csv").write_text("review,topic\ngoal,sport\nbank,money\n")
    words = ("evaluate", trained, tmp_path / "a.csv")
    status, out, errors = ade(*words)
    assert (status, "texts of the column 'review'" in errors) == (0, True)
    for quiet in ((*words, "--quiet"), ("-q", *words)):
        assert ade(*quiet) == (0, out, "")
    assert ade(*words)[2] == errors  # only where it was asked for

    status, _, errors = ade("evaluate", trained, tmp_path / "none.csv", "-v")
    assert status == 2
    assert errors.startswith("Traceback")
    assert errors.endswith(f"ade: {tmp_path / 'none.csv'}: no such file or folder\n")
    assert ade(*words, "-q", "-v")[2].endswith("ade: --quiet says less, --verbose says more: give one of them\n")


def test_progress_is_shown_unless_quiet(ade, teacher_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_PROGRESS", "1")
    monkeypatch.setattr("ade.progress.SECONDS", 0)
    words = ("distill", "--teacher", teacher_folder, "--anchors", 5, "--pairs", 2, "--out")
    status, _, errors = ade(*words, tmp_path / "a")
    assert (status, errors != "") == (0, True)
    assert ade(*words, tmp_path / "b", "--quiet")[::2] == (0, "")


# -- bad input -----------------------------------------------------------------------------------------------------


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
    train = ("train", "--from", book, "--out", out)
    before = sorted(path.name for path in tmp_path.iterdir())
    cases = [
        ((*distill, "--anchors", 5000), "5000 anchors, but the teacher has only"),
        ((*distill, "--anchors", 5, "--pairs", 6), "pairs must lie between"),
        (("distill", "--teacher", tmp_path / "none.txt", "--out", out), "none.txt"),
        (("distill", "--teacher", teacher_folder, "--out", full), "something else"),
        ((*distill, "--set", "solver=magic"), "magic"),
        ((*distill, "--set", "seed=99999999999999"), "4294967295"),
        ((*train, tmp_path / "none.csv"), "no such file"),
        ((*train, empty), "empty"),
        ((*train, one_class), "at least two classes"),
        ((*train, topic_folder, "--text-column", "body"), "no column 'body'"),
        ((*train, unseen), "not trained on: z"),
        ((*train, topic_folder, "--set", "heads=3"), "not divisible by 3 heads"),
        ((*train, topic_folder, "--epochs", 1, "--set", "steps=1"), "give one of them"),
        ((*train, topic_folder, "--resume", "--overwrite"), "give one of them"),
        ((*train, topic_folder, "--unlabelled", one_class), "--distill-from"),
        ((*train, topic_folder, topic_folder), "extra argument"),
        (("train", "--from", full, topic_folder, "--out", out), "not a"),
        (("train", "--from", book, topic_folder, "--out", full), "something else"),
        (("evaluate", full, topic_folder), "not a model folder"),
        (("evaluate", trained, topic_folder, "--split", "dev"), "has no dev file"),
        (("predict", trained, tmp_path / "none.txt"), "No such file"),
        (("predict", trained, trained / "model.safetensors"), "not UTF-8"),
        (("predict", one_class, trained), "one.csv: a file, not a model folder; the model comes before the texts"),
        (("evaluate", one_class, trained), "the model comes before the texts"),
        (("encode", one_class, "--encoder", one_class), "a file, not a model folder"),
        (("predict", trained, "what a good match"), "no file is called 'what a good match'; give a text by a pipe"),
        ((*train, topic_folder, "--lr", "0.1"), "Is it a setting: --set NAME=VALUE? 'ade train --set help'"),
        (("train", topic_folder, "--output", out), "Possible options: --out"),
        (("inspect", full, "word"), "not a model folder"),
        (("nonsense",), "nonsense"),
        ((*train,), "DATA"),
    ]
    for words, message in cases:
        status, output, errors = ade(*words)
        assert (status, output) == (2, ""), words
        assert message in errors, (words, errors)
        assert errors.startswith("ade: ")
        assert errors.count("\n") == 1, errors
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (full / "precious.txt").read_text() == "mine"


def test_a_target_that_cannot_be_written_is_found_out_first(
    ade, book, trained, teacher_folder, topic_folder, tmp_path, monkeypatch
):
    """Before the work: a file stands where a folder is needed, or another process writes there."""
    for place in ("distillation.distill", "training.loop.model_of", "integrations.onnx._write_model"):
        monkeypatch.setattr(f"ade.{place}", lambda *_, **__: pytest.fail("worked in vain"))
    (tmp_path / "file").touch()
    distill, train, export = ("distill", "--teacher", teacher_folder), ("train", "--from", book), ("export", trained)
    for words in (distill, (*train, topic_folder), (*train, topic_folder, "--distill-from", trained), export):
        for out, message in ((tmp_path / "file", "is a file"), (tmp_path / "file" / "out", "cannot be made a folder")):
            status, _, errors = ade(*words, "--out", out)
            assert status == 2
            assert message in errors, errors

    out = tmp_path / "out"
    with claimed(out, "refuse"):
        assert f"{out}: another run is writing there" in ade(*train, topic_folder, "--out", out)[2]
    with new_folder(out, set()) as draft:
        for words in (distill, export):
            assert f"{out}: another run is writing there" in ade(*words, "--out", out)[2]
        assert draft.exists()


def test_a_path_is_no_name_on_the_hub(ade, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "a.txt").write_text("goal\n")
    for path in ("./x", "../x", "/x", "~/x", "x/", "runs/x", "a/b/c", "a.csv", "data/a.csv", "a/b.jsonl.gz", r"a\b"):
        assert not looks_like_hub_name(path), path
    for name in ("imdb", "owner/name", "owner/model-v1.5"):
        assert looks_like_hub_name(name), name

    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("looked up"))
    for given in ("./no/such", "no/such/", "runs/nosuch", "~/no-such-model", "model.safetensors"):
        status, out, errors = ade("predict", given, "a.txt")
        assert (status, out, errors.count("\n")) == (2, "", 1)
        assert "no such folder" in errors or "not a model folder" in errors


# -- what people read ----------------------------------------------------------------------------------------------


def test_the_demo(ade, tmp_path, monkeypatch):
    """`ade run`, cut short: everything happens and everything is shown."""
    monkeypatch.setattr(demo, "TEST_ROWS", 200)
    monkeypatch.setattr(demo, "ROWS", 600)
    status, out, errors = ade("run", "--out", tmp_path / "demo")
    assert (status, errors) == (0, "")
    for expected in ("names of the labels alone", "trained", "wading", "adds to animal", "nearest to"):
        assert expected in out
    assert max(map(len, out.splitlines())) <= 100
    assert ade("predict", tmp_path / "demo", "--json", "README.md")[0] == 0


def test_labels_stay_on_their_line(ade, book, tmp_path):
    rows = [{"text": "goal", "label": "team\nplay"}, {"text": "bank", "label": "[/x]\tey\u2028"}] * 20
    (tmp_path / "odd.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert ade("train", "--from", book, tmp_path / "odd.jsonl", "--out", tmp_path / "odd", *SPEED)[0] == 0
    (tmp_path / "texts.txt").write_text("goal\nbank\n")
    _, out, _ = ade("predict", tmp_path / "odd", tmp_path / "texts.txt")
    assert [line.split("\t")[0] for line in out.splitlines()] == [r"team\nplay", r"[/x]\tey\u2028"]
    _, out, _ = ade("predict", tmp_path / "odd", tmp_path / "texts.txt", "--json")
    assert [json.loads(line)["prediction"] for line in out[:-1].split("\n")] == ["team\nplay", "[/x]\tey\u2028"]
    _, out, _ = ade("evaluate", tmp_path / "odd", tmp_path / "odd.jsonl")
    assert r"team\nplay" in out
    assert "[/x]" in out

    assert format_output(Output(Prediction(["a\nb", "c"], [0.75, 0.5]))) == "a\\nb|c\t0.7500|0.5000\n"
    assert format_output(Output(Tagged(["a\x85b"], ["B-X"]))) == "a\\x85b\tB-X\n\n"


@pytest.fixture
def printed(capsys):
    def lines(*parts):
        display.show({}, False, *parts)
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 100
        return out

    return lines


ESTIMATE = {"metric": "accuracy", "value": 0.98765, "low": 0.9701, "high": 0.995, "rows": 500}
ESTIMATE |= {"how": "5-fold cross-validation"}


def test_long_paths_are_wrapped_and_numbers_stay_whole(printed):
    folder = str(Path("/home") / "x".join(map(str, range(70))))
    out = printed(training_facts({"model": folder, "steps": 12_345, "estimate": ESTIMATE, "bytes": 1_234_567}))
    assert folder in "".join(word for word in out.split() if word != "model")  # the heading beside it
    for number in ("12,345", "98.77", "97.01", "99.5", "1.2 MB", "5-fold cross-validation, 500 rows"):
        assert number in out

    words = tuple(f"derivatives{number}" for number in range(12))
    uses = [
        {"anchor": 450, "weight": 0.163, "nearest": words, "adds": -0.171},
        {"anchor": 47, "weight": -0.26, "nearest": words, "adds": 0.2},
    ]
    out = printed(*inspection.tables([{"word": "spring", "token": "spring", "anchors": uses}]))
    for whole in ("anchor", "weight", "+0.163", "-0.171", "-0.260", *words):
        assert whole in out
