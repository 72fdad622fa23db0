"""What all verbs share: help in groups with its defaults, --quiet and --verbose, paths that are no hub names."""

import re

import pytest
import typer

from ade.cli.main import app
from ade.cli.options import ADVANCED
from ade.files import looks_like_hub_name

VERBS = typer.main.get_command(app).commands


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_every_default(verb, ade):
    status, out, _ = ade(verb, "--help")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    context = VERBS[verb].make_context(verb, [], resilient_parsing=True)
    for parameter in VERBS[verb].params:
        if parameter.default not in (None, False, "") and not callable(parameter.default):
            _, help_text = parameter.get_help_record(context)
            assert "default: " in help_text, parameter.name


def test_settings_that_a_preset_decides_show_its_value(ade):
    _, out, _ = ade("train", "--help")
    text = " ".join(out.split())
    assert "Texts per optimizer step. [default: 64; with --preset paper 32]" in text
    assert "[default: lexicon; with --preset paper no-lexicon]" in text


def test_common_options_come_first(ade):
    _, out, _ = ade("train", "--help")
    common, advanced = out.split(f"\n{ADVANCED}:\n")
    for flag in ("--out", "--teacher", "--size", "--epochs", "--seed", "--quiet"):
        assert flag in common
        assert f"  {flag} " not in advanced
    for flag in ("--token-dropout", "--layer-bits", "--variants"):
        assert flag in advanced
    _, out, _ = ade("--help")
    first, more = out.split("\nMore commands:\n")
    first, vectors = first.split("\nVectors of texts:\n")
    assert re.findall(r"^  ([\w-]+) ", vectors, re.MULTILINE) == ["distill-encoder", "encode", "search"]
    assert re.findall(r"^  (\w+) ", first.split("\nCommands:\n")[1], re.MULTILINE) == [
        "train", "predict", "evaluate", "inspect", "serve", "export",
    ]  # fmt: skip
    assert re.findall(r"^  (\w+) ", more, re.MULTILINE) == ["distill", "compress", "benchmark", "run", "params"]


def test_quiet_and_verbose(ade, trained, tmp_path):
    (tmp_path / "a.csv").write_text("review,topic\ngoal,sport\nbank,money\n")
    status, out, errors = ade("evaluate", trained, tmp_path / "a.csv")
    assert (status, "texts of the column 'review'" in errors) == (0, True)
    assert ade("evaluate", trained, tmp_path / "a.csv", "--quiet") == (0, out, "")
    assert ade("evaluate", trained, tmp_path / "a.csv")[2] == errors  # only where it was asked for

    status, _, errors = ade("evaluate", trained, tmp_path / "none.csv", "-v")
    assert status == 2
    assert errors.startswith("Traceback")
    assert errors.endswith(f"ade: {tmp_path / 'none.csv'}: no such file or folder\n")


def test_progress_is_shown_unless_quiet(ade, teacher_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_PROGRESS", "1")
    monkeypatch.setattr("ade.cli.display.SECONDS", 0)
    words = ("distill", "--teacher", teacher_folder, "--anchors", 5, "--pairs", 2, "--out")
    status, _, errors = ade(*words, tmp_path / "a")
    assert (status, errors != "") == (0, True)
    status, _, errors = ade(*words, tmp_path / "b", "--quiet")
    assert (status, errors) == (0, "")


def test_a_path_is_no_name_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for path in ("./x", "../x", "/x", "~/x", "x/", "runs/x", "a/b/c", "a.csv", "data/a.csv", "a/b.jsonl.gz", r"a\b"):
        assert not looks_like_hub_name(path), path
    for name in ("imdb", "owner/name", "owner/model-v1.5"):
        assert looks_like_hub_name(name), name


@pytest.mark.parametrize("given", ["./no/such", "no/such/", "runs/nosuch", "~/no-such-model", "model.safetensors"])
def test_a_mistyped_model_is_not_looked_up(given, ade, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("looked up"))
    (tmp_path / "a.txt").write_text("goal\n")
    status, out, errors = ade("predict", given, "a.txt")
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert "no such folder" in errors or "not a model folder" in errors
