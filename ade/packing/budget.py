"""A codebook for a budget in bytes: K, the bits, and each token's pairs chosen so that bytes go where they buy most.

A token may have any number of pairs, or its row kept whole in 4 or 8 bits. Each choice has a cost in bits and reaches
a cosine; with a price on a bit, every token takes what is worth most to it, cosine times the token's weight less
cost times price, and the price is set so that all of it fits. Frequent and hard tokens get many pairs, rare and easy
ones get one: the paper's dynamic anchor allocation. Weights and anchors are then fitted as they will be stored.
"""

from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ade.codebook import Codebook
from ade.devices import resolve_device
from ade.embedding import rounded
from ade.errors import InputError
from ade.packing.format import Packing, Shape
from ade.progress import Report, silent
from ade.pursuit import Rows, block_size, fit_anchors, importance_of, pursue, quality, update_anchors
from ade.settings import DistillationSettings
from ade.teachers import Teacher

ANCHOR_SHARE = 0.19  # of the budget, for the anchors: measured to be best from 1 to 4 MiB
MOST_PAIRS = 62  # of a token: its code then has 6 bits
HEADER = 1200  # bytes of a safetensors file that are not arrays
TEMPER = 0.3  # exponent of a token's frequency in its weight: 0 for all alike
FITS = 3  # of weights, the anchors fitted to them in between
SWEEPS = 3  # over a token's weights, each rounded given the others


def parse_size(text: str) -> int:
    """Bytes of '2MB', '1.5 MiB', '800kB', '100000'."""
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    number = text.strip().rstrip("bBkKmMgGiI").strip()
    unit = text.strip()[len(number) :].strip().lower()
    try:
        size = int(float(number) * units[unit])
    except (KeyError, ValueError, OverflowError):
        raise InputError(f"'{text}' is not a size; write 2MB, 1.5MiB or 800kB") from None
    if size <= 0:
        raise InputError(f"a size must be more than nothing, not '{text}'")
    return size


@dataclass(frozen=True)
class _Choices:
    """What each token may have: its pairs in the order they were found, and the cosine after each."""

    anchors: Tensor  # (N, P)
    cosines: Tensor  # (N, P)
    whole: Tensor  # (N, 2): cosine of the row in 8 and in 4 bits


def distill_to_size(
    teacher: Teacher,
    size: int,
    settings: DistillationSettings,
    frequencies: Tensor | None = None,
    report: Report = silent,
) -> Codebook:
    """Distil a teacher into a codebook whose file has at most `size` bytes; `settings` give rounds, seed and device."""
    count, dim = teacher.table.shape
    weight = _weights(frequencies, count)
    rows = Rows(teacher.table, weight, resolve_device(settings.device))
    anchors_wanted = 2 ** round(torch.tensor(ANCHOR_SHARE * size / (dim + 2)).clamp(min=2).log2().item())
    shared = max(2, min(anchors_wanted, 1 << (max(2, count // 8).bit_length() - 1)))
    packing = Packing(shared=shared)
    pair_bits = (shared - 1).bit_length() + packing.weight_bits
    special = _special(teacher, count)
    room = _room(size, count, dim, packing, 1)
    needed = count * pair_bits + len(special) * (8 * dim + 16 - pair_bits)
    if room < needed + count:  # a bit a token for codes that count further
        least = (needed + count - room) // 8 + size
        raise InputError(f"{size:,} bytes are too few for {count:,} tokens; they need at least about {least:,}")
    pairs = max(1, round(min(room / pair_bits / count, MOST_PAIRS)))
    fitting = replace(settings, anchors=shared, pairs=min(pairs, shared, 8), solver="pursuit", signed=True)
    anchors = fit_anchors(rows, fitting, torch.Generator().manual_seed(settings.seed), report)
    choices = _choices(rows, anchors, min(MOST_PAIRS, shared, max(4, 2 * pairs)), report)
    room = _room(size, count, dim, packing, choices.cosines.shape[1])
    counts = _allocate(choices, weight.to(torch.float64), special, room, pair_bits, dim)
    return _made(teacher, rows, anchors, choices, counts, packing, settings, report)


def _room(size: int, count: int, dim: int, packing: Packing, most: int) -> int:
    """Bits left for pairs and whole rows beside the anchors, the scales and the codes of the tokens."""
    without = Shape(count, dim, packing.shared, 0, 0, 0, most, packing.weight_bits, packing.anchor_bits)
    return 8 * (size - HEADER - without.nbytes)


def _weights(frequencies: Tensor | None, count: int) -> Tensor:
    """How much a token's cosine counts: by how often it occurs, or by its rank as Zipf's law has it; tempered."""
    weight = (zipf(count) if frequencies is None else importance_of(frequencies, count)) ** TEMPER
    return weight / weight.mean()


def zipf(count: int) -> Tensor:
    """How often tokens occur that are numbered by rank, up to a factor."""
    return 1 / (torch.arange(count, dtype=torch.float32) + 100)


def _special(teacher: Teacher, count: int) -> Tensor:
    """Special tokens, whose rows are always kept whole."""
    added = teacher.tokenizer.get_added_tokens_decoder()
    return torch.tensor([i for i, token in added.items() if token.special and i < count], dtype=torch.int64)


def _choices(rows: Rows, anchors: Tensor, most: int, report: Report) -> _Choices:
    gram = anchors @ anchors.T
    found, cosines, whole = [], [], []
    for part, block, _ in rows.blocks(block_size(len(anchors), most)):
        report("pairs", part.start, len(rows), {})
        path: list[Tensor] = []
        chosen, _, _ = pursue(block @ anchors.T, gram, most, path=path)
        found.append(chosen.to("cpu", torch.int32))
        cosines.append(torch.stack(path, 1).cpu())
        narrow = [F.cosine_similarity(rounded(block, bits), block, dim=1) for bits in (8, 4)]
        whole.append(torch.stack(narrow, 1).nan_to_num(1.0).cpu())
    report("pairs", len(rows), len(rows), {})
    return _Choices(torch.cat(found), torch.cat(cosines), torch.cat(whole))


def _allocate(choices: _Choices, weight: Tensor, special: Tensor, room: float, pair_bits: int, dim: int) -> Tensor:
    """Pairs of each token, 0 for a row in 8 bits, -1 for one in 4: the most cosine for its weight in so many bits."""
    most = choices.cosines.shape[1]
    cost = torch.tensor([*(pair_bits * (k + 1) for k in range(most)), 8 * dim + 16, 4 * ((dim + 1) // 2) * 2 + 16])
    worth = torch.cat([choices.cosines, choices.whole], 1).double() * weight.unsqueeze(1)  # (N, P + 2)
    worth[special, most] = torch.inf
    low, high = 0.0, float(weight.max()) / pair_bits
    for _ in range(50):
        price = (low + high) / 2
        taken = (worth - price * cost).argmax(1)
        low, high = (price, high) if float(cost[taken].sum()) > room else (low, price)
    taken = (worth - high * cost).argmax(1)
    if float(cost[taken].sum()) > room:
        raise InputError(f"the budget is too small by {(int(cost[taken].sum()) - room) // 8:,} bytes")
    return torch.where(taken == most, 0, torch.where(taken == most + 1, -1, taken + 1))


def _fitted(rows: Rows, anchors: Tensor, choices: _Choices, counts: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors, weights in so many bits and the cosine reached of every token: (N, P), (N, P), (N,)."""
    gram, levels = anchors @ anchors.T, 2 ** (bits - 1) - 1
    weights, cosine = torch.zeros(choices.cosines.shape), torch.ones(len(rows))
    for part, block, _ in rows.blocks(2048):
        most = max(1, int(counts[part].max()))
        chosen = choices.anchors[part, :most].long().to(rows.device)
        real = (torch.arange(most) < counts[part].unsqueeze(1)).to(rows.device)  # (n, k)
        target = (block @ anchors.T).gather(1, chosen) * real
        small = gram[chosen.unsqueeze(2), chosen.unsqueeze(1)] * (real.unsqueeze(2) & real.unsqueeze(1))
        found, reached = _rounded_fit(small, target, real, levels)
        weights[part, :most], cosine[part] = found.cpu(), reached.cpu()
    return choices.anchors.long(), weights, cosine


def _rounded_fit(small: Tensor, target: Tensor, real: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Least squares from inner products alone, weights whole multiples of a step, the largest always `levels` of it."""
    eye = torch.eye(small.shape[1], device=small.device)
    exact = torch.linalg.solve_ex(small + 1e-5 * eye + torch.diag_embed((~real).float()), target.unsqueeze(2)).result
    exact = exact.squeeze(2) * real  # (n, k)
    largest = exact.abs().argmax(1, keepdim=True)
    step = exact.gather(1, largest).abs().clamp(min=1e-9) / levels  # (n, 1)
    number = (exact / step).round()
    for _ in range(SWEEPS):
        for j in range(small.shape[1]):
            rest = target[:, j] / step[:, 0] - (small[:, j] * number).sum(1) + small[:, j, j] * number[:, j]
            better = (rest / small[:, j, j].clamp(min=1e-6)).round().clamp(-levels, levels)
            number[:, j] = torch.where((largest[:, 0] == j) | ~real[:, j], number[:, j], better)
        energy = torch.einsum("nk,nkl,nl->n", number, small, number).clamp(min=1e-9)
        product = (number * target).sum(1)
        step = (product / energy).clamp(min=1e-9).unsqueeze(1)
    return number * step, (product / energy.sqrt()).clamp(0, 1)


def _made(
    teacher: Teacher, rows: Rows, anchors: Tensor, choices: _Choices, counts: Tensor, packing: Packing,
    settings: DistillationSettings, report: Report,
) -> Codebook:  # fmt: skip
    """Weights fitted as they will be stored, the anchors to them, the weights again; then everything put together."""
    for done in range(FITS):
        report("fit", done, FITS, {})
        indices, weights, cosine = _fitted(rows, rounded(anchors, 8), choices, counts, packing.weight_bits)
        if done + 1 < FITS:
            anchors = update_anchors(rows, anchors, indices, weights, cosine)
    report("fit", FITS, FITS, {})
    norm = torch.cat([block.float().norm(dim=1).cpu() for block in teacher.table.split(8192)]).clamp(min=1e-6)
    whole = torch.cat([(counts == 0).nonzero()[:, 0], (counts == -1).nonzero()[:, 0]])
    own = F.normalize(teacher.table[whole].float(), dim=1).cpu()
    keep = torch.arange(indices.shape[1]) < counts.clamp(min=1).unsqueeze(1)  # (N, P)
    indices[whole, 0] = len(anchors) + torch.arange(len(whole))
    fine = int((counts == 0).sum())
    near = torch.cat([rounded(own[:fine], 8), rounded(own[fine:], 4)])
    weights[whole, 0] = (own * near).sum(1) / near.square().sum(1).clamp(min=1e-9)
    made = Codebook.from_pairs(
        torch.cat([rounded(anchors, 8).cpu(), own]), indices[keep], (weights * norm.unsqueeze(1))[keep], keep.sum(1),
        teacher.tokenizer, replace(packing, fine=fine),
    ).rounded()  # fmt: skip
    about = {**teacher.about, "settings": asdict(settings)}
    kinds = {"whole_8": fine, "whole_4": len(whole) - fine}
    pairs = {"anchors": len(anchors), "pairs": float(counts.clamp(min=0).double().mean()), **kinds}
    return replace(made, about={**about, **pairs, **quality(rows, made)})
