"""The measurement of words in context: finding them in their sentences, and rank correlation."""

import numpy as np
import pytest

from benchmarks import (
    context,
    records,
)
from benchmarks.records import Run
from benchmarks.reproduce import reproduce
from benchmarks.tables import runs_of


def test_words_are_found_in_their_sentences():
    text, start, end = context._marked("one two <b> bank </b> three")
    assert (text, text[start:end]) == ("one two bank three", "bank")
    text, start, end = context._marked("<b>bank</b> of " + "x " * 50)
    assert (text[start:end], len(text.split())) == ("bank", context.WINDOW + 1)
    text, start, end = context._placed("Sound carries well over water .", 1)
    assert text[start:end] == "carries"


def test_rank_correlation_shares_ties():
    assert context.spearman(np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 30, 40])) == pytest.approx(1)
    assert context.spearman(np.array([1.0, 2, 3, 4]), np.array([4.0, 3, 2, 1])) == pytest.approx(-1)
    # by hand: ranks 1.5 1.5 3 against 1 2 3, Pearson of those is sqrt(3) / 2
    assert context.spearman(np.array([5.0, 5, 9]), np.array([1.0, 2, 3])) == pytest.approx(3**0.5 / 2)


def test_words_in_context_are_measured(places, tmp_path):
    (places.data / "wordsim").mkdir()
    (places.data / "wic").mkdir()
    (places.data / "ag_news").rename(places.data / "wordnet")
    line = "1\tbank\tn\tshare\tn\tthe <b> bank </b> of it\tin a <b> {word} </b> with\t{rating}"
    pairs = [line.format(word=word, rating=i) for i, word in enumerate(("bank", "share", "goal", "team"))]
    (places.data / "wordsim" / "scws_ratings.txt").write_text("\n".join(pairs))
    for split in ("train", "dev"):
        (places.data / "wic" / f"{split}.data.txt").write_text("bank\tN\t1-0\tthe bank of it\tbank profit\n" * 3)
        (places.data / "wic" / f"{split}.gold.txt").write_text("T\nF\nT\n")
    (run,) = {run.key: run for run in runs_of("context")[:1]}.values()
    short = {**run.settings["training"], "steps": 5, "batch_size": 16}
    distillation = {**run.settings["distillation"], "anchors": 16, "rounds": 1}
    small = Run("context", "context", {**run.settings, "training": short, "distillation": distillation})
    assert reproduce([small], places, tmp_path / "results") == []
    figures = records.load(tmp_path / "results")[0]["figures"]
    assert set(figures) == set(context.WAYS)
    for way in context.WAYS:
        assert -1 <= figures[way]["scws"] <= 1
        assert figures[way]["wic"] in (pytest.approx(1 / 3), pytest.approx(2 / 3))  # one pair repeated: all or nothing
