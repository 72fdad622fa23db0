"""A codebook for a budget in bytes: anchors, bits and pairs chosen so that the bytes go where they help most.

A token may have any number of pairs, or its row may be its own with 8 or 4 bits a number. Each choice has a cost
in bits and reaches a cosine. Given a price per bit, every token takes the choice with the largest (cosine times the
token's weight) - (cost times price), and the price is set so that everything fits. Frequent and hard tokens get many
pairs, rare and easy ones get one: the paper's dynamic anchor allocation. Weights and anchors are then fitted in the
form in which they will be stored.
"""

import math
from bisect import bisect_left
from dataclasses import asdict, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ade.codebook import Codebook, codebook_of, rounded as rounded_table
from ade.devices import resolve_device
from ade.embedding import rounded
from ade.errors import InputError
from ade.folder import Saved
from ade.packing.format import ANCHOR_BITS, WEIGHT_LEVELS, PackedSizes, Packing
from ade.progress import Report, silent
from ade.pursuit import Rows, block_size, fit_anchors, pursue, quality, update_anchors
from ade.settings import DistillationSettings
from ade.teachers import Teacher

ANCHOR_SHARE = 0.19  # fraction of the budget for anchors: measured to be best from 1 to 4 MiB
MAX_PAIRS = 62  # of a token: its code then has 6 bits
HEADER_BYTES = 1200  # of a safetensors file
FREQUENCY_EXPONENT = 0.3  # of a token's frequency in its weight: 0 would weight all tokens alike
WHOLE_BITS = (8, 4)  # of a number of a row that a token has for its own
FITS = 3  # fits of the weights, with a fit of the anchors between them
SWEEPS = 3  # over a token's weights, rounding each given the others


def distill_to_size(
    teacher: Teacher,
    size: int,
    settings: DistillationSettings,
    frequencies: Tensor,
    report: Report = silent,
) -> Saved:
    """Distil a teacher into a codebook whose weights' file has at most `size` bytes.

    Of the settings rounds, random seed and device are used. `frequencies` (N,) are those of the tokens, above 0.
    """
    count, dim = teacher.table.shape
    weight = frequencies.float() ** FREQUENCY_EXPONENT
    rows = Rows(teacher.table, weight / weight.mean(), resolve_device(settings.device))
    sizes = _without_pairs(size, count, dim)

    # Anchors are fitted for the mean number of pairs; then each token may have up to twice as many.
    mean_pairs = max(1, round(min(_free_bits(size, sizes) / sizes.pair_bits / count, MAX_PAIRS)))
    pairs = min(mean_pairs, sizes.anchors, 8)
    pursuit = replace(settings, anchors=sizes.anchors, pairs=pairs, solver="pursuit", signed=True)
    anchors = fit_anchors(rows, pursuit, torch.Generator().manual_seed(settings.seed), report)
    most = min(MAX_PAIRS, sizes.anchors, max(4, 2 * mean_pairs))
    chosen, cosines = _choices(rows, anchors, most, report)

    available = _free_bits(size, replace(sizes, most=most))
    taken = _allocate(cosines, rows.importance, _special_tokens(teacher), available, sizes.pair_bits, dim)
    counts = torch.where(taken < most, taken + 1, 0)  # (N,): pairs of each token; 0 for a row of its own
    anchors, weights = _fit(rows, anchors, chosen, counts, report)
    own = [(taken == most + n).nonzero()[:, 0] for n in range(len(WHOLE_BITS))]
    codebook = _assemble(teacher, anchors, chosen.long(), weights, counts, own)
    numbers = {"anchors": len(anchors), "pairs": float(counts.double().mean())}
    numbers |= {f"own_{bits}": len(tokens) for bits, tokens in zip(WHOLE_BITS, own, strict=True)}
    return teacher.as_saved(codebook, settings=asdict(settings), **numbers, **quality(rows, codebook))


def least_size(teacher: Teacher) -> int:
    """Return about the fewest bytes of a teacher's codebook: a pair a token, the special tokens' rows whole."""
    count, dim = teacher.table.shape
    special = len(_special_tokens(teacher))

    def suffices(size: int) -> bool:
        sizes = _without_pairs(size, count, dim)
        longer_code = 1  # bits
        needed = count * (sizes.pair_bits + longer_code) + special * (8 * dim + 16 - sizes.pair_bits)
        return needed <= _free_bits(size, sizes)

    enough = 16 * count * dim + 100_000  # always
    return bisect_left(range(enough), True, key=suffices)


def _without_pairs(size: int, count: int, dim: int) -> PackedSizes:
    """The sizes of a codebook before tokens get pairs; its anchors are a power of two, at most an eighth of the tokens.

    Tokens have codes as if each had one pair.
    """
    wanted = 2 ** round(math.log2(max(2, ANCHOR_SHARE * size / (dim + 2))))
    anchors = max(2, min(wanted, 1 << (max(2, count // 8).bit_length() - 1)))
    return PackedSizes(count, dim, anchors, own_8=0, own_4=0, pairs=0, most=1)


def _free_bits(size: int, sizes: PackedSizes) -> int:
    """Bits for pairs and whole rows: what anchors, scales and codes of the tokens leave of the budget."""
    return 8 * (size - HEADER_BYTES - sizes.nbytes)


def _special_tokens(teacher: Teacher) -> Tensor:
    """Numbers of special tokens, whose rows are always stored whole."""
    added, count = teacher.tokenizer.get_added_tokens_decoder(), len(teacher.table)
    return torch.tensor([i for i, token in added.items() if token.special and i < count], dtype=torch.int64)


def _choices(rows: Rows, anchors: Tensor, most: int, report: Report) -> tuple[Tensor, Tensor]:
    """Return `most` anchors of every token (N, P), in the order they were found, and the cosine of each choice.

    A token may take its first 1, 2, ... P pairs, or a row of its own with 8 or with 4 bits: (N, P + 2).
    """
    gram = anchors @ anchors.T
    found, cosines = [], []
    for part, block, _ in rows.blocks(block_size(len(anchors), most)):
        report("pairs", part.start, len(rows), {})
        path: list[Tensor] = []
        chosen, _, _ = pursue(block @ anchors.T, gram, most, path=path)
        found.append(chosen.to("cpu", torch.int32))
        for bits in WHOLE_BITS:
            path.append(F.cosine_similarity(rounded(block, bits), block, dim=1).nan_to_num(1.0))
        cosines.append(torch.stack(path, 1).cpu())
    report("pairs", len(rows), len(rows), {})
    return torch.cat(found), torch.cat(cosines)


def _allocate(cosines: Tensor, weight: Tensor, special: Tensor, available: float, pair_bits: int, dim: int) -> Tensor:
    """Choose for each token so that the weighted sum of cosines is largest within the bits: columns (N,)."""
    pairs = cosines.shape[1] - len(WHOLE_BITS)
    of_whole = [8 * (-(-dim * bits // 8)) + 16 for bits in WHOLE_BITS]
    cost = torch.tensor([*(pair_bits * (k + 1) for k in range(pairs)), *of_whole])
    worth = cosines.double() * weight.double().unsqueeze(1)  # (N, P + 2)
    worth[special, pairs] = torch.inf  # special tokens have rows of their own in 8 bits

    # Bisection for the lowest price of a bit at which everything fits.
    low, high = 0.0, float(weight.max()) / pair_bits
    for _ in range(50):
        price = (low + high) / 2
        taken = (worth - price * cost).argmax(1)
        low, high = (price, high) if float(cost[taken].sum()) > available else (low, price)
    taken = (worth - high * cost).argmax(1)
    if float(cost[taken].sum()) > available:
        raise InputError(f"the budget is too small by {(int(cost[taken].sum()) - available) // 8:,} bytes")
    return taken


def _fit(rows: Rows, anchors: Tensor, chosen: Tensor, counts: Tensor, report: Report) -> tuple[Tensor, Tensor]:
    """Fit anchors (K, d) and weights (N, P) in turn: the weights to the anchors as stored, the anchors to them.

    `chosen` (N, P) are the anchors of each token, of which it has taken the first ones: `counts` (N,).
    """
    for done in range(FITS):
        report("fit", done, FITS, {})
        stored = rounded(anchors, ANCHOR_BITS)
        gram, weights, cosine = stored @ stored.T, torch.zeros(chosen.shape), torch.ones(len(rows))
        for part, block, _ in rows.blocks(2048):
            most = max(1, int(counts[part].max()))
            index = chosen[part, :most].long().to(rows.device)
            real = (torch.arange(most) < counts[part].unsqueeze(1)).to(rows.device)  # (n, k)
            target = (block @ stored.T).gather(1, index) * real
            own_gram = gram[index.unsqueeze(2), index.unsqueeze(1)] * (real.unsqueeze(2) & real.unsqueeze(1))
            found, reached = _rounded_fit(own_gram, target, real)
            weights[part, :most], cosine[part] = found.cpu(), reached.cpu()
        if done + 1 < FITS:
            anchors = update_anchors(rows, anchors, chosen.long(), weights, cosine)
    report("fit", FITS, FITS, {})
    return anchors, weights


def _rounded_fit(gram: Tensor, target: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Least squares with rounded weights: returns weights (n, k), and the cosine reached (n,).

    `gram` (n, k, k) has the inner products of each token's anchors, `target` (n, k) those with the token's row; `real`
    (n, k) is false for padding. Weights are integers times a step; the largest of a token's is
    `WEIGHT_LEVELS`.
    """
    eye = torch.eye(gram.shape[1], device=gram.device)
    regular = gram + 1e-5 * eye + torch.diag_embed((~real).float())  # padding must not make it singular
    exact = torch.linalg.solve_ex(regular, target.unsqueeze(2)).result.squeeze(2) * real  # (n, k)
    largest = exact.abs().argmax(1, keepdim=True)
    step = exact.gather(1, largest).abs().clamp(min=1e-9) / WEIGHT_LEVELS  # (n, 1)
    number = (exact / step).round()

    # Coordinate descent: each number again given the others, but for the largest; then the best step for them.
    for _ in range(SWEEPS):
        for j in range(gram.shape[1]):
            rest = target[:, j] / step[:, 0] - (gram[:, j] * number).sum(1) + gram[:, j, j] * number[:, j]
            better = (rest / gram[:, j, j].clamp(min=1e-6)).round().clamp(-WEIGHT_LEVELS, WEIGHT_LEVELS)
            fixed = (largest[:, 0] == j) | ~real[:, j]
            number[:, j] = torch.where(fixed, number[:, j], better)
        energy = torch.einsum("nk,nkl,nl->n", number, gram, number).clamp(min=1e-9)
        product = (number * target).sum(1)
        step = (product / energy).clamp(min=1e-9).unsqueeze(1)
    return number * step, (product / energy.sqrt()).clamp(0, 1)


def _assemble(
    teacher: Teacher, anchors: Tensor, indices: Tensor, weights: Tensor, counts: Tensor, own: list[Tensor],
) -> Codebook:  # fmt: skip
    """Scale pairs to the length of the teacher's rows; rows stored whole are anchors of their own."""
    norm = torch.cat([block.float().norm(dim=1).cpu() for block in teacher.table.split(8192)]).clamp(min=1e-6)

    # Rows stored whole come after the shared anchors, those with 8 bits a number first.
    whole = torch.cat(own)
    rows = F.normalize(teacher.table[whole].float(), dim=1).cpu()
    parts = zip(rows.split([len(tokens) for tokens in own]), WHOLE_BITS, strict=True)
    stored = torch.cat([rounded(part, bits) for part, bits in parts])
    indices[whole, 0] = len(anchors) + torch.arange(len(whole))
    weights[whole, 0] = (rows * stored).sum(1) / stored.square().sum(1).clamp(min=1e-9)

    counts = counts.clamp(min=1)  # a row stored whole is one pair
    real = torch.arange(indices.shape[1]) < counts.unsqueeze(1)  # (N, P)
    book = Codebook(
        torch.cat([rounded(anchors, ANCHOR_BITS).cpu(), rows]).numpy(),
        indices[real].numpy(),
        (weights * norm.unsqueeze(1))[real].numpy(),
        counts.numpy(),
        Packing(len(anchors), fine=len(own[0])),
    )
    return codebook_of(rounded_table(book))
