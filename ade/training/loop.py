"""Stage 3: train SAT, pooler and classifier (and the anchors) on labelled texts; one plain loop.

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
from tokenizers import Tokenizer
from torch import Tensor

from ade.classifier import Classifier, Tagger, predict_logits
from ade.codebook import Codebook
from ade.data.batches import Encoded, encode, shuffled_batches
from ade.data.conll import TaggedDataset, encode_tagged
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION
from ade.devices import resolve_device
from ade.embedding import DENSE_ANCHORS, AnchorEmbedding
from ade.errors import InputError
from ade.evaluation import KINDS, AnyEvaluation, TagEvaluation, evaluate_tagger, judged
from ade.model import AdeForSequenceClassification, AdeForTokenClassification
from ade.progress import Report, silent
from ade.settings import STRONG, Architecture, TrainingSettings
from ade.training.checkpoints import Existing, RunFolder, claimed
from ade.training.move_pairs import Adapter, settled
from ade.training.schedule import check_answers, class_weights, fitted, held_back, learning_rate, steps_of
from ade.training.step import Stepper

EVALUATIONS = 20  # looks at the dev split in a run
PATIENCE = 8  # looks without a better one before the run stops early


@dataclass
class _Run:
    """A run between two steps: what it works on, and where it stands."""

    settings: TrainingSettings
    accelerator: Accelerator
    predictor: Classifier | Tagger
    stepper: Stepper
    adapter: Adapter | None
    dev: Dataset | TaggedDataset
    dev_texts: Encoded  # of a tagger none: it reads the sentences itself
    figure: str  # what it is steered by
    scale: tuple[float, float]  # numbers to learn have mean 0 and deviation 1: what they had
    total: int  # steps in all
    step: int = 0  # steps done
    best: float = -math.inf  # on dev: accuracy, or the figure that stands for it
    kept: float = -math.inf  # the same of the weights that are kept
    stale: int = 0  # looks at dev since they were
    kept_weights: dict[str, Tensor] = field(default_factory=dict)
    kept_figures: dict[str, Any] = field(default_factory=dict)  # all of them


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
    if out is None:
        run = _prepare(accelerator, codebook, data, dev.relabelled(data.names), settings, architecture, report)
        _loop(run, None, report)
        return run.predictor
    # Before anything takes time; of several processes the first one writes.
    with claimed(Path(out), existing) if accelerator.is_main_process else nullcontext():
        run = _prepare(accelerator, codebook, data, dev.relabelled(data.names), settings, architecture, report)
        return _train_in(RunFolder(Path(out), _identity(run, codebook, architecture)), existing, run, report)


def _train_in(folder: RunFolder, existing: Existing, run: _Run, report: Report) -> Classifier | Tagger:
    """Train with checkpoints in a folder, from the one there is, and put the finished model there."""
    main = run.accelerator.is_main_process
    if main:
        folder.begin(existing)
    run.accelerator.wait_for_everyone()
    if folder.finished:
        return type(run.predictor).load(folder.folder, run.settings.device)

    _restore(run, folder)
    _loop(run, folder if main else None, report)
    if main:
        folder.finish(run.predictor, {f"dev_{run.figure}": run.kept, "steps": run.step})
    run.accelerator.wait_for_everyone()
    return run.predictor


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


def _prepare(
    accelerator: Accelerator,
    codebook: Codebook,
    data: Dataset | TaggedDataset,
    dev: Dataset | TaggedDataset,
    settings: TrainingSettings,
    architecture: Architecture,
    report: Report,
) -> _Run:
    texts, labels, scale = _encoded(codebook.tokenizer, data, architecture.max_tokens, report)
    settings = fitted(settings, data, float(texts.lengths.mean()))
    torch.manual_seed(settings.seed)
    more = {name: getattr(settings, name) for name in ("dropout", "token_dropout", "position_scale")}
    more |= {"class_weights": class_weights(data, settings), "about": _about(codebook, data)}
    if isinstance(data, TaggedDataset) or isinstance(dev, TaggedDataset):
        tagger = AdeForTokenClassification.from_codebook(codebook, data.names, architecture, **more)
        predictor: Classifier | Tagger = Tagger(tagger, codebook.tokenizer)
        dev_texts = Encoded(torch.empty(0), np.zeros(1))
    else:
        more["problem_type"] = data.problem
        model = AdeForSequenceClassification.from_codebook(codebook, data.names, architecture, **more)
        predictor = Classifier(model, codebook.tokenizer)
        dev_texts = encode(codebook.tokenizer, dev.texts, architecture.max_tokens).to(accelerator.device)
    layer = predictor.model.ade.embedding
    layer.anchors.requires_grad_(settings.train_anchors)
    layer.weights.requires_grad_(settings.train_weights)
    predictor.model.to(accelerator.device)
    adapter = _adapter(predictor.model, accelerator, settings)
    record = None if adapter is None else False  # a recorded step would not see pairs move
    stepper = Stepper(
        accelerator, predictor.model, settings.learning_rate, settings.weight_decay,
        texts.to(accelerator.device), labels.to(accelerator.device), record,
    )  # fmt: skip
    total = settings.steps or steps_of(settings, len(texts))
    figure = TagEvaluation.best_by if isinstance(dev, TaggedDataset) else KINDS[dev.problem].best_by
    return _Run(settings, accelerator, predictor, stepper, adapter, dev, dev_texts, figure, scale, total)


def _about(codebook: Codebook, data: Dataset | TaggedDataset) -> dict[str, object]:
    """What the model card says of where the model comes from."""
    known = {name: codebook.about.get(name) for name in ("teacher", "license", "cosine")}
    return {name: value for name, value in {**known, "data": data.name, "rows": len(data)}.items() if value}


def _encoded(
    tokenizer: Tokenizer, data: Dataset | TaggedDataset, max_tokens: int, report: Report
) -> tuple[Encoded, Tensor | Encoded, tuple[float, float]]:
    """Token ids, what is to be learned of them, and mean and deviation of numbers."""
    if isinstance(data, TaggedDataset):
        return *encode_tagged(tokenizer, data, max_tokens, report), (0.0, 1.0)
    texts = encode(tokenizer, data.texts, max_tokens, report)
    if data.problem == REGRESSION:
        mean, deviation = float(data.labels.mean()), float(data.labels.std())
        return texts, torch.from_numpy((data.labels - mean) / deviation).float(), (mean, deviation)
    wanted = data.labels if data.targets is None else data.targets
    return texts, torch.from_numpy(wanted.astype(np.float32) if data.problem == MULTI else wanted), (0.0, 1.0)


def _adapter(
    model: AdeForSequenceClassification | AdeForTokenClassification,
    accelerator: Accelerator,
    settings: TrainingSettings,
) -> Adapter | None:
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
    per_epoch = -(-len(run.stepper.texts) // run.settings.batch_size)
    while True:
        epoch, done = divmod(run.step, per_epoch)
        yield from shuffled_batches(
            run.stepper.texts.lengths, run.settings.batch_size, run.settings.seed * 7919 + epoch
        )[done:]


def _loop(run: _Run, folder: RunFolder | None, report: Report) -> None:
    every = max(1, run.total // EVALUATIONS)
    seen, began, sums = 0, time.perf_counter(), torch.zeros(2, device=run.accelerator.device)  # loss, hits
    figures: dict[str, float] = {}
    for rows in _batches(run):
        if run.step >= run.total or run.stale >= PATIENCE:
            break
        seed = run.settings.seed * 1_000_003 + run.step
        sums += run.stepper.step(rows, seed, learning_rate(run.step, run.total, run.settings))
        seen += len(rows)
        run.step += 1
        look = run.step % every == 0 or run.step == run.total
        if run.step % 20 == 0 or look:
            loss, hits = (sums / seen).tolist()
            _check_finite(run, loss)
            figures |= {"loss": loss, "rate": seen / (time.perf_counter() - began)}
            figures |= {} if run.stepper.problem == REGRESSION else {"accuracy": hits}
            report("train", run.step, run.total, figures)
        if look and run.adapter is not None and 2 * run.step <= run.total:
            _move(run, run.adapter)
        if look:
            figures |= {"step": run.step, f"dev_{run.figure}": _look(run), "best": run.best}
            if folder is not None:
                folder.log(figures)
                folder.save(_progress(run), _state(run), run.kept_weights if run.stale == 0 else None)
            seen, began, sums = 0, time.perf_counter(), torch.zeros_like(sums)
    model = run.accelerator.unwrap_model(run.stepper.wrapped, keep_fp32_wrapper=False)
    model.load_state_dict(run.kept_weights, strict=False)
    model = model if run.adapter is None else settled(model)
    if run.stepper.problem == REGRESSION:
        model.config.scale = list(run.scale)
    model.config.about["dev"] = run.kept_figures
    run.predictor = type(run.predictor)(model.packed(), run.predictor.tokenizer)


def _check_finite(run: _Run, *numbers: float) -> None:
    """Stop a run that has diverged: a number of it is not finite."""
    if not all(map(math.isfinite, numbers)):
        raise InputError(
            f"training diverged: by step {run.step} of {run.total} the loss or the weights are not finite numbers; "
            f"try a lower learning rate than {run.settings.learning_rate:.2g}"
        )


def _move(run: _Run, adapter: Adapter) -> None:
    """Move pairs, with the moments AdamW keeps for their weights."""
    moments = run.stepper.optimizer.state[adapter.layer.weights]
    adapter.move([moments[name] for name in ("exp_avg", "exp_avg_sq")])


def _judged(run: _Run) -> AnyEvaluation | TagEvaluation:
    if isinstance(run.predictor, Tagger):
        assert isinstance(run.dev, TaggedDataset)
        return evaluate_tagger(run.predictor, run.dev)
    assert isinstance(run.dev, Dataset)
    mean, deviation = run.scale
    return judged(run.dev, predict_logits(run.predictor.model, run.dev_texts) * deviation + mean, run.dev.names)


def _look(run: _Run) -> float:
    """The figure on the dev split; the weights are kept unless an earlier look was better beyond chance.

    A few rows more or less on a small split say nothing, and the rate falls towards 0, so of looks within one
    standard error of the best the last is the one to keep.
    """
    _check_finite(run, *torch.stack([p.detach().float().sum() for _, p in _trained(run)]).tolist())
    found = _judged(run).as_dict()
    if run.accelerator.num_processes > 1:  # all decide as the first process does, or one would wait for the others
        found = broadcast_object_list([found])[0]
    figure = float(found[run.figure])
    _check_finite(run, figure)
    run.best = max(run.best, figure)
    run.stale += 1
    if figure >= run.best - (max(0.0, run.best * (1 - run.best)) / len(run.dev)) ** 0.5:
        run.stale, run.kept, run.kept_figures = 0, figure, found
        run.kept_weights = {name: p.detach().clone() for name, p in (*_trained(run), *_moved(run))}
    return figure


def _trained(run: _Run) -> list[tuple[str, Tensor]]:
    return [(name, p) for name, p in run.predictor.model.named_parameters() if p.requires_grad]


def _moved(run: _Run) -> list[tuple[str, Tensor]]:
    """What says whose the pairs are, where they move."""
    if run.adapter is None:
        return []
    return [(f"ade.embedding.{name}", getattr(run.adapter.layer, name)) for name in ("indices", "counts")]


def _progress(run: _Run) -> dict[str, Any]:
    return {"step": run.step, "best": run.best, "kept": run.kept, "stale": run.stale, "metrics": run.kept_figures}


def _state(run: _Run) -> dict[str, Tensor]:
    """Everything a step changes: the trained parameters and AdamW's moments of them."""
    state = {f"value.{name}": p.detach() for name, p in (*_trained(run), *_moved(run))}
    for name, parameter in _trained(run):
        state |= {f"{kind}.{name}": moment for kind, moment in run.stepper.optimizer.state[parameter].items()}
    return state


@torch.no_grad()
def _restore(run: _Run, folder: RunFolder) -> None:
    loaded = folder.load()
    if run.accelerator.is_main_process:
        folder.forget_after(0 if loaded is None else loaded[0]["step"])
    if loaded is None:
        return
    progress, state, best = loaded
    run.step, run.best, run.kept, run.stale, run.kept_figures = (
        progress[name] for name in ("step", "best", "kept", "stale", "metrics")
    )
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
    digest, labels = hashlib.sha256(), run.stepper.labels
    for array in (
        run.stepper.texts.ids.cpu().numpy(),
        (labels.ids if isinstance(labels, Encoded) else labels).cpu().numpy(),
        run.dev_texts.ids.cpu().numpy(),
        np.array([name.encode() for name in run.dev.names]),
        np.array(["\n".join(words).encode() for words in getattr(run.dev, "sentences", ())]),
        run.dev.labels if isinstance(run.dev, Dataset) else np.concatenate(run.dev.tags),
    ):
        digest.update(np.ascontiguousarray(array).tobytes())
    settings = {name: value for name, value in asdict(run.settings).items() if name != "device"}
    codes = hashlib.sha256(codebook.weights.numpy().tobytes() + codebook.anchors.numpy().tobytes())
    return {
        **settings,
        **asdict(architecture),
        "data": digest.hexdigest()[:16],
        "codebook": codes.hexdigest()[:16],
    }
