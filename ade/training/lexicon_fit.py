"""Fit the lexicon: a regularised linear model over token n-grams, whose scores are added to a trained model's.

The linear model is fitted on the training rows with full-batch L-BFGS. The strength of its regularisation and its
weight beside the model's scores are chosen by the accuracy of the summed scores on the validation rows, and by their
loss where the accuracy hardly differs; the number of entries is chosen by the loss. Where the validation rows were
split off the training rows, the chosen entries are then fitted to all rows. Of very many rows a sample is taken.
"""

import math
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.codebook import Codebook
from ade.data.problems import MULTI, REGRESSION
from ade.data.tokens import Ragged
from ade.decision import MULTI_LABEL_LOGIT, MULTI_LABEL_THRESHOLD
from ade.devices import resolve_device
from ade.folder import Saved
from ade.lexicon import Lexicon, frequent_keys, key_end, packed_lexicon
from ade.packing.format import PackedSizes, Packing, layout_bytes
from ade.packing.keys import KeySizes
from ade.progress import Report, silent
from ade.pursuit import Rows, fit_anchors, pursue_all
from ade.settings import DistillationSettings

MAX_WEIGHTS = 1 << 25  # entries times labels: the optimizer holds ten copies of them
STRENGTHS = (3.0, 20.0, 120.0)  # inverse of the L2 penalty, as scikit-learn's C
WEIGHTS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of the lexicon's scores; the model's have weight 1
FRACTIONS = (0.5, 0.25, 0.125, 0.0625)  # of the entries that pruning may keep
MAX_ITERATIONS = 12  # of L-BFGS
MAX_TOKENS = 1 << 24  # tokens of the rows it is fitted to, which take 200 bytes each; a sample where there are more
TOLERANCE = 0.005  # relative loss: a lexicon must gain more, pruning may cost as much
MAX_TEMPERATURE = 32.0  # its inverse is the least
SEARCHES = 16  # steps of the search for the best temperature


@dataclass(frozen=True)
class Objective:
    """Targets and the loss that compares scores (n, C) with them."""

    targets: Tensor  # (n,) classes, or (n, C) probabilities, multi-label targets or numbers
    problem: str
    class_weights: Tensor | None = None  # (C,)

    @classmethod
    def of(
        cls, labels: np.ndarray, problem: str, class_weights: Sequence[float] | None = None, device: str = "cpu"
    ) -> "Objective":
        """Return the objective for labels (n,) or (n, C), on a device."""
        place = resolve_device(device)
        targets = torch.from_numpy(np.ascontiguousarray(labels)).to(place)
        if problem == REGRESSION:
            targets = targets.float().view(-1, 1)
        elif targets.ndim == 2:
            targets = targets.float()
        return cls(targets, problem, None if class_weights is None else torch.tensor(class_weights, device=place))

    def extended(self, more: Tensor) -> "Objective":
        """Return the objective with the targets of further rows, (n,) or (n, C), at the end."""
        if more.ndim < self.targets.ndim:
            more = F.one_hot(more.long(), self.targets.shape[1])
        return replace(self, targets=torch.cat([self.targets, more.to(self.targets)]))

    def loss(self, scores: Tensor) -> Tensor:
        """Mean cross-entropy, binary cross-entropy summed over the labels, or half the squared error."""
        if self.problem in (REGRESSION, MULTI):
            return self.losses(scores).mean()
        return F.cross_entropy(scores, self.targets, self.class_weights)

    def losses(self, scores: Tensor) -> Tensor:
        """The loss of each row, without class weights where there is one class a row: (n,)."""
        if self.problem == REGRESSION:
            return (scores - self.targets).square().sum(1) / 2
        if self.problem == MULTI:
            each = F.binary_cross_entropy_with_logits(
                scores, self.targets, pos_weight=self.class_weights, reduction="none"
            )
            return each.sum(1)
        return F.cross_entropy(scores, self.targets, reduction="none")


@dataclass(frozen=True)
class Validation:
    """Validation rows and the model's scores of them, to judge what a lexicon adds to these.

    For classification, model + weight * lexicon, at the best temperature, so that the choice does not depend on how
    confident either is. For regression, the weighted average share * model + (1 - share) * lexicon.
    """

    texts: Ragged
    scores: np.ndarray  # (n, C): of the model without a lexicon
    objective: Objective  # on the CPU

    def combined(self, added: np.ndarray, weight: float) -> np.ndarray:
        """The model's scores with a lexicon's (n, C); for regression `weight` is ignored, the best share is taken."""
        if self.objective.problem == REGRESSION:
            share = self.model_share(added)
            return share * self.scores + (1 - share) * added
        return self.scores + weight * added

    def model_share(self, added: np.ndarray) -> float:
        """The model's share in the average with the least squared error, between 0 and 1."""
        difference, residual = self.scores - added, self.objective.targets.numpy() - added
        share = (difference * residual).sum() / max(float(np.square(difference).sum()), 1e-12)
        return float(np.clip(share, 0, 1))

    def loss(self, scores: np.ndarray) -> float:
        """The loss of scores (n, C) at their best temperature."""
        return float(self.objective.loss(self._scaled(scores)))

    def improved_by(self, scores: np.ndarray) -> bool:
        """Whether scores have less loss than the model's: by a small fraction, and by what may be chance."""
        losses = [self.objective.losses(self._scaled(each)) for each in (self.scores, scores)]
        standard_error = float((losses[0] - losses[1]).std()) / len(scores) ** 0.5 if len(scores) > 1 else 0.0
        without = self.loss(self.scores)
        return self.loss(scores) <= without - max(TOLERANCE * without, standard_error)

    def accuracy(self, scores: np.ndarray) -> float:
        """The fraction of labels that scores predict correctly; 0 for regression, which has the loss."""
        targets = self.objective.targets.numpy()
        if self.objective.problem == REGRESSION:
            return 0.0
        if self.objective.problem == MULTI:
            return float(((scores >= MULTI_LABEL_LOGIT) == (targets >= MULTI_LABEL_THRESHOLD)).mean())
        return float((scores.argmax(1) == targets).mean())

    def temperature(self, scores: np.ndarray) -> float:
        """The temperature of least loss, by ternary search over its logarithm: the loss has one minimum."""
        tensor = torch.from_numpy(scores).float()

        def loss(exponent: float) -> float:
            return float(self.objective.loss(tensor * math.exp(-exponent)))

        low, high = -math.log(MAX_TEMPERATURE), math.log(MAX_TEMPERATURE)
        for _ in range(SEARCHES):
            third = (high - low) / 3
            if loss(low + third) < loss(high - third):
                high -= third
            else:
                low += third
        return math.exp((low + high) / 2)

    def _scaled(self, scores: np.ndarray) -> Tensor:
        temperature = 1.0 if self.objective.problem == REGRESSION else self.temperature(scores)
        return torch.from_numpy(scores / temperature).float()


class FittedLexicon(NamedTuple):
    """A fitted lexicon as it is stored."""

    lexicon: Lexicon
    weight: float  # of the lexicon's scores, multiplied into them already
    model_weight: float  # to multiply the model's scores by: 1, except for regression
    loss: float  # of the summed scores on the validation rows, before a fit that includes these rows
    added: np.ndarray  # (n, C): what the lexicon of that loss adds to the scores of the validation rows


def fit_lexicon(
    saved: Saved,
    texts: Ragged,
    targets: np.ndarray,
    validation: Validation,
    device: str = "cpu",
    dev_from_training: bool = False,
    max_bytes: int | None = None,
    report: Report = silent,
) -> FittedLexicon | None:
    """Fit a lexicon that lowers the validation loss when its scores are added to a model's; None if none does.

    `targets` are classes (n,), probabilities or multi-label targets (n, C), or numbers (n,). If the validation rows
    were split off the training rows, the lexicon is fitted to them too once everything is chosen. With `max_bytes` it
    has only as many entries as fit.
    """
    problem, vocabulary, labels = str(saved.config.problem), saved.table.vocabulary, saved.config.outputs
    texts, targets = sampled(texts, targets, MAX_TOKENS)
    keys, counts = frequent_keys(texts, vocabulary, MAX_WEIGHTS // labels)
    limit = entries_within(max_bytes, len(counts), vocabulary, labels)
    if limit == 0:
        return None

    idf = (np.log(len(texts) / counts) + 1).astype(np.float32)
    unfitted = Lexicon(vocabulary, keys, idf, np.empty((len(keys), 0), np.float32), np.zeros(labels, np.float32))
    objective = Objective.of(targets, problem, saved.config.class_weights, device)
    best = _fit_strengths(unfitted, texts, objective, validation, STRENGTHS, report)
    if not validation.improved_by(validation.combined(best.lexicon.added(validation.texts), best.weight)):
        return None

    kept = _prune(best, counts, validation, limit)
    if kept is not None:
        # Fitted again: the entries that stay take over some of what the pruned ones contributed.
        pruned = best.lexicon.select(kept)
        best = _fit_strengths(pruned, texts, objective, validation, (best.strength,), report)
        counts = counts[kept]

    weight, model_weight, final = best.weight, 1.0, best.lexicon
    own = best.lexicon.added(validation.texts)
    if problem == REGRESSION:
        model_weight = validation.model_share(own)
        weight = 1 - model_weight
    if dev_from_training:
        rows = features(final, texts + validation.texts, objective.targets.device)
        final = _fit(final, rows, objective.extended(validation.objective.targets), best.strength)
    lexicon = pack_lexicon(final, weight, counts, problem)

    # Measured as it is stored, since packing rounds it; but not after a fit that has seen the validation rows.
    added = weight * own if dev_from_training else lexicon.added(validation.texts)
    loss = validation.loss(model_weight * validation.scores + added)
    return FittedLexicon(lexicon, weight, model_weight, loss, added)


def sampled(texts: Ragged, targets: np.ndarray, tokens: int) -> tuple[Ragged, np.ndarray]:
    """Return texts and their targets or, where they have more than `tokens` tokens in all, a random sample."""
    count, total = len(texts), int(texts.offsets[-1])
    if total <= tokens:
        return texts, targets
    rows = np.sort(np.random.default_rng(0).choice(count, max(1, count * tokens // total), replace=False))
    return texts.take(rows), targets[rows]


def features(lexicon: Lexicon, texts: Ragged, device: torch.device) -> Tensor:
    """Return the idf of each entry of each text, rows of unit length, as a sparse matrix (n, entries)."""
    entry, text = lexicon.find(texts)
    count = len(texts)
    norm = np.sqrt(np.bincount(text, lexicon.idf[entry] ** 2, count))
    values = (lexicon.idf[entry] / norm[text]).astype(np.float32)
    row_starts = np.searchsorted(text, np.arange(count + 1))

    starts, columns, data = (torch.from_numpy(array) for array in (row_starts, entry, values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that sparse CSR is in beta
        matrix = torch.sparse_csr_tensor(starts, columns, data, (count, len(lexicon)), check_invariants=False)
    return matrix.to(device)


def minimise(rows: Tensor, objective: Objective, penalty: float, start: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return weights (entries, C) and bias (C,) that minimise the mean loss + penalty / 2 * the squared weights."""
    # The gradient of the weights is a product with the transpose, made once: CSR is fast by rows, not by columns.
    by_column = rows.to_sparse_csc()
    parts = (by_column.ccol_indices(), by_column.row_indices(), by_column.values())
    transposed = torch.sparse_csr_tensor(*parts, (rows.shape[1], rows.shape[0]), check_invariants=False)

    # Frequent entries have a much larger curvature than rare ones. With each weight scaled by the inverse square root
    # of (a bound of) its own, a fifth of the iterations is enough.
    squares = torch.zeros(len(start[0]), device=rows.device).index_add_(0, rows.col_indices(), rows.values().square())
    scale = (squares / (4 * rows.shape[0]) + penalty).rsqrt().unsqueeze(1)
    scaled, bias = (start[0] / scale).requires_grad_(), start[1].clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [scaled, bias], max_iter=MAX_ITERATIONS, history_size=8, line_search_fn="strong_wolfe"
    )

    @torch.no_grad()
    def closure() -> Tensor:
        weight = scale * scaled
        scores = (rows @ weight + bias).requires_grad_()
        with torch.enable_grad():
            loss = objective.loss(scores)
        (gradient,) = torch.autograd.grad(loss, scores)
        scaled.grad, bias.grad = scale * (transposed @ gradient + penalty * weight), gradient.sum(0)
        return loss + penalty / 2 * weight.square().sum()

    optimizer.step(closure)
    return (scale * scaled).detach(), bias.detach()


class _Candidate(NamedTuple):
    """A fitted lexicon, its strength and weight, and the validation metrics of the summed scores."""

    lexicon: Lexicon
    strength: float
    weight: float
    loss: float
    accuracy: float


def _fit_strengths(
    lexicon: Lexicon,
    texts: Ragged,
    objective: Objective,
    validation: Validation,
    strengths: Sequence[float],
    report: Report,
) -> _Candidate:
    """Fit the entries of a lexicon for each strength, started from the last; return the best strength and weight.

    That is the one of least loss among those within half a standard error of the best accuracy.
    """
    rows = features(lexicon, texts, objective.targets.device)
    candidates, fitted = [], lexicon
    for done, strength in enumerate(strengths):
        report("lexicon", done, len(strengths), {})
        fitted = _fit(fitted, rows, objective, strength)
        own = fitted.added(validation.texts)
        for weight in (1.0,) if objective.problem == REGRESSION else WEIGHTS:
            scores = validation.combined(own, weight)
            metrics = validation.loss(scores), validation.accuracy(scores)
            candidates.append(_Candidate(fitted, strength, weight, *metrics))
    report("lexicon", len(strengths), len(strengths), {})

    best = max(candidate.accuracy for candidate in candidates)
    margin = 0.5 * (max(0.0, best * (1 - best)) / len(validation.texts)) ** 0.5
    close = [candidate for candidate in candidates if candidate.accuracy >= best - margin]
    return min(close, key=lambda candidate: candidate.loss)


def _fit(lexicon: Lexicon, rows: Tensor, objective: Objective, strength: float) -> Lexicon:
    """Fit the scores of a lexicon's entries to rows of features, started from the scores it has, if any."""
    shape, device = (len(lexicon), len(lexicon.bias)), rows.device
    weight, bias = torch.zeros(shape, device=device), torch.from_numpy(lexicon.bias).to(device)
    if lexicon.scores.shape == shape:
        weight = torch.from_numpy(lexicon.scores / lexicon.idf[:, None]).to(device)
    elif objective.problem == REGRESSION:
        bias = torch.full_like(bias, float(objective.targets.mean()))

    weight, bias = minimise(rows, objective, 1 / (strength * rows.shape[0]), (weight, bias))
    scores = (weight.cpu().numpy() * lexicon.idf[:, None]).astype(np.float32)
    return replace(lexicon, scores=scores, bias=bias.cpu().numpy())


def _prune(best: _Candidate, counts: np.ndarray, validation: Validation, limit: int) -> np.ndarray | None:
    """Return the fewest entries that keep the validation loss within the tolerance, at most `limit`; None for all."""
    # How much an entry changes the predictions: by its scores, in as many texts as have it.
    importance = counts * np.square(centred(best.lexicon.scores, validation.objective.problem)).sum(1)
    most_important = np.argsort(-importance, kind="stable")

    # Where hardly any loss is left, a fraction of it would be next to nothing.
    allowed = best.loss + TOLERANCE * max(best.loss, validation.loss(validation.scores) / 10)

    chosen = None if limit >= len(counts) else np.sort(most_important[:limit])
    for fraction in FRACTIONS:
        count = max(1, round(fraction * len(counts)))
        if count >= limit:
            continue
        kept = np.sort(most_important[:count])
        added = best.lexicon.select(kept).added(validation.texts)
        if validation.loss(validation.combined(added, best.weight)) > allowed:
            break
        chosen = kept
    return chosen


def centred(scores: np.ndarray, problem: str) -> np.ndarray:
    """Return scores (..., C) without their mean over the classes, which a softmax ignores; as they are without one."""
    return scores if problem in (MULTI, REGRESSION) else scores - scores.mean(-1, keepdims=True)


def pack_lexicon(lexicon: Lexicon, weight: float, counts: np.ndarray, problem: str) -> Lexicon:
    """Return a lexicon as it is stored, its scores multiplied by `weight`; `counts` are the texts of each entry.

    Scores are stored as a codebook stores a table: each entry's as a few (index, weight) pairs over shared anchors.
    """
    scores, bias = centred(weight * lexicon.scores, problem), centred(weight * lexicon.bias, problem)
    table = torch.from_numpy(np.ascontiguousarray(scores))
    norm = table.norm(dim=1)
    importance = torch.from_numpy(counts).float() * norm.square()
    rows = Rows(table, importance / importance.mean().clamp(min=1e-12), torch.device("cpu"))
    settings = _packing_settings(*scores.shape)
    anchors = fit_anchors(rows, settings, torch.Generator().manual_seed(0), silent)
    index, share, _ = pursue_all(rows, anchors, settings)

    # Pairs much smaller than the entry's largest are not worth their bits; the largest one always stays.
    size = share.abs()
    keep = size >= 0.1 * size.amax(1, keepdim=True)
    keep[torch.arange(len(keep)), size.argmax(1)] = True
    weights, packing = (share * norm.unsqueeze(1))[keep], Packing(shared=len(anchors))
    pairs = Codebook(anchors.numpy(), index[keep].numpy(), weights.numpy(), keep.sum(1).numpy(), packing)
    return packed_lexicon(lexicon.vocabulary, lexicon.keys, lexicon.idf, pairs, bias)


def entries_within(max_bytes: int | None, entries: int, vocabulary: int, labels: int) -> int:
    """Return the largest number of entries, at most `entries`, that take no more than `max_bytes`."""
    if max_bytes is None:
        return entries
    numbers = range(1, entries + 1)
    return bisect_right(numbers, max_bytes, key=lambda number: most_bytes(number, vocabulary, labels))


def most_bytes(entries: int, vocabulary: int, labels: int) -> int:
    """Return the bytes of a stored lexicon whose entries have all the pairs they may have."""
    settings = _packing_settings(entries, labels)
    scores = PackedSizes(
        vocabulary=entries, dim=labels, anchors=settings.anchors, own_8=0, own_4=0, pairs=entries * settings.pairs,
        most=settings.pairs,
    )  # fmt: skip
    return scores.nbytes + layout_bytes(KeySizes(entries, key_end(vocabulary)).arrays()) + 4 * labels


def _packing_settings(entries: int, labels: int) -> DistillationSettings:
    """Anchors and pairs that suit scores (entries, labels): more for more labels."""
    anchors = min(2 if labels <= 2 else min(16 * labels, 256), entries)
    pairs = 1 if labels <= 2 else 2 if labels <= 8 else 3 if labels <= 32 else 4
    return DistillationSettings(anchors=anchors, pairs=min(pairs, anchors), rounds=6)
