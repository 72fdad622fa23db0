"""Stage 1: distil a teacher's embedding table into anchors and sparse pairs that maximise the cosine to its rows.

The setting `solver` chooses how:
  pursuit   ours, the default: orthogonal matching pursuit, see `pursuit.py`
  gradient  the paper's: Adam on the cosine loss over a dense, L1-regularised transform as in Anchor & Transform, then
            over the largest weights of each row alone

Vocabulary Projection (stage 2) then keeps the pairs whose weight reaches the threshold.
"""

from dataclasses import asdict

import torch
from torch import Tensor
from torch.nn import functional as F

from ade.codebook import Codebook
from ade.devices import resolve_device
from ade.errors import InputError
from ade.folder import Saved
from ade.progress import Report, silent
from ade.pursuit import Rows, fit_anchors, pursue_all, quality
from ade.settings import DistillationSettings
from ade.teachers import Teacher

BATCH = 1024  # rows of a step of the gradient solver
L1 = 2e-3  # of the dense transform


def distill(teacher: Teacher, settings: DistillationSettings | None = None, report: Report = silent) -> Saved:
    """Distil a teacher into a codebook, as a folder of its own; `report` is called with the progress."""
    settings = settings or DistillationSettings()
    count = len(teacher.table)
    if settings.anchors > count:
        raise InputError(f"{settings.anchors} anchors, but the teacher has only {count} tokens")
    if not 1 <= settings.pairs <= settings.anchors:
        raise InputError(f"pairs must lie between 1 and the {settings.anchors} anchors, not {settings.pairs}")

    rows = Rows(teacher.table, torch.ones(count), resolve_device(settings.device))
    generator = torch.Generator().manual_seed(settings.seed)
    if settings.solver == "pursuit":
        anchors = fit_anchors(rows, settings, generator, report)  # (K, d)
        indices, weights, cosine = pursue_all(rows, anchors, settings)  # (N, k), (N, k), (N,)
        report("pursuit", settings.rounds + 1, settings.rounds + 1, {"cosine": float(cosine.mean())})
    else:
        anchors, indices, weights = _solve_by_gradient(rows, settings, generator, report)

    keep = above_threshold(weights, settings.threshold)  # (N, k)
    codebook = Codebook(anchors.cpu().numpy(), indices[keep].numpy(), weights[keep].numpy(), keep.sum(1).numpy())
    return teacher.as_saved(codebook, settings=asdict(settings), **quality(rows, codebook))


def above_threshold(weights: Tensor, threshold: float) -> Tensor:
    """Return a mask of the weights (N, k) that Vocabulary Projection keeps: I_i = {j : |T_ij| >= tau}.

    The paper's weights are positive; ours may be signed, so their absolute value is compared. A row always keeps its
    largest weight, and zeros only so.
    """
    size = weights.abs()
    keep = (size >= threshold) & (weights != 0)
    return keep.scatter(1, size.argmax(1, keepdim=True), True)


def _composed(weights: Tensor, anchors: Tensor, indices: Tensor) -> Tensor:
    """Return the weighted sums of anchors: (n, d)."""
    return torch.einsum("nk,nkd->nd", weights, anchors[indices])


def _solve_by_gradient(
    rows: Rows, settings: DistillationSettings, generator: torch.Generator, report: Report
) -> tuple[Tensor, Tensor, Tensor]:
    count = len(rows)
    anchors = rows.take(torch.randperm(count, generator=generator)[: settings.anchors]).requires_grad_()
    dense = torch.empty(count, settings.anchors)
    for part, block, _ in rows.blocks(8192):
        dense[part] = (block @ anchors.detach().T).cpu()
    transform = (dense.to(rows.device) * 0.1).requires_grad_()  # (N, K): the paper's T
    steps = settings.rounds * max(1, count // BATCH)
    _descend(rows, anchors, transform, None, settings, generator, steps, report)

    # Keep the largest weights of each row and train on with these alone.
    with torch.no_grad():
        size = transform.abs() if settings.signed else transform
        indices = size.topk(settings.pairs, dim=1).indices  # (N, k)
        weights = transform.gather(1, indices)
        weights = (weights if settings.signed else weights.clamp(min=0)).clone().requires_grad_()
    _descend(rows, anchors, weights, indices, settings, generator, steps, report)

    # Scale anchors and composed rows to norm one.
    with torch.no_grad():
        length = anchors.norm(dim=1).clamp(min=1e-6)
        unit = anchors / length.unsqueeze(1)
        weights = (weights if settings.signed else weights.clamp(min=0)) * length[indices]
        parts = zip(weights.split(4096), indices.split(4096), strict=True)
        norms = torch.cat([_composed(weight, unit, index).norm(dim=1) for weight, index in parts])  # (N,)
        return unit, indices.cpu(), (weights / norms.clamp(min=1e-6).unsqueeze(1)).cpu()


def _descend(
    rows: Rows, anchors: Tensor, weights: Tensor, indices: Tensor | None,
    settings: DistillationSettings, generator: torch.Generator, steps: int, report: Report,
) -> None:  # fmt: skip
    """Train anchors and weights in place: Adam on the cosine loss of sampled rows.

    Without `indices` the weights are the dense transform (N, K), under an L1 penalty; with them those of pairs (N, k).
    """
    optimizer = torch.optim.Adam([anchors], lr=2e-3)
    sparse = torch.optim.SparseAdam([weights], lr=1e-2 if indices is None else 2e-3)
    stage = "transform" if indices is None else "pairs"
    for step in range(steps):
        batch = torch.multinomial(rows.importance, BATCH, replacement=True, generator=generator)
        target, here = rows.take(batch), batch.to(weights.device)  # (n, d), (n,)
        used = F.embedding(here, weights, sparse=True)
        used = used if settings.signed else used.clamp(min=0)
        composed = used @ anchors if indices is None else _composed(used, anchors, indices[here])
        cosine = F.cosine_similarity(composed, target, dim=1).mean()
        penalty = L1 * used.abs().sum(1).mean() if indices is None else 0.0

        optimizer.zero_grad()
        sparse.zero_grad()
        (1 - cosine + penalty).backward()
        optimizer.step()
        sparse.step()
        if step % 50 == 0 or step == steps - 1:
            report(stage, step + 1, steps, {"cosine": cosine.item()})
