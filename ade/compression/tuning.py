"""Tune a packed table without labels: the model's outputs with it come closer to its outputs with the original table.

Codes stay as they are; books, gains, rotation and mean are trained. The target is the model itself: hidden states for
encoders (one minus the cosine, of tokens and of their mean), the distribution of the next token for decoders (KL
divergence over a trimmed vocabulary: the most frequent tokens of the text, and others drawn anew in every step). The
layers are frozen and are run with both tables. What was reached is kept in the cache, so that the same command goes on
there after it was stopped.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ade.compression.head import CodedEmbedding
from ade.compression.source import padded
from ade.compression.table import PackedTable
from ade.compression.trainable import TrainableTable
from ade.compression.tuning_checkpoint import TuningCheckpoint
from ade.devices import tf32
from ade.errors import InputError
from ade.progress import Report, silent

WARMUP = 0.05  # of all steps
SAVED_EVERY = 30.0  # seconds
CANDIDATES = 16_384  # most tokens the next-token distribution is compared on in a step


@dataclass(frozen=True)
class TuningSettings:
    """How a table is tuned."""

    steps: int = 400
    batch: int = 64  # texts a step
    learning_rate: float = 0.003  # the peak, relative to the root mean square of each array
    max_tokens: int = 64  # of a text
    seed: int = 0


class Swap:
    """Puts rows of a packed table into a model in place of what its embedding layers return, while `active`."""

    def __init__(self, layers: Sequence[nn.Embedding], table: PackedTable) -> None:
        self.active = False
        coded = [CodedEmbedding(table, layer, owned=False) for layer in layers]
        hooks = [partial(self._replace, each) for each in coded]
        self.handles = [layer.register_forward_hook(hook) for layer, hook in zip(layers, hooks, strict=True)]

    def _replace(
        self, coded: CodedEmbedding, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor | None:
        return coded(inputs[0]) if self.active else None

    def remove(self) -> None:
        """Leave the model as it was."""
        for handle in self.handles:
            handle.remove()


def tune(
    body: nn.Module,
    layers: Sequence[nn.Embedding],
    packed: PackedTable,
    texts: Sequence[Sequence[int]],
    original: Tensor | None,
    settings: TuningSettings,
    report: Report = silent,
) -> PackedTable:
    """Return the tuned table.

    `body` gives hidden states, `layers` are its embedding layers with the original table, `texts` token ids. With
    `original` (V, d), the table of a tied head, next-token distributions are compared, without it hidden states.
    """
    if not texts:
        raise InputError("there is no text to tune with")
    device = next(body.parameters()).device
    torch.manual_seed(settings.seed)
    trained = TrainableTable.of(packed).to(device)
    candidates = Candidates(texts, len(original), settings.seed, device) if original is not None else None
    parameters = [p for p in trained.parameters() if p.numel()]
    groups = [{"params": [p], "scale": float(p.detach().square().mean().sqrt().clamp(min=1e-8))} for p in parameters]
    optimizer = torch.optim.Adam(groups, lr=settings.learning_rate, betas=(0.9, 0.98))
    checkpoint = TuningCheckpoint.of(body, packed, texts, tied=original is not None, **asdict(settings))
    start, average = checkpoint.restore(parameters, optimizer)

    swap = Swap(layers, trained)
    was_training, learning = body.training, [p for p in body.parameters() if p.requires_grad]
    body.eval().requires_grad_(False)
    try:
        with tf32(device):
            saved = time.monotonic()
            for step, (ids, mask) in enumerate(_batches(texts, settings, device, start), start):
                for group in optimizer.param_groups:
                    group["lr"] = settings.learning_rate * group["scale"] * _schedule(step, settings.steps)
                drawn = candidates.draw(step) if candidates is not None else None
                loss = _loss(body, swap, trained, ids, mask, original, drawn)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                average = float(loss.detach()) if step == 0 else 0.95 * average + 0.05 * float(loss.detach())
                if not math.isfinite(average):
                    raise InputError(f"tuning diverged at step {step + 1}; try a lower learning rate")
                if time.monotonic() - saved >= SAVED_EVERY:
                    checkpoint.save(step + 1, average, parameters, optimizer)
                    saved = time.monotonic()
                report("tune", step + 1, settings.steps, {"loss": average})
    finally:
        swap.remove()
        body.train(was_training)
        for parameter in learning:
            parameter.requires_grad_(True)
    checkpoint.remove()
    return trained.cpu().packed()


def _schedule(step: int, steps: int) -> float:
    warm = max(1, int(WARMUP * steps))
    return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * step / steps)))


def _batches(
    texts: Sequence[Sequence[int]], settings: TuningSettings, device: torch.device, start: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ids and mask of random texts of alike length: what steps from `start` on read."""
    generator = torch.Generator().manual_seed(settings.seed)
    for step in range(settings.steps):
        around = torch.randint(len(texts), (4 * settings.batch,), generator=generator).tolist()
        around.sort(key=lambda row: len(texts[row]))
        at = int(torch.randint(max(1, len(around) - settings.batch + 1), (), generator=generator))
        if step >= start:
            yield padded([texts[row][: settings.max_tokens] for row in around[at : at + settings.batch]], device)


class Candidates:
    """The tokens that next-token distributions are compared on: all, or frequent ones and a sample of the others.

    What is drawn stands for all of the others: its scores are raised by the logarithm of how many tokens each is for.
    """

    def __init__(self, texts: Sequence[Sequence[int]], rows: int, seed: int, device: torch.device) -> None:
        counts = torch.bincount(torch.tensor([token for ids in texts for token in ids]), minlength=rows)[:rows]
        order = counts.argsort(descending=True)
        kept = rows if rows <= CANDIDATES else min(CANDIDATES // 2, int((counts > 0).sum()))
        self.always, self.others = order[:kept].sort().values, order[kept:]
        self.seed, self.device = seed, device

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the tokens of a step (n,), and what is added to their scores (n,)."""
        if not len(self.others):
            return self.always.to(self.device), torch.zeros(len(self.always), device=self.device)
        generator = torch.Generator().manual_seed(self.seed + step)
        count = min(CANDIDATES - len(self.always), len(self.others))
        drawn = self.others[torch.randperm(len(self.others), generator=generator)[:count]]
        raised = torch.full((count,), math.log(len(self.others) / count))
        tokens, added = torch.cat([self.always, drawn]), torch.cat([torch.zeros(len(self.always)), raised])
        return tokens.to(self.device), added.to(self.device)


def _loss(
    body: nn.Module,
    swap: Swap,
    trained: TrainableTable,
    ids: Tensor,
    mask: Tensor,
    original: Tensor | None,
    candidates: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """The distance of the outputs with the packed table from those with the original one."""
    swap.active = False
    with torch.no_grad():
        target = body(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
    swap.active = True
    found = body(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
    if original is None or candidates is None:
        return distance(found, target, mask)
    tokens, added = candidates
    with torch.no_grad():
        wanted = target[mask] @ original[tokens.to(original.device)].to(target).T + added  # (n, candidates)
    scores = found[mask] @ trained(tokens).T + added
    return F.kl_div(scores.log_softmax(1), wanted.log_softmax(1), log_target=True, reduction="batchmean")


def distance(found: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """One minus the cosine of hidden states (B, T, d): mean over tokens, plus that of their means over a text."""
    tokens = 1 - F.cosine_similarity(found[mask], target[mask], dim=1).mean()
    share = mask[..., None] / mask.sum(1).clamp(min=1)[:, None, None]
    return tokens + 1 - F.cosine_similarity((found * share).sum(1), (target * share).sum(1), dim=1).mean()
