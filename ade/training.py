"""Stage 3: train SAT, pooler and classifier (and the anchors) on labelled texts; one plain loop.

Every step draws its noise from (seed, step) and every epoch its order from (seed, epoch), so a resumed run
is the run that was interrupted.
"""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, DistributedType
from accelerate.state import AcceleratorState
from torch import Tensor

from ade.adapting import Adapter, settled
from ade.batching import Encoded, encode, shuffled_batches
from ade.checkpoints import Existing, RunFolder, check_run_folder
from ade.codebook import Codebook
from ade.data import Dataset
from ade.embedding import DENSE_ANCHORS, AnchorEmbedding
from ade.errors import InputError
from ade.inference import Classifier, predict_logits
from ade.model import AdeForSequenceClassification
from ade.progress import Report, silent
from ade.pursuit import resolve_device
from ade.settings import STRONG, Architecture, TrainingSettings
from ade.stepping import Stepper

EVALUATIONS = 20  # looks at the dev split in a run
PATIENCE = 8  # looks without a better one before the run stops early
MOST_FOR_CLASSES = 5.0  # times the rate, however many classes
DEV_SHARE, DEV_ROWS = 0.05, 2000  # what is held back from train where no dev split is given


@dataclass
class _Run:
    """A run between two steps: what it works on, and where it stands."""

    settings: TrainingSettings
    accelerator: Accelerator
    classifier: Classifier
    stepper: Stepper
    adapter: Adapter | None
    dev_texts: Encoded
    dev_labels: np.ndarray
    total: int  # steps in all
    step: int = 0  # steps done
    best: float = 0.0  # accuracy on dev
    kept: float = 0.0  # accuracy on dev of the weights that are kept
    stale: int = 0  # looks at dev since they were
    kept_weights: dict[str, Tensor] = field(default_factory=dict)


def train(
    codebook: Codebook,
    data: Dataset,
    dev: Dataset | None = None,
    settings: TrainingSettings = STRONG,
    architecture: Architecture | None = None,
    out: str | Path | None = None,
    existing: Existing = "refuse",
    report: Report = silent,
) -> Classifier:
    """Train a classifier on a codebook and return it as it was at its best on the dev split.

    Without `dev`, one is taken from the training rows. With `out`, checkpoints are kept in that folder and the
    finished model is written there; `existing` says what to do with an earlier run in it.
    """
    if len(np.unique(data.labels)) < 2:
        raise InputError(f"training needs at least two classes, the data has {len(np.unique(data.labels))}")
    if dev is None:
        if data.targets is not None:
            raise InputError("taught rows need a dev split held back before they were taught: give one")
        data, dev = held_back(data, settings.seed)
    architecture = architecture or Architecture()
    if out is None:
        run = _prepare(codebook, data, dev.relabelled(data.names), settings, architecture, report)
        _loop(run, None, report)
        return run.classifier
    check_run_folder(Path(out), existing)  # before anything takes time
    run = _prepare(codebook, data, dev.relabelled(data.names), settings, architecture, report)
    folder = RunFolder(Path(out), _identity(run, codebook, architecture))
    if run.accelerator.is_main_process:
        folder.begin(existing)
    run.accelerator.wait_for_everyone()
    if folder.finished:
        return Classifier.load(out, settings.device)
    _restore(run, folder)
    _loop(run, folder if run.accelerator.is_main_process else None, report)
    if run.accelerator.is_main_process:
        folder.finish(run.classifier, {"dev_accuracy": run.kept, "steps": run.step})
    run.accelerator.wait_for_everyone()
    return run.classifier


def held_back(data: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    """The rows to train on, and a dev split taken from them."""
    rest, dev = data.split(min(DEV_SHARE, DEV_ROWS / len(data)), seed)
    if len(dev) == 0:
        raise InputError("no class has two rows, so no dev split can be held back; give one or more rows")
    return rest, dev


def _prepare(
    codebook: Codebook,
    data: Dataset,
    dev: Dataset,
    settings: TrainingSettings,
    architecture: Architecture,
    report: Report,
) -> _Run:
    device = resolve_device(settings.device)
    narrow = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if AcceleratorState._shared_state and AcceleratorState().distributed_type == DistributedType.NO:
        AcceleratorState._reset_state(reset_partial_state=True)  # an earlier run of this process may have used another
    accelerator = Accelerator(
        mixed_precision="bf16" if narrow else "no",
        cpu=device.type == "cpu",
        # Buffers never change, and their two-byte integers cannot be broadcast.
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
    )
    texts = encode(codebook.tokenizer, data.texts, architecture.max_tokens, report)
    settings = fitted(settings, data, float(texts.lengths.mean()))
    torch.manual_seed(settings.seed)
    noise = {name: getattr(settings, name) for name in ("dropout", "token_dropout", "position_scale")}
    model = AdeForSequenceClassification.from_codebook(codebook, data.names, architecture, **noise)
    model.ade.embedding.anchors.requires_grad_(settings.train_anchors)
    model.ade.embedding.weights.requires_grad_(settings.train_weights)
    model.to(accelerator.device)
    labels = torch.from_numpy(data.labels if data.targets is None else data.targets).to(accelerator.device)
    resident = texts.to(accelerator.device)
    adapter = _adapter(model, accelerator, settings)
    record = None if adapter is None else False  # a recorded step would not see pairs move
    stepper = Stepper(accelerator, model, settings.learning_rate, settings.weight_decay, resident, labels, record)
    return _Run(
        settings, accelerator, Classifier(model, codebook.tokenizer), stepper, adapter,
        encode(codebook.tokenizer, dev.texts, architecture.max_tokens).to(accelerator.device), dev.labels,
        total=settings.steps or steps_of(settings, len(texts)),
    )  # fmt: skip


def _adapter(
    model: AdeForSequenceClassification, accelerator: Accelerator, settings: TrainingSettings
) -> Adapter | None:
    if not settings.adapt:
        return None
    layer = model.ade.embedding
    if accelerator.num_processes > 1:
        raise InputError("--adapt works on one device; leave it out when several train together")
    if not settings.train_weights or len(layer.table()) > DENSE_ANCHORS or model.config.attend == "anchors":
        raise InputError(f"--adapt needs trained weights, up to {DENSE_ANCHORS:,} anchors, and not --attend anchors")
    assert isinstance(layer, AnchorEmbedding)
    return Adapter(layer)


def fitted(settings: TrainingSettings, data: Dataset, mean_length: float) -> TrainingSettings:
    """The settings fitted to a data set.

    Many classes bear a higher rate, short texts less token dropout. Few rows need more steps than the preset's epochs
    give them, and more dropout. Taught rows are many and hard to learn by heart: half the noise, a quarter of the
    passes. An epoch count of one's own is left as it is.
    """
    if not settings.fit_to_data:
        return settings
    rows, classes, preset = len(data), len(data.names), settings.epochs == STRONG.epochs and not settings.steps
    rate = settings.learning_rate * min(MOST_FOR_CLASSES, (classes / 4) ** 0.8)
    hidden = settings.token_dropout * min(1.0, mean_length / 40)
    if data.targets is not None:
        epochs = settings.epochs / 4 if preset else settings.epochs
        return replace(
            settings, learning_rate=rate, token_dropout=hidden / 2, dropout=settings.dropout / 2, epochs=epochs
        )
    fewest = min(1000, max(200, rows / 4)) * max(1.0, classes / 6) ** 0.4
    return replace(
        settings,
        learning_rate=rate,
        token_dropout=hidden,
        dropout=min(max(0.4, settings.dropout), settings.dropout * max(1.0, 20_000 / rows) ** 0.5),
        steps=max(round(fewest), steps_of(settings, rows)) if preset else settings.steps,
    )


def steps_of(settings: TrainingSettings, rows: int) -> int:
    """Optimizer steps in so many passes over the rows."""
    return max(1, round(settings.epochs * rows / settings.batch_size))


def learning_rate(step: int, total: int, settings: TrainingSettings) -> float:
    """Linear warm-up (never more than a tenth of the run), then linear decay to 0."""
    warmup = max(1, min(settings.warmup_steps, total // 10))
    return settings.learning_rate * min((step + 1) / warmup, (total - step) / max(1, total - warmup))


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
            figures |= {"loss": loss, "accuracy": hits, "rate": seen / (time.perf_counter() - began)}
            report("train", run.step, run.total, figures)
        if look and run.adapter is not None and 2 * run.step <= run.total:
            _move(run, run.adapter)
        if look:
            figures |= {"step": run.step, "dev_accuracy": _look(run), "best": run.best}
            if folder is not None:
                folder.log(figures)
                progress = {"step": run.step, "best": run.best, "kept": run.kept, "stale": run.stale}
                folder.save(progress, _state(run), run.kept_weights if run.stale == 0 else None)
            seen, began, sums = 0, time.perf_counter(), torch.zeros_like(sums)
    model = run.accelerator.unwrap_model(run.stepper.wrapped, keep_fp32_wrapper=False)
    model.load_state_dict(run.kept_weights, strict=False)
    model = model if run.adapter is None else settled(model)
    run.classifier = Classifier(model.packed(), run.classifier.tokenizer)


def _move(run: _Run, adapter: Adapter) -> None:
    """Move pairs, with the moments AdamW keeps for their weights."""
    moments = run.stepper.optimizer.state[adapter.layer.weights]
    adapter.move([moments[name] for name in ("exp_avg", "exp_avg_sq")])


def _look(run: _Run) -> float:
    """Accuracy on the dev split; the weights are kept unless an earlier look was better beyond chance.

    A few rows more or less on a small split say nothing, and the rate falls towards 0, so of looks within one
    standard error of the best the last is the one to keep.
    """
    accuracy = float((predict_logits(run.classifier.model, run.dev_texts).argmax(1) == run.dev_labels).mean())
    run.best = max(run.best, accuracy)
    run.stale += 1
    if accuracy >= run.best - (run.best * (1 - run.best) / len(run.dev_labels)) ** 0.5:
        run.stale, run.kept = 0, accuracy
        run.kept_weights = {name: p.detach().clone() for name, p in (*_trained(run), *_moved(run))}
    return accuracy


def _trained(run: _Run) -> list[tuple[str, Tensor]]:
    return [(name, p) for name, p in run.classifier.model.named_parameters() if p.requires_grad]


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
    loaded = folder.load()
    if run.accelerator.is_main_process:
        folder.forget_after(0 if loaded is None else loaded[0]["step"])
    if loaded is None:
        return
    progress, state, best = loaded
    run.step, run.best, run.kept, run.stale = (progress[name] for name in ("step", "best", "kept", "stale"))
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
    for array in (
        run.stepper.texts.ids.cpu().numpy(),
        run.stepper.labels.cpu().numpy(),
        run.dev_texts.ids.cpu().numpy(),
        run.dev_labels,
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
