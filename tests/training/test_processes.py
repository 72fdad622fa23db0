"""Several processes: transformers' Trainer trains the model, as docs/training.md shows."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

import ade
from ade.data.problems import SINGLE
from tests.conftest import PATIENT, topic_texts, untrained

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
HERE = 'use_cpu=True, ddp_backend="gloo", disable_tqdm=True, report_to="none", num_train_epochs=10'


def trained(folder: Path, processes: int) -> dict[str, torch.Tensor]:
    """Run the page's code in one process or several, with 16 rows a step in all; nothing is drawn at random."""
    (code,) = re.findall(r"```python\n(# several.py\n.*?)```", PAGE.read_text("utf8"), re.DOTALL)
    code = (
        code.replace("num_train_epochs=8", HERE).replace("warmup_steps=100", "warmup_steps=2").replace("7e-4", "1e-2")
    )
    code = code.replace("batch_size=32", f"batch_size={16 // processes}")
    (folder / "several.py").write_text(code)
    # Processes of the launcher meet on this machine alone.
    environment = {**os.environ, "PYTHONPATH": str(Path(ade.__file__).parents[1]), "HF_HOME": str(folder / "hub")}
    command = [sys.executable, *TORCHRUN, str(processes), "several.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=PATIENT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(folder / "model" / "model.safetensors")


def test_trainer_trains_in_two_processes_what_it_trains_in_one(codebook, tmp_path):
    texts, topics = topic_texts(96, 0)
    start = untrained(codebook, sorted(set(topics)), problem=SINGLE, heads=2)
    weights = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        with open(folder / "reviews.csv", "w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *zip(texts, topics, strict=True)])
        start.save(folder / "start")
        weights.append(trained(folder, processes))

    one, two = weights
    assert not torch.allclose(torch.from_numpy(start.layers["head.weight"]), one["head.weight"], atol=1e-3)
    for name in ("head.weight", "ade.embedding.anchors"):
        torch.testing.assert_close(one[name], two[name], rtol=1e-2, atol=1e-3)
    predicted = ade.load(tmp_path / "2" / "model").predict(texts)
    assert sum(each.label == topic for each, topic in zip(predicted, topics, strict=True)) > 80
