"""What one would use instead, trained on the same rows: accuracy, bytes on disk, training time, texts a second.

Every peer is a function from (train rows, places, seed) to a `Trained`: its predictions from raw text, and its size.
"""

import contextlib
import io
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ade.cli.demo import fit_tfidf
from ade.data.dataset import Dataset
from ade.evaluation import compare
from ade.progress import Report
from benchmarks.accuracy import Places, load_rows
from benchmarks.records import Run


@dataclass(frozen=True)
class Trained:
    """A trained peer: raw texts -> class numbers, and the bytes it takes on disk."""

    predict: Callable[[Sequence[str]], np.ndarray]
    nbytes: int


def run_peer(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and conditions of one peer."""
    rows, test, about = load_rows(places, run.settings)
    name = run.settings["peer"]
    report(name, 0, 2, {})
    began = time.perf_counter()
    trained = PEERS[name](rows, places, run.settings["seed"])
    seconds = time.perf_counter() - began
    report(name, 1, 2, {})
    texts = list(test.texts)
    began = time.perf_counter()
    predicted = trained.predict(texts)
    rate = len(texts) / (time.perf_counter() - began)
    figures = compare(test.labels, predicted, rows.names).as_dict()
    report(name, 2, 2, {})
    return {**figures, "train_seconds": seconds, "bytes": trained.nbytes, "texts_per_second": rate}, {"data": about}


def tfidf(rows: Dataset, places: Places, seed: int) -> Trained:
    """TF-IDF of words and word pairs, a linear SVM."""
    return Trained(*fit_tfidf(rows, seed))


def _fasttext(rows: Dataset, seed: int, quantised: bool) -> Trained:
    """fastText with word pairs; quantised to .ftz, retrained and with the most telling features kept."""
    import fasttext

    def line(text: str) -> str:
        return " ".join(text.lower().split())

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.txt"
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        path.write_text("".join(f"__label__{rows.labels[i]} {line(rows.texts[i])}\n" for i in order), "utf8")
        model = fasttext.train_supervised(
            str(path), wordNgrams=2, epoch=5, lr=0.5, dim=10, bucket=2_000_000, thread=2, seed=seed + 1, verbose=0
        )
        if quantised:
            model.quantize(str(path), qnorm=True, retrain=True, cutoff=100_000, verbose=False)
        model.save_model(str(Path(folder) / "model"))
        nbytes = (Path(folder) / "model").stat().st_size

    def predict(texts: Sequence[str]) -> np.ndarray:
        labels, _ = model.predict([line(text) for text in texts])
        return np.array([int(label[0].removeprefix("__label__")) for label in labels])

    return Trained(predict, nbytes)


def fasttext_plain(rows: Dataset, places: Places, seed: int) -> Trained:
    """fastText as it is trained."""
    return _fasttext(rows, seed, quantised=False)


def fasttext_ftz(rows: Dataset, places: Places, seed: int) -> Trained:
    """fastText quantised."""
    return _fasttext(rows, seed, quantised=True)


def model2vec(rows: Dataset, places: Places, seed: int) -> Trained:
    """model2vec's own distillation of MiniLM-L6 and its own classifier."""
    from model2vec.distill import distill_from_model
    from model2vec.train import StaticModelForClassification
    from transformers import AutoModel, AutoTokenizer

    folder = places.teachers / "minilm-l6"
    static = distill_from_model(AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder), device="cpu")
    model = StaticModelForClassification.from_static_model(model=static)
    labels = [str(label) for label in rows.labels]
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
        model.fit(list(rows.texts), labels)
    with tempfile.TemporaryDirectory() as out:
        model.to_pipeline().save_pretrained(out)
        nbytes = sum(path.stat().st_size for path in Path(out).rglob("*") if path.suffix in (".safetensors", ".skops"))
    return Trained(lambda texts: np.array([int(label) for label in model.predict(list(texts))]), nbytes)


def encoder(name: str) -> Callable[[Dataset, Places, int], Trained]:
    """A whole Hugging Face encoder fine-tuned: any local folder or hub name."""

    def fine_tune(rows: Dataset, places: Places, seed: int) -> Trained:
        from benchmarks.encoders import FineTuned

        source = places.teachers / name if (places.teachers / name).exists() else name
        tuned = FineTuned(source, rows.names, places.device).fit(rows, seed)
        return Trained(tuned.predict, tuned.nbytes)

    return fine_tune


PEERS: dict[str, Callable[[Dataset, Places, int], Trained]] = {
    "tfidf": tfidf,
    "fasttext": fasttext_plain,
    "fasttext-ftz": fasttext_ftz,
    "model2vec": model2vec,
    "minilm-l6": encoder("minilm-l6"),
    "mpnet-base": encoder("mpnet-base"),
    "distilbert": encoder("distilbert/distilbert-base-uncased"),
    "bert": encoder("google-bert/bert-base-uncased"),
    "deberta": encoder("microsoft/deberta-v3-base"),
    "electra": encoder("google/electra-base-discriminator"),
}
