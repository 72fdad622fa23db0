"""Tune a coded table without labels: the model's outputs with it come closer to its outputs with the original table.

Codes stay as they are; books, rotation and mean are trained. The target is the model itself: hidden states for
encoders (one minus the cosine, of tokens and of their mean), the distribution of the next token for decoders (KL
divergence over a part of the vocabulary: the most frequent tokens of the text, and a sample of the others for each
step). The layers are frozen and run with both tables.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ade.coded_layer import PackedTable, TrainableTable
from ade.compression.head import PackedEmbedding
from ade.compression.outputs import distance, hidden_states, hooked, padded
from ade.devices import tf32
from ade.errors import InputError
from ade.progress import Report, silent

BATCH, MAX_TOKENS = 64, 64  # texts per step, and tokens of a text
LEARNING_RATE = 0.003  # the peak, relative to the root mean square of each array
WARMUP = 0.05  # of all steps
CANDIDATES = 16_384  # maximum number of tokens that next-token distributions are compared on


def tune(
    body: nn.Module,
    layers: Sequence[nn.Embedding],
    packed: PackedTable,
    texts: Sequence[Sequence[int]],
    original: Tensor | None,
    steps: int,
    report: Report = silent,
) -> PackedTable:
    """Return the tuned table.

    `body` gives hidden states, `layers` are its embedding layers with the original table, `texts` token ids. With
    `original` (V, d), the table of a tied head, next-token distributions are compared, without it hidden states. The
    layers of `body` are frozen.
    """
    if not texts:
        raise InputError("there is no text to tune with")
    device = next(body.parameters()).device
    trained = TrainableTable(packed).to(device)
    candidates = Candidates(texts, len(original), device) if original is not None else None
    parameters = [parameter for parameter in trained.parameters() if parameter.numel()]
    sizes = [float(parameter.detach().square().mean().sqrt().clamp(min=1e-8)) for parameter in parameters]
    groups = [{"params": [p], "lr": LEARNING_RATE * size} for p, size in zip(parameters, sizes, strict=True)]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.98))
    warmup = max(1, int(WARMUP * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps)))
    )

    body.eval().requires_grad_(False)
    average = 0.0
    with tf32(device):
        for step, (ids, mask) in enumerate(_batches(texts, steps, device)):
            target = hidden_states(body, ids, mask)
            with rows_from(trained, layers):
                states = hidden_states(body, ids, mask)
            if candidates is None or original is None:
                loss = distance(states, target, mask)
            else:
                loss = _divergence(states[mask], target[mask], trained, original, *candidates.draw(step))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

            average = float(loss.detach()) if step == 0 else 0.95 * average + 0.05 * float(loss.detach())
            if not math.isfinite(average):
                raise InputError(f"tuning diverged at step {step + 1}; more text may help")
            report("tune", step + 1, steps, {"loss": average})
    return trained.cpu().packed()


def rows_from(table: PackedTable, layers: Sequence[nn.Embedding]) -> AbstractContextManager[None]:
    """Context manager: embedding layers return rows of another table."""

    def replaced(coded: nn.Module, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        rows: Tensor = coded(inputs[0])
        return rows

    return hooked({layer: partial(replaced, PackedEmbedding(table, layer, owned=False)) for layer in layers})


def _divergence(
    states: Tensor, target: Tensor, trained: TrainableTable, original: Tensor, tokens: Tensor, added: Tensor
) -> Tensor:
    """KL divergence of next-token distributions over `tokens`, whose scores are raised by `added`."""
    wanted = target @ original[tokens.to(original.device)].to(target).T + added  # (n, candidates)
    scores = states @ trained(tokens).T + added
    return F.kl_div(scores.log_softmax(1), wanted.log_softmax(1), log_target=True, reduction="batchmean")


def _batches(texts: Sequence[Sequence[int]], steps: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ids and mask of random texts of similar length, for each step."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        around = torch.randint(len(texts), (4 * BATCH,), generator=generator).tolist()
        around.sort(key=lambda row: len(texts[row]))
        at = int(torch.randint(max(1, len(around) - BATCH + 1), (), generator=generator))
        yield padded([texts[row][:MAX_TOKENS] for row in around[at : at + BATCH]], device)


class Candidates:
    """The tokens that next-token distributions are compared on: all, or frequent ones and a sample of the others.

    The sample stands for all of the others: scores are raised by the logarithm of how many tokens each stands for.
    """

    def __init__(self, texts: Sequence[Sequence[int]], rows: int, device: torch.device) -> None:
        counts = torch.bincount(torch.tensor([token for ids in texts for token in ids]), minlength=rows)[:rows]
        order = counts.argsort(descending=True)
        kept = rows if rows <= CANDIDATES else min(CANDIDATES // 2, int((counts > 0).sum()))
        self.always = order[:kept].sort().values
        self.others = order[kept:]
        self.device = device

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the tokens of a step (n,), and what is added to their scores (n,)."""
        count = min(CANDIDATES - len(self.always), len(self.others))
        generator = torch.Generator().manual_seed(step)
        sample = self.others[torch.randperm(len(self.others), generator=generator)[:count]]
        added = torch.zeros(len(self.always) + count)
        if count:
            added[len(self.always) :] = math.log(len(self.others) / count)
        return torch.cat([self.always, sample]).to(self.device), added.to(self.device)
