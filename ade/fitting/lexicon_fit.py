"""Fit the lexicon: a linear model over the n-grams of tokens, whose scores are added to those of a model.

How strongly it is regularised and its weight beside the model's scores are chosen by the scores of unseen rows: the
least loss, at the best temperature, among the choices of about the best accuracy.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ade.data.problems import MULTI, REGRESSION
from ade.data.tokens import Ragged
from ade.fitting.features import Ngrams, fit
from ade.fitting.objective import Objective
from ade.fitting.validation import Choice, Validation
from ade.lexicon import Lexicon, entries_within, frequent_keys

LEXICON_BYTES = 2_000_000  # maximum by default
MAX_WEIGHTS = 1 << 25  # entries times labels: a fit holds twenty copies of them
STRENGTHS = (3.0, 20.0, 120.0)  # the inverse of the L2 penalty, as scikit-learn's C
WEIGHTS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)  # of the lexicon's scores; the model's have weight 1
SHARES = [share / 10 for share in range(10)]  # of the model in the average of a regression
ITERATIONS = 15
TOLERANCE = 0.005  # relative loss: the lexicon must lower it by more


class Mix(NamedTuple):
    """How much of the scores of a model and of those of its lexicon makes the sum."""

    model: float
    lexicon: float

    def of(self, model: np.ndarray, lexicon: np.ndarray) -> np.ndarray:
        """Return the mixed scores (n, C)."""
        return np.float32(self.model) * model + np.float32(self.lexicon) * lexicon


class ChosenLexicon(NamedTuple):
    """The entries of a lexicon and how to fit them."""

    entries: Lexicon  # without scores
    choice: Choice
    mix: Mix
    counts: np.ndarray  # of the texts of each entry

    def fitted(self, texts: Ragged, objective: Objective, factor: float) -> Lexicon:
        """Return the lexicon fitted to texts, its scores multiplied by a factor, as it is stored."""
        start = self.choice.weights[0]
        weights = fit(Ngrams.of(self.entries, texts), objective, self.choice.strength, start, ITERATIONS)
        weights = np.float32(factor) * weights
        scores = _centred(weights[:-1] * self.entries.idf[:, None], objective.problem)
        return replace(self.entries, scores=scores, bias=_centred(weights[-1], objective.problem)).rounded()


class Calibrated(NamedTuple):
    """A model's part of its scores, and the lexicon beside it: at the best temperature for unseen rows."""

    factor: float  # to multiply the model's scores by
    lexicon: Lexicon | None
    scores: np.ndarray  # (m, C): of the unseen rows


def calibrated(
    texts: Ragged,
    vocabulary: int,
    validation: Validation,
    learned: np.ndarray,
    model_scores: np.ndarray,
    most_bytes: int,
    deviation: float = 1.0,
) -> Calibrated:
    """Return the best temperature of a model's scores (m, C) of the unseen rows, with a lexicon that lowers their loss.

    The lexicon is chosen by the folds and then fitted to the rows `learned`. It has at most `most_bytes` bytes; with 0
    there is none. The targets of a regression are divided by `deviation`.
    """
    chosen = choose_lexicon(texts, vocabulary, validation, model_scores, most_bytes) if most_bytes else None
    mix, scores = Mix(1.0, 0.0), model_scores
    if chosen is not None:
        mix, scores = chosen.mix, chosen.mix.of(model_scores, chosen.choice.scores)
    temperature = validation.judge.temperature(scores)
    mix, scores = Mix(mix.model / temperature, mix.lexicon / temperature), scores / np.float32(temperature)
    if chosen is None:
        return Calibrated(mix.model, None, scores)
    lexicon = chosen.fitted(texts.take(learned), validation.objective.take(learned), mix.lexicon * deviation)
    return Calibrated(mix.model, lexicon, scores)


def choose_lexicon(
    texts: Ragged, vocabulary: int, validation: Validation, model_scores: np.ndarray, most_bytes: int
) -> ChosenLexicon | None:
    """Return the n-grams that lower the loss of a model's scores (m, C) of the unseen rows; None if none do."""
    judge, labels = validation.judge, validation.objective.targets.shape[1]
    learned = texts.take(np.unique(np.concatenate([fold.seen for fold in validation.folds])))
    keys, counts = frequent_keys(learned, vocabulary, MAX_WEIGHTS // labels)
    if len(keys) == 0:
        return None
    idf = (np.log(len(learned) / counts) + 1).astype(np.float32)
    entries = Lexicon(vocabulary, keys, idf, np.empty((len(keys), 0), np.float32), np.zeros(labels, np.float32))

    found = []  # loss, accuracy, choice, mix
    for choice in validation.choices("n-grams", Ngrams.of(entries, texts), STRENGTHS, ITERATIONS):
        for mix in _mixes(judge.problem):
            scores = mix.of(model_scores, choice.scores)
            found.append((judge.calibrated_loss(scores), judge.accuracy(scores), choice, mix))
    best = max(accuracy for _, accuracy, _, _ in found)
    margin = 0.5 * (max(0.0, best * (1 - best)) / len(judge)) ** 0.5  # half a standard error
    loss, _, choice, mix = min((each for each in found if each[1] >= best - margin), key=lambda each: each[0])
    if loss > (1 - TOLERANCE) * judge.calibrated_loss(model_scores):
        return None
    if entries_within(most_bytes, 1, vocabulary, labels) == 0:
        return None
    return _within(ChosenLexicon(entries, choice, mix, counts), texts, validation, most_bytes)


def _mixes(problem: str) -> list[Mix]:
    if problem == REGRESSION:
        return [Mix(share, 1 - share) for share in SHARES]
    return [Mix(1.0, weight) for weight in WEIGHTS]


def _within(chosen: ChosenLexicon, texts: Ragged, validation: Validation, most_bytes: int) -> ChosenLexicon:
    """Return the lexicon with the entries that change predictions most, as many as fit, fitted again."""
    problem, labels = validation.objective.problem, validation.objective.targets.shape[1]
    count = entries_within(most_bytes, len(chosen.entries), chosen.entries.vocabulary, labels)
    if count == len(chosen.entries):
        return chosen
    weights = np.mean([each[:-1] for each in chosen.choice.weights], 0)
    importance = chosen.counts * (_centred(weights * chosen.entries.idf[:, None], problem) ** 2).sum(1)
    kept = np.sort(np.argsort(-importance, kind="stable")[:count])
    features = Ngrams.of(chosen.entries, texts).only(kept)
    (choice,) = validation.choices("n-grams", features, (chosen.choice.strength,), ITERATIONS)
    return ChosenLexicon(chosen.entries.select(kept), choice, chosen.mix, chosen.counts[kept])


def _centred(scores: np.ndarray, problem: str) -> np.ndarray:
    """Return scores (..., C) without their mean over the classes, which a softmax ignores; as they are without one."""
    return scores if problem in (MULTI, REGRESSION) else scores - scores.mean(-1, keepdims=True)


def lexicon_facts(lexicon: Lexicon | None) -> dict[str, int]:
    """Return what a model's metadata says of its lexicon."""
    return {"entries": 0} if lexicon is None else {"entries": len(lexicon), "bytes": lexicon.nbytes}
