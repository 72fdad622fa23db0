"""The demo: a wordllama codebook and two models on WordNet glosses, compared with TF-IDF and a linear SVM."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ade.classifier import Classifier
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
from ade.training.loop import fit_model

POLYSEMOUS = ["bank", "spring", "apple"]
# The strong preset for a run of minutes on two cores: fewer epochs, a higher learning rate, less dropout.
SHORT = replace(STRONG, epochs=2.5, learning_rate=1.5e-3, dropout=0.1)


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
    """Distil, train, fit the baseline, and evaluate all on the same test split; ADE with and without its lexicon."""
    teacher = load_teacher(DEFAULT_TEACHER)
    rows, test = load_dataset(EMBEDDED, "train"), load_dataset(EMBEDDED, "test")
    settings = replace(SHORT, epochs=epochs, seed=seed)
    baseline = _evaluate_tfidf(rows, test, report)
    codebook = distill(teacher, DistillationSettings(seed=seed), report=report)
    codebook.save(folder / "codebook", overwrite=True)

    def report_as_ade(stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        report("ADE" if stage == "train" else stage, done, total, metrics)

    began, out = time.perf_counter(), folder / "ade"
    shape = Architecture(attend="gated")
    classifier = fit_model(codebook, rows, None, settings, shape, out, "overwrite", report_as_ade)
    seconds = time.perf_counter() - began
    nbytes, lexicon_nbytes = folder_sizes(out)["bytes"], classifier.model.lexicon_nbytes

    entries = [baseline, Entry("ADE", _evaluate(classifier, test), seconds, nbytes)]
    if lexicon_nbytes:
        plain = Classifier(classifier.model.without_lexicon(), classifier.tokenizer)
        entries.insert(1, Entry("ADE without lexicon", _evaluate(plain, test), seconds, nbytes - lexicon_nbytes))
    return Demo(entries, teacher.nbytes, codebook, inspect_words(codebook, POLYSEMOUS), folder)


def _evaluate(classifier: Classifier, test: Dataset) -> Evaluation:
    evaluation = evaluate(classifier, test)
    assert isinstance(evaluation, Evaluation)
    return evaluation


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
