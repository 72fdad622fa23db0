"""A codebook for a budget in bytes: anchors, bits and pairs chosen so that the bytes go where they help most.

A token may have any number of pairs, or its row may be its own with 8 or 4 bits a number. Each choice has a cost
in bits and reaches a cosine. Given a price per bit, every token takes the choice with the largest (cosine times the
token's weight) - (cost times price), and the price is set so that everything fits. Frequent and hard tokens get many
pairs, rare and easy ones get one: the paper's dynamic anchor allocation. Weights and anchors are then fitted in the
form in which they will be stored.
"""

from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ade.codebook import Codebook, codebook_of
from ade.codebook import rounded as rounded_table
from ade.devices import resolve_device
from ade.embedding import rounded
from ade.errors import InputError
from ade.folder import Saved
from ade.packing.format import PackedSizes, Packing
from ade.progress import Report, silent
from ade.pursuit import Rows, block_size, fit_anchors, importance_of, pursue, quality, update_anchors
from ade.settings import DistillationSettings
from ade.teachers import Teacher

ANCHOR_SHARE = 0.19  # fraction of the budget for anchors: measured to be best from 1 to 4 MiB
MAX_PAIRS = 62  # of a token: its code then has 6 bits
HEADER_BYTES = 1200  # of a safetensors file
FREQUENCY_EXPONENT = 0.3  # of a token's frequency in its weight: 0 would weight all tokens alike
FITS = 3  # fits of the weights, with a fit of the anchors between them
SWEEPS = 3  # over a token's weights, rounding each given the others


@dataclass(frozen=True)
class _Choices:
    """What each of N tokens may take: its first P pairs, or a row of its own."""

    anchors: Tensor  # (N, P): of the pairs, in the order they were found
    cosines: Tensor  # (N, P): with the pairs up to this one
    cosines_own: Tensor  # (N, 2): of a row of its own with 8 and with 4 bits a number


@dataclass(frozen=True)
class _Allocation:
    """What each of N tokens has been given."""

    counts: Tensor  # (N,) int64: number of pairs; 0 for a row of its own
    own_8: Tensor  # (N,) bool: it has a row of its own, with 8 bits a number
    own_4: Tensor  # (N,) bool: with 4 bits a number


def distill_to_size(
    teacher: Teacher,
    size: int,
    settings: DistillationSettings,
    frequencies: Tensor | None = None,
    report: Report = silent,
) -> Saved:
    """Distil a teacher into a codebook whose weights' file has at most `size` bytes.

    Of the settings rounds, random seed and device are used. `frequencies` (N,) are those of the tokens; where they are
    None, Zipf's law tells them from a token's rank.
    """
    count, dim = teacher.table.shape
    weight = _weights(frequencies, count)
    rows = Rows(teacher.table, weight, resolve_device(settings.device))
    special = _special_tokens(teacher, count)
    packing = Packing(shared=_anchor_count(size, count, dim))
    pair_bits = _pair_bits(packing)
    if _missing_bits(size, count, dim, len(special)) > 0:
        least = least_size(teacher)
        raise InputError(f"{size:,} bytes are too few for {count:,} tokens; they need at least about {least:,}")

    # Anchors are fitted for the mean number of pairs; then each token may have up to twice as many.
    available = _available_bits(size, count, dim, packing, 1)
    mean_pairs = max(1, round(min(available / pair_bits / count, MAX_PAIRS)))
    pursuit = replace(
        settings, anchors=packing.shared, pairs=min(mean_pairs, packing.shared, 8), solver="pursuit", signed=True
    )
    anchors = fit_anchors(rows, pursuit, torch.Generator().manual_seed(settings.seed), report)
    choices = _choices(rows, anchors, min(MAX_PAIRS, packing.shared, max(4, 2 * mean_pairs)), report)

    available = _available_bits(size, count, dim, packing, choices.cosines.shape[1])
    allocation = _allocate(choices, weight.to(torch.float64), special, available, pair_bits, dim)
    anchors, weights = _fit(rows, anchors, choices, allocation, packing.weight_bits, report)
    codebook = _assemble(teacher, anchors, choices.anchors.long(), weights, allocation, packing)
    counts = {
        "anchors": len(anchors),
        "pairs": float(allocation.counts.double().mean()),
        "own_8": int(allocation.own_8.sum()),
        "own_4": int(allocation.own_4.sum()),
    }
    return teacher.as_saved(codebook, settings=asdict(settings), **counts, **quality(rows, codebook))


def least_size(teacher: Teacher) -> int:
    """About the fewest bytes that a codebook file of a teacher can have."""
    count, dim = teacher.table.shape
    special = len(_special_tokens(teacher, count))
    low, high = 0, 16 * count * dim + 100_000  # the latter is always enough
    while high - low > 16:
        middle = (low + high) // 2
        low, high = (middle, high) if _missing_bits(middle, count, dim, special) > 0 else (low, middle)
    return high


def _missing_bits(size: int, count: int, dim: int, special: int) -> int:
    """Bits that a budget lacks for the least a codebook needs: a pair for every token, special tokens whole."""
    packing = Packing(shared=_anchor_count(size, count, dim))
    pair_bits = _pair_bits(packing)
    needed = count * pair_bits + special * (8 * dim + 16 - pair_bits) + count  # one more bit a token, for longer codes
    return needed - _available_bits(size, count, dim, packing, 1)


def _pair_bits(packing: Packing) -> int:
    return (packing.shared - 1).bit_length() + packing.weight_bits


def _anchor_count(size: int, count: int, dim: int) -> int:
    """The number of anchors for a budget: a power of two, at most an eighth of the tokens."""
    wanted = 2 ** round(torch.tensor(ANCHOR_SHARE * size / (dim + 2)).clamp(min=2).log2().item())
    return max(2, min(wanted, 1 << (max(2, count // 8).bit_length() - 1)))


def _available_bits(size: int, count: int, dim: int, packing: Packing, max_pairs: int) -> int:
    """Bits for pairs and whole rows: what anchors, scales and codes of the tokens leave of the budget."""
    bits = {"weight_bits": packing.weight_bits, "anchor_bits": packing.anchor_bits}
    empty = PackedSizes(count, dim, packing.shared, own_8=0, own_4=0, pairs=0, most=max_pairs, **bits)
    return 8 * (size - HEADER_BYTES - empty.nbytes)


def _weights(frequencies: Tensor | None, count: int) -> Tensor:
    """The weight of each token's cosine, 1 on average: a power of its frequency, or of Zipf's law for its rank."""
    weight = (zipf(count) if frequencies is None else importance_of(frequencies, count)) ** FREQUENCY_EXPONENT
    return weight / weight.mean()


def zipf(count: int) -> Tensor:
    """Relative frequencies of tokens numbered by rank."""
    return 1 / (torch.arange(count, dtype=torch.float32) + 100)


def _special_tokens(teacher: Teacher, count: int) -> Tensor:
    """Numbers of special tokens, whose rows are always stored whole."""
    added = teacher.tokenizer.get_added_tokens_decoder()
    return torch.tensor([i for i, token in added.items() if token.special and i < count], dtype=torch.int64)


def _choices(rows: Rows, anchors: Tensor, max_pairs: int, report: Report) -> _Choices:
    """Find up to `max_pairs` pairs of every token, and the cosine of each choice."""
    gram = anchors @ anchors.T
    found, cosines, cosines_own = [], [], []
    for part, block, _ in rows.blocks(block_size(len(anchors), max_pairs)):
        report("pairs", part.start, len(rows), {})
        path: list[Tensor] = []
        chosen, _, _ = pursue(block @ anchors.T, gram, max_pairs, path=path)
        found.append(chosen.to("cpu", torch.int32))
        cosines.append(torch.stack(path, 1).cpu())
        of_whole = [F.cosine_similarity(rounded(block, bits), block, dim=1) for bits in (8, 4)]
        cosines_own.append(torch.stack(of_whole, 1).nan_to_num(1.0).cpu())
    report("pairs", len(rows), len(rows), {})
    return _Choices(torch.cat(found), torch.cat(cosines), torch.cat(cosines_own))


def _allocate(
    choices: _Choices, weight: Tensor, special: Tensor, available: float, pair_bits: int, dim: int
) -> _Allocation:
    """Choose for each token so that the weighted sum of cosines is largest within the available bits."""
    max_pairs = choices.cosines.shape[1]
    own_8, own_4 = max_pairs, max_pairs + 1  # columns of the choices after 1, 2, ... max_pairs pairs
    bits_own_8, bits_own_4 = 8 * dim + 16, 8 * ((dim + 1) // 2) + 16
    cost = torch.tensor([*(pair_bits * (k + 1) for k in range(max_pairs)), bits_own_8, bits_own_4])
    worth = torch.cat([choices.cosines, choices.cosines_own], 1).double() * weight.unsqueeze(1)  # (N, P + 2)
    worth[special, own_8] = torch.inf

    # Bisection for the lowest price of a bit at which everything fits.
    low, high = 0.0, float(weight.max()) / pair_bits
    for _ in range(50):
        price = (low + high) / 2
        taken = (worth - price * cost).argmax(1)
        low, high = (price, high) if float(cost[taken].sum()) > available else (low, price)
    taken = (worth - high * cost).argmax(1)
    if float(cost[taken].sum()) > available:
        raise InputError(f"the budget is too small by {(int(cost[taken].sum()) - available) // 8:,} bytes")
    return _Allocation(torch.where(taken < max_pairs, taken + 1, 0), taken == own_8, taken == own_4)


def _fit(
    rows: Rows, anchors: Tensor, choices: _Choices, allocation: _Allocation, weight_bits: int, report: Report
) -> tuple[Tensor, Tensor]:
    """Anchors (K, d) and weights (N, P), fitted in turn: the weights to the anchors as stored, the anchors to them."""
    for done in range(FITS):
        report("fit", done, FITS, {})
        weights, cosine = _fit_weights(rows, rounded(anchors, 8), choices, allocation, weight_bits)
        if done + 1 < FITS:
            anchors = update_anchors(rows, anchors, choices.anchors.long(), weights, cosine)
    report("fit", FITS, FITS, {})
    return anchors, weights


def _fit_weights(
    rows: Rows, anchors: Tensor, choices: _Choices, allocation: _Allocation, weight_bits: int
) -> tuple[Tensor, Tensor]:
    """Weights of `weight_bits` bits of every token's pairs (N, P), and the cosine reached (N,)."""
    gram, levels = anchors @ anchors.T, 2 ** (weight_bits - 1) - 1
    weights, cosine = torch.zeros(choices.cosines.shape), torch.ones(len(rows))
    for part, block, _ in rows.blocks(2048):
        counts = allocation.counts[part]
        max_pairs = max(1, int(counts.max()))
        chosen = choices.anchors[part, :max_pairs].long().to(rows.device)
        real = (torch.arange(max_pairs) < counts.unsqueeze(1)).to(rows.device)  # (n, k)
        target = (block @ anchors.T).gather(1, chosen) * real
        own_gram = gram[chosen.unsqueeze(2), chosen.unsqueeze(1)] * (real.unsqueeze(2) & real.unsqueeze(1))
        found, reached = _rounded_fit(own_gram, target, real, levels)
        weights[part, :max_pairs], cosine[part] = found.cpu(), reached.cpu()
    return weights, cosine


def _rounded_fit(gram: Tensor, target: Tensor, real: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Least squares with rounded weights: returns weights (n, k), and the cosine reached (n,).

    `gram` (n, k, k) has the inner products of each token's anchors, `target` (n, k) those with the token's row; `real`
    (n, k) is false for padding. Weights are integers from -levels to levels times a step; the largest is `levels`.
    """
    eye = torch.eye(gram.shape[1], device=gram.device)
    regular = gram + 1e-5 * eye + torch.diag_embed((~real).float())  # padding must not make it singular
    exact = torch.linalg.solve_ex(regular, target.unsqueeze(2)).result.squeeze(2) * real  # (n, k)
    largest = exact.abs().argmax(1, keepdim=True)
    step = exact.gather(1, largest).abs().clamp(min=1e-9) / levels  # (n, 1)
    number = (exact / step).round()

    # Coordinate descent: each number again given the others, but for the largest; then the best step for them.
    for _ in range(SWEEPS):
        for j in range(gram.shape[1]):
            rest = target[:, j] / step[:, 0] - (gram[:, j] * number).sum(1) + gram[:, j, j] * number[:, j]
            better = (rest / gram[:, j, j].clamp(min=1e-6)).round().clamp(-levels, levels)
            fixed = (largest[:, 0] == j) | ~real[:, j]
            number[:, j] = torch.where(fixed, number[:, j], better)
        energy = torch.einsum("nk,nkl,nl->n", number, gram, number).clamp(min=1e-9)
        product = (number * target).sum(1)
        step = (product / energy).clamp(min=1e-9).unsqueeze(1)
    return number * step, (product / energy.sqrt()).clamp(0, 1)


def _assemble(
    teacher: Teacher, anchors: Tensor, indices: Tensor, weights: Tensor, allocation: _Allocation, packing: Packing
) -> Codebook:
    """The codebook: pairs scaled to the length of the teacher's rows, and rows stored whole as anchors of their own."""
    shared = rounded(anchors, 8).cpu()
    norm = torch.cat([block.float().norm(dim=1).cpu() for block in teacher.table.split(8192)]).clamp(min=1e-6)

    # Rows stored whole come after the shared anchors, those with 8 bits a number first.
    tokens_8, tokens_4 = (mask.nonzero()[:, 0] for mask in (allocation.own_8, allocation.own_4))
    whole = torch.cat([tokens_8, tokens_4])
    own_rows = F.normalize(teacher.table[whole].float(), dim=1).cpu()
    stored = torch.cat([rounded(own_rows[: len(tokens_8)], 8), rounded(own_rows[len(tokens_8) :], 4)])
    indices[whole, 0] = len(anchors) + torch.arange(len(whole))
    weights[whole, 0] = (own_rows * stored).sum(1) / stored.square().sum(1).clamp(min=1e-9)

    counts = allocation.counts.clamp(min=1)  # a row stored whole is one pair
    real = torch.arange(indices.shape[1]) < counts.unsqueeze(1)  # (N, P)
    book = Codebook(
        torch.cat([shared, own_rows]).numpy(),
        indices[real].numpy(),
        (weights * norm.unsqueeze(1))[real].numpy(),
        counts.numpy(),
        replace(packing, fine=len(tokens_8)),
    )
    return codebook_of(rounded_table(book))
