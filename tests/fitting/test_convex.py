"""Step one of training: what it learns, that what it says of itself is true, and that it needs no torch."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from ade.configuration import ENCODER
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.tokens import LEXICON_TOKENS, tokenize
from ade.evaluation import evaluate
from ade.fitting.convex import fit_convex
from ade.fitting.estimate import interval
from ade.fitting.lexicon_fit import calibrated
from ade.fitting.objective import Objective
from ade.fitting.validation import Fold, Validation, folds_of
from ade.folder import Saved, encoder_of
from ade.progress import silent
from ade.trained_model import Classifier
from tests.conftest import WORDS, lively, topic_texts, untrained
from tests.models import off, oracle

NAMES = sorted(WORDS)
NUMBERS = {"sport": -1.0, "money": 0.5, "space": 2.0}  # of a regression
PROBLEMS = pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])


@pytest.fixture(scope="module")
def word_encoder(codebook) -> Saved:
    """An encoder of the words, which has learned nothing."""
    shape = {"kind": ENCODER, "output_size": 12, "heads": 4, "max_tokens": 32, "position_scale": 0.1}
    return lively(untrained(codebook, (), **shape))


def rows(problem: str, count: int, seed: int) -> Dataset:
    """The topic as a class; the topic and whether 'the' occurs as several labels; or a number that depends on both."""
    texts, topics = topic_texts(count, seed)
    topic = np.array([NAMES.index(name) for name in topics])
    has_the = np.array(["the" in text.split() for text in texts])
    if problem == SINGLE:
        return Dataset(texts, topic, tuple(NAMES))
    if problem == MULTI:
        return Dataset(texts, np.column_stack([np.eye(3, dtype=bool)[topic], has_the]), (*NAMES, "the"))
    numbers = np.array([NUMBERS[name] for name in topics]) + 0.3 * has_the
    return Dataset(texts, numbers.astype(np.float32), ("value",))


def noisy(data: Dataset) -> Dataset:
    """A quarter of the labels are those of other rows."""
    draw = np.random.default_rng(5)
    wrong = draw.permutation(len(data))[: len(data) // 4]
    labels = data.labels.copy()
    labels[wrong] = labels[draw.permutation(wrong)]
    return replace(data, labels=labels)


@PROBLEMS
def test_it_learns_and_every_backend_agrees(problem, word_encoder):
    saved, test = fit_convex(word_encoder, rows(problem, 400, 0)), rows(problem, 200, 1)
    model = Classifier(saved)
    metrics = evaluate(model, test).as_dict()
    assert metrics[saved.config.metadata["estimate"]["metric"]] > 0.9
    assert saved.lexicon is not None
    texts = tokenize(saved.tokenizer, test.texts[:20], 64)
    expected = np.stack([oracle(saved).scores(ids) for ids in texts])
    assert off(model.scores(test.texts[:20]), expected) < 1e-4


def test_the_same_rows_give_the_same_model(word_encoder):
    one, two = (fit_convex(word_encoder, rows(SINGLE, 150, 0)) for _ in range(2))
    assert one.config == two.config
    for name, array in one.layers.items():
        np.testing.assert_array_equal(array, two.layers[name])
    np.testing.assert_array_equal(one.lexicon.scores, two.lexicon.scores)


@PROBLEMS
def test_with_validation_rows_the_estimate_is_measured_on_them(problem, word_encoder):
    dev = rows(problem, 90, 2)
    saved = fit_convex(word_encoder, rows(problem, 200, 0), dev, lexicon_bytes=0)
    assert saved.lexicon is None
    stated = saved.config.metadata["estimate"]
    measured = evaluate(Classifier(saved), dev).as_dict()
    assert stated["rows"] == 90
    assert stated["value"] == pytest.approx(measured[stated["metric"]], abs=1e-4)


@pytest.mark.parametrize("problem", [SINGLE, MULTI])
def test_scores_are_calibrated_where_they_were_chosen(problem, word_encoder):
    train, dev = noisy(rows(problem, 200, 0)), noisy(rows(problem, 300, 2))
    saved = fit_convex(word_encoder, train, dev)
    judge = Objective.of(dev.labels, problem, len(dev.names))
    assert judge.temperature(Classifier(saved).scores(dev.texts)) == pytest.approx(1, abs=0.1)


@PROBLEMS
def test_a_lexicon_lowers_the_loss_of_unseen_rows_or_is_left_out(problem, word_encoder):
    """Beside scores without any information: on labels that texts explain, and on labels drawn by chance."""
    data = rows(problem, 300, 0)
    texts = tokenize(word_encoder.tokenizer, data.texts, LEXICON_TOKENS)
    for chance in (False, True):
        labels = np.random.default_rng(0).permutation(data.labels) if chance else data.labels
        objective = Objective.of(labels - labels.mean() if problem == REGRESSION else labels, problem, len(data.names))
        learned = np.arange(200)
        validation = Validation(objective, [Fold(learned, np.arange(200, 300))], silent)
        prior = objective.targets[:200].mean(0)
        scores = np.tile(prior if problem == REGRESSION else np.log(prior), (100, 1)).astype(np.float32)
        if problem == MULTI:
            scores -= np.log(1 - prior).astype(np.float32)
        found = calibrated(texts, word_encoder.table.vocabulary, validation, learned, scores, 10**6)
        assert (found.lexicon is None) == chance
        if not chance:
            assert validation.judge.losses(found.scores).mean() < 0.7 * validation.judge.losses(scores).mean()
            small = calibrated(texts, word_encoder.table.vocabulary, validation, learned, scores, 200)
            assert small.lexicon.nbytes <= 200 < found.lexicon.nbytes


def test_two_rows_of_each_class_are_enough(word_encoder):
    texts, labels = [], []
    for label, name in enumerate(NAMES):
        texts += [" ".join(WORDS[name][:3]), " ".join(WORDS[name][3:])]
        labels += [label, label]
    model = Classifier(fit_convex(word_encoder, Dataset(texts, np.array(labels), tuple(NAMES))))
    assert {each.label for each in model.predict(texts)} <= {*NAMES}
    stated = model.metadata["estimate"]
    assert stated["high"] - stated["low"] > 0.3  # six rows say little
    assert max(each.probability for each in model.predict(texts)) < 0.95


def test_class_weights_count(word_encoder):
    data = noisy(rows(SINGLE, 200, 0))
    nothing = "of a it"
    shares = [
        Classifier(fit_convex(word_encoder, data, class_weights=weights)).predict_proba(nothing)[0]
        for weights in (None, (20.0, 1.0, 1.0))
    ]
    assert shares[1] > 1.5 * shares[0]


def test_a_classifier_lends_its_layers(word_encoder):
    first = fit_convex(word_encoder, rows(SINGLE, 150, 0))
    other = rows(MULTI, 150, 0)
    encoder = encoder_of(first)
    np.testing.assert_allclose(Classifier(first).encode(other.texts), _vectors(encoder, other.texts), atol=1e-4)
    assert fit_convex(encoder, other).config.metadata["estimate"]["value"] > 0.8


def _vectors(encoder: Saved, texts: list[str]) -> np.ndarray:
    from ade.backends import backend_for

    return backend_for(encoder).scores(tokenize(encoder.tokenizer, texts, 64))


@pytest.mark.parametrize("count", [6, 1000, 1001, 20_000, 20_001, 200_000])
def test_folds_see_and_leave_out_every_class(count):
    labels = np.random.default_rng(0).integers(0, 3, count)
    labels[:6] = [0, 1, 2, 0, 1, 2]
    objective = Objective.of(labels, SINGLE, 3)
    folds = folds_of(objective, 0)
    assert len(folds) == (5 if count <= 1000 else 3 if count <= 20_000 else 1)
    unseen = np.concatenate([fold.unseen for fold in folds])
    assert len(np.unique(unseen)) == len(unseen) == (count if len(folds) > 1 else len(unseen))
    for fold in folds:
        assert sorted([*fold.seen, *fold.unseen]) == list(range(count))
        shares = [np.bincount(labels[part], minlength=3) / len(part) for part in (fold.seen, fold.unseen)]
        assert count < 100 or np.abs(shares[0] - shares[1]).max() < 0.01


def test_intervals_hold_the_truth_as_often_as_they_say():
    draw, rows_each, inside = np.random.default_rng(0), 40, []
    for true in (0.6, 0.85, 0.97):
        measured = draw.binomial(rows_each, true, 2000) / rows_each
        bounds = np.array([interval(share, rows_each) for share in measured])
        inside.append(((bounds[:, 0] <= true) & (true <= bounds[:, 1])).mean())
    assert min(inside) > 0.85
    assert interval(0.5, 0) == (0, 1)


def test_it_needs_no_torch(word_encoder, tmp_path):
    word_encoder.save(tmp_path / "encoder")
    code = """
import sys
sys.modules.update(dict.fromkeys(["torch", "transformers", "scipy", "sklearn"]))
import ade
texts = ["goal match team", "bank market profit", "coach score goal", "price trade share"] * 5
model = ade.train(texts, ["sport", "money"] * 10, start=sys.argv[1], out=sys.argv[2], progress=False)
print(model.predict("team league").label, ade.load(sys.argv[2]).predict("bank price").label)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "encoder"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["sport", "money"]
