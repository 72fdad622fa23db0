"""Stage 1: distil a teacher's embedding table into anchors and sparse pairs, under the cosine objective.

`pursuit` (ours, the default): see `pursuit.py`; with a size, `budget.py`.
`gradient` (the paper's): Adam on the cosine loss over a dense, L1-regularised transform as in Anchor &
Transform, then the threshold, then the same loss on the pairs that are left.
"""

from collections.abc import Iterable
from dataclasses import asdict, replace

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from ade.codebook import Codebook
from ade.data.tokenize import encode_batch
from ade.devices import resolve_device
from ade.errors import InputError
from ade.packing.budget import distill_to_size, parse_size
from ade.progress import Report, silent
from ade.pursuit import Rows, fit_anchors, importance_of, pursue_all, quality
from ade.settings import DistillationSettings
from ade.teachers import Teacher


def distill(
    teacher: Teacher,
    settings: DistillationSettings | None = None,
    frequencies: Tensor | None = None,
    report: Report = silent,
) -> Codebook:
    """Distil a teacher into a codebook; token frequencies (see `count_tokens`) weight the objective."""
    settings = settings or DistillationSettings()
    if settings.size:
        return distill_to_size(teacher, parse_size(settings.size), settings, frequencies, report)
    count, _ = teacher.table.shape
    if settings.anchors > count:
        raise InputError(f"{settings.anchors} anchors, but the teacher has only {count} tokens")
    if not 1 <= settings.pairs <= settings.anchors:
        raise InputError(f"pairs must lie between 1 and the {settings.anchors} anchors, not {settings.pairs}")
    rows = Rows(teacher.table, importance_of(frequencies, count), resolve_device(settings.device))
    generator = torch.Generator().manual_seed(settings.seed)
    solve = _solve_by_pursuit if settings.solver == "pursuit" else _solve_by_gradient
    anchors, indices, weights = solve(rows, settings, generator, report)
    keep = (weights.abs() >= settings.threshold) & (weights != 0)  # (N, k)
    keep[torch.arange(count), weights.abs().argmax(1)] = True
    _revive(rows, anchors, indices, weights, keep)
    made = Codebook.from_pairs(anchors, indices[keep], weights[keep], keep.sum(1), teacher.tokenizer)
    return replace(made, about={**teacher.about, "settings": asdict(settings), **quality(rows, made)})


def count_tokens(tokenizer: Tokenizer, texts: Iterable[str], size: int) -> Tensor:
    """How often each token occurs in a corpus, as weights for `distill`."""
    counts = torch.zeros(size, dtype=torch.float64)
    batch: list[str] = []

    def flush() -> None:
        ids = [i for encoding in encode_batch(tokenizer, batch) for i in encoding.ids]
        counts.add_(torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=size))
        batch.clear()

    for text in texts:
        batch.append(text)
        if len(batch) == 4096:
            flush()
    flush()
    return counts.float()


def _revive(rows: Rows, anchors: Tensor, indices: Tensor, weights: Tensor, keep: Tensor) -> None:
    """Give every anchor that no pair uses to a row that is served badly: it becomes that row, and its only pair.

    Only rows whose own anchors serve others too are taken, so that no anchor dies for another; on a table with
    fewer distinct rows than anchors some may stay unused.
    """
    uses = _uses(indices, keep & (weights != 0), len(anchors))
    dead = (uses == 0).nonzero()[:, 0].tolist()
    if not dead:
        return
    cosine = _cosines(rows, anchors, indices, weights * keep)
    filled = torch.cat([block.norm(dim=1).cpu() > 0 for _, block, _ in rows.blocks(8192)])
    for row in cosine.masked_fill(~filled, torch.inf).argsort().tolist():
        if not dead:
            return
        mine = indices[row][keep[row]]
        if filled[row] and int(uses[mine].min()) > 1:
            anchor = dead.pop()
            anchors[anchor] = rows.take(torch.tensor([row]))[0]
            uses[mine] -= 1
            uses[anchor] += 1
            keep[row] = False
            indices[row, 0], weights[row, 0], keep[row, 0] = anchor, 1.0, True


def _uses(indices: Tensor, keep: Tensor, count: int) -> Tensor:
    """How many pairs each anchor has."""
    return torch.bincount(indices[keep], minlength=count)  # (K,)


def _cosines(rows: Rows, anchors: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Cosine of every composed row to the teacher's."""
    cosine = torch.empty(len(rows))
    for part, block, _ in rows.blocks(2048):
        w, j = weights[part].to(anchors.device), indices[part].to(anchors.device)
        cosine[part] = F.cosine_similarity(torch.einsum("nk,nkd->nd", w, anchors[j]), block, dim=1).cpu()
    return cosine


def _solve_by_pursuit(
    rows: Rows, settings: DistillationSettings, generator: torch.Generator, report: Report
) -> tuple[Tensor, Tensor, Tensor]:
    anchors = fit_anchors(rows, settings, generator, report)
    indices, weights, cosine = pursue_all(rows, anchors, settings)
    figures = {"cosine": float((cosine * rows.importance).mean())}
    report("pursuit", settings.rounds + 1, settings.rounds + 1, figures)
    return anchors, indices, weights


# ---- gradient (the paper's) ----


def _solve_by_gradient(
    rows: Rows, settings: DistillationSettings, generator: torch.Generator, report: Report
) -> tuple[Tensor, Tensor, Tensor]:
    count = len(rows)
    anchors = rows.take(torch.randperm(count, generator=generator)[: settings.anchors]).requires_grad_()
    dense = torch.empty(count, settings.anchors)
    for part, block, _ in rows.blocks(8192):
        dense[part] = (block @ anchors.detach().T).cpu()
    transform = (dense.to(rows.device) * 0.1).requires_grad_()  # (N, K): the paper's T
    steps = settings.rounds * max(1, count // 1024)
    _descend(rows, anchors, transform, None, settings, generator, steps, report)
    with torch.no_grad():
        size = transform.abs() if settings.signed else transform
        indices = size.topk(settings.pairs, dim=1).indices  # (N, k)
        weights = transform.gather(1, indices)
        weights = (weights if settings.signed else weights.clamp(min=0)).clone().requires_grad_()
    _descend(rows, anchors, weights, indices, settings, generator, steps, report)
    with torch.no_grad():
        length = anchors.norm(dim=1).clamp(min=1e-6)  # anchors to norm one, composed rows to norm one
        weights = (weights if settings.signed else weights.clamp(min=0)) * length[indices]
        unit = anchors / length.unsqueeze(1)
        parts = zip(weights.split(4096), indices.split(4096), strict=True)
        composed = torch.cat([torch.einsum("nk,nkd->nd", w, unit[i]).norm(dim=1) for w, i in parts])  # (N,)
        return unit, indices.cpu(), (weights / composed.clamp(min=1e-6).unsqueeze(1)).cpu()


def _descend(
    rows: Rows, anchors: Tensor, weights: Tensor, indices: Tensor | None,
    settings: DistillationSettings, generator: torch.Generator, steps: int, report: Report,
) -> None:  # fmt: skip
    """Adam on the cosine loss over sampled tokens; the L1 term acts while the transform is still dense."""
    optimizer = torch.optim.Adam([anchors], lr=2e-3)
    sparse = torch.optim.SparseAdam([weights], lr=1e-2 if indices is None else 2e-3)
    stage = "transform" if indices is None else "pairs"
    for step in range(steps):
        batch = torch.multinomial(rows.importance, 1024, replacement=True, generator=generator)
        target = rows.take(batch)  # (n, d)
        taken = F.embedding(batch.to(weights.device), weights, sparse=True)
        used = taken if settings.signed else taken.clamp(min=0)
        if indices is None:
            composed = used @ anchors
        else:
            composed = torch.einsum("nk,nkd->nd", used, anchors[indices.to(weights.device)[batch.to(weights.device)]])
        cosine = F.cosine_similarity(composed, target, dim=1).mean()
        penalty = 2e-3 * used.abs().sum(1).mean() if indices is None else 0.0
        optimizer.zero_grad()
        sparse.zero_grad()
        (1 - cosine + penalty).backward()
        optimizer.step()
        sparse.step()
        if step % 50 == 0 or step == steps - 1:
            report(stage, step + 1, steps, {"cosine": cosine.item()})
