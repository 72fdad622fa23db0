"""The demo: a wordllama codebook and two models on WordNet glosses, compared with TF-IDF and a linear SVM."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ade.cli.sizes import folder_sizes, linear_sizes
from ade.codebook import Codebook
from ade.data.dataset import Dataset
from ade.data.loading import EMBEDDED, load_dataset
from ade.distillation import distill
from ade.errors import InputError
from ade.evaluation import Evaluation, compare, evaluate
from ade.inspector.words import TokenAnchors, inspect_words
from ade.progress import Report, silent
from ade.settings import STRONG, Architecture, DistillationSettings
from ade.teachers import DEFAULT_TEACHER, load_teacher
from ade.training.loop import train

POLYSEMOUS = ["bank", "spring", "apple"]
# The strong preset for a run of minutes on two cores: fewer epochs, a higher learning rate, less dropout.
SHORT = replace(STRONG, epochs=4.0, learning_rate=1.2e-3, dropout=0.1)


@dataclass(frozen=True)
class Entry:
    """One row of the comparison."""

    name: str
    evaluation: Evaluation
    seconds: float  # of training
    nbytes: int  # of everything prediction needs, tokenizer or vocabulary included


@dataclass(frozen=True)
class Demo:
    """The results of the demo."""

    entries: list[Entry]
    table_nbytes: int
    codebook: Codebook
    words: list[TokenAnchors]
    folder: Path

    def as_dict(self) -> dict[str, Any]:
        """The results as plain values for JSON."""
        return {
            "results": [
                {"name": entry.name, "seconds": entry.seconds, "bytes": entry.nbytes, **entry.evaluation.as_dict()}
                for entry in self.entries
            ],
            "table_bytes": self.table_nbytes,
            "codebook_bytes": self.codebook.nbytes,
            "cosine": self.codebook.about["cosine"],
            "words": [token.as_dict() for token in self.words],
        }


def run_demo(folder: Path, seed: int = 0, epochs: float | None = SHORT.epochs, report: Report = silent) -> Demo:
    """Distil, train with and without SAT, fit the baseline, and evaluate all on the same test split."""
    teacher = load_teacher(DEFAULT_TEACHER)
    rows, test = load_dataset(EMBEDDED, "train"), load_dataset(EMBEDDED, "test")
    settings = replace(SHORT, epochs=epochs, seed=seed)
    baseline = _evaluate_tfidf(rows, test, report)
    codebook = distill(teacher, DistillationSettings(seed=seed), report=report)
    codebook.save(folder / "codebook", overwrite=True)

    def train_and_evaluate(name: str, sat: bool) -> Entry:
        began, out = time.perf_counter(), folder / name.lower().replace(" ", "-")

        def report_as_name(stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
            report(name if stage == "train" else stage, done, total, metrics)

        architecture = Architecture(attend="tokens", sat=sat)
        classifier = train(codebook, rows, None, settings, architecture, out, "overwrite", report_as_name)
        seconds = time.perf_counter() - began

        evaluation = evaluate(classifier, test)
        assert isinstance(evaluation, Evaluation)
        return Entry(name, evaluation, seconds, folder_sizes(out)["bytes"])

    entries = [baseline, train_and_evaluate("ADE without SAT", sat=False), train_and_evaluate("ADE", sat=True)]
    return Demo(entries, teacher.nbytes, codebook, inspect_words(codebook, POLYSEMOUS), folder)


def _evaluate_tfidf(rows: Dataset, test: Dataset, report: Report) -> Entry:
    """The baseline: TF-IDF of words and word pairs with a linear SVM."""
    began = time.perf_counter()
    report("TF-IDF + SVM", 0, 2, {})
    predict, nbytes = _fit_tfidf(rows)
    seconds = time.perf_counter() - began
    report("TF-IDF + SVM", 1, 2, {})
    evaluation = compare(test.labels, predict(test.texts), rows.names)
    report("TF-IDF + SVM", 2, 2, {})
    return Entry("TF-IDF + linear SVM", evaluation, seconds, nbytes)


def _fit_tfidf(rows: Dataset) -> tuple[Callable[[Sequence[str]], np.ndarray], int]:
    """A function that maps texts to class ids by the fitted baseline, and the bytes the baseline needs."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.svm import LinearSVC
    except ImportError:
        raise InputError("the baseline needs scikit-learn: pip install 'ade-embeddings[demo]'") from None
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    svm = LinearSVC(random_state=0).fit(vectorizer.fit_transform(rows.texts), rows.labels)
    numbers = svm.coef_.size + svm.intercept_.size + len(vectorizer.vocabulary_)  # with an idf for each entry
    sizes = linear_sizes(numbers, vectorizer.vocabulary_)
    return lambda texts: svm.predict(vectorizer.transform(texts)), sizes["bytes"]
