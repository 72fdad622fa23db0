"""An encoder behind the service: vectors in OpenAI's shape, truncated where asked, and nothing else."""

import base64
import json

import numpy as np
import pytest
from starlette.testclient import TestClient

from ade.encoder import Encoder, unit
from ade.sentence_encoder import SentenceEncoder
from ade.sentence_model import AdeForSentenceEmbedding
from ade.service.app import create_app
from ade.service.model import ServedModel
from ade.settings import Architecture

TEXTS = ["the goal of the match", "rocket", ""]


@pytest.fixture(scope="module")
def folder(codebook, tmp_path_factory):
    out = tmp_path_factory.mktemp("served") / "encoder"
    model = AdeForSentenceEmbedding.from_codebook(codebook, (), Architecture(attend="tokens"), output_size=8)
    SentenceEncoder(model, codebook.tokenizer).save(out)
    return out


@pytest.fixture
def client(folder):
    with TestClient(create_app(ServedModel.load(folder)), base_url="http://localhost") as client:
        yield client


def test_vectors_are_those_of_the_encoder(client, folder):
    expected = Encoder.load(folder).encode(TEXTS)
    answer = client.post("/v1/embeddings", json={"input": TEXTS, "model": "any"})
    assert answer.status_code == 200
    assert np.allclose([each["embedding"] for each in answer.json()["data"]], expected, atol=1e-6)

    asked = {"input": TEXTS, "dimensions": 3, "encoding_format": "base64"}
    answer = client.post("/v1/embeddings", json=asked)
    found = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in answer.json()["data"]]
    assert np.allclose(found, unit(expected[:, :3]), atol=1e-6)


@pytest.mark.parametrize("dimensions", [0, 9, -1, True, "3", 2.5])
def test_dimensions_it_does_not_have_are_refused(client, dimensions):
    answer = client.post("/v1/embeddings", json={"input": TEXTS, "dimensions": dimensions})
    assert answer.status_code == 422
    assert "from 1 to 8" in json.dumps(answer.json())


def test_there_is_nothing_to_predict_explain_or_inspect(client):
    for path, body in (("/predict", {"texts": TEXTS}), ("/explain", {"texts": ["a"]})):
        answer = client.post(path, json=body)
        assert answer.status_code == 409
        assert "/v1/embeddings" in answer.text
    assert client.post("/inspect", json={"texts": ["a"]}).status_code == 404
    health = client.get("/health").json()["model"]
    assert (health["problem"], health["dim"], health["labels"]) == ("sentence_embedding", 8, [])
