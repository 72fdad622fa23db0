"""The model behind the service: other kinds of models, labels of any type, models that cannot be served."""

import base64
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

import ade
from ade.configuration import TAGGER
from ade.data.problems import MULTI, REGRESSION
from ade.errors import InputError
from ade.folder import Saved
from ade.service.model import Query, ServedModel
from ade.trained_model import Classifier, unit
from tests.conftest import lively, sentence_encoder, untrained
from tests.service.conftest import asked_in_one_batch, got, posted, predicted, running

TEXTS = ["the goal of the match", "w1 w2", ""]


def predictions_of(model: Classifier) -> list[dict]:
    return ServedModel(model).predict([Query(text) for text in TEXTS])


def test_several_labels_and_labels_of_other_types_and_numbers(codebook):
    several = Classifier(lively(untrained(codebook, ("1", "2", "3"), problem=MULTI, label_type="int")))
    for each, prediction in zip(predictions_of(several), several.predict(TEXTS), strict=True):
        assert each["label"] == prediction.label
        assert each["probability"] == pytest.approx(prediction.probability, rel=1e-5)
        assert list(each["probabilities"]) == ["1", "2", "3"]
    assert any(isinstance(label, int) for each in predictions_of(several) for label in each["label"])
    number = Classifier(lively(untrained(codebook, problem=REGRESSION)))
    for each, prediction in zip(predictions_of(number), number.predict(TEXTS), strict=True):
        assert each == {"label": pytest.approx(prediction.label, rel=1e-5), "probability": None, "probabilities": {}}


def test_a_tagger_is_served(codebook, tmp_path):
    lively(untrained(codebook, ("O", "B-thing"), kind=TAGGER)).save(tmp_path / "tagger")
    model = ServedModel.load(tmp_path / "tagger")
    words = [["the", "rocket"], [], ["a", "bank"]]
    with running(model) as address:
        found = predicted(address, ["the rocket", "", "a  bank"]).json()["predictions"]
        assert found == [{"words": w, "tags": t} for w, t in zip(words, model.model.predict(words), strict=True)]
        assert got(address, "/model").json()["kind"] == TAGGER
        assert posts_of(address) == {"/predict"}


def test_an_encoder_is_served(tmp_path):
    """Vectors alone, as OpenAI's clients ask for them and read them, truncated where asked."""
    sentence_encoder(outputs=8).save(tmp_path / "encoder")
    model = ade.load(tmp_path / "encoder")
    vectors = model.encode(TEXTS)
    with running(ServedModel.load(tmp_path / "encoder")) as address:
        answer = posted(address, "/v1/embeddings", input=TEXTS, model="any", user="me").json()
        assert [(each["object"], each["index"]) for each in answer["data"]] == [("embedding", i) for i in range(3)]
        assert np.allclose([each["embedding"] for each in answer["data"]], vectors, atol=1e-6)
        tokens = sum(max(1, len(model.tokenizer.encode(text).ids)) for text in TEXTS)
        assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = posted(address, "/v1/embeddings", input=TEXTS, dimensions=3, encoding_format="base64").json()
        short = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in answer["data"]]
        assert np.allclose(short, unit(vectors[:, :3]), atol=1e-6)
        wrong = [{"dimensions": dimensions} for dimensions in (0, 9, -1, True, "3", 2.5)]
        for body in (*wrong, {"encoding_format": "int8"}, {"input": [[1, 2]]}):
            answer = posted(address, "/v1/embeddings", **{"input": TEXTS, **body})
            assert answer.status_code == 422
            assert next(iter(body)) in answer.json()["detail"]
        assert (got(address, "/model").json()["dim"], posts_of(address)) == (8, {"/v1/embeddings"})


def posts_of(address: str) -> set[str]:
    paths = got(address, "/openapi.json").json()["paths"]
    return {path for path, methods in paths.items() if "post" in methods}


def test_without_the_inspector(folder):
    with running(ServedModel.load(folder, inspect=False)) as address:
        assert [got(address, path).status_code for path in ("/about", "/")] == [404, 404]
        assert posts_of(address) == {"/predict", "/explain"}


def test_a_model_that_cannot_predict_is_refused_when_it_is_loaded(folder, tmp_path):
    """Finite weights that overflow pass every other check."""
    saved = Saved.read(folder)
    layers = {**saved.layers, "head.weight": np.full_like(saved.layers["head.weight"], 3e38)}
    replace(saved, layers=layers).save(tmp_path / "large")
    with np.errstate(all="ignore"), pytest.raises(InputError, match=r"large: the model fails on a test text \(the mod"):
        ServedModel.load(tmp_path / "large")


def test_a_tokenizer_that_panics_on_a_text_fails_that_request_alone(watched):
    watched.model.tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    panics = "a" * 60 + "b"
    with running(watched) as address:
        answers = asked_in_one_batch(watched, address, ["the coach", panics, "the team"])
        assert [answer.status_code for answer in answers] == [200, 200, 500, 200]
        assert posted(address, "/explain", text=panics).status_code == 500
        assert posted(address, "/explain", text="a rocket").status_code == 200
