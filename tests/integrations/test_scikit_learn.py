"""AdeClassifier and AdeRegressor as scikit-learn estimators: labels of every kind, bad input, pipelines, pickling."""

import subprocess
import sys
from dataclasses import replace

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks as checks
from sklearn.utils import get_tags

from ade.data.dataset import Dataset
from ade.errors import InputError
from ade.integrations.scikit_learn import AdeClassifier, AdeEncoder, AdeRegressor
from ade.settings import STRONG, Architecture, DistillationSettings
from ade.training.loop import fit_model
from tests.conftest import WORDS, topic_texts

SMALL = DistillationSettings(anchors=10, pairs=3)
QUICK = {"steps": 200, "batch_size": 16, "learning_rate": 1e-2, "dropout": 0.0, "attend": "tokens"}
TEXTS, LABELS = topic_texts(300, 0)
HELD, TRUTH = topic_texts(150, 1)

# scikit-learn's own checks, as far as they take no X. The others make up tables of numbers, which are not texts; what
# they look for is asked of texts below (pickling, subsets, order, unchanged parameters, refitting, bad input).
OF_ANY_ESTIMATOR = [
    checks.check_estimator_cloneable,
    checks.check_estimator_repr,
    checks.check_parameters_default_constructible,
    checks.check_no_attributes_set_in_init,
    checks.check_get_params_invariance,
    checks.check_set_params,
    checks.check_do_not_raise_errors_in_init_or_set_params,
    checks.check_mixin_order,
    checks.check_valid_tag_types,
    checks.check_estimators_unfitted,
]


@pytest.fixture(scope="module")
def fitted(codebook):
    return AdeClassifier(codebook, **QUICK).fit(TEXTS, LABELS)


@pytest.mark.parametrize("check", OF_ANY_ESTIMATOR, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", [AdeClassifier, AdeRegressor, AdeEncoder])
def test_what_holds_of_any_estimator(kind, check):
    check(kind.__name__, kind())


def test_the_tags_say_texts():
    for estimator in (AdeClassifier(), AdeRegressor(), AdeEncoder()):
        tags = get_tags(estimator)
        assert tags.input_tags.string
        assert not tags.input_tags.two_d_array
    assert get_tags(AdeClassifier()).estimator_type == "classifier"
    assert get_tags(AdeClassifier()).target_tags.required


def test_a_search_over_a_pipeline_in_two_processes(codebook):
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    pipeline = Pipeline([("lower", lower), ("ade", AdeClassifier(codebook, **QUICK, lexicon=False))])
    search = GridSearchCV(pipeline, {"ade__learning_rate": [1e-7, 1e-2]}, cv=2, n_jobs=2, scoring="neg_log_loss")
    search.fit([text.upper() for text in TEXTS], LABELS)
    assert search.best_params_ == {"ade__learning_rate": 1e-2}
    assert np.mean(search.predict(HELD) == TRUTH) > 0.9
    assert pipeline.named_steps["ade"].get_params()["learning_rate"] == 1e-2


def test_it_is_what_train_makes(fitted, codebook):
    names = tuple(sorted(WORDS))
    data = Dataset(TEXTS, np.array([names.index(label) for label in LABELS]), names)
    same = {name: value for name, value in QUICK.items() if name != "attend"}
    classifier = fit_model(codebook, data, settings=replace(STRONG, **same), architecture=Architecture(attend="tokens"))
    np.testing.assert_array_equal(fitted.predict_proba(HELD), classifier.predict_proba(HELD))
    assert fitted.predict(HELD).tolist() == fitted.classifier_.predict(HELD) == classifier.predict(HELD)
    assert fitted.score(HELD, TRUTH) == np.mean(fitted.predict(HELD) == TRUTH) > 0.9


def test_the_lexicon_can_be_left_out(codebook):
    """Only the order of two tokens tells the labels apart: by default a lexicon is added for them."""
    texts = [f"{'goal bank' if i % 2 else 'bank goal'} {text}" for i, text in enumerate(TEXTS)]
    labels = [i % 2 for i in range(len(texts))]
    short = {**QUICK, "steps": 2}
    with_lexicon, without, paper = (
        AdeClassifier(codebook, **short, **chosen).fit(texts, labels).classifier_.model
        for chosen in ({}, {"lexicon": False}, {"preset": "paper"})
    )
    assert with_lexicon.lexicon is not None
    assert without.lexicon is None
    assert paper.lexicon is None


def test_a_clone_is_alike_and_not_fitted(fitted):
    copy = clone(fitted)
    assert copy.get_params().keys() == fitted.get_params().keys()
    assert copy.steps == 200
    assert torch.equal(copy.codebook.weights, fitted.codebook.weights)
    with pytest.raises(NotFittedError):
        copy.predict(HELD)


def test_fitting_again_gives_the_same_and_parameters_stay(fitted):
    before = fitted.get_params()
    again = clone(fitted).fit(TEXTS, LABELS)
    np.testing.assert_array_equal(again.predict_proba(HELD), fitted.predict_proba(HELD))
    other = clone(fitted).set_params(random_state=1).fit(TEXTS, LABELS)
    assert not np.array_equal(other.predict_proba(HELD), fitted.predict_proba(HELD))
    assert all(value is fitted.get_params()[name] for name, value in before.items())


def test_a_random_state_is_drawn_from(codebook):
    short = {**QUICK, "steps": 3}
    first, second, third = (
        AdeClassifier(codebook, **short, random_state=state).fit(TEXTS, LABELS).predict_proba(HELD)
        for state in (np.random.RandomState(3), np.random.RandomState(3), np.random.RandomState(4))
    )
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, third)


def test_dumped_and_loaded(fitted, codebook, tmp_path):
    encoder = AdeEncoder(codebook).fit()
    joblib.dump([fitted, encoder], tmp_path / "both.joblib")
    classifier, loaded = joblib.load(tmp_path / "both.joblib")
    np.testing.assert_array_equal(classifier.predict_proba(HELD), fitted.predict_proba(HELD))
    assert classifier.predict(HELD).tolist() == fitted.predict(HELD).tolist()
    np.testing.assert_array_equal(loaded.transform(HELD), encoder.transform(HELD))


def test_a_subset_or_another_order_changes_nothing(fitted, codebook):
    order = np.random.default_rng(0).permutation(len(HELD))
    encoders = [AdeEncoder(source).fit() for source in (codebook, fitted.classifier_)]
    for method in (fitted.predict_proba, *(encoder.transform for encoder in encoders)):
        whole = method(HELD)
        np.testing.assert_allclose(method([HELD[i] for i in order]), whole[order], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(method(HELD[7:9]), whole[7:9], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [list, tuple, np.array, pd.Series, lambda texts: np.array(texts, object)])
def test_texts_of_every_kind(kind, fitted, codebook):
    np.testing.assert_array_equal(fitted.predict(kind(HELD)), fitted.predict(HELD))
    encoder = AdeEncoder(codebook)
    np.testing.assert_array_equal(encoder.fit_transform(kind(HELD)), encoder.transform(HELD))


@pytest.mark.parametrize(
    "labels",
    [
        [sorted(WORDS).index(label) * 10 - 10 for label in LABELS],
        np.array(LABELS),
        np.array(LABELS, object),
        pd.Series(LABELS, dtype="category"),
        np.array([label == "sport" for label in LABELS]),
        np.array([float(label == "sport") for label in LABELS]),
    ],
    ids=["ints", "strings", "objects", "categories", "bools", "floats"],
)
def test_labels_of_every_kind(labels, codebook):
    classifier = AdeClassifier(codebook, **{**QUICK, "steps": 100}).fit(TEXTS, labels)
    known = np.asarray(labels)
    assert classifier.classes_.tolist() == sorted(set(known.tolist()))
    found = classifier.predict(TEXTS)
    assert found.dtype == known.dtype
    assert np.mean(found == known) > 0.8
    probabilities = classifier.predict_proba(TEXTS)
    assert probabilities.shape == (300, len(classifier.classes_))
    np.testing.assert_array_equal(classifier.classes_[probabilities.argmax(1)], found)


@pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame, csr_array], ids=["array", "frame", "sparse"])
def test_several_labels_a_text(kind, codebook):
    marks = np.array([[f" {word} " in f" {text} " for word in ("goal", "bank", "the")] for text in TEXTS]).astype(int)
    classifier = AdeClassifier(codebook, **QUICK).fit(TEXTS, kind(marks))
    assert classifier.classifier_.problem == "multi_label_classification"
    assert classifier.classes_.tolist() == [0, 1, 2]
    probabilities, found = classifier.predict_proba(TEXTS), classifier.predict(TEXTS)
    np.testing.assert_array_equal(found, probabilities >= 0.5)
    assert found.dtype == np.int64
    assert np.mean(found == marks) > 0.9
    assert classifier.score(TEXTS, marks) == np.mean((found == marks).all(1)) > 0.7


def test_labels_take_their_names_from_a_frame(codebook):
    marks = pd.DataFrame({"goals": ["goal" in text for text in TEXTS], "banks": ["bank" in text for text in TEXTS]})
    classifier = AdeClassifier(codebook, **{**QUICK, "steps": 5}).fit(TEXTS, marks.astype(int))
    assert classifier.classes_.tolist() == ["goals", "banks"]
    assert classifier.classifier_.names == ("goals", "banks")


def test_numbers(codebook):
    numbers = np.array([text.split().count("the") + 10.0 for text in TEXTS])
    pipeline = make_pipeline(AdeRegressor(codebook, **{**QUICK, "steps": 300}))
    regressor = pipeline.fit(TEXTS, numbers).named_steps["aderegressor"]
    found = regressor.predict(HELD)
    assert found.shape == (150,)
    assert found.tolist() == regressor.classifier_.predict(HELD)
    assert pipeline.score(HELD, [text.split().count("the") + 10.0 for text in HELD]) > 0.5  # r squared
    assert regressor.predict([]).shape == (0,)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (None, "requires y"),
        ([1.0, float("nan")], "NaN"),
        (["a", "b"], "could not convert"),
        ([1.0], "2 texts, but 1 labels"),
        ([1.0, 1.0], "numbers that differ"),
        ([[1.0, 2.0], [3.0, 4.0]], "1d array"),
    ],
)
def test_bad_numbers(numbers, message, codebook):
    with pytest.raises(ValueError, match=message):
        AdeRegressor(codebook, **QUICK).fit(["goal", "bank"], numbers)


def test_few_rows_of_a_class_may_count_as_much(codebook):
    rare = [i for i, label in enumerate(LABELS) if label != "space" or i % 10 == 0]
    texts, labels = [TEXTS[i] for i in rare], [LABELS[i] for i in rare]
    plain, balanced = (
        AdeClassifier(codebook, **{**QUICK, "steps": 60}, lexicon=False, class_weight=weight)
        .fit(texts, labels)
        .predict_proba(HELD)
        for weight in (None, "balanced")
    )
    assert balanced[:, 1].mean() > plain[:, 1].mean() + 0.02


def test_a_fold_may_lack_a_class(codebook):
    order = np.argsort(LABELS, kind="stable")
    texts, labels = [TEXTS[i] for i in order], [LABELS[i] for i in order]
    classifier = AdeClassifier(codebook, **{**QUICK, "steps": 20})
    scores = cross_val_score(classifier, texts, labels, cv=KFold(3), error_score="raise")
    assert scores.shape == (3,)
    before = labels.index("sport")
    classifier.fit(texts[:before], labels[:before])
    assert classifier.classes_.tolist() == ["money", "space"]
    assert set(classifier.predict(texts)) <= {"money", "space"}
    assert classifier.predict_proba(texts).shape == (300, 2)


@pytest.mark.parametrize("text", ["", "   "])
def test_empty_texts(text, fitted, codebook):
    assert fitted.predict([text])[0] in WORDS
    np.testing.assert_array_equal(AdeEncoder(codebook).fit_transform([text, "goal"])[0], 0)
    assert np.isfinite(AdeEncoder(fitted.classifier_).fit_transform([text])).all()


def test_no_texts_at_all(fitted, codebook):
    assert fitted.predict([]).shape == (0,)
    assert fitted.predict_proba([]).shape == (0, 3)
    assert AdeEncoder(codebook).fit().transform([]).shape == (0, 16)
    assert AdeEncoder(fitted.classifier_).fit().transform([]).shape == (0, 16)


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        ("goal", ["a"], "list or a column of strings, not str"),
        (3, ["a"], "not int"),
        (["goal", 3.5], ["a", "b"], r"text 1 is float \(3.5\), not a string"),
        (pd.Series(["goal", None]), ["a", "b"], "text 1 is .* not a string"),
        (np.zeros((2, 4)), ["a", "b"], r"one column of strings, not a table of shape \(2, 4\)"),
        (pd.DataFrame({"text": ["goal", "bank"]}), ["a", "b"], r"shape \(2, 1\)"),
        (["goal", "bank"], ["a"], "2 texts, but 1 labels"),
        (["goal", "bank"], ["a", "a"], "at least two classes, the data has 1"),
        (["goal", "bank"], [0.5, 0.25], "continuous"),
        (["goal", "bank"], [[0, 1], [1, 2]], "one a text, or a table of 0 and 1"),
        (["goal", "bank"], None, "requires y"),
        (["goal", "bank"], np.array(["a", 1], object), "all strings or all numbers"),
        (["goal", "bank"], ["a", "b"], "no class has two rows"),
        ([], [], "no texts were given"),
    ],
)  # fmt: skip
def test_bad_texts_and_labels(texts, labels, message, codebook):
    with pytest.raises(ValueError, match=message):
        AdeClassifier(codebook, **QUICK).fit(texts, labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "weak"}, "strong, paper"),
        ({"epochs": 2}, "give one of them"),
        ({"attend": "letters"}, "attend must be one of"),
        ({"learning_rate": -1}, "learning_rate must be above 0"),
        ({"distillation": SMALL}, "distilled already"),
        ({"codebook": 7}, "teacher's name is needed, not int"),
        ({"class_weight": "rare"}, "class_weights must be none or balanced"),
    ],
)
def test_bad_settings(settings, message, codebook):
    with pytest.raises(InputError, match=message):
        AdeClassifier(**{"codebook": codebook, **QUICK, **settings}).fit(TEXTS, LABELS)


def test_a_codebook_from_a_folder_or_a_teacher(fitted, codebook, teacher_folder, tmp_path):
    codebook.save(tmp_path / "codebook")
    short = {**QUICK, "steps": 20}
    expected = AdeClassifier(codebook, **short).fit(TEXTS, LABELS).predict_proba(HELD)
    for source, how in ((tmp_path / "codebook", None), (teacher_folder, SMALL), (str(teacher_folder), SMALL)):
        found = AdeClassifier(source, distillation=how, **short).fit(TEXTS, LABELS)
        np.testing.assert_allclose(found.predict_proba(HELD), expected, rtol=1e-4)
    first, second = (AdeEncoder(teacher_folder, distillation=SMALL).fit().source_ for _ in range(2))
    assert first is second  # distilled once
    fitted.classifier_.save(tmp_path / "model")
    with pytest.raises(InputError, match="is a trained model; give a codebook"):
        AdeClassifier(tmp_path / "model").fit(TEXTS, LABELS)


def test_scikit_learn_is_optional():
    code = """
import sys, ade
assert "sklearn" not in sys.modules
sys.modules["sklearn"] = None
try:
    ade.AdeClassifier
except ImportError as error:
    print(error)
assert "torch" not in sys.modules
assert "AdeClassifier" not in ade.__all__  # or `from ade import *` would need it
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ade's estimators need scikit-learn: pip install 'scikit-learn>=1.4'\n"
