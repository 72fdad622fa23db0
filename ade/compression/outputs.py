"""What a model gives, and what counts: hidden states, likelihoods, losses, and in which directions errors matter."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ade.data.tokens import sorted_batches
from ade.progress import Report, silent

DECODERS = ("ForCausalLM", "LMHeadModel")
BATCH = 16  # texts
MAX_TOKENS = 128  # of a text whose loss is measured
METRIC_TOKENS = 64  # of a text that shows which directions matter
SCORED = {"cpu": 128, "cuda": 4096}  # tokens of a decoder whose logits are computed per batch


def is_decoder(model: Any) -> bool:
    """Whether the model predicts the next token."""
    return type(model).__name__.endswith(DECODERS)


def body_of(model: Any) -> Any:
    """Return the part of a model that gives hidden states."""
    if getattr(model.config, "is_encoder_decoder", False):
        return model.get_encoder()
    return model.base_model


def token_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts with the special tokens the model is used with, a decoder's start token among them."""
    rows = tokenizer(list(texts), verbose=False)["input_ids"]  # some texts are truncated later
    start = tokenizer.bos_token_id
    if start is None or tokenizer.cls_token_id is not None:
        return rows
    return [row if row[:1] == [start] else [start, *row] for row in rows]


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token ids and mask (B, T) of rows of ids."""
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    return ids.to(device), (torch.arange(width) < lengths[:, None]).to(device)


def mean_states(body: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the mean hidden state of each text: (B, d), float32."""
    states = body(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


@torch.inference_mode()
def outputs_of(
    model: Any, tokenizer: Any, texts: Mapping[str, Sequence[str]], report: Report = silent
) -> dict[str, Tensor]:
    """Return for each file or language what is compared: log-likelihoods of tokens, or mean hidden states."""
    outputs, device = {}, next(model.parameters()).device
    total, done = sum(len(some) for some in texts.values()), 0
    for name, some in texts.items():
        parts = []
        for start in range(0, len(some), BATCH):
            rows = [ids[:MAX_TOKENS] or [0] for ids in token_ids(tokenizer, some[start : start + BATCH])]
            batch = padded(rows, device)
            parts.append(_likelihoods(model, *batch) if is_decoder(model) else mean_states(body_of(model), *batch))
            done += len(rows)
            report("measure", done, total, {})
        outputs[name] = torch.cat(parts).cpu()
    return outputs


def losses(model: Any, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the loss of each file or language in percent: what `measure_of` says."""
    if is_decoder(model):
        return {name: 100 * math.expm1(float(before[name].mean() - after[name].mean())) for name in before}
    return {name: 100 * float(1 - F.cosine_similarity(before[name], after[name]).mean()) for name in before}


def measure_of(model: Any) -> str:
    """The name of what `losses` returns."""
    return "perplexity, increase" if is_decoder(model) else "1 - cosine of the mean hidden state"


def _likelihoods(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Log-likelihoods of all tokens but the first of each text: (n,)."""
    lengths = mask.sum(1).cpu().numpy()
    likelihoods = [torch.empty(0)] * len(lengths)
    for rows in sorted_batches(lengths, SCORED.get(ids.device.type, 128)):
        width = lengths[rows].max()
        tokens, real = ids[rows, :width], mask[rows, :width]
        scores = model(input_ids=tokens, attention_mask=real.long()).logits[:, :-1].float().log_softmax(2)
        of_tokens = scores.gather(2, tokens[:, 1:, None])[..., 0]  # (B, T - 1)
        for row, own in zip(rows, of_tokens, strict=True):
            likelihoods[row] = own[: lengths[row] - 1]
    return torch.cat(likelihoods)


@torch.no_grad()
def output_metric(body: Any, texts: Sequence[Sequence[int]]) -> Tensor | None:
    """Return the second moments (d, d) of what an output table is multiplied by: its logits count, not its rows."""
    total, device = None, next(body.parameters()).device
    for ids in texts:
        row, _ = padded([ids[:METRIC_TOKENS]], device)
        states = body(input_ids=row).last_hidden_state[0].float().cpu()
        total = states.T @ states + (0 if total is None else total)
    return total


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

    hook = layer.register_forward_hook(keep)
    try:
        for start in range(0, len(ordered), BATCH):
            ids, mask = padded([row[:METRIC_TOKENS] for row in ordered[start : start + BATCH]], device)
            means = F.normalize(mean_states(body, ids, mask), dim=1)
            drawn = torch.randn(means.shape, generator=generator).to(device)
            (slope,) = torch.autograd.grad((means * drawn).sum(), rows)
            slope = (slope.float() * mask.sum(1)[:, None, None])[mask]  # a token counts the same in texts of any length
            total = slope.T @ slope + (0 if total is None else total)
            report("metric", min(start + BATCH, len(ordered)), len(ordered), {})
    finally:
        hook.remove()
    return None if total is None else total.cpu()
