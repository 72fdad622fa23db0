"""The measurement behind `explain`: which word is deleted, and what that costs."""

import numpy as np
import pytest

from benchmarks import records
from benchmarks.explain import WAYS, deletable, losses, without
from benchmarks.records import Run
from benchmarks.reproduce import reproduce
from benchmarks.tables import runs_of
from tests.test_explanation import classifier_of


def test_what_deleting_words_costs():
    classifier = classifier_of(attend="tokens")
    texts = ["w3 w1 ! w4 w9", "w5", "w2 w7 w8"]
    found = losses(classifier, texts, 10, np.random.default_rng(0))
    assert found["texts"] == 2  # one has a single word
    lost = []
    for text in (texts[0], texts[2]):
        explanation = classifier.explain(text)
        label = int(explanation.scores.argmax())
        words = [word for word in explanation.words if word.text != "!"]
        top = words[int(np.argmax([word.total[label] for word in words]))]
        kept = " ".join(word for word in text.split() if word != top.text)
        lost.append(float((classifier.predict_proba(text) - classifier.predict_proba(kept))[label]))
    assert found["contribution"] == pytest.approx(np.mean(lost), abs=1e-5)
    assert losses(classifier, texts * 2, 3, np.random.default_rng(0))["texts"] == 3


def test_what_can_be_deleted():
    explanation = classifier_of(attend="tokens").explain("w3 ! w1")
    words = deletable(explanation)
    assert [word.text for word in words] == ["w3", "w1"]
    assert without("w3 ! w1", words[0]) == "! w1"
    assert without("w3 ! w1", words[1]) == "w3 !"


def test_it_is_recorded(places, tmp_path):
    (places.data / "ag_news").rename(places.data / "wordnet")
    (run,) = runs_of("explain")
    short = {**run.settings["training"], "steps": 5, "batch_size": 16}
    changes = {"training": short, "teacher": "deberta-v3-xsmall", "texts": 20}
    distillation = {**run.settings["distillation"], "anchors": 16, "rounds": 1}
    small = Run("explain", "explain", {**run.settings, **changes, "distillation": distillation})
    assert reproduce([small], places, tmp_path / "results") == []
    figures = records.load(tmp_path / "results")[0]["figures"]
    assert figures["texts"] == 20
    assert all(-1 <= figures[way] <= 1 for way in WAYS)
