"""What one would use instead, trained on the same rows: TF-IDF, NB-SVM, fastText, model2vec, MiniLM frozen or whole.

TF-IDF, NB-SVM (Wang & Manning, 2012) and fastText are tuned as ADE's presets were, on training rows alone: their
settings are searched one after the other by cross-validation on at most `CHOOSING_ROWS` rows, the model is then trained
on all of them, and the record keeps what was chosen; so it is with the fusion of frozen vectors and n-grams. model2vec
has its defaults; the whole encoder a customary recipe.
"""

import contextlib
import io
import random
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ade import Dataset, SentenceTeacher
from ade.devices import resolve_device
from ade.evaluation import compare
from ade.progress import Report, quiet
from ade.trained_model import unit
from benchmarks import library
from benchmarks.records import Places
from benchmarks.subjects.vectors import Encode

FUSED, DEEP = "minilm+ngrams", "minilm-l6"
WITH_ENCODER = (FUSED, DEEP)  # those that may run on a GPU
TITLES = {
    "tfidf": "TF-IDF + linear",
    "nbsvm": "NB-SVM",
    "fasttext": "fastText",
    "fasttext-ftz": "fastText .ftz",
    "model2vec": "model2vec",
    FUSED: "MiniLM-L6 frozen + n-grams",
    DEEP: "MiniLM-L6 whole",
}
CHOOSING_ROWS, FOLDS = 10_000, 3
FEW = 20_000  # rows, up to which a whole encoder is trained for more epochs at a higher rate
MAX_TOKENS = 256  # of a text that it reads
WORDS, EVERY_TOKEN = r"(?u)\b\w\w+\b", r"(?u)\b\w+\b|[^\w\s]"  # scikit-learn's own; with single characters, punctuation
LOWER, SPLIT, UNCHANGED = "lower case", "lower case, punctuation split off", "unchanged"  # what fastText reads
STRENGTHS, MAX_ITERATIONS = (1.0, 10.0, 100.0, 1000.0), 1000  # C of the fused classifiers; of any logistic regression
Options = dict[str, Any]
Predict = Callable[[Sequence[str]], np.ndarray]  # raw texts -> class numbers


@dataclass(frozen=True)
class Trained:
    """A trained peer, the bytes it needs to predict, and what was chosen for it."""

    predict: Predict
    nbytes: Callable[[], int]  # asked for once, of the model trained on all rows
    chosen: Options = field(default_factory=dict)


Fit = Callable[[Dataset, int, Options], Trained]  # rows, seed, options


def run_peer(settings: Mapping[str, Any], places: Places, report: Report) -> dict[str, Any]:
    """Metrics, bytes, and seconds of training, in which its settings are chosen."""
    rows, _, test = library.load_rows(places, settings)
    began = time.perf_counter()
    trained = train(settings["peer"], rows, places, settings["seed"])
    seconds = time.perf_counter() - began
    metrics = compare(test.labels, trained.predict(list(test.texts)), rows.names).as_dict()
    outcome = {**metrics, "bytes": trained.nbytes(), "train_seconds": seconds}
    return {**outcome, "train_rows": len(rows), "test_rows": len(test), "chosen": trained.chosen}


def train(name: str, rows: Dataset, places: Places, seed: int, tune: bool = True) -> Trained:
    """Train a peer by its name, its settings searched, or with `tune=False` the first of each."""
    if name in FITS:
        fit, grid = FITS[name]
        if not tune:
            return fit(rows, seed, {setting: values[0] for setting, values in grid.items()})
        options, accuracy = search(grid, partial(cross_validated, fit, rows, seed))
        trained = fit(rows, seed, options)
        return Trained(trained.predict, trained.nbytes, {**options, "cross_validated_accuracy": accuracy})
    folder = places.model(DEEP)
    if name == "model2vec":
        return model2vec(rows, folder)
    if name == FUSED:
        return fused(rows, SentenceTeacher.load(folder, places.device).encode, folder, seed)
    encoder = FineTuned(folder, rows.names, places.device).fit(rows, seed)
    return Trained(encoder.predict, encoder.nbytes)


def search(grid: Mapping[str, tuple[Any, ...]], score: Callable[[Options], float]) -> tuple[Options, float]:
    """One setting after the other: each takes its best value, given those before it; a tie keeps the earlier value."""
    options = {name: values[0] for name, values in grid.items()}
    best = score(options)
    for name, values in grid.items():
        for value in values[1:]:
            tried = {**options, name: value}
            accuracy = score(tried)
            if accuracy > best:
                options, best = tried, accuracy
    return options, best


def choosing_rows(rows: Dataset, seed: int) -> Dataset:
    """The rows that settings are chosen on."""
    return rows.take(np.sort(np.random.default_rng(seed).permutation(len(rows))[:CHOOSING_ROWS]))


def folds(seed: int) -> Any:
    """The folds of cross-validation: every class is spread over them."""
    from sklearn.model_selection import StratifiedKFold

    return StratifiedKFold(FOLDS, shuffle=True, random_state=seed)


def cross_validated(fit: Fit, rows: Dataset, seed: int, options: Options) -> float:
    """Mean accuracy over the folds, of a model trained on the other folds."""
    rows = choosing_rows(rows, seed)
    accuracies = []
    for inside, outside in folds(seed).split(rows.texts, rows.labels):
        unseen = rows.take(outside)
        try:
            predicted = fit(rows.take(inside), seed, options).predict(list(unseen.texts))
        except RuntimeError as error:  # how fastText ends at too high a learning rate
            if "NaN" not in str(error):
                raise
            return 0.0
        accuracies.append((predicted == unseen.labels).mean())
    return float(np.mean(accuracies))


def ngram_features(characters: bool = True, token_pattern: str = EVERY_TOKEN, sublinear: bool = True) -> Any:
    """TF-IDF of words and word pairs, and of the character n-grams in words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import FeatureUnion

    shared = {"sublinear_tf": sublinear, "dtype": np.float32}
    parts = [("words", TfidfVectorizer(ngram_range=(1, 2), token_pattern=token_pattern, **shared))]
    if characters:
        parts.append(("characters", TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **shared)))
    return FeatureUnion(parts)


def linear_model_bytes(features: Any, model: Any) -> int:
    """Bytes of a linear model over TF-IDF features: its weights, an idf for each entry, and the entries."""
    entries = [entry for _, part in features.transformer_list for entry in part.vocabulary_]
    return library.linear_bytes(model.coef_.size + model.intercept_.size + len(entries), entries)


def tfidf(rows: Dataset, seed: int, options: Options) -> Trained:
    """A linear SVM or logistic regression on TF-IDF features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    features = ngram_features(options["characters"], options["token_pattern"], options["sublinear"])
    svm = LinearSVC(C=options["C"], random_state=seed)
    logistic = LogisticRegression(C=options["C"], max_iter=MAX_ITERATIONS)
    model = svm if options["classifier"] == "svm" else logistic
    model.fit(features.fit_transform(rows.texts), rows.labels)
    return Trained(lambda texts: model.predict(features.transform(texts)), lambda: linear_model_bytes(features, model))


def nbsvm(rows: Dataset, seed: int, options: Options) -> Trained:
    """Naive Bayes log-count ratios of binarised words and word pairs, a linear SVM on them for each class.

    The SVM's weights are drawn towards their mean size: w' = (1 - b) mean|w| + b w, with b the interpolation.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.svm import LinearSVC

    pattern, share = options["token_pattern"], options["interpolation"]
    vectorizer = CountVectorizer(ngram_range=(1, 2), token_pattern=pattern, binary=True, dtype=np.float32)
    counts = vectorizer.fit_transform(rows.texts)
    weights = np.zeros((len(rows.names), counts.shape[1]), dtype=np.float32)  # (C, n-grams)
    biases = np.full(len(rows.names), -np.inf, dtype=np.float32)
    for label in range(len(rows.names)):
        own = rows.labels == label
        if not own.any():  # so few rows that a fold has none of a class
            continue
        inside, outside = (1 + np.asarray(counts[part].sum(0)).ravel() for part in (own, ~own))
        ratio = np.log((inside / inside.sum()) / (outside / outside.sum()))
        with warnings.catch_warnings():  # the ratios are large: at a high C it stops at its last iteration
            warnings.simplefilter("ignore", ConvergenceWarning)
            svm = LinearSVC(C=options["C"], random_state=seed).fit(counts.multiply(ratio[None, :]).tocsr(), own)
        weights[label] = ratio * ((1 - share) * np.abs(svm.coef_[0]).mean() + share * svm.coef_[0])
        biases[label] = svm.intercept_[0]

    return Trained(
        lambda texts: (vectorizer.transform(texts) @ weights.T + biases).argmax(1),
        lambda: library.linear_bytes(weights.size + biases.size, vectorizer.vocabulary_),
    )


def fasttext(rows: Dataset, seed: int, options: Options, quantised: bool = False) -> Trained:
    """fastText; quantised to .ftz, retrained and with the most telling features kept."""
    import fasttext as package

    line = partial(_line, kind=options["text"])
    settings = {name: value for name, value in options.items() if name != "text"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.txt"
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        file.write_text("".join(f"__label__{rows.labels[i]} {line(rows.texts[i])}\n" for i in order), "utf8")
        model = package.train_supervised(str(file), **settings, thread=2, seed=seed + 1, verbose=0)
        if quantised:
            model.quantize(str(file), qnorm=True, retrain=True, cutoff=100_000, verbose=False)

    def predict(texts: Sequence[str]) -> np.ndarray:
        labels, _ = model.predict([line(text) for text in texts])
        return np.array([int(label[0].removeprefix("__label__")) for label in labels])

    def nbytes() -> int:
        with tempfile.TemporaryDirectory() as folder:
            model.save_model(str(Path(folder) / "model"))
            return (Path(folder) / "model").stat().st_size

    return Trained(predict, nbytes)


def _line(text: str, kind: str) -> str:
    """A text as fastText reads it: words with a space between them."""
    if kind != UNCHANGED:
        text = text.lower()
    if kind == SPLIT:
        text = re.sub(r"([^\w\s])", r" \1 ", text)
    return " ".join(text.split())


FASTTEXT = {
    "text": (LOWER, SPLIT, UNCHANGED),
    "wordNgrams": (2, 3),
    "epoch": (25, 5, 50),
    "lr": (0.5, 0.1, 1.0),
    "dim": (10, 50, 100),
}
TFIDF = {
    "token_pattern": (WORDS, EVERY_TOKEN),
    "characters": (False, True),
    "sublinear": (True, False),
    "classifier": ("svm", "logistic"),
    "C": (1.0, 0.1, 0.3, 3.0, 10.0),
}
NBSVM = {"C": (1.0, 0.01, 0.1, 10.0), "interpolation": (1.0, 0.5, 0.25), "token_pattern": (WORDS, EVERY_TOKEN)}
FITS: dict[str, tuple[Fit, Mapping[str, tuple[Any, ...]]]] = {  # how each is fitted, and the values of its settings
    "tfidf": (tfidf, TFIDF),
    "nbsvm": (nbsvm, NBSVM),
    "fasttext": (fasttext, FASTTEXT),
    "fasttext-ftz": (partial(fasttext, quantised=True), FASTTEXT),
}


def fused(rows: Dataset, encode: Encode, encoder: Path, seed: int) -> Trained:
    """Logistic regression on frozen sentence vectors, another on n-grams, and a weighted mean of log-probabilities.

    Each C, then the weight, has the least log loss on predictions out of fold.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.model_selection import GridSearchCV, cross_val_predict
    from sklearn.pipeline import make_pipeline

    def inputs(texts: Sequence[str]) -> tuple[np.ndarray, list[str]]:
        return unit(encode(texts)), list(texts)

    some = choosing_rows(rows, seed)
    models, probabilities = [], []
    for steps, given in zip(([], [ngram_features()]), inputs(some.texts), strict=True):
        model = make_pipeline(*steps, LogisticRegression(max_iter=MAX_ITERATIONS))
        grid = {"logisticregression__C": STRENGTHS}
        found = GridSearchCV(model, grid, scoring="neg_log_loss", cv=folds(seed), refit=False).fit(given, some.labels)
        model.set_params(**found.best_params_)
        models.append(model)
        probabilities.append(cross_val_predict(model, given, some.labels, cv=folds(seed), method="predict_proba"))

    def mixed(weight: float, vectors: np.ndarray, ngrams: np.ndarray) -> np.ndarray:
        product = vectors.clip(1e-12) ** weight * ngrams.clip(1e-12) ** (1 - weight)
        return product / product.sum(1, keepdims=True)

    weight = min((i / 20 for i in range(21)), key=lambda weight: log_loss(some.labels, mixed(weight, *probabilities)))
    for model, given in zip(models, inputs(rows.texts), strict=True):
        model.fit(given, rows.labels)

    def predict(texts: Sequence[str]) -> np.ndarray:
        scores = [model.predict_proba(given) for model, given in zip(models, inputs(texts), strict=True)]
        return models[0].classes_[mixed(weight, *scores).argmax(1)]

    def nbytes() -> int:
        vectors, (features, ngrams) = models[0][-1], models[1]
        weights = 4 * (vectors.coef_.size + vectors.intercept_.size)
        return library.folder_bytes(encoder) + weights + linear_model_bytes(features, ngrams)

    strengths = [model[-1].C for model in models]
    return Trained(predict, nbytes, {"weight of vectors": weight, "C": strengths})


def model2vec(rows: Dataset, encoder: Path) -> Trained:
    """model2vec's own distillation of an encoder and its own classifier."""
    from model2vec.distill import distill_from_model
    from model2vec.train import StaticModelForClassification
    from transformers import AutoModel, AutoTokenizer

    loaded = [kind.from_pretrained(encoder, trust_remote_code=False) for kind in (AutoModel, AutoTokenizer)]
    model = StaticModelForClassification.from_static_model(model=distill_from_model(*loaded, device="cpu"))
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
        model.fit(list(rows.texts), [str(label) for label in rows.labels])

    def nbytes() -> int:
        with tempfile.TemporaryDirectory() as out:
            model.to_pipeline().save_pretrained(out)
            return library.folder_bytes(Path(out))

    return Trained(lambda texts: np.array([int(label) for label in model.predict(list(texts))]), nbytes)


class FineTuned:
    """An encoder with a classification head."""

    def __init__(self, source: Path, names: Sequence[str], device: str) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        with quiet():
            self.tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            self.model: Any = AutoModelForSequenceClassification.from_pretrained(
                source, num_labels=len(names), dtype=torch.float32, trust_remote_code=False
            )
        self.model.to(resolve_device(device)).eval()

    def fit(self, rows: Dataset, seed: int) -> "FineTuned":
        """The customary recipe: AdamW, a short warm-up, linear decay; texts of a batch are about as long."""
        from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

        tokens = self.tokenizer(list(rows.texts), truncation=True, max_length=MAX_TOKENS)["input_ids"]
        examples = [{"input_ids": ids, "labels": label} for ids, label in zip(tokens, rows.labels, strict=True)]
        recipe: dict[str, Any] = {"num_train_epochs": 3, "learning_rate": 5e-5, "per_device_train_batch_size": 64}
        if len(rows) <= FEW:
            recipe = {"num_train_epochs": 15, "learning_rate": 1e-4, "per_device_train_batch_size": 32}
        with tempfile.TemporaryDirectory() as folder:
            settings = TrainingArguments(
                folder, **recipe, weight_decay=0.01, warmup_steps=0.06, train_sampling_strategy="group_by_length",
                bf16=self.model.device.type == "cuda", use_cpu=self.model.device.type == "cpu", seed=seed,
                save_strategy="no", report_to="none", disable_tqdm=True, logging_strategy="no",
            )  # fmt: skip
            Trainer(self.model, settings, DataCollatorWithPadding(self.tokenizer), examples).train()
        self.model.eval()
        return self

    @torch.inference_mode()
    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Class numbers of raw texts."""
        labels = np.empty(len(texts), np.int64)
        order = np.argsort([len(text) for text in texts], kind="stable")
        for some in np.array_split(order, -(-len(texts) // 64)):
            batch = self.tokenizer([texts[i] for i in some], truncation=True, max_length=MAX_TOKENS, padding=True,
                                   return_tensors="pt")  # fmt: skip
            labels[some] = self.model(**batch.to(self.model.device)).logits.argmax(1).cpu().numpy()
        return labels

    def nbytes(self) -> int:
        """Bytes of the folder that transformers writes."""
        with quiet(), tempfile.TemporaryDirectory() as out:
            self.model.save_pretrained(out)
            self.tokenizer.save_pretrained(out)
            return library.folder_bytes(Path(out))
