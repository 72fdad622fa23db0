"""Fit the lexicon: a linear model over token n-grams, trained by itself, weighed and pruned on validation rows.

Full-batch L-BFGS on the rows' sparse features. Regularisation, the weight beside the model's scores, and how many
entries are worth their bytes are all chosen by the loss of the summed scores on the validation rows.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.data.problems import MULTI, REGRESSION
from ade.lexicon import Lexicon, LexiconShape, keys_of, pack_idf, pack_keys, unpack
from ade.packing.format import Packing, pack
from ade.progress import Report, silent
from ade.pursuit import Rows, fit_anchors, pursue_all
from ade.settings import DistillationSettings

FEWEST_TEXTS = 2  # an entry stands in at least so many training texts
MOST_WEIGHTS = 1 << 25  # entries times labels: what the optimiser holds ten copies of
STRENGTHS = (2.0, 10.0, 40.0)  # inverse of the L2 penalty, as scikit-learn's C
WEIGHTS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # of the lexicon beside the model
SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)  # of the entries that may be kept
TOLERANCE = 0.005  # relative loss that fewer entries may cost
ITERATIONS = 60
CHUNK = 1 << 15  # texts counted at a time


class Ragged(NamedTuple):
    """Token ids of texts kept end to end: text i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True)
class Validation:
    """Held-back rows, and what the model without a lexicon makes of them."""

    texts: Ragged
    labels: np.ndarray  # (n,) classes, (n, C) marks or (n,) numbers
    logits: np.ndarray  # (n, C)


@dataclass(frozen=True)
class Problem:
    """What is learned: targets (n, C), which loss they have, and how much each class counts in it."""

    targets: Tensor
    kind: str
    weights: Tensor | None = None  # (C,)


def count_entries(texts: Ragged, vocabulary: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys that stand in at least two texts, ascending, and in how many; the most frequent where they are too many."""
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for start in range(0, len(texts.offsets) - 1, CHUNK):
        offsets = texts.offsets[start : start + CHUNK + 1]
        found, text = keys_of(texts.ids[offsets[0] : offsets[-1]], offsets - offsets[0], vocabulary)
        order = np.lexsort((found, text))
        found, text = found[order], text[order]
        first = (np.diff(found, prepend=-1) != 0) | (np.diff(text, prepend=-1) != 0)
        keys, place = np.unique(np.concatenate([keys, found[first]]), return_inverse=True)
        weight = np.concatenate([counts, np.ones(int(first.sum()), np.int64)])
        counts = np.bincount(place, weight, len(keys)).astype(np.int64)
    kept = counts >= FEWEST_TEXTS
    keys, counts = keys[kept], counts[kept]
    if len(keys) > most:
        chosen = np.sort(np.argsort(-counts, kind="stable")[:most])
        keys, counts = keys[chosen], counts[chosen]
    return keys, counts


def features(lexicon: Lexicon, texts: Ragged, device: torch.device) -> Tensor:
    """The texts as rows of a sparse matrix (n, entries): unit length, weighted by inverse document frequency."""
    entry, text = lexicon.found(texts.ids, texts.offsets)
    count = len(texts.offsets) - 1
    norm = np.sqrt(np.bincount(text, lexicon.idf[entry] ** 2, count))
    value = (lexicon.idf[entry] / norm[text]).astype(np.float32)
    bounds = np.searchsorted(text, np.arange(count + 1))
    starts, entries, values = (torch.from_numpy(array) for array in (bounds, entry, value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this layout is called beta
        made = torch.sparse_csr_tensor(starts, entries, values, (count, len(lexicon)), check_invariants=False)
    return made.to(device)


def minimise(rows: Tensor, problem: Problem, penalty: float, start: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Weights (entries, C) and bias (C,) with the least mean loss plus penalty / 2 times the squared weights."""
    weight, bias = (tensor.clone().requires_grad_() for tensor in start)
    turned = rows.to_sparse_coo().t().coalesce().to_sparse_csr()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, history_size=8, line_search_fn="strong_wolfe")

    @torch.no_grad()
    def closure() -> Tensor:
        scores = (rows @ weight + bias).requires_grad_()
        with torch.enable_grad():
            loss = mean_loss(scores, problem)
        (slope,) = torch.autograd.grad(loss, scores)
        weight.grad, bias.grad = turned @ slope + penalty * weight, slope.sum(0)
        return loss + penalty / 2 * weight.square().sum()

    optimizer.step(closure)
    return weight.detach(), bias.detach()


def mean_loss(scores: Tensor, problem: Problem) -> Tensor:
    """Cross-entropy, its binary form for several labels, or half the squared error."""
    if problem.kind == REGRESSION:
        return F.mse_loss(scores, problem.targets) / 2
    if problem.kind == MULTI:
        loss = F.binary_cross_entropy_with_logits(scores, problem.targets, pos_weight=problem.weights, reduction="none")
        return loss.sum(1).mean()
    return F.cross_entropy(scores, problem.targets, problem.weights)


@dataclass(frozen=True)
class Fitted:
    """A lexicon as it is stored, and the weight that the model's own scores get beside it (1 but for numbers)."""

    shape: LexiconShape
    arrays: dict[str, np.ndarray]
    model_weight: float
    loss: float  # of the summed scores on the validation rows
    loss_without: float

    def lexicon(self) -> Lexicon:
        """Ready to score."""
        return unpack(self.shape, self.arrays)


def fit_lexicon(
    texts: Ragged,
    targets: np.ndarray,
    problem: str,
    validation: Validation,
    vocabulary: int,
    device: torch.device,
    class_weights: Sequence[float] | None = None,
    report: Report = silent,
) -> Fitted | None:
    """The lexicon that, added to a trained model, lowers the loss on the validation rows; None where none does.

    `targets` are classes (n,), probabilities or marks (n, C), or numbers (n,).
    """
    labels = validation.logits.shape[1]
    keys, counts = count_entries(texts, vocabulary, MOST_WEIGHTS // labels)
    if not len(keys):
        return None
    idf = (np.log((len(texts.offsets) - 1) / counts) + 1).astype(np.float32)
    learned, judged = (
        _as_problem(targets, problem, device, class_weights),
        _as_problem(validation.labels, problem, torch.device("cpu"), class_weights),
    )
    empty = Lexicon(vocabulary, keys, idf, np.empty((len(keys), 0), np.float32), np.zeros(labels, np.float32))

    best = _search(empty, texts, learned, validation, judged, STRENGTHS, report)
    without = blended_loss(validation.logits, np.zeros_like(validation.logits), 0.0, judged)[0]
    if best.loss > without * (1 - TOLERANCE):
        return None

    kept = _kept(best, counts, validation, judged)
    if kept is not None:
        smaller = Lexicon(vocabulary, keys[kept], idf[kept], best.lexicon.scores[kept], best.lexicon.bias)
        best = _search(smaller, texts, learned, validation, judged, (best.strength,), report)
        counts = counts[kept]

    # Of numbers the two are mixed: the lexicon's share goes into its scores, the model's is left to the caller.
    model_weight, weight = 1.0, best.weight
    if problem == REGRESSION:
        own = best.lexicon.logits(*validation.texts)
        model_weight = blended_loss(validation.logits, own, 1.0, judged)[1]
        weight = 1 - model_weight
    shape, arrays = packed(best.lexicon, weight, counts, problem)
    added = unpack(shape, arrays).logits(*validation.texts)
    loss = blended_loss(model_weight * validation.logits + added, np.zeros_like(added), 0.0, judged)[0]
    return Fitted(shape, arrays, model_weight, loss, without)


class _Found(NamedTuple):
    lexicon: Lexicon
    strength: float
    weight: float
    loss: float
    hits: float


def _as_problem(
    labels: np.ndarray, problem: str, device: torch.device, class_weights: Sequence[float] | None
) -> Problem:
    wanted = torch.from_numpy(np.ascontiguousarray(labels)).to(device)
    if problem == REGRESSION:
        wanted = wanted.float().view(-1, 1)
    elif wanted.ndim == 2:
        wanted = wanted.float()
    weights = None if class_weights is None else torch.tensor(class_weights, device=device)
    return Problem(wanted, problem, weights)


def _search(
    lexicon: Lexicon,
    texts: Ragged,
    learned: Problem,
    validation: Validation,
    judged: Problem,
    strengths: Sequence[float],
    report: Report,
) -> _Found:
    """Fit for each strength, each started from the last, and take the one with the best sum of scores."""
    device = learned.targets.device
    rows, held = features(lexicon, texts, device), features(lexicon, validation.texts, device)
    labels = len(lexicon.bias)
    state = (torch.zeros(len(lexicon), labels, device=device), torch.zeros(labels, device=device))
    if learned.kind == REGRESSION:
        state[1].fill_(float(learned.targets.mean()))
    candidates: list[_Found] = []
    for done, strength in enumerate(strengths):
        report("lexicon", done, len(strengths), {})
        state = minimise(rows, learned, 1 / (strength * rows.shape[0]), state)
        own = (held @ state[0] + state[1]).cpu().numpy()
        scores, bias = (state[0].cpu().numpy() * lexicon.idf[:, None]).astype(np.float32), state[1].cpu().numpy()
        fitted = Lexicon(lexicon.vocabulary, lexicon.keys, lexicon.idf, scores, bias)
        for weight in WEIGHTS if learned.kind != REGRESSION else (1.0,):
            loss, _ = blended_loss(validation.logits, own, weight, judged)
            candidates.append(_Found(fitted, strength, weight, loss, hits(validation.logits + weight * own, judged)))
    report("lexicon", len(strengths), len(strengths), {})

    # What differs by less than half a standard error of the hits is decided by the loss.
    most = max(found.hits for found in candidates)
    margin = 0.5 * (max(0.0, most * (1 - most)) / len(judged.targets)) ** 0.5
    return min((found for found in candidates if found.hits >= most - margin), key=lambda found: found.loss)


def hits(scores: np.ndarray, judged: Problem) -> float:
    """The share of labels that are predicted right; of numbers 0, their loss says all."""
    wanted = judged.targets.cpu().numpy()
    if judged.kind == REGRESSION:
        return 0.0
    if judged.kind == MULTI:
        return float(((scores >= 0) == (wanted >= 0.5)).mean())
    return float((scores.argmax(1) == wanted).mean())


def blended_loss(model: np.ndarray, lexicon: np.ndarray, weight: float, judged: Problem) -> tuple[float, float]:
    """The mean loss of the model's scores plus weight times the lexicon's, and what the model's are multiplied by.

    Of classes it is the loss at the best temperature: which of two sums is better should not hang on how sure either is
    of itself. Of numbers it is the error of the best mixture, weights not negative and adding up to 1.
    """
    one, other = torch.from_numpy(model).float(), torch.from_numpy(lexicon).float()
    if judged.kind == REGRESSION:
        if not weight:
            return float(mean_loss(one, judged)), 1.0
        apart = one - other
        share = float((apart * (judged.targets - other)).sum() / apart.square().sum().clamp(min=1e-12))
        share = min(1.0, max(0.0, share))
        return float(mean_loss(share * one + (1 - share) * other, judged)), share
    both = one + weight * other
    temperatures = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
    return min(float(mean_loss(both / temperature, judged)) for temperature in temperatures), 1.0


def _kept(best: _Found, counts: np.ndarray, validation: Validation, judged: Problem) -> np.ndarray | None:
    """Entries worth keeping, ascending: the fewest whose loss stays within the tolerance; None for all of them."""
    lexicon = best.lexicon
    matters = counts * np.square(lexicon.scores - lexicon.scores.mean(1, keepdims=True)).sum(1)
    order = np.argsort(-matters, kind="stable")
    chosen = None
    for share in SHARES[1:]:
        kept = np.sort(order[: max(1, round(share * len(order)))])
        smaller = Lexicon(lexicon.vocabulary, lexicon.keys[kept], lexicon.idf[kept], lexicon.scores[kept], lexicon.bias)
        loss, _ = blended_loss(validation.logits, smaller.logits(*validation.texts), best.weight, judged)
        if loss > best.loss * (1 + TOLERANCE):
            break
        chosen = kept
    return chosen


def packed(
    lexicon: Lexicon, weight: float, counts: np.ndarray, problem: str
) -> tuple[LexiconShape, dict[str, np.ndarray]]:
    """A lexicon in few bits: each entry's scores as a few pairs over shared rows, the weight multiplied in."""
    scores, bias = weight * lexicon.scores, weight * lexicon.bias
    if problem not in (MULTI, REGRESSION):  # what all classes share decides nothing
        scores, bias = scores - scores.mean(1, keepdims=True), bias - bias.mean()
    labels = scores.shape[1]
    shared = 2 if labels <= 2 else min(16 * labels, 256)
    pairs = 1 if labels <= 2 else 2 if labels <= 8 else 3 if labels <= 32 else 4
    table = torch.from_numpy(np.ascontiguousarray(scores))
    norm = table.norm(dim=1)
    importance = torch.from_numpy(counts).float() * norm.square()
    rows = Rows(table, importance / importance.mean().clamp(min=1e-12), torch.device("cpu"))
    settings = DistillationSettings(anchors=min(shared, len(lexicon)), pairs=min(pairs, shared, len(lexicon)), rounds=6)
    anchors = fit_anchors(rows, settings, torch.Generator().manual_seed(0), silent)
    index, share, _ = pursue_all(rows, anchors, settings)
    size = share.abs()
    keep = size >= 0.1 * size.amax(1, keepdim=True)
    keep[torch.arange(len(keep)), size.argmax(1)] = True
    pack_shape, arrays = pack(
        anchors.numpy(), index[keep].numpy(), (share * norm.unsqueeze(1))[keep].numpy(), keep.sum(1).numpy(),
        Packing(shared=len(anchors)),
    )  # fmt: skip
    shape = LexiconShape(len(lexicon), lexicon.vocabulary, pack_shape.__dict__.copy())
    own = {f"scores.{name}": array for name, array in arrays.items()}
    own |= pack_keys(lexicon.keys, shape) | pack_idf(lexicon.idf) | {"bias": bias.astype(np.float32)}
    return shape, own
