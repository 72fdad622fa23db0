"""The main job on embedded defaults: WordNet glosses with the wordllama teacher, beside what one would use instead."""

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
# The preset for a short run, so that the job ends within minutes on two cores: fewer passes, a higher rate, less noise.
SHORT = replace(STRONG, epochs=4.0, learning_rate=1.2e-3, dropout=0.1)


@dataclass(frozen=True)
class Entry:
    """One line of the comparison."""

    name: str
    evaluation: Evaluation
    seconds: float  # training
    nbytes: int  # of all that prediction needs, tokenizer or vocabulary included


@dataclass(frozen=True)
class Demo:
    """What the main job found."""

    entries: list[Entry]
    table_nbytes: int
    codebook: Codebook
    words: list[TokenAnchors]
    folder: Path

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
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
    """Distil, train with and without SAT, train the peer, evaluate all on the same split."""
    teacher = load_teacher(DEFAULT_TEACHER)
    rows, test = load_dataset(EMBEDDED, "train"), load_dataset(EMBEDDED, "test")
    settings = replace(SHORT, epochs=epochs, seed=seed)
    peer = _tfidf(rows, test, report)
    codebook = distill(teacher, DistillationSettings(seed=seed), report=report)
    codebook.save(folder / "codebook", overwrite=True)

    def ade(name: str, sat: bool) -> Entry:
        began, out = time.perf_counter(), folder / name.lower().replace(" ", "-")

        def titled(stage: str, done: int, total: int, figures: Mapping[str, float]) -> None:
            report(name if stage == "train" else stage, done, total, figures)

        classifier = train(
            codebook, rows, None, settings, Architecture(attend="tokens", sat=sat), out, "overwrite", titled
        )
        seconds = time.perf_counter() - began
        found = evaluate(classifier, test)
        assert isinstance(found, Evaluation)
        return Entry(name, found, seconds, folder_sizes(out)["bytes"])

    entries = [peer, ade("ADE without SAT", sat=False), ade("ADE", sat=True)]
    return Demo(entries, teacher.nbytes, codebook, inspect_words(codebook, POLYSEMOUS), folder)


def _tfidf(rows: Dataset, test: Dataset, report: Report) -> Entry:
    """TF-IDF of words and word pairs with a linear SVM: the peer to beat."""
    began = time.perf_counter()
    report("TF-IDF + SVM", 0, 2, {})
    predict, nbytes = _fit_tfidf(rows)
    seconds = time.perf_counter() - began
    report("TF-IDF + SVM", 1, 2, {})
    figures = compare(test.labels, predict(test.texts), rows.names)
    report("TF-IDF + SVM", 2, 2, {})
    return Entry("TF-IDF + linear SVM", figures, seconds, nbytes)


def _fit_tfidf(rows: Dataset) -> tuple[Callable[[Sequence[str]], np.ndarray], int]:
    """The peer fitted, with the customary settings: texts -> class numbers, and the bytes it needs."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.svm import LinearSVC
    except ImportError:
        raise InputError("the peer needs scikit-learn: pip install 'ade-embeddings[demo]'") from None
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    svm = LinearSVC(random_state=0).fit(vectorizer.fit_transform(rows.texts), rows.labels)
    numbers = svm.coef_.size + svm.intercept_.size + len(vectorizer.vocabulary_)  # an idf for each entry
    needed = linear_sizes(numbers, vectorizer.vocabulary_)
    return lambda texts: svm.predict(vectorizer.transform(texts)), needed["bytes"]
