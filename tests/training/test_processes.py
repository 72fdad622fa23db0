"""`accelerate launch` with two processes: the run of one process, written once, and resumed after a kill."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ade.training.checkpoints import LAST, METRICS
from tests.conftest import PATIENT

# On a machine without GPUs, `--multi_gpu` starts as many processes as it is told to, which meet over gloo.
LAUNCH = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
LAUNCH += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]

# `ade`, whose main process is killed right after its second checkpoint.
KILLED = """
import os, signal
from ade.cli import main as cli
from ade.training.checkpoints import RunFolder

save, saved = RunFolder.save, []

def killed(self, *given):
    save(self, *given)
    saved.append(1)
    if len(saved) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

RunFolder.save = killed
cli.main()
"""


@pytest.fixture
def words(codebook, topic_folder, tmp_path):
    codebook.save(tmp_path / "book")
    given = ["train", "--codebook", tmp_path / "book", "--data", topic_folder, "--device", "cpu", "--json"]
    return [str(word) for word in (*given, "--steps", 40, "--batch-size", 20)]


def python(*words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENT)


def steps_of(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / METRICS).read_text().splitlines()]


def test_two_processes_train_the_model_of_one(words, tmp_path):
    """They share each batch; without dropout they end where one process ends, up to rounding."""
    words += ["--dropout", "0", "--token-dropout", "0"]
    results = []
    for name, launch in (("one", []), ("two", LAUNCH)):
        done = python(*launch, "-m", "ade", *words, "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr[-2000:]
        results.append(json.loads(done.stdout))  # one object, however many processes there are
        steps = steps_of(tmp_path / name)
        assert steps == list(range(2, steps[-1] + 1, 2))  # written by one of them
    one, two = results
    assert one["test"] == two["test"]
    assert one["test"]["n"] == 100

    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, tensor in one.items():
        if name != "pooler.bias":  # shifts every score alike: its gradient is rounding alone
            torch.testing.assert_close(tensor.double(), two[name].double(), rtol=1e-2, atol=1e-3)
    assert any(not torch.equal(tensor, two[name]) for name, tensor in one.items())  # really summed in another order


def test_two_processes_go_on_after_a_kill(words, tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    assert python(*LAUNCH, script, *words, "--out", tmp_path / "cut").returncode != 0
    assert (tmp_path / "cut" / LAST).exists()
    for name, more in (("cut", ["--resume"]), ("whole", [])):
        done = python(*LAUNCH, "-m", "ade", *words, "--out", tmp_path / name, *more)
        assert done.returncode == 0, done.stderr[-2000:]

    assert steps_of(tmp_path / "cut") == steps_of(tmp_path / "whole")
    cut, whole = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("cut", "whole"))
    assert cut == whole
