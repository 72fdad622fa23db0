"""The demo of `ade run`: a wordllama codebook and a model on WordNet glosses, compared with TF-IDF and a linear SVM."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ade.cli import display
from ade.cli.inspection import print_words
from ade.data.dataset import Dataset
from ade.data.sources import EMBEDDED, load_dataset
from ade.distillation import distill
from ade.errors import InputError
from ade.evaluation import AnyEvaluation, compare, evaluate
from ade.folder import Saved, nbytes_of
from ade.inspector.words import TokenAnchors, inspect_words
from ade.progress import Report, silent
from ade.settings import STRONG, Architecture, DistillationSettings
from ade.teachers import DEFAULT_TEACHER, load_teacher
from ade.trained_model import Classifier
from ade.training.loop import fit_model

POLYSEMOUS = ["bank", "spring", "apple"]
# The strong preset for a run of minutes on two cores: fewer epochs, a higher learning rate, less dropout.
SHORT = replace(STRONG, epochs=2.5, learning_rate=1.5e-3, dropout=0.1)
Entry = dict[str, Any]  # of the comparison: name, seconds of training, bytes that prediction needs, metrics


@dataclass(frozen=True)
class Demo:
    """The results of the demo."""

    entries: list[Entry]
    table_nbytes: int
    codebook: Saved
    words: list[TokenAnchors]
    folder: Path

    def as_dict(self) -> dict[str, Any]:
        """The results as plain values for JSON."""
        return {
            "results": self.entries,
            "table_bytes": self.table_nbytes,
            "codebook_bytes": self.codebook.nbytes,
            "cosine": self.codebook.config.metadata["cosine"],
            "words": [token.as_dict() for token in self.words],
        }


def run_demo(folder: Path, seed: int = 0, epochs: float | None = SHORT.epochs, report: Report = silent) -> Demo:
    """Distil, train, fit the baseline, and evaluate all on the same test split; ADE with and without its lexicon."""
    teacher = load_teacher(DEFAULT_TEACHER)
    rows, test = load_dataset(EMBEDDED, "train"), load_dataset(EMBEDDED, "test")
    entries = [_tfidf(rows, test, report)]
    codebook = distill(teacher, DistillationSettings(seed=seed), report=report)
    codebook.save(folder / "codebook", overwrite=True)

    def report_as_ade(stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        report("ADE" if stage == "train" else stage, done, total, metrics)

    began, out, settings = time.perf_counter(), folder / "ade", replace(SHORT, epochs=epochs, seed=seed)
    saved = fit_model(codebook, rows, None, settings, Architecture(), out, "overwrite", report_as_ade)
    seconds, nbytes = time.perf_counter() - began, nbytes_of(out)
    if saved.lexicon is not None:
        alone, smaller = Classifier(replace(saved, lexicon=None)), nbytes - saved.lexicon.nbytes
        entries.append(_entry("ADE without lexicon", seconds, smaller, evaluate(alone, test)))
    entries.append(_entry("ADE", seconds, nbytes, evaluate(Classifier(saved), test)))
    return Demo(entries, teacher.nbytes, codebook, inspect_words(codebook, POLYSEMOUS), folder)


def _entry(name: str, seconds: float, nbytes: int, evaluation: AnyEvaluation) -> Entry:
    return {"name": name, "seconds": seconds, "bytes": nbytes, **evaluation.as_dict()}


def _tfidf(rows: Dataset, test: Dataset, report: Report) -> Entry:
    """The baseline: TF-IDF of words and word pairs with a linear SVM."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.svm import LinearSVC
    except ImportError:
        raise InputError("the baseline needs scikit-learn: pip install 'ade-embeddings[demo]'") from None

    report("TF-IDF + SVM", 0, 2, {})
    began, vectorizer = time.perf_counter(), TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    svm = LinearSVC(random_state=0).fit(vectorizer.fit_transform(rows.texts), rows.labels)
    seconds = time.perf_counter() - began
    report("TF-IDF + SVM", 1, 2, {})
    evaluation = compare(test.labels, svm.predict(vectorizer.transform(test.texts)), rows.names)
    report("TF-IDF + SVM", 2, 2, {})

    numbers = svm.coef_.size + svm.intercept_.size + len(vectorizer.vocabulary_)  # with an idf for each n-gram
    names = sum(len(ngram.encode("utf8")) + 1 for ngram in vectorizer.vocabulary_)
    return _entry("TF-IDF + linear SVM", seconds, 4 * numbers + names, evaluation)


def print_demo(to: Console, demo: Demo) -> None:
    """Print the comparison of the demo, the sizes and the anchors of some words."""
    table = display.plain_table("WordNet glosses, 25 classes", "accuracy", "macro F1", "training", "size")
    for entry in demo.entries:
        metrics = [f"{100 * entry[name]:.2f}" for name in ("accuracy", "macro_f1")]
        table.add_row(entry["name"], *metrics, f"{entry['seconds']:.0f} s", display.size(entry["bytes"]))
    to.print(table)
    book = demo.codebook
    sizes = f"\nEmbedding table {display.size(demo.table_nbytes)}, codebook {display.size(book.nbytes)}: "
    smaller = demo.table_nbytes / book.nbytes
    to.print(f"{sizes}{smaller:.1f}x smaller, mean cosine {book.config.metadata['cosine']:.3f}.\n")
    print_words(to, demo.words)
    to.print(f"Everything is in {demo.folder}. Try:")
    to.print(f"  echo 'a wading bird with long legs' | ade predict {demo.folder / 'ade'}")
    to.print(f"  ade inspect {demo.folder / 'ade'} bank")
