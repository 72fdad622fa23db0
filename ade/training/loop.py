"""Stage 3: train SAT, pooler and classifier (and the anchors) on labelled rows; one plain loop.

Every step draws its noise from (seed, step) and every epoch its order from (seed, epoch), so a resumed run
is the run that was interrupted.
"""

import hashlib
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, DistributedType
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast_object_list
from torch import Tensor

from ade.classifier import Classifier, Tagger
from ade.codebook import Codebook
from ade.data.batches import shuffled_batches
from ade.data.conll import TaggedDataset
from ade.data.dataset import Dataset
from ade.data.problems import REGRESSION
from ade.devices import resolve_device
from ade.embedding import DENSE_ANCHORS, AnchorEmbedding
from ade.errors import InputError
from ade.model import AdeForSequenceClassification, AdePreTrainedModel
from ade.progress import Report, silent
from ade.settings import STRONG, Architecture, TrainingSettings
from ade.training.checkpoints import Existing, RunFolder, claimed
from ade.training.move_pairs import Adapter, settled
from ade.training.schedule import check_answers, fitted, held_back, learning_rate, steps_of
from ade.training.step import Stepper
from ade.training.tasks import TagTask, Task, TextTask

EVALUATIONS = 20  # validations in a run
PATIENCE = 8  # validations without a better one before the run stops early


@dataclass
class _Progress:
    """Where a run stands: all of it is in a checkpoint."""

    step: int = 0  # steps done
    best: float = -math.inf  # the metric on validation rows, at its best
    kept: float = -math.inf  # the same, of the weights that are kept
    stale: int = 0  # validations since they were
    metrics: dict[str, Any] = field(default_factory=dict)  # all metrics of the kept weights


@dataclass
class _Run:
    """A run: what it works on, where it stands, and the best weights so far."""

    settings: TrainingSettings
    accelerator: Accelerator
    task: Task
    model: AdePreTrainedModel
    stepper: Stepper
    adapter: Adapter | None
    total: int  # steps in all
    progress: _Progress = field(default_factory=_Progress)
    kept_weights: dict[str, Tensor] = field(default_factory=dict)


@overload
def train(
    codebook: Codebook,
    data: Dataset,
    dev: Dataset | None = None,
    settings: TrainingSettings = STRONG,
    architecture: Architecture | None = None,
    out: str | Path | None = None,
    existing: Existing = "refuse",
    report: Report = silent,
) -> Classifier: ...
@overload
def train(
    codebook: Codebook,
    data: TaggedDataset,
    dev: TaggedDataset | None = None,
    settings: TrainingSettings = STRONG,
    architecture: Architecture | None = None,
    out: str | Path | None = None,
    existing: Existing = "refuse",
    report: Report = silent,
) -> Tagger: ...
def train(
    codebook: Codebook,
    data: Dataset | TaggedDataset,
    dev: Dataset | TaggedDataset | None = None,
    settings: TrainingSettings = STRONG,
    architecture: Architecture | None = None,
    out: str | Path | None = None,
    existing: Existing = "refuse",
    report: Report = silent,
) -> Classifier | Tagger:
    """Train a classifier, or on tagged words a tagger, on a codebook; it is returned as it was at its best on dev.

    Without `dev`, one is taken from the training rows. With `out`, checkpoints are kept in that folder and the
    finished model is written there; `existing` says what to do with an earlier run in it.
    """
    check_answers(data)
    if dev is None:
        if isinstance(data, Dataset) and data.targets is not None:
            raise InputError("taught rows need a dev split held back before they were taught: give one")
        data, dev = held_back(data, settings.seed)  # type: ignore[type-var]
        check_answers(data)  # what is left may be all alike
    if data.problem != dev.problem or type(data) is not type(dev):
        raise InputError(f"the training rows are for {data.problem}, the dev rows for {dev.problem}")
    architecture, accelerator = architecture or Architecture(), _accelerator(settings)
    dev = dev.relabelled(data.names)

    # Before anything takes time; of several processes the first one writes.
    writes = out is not None and accelerator.is_main_process
    with claimed(Path(out), existing) if out is not None and writes else nullcontext():
        if isinstance(data, TaggedDataset):
            assert isinstance(dev, TaggedDataset)
            task: Task = TagTask(codebook, data, dev, architecture, report)
        else:
            assert isinstance(dev, Dataset)
            task = TextTask(codebook, data, dev, architecture, report)
        run = _prepare(accelerator, task, settings)
        if out is None:
            _loop(run, None, report)
            return _finish(run, report)
        return _train_in(RunFolder(Path(out), _identity(run, codebook, architecture)), existing, run, report)


def _train_in(folder: RunFolder, existing: Existing, run: _Run, report: Report) -> Classifier | Tagger:
    """Train with checkpoints in a folder, from the one there is, and put the finished model there."""
    main = run.accelerator.is_main_process
    if main:
        folder.begin(existing)
    run.accelerator.wait_for_everyone()
    if folder.finished:
        kind = Tagger if isinstance(run.task, TagTask) else Classifier
        return kind.load(folder.folder, run.settings.device)

    _restore(run, folder)
    _loop(run, folder if main else None, report)
    predictor = _finish(run, report)
    if main:
        metric, about = run.task.metric, predictor.model.config.about
        result = {f"dev_{metric}": about["dev"][metric], "steps": run.progress.step}
        lexicon = {"lexicon": about["lexicon"]} if "lexicon" in about else {}
        folder.finish(predictor, {**result, **lexicon})
    run.accelerator.wait_for_everyone()
    return predictor


def _accelerator(settings: TrainingSettings) -> Accelerator:
    device = resolve_device(settings.device)
    narrow = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if AcceleratorState._shared_state and AcceleratorState().distributed_type == DistributedType.NO:
        AcceleratorState._reset_state(reset_partial_state=True)  # an earlier run of this process may have used another
    return Accelerator(
        mixed_precision="bf16" if narrow else "no",
        cpu=device.type == "cpu",
        # Buffers never change, and their two-byte integers cannot be broadcast.
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
    )


def _prepare(accelerator: Accelerator, task: Task, settings: TrainingSettings) -> _Run:
    """The model, its optimizer and the rows on the device."""
    settings = fitted(settings, task.data, float(task.texts.lengths.mean()))
    torch.manual_seed(settings.seed)
    model = task.make_model(settings)
    layer = model.ade.embedding
    layer.anchors.requires_grad_(settings.train_anchors)
    layer.weights.requires_grad_(settings.train_weights)
    model.to(accelerator.device)

    adapter = _adapter(model, accelerator, settings)
    record = None if adapter is None else False  # a recorded step would not see pairs move
    stepper = Stepper(
        accelerator, model, settings.learning_rate, settings.weight_decay,
        task.texts.to(accelerator.device), task.labels.to(accelerator.device), record,
    )  # fmt: skip
    total = settings.steps or steps_of(settings, len(task.texts))
    return _Run(settings, accelerator, task, model, stepper, adapter, total)


def _adapter(model: AdePreTrainedModel, accelerator: Accelerator, settings: TrainingSettings) -> Adapter | None:
    if not settings.adapt:
        return None
    if not isinstance(model, AdeForSequenceClassification):
        raise InputError("--adapt works for classifiers of texts, not for taggers")
    layer = model.ade.embedding
    if accelerator.num_processes > 1:
        raise InputError("--adapt works on one device; leave it out when several train together")
    if not settings.train_weights or len(layer.table()) > DENSE_ANCHORS or model.config.attend == "anchors":
        raise InputError(f"--adapt needs trained weights, up to {DENSE_ANCHORS:,} anchors, and not --attend anchors")
    assert isinstance(layer, AnchorEmbedding)
    return Adapter(layer)


def _batches(run: _Run) -> Iterator[np.ndarray]:
    """Row numbers of one step after another, from the step the run stands at."""
    lengths, size = run.stepper.texts.lengths, run.settings.batch_size
    per_epoch = -(-len(lengths) // size)
    while True:
        epoch, done = divmod(run.progress.step, per_epoch)
        yield from shuffled_batches(lengths, size, run.settings.seed * 7919 + epoch)[done:]


def _loop(run: _Run, folder: RunFolder | None, report: Report) -> None:
    """Step, validate now and then, keep what is best, until the steps are done or validation stays stale."""
    progress, every = run.progress, max(1, run.total // EVALUATIONS)
    seen, began, sums = 0, time.perf_counter(), torch.zeros(2, device=run.accelerator.device)  # loss, hits
    metrics: dict[str, float] = {}
    for rows in _batches(run):
        if progress.step >= run.total or progress.stale >= PATIENCE:
            break
        seed = run.settings.seed * 1_000_003 + progress.step
        sums += run.stepper.step(rows, seed, learning_rate(progress.step, run.total, run.settings))
        seen += len(rows)
        progress.step += 1

        validation = progress.step % every == 0 or progress.step == run.total
        if progress.step % 20 == 0 or validation:
            loss, hits = (sums / seen).tolist()
            _check_finite(run, loss)
            metrics |= {"loss": loss, "rate": seen / (time.perf_counter() - began)}
            metrics |= {} if run.stepper.problem == REGRESSION else {"accuracy": hits}
            report("train", progress.step, run.total, metrics)
        if not validation:
            continue

        if run.adapter is not None and 2 * progress.step <= run.total:
            _move_pairs(run, run.adapter)
        metrics |= {"step": progress.step, f"dev_{run.task.metric}": _validate(run), "best": progress.best}
        if folder is not None:
            folder.log(metrics)
            folder.save(asdict(progress), _state(run), run.kept_weights if progress.stale == 0 else None)
        seen, began, sums = 0, time.perf_counter(), torch.zeros_like(sums)


def _finish(run: _Run, report: Report) -> Classifier | Tagger:
    """The kept weights as a predictor."""
    model = run.accelerator.unwrap_model(run.stepper.wrapped, keep_fp32_wrapper=False)
    model.load_state_dict(run.kept_weights, strict=False)
    model = model if run.adapter is None else settled(model)
    return run.task.predictor(model.eval(), run.settings, run.progress.metrics, report)


def _check_finite(run: _Run, *numbers: float) -> None:
    """Stop a run that has diverged: a number of it is not finite."""
    if not all(map(math.isfinite, numbers)):
        raise InputError(
            f"training diverged: by step {run.progress.step} of {run.total} the loss or the weights are not finite "
            f"numbers; try a lower learning rate than {run.settings.learning_rate:.2g}"
        )


def _move_pairs(run: _Run, adapter: Adapter) -> None:
    """Move pairs, with the moments AdamW keeps for their weights."""
    moments = run.stepper.optimizer.state[adapter.layer.weights]
    adapter.move([moments[name] for name in ("exp_avg", "exp_avg_sq")])


def _validate(run: _Run) -> float:
    """The metric on the validation rows; the weights are kept unless an earlier validation was better beyond chance.

    A few rows more or less on a small split say nothing, and the rate falls towards 0, so of validations within one
    standard error of the best the last is the one to keep.
    """
    _check_finite(run, *torch.stack([p.detach().float().sum() for _, p in _trained(run)]).tolist())
    metrics = run.task.validate(run.model)
    if run.accelerator.num_processes > 1:  # all decide as the first process does, or one would wait for the others
        metrics = broadcast_object_list([metrics])[0]
    progress, metric = run.progress, float(metrics[run.task.metric])
    _check_finite(run, metric)
    progress.best = max(progress.best, metric)
    progress.stale += 1
    standard_error = (max(0.0, progress.best * (1 - progress.best)) / len(run.task.dev)) ** 0.5
    if metric >= progress.best - standard_error:
        progress.stale, progress.kept, progress.metrics = 0, metric, metrics
        run.kept_weights = {name: p.detach().clone() for name, p in (*_trained(run), *_moved(run))}
    return metric


def _trained(run: _Run) -> list[tuple[str, Tensor]]:
    return [(name, p) for name, p in run.model.named_parameters() if p.requires_grad]


def _moved(run: _Run) -> list[tuple[str, Tensor]]:
    """What says whose the pairs are, where they move."""
    if run.adapter is None:
        return []
    return [(f"ade.embedding.{name}", getattr(run.adapter.layer, name)) for name in ("indices", "counts")]


def _state(run: _Run) -> dict[str, Tensor]:
    """Everything a step changes: the trained parameters and AdamW's moments of them."""
    state = {f"value.{name}": p.detach() for name, p in (*_trained(run), *_moved(run))}
    for name, parameter in _trained(run):
        state |= {f"{kind}.{name}": moment for kind, moment in run.stepper.optimizer.state[parameter].items()}
    return state


@torch.no_grad()
def _restore(run: _Run, folder: RunFolder) -> None:
    """Take over the last checkpoint of a folder, where there is one."""
    loaded = folder.load()
    if run.accelerator.is_main_process:
        folder.forget_after(0 if loaded is None else loaded[0]["step"])
    if loaded is None:
        return
    progress, state, best = loaded
    run.progress = _Progress(**progress)
    run.kept_weights = {name: tensor.to(run.accelerator.device) for name, tensor in best.items()}
    for name, buffer in _moved(run):
        buffer.copy_(state[f"value.{name}"])
    for name, parameter in _trained(run):
        parameter.copy_(state[f"value.{name}"])
        run.stepper.optimizer.state[parameter] = {
            kind: state[f"{kind}.{name}"].to(run.accelerator.device) for kind in ("step", "exp_avg", "exp_avg_sq")
        }


def _identity(run: _Run, codebook: Codebook, architecture: Architecture) -> dict[str, object]:
    """What makes two runs the same run."""
    digest = hashlib.sha256()
    for array in run.task.fingerprint():
        digest.update(np.ascontiguousarray(array).tobytes())
    settings = {name: value for name, value in asdict(run.settings).items() if name != "device"}
    codes = hashlib.sha256(codebook.weights.numpy().tobytes() + codebook.anchors.numpy().tobytes())
    return {**settings, **asdict(architecture), "data": digest.hexdigest()[:16], "codebook": codes.hexdigest()[:16]}
