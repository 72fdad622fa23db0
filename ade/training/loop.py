"""Stage 3: train SAT, pooler and classifier (and the anchors) on labelled rows; one plain loop.

Dropout is seeded by (seed, step) and the order of rows by (seed, epoch), so a resumed run ends with the same weights
as one that was never interrupted.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
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
from ade.compression.coded_table import CodedTable
from ade.data.batches import shuffled_batches
from ade.data.conll import TaggedDataset
from ade.data.dataset import Dataset
from ade.data.problems import REGRESSION
from ade.devices import resolve_device
from ade.embedding import DENSE_ANCHORS, AnchorEmbedding, Dictionary
from ade.errors import InputError
from ade.model import AdeForSequenceClassification
from ade.pretrained import AdePreTrainedModel
from ade.progress import Report, silent
from ade.settings import STRONG, Architecture, TrainingSettings
from ade.training.checkpoints import Existing, RunFolder, claimed
from ade.training.move_pairs import PairMover, without_unused_anchors
from ade.training.schedule import check_labels, held_back, learning_rate, steps_of
from ade.training.step import TrainStep
from ade.training.tasks import TagTask, Task, TextTask, Trained

EVALUATIONS = 20  # validations per run
PATIENCE = 8  # validations without improvement before the run stops early


@dataclass
class _Progress:
    """The progress of a run, stored in its checkpoints."""

    step: int = 0  # steps done
    best: float = -math.inf  # best validation metric
    kept: float = -math.inf  # validation metric of the kept weights
    stale: int = 0  # validations since weights were kept
    metrics: dict[str, Any] = field(default_factory=dict)  # all validation metrics of the kept weights


@dataclass
class _Run:
    """A training run: its settings, model and rows, its progress, and the best weights so far."""

    settings: TrainingSettings
    accelerator: Accelerator
    task: Task
    model: AdePreTrainedModel
    train_step: TrainStep
    pair_mover: PairMover | None
    total: int  # number of steps
    progress: _Progress = field(default_factory=_Progress)
    kept_weights: dict[str, Tensor] = field(default_factory=dict)


@overload
def fit_model(
    codebook: Codebook | CodedTable,
    data: Dataset,
    dev: Dataset | None = None,
    settings: TrainingSettings = STRONG,
    architecture: Architecture | None = None,
    out: str | Path | None = None,
    existing: Existing = "refuse",
    report: Report = silent,
    start: Mapping[str, Tensor] | None = None,
) -> Classifier: ...
@overload
def fit_model(
    codebook: Codebook | CodedTable,
    data: TaggedDataset,
    dev: TaggedDataset | None = None,
    settings: TrainingSettings = STRONG,
    architecture: Architecture | None = None,
    out: str | Path | None = None,
    existing: Existing = "refuse",
    report: Report = silent,
    start: Mapping[str, Tensor] | None = None,
) -> Tagger: ...
def fit_model(
    codebook: Codebook | CodedTable,
    data: Dataset | TaggedDataset,
    dev: Dataset | TaggedDataset | None = None,
    settings: TrainingSettings = STRONG,
    architecture: Architecture | None = None,
    out: str | Path | None = None,
    existing: Existing = "refuse",
    report: Report = silent,
    start: Mapping[str, Tensor] | None = None,
) -> Classifier | Tagger:
    """Train a classifier on a codebook, or a tagger on tagged words; returns the model with the best validation metric.

    Without `dev`, a validation split is held back from the training rows. With `out`, checkpoints and the finished
    model are written to that folder; `existing` says what to do with an earlier run in it. `start` are initial weights,
    by parameter name.
    """
    check_labels(data)
    hold_back = dev is None
    if dev is None:
        if isinstance(data, Dataset) and data.targets is not None:
            raise InputError("rows with soft targets need a dev split that was held back before: give one")
        data, dev = held_back(data, settings.seed)  # type: ignore[type-var]
        check_labels(data)  # the rows that are left may have one class
    if data.problem != dev.problem or type(data) is not type(dev):
        raise InputError(f"the training rows are for {data.problem}, the dev rows for {dev.problem}")
    shape, validation = architecture or Architecture(), dev.relabelled(data.names)

    def task() -> TextTask | TagTask:
        if isinstance(data, TaggedDataset):
            assert isinstance(validation, TaggedDataset)
            return TagTask(codebook, data, validation, shape, report)
        assert isinstance(validation, Dataset)
        return TextTask(codebook, data, validation, shape, report, hold_back)

    return fit_task(task, codebook, settings, shape, out, existing, report, start)


def fit_task(
    make_task: Callable[[], Task],
    codebook: Codebook | CodedTable,
    settings: TrainingSettings,
    architecture: Architecture,
    out: str | Path | None = None,
    existing: Existing = "refuse",
    report: Report = silent,
    start: Mapping[str, Tensor] | None = None,
) -> Any:
    """Train a model of any kind on a codebook; arguments as of `fit_model`.

    The folder is claimed before the task is made, which takes time; of several processes the main one writes.
    """
    accelerator = make_accelerator(settings)
    writes = out is not None and accelerator.is_main_process
    with claimed(Path(out), existing) if out is not None and writes else nullcontext():
        run = _prepare(accelerator, make_task(), settings, start or {})
        if out is None:
            _loop(run, None, report)
            return _finish(run, report)
        return _train_in(RunFolder(Path(out), _identity(run, codebook, architecture)), existing, run, report)


def _train_in(folder: RunFolder, existing: Existing, run: _Run, report: Report) -> Trained:
    """Train with checkpoints in a folder, continuing from the last one, and write the finished model there."""
    main = run.accelerator.is_main_process
    if main:
        folder.begin(existing)
    run.accelerator.wait_for_everyone()
    if folder.finished:
        return run.task.kind.load(folder.folder, run.settings.device)

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


def make_accelerator(settings: TrainingSettings) -> Accelerator:
    """What runs training on the device of the settings, in bfloat16 where a GPU has it."""
    device = resolve_device(settings.device)
    bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if AcceleratorState._shared_state and AcceleratorState().distributed_type == DistributedType.NO:
        AcceleratorState._reset_state(
            reset_partial_state=True
        )  # an earlier run of this process may have used another device
    return Accelerator(
        mixed_precision="bf16" if bf16 else "no",
        cpu=device.type == "cpu",
        # Buffers do not change, and NCCL cannot broadcast their 16-bit integers.
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
    )


def _prepare(accelerator: Accelerator, task: Task, settings: TrainingSettings, start: Mapping[str, Tensor]) -> _Run:
    """Make the model and its optimizer, and move the rows to the device."""
    settings = task.fitted(settings)
    torch.manual_seed(settings.seed)
    model = task.make_model(settings)
    model.load_state_dict(start, strict=False)
    layer: Dictionary = model.base_model.embedding
    layer.choose_trained(settings.train_anchors, settings.train_weights)
    model.to(accelerator.device)

    pair_mover = _pair_mover(model, accelerator, settings)
    record = None if pair_mover is None else False  # a CUDA graph would not see that pairs have moved
    train_step = TrainStep(
        accelerator, model, settings.learning_rate, settings.weight_decay,
        task.texts.to(accelerator.device), task.labels.to(accelerator.device), record,
    )  # fmt: skip
    total = settings.steps or steps_of(settings, len(task.texts))
    return _Run(settings, accelerator, task, model, train_step, pair_mover, total)


def _pair_mover(model: AdePreTrainedModel, accelerator: Accelerator, settings: TrainingSettings) -> PairMover | None:
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
    return PairMover(layer)


def _batches(run: _Run) -> Iterator[np.ndarray]:
    """Row indices of each step, without end, from the step the run is at."""
    lengths, size = run.train_step.texts.lengths, run.settings.batch_size
    per_epoch = -(-len(lengths) // size)
    while True:
        epoch, done = divmod(run.progress.step, per_epoch)
        yield from shuffled_batches(lengths, size, run.settings.seed * 7919 + epoch)[done:]


def _loop(run: _Run, folder: RunFolder | None, report: Report) -> None:
    """Train, validate `EVALUATIONS` times and keep the best weights, until the steps are done or improvement stops."""
    progress, every = run.progress, max(1, run.total // EVALUATIONS)
    seen, began, sums = 0, time.perf_counter(), torch.zeros(2, device=run.accelerator.device)  # loss, correct
    metrics: dict[str, float] = {}
    for rows in _batches(run):
        if progress.step >= run.total or progress.stale >= PATIENCE:
            break
        seed = run.settings.seed * 1_000_003 + progress.step
        sums += run.train_step.step(rows, seed, learning_rate(progress.step, run.total, run.settings))
        seen += len(rows)
        progress.step += 1

        validation = progress.step % every == 0 or progress.step == run.total
        if progress.step % 20 == 0 or validation:
            loss, accuracy = (sums / seen).tolist()
            _check_finite(run, loss)
            metrics |= {"loss": loss, "rate": seen / (time.perf_counter() - began)}
            metrics |= {} if run.train_step.problem == REGRESSION else {"accuracy": accuracy}
            report("train", progress.step, run.total, metrics)
        if not validation:
            continue

        if run.pair_mover is not None and 2 * progress.step <= run.total:
            _move_pairs(run, run.pair_mover)
        metrics |= {"step": progress.step, f"dev_{run.task.metric}": _validate(run), "best": progress.best}
        if folder is not None:
            folder.log(metrics)
            folder.save(asdict(progress), _state(run), run.kept_weights if progress.stale == 0 else None)
        seen, began, sums = 0, time.perf_counter(), torch.zeros_like(sums)


def _finish(run: _Run, report: Report) -> Trained:
    """Load the kept weights and make a predictor of the model."""
    model = run.accelerator.unwrap_model(run.train_step.wrapped, keep_fp32_wrapper=False)
    model.load_state_dict(run.kept_weights, strict=False)
    model = model if run.pair_mover is None else without_unused_anchors(model)
    metrics = run.progress.metrics
    if model.eval().base_model.embedding.round_as_stored():
        metrics = run.task.validate(model)
    return run.task.predictor(model, run.settings, metrics, report)


def _check_finite(run: _Run, *numbers: float) -> None:
    """Raise an error if a number is not finite: the run has diverged."""
    if not all(map(math.isfinite, numbers)):
        raise InputError(
            f"training diverged: by step {run.progress.step} of {run.total} the loss or the weights are not finite; "
            f"try a lower learning rate than {run.settings.learning_rate:.2g}"
        )


def _move_pairs(run: _Run, pair_mover: PairMover) -> None:
    """Move pairs together with AdamW's moments of their weights."""
    moments = run.train_step.optimizer.state[pair_mover.layer.weights]
    pair_mover.move([moments[name] for name in ("exp_avg", "exp_avg_sq")])


def _validate(run: _Run) -> float:
    """Validate; returns the metric, and keeps the weights if it is within one standard error of the best.

    Differences below a standard error are noise, and later weights have seen a lower learning rate, so the last of the
    weights that are about as good as the best is kept.
    """
    _check_finite(run, *torch.stack([p.detach().float().sum() for _, p in _trained(run)]).tolist())
    metrics = run.task.validate(run.model)
    if run.accelerator.num_processes > 1:  # all must decide alike, or one would wait for the others
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
    """Buffers that assign pairs to tokens, if pairs move during training."""
    if run.pair_mover is None:
        return []
    return [(f"ade.embedding.{name}", getattr(run.pair_mover.layer, name)) for name in ("indices", "counts")]


def _state(run: _Run) -> dict[str, Tensor]:
    """Everything a step changes: the trained parameters and AdamW's moments."""
    state = {f"value.{name}": p.detach() for name, p in (*_trained(run), *_moved(run))}
    for name, parameter in _trained(run):
        state |= {f"{kind}.{name}": moment for kind, moment in run.train_step.optimizer.state[parameter].items()}
    return state


@torch.no_grad()
def _restore(run: _Run, folder: RunFolder) -> None:
    """Restore the last checkpoint of a folder, if there is one."""
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
        run.train_step.optimizer.state[parameter] = {
            kind: state[f"{kind}.{name}"].to(run.accelerator.device) for kind in ("step", "exp_avg", "exp_avg_sq")
        }


def chosen_values(settings: TrainingSettings, architecture: Architecture) -> dict[str, object]:
    """What was chosen for a run, less the device, which does not tell it from others."""
    return {name: value for name, value in asdict(settings).items() if name != "device"} | asdict(architecture)


def _identity(run: _Run, codebook: Codebook | CodedTable, architecture: Architecture) -> dict[str, object]:
    """Settings and hashes of data and codebook: two runs with the same identity are the same run."""
    digest = hashlib.sha256()
    for array in run.task.fingerprint():
        digest.update(np.ascontiguousarray(array).data)
    found = {"data": digest.hexdigest()[:16], "codebook": codebook.digest()}
    return {**chosen_values(run.settings, architecture), **found}
