"""The folder of a run: whatever a kill leaves in it, the run goes on or starts over, one process at a time."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ade.classifier import Classifier
from ade.errors import InputError
from ade.settings import STRONG
from ade.training.checkpoints import BEST, DONE, LAST, METRICS, RUN, RunFolder, claimed
from ade.training.loop import fit_model

QUICK = replace(STRONG, steps=20, batch_size=16, learning_rate=5e-3, device="cpu")


class Stop(BaseException):
    """As sudden as a kill: nothing catches it."""


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def killed_in(monkeypatch, codebook, topics, folder: Path, method: str, before: bool = True, **options) -> None:
    """A run that ends in, or right after, a method of its folder, the first time it is called."""
    original = getattr(RunFolder, method)

    def cut(self, *arguments):
        if not before:
            original(self, *arguments)
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, method, cut)
        with pytest.raises(Stop):
            fit_model(codebook, topics, settings=QUICK, out=folder, **options)


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
@pytest.mark.parametrize("method", ["load", "log", "save"])
def test_a_kill_before_the_first_checkpoint(method, existing, codebook, topics, tmp_path, monkeypatch):
    killed_in(monkeypatch, codebook, topics, tmp_path / "run", method)
    assert RUN in names_in(tmp_path / "run")
    assert LAST not in names_in(tmp_path / "run")
    with pytest.raises(InputError, match="use --resume to continue it, or pass --overwrite"):
        fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run", existing=existing)
    Classifier.load(tmp_path / "run")


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
@pytest.mark.parametrize(
    "left",
    [
        [BEST],
        [METRICS],
        [".checkpoint.safetensors.1234"],
        [BEST, METRICS, ".best.safetensors.77"],
        [".finished-a1b2c3/config.json"],
        [".run.json.1234"],
        [".tmpAhTAB0"],  # safetensors writes to such a file and renames it
    ],
)
def test_what_a_killed_run_leaves_is_ours(left, existing, codebook, topics, tmp_path):
    for name in left:
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text("half a file")
    fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run", existing=existing)
    assert not [name for name in names_in(tmp_path / "run") if name.startswith(".") or name in (BEST, LAST, RUN)]


def test_what_looks_like_ours_beside_other_files_is_not(tmp_path):
    (tmp_path / BEST).touch()
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="something else"), claimed(tmp_path, "overwrite"):
        pass
    assert names_in(tmp_path) == {BEST, "thesis.tex"}


def test_drafts_are_gone_when_a_run_has_been_resumed(codebook, topics, tmp_path, monkeypatch):
    killed_in(monkeypatch, codebook, topics, tmp_path / "run", "save", before=False)
    for name in (".checkpoint.safetensors.4242", ".tmpAhTAB0"):
        (tmp_path / "run" / name).write_text("half a file")
    fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run", existing="resume")
    assert not [name for name in names_in(tmp_path / "run") if name.startswith(".")]


def test_a_kill_while_a_run_is_being_finished(codebook, topics, tmp_path, monkeypatch):
    """The model is there, what the run needed is there too: it goes when the run is resumed."""
    killed_in(monkeypatch, codebook, topics, tmp_path / "run", "_tidy")
    assert {DONE, LAST, BEST, RUN, "finished"} <= names_in(tmp_path / "run")
    fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run", existing="resume")
    assert not {LAST, BEST, RUN, "finished"} & names_in(tmp_path / "run")


def test_all_metrics_are_kept_by_a_run_resumed_at_its_end(codebook, topics, tmp_path, monkeypatch):
    fit_model(codebook, topics, settings=QUICK, out=tmp_path / "whole")
    killed_in(monkeypatch, codebook, topics, tmp_path / "cut", "finish")
    fit_model(codebook, topics, settings=QUICK, out=tmp_path / "cut", existing="resume")
    dev = [json.loads((tmp_path / run / "config.json").read_text())["about"]["dev"] for run in ("whole", "cut")]
    assert set(dev[0]) == {"accuracy", "macro_f1", "precision", "recall", "n"}
    assert dev[0] == dev[1]
    assert (tmp_path / "whole" / "README.md").read_text() == (tmp_path / "cut" / "README.md").read_text()


@pytest.mark.parametrize("text", ["{", "[]", '{"identity": 3}'])
def test_a_damaged_record_of_a_run_is_one_clear_error(text, codebook, topics, tmp_path):
    fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    (tmp_path / "run" / DONE).write_text(text)
    with pytest.raises(InputError, match=r"training\.json.*--overwrite"):
        fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run", existing="resume")


def test_overwriting_keeps_a_link_a_link(codebook, topics, tmp_path):
    (tmp_path / "large_disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "large_disk")
    fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    fit_model(codebook, topics, settings=replace(QUICK, seed=1), out=tmp_path / "run", existing="overwrite")
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
    fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    assert not [name for name in names_in(tmp_path / "run") if name.startswith(".")]


def test_nothing_is_left_of_a_run_that_never_began(codebook, topics, tmp_path):
    settings = replace(QUICK, adapt=True, train_weights=False)
    with pytest.raises(InputError, match="--adapt needs"):
        fit_model(codebook, topics, settings=settings, out=tmp_path / "a" / "run")
    assert list(tmp_path.iterdir()) == []


def test_metrics_are_always_json(tmp_path):
    folder = RunFolder(tmp_path, {})
    folder.log({"step": 3, "loss": float("nan"), "best": -float("inf"), "rate": 1.5})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    line = (tmp_path / METRICS).read_text()
    assert json.loads(line, parse_constant=refuse) == {"step": 3, "loss": None, "best": None, "rate": 1.5}


def test_an_interrupted_run_is_called_so(codebook, topics, tmp_path, monkeypatch):
    killed_in(monkeypatch, codebook, topics, tmp_path / "run", "save", before=False)
    with pytest.raises(InputError, match=r"holds an interrupted run; use --resume to continue it"):
        fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    with (
        claimed(tmp_path / "run", "resume"),
        pytest.raises(InputError, match="another run is writing there"),
        claimed(tmp_path / "run", "refuse"),
    ):
        pass
