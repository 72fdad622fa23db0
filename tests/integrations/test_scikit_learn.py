"""The estimators in scikit-learn: its own checks, labels of every kind, bad input, pipelines, pickling, vectors."""

import subprocess
import sys
from dataclasses import replace

import joblib
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks as checks

from ade.data.dataset import Dataset
from ade.data.problems import MULTI
from ade.errors import InputError
from ade.folder import nbytes_of
from ade.integrations.scikit_learn import AdeClassifier, AdeEncoder, AdeRegressor
from ade.settings import STRONG, Architecture
from ade.trained_model import Classifier, encode
from ade.training.loop import fit_model
from tests.conftest import WORDS, sentence_encoder, topic_texts
from tests.models import off

QUICK = {"steps": 200, "batch_size": 16, "learning_rate": 1e-2, "dropout": 0.0, "device": "cpu"}
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


def labels_of(model: Classifier, texts: list[str]) -> list:
    return [prediction.label for prediction in model.predict(texts)]


@pytest.mark.parametrize("check", OF_ANY_ESTIMATOR, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", [AdeClassifier, AdeRegressor, AdeEncoder])
def test_what_holds_of_any_estimator(kind, check):
    check(kind.__name__, kind())


def test_a_search_over_a_pipeline(codebook):
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    pipeline = Pipeline([("lower", lower), ("ade", AdeClassifier(codebook, **QUICK, lexicon=False))])
    search = GridSearchCV(pipeline, {"ade__learning_rate": [1e-7, 1e-2]}, cv=2, scoring="neg_log_loss")
    search.fit([text.upper() for text in TEXTS], LABELS)
    assert search.best_params_ == {"ade__learning_rate": 1e-2}
    assert np.mean(search.predict(HELD) == TRUTH) > 0.9


def test_it_is_what_train_makes(fitted, codebook):
    names = tuple(sorted(WORDS))
    data = Dataset(TEXTS, np.array([names.index(label) for label in LABELS]), names)
    classifier = Classifier(fit_model(codebook, data, settings=replace(STRONG, **QUICK), architecture=Architecture()))
    np.testing.assert_array_equal(fitted.predict_proba(HELD), classifier.predict_proba(HELD))
    assert fitted.predict(HELD).tolist() == labels_of(classifier, HELD)
    assert fitted.score(HELD, TRUTH) == np.mean(fitted.predict(HELD) == TRUTH) > 0.9


def test_the_lexicon_can_be_left_out(codebook):
    """Only the order of two tokens tells the labels apart: by default a lexicon is added for them."""
    texts = [f"{'goal bank' if i % 2 else 'bank goal'} {text}" for i, text in enumerate(TEXTS)]
    labels, short = [i % 2 for i in range(len(texts))], {**QUICK, "steps": 2}
    with_lexicon, without, paper = (
        AdeClassifier(codebook, **short, **chosen).fit(texts, labels).classifier_.saved.lexicon
        for chosen in ({}, {"lexicon": False}, {"preset": "paper"})
    )
    assert len(with_lexicon) > 1
    assert (without, paper) == (None, None)


def test_parameters_reach_the_model(codebook):
    chosen = {"attend": "anchors", "max_tokens": 7, "class_weight": "balanced"}
    config = AdeClassifier(codebook, **{**QUICK, "steps": 2, **chosen}).fit(TEXTS, LABELS).classifier_.saved.config
    assert (config.attend, config.max_tokens, config.dropout) == ("anchors", 7, 0.0)
    assert len(set(config.class_weights)) > 1


def test_fitting_again_gives_the_same_and_parameters_stay(fitted):
    before = fitted.get_params()
    copy = clone(fitted)
    assert copy.get_params().keys() == before.keys()
    with pytest.raises(NotFittedError):
        copy.predict(HELD)
    np.testing.assert_array_equal(copy.fit(TEXTS, LABELS).predict_proba(HELD), fitted.predict_proba(HELD))
    other = clone(fitted).set_params(random_state=1).fit(TEXTS, LABELS)
    assert not np.array_equal(other.predict_proba(HELD), fitted.predict_proba(HELD))
    assert all(value is fitted.get_params()[name] for name, value in before.items())


def test_dumped_and_loaded(fitted, tmp_path):
    vectors = AdeEncoder(fitted.classifier_).fit()
    joblib.dump([fitted, vectors], tmp_path / "both.joblib")
    fitted.classifier_.save(tmp_path / "model")
    fitted.start.save(tmp_path / "codebook")
    folders = nbytes_of(tmp_path / "model") + nbytes_of(tmp_path / "codebook")
    assert (tmp_path / "both.joblib").stat().st_size < folders + 10_000  # no lookup tables, and the model once
    classifier, loaded = joblib.load(tmp_path / "both.joblib")
    np.testing.assert_array_equal(classifier.predict_proba(HELD), fitted.predict_proba(HELD))
    np.testing.assert_array_equal(loaded.transform(HELD), vectors.transform(HELD))


@pytest.mark.parametrize("kind", [tuple, np.array, pd.Series, lambda texts: np.array(texts, object)])
def test_texts_of_every_kind(kind, fitted):
    np.testing.assert_array_equal(fitted.predict(kind(HELD)), fitted.predict(HELD))
    encoder = AdeEncoder(fitted.classifier_)
    np.testing.assert_array_equal(encoder.fit_transform(kind(HELD)), encoder.transform(HELD))


@pytest.mark.parametrize(
    "labels",
    [
        [sorted(WORDS).index(label) * 10 - 10 for label in LABELS],
        np.array(LABELS),
        pd.Series(LABELS, dtype="category"),
        np.array([label == "sport" for label in LABELS]),
    ],
    ids=["ints", "strings", "categories", "bools"],
)
def test_labels_of_every_kind(labels, codebook):
    classifier = AdeClassifier(codebook, **{**QUICK, "steps": 100}).fit(TEXTS, labels)
    known = np.asarray(labels)
    assert classifier.classes_.tolist() == sorted(set(known.tolist()))
    predicted, probabilities = classifier.predict(TEXTS), classifier.predict_proba(TEXTS)
    assert predicted.dtype == known.dtype
    assert np.mean(predicted == known) > 0.8
    np.testing.assert_array_equal(classifier.classes_[probabilities.argmax(1)], predicted)


@pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame, csr_array], ids=["array", "frame", "sparse"])
def test_several_labels_a_text(kind, codebook):
    words = ("goal", "bank", "the")
    marks = np.array([[f" {word} " in f" {text} " for word in words] for text in TEXTS]).astype(int)
    given = pd.DataFrame(marks, columns=words) if kind is pd.DataFrame else kind(marks)
    classifier = AdeClassifier(codebook, **QUICK).fit(TEXTS, given)
    assert classifier.classifier_.problem == MULTI
    assert classifier.classes_.tolist() == (list(words) if kind is pd.DataFrame else [0, 1, 2])
    assert classifier.classifier_.labels == tuple(map(str, classifier.classes_))
    predicted = classifier.predict(TEXTS)
    np.testing.assert_array_equal(predicted, classifier.predict_proba(TEXTS) >= 0.5)
    assert np.mean(predicted == marks) > 0.9
    assert classifier.score(TEXTS, marks) == np.mean((predicted == marks).all(1)) > 0.7


def test_numbers(codebook):
    numbers = np.array([text.split().count("the") + 10.0 for text in TEXTS])
    pipeline = make_pipeline(AdeRegressor(codebook, **{**QUICK, "steps": 300}))
    regressor = pipeline.fit(TEXTS, numbers).named_steps["aderegressor"]
    assert regressor.predict(HELD).tolist() == labels_of(regressor.classifier_, HELD)
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


def test_a_fold_may_lack_a_class(codebook):
    order = np.argsort(LABELS, kind="stable")
    texts, labels = [TEXTS[i] for i in order], [LABELS[i] for i in order]
    classifier = AdeClassifier(codebook, **{**QUICK, "steps": 20})
    assert cross_val_score(classifier, texts, labels, cv=KFold(3), error_score="raise").shape == (3,)
    before = labels.index("sport")
    classifier.fit(texts[:before], labels[:before])
    assert classifier.classes_.tolist() == ["money", "space"]
    assert set(classifier.predict(texts)) <= {"money", "space"}


def test_no_text_and_no_token(fitted):
    assert fitted.predict(["", "   "]).shape == (2,)
    assert np.isfinite(AdeEncoder(fitted.classifier_).fit_transform(["", "   "])).all()
    assert fitted.predict([]).shape == (0,)
    assert fitted.predict_proba([]).shape == (0, 3)
    assert AdeEncoder(fitted.classifier_).fit().transform([]).shape == (0, 16)


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        ("goal", ["a"], "list or a column of strings, not str"),
        (3, ["a"], "not int"),
        (["goal", 3.5], ["a", "b"], r"text 1 .* is 3.5, not a string"),
        (pd.Series(["goal", None]), ["a", "b"], "text 1 .* is nan, not a string"),
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


def test_a_start_from_a_folder_or_an_encoder(codebook, tmp_path):
    codebook.save(tmp_path / "codebook")
    short = {**QUICK, "steps": 20}
    expected = AdeClassifier(codebook, **short).fit(TEXTS, LABELS).predict_proba(HELD)
    other = AdeClassifier(tmp_path / "codebook", **short).fit(TEXTS, LABELS)
    np.testing.assert_allclose(other.predict_proba(HELD), expected, rtol=1e-4)
    encoder = sentence_encoder(layers=2)
    further = AdeClassifier(encoder.saved, **short).fit(TEXTS, LABELS)
    assert further.classifier_.saved.config.layers == 2
    by_fits = AdeClassifier(encoder.saved).fit(TEXTS, LABELS)  # without steps or epochs the layers stay
    np.testing.assert_array_equal(by_fits.classifier_.saved.layers["norm.weight"], encoder.saved.layers["norm.weight"])


# -- vectors -------------------------------------------------------------------------------------------------------

WORDED = ["w1 w2 w3", "w4", "", "w5 w5 w1 w9 w2 w7", "w3 " * 300]  # the last is truncated


def test_vectors_of_a_classifier_are_what_it_classifies(codebook, tmp_path):
    fitted = AdeClassifier(codebook, **QUICK, lexicon=False, max_tokens=4).fit(TEXTS, LABELS)
    fitted.classifier_.save(tmp_path / "model")
    vectors = AdeEncoder(tmp_path / "model").fit_transform(HELD)
    layers = fitted.classifier_.saved.layers
    assert off(vectors @ layers["head.weight"].T + layers["head.bias"], fitted.classifier_.scores(HELD)) < 1e-4
    first, long = AdeEncoder(fitted.classifier_).fit_transform(["goal bank the team", "goal bank the team coach"])
    np.testing.assert_allclose(first, long, rtol=1e-5)
    linear = make_pipeline(AdeEncoder(tmp_path / "model"), LogisticRegression()).fit(TEXTS, LABELS)
    assert linear.score(HELD, TRUTH) > 0.9


def test_vectors_of_an_encoder_are_its_own_in_every_use(tmp_path):
    encoder = sentence_encoder()
    encoder.save(tmp_path / "encoder")
    expected = encoder.encode(WORDED)
    for source in (tmp_path / "encoder", encoder):
        estimator = clone(AdeEncoder(source, device="cpu")).fit()
        np.testing.assert_allclose(estimator.transform(WORDED), expected, atol=1e-5)
        assert len(estimator.get_feature_names_out()) == 24
    joblib.dump(estimator, tmp_path / "encoder.joblib")
    np.testing.assert_allclose(joblib.load(tmp_path / "encoder.joblib").transform(WORDED), expected, atol=1e-5)


def test_names_and_frames(fitted):
    encoder = AdeEncoder(fitted.classifier_).fit()
    assert encoder.get_feature_names_out().tolist() == [f"adeencoder{i}" for i in range(16)]
    frame = encoder.set_output(transform="pandas").transform(pd.Series(HELD[:3], index=[7, 8, 9]))
    assert frame.columns.tolist() == encoder.get_feature_names_out().tolist()
    table = pd.DataFrame({"text": HELD, "length": [len(text) for text in HELD]})
    columns = ColumnTransformer([("ade", AdeEncoder(fitted.classifier_), "text")], remainder="passthrough").fit(table)
    assert columns.transform(table).shape == (150, 17)
    assert columns.get_feature_names_out()[-1] == "remainder__length"


def test_what_is_no_model_is_refused(codebook, tmp_path):
    codebook.save(tmp_path / "codebook")
    for model, message in (
        (codebook, "give a trained"),
        (tmp_path / "codebook", "a codebook"),
    ):
        with pytest.raises(InputError, match=message):
            AdeEncoder(model).fit()
    np.testing.assert_array_equal(AdeEncoder().fit_transform(TEXTS[:3]), encode(TEXTS[:3]))  # the included one


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
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ade's estimators need scikit-learn: pip install 'scikit-learn>=1.4'\n"
