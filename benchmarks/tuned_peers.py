"""Peers that are tuned as we are, on training rows alone: TF-IDF + SVM, NB-SVM (Wang & Manning, 2012) and fastText.

Each has a few settings with a handful of values. They are searched one after the other by cross-validation on at most
`CHOOSING_ROWS` training rows; the model is then trained on all rows with what was chosen, and the record keeps it.
"""

import random
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ade.cli.sizes import Sizes, file_sizes, linear_sizes
from ade.data.dataset import Dataset

CHOOSING_ROWS, FOLDS = 10_000, 3
WORDS, EVERY_TOKEN = r"(?u)\b\w\w+\b", r"(?u)\b\w+\b|[^\w\s]"  # scikit-learn's own; with single characters, punctuation
LOWER, APART, AS_IT_IS = "lower case", "lower case, punctuation apart", "as it is"  # what fastText gets to read
BUCKETS = 2_000_000  # fastText's default, and the most
FEWEST = 20_000_000  # numbers in the buckets: with fewer, this build of fastText may begin with memory it did not clear
Options = dict[str, Any]
Predict = Callable[[Sequence[str]], np.ndarray]

TFIDF: Mapping[str, tuple[Any, ...]] = {  # the first value of each is where the search begins
    "token_pattern": (WORDS, EVERY_TOKEN),
    "characters": (False, True),
    "sublinear": (True, False),
    "C": (1.0, 0.1, 0.3, 3.0, 10.0),
}
NBSVM: Mapping[str, tuple[Any, ...]] = {
    "C": (1.0, 0.01, 0.1, 10.0),
    "interpolation": (1.0, 0.5, 0.25),
    "token_pattern": (WORDS, EVERY_TOKEN),
}
FASTTEXT: Mapping[str, tuple[Any, ...]] = {
    "text": (LOWER, APART, AS_IT_IS),
    "wordNgrams": (2, 3),
    "epoch": (25, 5, 50),
    "lr": (0.5, 0.1, 1.0),
    "dim": (10, 50, 100),
}


@dataclass(frozen=True)
class Trained:
    """A trained peer: raw texts -> class numbers, the bytes it needs to predict, and what was chosen for it."""

    predict: Predict
    sizes: Callable[[], Sizes]  # asked for once, of the model trained on all rows
    chosen: Options = field(default_factory=dict)


Fit = Callable[[Dataset, int, Options], Trained]


def tuned(fit: Fit, grid: Mapping[str, tuple[Any, ...]], rows: Dataset, seed: int, final: Fit | None = None) -> Trained:
    """The peer trained on all rows (by `final` where it is made in another way), with the settings best by `fit`."""
    options, accuracy = search(grid, partial(_cross_validated, fit, rows, seed))
    trained = (final or fit)(rows, seed, options)
    return Trained(trained.predict, trained.sizes, {**options, "cross_validated_accuracy": accuracy})


def search(grid: Mapping[str, tuple[Any, ...]], score: Callable[[Options], float]) -> tuple[Options, float]:
    """One setting after the other: each takes its best value, given those before it; a tie keeps the earlier value."""
    options = {name: values[0] for name, values in grid.items()}
    best = score(options)
    for name, values in grid.items():
        for value in values[1:]:
            tried = {**options, name: value}
            found = score(tried)
            if found > best:
                options, best = tried, found
    return options, best


def _cross_validated(fit: Fit, rows: Dataset, seed: int, options: Options) -> float:
    """Mean accuracy over the folds, of a model trained on the other folds."""
    some = np.sort(np.random.default_rng(seed).permutation(len(rows))[:CHOOSING_ROWS])
    rows = rows.take(some)
    fold = folds(rows.labels, seed)
    right = []
    for held in range(FOLDS):
        if not 0 < (fold == held).sum() < len(rows):
            continue
        inside, outside = rows.take(np.flatnonzero(fold != held)), rows.take(np.flatnonzero(fold == held))
        try:
            trained = fit(inside, seed, options)
        except RuntimeError as error:  # how fastText ends at too high a learning rate
            if "NaN" not in str(error):
                raise
            return 0.0
        right.append((trained.predict(list(outside.texts)) == outside.labels).mean())
    return float(np.mean(right))


def folds(labels: np.ndarray, seed: int) -> np.ndarray:
    """The fold of each row; every class is spread over the folds as evenly as can be."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    found = np.empty(len(labels), dtype=np.int64)
    found[order] = np.arange(len(labels)) % FOLDS
    return found


def tfidf(rows: Dataset, seed: int, options: Options) -> Trained:
    """TF-IDF of words and word pairs, of character n-grams where chosen, and a linear SVM."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import FeatureUnion
    from sklearn.svm import LinearSVC

    shared = {"sublinear_tf": options["sublinear"], "dtype": np.float32}
    parts = [("words", TfidfVectorizer(ngram_range=(1, 2), token_pattern=options["token_pattern"], **shared))]
    if options["characters"]:
        parts.append(("characters", TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **shared)))
    features = FeatureUnion(parts)
    svm = LinearSVC(C=options["C"], random_state=seed).fit(features.fit_transform(rows.texts), rows.labels)

    entries = [entry for _, part in parts for entry in part.vocabulary_]
    numbers = svm.coef_.size + svm.intercept_.size + len(entries)  # an idf for each entry
    return Trained(lambda texts: svm.predict(features.transform(texts)), lambda: linear_sizes(numbers, entries))


def nbsvm(rows: Dataset, seed: int, options: Options) -> Trained:
    """Naive Bayes log-count ratios of binarised words and word pairs, a linear SVM on them for each class.

    The SVM's weights are drawn towards their mean size: w' = (1 - b) mean|w| + b w, with b the interpolation.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.svm import LinearSVC

    vectorizer = CountVectorizer(
        ngram_range=(1, 2), token_pattern=options["token_pattern"], binary=True, dtype=np.float32
    )
    counts = vectorizer.fit_transform(rows.texts)
    weights = np.zeros((len(rows.names), counts.shape[1]), dtype=np.float32)  # (C, n-grams)
    biases = np.full(len(rows.names), -np.inf, dtype=np.float32)
    for label in range(len(rows.names)):
        own = rows.labels == label
        if not own.any() or own.all():
            biases[label] = np.inf if own.all() else -np.inf
            continue
        inside, outside = (1 + np.asarray(counts[part].sum(0)).ravel() for part in (own, ~own))
        ratio = np.log((inside / inside.sum()) / (outside / outside.sum()))
        with warnings.catch_warnings():  # the ratios are large: at a high C it stops at its last iteration
            warnings.simplefilter("ignore", ConvergenceWarning)
            svm = LinearSVC(C=options["C"], random_state=seed).fit(counts.multiply(ratio[None, :]).tocsr(), own)
        share = options["interpolation"]
        weights[label] = ratio * ((1 - share) * np.abs(svm.coef_[0]).mean() + share * svm.coef_[0])
        biases[label] = svm.intercept_[0]

    return Trained(
        lambda texts: (vectorizer.transform(texts) @ weights.T + biases).argmax(1),
        lambda: linear_sizes(weights.size + biases.size, vectorizer.vocabulary_),
    )


def fasttext(rows: Dataset, seed: int, options: Options, quantised: bool = False) -> Trained:
    """fastText; quantised to .ftz, retrained and with the most telling features kept."""
    import fasttext as library

    line = partial(_line, kind=options["text"])
    settings = {name: value for name, value in options.items() if name != "text"}
    hashed = _ngrams(map(line, rows.texts), options["wordNgrams"])
    buckets = min(BUCKETS, max(FEWEST // options["dim"], 2 * hashed))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.txt"
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        path.write_text("".join(f"__label__{rows.labels[i]} {line(rows.texts[i])}\n" for i in order), "utf8")
        model = library.train_supervised(str(path), **settings, bucket=buckets, thread=2, seed=seed + 1, verbose=0)
        if quantised:
            model.quantize(str(path), qnorm=True, retrain=True, cutoff=100_000, verbose=False)

    def predict(texts: Sequence[str]) -> np.ndarray:
        labels, _ = model.predict([line(text) for text in texts])
        return np.array([int(label[0].removeprefix("__label__")) for label in labels])

    def needed() -> Sizes:
        with tempfile.TemporaryDirectory() as folder:
            model.save_model(str(Path(folder) / "model"))
            return file_sizes(Path(folder) / "model")

    return Trained(predict, needed)


def _line(text: str, kind: str) -> str:
    """A text as fastText reads it: words with a space between them."""
    text = text if kind == AS_IT_IS else text.lower()
    return " ".join((re.sub(r"([^\w\s])", r" \1 ", text) if kind == APART else text).split())


def _ngrams(lines: Iterable[str], most: int) -> int:
    """Different n-grams of 2 to `most` words: fastText hashes each into a bucket."""
    seen: set[int] = set()
    for line in lines:
        words = line.split()
        for length in range(2, most + 1):
            seen.update(hash(tuple(words[i : i + length])) for i in range(len(words) - length + 1))
    return len(seen)
