import numpy as np
import pytest

import ade
from ade.errors import InputError
from ade.settings import STRONG, Architecture
from ade.training.loop import fit_model
from tests.conftest import topic_texts


@pytest.fixture(scope="module", params=["gated", "tokens", "anchors"])
def folder(request, codebook, topics, tmp_path_factory):
    out = tmp_path_factory.mktemp("load") / "model"
    settings = STRONG.__class__(steps=40, batch_size=16, learning_rate=0.01, device="cpu")
    fit_model(codebook, topics, settings=settings, architecture=Architecture(attend=request.param), out=out)
    return out


def test_what_is_loaded_depends_on_the_folder_and_the_device(folder, tmp_path):
    assert isinstance(ade.load(folder), ade.Runtime)
    assert isinstance(ade.load(str(folder), device="auto"), ade.Classifier)
    with pytest.raises(InputError, match="not a model folder"):
        ade.load(tmp_path)


def test_vectors_are_those_of_the_pytorch_model(folder):
    texts = [*topic_texts(20, 1)[0], ""]
    runtime, classifier = ade.load(folder), ade.Classifier.from_pretrained(folder, "cpu")
    vectors = classifier.encode(texts)
    assert vectors.shape == (21, 16)
    assert np.allclose(runtime.encode(texts), vectors, atol=2e-4)
    assert np.allclose(runtime.encode(texts[0]), vectors[0], atol=2e-4)
    assert np.std(vectors, axis=0).min() > 0
    assert runtime.encode([]).shape == (0, 16)


def test_a_text_that_is_none_is_named_by_its_row(folder):
    for model in (ade.load(folder), ade.Classifier.from_pretrained(folder, "cpu")):
        for call in (model.predict, model.predict_proba, model.encode, model.stream):
            with pytest.raises(InputError, match=r"text 1 \(counted from 0\) is None"):
                list(call(["goal", None]))
