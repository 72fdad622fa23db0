"""Step one of training: two convex fits on a sentence encoder whose layers stay as they are. Numpy alone.

One linear model reads the vectors of the encoder, one the n-grams of the lexicon. Both are fitted by L-BFGS. How
strongly each is regularised, the weight of the lexicon beside the vectors, and one temperature for the sum are chosen
by the scores of rows that a fit has not seen, which give the estimate of the accuracy, too. Then both are fitted to all
rows. What comes out is a model as any other: a linear head on the pooled vector, and a lexicon.
"""

from dataclasses import replace

import numpy as np

from ade.backends import backend_for
from ade.configuration import CLASSIFIER
from ade.data.dataset import Dataset
from ade.data.problems import REGRESSION
from ade.data.tokens import LEXICON_TOKENS, tokenize
from ade.evaluation import BEST_BY, evaluate_scores
from ade.fitting.estimate import estimate
from ade.fitting.features import Dense, fit
from ade.fitting.lexicon_fit import LEXICON_BYTES, calibrated, lexicon_facts
from ade.fitting.objective import Objective
from ade.fitting.validation import Fold, Validation, folds_of
from ade.folder import Saved
from ade.progress import Report, silent

MAX_ROWS = 200_000  # of very many rows a stratified sample is fitted
STRENGTHS = (0.5, 2.0, 8.0, 32.0, 128.0)  # the inverse of the L2 penalty, as scikit-learn's C
ITERATIONS = 30


def fit_convex(
    encoder: Saved,
    data: Dataset,
    dev: Dataset | None = None,
    *,
    class_weights: tuple[float, ...] | None = None,
    lexicon_bytes: int = LEXICON_BYTES,
    seed: int = 0,
    report: Report = silent,
) -> Saved:
    """Return a classifier, or a model that predicts numbers, on the layers of an encoder.

    With `dev`, everything is chosen and measured on its rows, and nothing is learned from them. `lexicon_bytes` limits
    the lexicon; 0 leaves it out.
    """
    rows = len(data)
    if rows > MAX_ROWS:
        data = data.split(MAX_ROWS / rows, seed)[1]
    mean, deviation = 0.0, 1.0
    labels = data.labels if dev is None else np.concatenate([data.labels, dev.labels])
    if data.problem == REGRESSION:  # targets of mean 0 and standard deviation 1
        mean, deviation = float(data.labels.mean()), float(data.labels.std()) or 1.0
        labels = (labels - mean) / deviation
    objective = Objective.of(labels, data.problem, len(data.names), class_weights)
    learned = np.arange(len(data))
    folds = folds_of(objective, seed) if dev is None else [Fold(learned, np.arange(len(data), len(objective)))]
    validation = Validation(objective, folds, report)

    texts = tokenize(encoder.tokenizer, data.texts, LEXICON_TOKENS, report)
    if dev is not None:
        texts = texts + tokenize(encoder.tokenizer, dev.texts, LEXICON_TOKENS)
    vectors = backend_for(encoder).scores(texts)  # (n, D): before they are made unit vectors
    centre = vectors[learned].mean(0)
    length = float(np.sqrt(((vectors[learned] - centre) ** 2).sum(1).mean())) or 1.0
    dense = Dense((vectors - centre) / np.float32(length))

    own = min(
        validation.choices("vectors", dense, STRENGTHS, ITERATIONS),
        key=lambda choice: validation.judge.calibrated_loss(choice.scores),
    )
    found = calibrated(texts, encoder.table.vocabulary, validation, learned, own.scores, lexicon_bytes, deviation)
    weights = fit(dense.take(learned), objective.take(learned), own.strength, own.weights[0], ITERATIONS)
    head = np.float32(found.factor / length) * weights[:-1].T  # (C, D)
    bias = np.float32(found.factor) * weights[-1] - head @ centre

    measured = data.take(validation.unseen) if dev is None else dev
    metrics = evaluate_scores(measured, found.scores * np.float32(deviation) + np.float32(mean), data.names).as_dict()
    known = {name: encoder.config.metadata.get(name) for name in ("teacher", "license")}
    config = replace(
        encoder.config, kind=CLASSIFIER, output_size=0, labels=tuple(data.names), label_type=data.label_type,
        problem=data.problem, mean=mean, deviation=deviation, class_weights=class_weights,
        metadata={
            **known, "data": data.name, "rows": rows, "dev": metrics, "lexicon": lexicon_facts(found.lexicon),
            "estimate": estimate(metrics, BEST_BY[data.problem], len(measured), len(folds)),
        },
    )  # fmt: skip
    layers = dict(encoder.layers)
    weight, shift = layers["head.weight"], layers["head.bias"]  # (D, d), (D,): the encoder's own map
    layers |= {"head.weight": head @ weight, "head.bias": head @ shift + bias}
    return replace(encoder, config=config, layers=layers, lexicon=found.lexicon).rounded()
