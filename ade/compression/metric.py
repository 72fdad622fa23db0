"""Which directions of a row's error count: by what the model makes of them, not by their length."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ade.compression.source import mean_states, padded
from ade.progress import Report, silent

MAX_TOKENS = 64
BATCH = 16


@torch.no_grad()
def output_states(body: Any, texts: Sequence[Sequence[int]]) -> Tensor | None:
    """Return what an output table is multiplied by (n, d): the hidden states of texts. Their logits count, not rows."""
    found = []
    for ids in texts:
        row, _ = padded([ids[:MAX_TOKENS]], next(body.parameters()).device)
        found.append(body(input_ids=row).last_hidden_state[0].float().cpu())
    return torch.cat(found) if found else None


def input_metric(
    body: Any, layer: nn.Module, texts: Sequence[Sequence[int]], seed: int = 0, report: Report = silent
) -> Tensor | None:
    """Return how much the mean hidden state, at length 1, moves with an error of an input row (d, d).

    The second moments of the gradients of random projections of it, `layer` being the input embedding.
    """
    device, total = next(body.parameters()).device, None
    generator = torch.Generator().manual_seed(seed)
    ordered = sorted(texts, key=len)
    rows: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        rows[:] = [output.detach().requires_grad_(True)]
        return rows[0]

    handle = layer.register_forward_hook(keep)
    try:
        for start in range(0, len(ordered), BATCH):
            ids, mask = padded([row[:MAX_TOKENS] for row in ordered[start : start + BATCH]], device)
            with torch.enable_grad():
                means = nn.functional.normalize(mean_states(body, ids, mask), dim=1)
                drawn = torch.randn(means.shape, generator=generator).to(device)
                (slope,) = torch.autograd.grad((means * drawn).sum(), rows)
            slope = (slope.float() * mask.sum(1)[:, None, None])[mask]  # a token counts alike in short and long texts
            total = slope.T @ slope + (0 if total is None else total)
            report("metric", min(start + BATCH, len(ordered)), len(ordered), {})
    finally:
        handle.remove()
    return None if total is None else total.cpu()
