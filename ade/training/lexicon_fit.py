"""Fit the lexicon: a regularised linear model over token n-grams, whose scores are added to a trained model's.

The linear model is fitted on the training rows with full-batch L-BFGS. The strength of its regularisation and its
weight beside the model's scores are chosen by the accuracy of the summed scores on the validation rows, and by their
loss if the accuracy hardly differs; the number of entries is chosen by the loss. If the validation rows were held back
from the training rows, it is then fitted to all of them with what was chosen. Of very many rows a sample is taken.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ade.data.problems import REGRESSION
from ade.lexicon import Lexicon, LexiconShape, keys_of, unpack
from ade.packing.lexicon_packing import centred, entries_within, pack_lexicon
from ade.progress import Report, silent
from ade.training.lexicon_loss import TOLERANCE, Blend, Objective, Ragged, Validation

MIN_TEXTS = 2  # training texts an n-gram must occur in to become an entry
MAX_WEIGHTS = 1 << 25  # entries times labels: the optimizer holds ten copies of them
STRENGTHS = (3.0, 20.0, 120.0)  # inverse of the L2 penalty, as scikit-learn's C
WEIGHTS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of the lexicon's scores; the model's have weight 1
FRACTIONS = (0.5, 0.25, 0.125, 0.0625)  # of the entries that pruning may keep
MAX_ITERATIONS = 12  # of L-BFGS
MAX_TOKENS = 1 << 24  # tokens of the rows it is fitted to: a sample where there are more, which take 200 bytes each
CHUNK = 1 << 15  # texts whose n-grams are counted at a time


@dataclass(frozen=True)
class Fitted:
    """A fitted lexicon in its stored form."""

    shape: LexiconShape
    arrays: dict[str, np.ndarray]
    weight: float  # of the lexicon's scores, multiplied into them already
    model_weight: float  # to multiply the model's scores by: 1, except for regression
    loss: float  # of the summed scores on the validation rows, before a fit that includes these rows
    loss_without: float  # of the model's scores alone
    validation_logits: np.ndarray  # (n, C): what the lexicon of that loss adds to the scores of the validation rows

    def lexicon(self) -> Lexicon:
        """The lexicon ready to score texts."""
        return unpack(self.shape, self.arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays."""
        return sum(array.nbytes for array in self.arrays.values())


def fit_lexicon(
    texts: Ragged,
    targets: np.ndarray,
    problem: str,
    validation: Validation,
    vocabulary: int,
    device: torch.device,
    class_weights: Sequence[float] | None = None,
    held_back: bool = False,
    report: Report = silent,
    max_bytes: int | None = None,
) -> Fitted | None:
    """Fit a lexicon that lowers the validation loss when its scores are added to the model's; None if none does.

    `targets` are classes (n,), probabilities or multi-label targets (n, C), or numbers (n,). If the validation rows
    were `held_back` from the training rows, the lexicon is fitted to them too once everything is chosen. With
    `max_bytes` it has only as many entries as fit.
    """
    texts, targets = sampled(texts, targets, MAX_TOKENS)
    labels = validation.logits.shape[1]
    keys, counts = count_entries(texts, vocabulary, MAX_WEIGHTS // labels)
    if not len(keys):
        return None

    idf = (np.log((len(texts.offsets) - 1) / counts) + 1).astype(np.float32)
    unfitted = Lexicon(vocabulary, keys, idf, np.empty((len(keys), 0), np.float32), np.zeros(labels, np.float32))
    train_objective = Objective.of(targets, problem, class_weights, device)
    blend = Blend(validation, Objective.of(validation.labels, problem, class_weights, torch.device("cpu")))

    best = _fit_strengths(unfitted, texts, train_objective, blend, STRENGTHS, report)
    loss_without = blend.loss_without()
    if best.loss > loss_without - blend.least_gain(best.lexicon.logits(*validation.texts), best.weight):
        return None

    limit = entries_within(max_bytes, len(counts), vocabulary, labels)
    if limit == 0:
        return None
    kept = _prune(best, counts, blend, limit)
    if kept is not None:
        # Fitted again: the entries that stay take over some of what the pruned ones contributed.
        pruned = _select(best.lexicon, kept)
        best = _fit_strengths(pruned, texts, train_objective, blend, (best.strength,), report)
        counts = counts[kept]

    weight, model_weight, final = best.weight, 1.0, best.lexicon
    own = best.lexicon.logits(*validation.texts)
    if problem == REGRESSION:
        model_weight = blend.model_share(own)
        weight = 1 - model_weight
    if held_back:
        final = _fit_all(best, texts, validation, train_objective)
    shape, arrays = pack_lexicon(final, weight, counts, problem)

    # Measured as it is stored, since packing rounds it; but not after a fit that has seen the validation rows.
    added = weight * own if held_back else unpack(shape, arrays).logits(*validation.texts)
    loss = blend.loss_of_sum(model_weight * validation.logits + added)
    return Fitted(shape, arrays, weight, model_weight, loss, loss_without, added)


def sampled(texts: Ragged, targets: np.ndarray, tokens: int) -> tuple[Ragged, np.ndarray]:
    """Texts and their targets as they are or, where they have more than so many tokens in all, a random sample."""
    count, total = len(texts.offsets) - 1, int(texts.offsets[-1])
    if total <= tokens:
        return texts, targets

    rows = np.sort(np.random.default_rng(0).choice(count, max(1, count * tokens // total), replace=False))
    starts, ends = texts.offsets[rows], texts.offsets[rows + 1]
    ids = np.concatenate([texts.ids[start:end] for start, end in zip(starts, ends, strict=True)])
    return Ragged(ids, np.concatenate([[0], np.cumsum(ends - starts)])), targets[rows]


def count_entries(texts: Ragged, vocabulary: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys of n-grams that occur in at least `MIN_TEXTS` texts, ascending, and the number of texts of each.

    If there are more than `limit`, the most frequent ones.
    """
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for start in range(0, len(texts.offsets) - 1, CHUNK):
        offsets = texts.offsets[start : start + CHUNK + 1]
        chunk_keys, text = keys_of(texts.ids[offsets[0] : offsets[-1]], offsets - offsets[0], vocabulary)

        # A key counts once per text, however often the text has it.
        order = np.lexsort((chunk_keys, text))
        chunk_keys, text = chunk_keys[order], text[order]
        first_in_text = (np.diff(chunk_keys, prepend=-1) != 0) | (np.diff(text, prepend=-1) != 0)
        distinct = chunk_keys[first_in_text]

        keys, inverse = np.unique(np.concatenate([keys, distinct]), return_inverse=True)
        added = np.concatenate([counts, np.ones(len(distinct), np.int64)])
        counts = np.bincount(inverse, added, len(keys)).astype(np.int64)

    frequent = counts >= MIN_TEXTS
    keys, counts = keys[frequent], counts[frequent]
    if len(keys) > limit:
        most_frequent = np.sort(np.argsort(-counts, kind="stable")[:limit])
        keys, counts = keys[most_frequent], counts[most_frequent]
    return keys, counts


def features(lexicon: Lexicon, texts: Ragged, device: torch.device) -> Tensor:
    """TF-IDF-like features as a sparse matrix (n, entries): the idf of each entry of a text, rows of unit length."""
    entry, text = lexicon.found(texts.ids, texts.offsets)
    count = len(texts.offsets) - 1
    norm = np.sqrt(np.bincount(text, lexicon.idf[entry] ** 2, count))
    values = (lexicon.idf[entry] / norm[text]).astype(np.float32)
    row_starts = np.searchsorted(text, np.arange(count + 1))

    starts, columns, data = (torch.from_numpy(array) for array in (row_starts, entry, values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that sparse CSR is in beta
        matrix = torch.sparse_csr_tensor(starts, columns, data, (count, len(lexicon)), check_invariants=False)
    return matrix.to(device)


def _transposed(rows: Tensor) -> Tensor:
    """The transpose in CSR: the columns of a matrix in CSC are its rows."""
    columns = rows.to_sparse_csc()
    parts = (columns.ccol_indices(), columns.row_indices(), columns.values())
    return torch.sparse_csr_tensor(*parts, (rows.shape[1], rows.shape[0]), check_invariants=False)


def minimise(rows: Tensor, objective: Objective, penalty: float, start: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Weights (entries, C) and bias (C,) that minimise the mean loss plus penalty / 2 times the squared weights."""
    # The gradient of the weights is a product with the transpose, made once: CSR is fast by rows, not by columns.
    transposed = _transposed(rows)

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
    blend: Blend,
    strengths: Sequence[float],
    report: Report,
) -> _Candidate:
    """Fit the entries of a lexicon for each strength, started from the last; returns the best strength and weight."""
    rows = features(lexicon, texts, objective.targets.device)
    candidates, fitted = [], lexicon
    for done, strength in enumerate(strengths):
        report("lexicon", done, len(strengths), {})
        fitted = _fit(fitted, rows, objective, strength)
        own = fitted.logits(*blend.validation.texts)
        for each in (1.0,) if objective.problem == REGRESSION else WEIGHTS:
            candidates.append(_Candidate(fitted, strength, each, blend.loss(own, each), blend.accuracy(own, each)))
    report("lexicon", len(strengths), len(strengths), {})
    return _choose(candidates, len(blend.validation.labels))


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
    return Lexicon(lexicon.vocabulary, lexicon.keys, lexicon.idf, scores, bias.cpu().numpy())


def _fit_all(best: _Candidate, texts: Ragged, validation: Validation, objective: Objective) -> Lexicon:
    """Fit the chosen entries, with the chosen strength, to the training and the validation rows together."""
    more = validation.texts
    offsets = np.concatenate([texts.offsets, texts.offsets[-1] + more.offsets[1:] - more.offsets[0]])
    together = Ragged(np.concatenate([texts.ids, more.ids]), offsets)
    rows = features(best.lexicon, together, objective.targets.device)
    return _fit(best.lexicon, rows, objective.extended(validation.labels), best.strength)


def _choose(candidates: Sequence[_Candidate], rows: int) -> _Candidate:
    """The candidate of the least loss among those within half a standard error of the best accuracy."""
    best = max(candidate.accuracy for candidate in candidates)
    margin = 0.5 * (max(0.0, best * (1 - best)) / rows) ** 0.5
    close = [candidate for candidate in candidates if candidate.accuracy >= best - margin]
    return min(close, key=lambda candidate: candidate.loss)


def _prune(best: _Candidate, counts: np.ndarray, blend: Blend, limit: int) -> np.ndarray | None:
    """The fewest entries that keep the validation loss within the tolerance, at most `limit`; None to keep all."""
    # How much an entry changes the predictions: by its scores, in as many texts as have it.
    importance = counts * np.square(centred(best.lexicon.scores, blend.objective.problem)).sum(1)
    most_important = np.argsort(-importance, kind="stable")

    # Where hardly any loss is left, a fraction of it would be next to nothing.
    allowed = best.loss + TOLERANCE * max(best.loss, blend.loss_without() / 10)

    chosen = None if limit >= len(counts) else np.sort(most_important[:limit])
    for fraction in FRACTIONS:
        count = max(1, round(fraction * len(counts)))
        if count >= limit:
            continue
        kept = np.sort(most_important[:count])
        smaller = _select(best.lexicon, kept)
        if blend.loss(smaller.logits(*blend.validation.texts), best.weight) > allowed:
            break
        chosen = kept
    return chosen


def _select(lexicon: Lexicon, entries: np.ndarray) -> Lexicon:
    """The lexicon with some of its entries."""
    keys, idf, scores = lexicon.keys[entries], lexicon.idf[entries], lexicon.scores[entries]
    return Lexicon(lexicon.vocabulary, keys, idf, scores, lexicon.bias)
