"""What notebooks show of results: HTML, with every text escaped."""

import re
from dataclasses import replace

import numpy as np
import pytest

from ade.evaluation import compare
from ade.trained_model import Classifier
from tests.models import random_model


def test_an_explanation_is_the_text_coloured_by_what_its_words_add():
    text = "w3 w1 <b> w4  w9"
    explanation = Classifier(random_model(lexicon=True)).explain(text)
    shown = explanation._repr_html_()
    assert re.sub("<[^>]*>", "", shown.split("</p>")[1]) == text.replace("<", "&lt;").replace(">", "&gt;")
    amounts = [float(value) for value in re.findall(r'title="([^"]*)"', shown)]
    assert amounts == pytest.approx(explanation.contributions().totals, abs=6e-4)
    green = ["30,140,70" in style for style in re.findall(r'style="background([^"]*)"', shown)]
    assert green == [amount > 0 for amount in amounts]
    assert f"score {explanation.scores.max():.3f}" in shown
    assert "title" not in replace(explanation, text="", words=())._repr_html_()


def test_an_evaluation_is_its_metrics_and_its_confusion_matrix():
    true, predicted = np.array([0, 0, 1, 1, 1]), np.array([0, 1, 1, 1, 1])
    shown = compare(true, predicted, ("<a>", "b"))._repr_html_()
    assert "80.00" in shown
    assert re.findall(r"<td style[^>]*>(\d)</td>", shown) == ["1", "1", "0", "3"]
    assert "&lt;a&gt;" in shown
    assert "<a>" not in shown
