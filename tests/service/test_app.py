"""Predictions and pages of the service over a real socket."""

import asyncio
import base64
import hashlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import numpy as np
import pytest

from ade.classifier import Classifier
from ade.errors import InputError
from ade.inspector.reading import Inspector
from ade.runtime.runtime import Runtime
from ade.service import app as application
from ade.service.responses import JsonPredictor, parse_texts
from ade.settings import ServiceSettings
from tests.conftest import PATIENT, topic_texts, until
from tests.service.conftest import (
    SMALL,
    Watched,
    got,
    metrics_of,
    posted,
    running,
)


def test_one_text_and_many(address, folder):
    runtime = Runtime.load(folder)
    texts = ["the team and the coach", "bank share price", "", "a rocket \u00e9\U0001f680"]
    expected = runtime.predict_proba(texts)
    found = posted(address, texts).json()["predictions"]
    assert [each["label"] for each in found] == runtime.predict(texts)
    for each, row in zip(found, expected, strict=True):
        assert list(each["probabilities"]) == list(runtime.names)
        assert np.allclose(list(each["probabilities"].values()), row, rtol=1e-4, atol=1e-6)
        assert each["probability"] == max(each["probabilities"].values())
    assert posted(address, texts[1]).json()["predictions"] == [found[1]]


def test_many_at_once_are_answered_together_and_rightly(folder):
    texts, _ = topic_texts(600, 3)
    groups, start = [], 0
    for i in range(200):
        groups.append(texts[start : start + 1 + i % 5])
        start += len(groups[-1])
    runtime = Runtime.load(folder)
    expected = [runtime.predict_proba(group) for group in groups]

    async def ask(address: str) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=address, limits=limits, timeout=PATIENT) as client:
            return await asyncio.gather(*(client.post("/predict", json={"texts": group}) for group in groups))

    predictor = Watched.load(folder)
    with ThreadPoolExecutor(1) as aside, running(predictor, ServiceSettings(batch=32)) as address:
        predictor.go.clear()
        asked = aside.submit(asyncio.run, ask(address))
        assert predictor.busy.wait(PATIENT)
        until(lambda: metrics_of(address)["ade_waiting_texts"] + len(predictor.asked[0]) == sum(map(len, groups)))
        predictor.go.set()
        answers = asked.result(PATIENT)
        seen = metrics_of(address)
    for answer, probabilities in zip(answers, expected, strict=True):
        assert answer.status_code == 200
        found = [list(each["probabilities"].values()) for each in answer.json()["predictions"]]
        assert np.allclose(found, probabilities, rtol=1e-3, atol=1e-5)
    assert seen["ade_requests_total /predict,200"] == 200
    assert seen["ade_texts_total"] == sum(map(len, groups)) == seen["ade_batch_texts_sum"]
    assert 200 <= seen["ade_batch_requests_sum"] <= 400  # those of five texts may be cut
    assert seen["ade_batch_requests_count"] <= 1 + 600 // 28  # 28 texts a batch and more, but for the first
    assert seen["ade_batch_texts_bucket 32.0"] == seen["ade_batch_texts_count"]  # never more than asked for
    assert seen["ade_request_seconds_count /predict"] == 200


def test_what_it_says_of_itself(address, folder):
    health = got(address, "/health").json()
    assert health["status"] == "ready"
    assert health["model"]["labels"] == list(Runtime.load(folder).names)
    assert health["limits"]["max_texts"] == 8
    about = got(address, "/openapi.json").json()
    health_paths = {"/health", "/health/live", "/health/ready"}
    assert set(about["paths"]) == {"/predict", "/explain", "/v1/embeddings", "/metrics", *health_paths}
    schema = about["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["texts"]["anyOf"][1]["maxItems"] == 8
    page = got(address, "/docs")
    assert "POST /predict" in page.text
    assert "//" not in re.sub(r"<!doctype[^>]*>", "", page.text)  # nothing from elsewhere
    assert "style-src 'sha256-" in page.headers["content-security-policy"]
    assert "script-src 'none'" in page.headers["content-security-policy"]
    for path in ("/health", "/nowhere", "/docs", "/metrics"):
        headers = got(address, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "server" not in headers


def test_labels_that_need_care_in_json(folder):
    runtime = Runtime.load(folder)
    runtime._names = ('a "quote" 100%s', "back\\slash\n", "\u00e9\U0001f680")
    found = [json.loads(text) for text in JsonPredictor(runtime)([(text, 0) for text in ("rocket", "bank", "coach")])]
    assert {name for each in found for name in each["probabilities"]} == set(runtime.names)
    assert [each["label"] for each in found] == runtime.predict(["rocket", "bank", "coach"])


def test_several_labels_and_numbers(folder):
    class Several(Runtime):
        problem = "multi_label_classification"

        def predict_proba(self, texts):
            return np.array([[0.9, 0.5, 0.1], [0.1, 0.2, 0.3]], dtype=np.float32)[: len(texts)]

    class Number(Runtime):
        problem = "regression"

        def predict(self, texts):
            return [float(len(text)) for text in texts]

    names = list(Several.load(folder).names)
    first, second = (json.loads(text) for text in JsonPredictor(Several.load(folder))([("a", 0), ("b", 0)]))
    assert (first["label"], first["probability"]) == (names[:2], [0.9, 0.5])
    assert (second["label"], second["probability"]) == ([], [])
    assert second["probabilities"] == pytest.approx(dict(zip(names, (0.1, 0.2, 0.3), strict=True)))
    (number,) = (json.loads(text) for text in JsonPredictor(Number.load(folder))([("rocket", 0)]))
    assert number == {"label": 6, "probability": None, "probabilities": {}}


def test_the_page_may_run_its_own_script_alone(folder, monkeypatch):
    script, style = "const a = '</b>';\n", "b{color:red}"
    text = f"<!doctype html><style>{style}</style><b></b><script>{script}</script>"
    monkeypatch.setattr(application, "inspector_page", lambda: text)
    with running(Runtime.load(folder), inspector=lambda: Inspector(Classifier.load(folder, "cpu"))) as address:
        answer = got(address)
    assert answer.text == text
    assert answer.headers["content-type"].startswith("text/html")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    for name, own in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert policy[name] == f"'sha256-{digest}'"
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"


def test_it_keeps_to_its_own_description(folder, tmp_path):
    """Schemathesis reads openapi.json and asks what fits it and what does not: every answer must be as described."""
    inspector = Inspector(Classifier.load(folder, "cpu"))
    with running(Runtime.load(folder), replace(SMALL, max_bytes=1 << 20), lambda: inspector) as address:
        words = ["run", f"{address}/openapi.json", "--max-examples", "40", "--seed", "1", "--no-color"]
        command = [sys.executable, "-m", "schemathesis.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=PATIENT)
        seen = metrics_of(address)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "9 selected / 9 total" in done.stdout
    assert seen["ade_requests_total /predict,200"] > 10
    assert seen["ade_requests_total /predict,422"] > 10
    assert seen["ade_requests_total /explain,200"] > 10
    assert seen["ade_requests_total /v1/embeddings,200"] > 10
    assert not any(",5" in name for name in seen if name.startswith("ade_requests_total"))


def test_numbers_too_long_for_python_are_not_json():
    with pytest.raises(InputError, match="not JSON"):
        parse_texts(b"1" * 5000, 1, 1)
    assert parse_texts(b'{"texts": ["a", "\\ud83d\\ude80"]}', 2, 1) == ["a", "\U0001f680"]


def test_only_the_most_probable_labels_where_asked_for(address, folder):
    texts = ["the team and the coach", "bank share price"]
    whole = posted(address, texts).json()["predictions"]
    for top_k in (1, 2, 3, 50):
        answer = httpx.post(f"{address}/predict", json={"texts": texts, "top_k": top_k}, timeout=PATIENT)
        for found, full in zip(answer.json()["predictions"], whole, strict=True):
            order = sorted(full["probabilities"], key=full["probabilities"].get, reverse=True)[:top_k]
            assert list(found["probabilities"]) == order
            assert found["probabilities"].items() <= full["probabilities"].items()
            assert (found["label"], found["probability"]) == (full["label"], full["probability"])
    for wrong in (0, -1, 1.5, "2", True, None, [1]):
        answer = httpx.post(f"{address}/predict", json={"texts": texts, "top_k": wrong}, timeout=PATIENT)
        assert answer.status_code == 422
        assert "top_k" in answer.json()["detail"]
