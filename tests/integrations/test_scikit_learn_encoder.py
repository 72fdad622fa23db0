"""AdeEncoder: vectors of a codebook, of a trained classifier and of an encoder, for other estimators."""

from dataclasses import replace

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

import ade
from ade.classifier import Classifier
from ade.distillation import distill
from ade.encoder import Encoder
from ade.errors import InputError
from ade.integrations import vectors as pooling
from ade.integrations.scikit_learn import AdeClassifier, AdeEncoder
from ade.settings import DistillationSettings
from tests.conftest import sentence_encoder
from tests.integrations.test_scikit_learn import HELD, LABELS, QUICK, TEXTS, TRUTH

OF_THE_ENCODER = ["w1 w2 w3", "w4", "", "w5 w5 w1 w9 w2 w7", "w3 " * 300]  # the last is truncated


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("encoder") / "encoder"
    sentence_encoder().save(out)
    return out


def slow_mean(codebook, text):
    rows = []
    for token in codebook.tokenizer.encode(text, add_special_tokens=False).ids[:512]:
        anchors, weights = codebook.pairs_of(token)
        rows.append(sum(weight * codebook.anchors[anchor] for anchor, weight in zip(anchors, weights, strict=True)))
    return torch.stack(rows).mean(0).numpy()


@pytest.mark.parametrize("cells", [pooling.MAX_CELLS, 25])
def test_vectors_are_the_mean_of_composed_tokens(cells, codebook, monkeypatch):
    monkeypatch.setattr(pooling, "MAX_CELLS", cells)
    texts = [*HELD[:20], "goal unknown goal", "bank " * 1000]
    found = AdeEncoder(codebook).fit_transform(texts)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [slow_mean(codebook, text) for text in texts], rtol=1e-4, atol=1e-6)
    assert not np.allclose(AdeEncoder(codebook, max_tokens=2).fit_transform(texts), found)


def test_vectors_of_a_packed_codebook(teacher):
    packed = distill(teacher, DistillationSettings(size="4800"))
    assert packed.packing is not None
    found = AdeEncoder(packed).fit_transform(HELD[:20])
    np.testing.assert_allclose(found, [slow_mean(packed, text) for text in HELD[:20]], rtol=1e-4, atol=1e-6)


def test_special_tokens_are_left_out(codebook):
    around = Tokenizer.from_str(codebook.tokenizer.to_str())
    around.post_processor = TemplateProcessing(single="[PAD] $A [PAD]", special_tokens=[("[PAD]", 0)])
    marked = replace(codebook, tokenizer=around)
    assert len(marked.tokenizer.encode("goal").ids) == 3
    np.testing.assert_array_equal(AdeEncoder(marked).fit_transform(HELD), AdeEncoder(codebook).fit_transform(HELD))


def test_vectors_of_a_trained_model_are_what_it_classifies(codebook, tmp_path):
    fitted = AdeClassifier(codebook, **QUICK, lexicon=False).fit(TEXTS, LABELS)
    fitted.classifier_.save(tmp_path / "model")
    encoder = AdeEncoder(tmp_path / "model", device="cpu").fit()
    assert isinstance(encoder.source_, Classifier)
    vectors = torch.from_numpy(encoder.transform(HELD))
    scores = fitted.classifier_.model.classifier(vectors).softmax(1).detach().numpy()
    np.testing.assert_allclose(scores, fitted.predict_proba(HELD), rtol=1e-3, atol=1e-5)


def test_vectors_of_a_trained_model_are_of_its_first_window(codebook):
    classifier = AdeClassifier(codebook, **{**QUICK, "steps": 5}, max_tokens=4).fit(TEXTS, LABELS).classifier_
    first, long = AdeEncoder(classifier).fit_transform(["goal bank the team", "goal bank the team coach rocket"])
    np.testing.assert_allclose(first, long, rtol=1e-5)


def test_a_linear_model_on_the_vectors(codebook):
    linear = make_pipeline(AdeEncoder(codebook), LogisticRegression()).fit(TEXTS, LABELS)
    assert linear.score(HELD, TRUTH) > 0.5  # a third by chance; the tokens' vectors are random here
    classifier = AdeClassifier(codebook, **QUICK).fit(TEXTS, LABELS).classifier_
    linear.set_params(adeencoder__source=classifier).fit(TEXTS, LABELS)
    assert linear.score(HELD, TRUTH) > 0.9


def test_names_and_frames(codebook):
    encoder = AdeEncoder(codebook).fit()
    assert encoder.get_feature_names_out().tolist() == [f"adeencoder{i}" for i in range(16)]
    frame = encoder.set_output(transform="pandas").transform(pd.Series(HELD[:3], index=[7, 8, 9]))
    assert frame.columns.tolist() == encoder.get_feature_names_out().tolist()
    np.testing.assert_array_equal(frame.to_numpy(), AdeEncoder(codebook).fit_transform(HELD[:3]))
    table = pd.DataFrame({"text": HELD, "length": [len(text) for text in HELD]})
    columns = ColumnTransformer([("ade", AdeEncoder(codebook), "text")], remainder="passthrough").fit(table)
    assert columns.transform(table).shape == (150, 17)
    assert columns.get_feature_names_out()[-1] == "remainder__length"
    with pytest.raises(NotFittedError):
        AdeEncoder(codebook).transform(HELD)


def test_vectors_of_an_encoder_are_its_own(folder):
    expected = ade.load(folder).encode(OF_THE_ENCODER)
    for source in (folder, str(folder), ade.load(folder), sentence_encoder()):
        estimator = AdeEncoder(source)
        np.testing.assert_allclose(estimator.fit_transform(OF_THE_ENCODER), expected, atol=1e-5)
        assert isinstance(estimator.source_, Encoder)
        assert len(estimator.get_feature_names_out()) == 24
        assert estimator.transform([]).shape == (0, 24)


def test_an_encoder_is_cloned_dumped_and_put_into_a_pipeline(folder, tmp_path):
    expected = ade.load(folder).encode(OF_THE_ENCODER)
    for source in (folder, ade.load(folder)):
        copy = clone(AdeEncoder(source)).fit()
        joblib.dump(copy, tmp_path / "encoder.joblib")
        np.testing.assert_allclose(
            joblib.load(tmp_path / "encoder.joblib").transform(OF_THE_ENCODER), expected, atol=1e-5
        )
    labels = [text.startswith("w1") for text in OF_THE_ENCODER * 9]
    linear = make_pipeline(AdeEncoder(folder), LogisticRegression(C=100)).fit(OF_THE_ENCODER * 9, labels)
    assert linear.score(OF_THE_ENCODER * 9, labels) == 1


def test_an_encoder_is_no_codebook_to_train_on(folder):
    with pytest.raises(InputError, match="is a trained model; give a codebook"):
        AdeClassifier(folder).fit(TEXTS, LABELS)
