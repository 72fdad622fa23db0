"""Bad input, limits of requests, and garbage on the wire, over a real socket."""

import contextlib
import json
import re

import httpx
import numpy as np
import pytest

from ade.runtime.runtime import Runtime
from ade.service import middleware, protocol
from tests.conftest import PATIENT
from tests.service.conftest import (
    connected,
    got,
    posted,
    raw,
    rest_of,
    running,
    sent,
    trickled,
)


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
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", 0.3)
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
