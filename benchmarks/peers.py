"""What one would use instead, trained on the same rows: accuracy, bytes, training time, texts a second.

Every peer is a function from (train rows, places, seed) to a `Trained`.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ade.cli.sizes import Sizes, folder_sizes
from ade.data.dataset import Dataset
from ade.evaluation import compare
from ade.progress import Report
from benchmarks.accuracy import Places, load_rows
from benchmarks.records import Run
from benchmarks.tuned_peers import FASTTEXT, NBSVM, TFIDF, Trained, fasttext, nbsvm, tfidf, tuned

Train = Callable[[Dataset, Places, int], Trained]


def run_peer(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics, sizes and conditions of one peer; the time it took to choose its settings counts as training."""
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
    report(name, 2, 2, {})

    figures = {
        **compare(test.labels, predicted, rows.names).as_dict(),
        **trained.sizes(),
        "train_seconds": seconds,
        "texts_per_second": rate,
    }
    return {**figures, "chosen": trained.chosen} if trained.chosen else figures, {"data": about}


def tuned_tfidf(rows: Dataset, places: Places, seed: int) -> Trained:
    """TF-IDF + linear SVM."""
    return tuned(tfidf, TFIDF, rows, seed)


def tuned_nbsvm(rows: Dataset, places: Places, seed: int) -> Trained:
    """NB-SVM."""
    return tuned(nbsvm, NBSVM, rows, seed)


def tuned_fasttext(rows: Dataset, places: Places, seed: int) -> Trained:
    """fastText as it is trained."""
    return tuned(fasttext, FASTTEXT, rows, seed)


def tuned_ftz(rows: Dataset, places: Places, seed: int) -> Trained:
    """fastText with the same settings, quantised."""
    return tuned(fasttext, FASTTEXT, rows, seed, partial(fasttext, quantised=True))


def model2vec(rows: Dataset, places: Places, seed: int) -> Trained:
    """model2vec's own distillation of MiniLM-L6 and its own classifier."""
    from model2vec.distill import distill_from_model
    from model2vec.train import StaticModelForClassification
    from transformers import AutoModel, AutoTokenizer

    folder = places.teachers / "minilm-l6"
    encoder = AutoModel.from_pretrained(folder, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    static = distill_from_model(encoder, tokenizer, device="cpu")
    model = StaticModelForClassification.from_static_model(model=static)
    labels = [str(label) for label in rows.labels]
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
        model.fit(list(rows.texts), labels)

    def needed() -> Sizes:
        with tempfile.TemporaryDirectory() as out:
            model.to_pipeline().save_pretrained(out)
            return folder_sizes(Path(out))

    return Trained(lambda texts: np.array([int(label) for label in model.predict(list(texts))]), needed)


def encoder(name: str) -> Train:
    """A whole Hugging Face encoder fine-tuned: any local folder or hub name."""

    def fine_tune(rows: Dataset, places: Places, seed: int) -> Trained:
        from benchmarks.encoders import FineTuned

        source = places.teachers / name if (places.teachers / name).exists() else name
        tuned = FineTuned(source, rows.names, places.device).fit(rows, seed)
        return Trained(tuned.predict, tuned.sizes)

    return fine_tune


PEERS: dict[str, Train] = {
    "tfidf": tuned_tfidf,
    "nbsvm": tuned_nbsvm,
    "fasttext": tuned_fasttext,
    "fasttext-ftz": tuned_ftz,
    "model2vec": model2vec,
    "minilm-l6": encoder("minilm-l6"),
    "mpnet-base": encoder("mpnet-base"),
    "distilbert": encoder("distilbert/distilbert-base-uncased"),
    "bert": encoder("google-bert/bert-base-uncased"),
    "deberta": encoder("microsoft/deberta-v3-base"),
    "electra": encoder("google/electra-base-discriminator"),
}
