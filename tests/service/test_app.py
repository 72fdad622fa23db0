"""What the routes answer, over a real socket."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import numpy as np
import pytest

import ade
from ade.service.model import Query, ServedModel
from ade.settings import ServiceSettings
from tests.conftest import PATIENT, topic_texts, until
from tests.service.conftest import SMALL, got, metrics_of, posted, predicted, running

TEXTS = ["the team and the coach", "bank share price", "", "a rocket \u00e9\U0001f680"]


def test_predictions_are_those_of_the_model(address, folder):
    model = ade.load(folder)
    predictions = predicted(address, TEXTS).json()["predictions"]
    assert [each["label"] for each in predictions] == [each.label for each in model.predict(TEXTS)]
    for each, row in zip(predictions, model.predict_proba(TEXTS), strict=True):
        assert list(each["probabilities"]) == list(model.labels)
        assert np.allclose(list(each["probabilities"].values()), row, rtol=1e-4, atol=1e-6)
        assert each["probability"] == max(each["probabilities"].values())
    assert predicted(address, TEXTS[1]).json()["predictions"] == [predictions[1]]

    for top_k in (1, 2, 50):
        for few, full in zip(
            posted(address, "/predict", texts=TEXTS, top_k=top_k).json()["predictions"], predictions, strict=True
        ):
            order = sorted(full["probabilities"], key=full["probabilities"].get, reverse=True)[:top_k]
            assert list(few["probabilities"].items()) == [(name, full["probabilities"][name]) for name in order]
            assert (few["label"], few["probability"]) == (full["label"], full["probability"])


def test_many_at_once_are_answered_together_and_rightly(watched, folder):
    texts, _ = topic_texts(600, 3)
    groups, start = [], 0
    for i in range(200):
        groups.append(texts[start : start + 1 + i % 5])
        start += len(groups[-1])

    async def ask(address: str) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=address, limits=limits, timeout=PATIENT) as client:
            return await asyncio.gather(*(client.post("/predict", json={"texts": group}) for group in groups))

    def cost(texts: list[str]) -> int:
        return sum(watched.cost(Query(text)) for text in texts)

    waiting = sum(map(cost, groups))
    with ThreadPoolExecutor(1) as aside, running(watched, ServiceSettings(batch_tokens=512)) as address:
        watched.go.clear()
        asked = aside.submit(asyncio.run, ask(address))
        assert watched.busy.wait(PATIENT)
        first = cost(watched.asked[0])
        until(lambda: metrics_of(address)["ade_waiting_tokens"] == waiting - first)
        watched.go.set()
        answers = asked.result(PATIENT)
        seen = metrics_of(address)
    model = ade.load(folder)
    for answer, group in zip(answers, groups, strict=True):
        rows = [list(each["probabilities"].values()) for each in answer.json()["predictions"]]
        assert np.allclose(rows, model.predict_proba(group), rtol=1e-3, atol=1e-5)
    assert seen["ade_request_seconds_count /predict,200"] == 200
    assert seen["ade_batch_texts_sum"] == sum(map(len, groups))
    assert all(cost(batch) <= 512 for batch in watched.asked)
    assert len(watched.asked) <= 2 + waiting // 450


def test_explanations_and_readings_are_those_of_python(address, folder):
    model = ade.load(folder)
    inspector = ade.Inspector(model)
    text = "the rocket and the bank"
    assert posted(address, "/explain", text=text).json() == model.explain(text).as_dict()
    assert posted(address, "/inspect", text=text).json() == inspector.read(text)
    assert got(address, "/about").json() == inspector.about()
    page = got(address, "/")
    assert page.headers["content-type"].startswith("text/html")
    assert "ade inspector" in page.text
    assert posted(address, "/explain", texts=[text]).status_code == 422


def test_what_it_says_of_itself(address, folder):
    about = got(address, "/model").json()
    assert (about["name"], about["labels"]) == ("tokens", list(ade.load(folder).labels))
    assert about["limits"]["max_texts"] == 8
    assert got(address, "/health").json()["status"] == "ready"
    assert "swagger" in got(address, "/docs").text
    headers = got(address, "/nowhere").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


def test_it_keeps_to_its_own_description(folder, tmp_path):
    """Schemathesis reads openapi.json and asks what fits it and what does not: every answer must be as described."""
    with running(ServedModel.load(folder), replace(SMALL, max_bytes=1 << 20)) as address:
        words = ["run", f"{address}/openapi.json", "--max-examples", "40", "--seed", "1", "--no-color"]
        command = [sys.executable, "-m", "schemathesis.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=PATIENT)
        seen = metrics_of(address)
    assert done.returncode == 0, done.stdout[-3000:]
    for path in ("/predict", "/explain", "/inspect"):
        assert seen[f"ade_request_seconds_count {path},200"] > 10
        assert seen[f"ade_request_seconds_count {path},422"] > 10
    assert not any(",5" in name for name in seen if name.startswith("ade_request_seconds_count"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "JSON"),
        (b'{"texts": "a\xff"}', "JSON"),
        ('{"texts": "a"}'.encode("utf16"), "JSON"),
        (b"[" * 3000, "JSON"),
        (b'{"texts": "\\ud83d"}', "JSON"),
        (b"null", "object"),
        (b'{"text": "a"}', "texts: Field required"),
        (b'{"texts": "a", "top": 3}', "top: Extra inputs"),
        (b'{"texts": 3}', "texts: Input should be a valid string"),
        (b'{"texts": []}', "texts: List should have at least 1 item"),
        (b'{"texts": ["a", null]}', "texts.1: Input should be a valid string"),
        (b'{"texts": [["a"]]}', "texts.0: Input should be a valid string"),
        (b'{"texts": ["a","a","a","a","a","a","a","a","a"]}', "texts: List should have at most 8 items"),
        (b'{"texts": "%b"}' % (b"b" * 101), "texts: String should have at most 100 characters"),
        (b'{"texts": ["a", "%b"]}' % (b"b" * 101), "texts.1: String should have at most 100 characters"),
        *((b'{"texts": "a", "top_k": %b}' % each, "top_k: Input") for each in (b"0", b"-1", b"1.5", b'"2"', b"true")),
    ],
)
def test_a_body_that_is_not_of_the_form_is_refused_in_a_line(address, body, says):
    answer = httpx.post(f"{address}/predict", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, set(answer.json())) == (422, {"detail"})
    assert says in answer.json()["detail"]
    assert len(answer.json()["detail"]) < 200
