"""Pursuit: sparse pairs over shared anchors for the rows of a table, and the anchors that serve them best.

A k-means start, then rounds of batched orthogonal matching pursuit (which anchors, how much) and a closed-form update
of the anchors. Rows are unit vectors, so the squared error of a least-squares fit is 1 - cos^2; weighting each row by
1 / cos in the anchor update turns the steps from cos^2 towards the cosine itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ade.codebook import Codebook
from ade.errors import InputError
from ade.progress import Report
from ade.settings import DistillationSettings

DENSE = 1024  # up to so many anchors, products of dense coefficients are quicker than sums over pairs


@dataclass
class Rows:
    """Unit rows of the teacher, block by block, with the weight of each in the objective."""

    table: Tensor  # (N, d), any float type, stays where it is
    importance: Tensor  # (N,) mean 1
    device: torch.device

    def __len__(self) -> int:
        return len(self.table)

    def take(self, rows: Tensor) -> Tensor:
        """Unit rows by number, on the device."""
        return F.normalize(self.table[rows].to(self.device, torch.float32), dim=1)

    def blocks(self, size: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """All of it: where a block is, its unit rows, their importance."""
        for start in range(0, len(self), size):
            part = slice(start, min(start + size, len(self)))
            rows = F.normalize(self.table[part].to(self.device, torch.float32), dim=1)
            yield part, rows, self.importance[part].to(self.device)


def importance_of(frequencies: Tensor | None, count: int) -> Tensor:
    """How much each row counts, 1 on average: by how often its token occurs, where that is known."""
    if frequencies is None:
        return torch.ones(count)
    if len(frequencies) != count:
        raise InputError(f"{len(frequencies)} frequencies for {count} tokens")
    smoothed = frequencies.float() + 1  # a token the corpus lacks still counts a little
    return smoothed / smoothed.mean()


def block_size(anchors: int, pairs: int) -> int:
    """Rows pursued at once: their products with the anchors, and of their anchors, stay near 256 MB."""
    return max(64, min(8192, (1 << 26) // (anchors + pairs**2)))


def fit_anchors(rows: Rows, settings: DistillationSettings, generator: torch.Generator, report: Report) -> Tensor:
    """The anchors (K, d) under which rows come closest with their pairs."""
    anchors = _spherical_kmeans(rows, settings.anchors, generator, report)
    sample = _sample(rows, 256 * settings.anchors, generator)
    for done in range(settings.rounds):
        indices, weights, cosine = pursue_all(sample, anchors, settings)
        report("pursuit", done, settings.rounds + 1, {"cosine": float((cosine * sample.importance).mean())})
        anchors = update_anchors(sample, anchors, indices, weights, cosine)
    return anchors


def _sample(rows: Rows, size: int, generator: torch.Generator) -> Rows:
    """The rows the anchors are fitted on: all of them, or a random part of a large table, weights kept."""
    if len(rows) <= size:
        return rows
    chosen = torch.randperm(len(rows), generator=generator)[:size].sort().values
    return Rows(rows.table[chosen], rows.importance[chosen], rows.device)


def _spherical_kmeans(rows: Rows, count: int, generator: torch.Generator, report: Report, rounds: int = 6) -> Tensor:
    sample = torch.randperm(len(rows), generator=generator)[: 48 * count]
    points = rows.take(sample)  # (n, d)
    centers = points[:count].clone()  # (K, d)
    for done in range(rounds):
        report("k-means", done, rounds, {})
        nearest = torch.cat([(block @ centers.T).argmax(1) for block in points.split(8192)])
        centers = F.normalize(torch.zeros_like(centers).index_add(0, nearest, points), dim=1)
        empty = (torch.bincount(nearest, minlength=count) == 0).nonzero()[:, 0]
        centers[empty] = points[torch.randint(len(points), (len(empty),), generator=generator).to(points.device)]
    return centers


def pursue_all(rows: Rows, anchors: Tensor, settings: DistillationSettings) -> tuple[Tensor, Tensor, Tensor]:
    """`pursue` for every row of a table, a block at a time."""
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
    """Orthogonal matching pursuit of many unit rows at once, from their products with the anchors alone.

    Each step takes the anchor closest to what is left of each row, then refits all weights of the row.
    Returns anchor indices, weights and the cosine reached; `path` gets the cosine after each step.
    """
    n = len(target)
    chosen = torch.empty(n, 0, dtype=torch.int64, device=target.device)
    products = target.new_empty(n, pairs, pairs)  # of the chosen anchors
    left = target  # (n, K): products of the residual with the anchors
    for step in range(pairs):
        score = left.abs() if signed else left.clone()
        score.scatter_(1, chosen, -torch.inf)
        chosen = torch.cat([chosen, score.argmax(1, keepdim=True)], 1)  # (n, s)
        products[:, step, : step + 1] = products[:, : step + 1, step] = gram[chosen[:, -1:], chosen]
        products[:, step, step] += 1e-5
        small = products[:, : step + 1, : step + 1]  # (n, s, s)
        weights = torch.linalg.solve_ex(small, target.gather(1, chosen).unsqueeze(2)).result  # (n, s, 1)
        if not signed:
            weights = weights.clamp(min=0)
        if path is not None:
            path.append((weights.squeeze(2) * target.gather(1, chosen)).sum(1).clamp(0, 1).sqrt())
        if step + 1 < pairs:
            left = target - F.embedding_bag(chosen, gram, mode="sum", per_sample_weights=weights.squeeze(2))
    weights = weights.squeeze(2)
    product = (weights * target.gather(1, chosen)).sum(1)
    norm = torch.einsum("ns,nst,nt->n", weights, small, weights).clamp(min=1e-12).sqrt()
    return chosen, weights, (product / norm).nan_to_num()


def update_anchors(rows: Rows, anchors: Tensor, indices: Tensor, weights: Tensor, cosine: Tensor) -> Tensor:
    """The anchors that fit the rows best with the pairs as they are: weighted least squares, in closed form."""
    count, dim = anchors.shape
    square = torch.zeros(count, count, device=anchors.device)
    product = torch.zeros(count, dim, device=anchors.device)
    for part, block, importance in rows.blocks(2048 if count > DENSE else 8192):
        index, weight = indices[part].to(anchors.device), weights[part].to(anchors.device)  # (n, k)
        scaled = weight * (importance / cosine[part].to(anchors.device).clamp(min=0.1)).unsqueeze(1)
        if count > DENSE:  # a row has few of many anchors: sums over its own pairs
            both = (index.unsqueeze(2) * count + index.unsqueeze(1)).flatten()
            square.view(-1).index_add_(0, both, (scaled.unsqueeze(2) * weight.unsqueeze(1)).flatten())
            product.index_add_(0, index.flatten(), (scaled.unsqueeze(2) * block.unsqueeze(1)).flatten(0, 1))
        else:
            empty = torch.zeros(len(block), count, device=anchors.device)
            coefficients, by_importance = (empty.scatter_add(1, index, values) for values in (weight, scaled))
            square += by_importance.T @ coefficients
            product += by_importance.T @ block
    used = square.diagonal() > 0
    ridge = 1e-3 * square.diagonal().clamp(min=1e-3)
    fitted = torch.linalg.solve(square + ridge.diag(), product + ridge.unsqueeze(1) * anchors)
    fitted[~used] = rows.take(cosine.argsort()[: int((~used).sum())])  # start again at the rows served worst
    return F.normalize(fitted, dim=1)


def quality(rows: Rows, codebook: Codebook) -> dict[str, Any]:
    """Mean and percentile cosine to the teacher, and how many anchors nobody uses."""
    size = 8192
    blocks = zip(codebook.blocks(size), rows.blocks(size), strict=True)
    found = [F.cosine_similarity(made.to(rows.device), block, dim=1).cpu() for (_, made), (_, block, _) in blocks]
    cosine = torch.cat(found)
    spread = torch.quantile(cosine, torch.tensor([0.05, 0.5, 0.95]))
    used = torch.bincount(codebook.indices.long()[codebook.weights != 0], minlength=len(codebook.anchors)) > 0
    return {
        "cosine": float(cosine.mean()),
        "weighted_cosine": float((cosine * rows.importance).mean()),
        "cosine_p5": float(spread[0]),
        "cosine_p50": float(spread[1]),
        "cosine_p95": float(spread[2]),
        "dead_anchors": int((~used).sum()),
    }
