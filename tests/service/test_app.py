"""The service over a real socket: under load, with bad input, with clients that leave, and during shutdown."""

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ade.classifier import Classifier
from ade.data.problems import TAGGER
from ade.errors import InputError
from ade.inspector.reading import Inspector
from ade.runtime.runtime import Runtime
from ade.service import app as application
from ade.service import batcher, middleware
from ade.service import server as serving
from ade.service.app import create_app
from ade.service.inspections import MAX_WAITING
from ade.service.responses import JsonPredictor, parse_texts
from ade.service.server import Server, bind_socket, url_of
from ade.settings import STRONG, Architecture, ServiceSettings
from ade.training.loop import fit_model
from tests.conftest import PATIENT, topic_texts, until

SMALL = ServiceSettings(max_bytes=4000, max_texts=8, max_chars=100, batch=16, queue=64, inspect_texts=1)
SECRET = "the password is swordfish"


@pytest.fixture(scope="module")
def folder(codebook, topics, tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "gated"
    chosen = STRONG.__class__(steps=60, batch_size=16, learning_rate=5e-3, device="cpu")
    fit_model(codebook, topics, settings=chosen, architecture=Architecture(attend="gated"), out=out)
    return out


class Watched(Runtime):
    """A runtime that can be held at work, fails where a text says so, and remembers what it was asked."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.asked, self.busy, self.go = [], threading.Event(), threading.Event()
        self.go.set()

    def predict_proba(self, texts):
        self.asked.append(list(texts))
        self.busy.set()
        assert self.go.wait(PATIENT)
        if any("boom" in text for text in texts):
            raise RuntimeError(SECRET)
        return super().predict_proba(texts)


@contextlib.contextmanager
def running(predictor, chosen=SMALL, inspector=None):
    """A service on a free port, stopped and joined at the end."""
    ready = threading.Event()
    with bind_socket("127.0.0.1", 0) as bound:
        server = Server(create_app(predictor, chosen, inspector), ready.set, chosen.max_bytes)
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            assert ready.wait(PATIENT)
            yield url_of(bound)
        finally:
            if isinstance(predictor, Watched):
                predictor.go.set()  # where a test has failed, nobody is left waiting
            server.should_exit = True
            thread.join(PATIENT)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def address(folder):
    with running(Runtime.load(folder)) as found:
        yield found


def got(address: str, path: str = "") -> httpx.Response:
    return httpx.get(address + path, timeout=PATIENT)


def metrics_of(address: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(got(address, "/metrics").text):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[f"{sample.name} {labels}".strip()] = sample.value
    return found


def posted(address: str, texts: object, path: str = "/predict") -> httpx.Response:
    return httpx.post(f"{address}{path}", json={"texts": texts}, timeout=PATIENT)


def sent(address: str, content: object, kind: str = "application/json") -> httpx.Response:
    """The answer to a body sent as it is."""
    return httpx.post(f"{address}/predict", content=content, headers={"content-type": kind}, timeout=PATIENT)


def connected(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENT)


def rest_of(connection: socket.socket) -> bytes:
    """All a server still says, until it closes the connection."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while more := connection.recv(65536):
            said += more
    return said


def raw(address: str, sent: bytes, end: bool = True) -> bytes:
    """What a server says to bytes sent as they are."""
    with connected(address) as connection:
        with contextlib.suppress(OSError):  # it may have closed already
            connection.sendall(sent)
            if end:
                connection.shutdown(socket.SHUT_WR)
        return rest_of(connection)


def trickled(address: str, head: bytes) -> bytes:
    """What a server says to a request that goes on and on, a byte at a time, until it says something."""
    with connected(address) as connection:
        connection.sendall(head)
        give_up = time.monotonic() + PATIENT
        while not select.select([connection], [], [], 0.02)[0] and time.monotonic() < give_up:
            connection.sendall(b"x")
        return rest_of(connection)


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
    assert seen["ade_batch_requests_sum"] == 200
    assert seen["ade_batch_requests_count"] <= 1 + 600 // 28  # 28 texts a batch and more, but for the first
    assert seen["ade_batch_texts_bucket 32.0"] == seen["ade_batch_texts_count"]  # never more than asked for
    assert seen["ade_request_seconds_count /predict"] == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"texts": "a\xff"}', "not JSON"),
        ('{"texts": "a"}'.encode("utf16"), "not JSON"),
        (b"[" * 3000, "not JSON"),
        (b"1" * 3999, "nothing else"),
        (b"null", "nothing else"),
        (b'["a"]', "nothing else"),
        (b'{"text": "a"}', "nothing else"),
        (b'{"texts": "a", "top": 3}', "nothing else"),
        (b'{"texts": 3}', "a string, or a list"),
        (b'{"texts": NaN}', "a string, or a list"),
        (b'{"texts": []}', "a string, or a list"),
        (b'{"texts": ["a", null]}', "text 1 is not a string"),
        (b'{"texts": [["a"]]}', "text 0 is not a string"),
        (json.dumps({"texts": ["a"] * 9}).encode(), "9 texts; at most 8"),
        (json.dumps({"texts": ["a", "b" * 101]}).encode(), "text 1 has 101 characters; at most 100"),
        (b'{"texts": "\\ud83d"}', "half of a surrogate pair"),
        (b'{"texts": ["a", "\\udc00\\ud800"]}', "text 1 has half"),
    ],
)
def test_what_is_not_asked_for_is_refused(address, body, says):
    answer = sent(address, body)
    assert answer.status_code == 422
    assert set(answer.json()) == {"detail"}
    assert says in answer.json()["detail"]
    assert answer.headers["content-type"] == "application/json"


def test_what_is_just_within_the_limits_is_taken(address):
    assert posted(address, ["b" * 100] * 8).status_code == 200
    assert posted(address, "\U0001f680" * 100).status_code == 200
    body = b'{"texts": "a"}'.ljust(4000)
    assert sent(address, body, "application/json; charset=utf-8").status_code == 200
    answer = sent(address, body + b" ")
    assert answer.status_code == 413


def test_bodies_too_large_are_refused_whether_announced_or_not(address, monkeypatch):
    monkeypatch.setattr(middleware, "DRAIN_SECONDS", PATIENT)

    def chunks(count):
        for _ in range(count):
            yield b"x" * 1000

    for content in (b"x" * 100_000, chunks(5), chunks(300)):
        answer = sent(address, content)
        assert answer.status_code == 413
        assert answer.json() == {"detail": "the body has more than 4,000 bytes"}
    head = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    said = raw(address, head + b"expect: 100-continue\r\ncontent-length: 5000\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 413")  # and not 100 Continue
    said = raw(address, head + b"content-length: 99999999999\r\n\r\n" + b"x" * 1000)
    assert said.startswith(b"HTTP/1.1 413")
    body = b'{"texts":"rocket"}'
    in_chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    said = raw(address, head + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + in_chunks, end=False)
    assert said.startswith(b"HTTP/1.1 200")


def test_other_kinds_paths_and_methods(address):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"):
        answer = sent(address, b'{"texts":"a"}', kind)
        assert answer.status_code == 415
        assert "application/json" in answer.json()["detail"]
    for method, path, status in (
        ("GET", "/nowhere", 404), ("POST", "/predict/", 404), ("GET", "/predict", 405), ("PUT", "/predict", 405),
        ("DELETE", "/health", 405), ("GET", "/%2e%2e/etc/passwd", 404),
    ):  # fmt: skip
        answer = httpx.request(method, address + path, timeout=PATIENT)
        assert (answer.status_code, set(answer.json())) == (status, {"detail"}), path
    assert got(address, "/predict").headers["allow"] == "POST"


def test_garbage_on_the_wire(address):
    generator = np.random.default_rng(0)
    said = [raw(address, generator.bytes(size)) for size in (1, 10, 1000, 100_000)]
    said += [
        raw(address, b"GET /nowhere HTTP/9.9\r\n\r\n"),
        raw(address, b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n"),
        raw(address, b"POST /predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
        raw(address, b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n"),
        raw(address, b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 300_000),
        raw(address, b"GET /" + b"a" * 300_000),
    ]
    for answer in said:
        if answer:
            assert answer.startswith(b"HTTP/1.1 4"), answer[:200]
            assert set(json.loads(answer.split(b"\r\n\r\n", 1)[1])) == {"detail"}
        assert b"Traceback" not in answer
    upgrade = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    assert b"101" not in raw(address, upgrade).split(b"\r\n")[0]
    assert posted(address, "rocket").status_code == 200


def test_slow_senders_are_not_waited_for(folder, monkeypatch):
    """However often a byte comes: time runs from the first one."""
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.3)
    with running(Runtime.load(folder)) as address:
        assert raw(address, b"", end=False) == b""  # an idle connection is closed without an answer
        head = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 3999\r\n\r\n"
        for begun in (b"GET /health HTTP/1.1\r\nx: y", head + b'{"te'):
            said = trickled(address, begun)
            assert said.startswith(b"HTTP/1.1 408")
            assert set(json.loads(said.split(b"\r\n\r\n", 1)[1])) == {"detail"}


def test_requests_one_right_after_the_other(address):
    """Several requests in one go on one connection are answered in order."""
    head = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    texts = ["the team and the coach", "bank share price", "rocket in orbit"]
    bodies = [json.dumps({"texts": text}).encode() for text in texts]
    last = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    said = raw(address, b"".join(head % len(body) + body for body in bodies) + last, end=False)
    labels = [posted(address, text).json()["predictions"][0]["label"] for text in texts]
    assert re.findall(rb'"label":"(\w+)"', said) == [label.encode() for label in labels]
    assert said.count(b"HTTP/1.1 200 OK") == 4


def test_a_body_nobody_reads_does_no_harm(address):
    """The answer comes before the body has: the connection lives on, or is closed, but never tells nonsense."""
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n"
    after = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    for path, status in ((b"/nowhere", b"404"), (b"/health", b"405")):
        with connected(address) as connection:
            connection.sendall(head % path)
            said = connection.recv(65536)
            with contextlib.suppress(OSError):
                connection.sendall(b"x" * 200_000 + after)
            said += rest_of(connection)
        assert said.startswith(b"HTTP/1.1 " + status)
        assert said.count(b"HTTP/1.1") == 1 or b'"ready"' in said.split(b"HTTP/1.1")[2]


def test_a_failure_stays_with_its_own_request_and_tells_nothing(folder, caplog):
    predictor = Watched.load(folder)
    with running(predictor) as address:
        predictor.go.clear()  # while the first is worked on, the others gather
        texts = ["the coach", "boom", "the team", "boom and more", "a rocket"]

        async def ask() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=address, timeout=PATIENT) as client:
                first = asyncio.create_task(client.post("/predict", json={"texts": "first"}))
                await asyncio.to_thread(predictor.busy.wait, PATIENT)
                rest = [asyncio.create_task(client.post("/predict", json={"texts": text})) for text in texts]
                await asyncio.to_thread(until, lambda: metrics_of(address)["ade_waiting_texts"] == len(texts))
                predictor.go.set()
                return await asyncio.gather(first, *rest)

        with caplog.at_level(logging.ERROR, "ade.service"):
            answers = asyncio.run(ask())
        assert [answer.status_code for answer in answers] == [200, 200, 500, 200, 500, 200]
        assert sorted(texts) in [sorted(batch) for batch in predictor.asked]  # it was one batch
        for answer in answers:
            assert SECRET not in answer.text
            assert "Traceback" not in answer.text
            assert "RuntimeError" not in answer.text
        assert answers[2].json() == {"detail": "the service failed on this request; its log says why"}
        assert caplog.text.count(f"RuntimeError: {SECRET}") == 2  # the trace of each is written down once
        assert metrics_of(address)["ade_requests_total /predict,500"] == 2
    predictor.projection = None  # and a model that is broken altogether
    with running(predictor) as address:
        assert posted(address, ["a", "b"]).status_code == 500
        assert got(address, "/health").status_code == 200


def test_predictions_that_are_not_finite_are_an_error(folder):
    predictor = Runtime.load(folder)
    predictor.projection._positions[:] = np.nan
    with running(predictor) as address:
        assert posted(address, "rocket").status_code == 500


HEAD = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"


def test_clients_that_leave_cost_nothing(folder, monkeypatch):
    monkeypatch.setattr(batcher, "CHECK_CLIENT_AFTER", -1.0)  # everybody is asked whether they are still there
    predictor = Watched.load(folder)
    with ThreadPoolExecutor(2) as aside, running(predictor) as address:
        predictor.go.clear()
        first = aside.submit(posted, address, "first")
        assert predictor.busy.wait(PATIENT)
        bodies = [json.dumps({"texts": f"leaves {i}"}).encode() for i in range(10)]
        whole, half = ([connected(address) for _ in bodies] for _ in range(2))
        for connections, cut in ((whole, 0), (half, 3)):
            for connection, body in zip(connections, bodies, strict=True):
                connection.sendall(HEAD % (len(body), b"") + body[: len(body) - cut])
        until(lambda: metrics_of(address)["ade_waiting_texts"] == 10)
        for connection in (*whole, *half):
            connection.close()
        until(lambda: metrics_of(address).get("ade_requests_total /predict,499") == 10)  # those who had not said it all
        stays = aside.submit(posted, address, "stays")
        until(lambda: metrics_of(address)["ade_waiting_texts"] == 11)
        predictor.go.set()
        assert [answer.result(PATIENT).status_code for answer in (first, stays)] == [200, 200]
        assert predictor.asked == [["first"], ["stays"]]
        seen = metrics_of(address)
    assert seen["ade_requests_total /predict,499"] == 20
    assert seen["ade_waiting_texts"] == 0


def test_too_many_are_turned_away_and_may_come_again(folder):
    predictor = Watched.load(folder)
    chosen = ServiceSettings(max_texts=4, batch=4, queue=8)
    with ThreadPoolExecutor(9) as aside, running(predictor, chosen) as address:
        predictor.go.clear()
        first = aside.submit(posted, address, ["a"] * 4)
        assert predictor.busy.wait(PATIENT)
        asked = [aside.submit(posted, address, ["a"] * 4) for _ in range(8)]
        until(lambda: sum(each.done() for each in asked) == 6)  # two more fit the queue
        refused = [each.result() for each in asked if each.done()]
        assert {answer.status_code for answer in refused} == {503}
        assert refused[0].headers["retry-after"] == "1"
        assert "waiting" in refused[0].json()["detail"]
        predictor.go.set()
        answers = [each.result(PATIENT).status_code for each in (first, *asked)]
        assert (answers.count(200), answers.count(503)) == (3, 6)
        assert posted(address, ["a"] * 4).status_code == 200


def test_what_it_says_of_itself(address, folder):
    health = got(address, "/health").json()
    assert health["status"] == "ready"
    assert health["model"]["labels"] == list(Runtime.load(folder).names)
    assert health["limits"]["max_texts"] == 8
    about = got(address, "/openapi.json").json()
    assert set(about["paths"]) == {"/predict", "/explain", "/inspect", "/about", "/health", "/metrics"}
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
    found = [json.loads(text) for text in JsonPredictor(runtime)(["rocket", "bank", "coach"])]
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
    first, second = (json.loads(text) for text in JsonPredictor(Several.load(folder))(["a", "b"]))
    assert (first["label"], first["probability"]) == (names[:2], [0.9, 0.5])
    assert (second["label"], second["probability"]) == ([], [])
    assert second["probabilities"] == pytest.approx(dict(zip(names, (0.1, 0.2, 0.3), strict=True)))
    (number,) = (json.loads(text) for text in JsonPredictor(Number.load(folder))(["rocket"]))
    assert number == {"label": 6, "probability": None, "probabilities": {}}


def test_inspection(folder):
    inspector = Inspector(Classifier.load(folder, "cpu"))
    with running(Runtime.load(folder), SMALL, lambda: inspector) as address:
        assert got(address, "/about").json() == inspector.about()
        text = "the rocket and the bank"
        assert posted(address, [text], "/inspect").json() == {"readings": [inspector.read(text)]}
        assert posted(address, text, "/inspect").json()["readings"][0]["label"] == Runtime.load(folder).predict(text)
        assert "2 texts; at most 1" in posted(address, [text, text], "/inspect").json()["detail"]
        assert posted(address, "a" * 2001, "/inspect").status_code == 422

        async def ask() -> list[int]:
            async with httpx.AsyncClient(base_url=address, timeout=PATIENT) as client:
                many = (client.post("/inspect", json={"texts": text}) for _ in range(40))
                return [answer.status_code for answer in await asyncio.gather(*many)]

        found = asyncio.run(ask())
        assert set(found) <= {200, 503}
        assert found.count(200) >= MAX_WAITING


def test_a_model_that_cannot_be_inspected(folder, tmp_path):
    def refuses() -> Inspector:
        return Inspector(Classifier.load(tmp_path, "cpu"))

    with running(Runtime.load(folder), SMALL, refuses) as address:
        for answer in (got(address, "/about"), posted(address, "a", "/inspect")):
            assert answer.status_code == 409
            assert "not a model folder" in answer.json()["detail"]
    with running(Runtime.load(folder)) as address:
        assert got(address, "/about").json() == {"detail": "this service only predicts"}


def test_the_page_may_run_its_own_script_alone(folder, monkeypatch):
    script, style = "const a = '</b>';\n", "b{color:red}"
    text = f"<!doctype html><style>{style}</style><b></b><script>{script}</script>"
    monkeypatch.setattr(application, "inspector_page", lambda: text)
    with running(Runtime.load(folder)) as address:
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
    assert "6 selected / 6 total" in done.stdout
    assert seen["ade_requests_total /predict,200"] > 10
    assert seen["ade_requests_total /predict,422"] > 10
    assert seen["ade_requests_total /explain,200"] > 10
    assert not any(",5" in name for name in seen if name.startswith("ade_requests_total"))


def test_numbers_too_long_for_python_are_not_json():
    with pytest.raises(InputError, match="not JSON"):
        parse_texts(b"1" * 5000, 1, 1)
    assert parse_texts(b'{"texts": ["a", "\\ud83d\\ude80"]}', 2, 1) == ["a", "\U0001f680"]


# -- the verb --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving_verb(folder, *words):
    """`ade serve` as a process; gives it and its address once it says it is ready."""
    command = [sys.executable, "-m", "ade", "serve", str(folder), "--port", "0", "--json", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, json.loads(process.stdout.readline())["address"]
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_well_with_requests_under_way(folder, number):
    body = json.dumps({"texts": ["the rocket"] * 50}).encode()
    with serving_verb(folder) as (process, address):
        idle, *busy = (connected(address) for _ in range(31))
        for connection in busy:
            connection.sendall(HEAD % (len(body), b"expect: 100-continue\r\n"))
        for connection in busy:
            assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"  # it is being read
        for i, connection in enumerate(busy):
            connection.sendall(body if i % 3 else body[:-5])
        process.send_signal(number)
        assert idle.recv(1) == b""  # it is stopping
        for connection in busy[::3]:
            connection.sendall(body[-5:])
        for connection in busy:
            with connection, connection.makefile("rb") as said:
                assert said.readline() == b"HTTP/1.1 200 OK\r\n"
                assert said.read().count(b'"label"') == 50
        out, errors = process.communicate(timeout=PATIENT)
        idle.close()
    assert process.returncode == 0
    assert out == ""
    assert errors == f"ade: {folder} is served at {address}\n"


def test_torch_is_loaded_only_for_inspection(folder):
    program = (
        "import sys, threading, urllib.request\n"
        "from ade.cli import main as cli\nfrom ade.service import app as serving\n"
        "made = serving.create_app\n"
        "def create_app(*given):\n"
        "    app = made(*given)\n"
        "    app.routes.append(serving.Route('/loaded', loaded))\n"
        "    return app\n"
        "async def loaded(request):\n"
        "    return serving.Response('torch' if 'torch' in sys.modules else 'none')\n"
        "serving.create_app = create_app\n"
        "cli.main()\n"
    )
    command = [sys.executable, "-c", program, "serve", str(folder), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = json.loads(process.stdout.readline())["address"]
            assert posted(address, "rocket").status_code == 200
            assert got(address, "/health").status_code == 200
            assert got(address, "/loaded").text == "none"
            assert len(got(address, "/about").json()["anchors"]) == 10
            assert got(address, "/loaded").text == "torch"
        finally:
            process.kill()


def test_the_verb_says_what_is_wrong_in_a_line(ade, folder, tmp_path):
    with bind_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        status, _, errors = ade("serve", folder, "--port", port)
        assert (status, errors.count("\n")) == (2, 1)
        assert f"cannot listen at 127.0.0.1, port {port}: Address already in use" in errors
    shutil.copytree(folder, tmp_path / "tagger")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "tagger" / "config.json").write_text(json.dumps({**config, "architectures": [TAGGER]}))
    for words, says in (
        ((tmp_path, "--port", "0"), "not a model folder"),
        ((tmp_path / "tagger", "--port", "0"), "a tagger"),
        ((folder, "--host", "nowhere.invalid"), "cannot listen at nowhere.invalid"),
        ((folder, "--port", "70000"), "65535"),
        ((folder, "--batch", "0"), "batch must be at least 1, not 0"),
        ((folder, "--queue", "10"), "queue must be at least max_texts (256), not 10"),
    ):
        status, out, errors = ade("serve", *words)
        assert (status, out, errors.count("\n")) == (2, "", 1)
        assert says in errors


def test_requests_are_written_down_where_asked_for(folder):
    with serving_verb(folder, "--access-log") as (process, address):
        got(address, "/health")
        process.terminate()
        _, errors = process.communicate(timeout=PATIENT)
    assert re.search(r'127\.0\.0\.1:\d+ - "GET /health HTTP/1.1" 200', errors)
    assert process.returncode == 0
