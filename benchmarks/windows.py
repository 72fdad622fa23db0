"""Long texts: what is lost when only the first window of a text is read, by attention, by the lexicon, or by both."""

from typing import Any

import numpy as np

from ade.classifier import Classifier
from ade.data.batches import encode
from ade.evaluation import evaluate_scores
from ade.progress import Report
from ade.settings import Architecture
from ade.training.loop import fit_model
from benchmarks.accuracy import Places, codebook_for, load_lesson, training_of
from benchmarks.records import ALL, FIRST, Run


def run_windows(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Accuracy on the test texts of at least so many tokens, by what attention and the lexicon read of them."""
    settings = run.settings
    rows, dev, test, about = load_lesson(places, settings, report)
    training, shape = training_of(settings["training"], places.device), Architecture(**settings["architecture"])
    codebook = codebook_for(places, settings["teacher"], settings["distillation"], report)
    classifier = fit_model(codebook, rows, dev, training, shape, report=report)

    lengths = encode(classifier.tokenizer, list(test.texts), classifier.longest).lengths
    long = test.take(np.flatnonzero(lengths >= settings["least"])).relabelled(rows.names)
    scores = readings(classifier, list(long.texts))
    found = [
        {"attention": attention, "lexicon": lexicon, **evaluate_scores(long, each, rows.names).as_dict()}
        for (attention, lexicon), each in scores.items()
    ]
    kept = ("attention", "lexicon", "accuracy", "macro_f1")
    sizes = {"texts": len(long), "median_tokens": float(np.median(lengths[lengths >= settings["least"]]))}
    return {**sizes, "readings": [{name: each[name] for name in kept} for each in found]}, {"data": about}


def readings(classifier: Classifier, texts: list[str]) -> dict[tuple[str, str], np.ndarray]:
    """Scores (n, C) of texts by what attention and the lexicon read; empty where a part is left out.

    The lexicon is fitted once the model is trained, so the model without it is the one that would be trained without.
    """
    plain = Classifier(classifier.model.without_lexicon(), classifier.tokenizer)
    whole = encode(classifier.tokenizer, texts, classifier.longest)
    parts = {ALL: whole, FIRST: whole.first(classifier.max_tokens).copied()}
    attended = {name: plain.scores(part.ids.numpy(), part.offsets) for name, part in parts.items()}
    scores = {(name, ""): found for name, found in attended.items()}

    lexicon = classifier.ngram_scores()
    if lexicon is not None:
        added = {name: lexicon.logits(part.ids.numpy(), part.offsets) for name, part in parts.items()}
        for attention, read in ((FIRST, FIRST), (FIRST, ALL), (ALL, ALL)):
            scores[attention, read] = attended[attention] + added[read]
        scores["", ALL] = added[ALL]
    return scores
