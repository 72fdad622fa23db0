"""How long things take, side by side in one process: latency of a batch, look-ups, distillation, training."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models
from torch import Tensor, nn

from ade.cli.sizes import count_parameters
from ade.codebook import Codebook
from ade.devices import resolve_device
from ade.distillation import distill
from ade.embedding import AnchorEmbedding
from ade.model import AdeForSequenceClassification
from ade.progress import Report
from ade.runtime.gpu import GpuModel
from ade.runtime.projection import Projection
from ade.runtime.runtime import Runtime
from ade.runtime.tables import fold
from ade.runtime.type_cache import TypeCache
from ade.settings import Architecture, DistillationSettings
from ade.teachers import Teacher
from ade.training.loop import fit_model
from benchmarks.accuracy import Places, codebook_for, load_rows, training_of
from benchmarks.records import Run

REPEATS = 3  # of a training run
VOCABULARY = 30_000
LARGE = 4096  # texts: a batch that fills a GPU
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
    generator = torch.Generator().manual_seed(0)
    indices = torch.rand(vocabulary, anchors, generator=generator).topk(pairs, 1).indices.flatten()
    weights = torch.randn(vocabulary * pairs, generator=generator)
    table = nn.functional.normalize(torch.randn(anchors, dim, generator=generator), dim=1)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    return Codebook.from_pairs(table, indices, weights, torch.full((vocabulary,), pairs), tokenizer)


def run_latency(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """One batch through each model, the same ids: eager float32, compiled bfloat16 on a GPU, and projected."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    device, shape = resolve_device(places.device), run.settings
    ids = _random_ids(shape["batch"], shape["length"])
    codebook = random_codebook(VOCABULARY, shape["anchors"], shape["pairs"], shape["dim"])
    makers: dict[str, Callable[[], nn.Module]] = {}
    for name, (kind, config) in ENCODERS.items():
        encoder = AutoConfig.for_model(kind, **config, num_labels=4)
        makers[name] = partial(AutoModelForSequenceClassification.from_config, encoder)
    for mode in ("tokens", "gated", "anchors"):
        shaped = Architecture(attend=mode)
        makers[f"ADE {mode}"] = partial(AdeForSequenceClassification.from_codebook, codebook, "abcd", shaped)
    measured: dict[str, Any] = {}
    large: dict[str, Any] = {}
    for done, (name, make) in enumerate(makers.items()):
        report("latency", done, len(makers), {})
        torch.manual_seed(0)
        model = make().to(device).eval()
        measured[name] = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
        if isinstance(model, AdeForSequenceClassification):
            folded = projection_of(model)
            measured[name]["projected"] = timed(_projected(folded, ids, device), device)
            if device.type == "cpu" and model.config.attend != "anchors":  # anchors keep no rows of tokens
                measured[name]["projected_cold"] = timed(_cold(folded, ids), device)
            if device.type == "cuda" and model.config.attend != "anchors":
                large[name] = _large(folded, _random_ids(LARGE, shape["length"]), device)
        measured[name] |= _forward_times(model, ids.to(device), device)
    report("latency", len(makers), len(makers), {})
    return {"models": measured, "large": large, "limits": _limits(device)}, {}


def _random_ids(batch: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def projection_of(model: AdeForSequenceClassification) -> Projection:
    """The model as tables."""
    return Projection(fold(model.config.to_dict(), model.arrays()))


@torch.inference_mode()
def _forward_times(model: nn.Module, ids: Tensor, device: torch.device) -> dict[str, Any]:
    mask, repeats = torch.ones_like(ids), 15 if device.type == "cuda" else 3
    found = {"eager_fp32": timed(lambda: model(input_ids=ids, attention_mask=mask), device, repeats)}
    if device.type == "cuda":
        narrow = model.to(torch.bfloat16)
        compiled = torch.compile(narrow, mode="reduce-overhead")
        found["compiled_bf16"] = timed(lambda: compiled(input_ids=ids, attention_mask=mask), device, repeats)
    return found


def _projected(folded: Projection, ids: Tensor, device: torch.device) -> Callable[[], object]:
    """A batch through the path a user is on: numpy on a CPU, kernels in bfloat16 on a GPU."""
    batch, length = ids.shape
    if device.type == "cpu":
        runtime = Runtime(folded, random_codebook(4, 2, 1, 8).tokenizer, tuple("abcd"))
        return partial(runtime.scores, ids.flatten().numpy(), np.arange(0, batch * length + 1, length))
    fast = GpuModel(folded.tables, device, torch.bfloat16)
    lengths = torch.full((batch,), length, dtype=torch.int32, device=device)
    return torch.inference_mode()(partial(fast.scores, ids.int().to(device), lengths))


def _cold(folded: Projection, ids: Tensor) -> Callable[[], object]:
    """The same on a CPU with no token's row in the cache, as for texts whose words were never seen before."""
    score = _projected(folded, ids, torch.device("cpu"))

    def work() -> None:
        forget(folded)
        score()

    return work


def forget(folded: Projection) -> None:
    """Empty the cache of token rows."""
    old = folded.cache
    folded.cache = TypeCache(len(old.slot_of), old.rows.shape[1], len(old.rows))


def _large(folded: Projection, ids: Tensor, device: torch.device) -> dict[str, float]:
    """A batch that fills the device, and what it must at least read and multiply."""
    found = timed(_projected(folded, ids, device), device)
    batch, length = ids.shape
    tables = folded.tables
    element = 2 * tables.columns.projected  # bytes of a row of B in bfloat16, each token's read once
    values = tables.options.heads * tables.value_width
    products = 2 * length * length * (tables.dim + values)  # of a text: attention scores, attention output
    gates = 2 * length * tables.dim * len(tables.anchor_rows) if tables.options.gated else 0
    found |= {f"{name} ms": spent for name, spent in _stages(_projected(folded, ids, device)).items()}
    return {**found, "texts": batch, "bytes": batch * length * (element + 4), "flops": batch * (products + gates)}


def _stages(work: Callable[[], object], repeats: int = 5) -> dict[str, float]:
    """Milliseconds on the device, kernel by kernel."""
    from torch.profiler import ProfilerActivity, profile

    work()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    taken: dict[str, float] = {}
    for event in found.key_averages():
        product = any(part in event.key for part in ("gemm", "nvjet", "cutlass"))
        name = event.key.strip("_") if event.key.startswith("_") else "matrix product" if product else "other"
        taken[name] = taken.get(name, 0.0) + event.self_device_time_total / 1000 / repeats
    return {name: spent for name, spent in taken.items() if spent > 0}


def _limits(device: torch.device) -> dict[str, float]:
    """What the device does at best: bytes copied (read and written) and bfloat16 products, a second."""
    if device.type != "cuda":
        return {}
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target, square = torch.empty_like(source), torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    copied = timed(lambda: target.copy_(source), device)["ms"]
    multiplied = timed(lambda: square @ square, device)["ms"]
    return {"copy_bytes": 2 * source.numel() / copied * 1000, "matmul_flops": 2 * 8192**3 / multiplied * 1000}


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


def run_distillation(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """A table of this shape, its rows drawn around as many centres as there are anchors; the values cost nothing."""
    shape = run.settings["shape"]
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(shape["anchors"], shape["dim"], generator=generator)
    chosen = torch.randint(shape["anchors"], (shape["vocabulary"],), generator=generator)
    table = centres[chosen] + torch.randn(shape["vocabulary"], shape["dim"], generator=generator)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(shape["vocabulary"])}, unk_token="w0"))
    settings = DistillationSettings(**run.settings["distillation"], device=places.device)
    began = time.perf_counter()
    codebook = distill(Teacher("random", table, tokenizer), settings, report=report)
    return {"seconds": time.perf_counter() - began, "cosine": codebook.about["cosine"]}, {}


def run_training(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """The strong preset for so many steps, tokenizing and validation included: the median of three runs.

    A short run warms up; all three are recorded.
    """
    settings = run.settings
    rows, _, about = load_rows(places, {"data": settings["data"], "rows": 0})
    codebook = codebook_for(places, settings["teacher"], settings["distillation"], report)
    preset, shape = (
        training_of(settings["training"], places.device),
        Architecture(attend=settings["attend"]),
    )
    fit_model(codebook, rows.take(np.arange(0, len(rows), 20)), None, replace(preset, steps=50), shape)
    steps = 0

    def counted(what: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        nonlocal steps
        steps = done if what == "train" else steps
        report(what, done, total, figures)

    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        fit_model(codebook, rows, None, preset, shape, report=counted)
        taken.append(time.perf_counter() - began)
    return {"seconds": statistics.median(taken), "each": taken, "steps": steps}, {"data": about}
