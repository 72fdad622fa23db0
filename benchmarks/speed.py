"""How long things take, side by side in one process: medians over repeats, warm-up left out."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ade.codebook import Codebook
from ade.distillation import resolve_device
from ade.embedding import AnchorEmbedding
from ade.model import AdeForSequenceClassification, count_parameters
from ade.progress import Report
from ade.settings import Architecture
from benchmarks.accuracy import Places
from benchmarks.records import Run

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "DeBERTa-v3-base": ("deberta-v2", {"vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "intermediate_size": 3072, "relative_attention": True, "position_buckets": 256,
        "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "position_biased_input": False, "max_position_embeddings": 512, "type_vocab_size": 0}),
    "BERT-base": ("bert", {}),
    "MiniLM-L6": ("bert", {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536}),
}  # fmt: skip


def timed(work: Callable[[], object], device: torch.device, repeats: int = 15) -> dict[str, float]:
    """Median and spread in milliseconds; each repeat runs long enough for the clock."""
    for _ in range(3):
        work()
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    inner = max(1, int(0.02 / max(1e-6, time.perf_counter() - began)))
    taken = []
    for _ in range(repeats):
        _wait(device)
        began = time.perf_counter()
        for _ in range(inner):
            work()
        _wait(device)
        taken.append(1000 * (time.perf_counter() - began) / inner)
    quarters = statistics.quantiles(taken, n=4)
    return {"ms": statistics.median(taken), "low": quarters[0], "high": quarters[2]}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def random_codebook(vocabulary: int, anchors: int, pairs: int, dim: int) -> Codebook:
    """A codebook of this shape with nothing learned in it: enough for time and memory."""
    from tokenizers import Tokenizer, models

    generator = torch.Generator().manual_seed(0)
    indices = torch.rand(vocabulary, anchors, generator=generator).topk(pairs, 1).indices.flatten()
    weights = torch.randn(vocabulary * pairs, generator=generator)
    table = nn.functional.normalize(torch.randn(anchors, dim, generator=generator), dim=1)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    return Codebook.from_pairs(table, indices, weights, torch.full((vocabulary,), pairs), tokenizer)


def run_latency(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """One forward pass of each model on the same ids: eager float32, and compiled bfloat16 on a GPU."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    device, shape = resolve_device(places.device), run.settings
    vocabulary = 30_000
    ids = torch.randint(vocabulary, (shape["batch"], shape["length"]), generator=torch.Generator().manual_seed(1)).to(
        device
    )
    mask = torch.ones_like(ids)
    codebook = random_codebook(vocabulary, shape["anchors"], shape["pairs"], shape["dim"])
    makers: dict[str, Callable[[], nn.Module]] = {}
    for name, (kind, config) in ENCODERS.items():
        encoder = AutoConfig.for_model(kind, **config, num_labels=4)
        makers[name] = partial(AutoModelForSequenceClassification.from_config, encoder)
    for mode in ("tokens", "gated", "anchors"):
        shaped = Architecture(attend=mode)
        makers[f"ADE {mode}"] = partial(AdeForSequenceClassification.from_codebook, codebook, "abcd", shaped)
    repeats = 15 if device.type == "cuda" else 3
    figures: dict[str, Any] = {}
    for done, (name, make) in enumerate(makers.items()):
        report("latency", done, len(makers), {})
        torch.manual_seed(0)
        model = make().to(device).eval()
        size = sum(parameter.numel() for parameter in model.parameters())
        figures[name] = {"parameters": size, **_forward_times(model, ids, mask, device, repeats)}
    report("latency", len(makers), len(makers), {})
    return figures, {}


@torch.inference_mode()
def _forward_times(model: nn.Module, ids: Tensor, mask: Tensor, device: torch.device, repeats: int) -> dict[str, Any]:
    found = {"eager_fp32": timed(lambda: model(input_ids=ids, attention_mask=mask), device, repeats)}
    if device.type == "cuda":
        narrow = model.to(torch.bfloat16)
        compiled = torch.compile(narrow, mode="reduce-overhead")
        found["compiled_bf16"] = timed(lambda: compiled(input_ids=ids, attention_mask=mask), device, repeats)
    return found


def run_lookup(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """4,096 tokens composed four ways: time, and the bytes that must be held."""
    device, shape = resolve_device(places.device), run.settings
    codebook = random_codebook(shape["vocabulary"], shape["anchors"], shape["pairs"], shape["dim"])
    layer = AnchorEmbedding.from_codebook(codebook).to(device)
    ids = torch.randint(shape["vocabulary"], (4096,), generator=torch.Generator().manual_seed(1)).to(device)
    transform = layer.coefficients(torch.arange(shape["vocabulary"], device=device)).detach()  # (N, K): A&T's matrix
    anchors, count, dim = layer.anchors.detach(), shape["pairs"], shape["dim"]
    index, weight, _ = layer.pairs_of(torch.arange(shape["vocabulary"], device=device))
    flat = anchors[index].flatten(1)  # (N, k d): the paper's stage 2 table, padded only to k
    table = nn.Embedding.from_pretrained(layer.compose(torch.arange(shape["vocabulary"], device=device)).detach())
    beta = weight.detach()
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "projection": (lambda: layer.compose(ids), codebook.nbytes),
        "two_stage": (lambda: transform[ids] @ anchors, 4 * (transform.numel() + anchors.numel())),
        "flat_table": (
            lambda: (flat[ids].view(-1, count, dim) * beta[ids].unsqueeze(2)).sum(1),
            4 * (flat.numel() + beta.numel()),
        ),
        "nn_embedding": (lambda: table(ids), 4 * table.weight.numel()),
    }
    with torch.inference_mode():
        return {name: {**timed(work, device), "bytes": nbytes} for name, (work, nbytes) in ways.items()}, {}


def run_parameters(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """The paper's parameter table."""
    return dict(count_parameters(**run.settings)), {}
