"""Two processes: the run of one process, written once, resumed after a kill, and ended by the first of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ade.training.checkpoints import DONE, LAST, METRICS
from tests.conftest import PATIENT

# On a machine without GPUs, `--multi_gpu` starts as many processes as it is told to, which meet over gloo.
ACCELERATE = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]

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

# Runs of `ade`, one after the other, as starting processes takes most of the time; what each prints goes to a file.
# Then a run whose processes see validation metrics of their own, falling in the second one.
RUNS = """
import contextlib, hashlib, json, os, sys
from pathlib import Path
import numpy as np
from ade import Codebook
from ade.cli import main as cli
from ade.data.dataset import Dataset
from ade.settings import TrainingSettings
from ade.training import loop, tasks

here, rank = Path(sys.argv[1]), os.environ["RANK"]
for words in json.loads((here / "runs.json").read_text()):
    sys.argv = ["ade", *words]
    with open(f"{words[-1]}.printed{rank}", "w") as file, contextlib.redirect_stdout(file):
        try:
            cli.main()
        except SystemExit as ended:
            assert not ended.code, ended.code

texts, labels, names = json.loads((here / "rows.json").read_text())
topics, validations = Dataset(texts, np.array(labels), tuple(names)), iter(range(40))

def judged(model, texts):
    wrong = np.arange(len(texts)) < 3 * next(validations) * int(rank)
    return np.eye(3)[(topics.labels + wrong) % 3]

tasks.predict_logits = judged
settings = TrainingSettings(steps=40, batch_size=16, device="cpu", learning_rate=5e-3)
found = loop.fit_model(Codebook.load(here / "book"), topics, topics, settings, out=here / "judged")
weights = found.model.classifier.weight.detach().numpy().tobytes()
(here / f"weights{rank}").write_text(hashlib.sha256(weights).hexdigest())
"""


def python(*words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENT)


def words_of(folder: Path, topic_folder: Path, name: str, *more: str) -> list[str]:
    words = ["train", "--codebook", folder / "book", "--data", topic_folder, "--device", "cpu", "--json", *more]
    return [str(word) for word in (*words, "--steps", 40, "--batch-size", 20, "--out", folder / name)]


NO_DROPOUT = ("--dropout", "0", "--token-dropout", "0")


@pytest.fixture(scope="module")
def runs(codebook, topics, topic_folder, tmp_path_factory) -> Path:
    """A folder with what two processes made: `cut` is killed and resumed, `whole` is not, `two` is without dropout."""
    folder = tmp_path_factory.mktemp("processes")
    codebook.save(folder / "book")
    (folder / "killed.py").write_text(KILLED)
    (folder / "runs.py").write_text(RUNS)
    (folder / "rows.json").write_text(json.dumps([list(topics.texts), topics.labels.tolist(), topics.names]))

    assert python(*TORCHRUN, folder / "killed.py", *words_of(folder, topic_folder, "cut")).returncode != 0
    assert (folder / "cut" / LAST).exists()
    wanted = (("cut", "--resume"), ("whole",), ("two", *NO_DROPOUT))
    (folder / "runs.json").write_text(json.dumps([words_of(folder, topic_folder, *each) for each in wanted]))
    done = python(*ACCELERATE, folder / "runs.py", folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def steps_of(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / METRICS).read_text().splitlines()]


def test_two_processes_train_the_model_of_one(ade, runs, topic_folder, tmp_path):
    """They share each batch; without dropout they end where one process ends, up to rounding."""
    (tmp_path / "book").symlink_to(runs / "book")
    status, out, errors = ade(*words_of(tmp_path, topic_folder, "one", *NO_DROPOUT))
    assert status == 0, errors
    for folder in (tmp_path / "one", runs / "two"):
        steps = steps_of(folder)
        assert steps == list(range(2, steps[-1] + 1, 2))  # written by one of them
    one, two = json.loads(out), json.loads((runs / "two.printed0").read_text())  # one object each
    assert (runs / "two.printed1").read_text() == ""  # however many processes there are
    assert one["test"] == two["test"]
    assert one["test"]["n"] == 100

    one, two = (load_file(folder / "model.safetensors") for folder in (tmp_path / "one", runs / "two"))
    for name, tensor in one.items():
        kept = slice(None)
        if name == "pooler.bias":  # shifts every score alike: its gradient is rounding alone
            continue
        if name == "ade.sat.projection.bias":  # so does that of the keys, the middle third
            kept = torch.arange(len(tensor)) // (len(tensor) // 3) != 1
        torch.testing.assert_close(tensor[kept].double(), two[name][kept].double(), rtol=1e-2, atol=1e-3)
    assert any(not torch.equal(tensor, two[name]) for name, tensor in one.items())  # really summed in another order


def test_two_processes_go_on_after_a_kill(runs):
    assert steps_of(runs / "cut") == steps_of(runs / "whole")
    cut, whole = ((runs / name / "model.safetensors").read_bytes() for name in ("cut", "whole"))
    assert cut == whole


def test_the_first_process_decides_for_all_when_to_stop(runs):
    """Validation metrics fall in the second process: both end, at the same weights."""
    assert (runs / "weights0").read_text() == (runs / "weights1").read_text()
    assert json.loads((runs / "judged" / DONE).read_text())["steps"] == 40
