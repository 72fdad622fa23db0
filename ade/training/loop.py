"""Stage 3: train SAT, pooler and classifier (and the anchors) on labelled rows; one plain loop.

Dropout is seeded by (seed, step) and the order of rows by (seed, epoch), so a resumed run ends with the same weights
as one that was never interrupted.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ade.data.batches import DeviceTokens, shuffled_batches
from ade.data.dataset import Dataset
from ade.data.tags import TaggedDataset
from ade.data.tokens import Ragged
from ade.devices import resolve_device
from ade.errors import InputError
from ade.folder import Saved
from ade.model import model_of
from ade.progress import Report, silent
from ade.settings import STRONG, Architecture, TrainingSettings
from ade.training.checkpoints import Existing, RunFolder, claimed, identity_of
from ade.training.schedule import check_labels, fit_to_data, learning_rate, steps_of, validation_split
from ade.training.start import config_for, untrained
from ade.training.step import TrainStep
from ade.training.tasks import TagTask, Task, TextTask

EVALUATIONS = 20  # validations per run
PATIENCE = 8  # validations without improvement before the run stops early
REPORTED = 20  # steps between two reports of progress


class SecondPhase(Protocol):
    """A second phase of training, on another table than the first."""

    settings: TrainingSettings

    def start(self, trained: Saved, report: Report) -> Saved:
        """Return what the second phase starts from, after the model of the first."""


def fit_model(
    start: Saved,
    data: Dataset | TaggedDataset,
    dev: Dataset | TaggedDataset | None = None,
    settings: TrainingSettings = STRONG,
    architecture: Architecture | None = None,
    out: str | Path | None = None,
    existing: Existing = "refuse",
    report: Report = silent,
    instead: Callable[[], Saved] | None = None,
) -> Saved:
    """Train a classifier, or a tagger on tagged words; returns the model with the best validation metric.

    It starts from a codebook, an encoder, or a classifier with the same labels. `instead` makes what is returned where
    training a classifier further did not improve it. Without `dev`, a validation split is taken from the training
    rows. With `out`, checkpoints and the finished model are written to that folder; `existing` says what to do with an
    earlier run in it.
    """
    check_labels(data)
    dev_from_training = dev is None
    if dev is None:
        data, dev = validation_split(data, settings.seed)  # type: ignore[type-var]
        check_labels(data)  # the rows that are left may have one class
    if data.problem != dev.problem or type(data) is not type(dev):
        raise InputError(f"the training rows are for {data.problem}, the dev rows for {dev.problem}")
    shape, dev = architecture or Architecture(), dev.relabelled(data.names)

    with claimed(out, existing):
        task: TagTask | TextTask
        if isinstance(data, TaggedDataset):
            assert isinstance(dev, TaggedDataset)
            task = TagTask(start, data, dev, shape.max_tokens, report)
        else:
            assert isinstance(dev, Dataset)
            task = TextTask(start, data, dev, shape.max_tokens, report, dev_from_training, instead)
        mean_length = float(np.minimum(task.texts.lengths, shape.max_tokens).mean())
        settings = fit_to_data(settings, data, mean_length)
        model = untrained(start, config_for(start, data, shape, settings), settings.seed)
        return fit_task(task, model, settings, out, existing, report)


def fit_task(
    task: Task,
    start: Saved,
    settings: TrainingSettings,
    out: str | Path | None = None,
    existing: Existing = "refuse",
    report: Report = silent,
    second: SecondPhase | None = None,
) -> Saved:
    """Train a model of any kind, in two phases where there is a second one.

    Checkpoints are written to the folder `out`, which the caller has claimed; a run continues from the last one.
    """
    run, folder = _Run(task, settings, start), None
    if out is not None:
        folder = RunFolder(Path(out), identity_of(settings, start, task.fingerprint()), existing)
        if folder.finished:
            return Saved.read(out)

    if second is not None:

        def trained_before() -> Saved:
            run.train(folder, report, "rows")
            return second.start(run.best_model(), report)

        start = trained_before().rounded() if folder is None else folder.second_start(trained_before)
        run = _Run(task, second.settings, start)

    run.train(folder, report)
    saved = task.finish(run.best_model(), run.settings, report)
    if folder is not None:
        folder.finish(saved, run.progress.step, run.progress.validations)
    return saved


@dataclass
class _Progress:
    """The progress of a run, stored in its checkpoints."""

    step: int = 0  # steps done
    best: float = -math.inf  # best validation metric
    stale: int = 0  # validations since weights were kept
    validations: list[dict[str, float]] = field(default_factory=list)  # metrics of each, with its step


class _Run:
    """A training run: model, optimizer and rows, its progress, and the best weights so far."""

    def __init__(self, task: Task, settings: TrainingSettings, start: Saved) -> None:
        """Make the model and its optimizer, and move the rows to the device."""
        self.task, self.settings, self.progress = task, settings, _Progress()
        self.model = model_of(start)
        table = self.model.base_model.embedding
        for name, values in table.named_parameters():  # the books of a coded table are trained as anchors are
            values.requires_grad_(settings.train_weights if name == "weights" else settings.train_anchors)
        device = resolve_device(settings.device)
        self.model.to(device)
        self.trained = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        self.kept_weights: dict[str, Tensor] = {}

        texts, labels = DeviceTokens(task.texts, device, start.config.max_tokens), task.labels
        on_device = DeviceTokens(labels, device) if isinstance(labels, Ragged) else labels.to(device)
        self.train_step = TrainStep(self.model, settings.weight_decay, texts, on_device)
        self.total = settings.steps or steps_of(settings, len(task.texts))  # number of steps

    def train(self, folder: RunFolder | None, report: Report, stage: str = "train") -> None:
        """Train, validate `EVALUATIONS` times and keep the best weights, until no step or no improvement is left."""
        if folder is not None:
            self._restore(folder)
        progress, every = self.progress, max(1, self.total // EVALUATIONS)
        seen, began, losses = 0, time.perf_counter(), torch.zeros((), device=self.model.device)
        metrics: dict[str, float] = {}
        for rows in self._batches():
            if progress.step >= self.total or progress.stale >= PATIENCE:
                break
            seed = self.settings.seed * 1_000_003 + progress.step
            losses += self.train_step.step(rows, seed, learning_rate(progress.step, self.total, self.settings))
            seen += len(rows)
            progress.step += 1

            validates = progress.step % every == 0 or progress.step == self.total
            if progress.step % REPORTED == 0 or validates:
                metrics["loss"] = losses.item() / seen
                self._check_finite(metrics["loss"])
                report(stage, progress.step, self.total, {**metrics, "rate": seen / (time.perf_counter() - began)})
            if validates:
                metrics |= {f"dev_{self.task.metric}": self._validate(), "best": progress.best}
                progress.validations.append({"step": progress.step, **metrics})
                if folder is not None:
                    folder.save(asdict(progress), self._state())
                seen, began, losses = 0, time.perf_counter(), torch.zeros_like(losses)

    def best_model(self) -> Saved:
        """Return the model with the kept weights."""
        self.model.load_state_dict(self.kept_weights, strict=False)
        return self.model.to_saved()

    def _batches(self) -> Iterator[np.ndarray]:
        """Row indices of each step, without end, from the step the run is at."""
        lengths, size = self.train_step.texts.lengths, self.settings.batch_size
        per_epoch = -(-len(lengths) // size)
        while True:
            epoch, done = divmod(self.progress.step, per_epoch)
            yield from shuffled_batches(lengths, size, self.settings.seed * 7919 + epoch)[done:]

    def _check_finite(self, *numbers: float) -> None:
        """Raise an error if a number is not finite: the run has diverged."""
        if not all(map(math.isfinite, numbers)):
            raise InputError(
                f"training diverged: by step {self.progress.step} of {self.total} the loss or the weights are not "
                f"finite; try a lower learning rate than {self.settings.learning_rate:.2g}"
            )

    def _validate(self) -> float:
        """Validate; returns the metric, and keeps the weights if it is within one standard error of the best.

        Differences below a standard error are noise, and later weights have seen a lower learning rate, so the last of
        the weights that are about as good as the best is kept.
        """
        self._check_finite(*torch.stack([each.detach().float().sum() for each in self.trained.values()]).tolist())
        progress, metric = self.progress, float(self.task.validate(self.model)[self.task.metric])
        self._check_finite(metric)
        progress.best = max(progress.best, metric)
        progress.stale += 1
        standard_error = (max(0.0, progress.best * (1 - progress.best)) / len(self.task.dev_texts)) ** 0.5
        if metric >= progress.best - standard_error:
            progress.stale = 0
            self.kept_weights = {name: each.detach().clone() for name, each in self.trained.items()}
        return metric

    def _state(self) -> dict[str, Tensor]:
        """The kept weights, and everything a step changes: the trained parameters and AdamW's moments."""
        state = {f"kept.{name}": weights for name, weights in self.kept_weights.items()}
        for name, parameter in self.trained.items():
            state[f"value.{name}"] = parameter.detach()
            state |= {f"{kind}.{name}": moment for kind, moment in self.train_step.optimizer.state[parameter].items()}
        return state

    @torch.no_grad()
    def _restore(self, folder: RunFolder) -> None:
        """Restore the last checkpoint of a folder, if there is one."""
        loaded = folder.load()
        if loaded is None:
            return
        self.progress, state = _Progress(**loaded[0]), loaded[1]
        for name, parameter in self.trained.items():
            parameter.copy_(state[f"value.{name}"])
            self.kept_weights[name] = state[f"kept.{name}"].to(self.model.device)
            self.train_step.optimizer.state[parameter] = {
                kind: state[f"{kind}.{name}"].to(self.model.device) for kind in ("step", "exp_avg", "exp_avg_sq")
            }
