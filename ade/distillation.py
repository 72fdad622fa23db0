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
    counts = keep.sum(1)
    codebook = Codebook(anchors.cpu().numpy(), indices[keep].numpy(), weights[keep].numpy(), counts.numpy())
    return teacher.as_saved(codebook, settings=asdict(settings), **quality(rows, codebook))


def above_threshold(weights: Tensor, threshold: float) -> Tensor:
    """Return a mask of the weights (N, k) that Vocabulary Projection keeps: I_i = {j : |T_ij| >= tau}.

    The paper's weights are positive; ours may be signed, so their absolute value is compared. A row always keeps its
    largest weight, and zeros only so.
    """
    size = weights.abs()
    keep = (size >= threshold) & (weights != 0)
    return keep.scatter(1, size.argmax(1, keepdim=True), True)


def _solve_by_gradient(
    rows: Rows, settings: DistillationSettings, generator: torch.Generator, report: Report
) -> tuple[Tensor, Tensor, Tensor]:
    """Return anchors (K, d) of norm one, anchor indices (N, k) and weights (N, k) of rows of norm one."""
    count, signed = len(rows), settings.signed
    anchors = rows.take(torch.randperm(count, generator=generator)[: settings.anchors])  # (K, d)
    transform = 0.1 * torch.cat([block @ anchors.T for _, block, _ in rows.blocks(8192)])  # (N, K): the paper's T
    kept = torch.ones_like(transform, dtype=torch.bool)
    anchors.requires_grad_()
    transform.requires_grad_()
    steps = settings.rounds * max(1, count // BATCH)
    for stage, rate, penalty in (("transform", 1e-2, L1), ("pairs", 2e-3, 0.0)):
        optimizers = torch.optim.Adam([anchors], lr=2e-3), torch.optim.SparseAdam([transform], lr=rate)
        for step in range(steps):
            batch = torch.randint(count, (BATCH,), generator=generator)
            here = batch.to(rows.device)
            weights = F.embedding(here, transform, sparse=True) * kept[here]  # (n, K)
            weights = weights if signed else weights.clamp(min=0)
            cosine = F.cosine_similarity(weights @ anchors, rows.take(batch), dim=1).mean()
            loss = 1 - cosine + penalty * weights.abs().sum(1).mean()

            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            if step % 50 == 0 or step == steps - 1:
                report(stage, step + 1, steps, {"cosine": cosine.item()})

        # Keep the largest weights of each row, and train on with these alone.
        with torch.no_grad():
            size = (transform.abs() if signed else transform.clamp(min=0)) * kept
            indices = size.topk(settings.pairs, dim=1).indices  # (N, k)
            kept = torch.zeros_like(kept).scatter(1, indices, True)

    with torch.no_grad():
        length = anchors.norm(dim=1).clamp(min=1e-6)
        unit = anchors / length.unsqueeze(1)
        transform = transform * kept * length
        transform = transform if signed else transform.clamp(min=0)
        norm = (transform @ unit).norm(dim=1, keepdim=True).clamp(min=1e-6)  # (N, 1)
        return unit, indices.cpu(), (transform.gather(1, indices) / norm).cpu()
