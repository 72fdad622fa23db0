"""The solver `pursuit`: anchors and sparse pairs for the rows of a table, by alternating minimisation.

The anchors start as k-means centres; then rounds of orthogonal matching pursuit (which anchors a row uses, and with
which weights) alternate with a least-squares update of the anchors. Rows are unit vectors, so the squared error of a
least-squares fit is 1 - cos^2; weighting each row by 1 / cos in the update makes it maximise the cosine instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.codebook import BLOCK, Codebook
from ade.progress import Report
from ade.settings import DistillationSettings


@dataclass
class Rows:
    """The rows of the teacher's table, scaled to unit length, and the weight of each in the objective."""

    table: Tensor  # (N, d), any float type, on any device
    importance: Tensor  # (N,) mean 1
    device: torch.device  # where rows are needed

    def __len__(self) -> int:
        return len(self.table)

    def take(self, rows: Tensor) -> Tensor:
        """Return unit rows by their indices (n,), on the device: (n, d)."""
        return F.normalize(self.table[rows].to(self.device, torch.float32), dim=1)

    def blocks(self, size: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield all rows in blocks of `size`: the slice of the table, its unit rows, their importance."""
        for start in range(0, len(self), size):
            part = slice(start, min(start + size, len(self)))
            rows = F.normalize(self.table[part].to(self.device, torch.float32), dim=1)
            yield part, rows, self.importance[part].to(self.device)


def block_size(anchors: int, pairs: int) -> int:
    """Return the number of rows of a block in `pursue_all`, so that its largest tensors take about 256 MB."""
    return max(64, min(8192, (1 << 26) // (anchors + pairs**2)))


def fit_anchors(rows: Rows, settings: DistillationSettings, generator: torch.Generator, report: Report) -> Tensor:
    """Fit the anchors (K, d) to the rows."""
    anchors = _spherical_kmeans(rows, settings.anchors, generator, report)
    sample, size = rows, 256 * settings.anchors
    if len(rows) > size:
        chosen = torch.randperm(len(rows), generator=generator)[:size].sort().values
        sample = Rows(rows.table[chosen], rows.importance[chosen], rows.device)
    for done in range(settings.rounds):
        indices, weights, cosine = pursue_all(sample, anchors, settings)
        report("pursuit", done, settings.rounds + 1, {"cosine": float((cosine * sample.importance).mean())})
        anchors = update_anchors(sample, anchors, indices, weights, cosine)
    return anchors


def _spherical_kmeans(rows: Rows, count: int, generator: torch.Generator, report: Report, rounds: int = 6) -> Tensor:
    """Return the centres (K, d) of k-means by cosine on a sample; empty clusters restart at random rows."""
    sample = torch.randperm(len(rows), generator=generator)[: 48 * count]
    points = rows.take(sample)  # (n, d)
    centers = points[:count].clone()  # (K, d)
    for done in range(rounds):
        report("k-means", done, rounds, {})
        nearest = torch.cat([(block @ centers.T).argmax(1) for block in points.split(8192)])
        centers = F.normalize(torch.zeros_like(centers).index_add(0, nearest, points), dim=1)
        empty = (torch.bincount(nearest, minlength=count) == 0).nonzero()[:, 0]
        again = torch.randint(len(points), (len(empty),), generator=generator)
        centers[empty] = points[again.to(points.device)]
    return centers


def pursue_all(rows: Rows, anchors: Tensor, settings: DistillationSettings) -> tuple[Tensor, Tensor, Tensor]:
    """Apply `pursue` to all rows in blocks: anchor indices (N, k), weights (N, k) and cosines (N,)."""
    gram = anchors @ anchors.T  # (K, K)
    indices = torch.empty(len(rows), settings.pairs, dtype=torch.int64)
    weights = torch.empty(len(rows), settings.pairs)
    cosine = torch.empty(len(rows))
    for part, block, _ in rows.blocks(block_size(len(anchors), settings.pairs)):
        found = pursue(block @ anchors.T, gram, settings.pairs, settings.signed)
        indices[part], weights[part], cosine[part] = (tensor.cpu() for tensor in found)
    return indices, weights, cosine


def pursue(
    target: Tensor, gram: Tensor, pairs: int, signed: bool = True, path: list[Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Orthogonal matching pursuit of many unit rows at once.

    `target` (n, K) are the inner products of the rows with the anchors, `gram` (K, K) those of the anchors. Each step
    adds to every row the anchor with the largest product with its residual, then solves for all its weights.
    Returns anchor indices (n, k), weights (n, k) and cosines (n,); appends those after each step to `path`.
    """
    n = len(target)
    chosen = torch.empty(n, 0, dtype=torch.int64, device=target.device)
    products = target.new_empty(n, pairs, pairs)  # inner products of the chosen anchors
    residual = target  # (n, K): inner products of the residual with the anchors
    for step in range(pairs):
        # The best anchor that the row does not have yet.
        score = residual.abs() if signed else residual.clone()
        score.scatter_(1, chosen, -torch.inf)
        chosen = torch.cat([chosen, score.argmax(1, keepdim=True)], 1)  # (n, s)

        # Least squares: products @ weights = target, with a small ridge.
        products[:, step, : step + 1] = products[:, : step + 1, step] = gram[chosen[:, -1:], chosen]
        products[:, step, step] += 1e-5
        small = products[:, : step + 1, : step + 1]  # (n, s, s)
        weights = torch.linalg.solve_ex(small, target.gather(1, chosen).unsqueeze(2)).result  # (n, s, 1)
        if not signed:
            weights = weights.clamp(min=0)
        if path is not None:
            path.append((weights.squeeze(2) * target.gather(1, chosen)).sum(1).clamp(0, 1).sqrt())
        if step + 1 < pairs:
            residual = target - F.embedding_bag(chosen, gram, mode="sum", per_sample_weights=weights.squeeze(2))

    weights = weights.squeeze(2)
    product = (weights * target.gather(1, chosen)).sum(1)
    norm = torch.einsum("ns,nst,nt->n", weights, small, weights).clamp(min=1e-12).sqrt()
    return chosen, weights, (product / norm).nan_to_num()


def update_anchors(rows: Rows, anchors: Tensor, indices: Tensor, weights: Tensor, cosine: Tensor) -> Tensor:
    """Return the anchors that fit the rows best with their pairs fixed: weighted least squares."""
    count, dim = anchors.shape
    square = torch.zeros(count, count, device=anchors.device)
    product = torch.zeros(count, dim, device=anchors.device)
    for part, block, importance in rows.blocks(2048):
        index, weight = indices[part].to(anchors.device), weights[part].to(anchors.device)  # (n, k)
        scaled = weight * (importance / cosine[part].to(anchors.device).clamp(min=0.1)).unsqueeze(1)
        both = (index.unsqueeze(2) * count + index.unsqueeze(1)).flatten()  # every pair of two anchors of a row
        square.view(-1).index_add_(0, both, (scaled.unsqueeze(2) * weight.unsqueeze(1)).flatten())
        row = torch.arange(len(block), device=anchors.device).repeat_interleave(index.shape[1])
        places = torch.stack([index.flatten(), row])
        shape = (count, len(block))
        product += torch.sparse_coo_tensor(places, scaled.flatten(), shape, check_invariants=False) @ block

    used = square.diagonal() > 0
    ridge = 1e-3 * square.diagonal().clamp(min=1e-3)
    fitted = torch.linalg.solve(square + ridge.diag(), product + ridge.unsqueeze(1) * anchors)
    fitted[~used] = rows.take(cosine.argsort()[: int((~used).sum())])  # restart at the rows of lowest cosine
    return F.normalize(fitted, dim=1)


def quality(rows: Rows, codebook: Codebook) -> dict[str, Any]:
    """Return the mean and percentiles of the cosine to the teacher, and the number of unused anchors."""
    blocks = zip(codebook.blocks(BLOCK), rows.blocks(BLOCK), strict=True)
    cosine = torch.cat(
        [F.cosine_similarity(torch.from_numpy(composed), row.cpu(), dim=1) for composed, (_, row, _) in blocks]
    )
    low, high = torch.quantile(cosine, torch.tensor([0.05, 0.95])).tolist()
    used = np.bincount(codebook.indices[codebook.weights != 0], minlength=len(codebook.anchors)) > 0
    return {
        "cosine": float(cosine.mean()),
        "cosine_p5": low,
        "cosine_p95": high,
        "dead_anchors": int((~used).sum()),
    }
