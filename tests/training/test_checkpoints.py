"""The folder of a run: whatever a kill leaves in it, the run goes on bit for bit or starts over, one process only."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
from safetensors import SafetensorError

from ade.errors import InputError
from ade.settings import STRONG
from ade.trained_model import Classifier
from ade.training import checkpoints
from ade.training.checkpoints import CHECKPOINT, DONE, RUN, STATE, RunFolder
from ade.training.loop import fit_model

QUICK = replace(STRONG, steps=20, batch_size=16, learning_rate=5e-3, token_dropout=0.2, device="cpu")
FILES = ("model.safetensors", "config.json", "README.md", "tokenizer.json", "tokenizer_config.json", DONE)


class Stop(BaseException):
    """As sudden as a kill: nothing catches it."""


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def killed_in(monkeypatch, codebook, topics, folder: Path, method: str, call: int = 1, after: bool = False) -> None:
    """A run that ends before, or right after, a call of a method of its folder."""
    original, calls = getattr(RunFolder, method), []

    def cut(self, *arguments):
        calls.append(method)
        stops = len(calls) == call
        if stops and not after:
            raise Stop
        result = original(self, *arguments)
        if stops:
            raise Stop
        return result

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, method, cut)
        with pytest.raises(Stop):
            fit_model(codebook, topics, settings=QUICK, out=folder)


@pytest.fixture(scope="module")
def whole(codebook, topics, tmp_path_factory) -> Path:
    """A run that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    fit_model(codebook, topics, settings=QUICK, out=folder)
    return folder


def test_the_folder_of_a_finished_run(whole):
    assert names_in(whole) == set(FILES)
    lines = json.loads((whole / DONE).read_text())["validations"]
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert set(lines[-1]) == {"step", "loss", "dev_accuracy", "best"}
    metrics = json.loads((whole / "config.json").read_text())["metadata"]["dev"]
    assert set(metrics) == {"accuracy", "macro_f1", "precision", "recall", "n"}


@pytest.mark.parametrize("step", [1, 13, 20])
def test_a_run_killed_at_a_checkpoint_ends_as_one_that_never_was(step, whole, codebook, topics, tmp_path, monkeypatch):
    killed_in(monkeypatch, codebook, topics, tmp_path / "cut", "save", step, after=True)
    assert names_in(tmp_path / "cut") == {CHECKPOINT}
    assert names_in(tmp_path / "cut" / CHECKPOINT) == {RUN, STATE}
    ends_as(whole, codebook, topics, tmp_path / "cut")


def test_a_run_killed_between_two_checkpoints_too(codebook, topics, tmp_path):
    settings = replace(QUICK, steps=45)  # validated every second step

    def kill(stage: str, done: int, total: int, metrics: object) -> None:
        if (stage, done) == ("train", 25):
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ade.training.loop.REPORTED", 5)
        fit_model(codebook, topics, settings=settings, out=tmp_path / "whole")
        with pytest.raises(Stop):
            fit_model(codebook, topics, settings=settings, out=tmp_path / "cut", report=kill)
        ends_as(tmp_path / "whole", codebook, topics, tmp_path / "cut", settings)


def ends_as(whole: Path, codebook, topics, cut: Path, settings=QUICK, existing="resume") -> None:
    """Resume a run: the same bytes, the metrics of every validation among them."""
    fit_model(codebook, topics, settings=settings, out=cut, existing=existing)
    assert names_in(cut) == set(FILES)
    for name in FILES:
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
def test_a_kill_before_the_first_checkpoint(existing, whole, codebook, topics, tmp_path, monkeypatch):
    run = tmp_path / "run"
    killed_in(monkeypatch, codebook, topics, run, "save")
    assert names_in(run / CHECKPOINT) == {RUN}
    with pytest.raises(InputError, match="holds an interrupted run; use --resume to continue it, or pass --overwrite"):
        fit_model(codebook, topics, settings=QUICK, out=run)
    fit_model(codebook, topics, settings=QUICK, out=run, existing=existing)
    assert (run / FILES[0]).read_bytes() == (whole / FILES[0]).read_bytes()


@pytest.mark.parametrize("moved", [0, 3, len(FILES)])
def test_a_kill_while_a_run_is_being_finished(moved, whole, codebook, topics, tmp_path, monkeypatch):
    """What the run needed is still there, beside the model or without it: it goes when the run is resumed."""
    cut, replaced = tmp_path / "cut", []

    def stop_after(operation, source: Path, *target: Path) -> None:
        if target[:1] == (cut / source.name,) or (source == cut / CHECKPOINT and replaced):
            if len(replaced) == moved:
                raise Stop
            replaced.append(source)
        operation(source, *target)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.os, "replace", partial(stop_after, os.replace))
        patch.setattr(checkpoints, "_remove", partial(stop_after, checkpoints._remove))
        with pytest.raises(Stop):
            fit_model(codebook, topics, settings=QUICK, out=cut)
    assert {STATE, RUN} <= names_in(cut / CHECKPOINT)
    ends_as(whole, codebook, topics, cut)
    before = (cut / FILES[0]).stat().st_mtime_ns
    ends_as(whole, codebook, topics, cut)  # nothing is left to do
    assert (cut / FILES[0]).stat().st_mtime_ns == before


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
def test_drafts_of_a_killed_run_do_no_harm(existing, whole, codebook, topics, tmp_path, monkeypatch):
    """Of safetensors, too, which writes to such a file and renames it."""
    killed_in(monkeypatch, codebook, topics, tmp_path / "run", "save", 2, after=True)
    for name in (".state.safetensors.4242", ".tmpAhTAB0", "finished/config.json"):
        (tmp_path / "run" / CHECKPOINT / name).parent.mkdir(exist_ok=True)
        (tmp_path / "run" / CHECKPOINT / name).write_text("half a file")
    ends_as(whole, codebook, topics, tmp_path / "run", existing=existing)


def test_a_full_disk_keeps_the_last_good_checkpoint(whole, codebook, topics, tmp_path, monkeypatch):
    save_file, calls = safetensors.torch.save_file, []

    def filling(tensors, path, *rest):
        calls.append(path)
        if len(calls) > 6:
            path.write_bytes(b"half a file")
            raise SafetensorError("No space left on device")
        save_file(tensors, path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", filling)
        with pytest.raises(InputError, match=r"No space left on device.*last one is kept"):
            fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    assert names_in(tmp_path / "run" / CHECKPOINT) == {RUN, STATE}
    ends_as(whole, codebook, topics, tmp_path / "run")


def test_a_folder_of_something_else_is_left_alone(codebook, topics, tmp_path, monkeypatch):
    (tmp_path / "thesis.tex").write_text("precious")
    monkeypatch.setattr("ade.training.tasks.tokenize", None)  # would fail if it were reached
    for existing in ("refuse", "overwrite"):
        with pytest.raises(InputError, match="something else"):
            fit_model(codebook, topics, settings=QUICK, out=tmp_path, existing=existing)
    assert names_in(tmp_path) == {"thesis.tex"}


def test_another_run_is_not_resumed_and_damage_is_one_clear_error(codebook, topics, tmp_path, monkeypatch):
    run, changed = tmp_path / "run", [text.replace("comet", "probe") for text in topics.texts]
    killed_in(monkeypatch, codebook, topics, run, "save", after=True)
    with pytest.raises(InputError, match=r"had learning_rate = .*; resume with the same settings"):
        fit_model(codebook, topics, settings=replace(QUICK, learning_rate=1e-3), out=run, existing="resume")
    with pytest.raises(InputError, match=r"the run there had data = "):
        fit_model(codebook, replace(topics, texts=changed), settings=QUICK, out=run, existing="resume")
    state = run / CHECKPOINT / STATE
    state.write_bytes(state.read_bytes()[:200])
    with pytest.raises(InputError, match=r"state\.safetensors: not a readable checkpoint"):
        fit_model(codebook, topics, settings=QUICK, out=run, existing="resume")
    fit_model(codebook, topics, settings=replace(QUICK, steps=5), out=run, existing="overwrite")
    with pytest.raises(InputError, match=r"had steps = 5, not 20"):
        fit_model(codebook, topics, settings=QUICK, out=run, existing="resume")
    for text in ("{", "[]", '{"identity": 3}'):
        (run / DONE).write_text(text)
        with pytest.raises(InputError, match=r"training\.json.*--overwrite"):
            fit_model(codebook, topics, settings=QUICK, out=run, existing="resume")


def test_overwriting_keeps_a_link_a_link(codebook, topics, tmp_path):
    (tmp_path / "large_disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "large_disk")
    for seed, existing in ((0, "refuse"), (1, "overwrite")):
        settings = replace(QUICK, steps=2, seed=seed)
        fit_model(codebook, topics, settings=settings, out=tmp_path / "run", existing=existing)
    assert (tmp_path / "run").is_symlink()
    assert json.loads((tmp_path / "large_disk" / DONE).read_text())["identity"]["seed"] == 1


def test_two_runs_do_not_share_a_folder(codebook, topics, tmp_path):
    """While another process holds the folder it is refused, and left as it is; a killed process holds nothing."""
    code = (
        "import sys, time; from pathlib import Path; from ade.training.checkpoints import claimed\n"
        "with claimed(Path(sys.argv[1]), 'refuse'):\n    print('held', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, tmp_path / "run"], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        for existing in ("refuse", "resume", "overwrite"):
            with pytest.raises(InputError, match=rf"{tmp_path / 'run'}: another run is writing there"):
                fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run", existing=existing)
        assert len(names_in(tmp_path / "run")) == 1
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    fit_model(codebook, topics, settings=replace(QUICK, steps=2), out=tmp_path / "run")
    Classifier.load(tmp_path / "run")
    assert not [name for name in names_in(tmp_path / "run") if name.startswith(".")]


def test_nothing_is_left_of_a_run_that_never_began(codebook, topics, tmp_path):
    with pytest.raises(InputError, match="toaster"):
        fit_model(codebook, topics, settings=replace(QUICK, device="a toaster"), out=tmp_path / "a" / "run")
    assert list(tmp_path.iterdir()) == []
