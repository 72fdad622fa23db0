"""POST /v1/embeddings, as OpenAI's clients send it and read it."""

import base64

import httpx
import numpy as np

from ade.runtime.runtime import Runtime
from tests.conftest import PATIENT

TEXTS = ["the team and the coach", "bank share price", ""]


def embedded(address: str, **body: object) -> httpx.Response:
    return httpx.post(f"{address}/v1/embeddings", json=body, timeout=PATIENT)


def test_vectors_are_those_of_encode(address, folder):
    runtime = Runtime.load(folder)
    expected = runtime.encode(TEXTS)
    answer = embedded(address, input=TEXTS, model="any").json()
    assert (answer["object"], answer["model"]) == ("list", "model")
    assert [(each["object"], each["index"]) for each in answer["data"]] == [("embedding", i) for i in range(3)]
    assert np.allclose([each["embedding"] for each in answer["data"]], expected, atol=1e-5)
    tokens = sum(max(1, len(runtime.tokenizer.encode(text).ids)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    one = embedded(address, input=TEXTS[0]).json()["data"]
    assert len(one) == 1
    assert np.allclose(one[0]["embedding"], expected[0], atol=1e-5)


def test_vectors_in_base64_are_float32(address, folder):
    """What the official Python client asks for, and how it reads the answer."""
    answer = embedded(address, input=TEXTS, model="any", encoding_format="base64", user="me").json()
    found = [np.frombuffer(base64.b64decode(each["embedding"]), dtype="float32") for each in answer["data"]]
    assert np.allclose(found, Runtime.load(folder).encode(TEXTS), atol=1e-5)


def test_what_cannot_be_answered_is_refused(address, folder):
    dim = Runtime.load(folder).projection.tables.dim
    for body, says in (
        ({"input": []}, '"input" must be a string'), ({"input": [[1, 2]]}, "text 0 is not a string"),
        ({"texts": "a"}, 'an object with "input"'), ({"input": "a", "odd": 1}, "nothing else"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"), ({"input": ["a"] * 9}, "at most 8"),
        ({"input": "a", "dimensions": dim + 1}, f'"dimensions" must be {dim}'), ({"input": "a" * 101}, "characters"),
    ):  # fmt: skip
        answer = embedded(address, **body)
        assert (answer.status_code, set(answer.json())) == (422, {"detail"})
        assert says in answer.json()["detail"]
    assert embedded(address, input="a", dimensions=dim, model=None).status_code == 200
