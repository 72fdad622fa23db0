"""Stage 1: distil a teacher's embedding table into anchors and sparse pairs, under the cosine objective.

`pursuit` (ours, the default): a k-means start, then rounds of batched orthogonal matching pursuit (which
anchors, how much) and a closed-form update of the anchors. Rows are unit vectors, so the squared error of a
least-squares fit is 1 - cos^2; weighting each row by 1 / cos in the anchor update turns the steps from
cos^2 towards the cosine itself.
`gradient` (the paper's): Adam on the cosine loss over a dense, L1-regularised transform as in Anchor &
Transform, then the threshold, then the same loss on the pairs that are left.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from ade.codebook import Codebook
from ade.errors import InputError
from ade.progress import Report, silent
from ade.settings import DistillationSettings
from ade.teachers import Teacher


@dataclass
class _Rows:
    """Unit rows of the teacher, block by block, with the weight of each in the objective."""

    table: Tensor  # (N, d), any float type, stays where it is
    importance: Tensor  # (N,) mean 1
    device: torch.device

    def __len__(self) -> int:
        return len(self.table)

    def take(self, rows: Tensor) -> Tensor:
        return F.normalize(self.table[rows].to(self.device, torch.float32), dim=1)

    def blocks(self, size: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        for start in range(0, len(self), size):
            part = slice(start, min(start + size, len(self)))
            rows = F.normalize(self.table[part].to(self.device, torch.float32), dim=1)
            yield part, rows, self.importance[part].to(self.device)


def distill(
    teacher: Teacher,
    settings: DistillationSettings | None = None,
    frequencies: Tensor | None = None,
    report: Report = silent,
) -> Codebook:
    """Distil a teacher into a codebook; token frequencies (see `count_tokens`) weight the objective."""
    settings = settings or DistillationSettings()
    count, _ = teacher.table.shape
    if settings.anchors > count:
        raise InputError(f"{settings.anchors} anchors, but the teacher has only {count} tokens")
    if not 1 <= settings.pairs <= settings.anchors:
        raise InputError(f"pairs must lie between 1 and the {settings.anchors} anchors, not {settings.pairs}")
    rows = _Rows(teacher.table, _importance(frequencies, count), resolve_device(settings.device))
    generator = torch.Generator().manual_seed(settings.seed)
    solve = _solve_by_pursuit if settings.solver == "pursuit" else _solve_by_gradient
    anchors, indices, weights = solve(rows, settings, generator, report)
    keep = (weights.abs() >= settings.threshold) & (weights != 0)  # (N, k)
    keep[torch.arange(count), weights.abs().argmax(1)] = True
    _revive(rows, anchors, indices, weights, keep)
    figures = _quality(rows, anchors, indices, weights * keep)
    return Codebook.from_pairs(
        anchors, indices[keep], weights[keep], keep.sum(1), teacher.tokenizer,
        teacher=teacher.name, rows=count, dim=teacher.table.shape[1], settings=asdict(settings), **figures,
    )  # fmt: skip


def resolve_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for, but no GPU is available; use 'auto' or 'cpu'")
    try:
        return torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device '{name}'; use auto, cpu or cuda") from None


def count_tokens(tokenizer: Tokenizer, texts: Iterable[str], size: int) -> Tensor:
    """How often each token occurs in a corpus, as weights for `distill`."""
    counts = torch.zeros(size, dtype=torch.float64)
    batch: list[str] = []

    def flush() -> None:
        ids = [i for encoding in tokenizer.encode_batch_fast(batch) for i in encoding.ids]
        counts.add_(torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=size))
        batch.clear()

    for text in texts:
        batch.append(text)
        if len(batch) == 4096:
            flush()
    flush()
    return counts.float()


def _importance(frequencies: Tensor | None, count: int) -> Tensor:
    if frequencies is None:
        return torch.ones(count)
    if len(frequencies) != count:
        raise InputError(f"{len(frequencies)} frequencies for {count} tokens")
    smoothed = frequencies.float() + 1  # a token the corpus lacks still counts a little
    return smoothed / smoothed.mean()


def _block_size(settings: DistillationSettings, dim: int) -> int:
    """Rows handled at once: the widest intermediate, (rows, pairs + 1, K), stays near 256 MB."""
    return max(64, min(16384, (1 << 26) // ((settings.pairs + 1) * settings.anchors + 4 * dim)))


def _revive(rows: _Rows, anchors: Tensor, indices: Tensor, weights: Tensor, keep: Tensor) -> None:
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


def _cosines(rows: _Rows, anchors: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Cosine of every composed row to the teacher's."""
    cosine = torch.empty(len(rows))
    for part, block, _ in rows.blocks(2048):
        w, j = weights[part].to(anchors.device), indices[part].to(anchors.device)
        cosine[part] = F.cosine_similarity(torch.einsum("nk,nkd->nd", w, anchors[j]), block, dim=1).cpu()
    return cosine


# ---- pursuit ----


def _solve_by_pursuit(
    rows: _Rows, settings: DistillationSettings, generator: torch.Generator, report: Report
) -> tuple[Tensor, Tensor, Tensor]:
    anchors = _spherical_kmeans(rows, settings.anchors, generator, report)
    sample = _sample(rows, 256 * settings.anchors, generator)
    for done in range(settings.rounds):
        indices, weights, cosine = _pursue_all(sample, anchors, settings)
        report("pursuit", done, settings.rounds + 1, {"cosine": float((cosine * sample.importance).mean())})
        anchors = _update_anchors(sample, anchors, indices, weights, cosine)
    indices, weights, cosine = _pursue_all(rows, anchors, settings)
    figures = {"cosine": float((cosine * rows.importance).mean())}
    report("pursuit", settings.rounds + 1, settings.rounds + 1, figures)
    return anchors, indices, weights


def _sample(rows: _Rows, size: int, generator: torch.Generator) -> _Rows:
    """The rows the anchors are fitted on: all of them, or a random part of a large table, weights kept."""
    if len(rows) <= size:
        return rows
    chosen = torch.randperm(len(rows), generator=generator)[:size].sort().values
    return _Rows(rows.table[chosen], rows.importance[chosen], rows.device)


def _spherical_kmeans(rows: _Rows, count: int, generator: torch.Generator, report: Report, rounds: int = 6) -> Tensor:
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


def _pursue_all(rows: _Rows, anchors: Tensor, settings: DistillationSettings) -> tuple[Tensor, Tensor, Tensor]:
    gram = anchors @ anchors.T  # (K, K)
    indices = torch.empty(len(rows), settings.pairs, dtype=torch.int64)
    weights = torch.empty(len(rows), settings.pairs)
    cosine = torch.empty(len(rows))
    for part, block, _ in rows.blocks(_block_size(settings, anchors.shape[1])):
        found = pursue(block @ anchors.T, gram, settings.pairs, settings.signed)
        indices[part], weights[part], cosine[part] = (tensor.cpu() for tensor in found)
    return indices, weights, cosine


def pursue(target: Tensor, gram: Tensor, pairs: int, signed: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Orthogonal matching pursuit of many unit rows at once, from their products with the anchors alone.

    Each step takes the anchor closest to what is left of each row, then refits all weights of the row.
    Returns anchor indices, weights and the cosine reached.
    """
    n = len(target)
    chosen = torch.empty(n, 0, dtype=torch.int64, device=target.device)
    left = target  # (n, K): products of the residual with the anchors
    for step in range(pairs):
        score = left.abs() if signed else left.clone()
        score.scatter_(1, chosen, -torch.inf)
        chosen = torch.cat([chosen, score.argmax(1, keepdim=True)], 1)  # (n, s)
        small = gram[chosen.unsqueeze(2), chosen.unsqueeze(1)]  # (n, s, s)
        small.diagonal(dim1=1, dim2=2).add_(1e-5)
        weights = torch.linalg.solve_ex(small, target.gather(1, chosen).unsqueeze(2)).result  # (n, s, 1)
        if not signed:
            weights = weights.clamp(min=0)
        if step + 1 < pairs:
            left = target - torch.bmm(weights.transpose(1, 2), gram[chosen]).squeeze(1)
    weights = weights.squeeze(2)
    product = (weights * target.gather(1, chosen)).sum(1)
    norm = torch.einsum("ns,nst,nt->n", weights, small, weights).clamp(min=1e-12).sqrt()
    return chosen, weights, (product / norm).nan_to_num()


def _update_anchors(rows: _Rows, anchors: Tensor, indices: Tensor, weights: Tensor, cosine: Tensor) -> Tensor:
    """The anchors that fit the rows best with the pairs as they are: weighted least squares, in closed form."""
    count, dim = anchors.shape
    square = torch.zeros(count, count, device=anchors.device)
    product = torch.zeros(count, dim, device=anchors.device)
    for part, block, importance in rows.blocks(8192):
        coefficients = torch.zeros(len(block), count, device=anchors.device)
        coefficients.scatter_add_(1, indices[part].to(anchors.device), weights[part].to(anchors.device))
        scaled = coefficients * (importance / cosine[part].to(anchors.device).clamp(min=0.1)).unsqueeze(1)
        square += scaled.T @ coefficients
        product += scaled.T @ block
    used = square.diagonal() > 0
    ridge = 1e-3 * square.diagonal().clamp(min=1e-3)
    fitted = torch.linalg.solve(square + ridge.diag(), product + ridge.unsqueeze(1) * anchors)
    fitted[~used] = rows.take(cosine.argsort()[: int((~used).sum())])  # start again at the rows served worst
    return F.normalize(fitted, dim=1)


# ---- gradient (the paper's) ----


def _solve_by_gradient(
    rows: _Rows, settings: DistillationSettings, generator: torch.Generator, report: Report
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
    rows: _Rows, anchors: Tensor, weights: Tensor, indices: Tensor | None,
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


def _quality(rows: _Rows, anchors: Tensor, indices: Tensor, weights: Tensor) -> dict[str, Any]:
    """Mean and percentile cosine to the teacher, and how many anchors nobody uses."""
    cosine = _cosines(rows, anchors, indices, weights)
    spread = torch.quantile(cosine, torch.tensor([0.05, 0.5, 0.95]))
    used = _uses(indices, weights != 0, len(anchors)) > 0
    return {
        "cosine": float(cosine.mean()),
        "weighted_cosine": float((cosine * rows.importance).mean()),
        "cosine_p5": float(spread[0]),
        "cosine_p50": float(spread[1]),
        "cosine_p95": float(spread[2]),
        "dead_anchors": int((~used).sum()),
    }
