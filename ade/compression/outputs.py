"""What a model gives, and what counts: hidden states, likelihoods, losses; which errors of its tables matter more."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ade.compression.head import scale_of
from ade.progress import Report, silent

DECODERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
BATCH = 16  # texts whose gradients are computed together
MAX_TOKENS = 128  # of a text whose loss is measured
METRIC_TOKENS = 64  # of a text that shows which directions matter
NOISE = 0.3  # of the root mean square of a table
NOISE_ROWS = 8192  # that this is computed from
LEAST = 0.01  # of the cost of the table whose noise costs the most: what is counted for any other
Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor | None]  # module, inputs, output


def is_decoder(model: Any) -> bool:
    """Whether the model predicts the next token, and has no encoder: of texts alone, or of images too."""
    return type(model).__name__.endswith(DECODERS) and not model.config.is_encoder_decoder


def body_of(model: Any) -> Any:
    """Return the part of a model that gives hidden states."""
    if getattr(model.config, "is_encoder_decoder", False):
        return model.get_encoder()
    return model.base_model


@contextmanager
def hooked(hooks: Mapping[nn.Module, Hook]) -> Iterator[None]:
    """Context manager: functions see the inputs and outputs of modules, and may return other outputs."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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


def hidden_states(body: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the hidden states of tokens: (B, T, d), float32."""
    states: Tensor = body(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
    return states


def mean_states(body: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the mean hidden state of each text: (B, d), float32."""
    return (hidden_states(body, ids, mask) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def distance(states: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """One minus the cosine of hidden states (B, T, d): mean over tokens, plus that of their means over a text."""
    tokens = 1 - F.cosine_similarity(states[mask], target[mask], dim=1).mean()
    share = mask[..., None] / mask.sum(1).clamp(min=1)[:, None, None]
    return tokens + 1 - F.cosine_similarity((states * share).sum(1), (target * share).sum(1), dim=1).mean()


@torch.inference_mode()
def outputs_of(
    model: Any, tokenizer: Any, texts: Mapping[str, Sequence[str]], report: Report = silent
) -> dict[str, Tensor]:
    """Return for each file what is compared: log-likelihoods of tokens (n,), or mean hidden states (texts, d)."""
    outputs = {}
    total, done = sum(len(some) for some in texts.values()), 0
    for name, some in texts.items():
        parts = []
        for ids in token_ids(tokenizer, some):
            row, mask = padded([ids[:MAX_TOKENS] or [0]], model.device)
            parts.append(_likelihoods(model, row) if is_decoder(model) else mean_states(body_of(model), row, mask))
            done += 1
            report("measure", done, total, {})
        outputs[name] = torch.cat(parts).cpu()
    return outputs


def _likelihoods(model: Any, ids: Tensor) -> Tensor:
    """Return the log-likelihoods of all tokens (1, T) but the first: (T - 1,)."""
    scores = model(input_ids=ids).logits[0, :-1].float().log_softmax(1)  # (T - 1, V)
    likelihoods: Tensor = scores.gather(1, ids[0, 1:, None])[:, 0]
    return likelihoods


def losses(model: Any, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the loss of each file in percent: what `measure_of` says."""
    if is_decoder(model):
        return {name: 100 * math.expm1(float(before[name].mean() - after[name].mean())) for name in before}
    return {name: 100 * float(1 - F.cosine_similarity(before[name], after[name]).mean()) for name in before}


def measure_of(model: Any) -> str:
    """The name of what `losses` returns."""
    return "perplexity, increase" if is_decoder(model) else "1 - cosine of the mean hidden state"


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
    body: Any, layer: nn.Module, texts: Sequence[Sequence[int]], dim: int, report: Report = silent
) -> Tensor | None:
    """Return how much the mean hidden state, at length 1, moves with an error of an input row (d, d).

    The second moments of the gradients of random projections of it, `layer` being the embedding; its rows are cut into
    slices of length d.
    """
    device, total = next(body.parameters()).device, None
    generator = torch.Generator().manual_seed(0)
    ordered = sorted(texts, key=len)
    rows: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        rows[:] = [output.detach().requires_grad_(True)]
        return rows[0]

    for start in range(0, len(ordered), BATCH):
        ids, mask = padded([row[:METRIC_TOKENS] for row in ordered[start : start + BATCH]], device)
        with hooked({layer: keep}):
            means = F.normalize(mean_states(body, ids, mask), dim=1)
        drawn = torch.randn(means.shape, generator=generator).to(device)
        (slope,) = torch.autograd.grad((means * drawn).sum(), rows)
        slope = (slope.float() * mask.sum(1)[:, None, None])[mask]  # a token counts the same in texts of any length
        slope = slope.reshape(-1, dim)
        total = slope.T @ slope + (0 if total is None else total)
        report("metric", min(start + BATCH, len(ordered)), len(ordered), {})
    return None if total is None else total.cpu()


@torch.inference_mode()
def importance(
    model: Any,
    readers: Mapping[str, Sequence[nn.Module]],
    dims: Mapping[str, int],
    texts: Sequence[Sequence[int]],
) -> dict[str, float]:
    """Return what a squared error of 1 in every row of a table costs, to compare the tables of a model.

    Measured with noise in one table at a time, about as large as the errors of codes: by how much the distribution of
    the next token or the hidden states change. `readers` are the modules that read each table, `dims` the lengths of
    its rows.
    """
    device = next(model.parameters()).device
    cost = dict.fromkeys(readers, 0.0)
    deviations = {name: _deviation(modules[0].weight) for name, modules in readers.items()}
    torch.manual_seed(0)
    for ids in texts:
        batch = padded([ids[:METRIC_TOKENS]], device)
        original = _answers(model, *batch)
        for name, modules in readers.items():
            with hooked(dict.fromkeys(modules, partial(_with_noise, deviations[name]))):
                changed = _answers(model, *batch)
            if is_decoder(model):
                moved = F.kl_div(changed.log_softmax(2), original.log_softmax(2), log_target=True, reduction="sum")
            else:
                moved = distance(changed, original, batch[1]) * len(ids)
            cost[name] += float(moved)
    least = LEAST * max(cost.values()) or 1.0
    return {name: max(cost[name], least) / (deviations[name] ** 2 * dims[name]) for name in readers}


def _deviation(weight: Any) -> float:
    sample = weight[:: -(-len(weight) // NOISE_ROWS)].float()
    return float(NOISE * sample.square().mean().sqrt().clamp(min=1e-12))


def _answers(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    if is_decoder(model):
        logits: Tensor = model(input_ids=ids, attention_mask=mask.long()).logits.float()
        return logits
    return hidden_states(body_of(model), ids, mask)


def _with_noise(deviation: float, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Return the output of an embedding, or of an output layer, whose rows have noise of this standard deviation."""
    if isinstance(module, nn.Embedding):
        factor: Any = scale_of(module)[0] or 1.0
    else:
        factor = inputs[0].float().norm(dim=-1, keepdim=True).to(output)
    return output + torch.randn_like(output) * deviation * factor
