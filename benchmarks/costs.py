"""What making a model costs: seconds of distillation and of training, as a user waits for them."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models

from ade.distillation import distill
from ade.progress import Report
from ade.settings import Architecture, DistillationSettings
from ade.teachers import Teacher
from ade.training.loop import train
from benchmarks.accuracy import Places, codebook_for, load_rows, training_of
from benchmarks.records import Run

REPEATS = 3


def run_distillation(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """A table of this shape, its rows drawn around as many centres as there are anchors; the values cost nothing."""
    shape = run.settings["shape"]
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(shape["anchors"], shape["dim"], generator=generator)
    chosen = torch.randint(shape["anchors"], (shape["vocabulary"],), generator=generator)
    table = centres[chosen] + torch.randn(shape["vocabulary"], shape["dim"], generator=generator)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(shape["vocabulary"])}, unk_token="w0"))
    settings = DistillationSettings(**run.settings["distillation"], device=places.device)
    began = time.perf_counter()
    codebook = distill(Teacher("random", table, tokenizer), settings, report=report)
    return {"seconds": time.perf_counter() - began, "cosine": codebook.about["cosine"]}, {}


def run_training(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """The strong preset for so many steps, tokenizing and looks at the dev split included: the median of three runs.

    A short run warms up, and still the first whole one is the slowest; all three are recorded.
    """
    settings = run.settings
    rows, _, about = load_rows(places, {"data": settings["data"], "rows": 0})
    codebook = codebook_for(places, settings["teacher"], settings["distillation"], report)
    preset, shape = (
        training_of(settings["training"], places.device),
        Architecture(attend=settings["attend"]),
    )
    train(codebook, rows.take(np.arange(0, len(rows), 20)), None, replace(preset, steps=50), shape)
    steps = 0

    def counted(what: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        nonlocal steps
        steps = done if what == "train" else steps
        report(what, done, total, figures)

    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        train(codebook, rows, None, preset, shape, report=counted)
        taken.append(time.perf_counter() - began)
    return {"seconds": statistics.median(taken), "each": taken, "steps": steps}, {"data": about}
