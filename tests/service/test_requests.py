"""Limits of requests, other kinds and paths, and garbage on the wire, over a real socket."""

import json
import re
from dataclasses import replace

import httpx
import numpy as np

from tests.conftest import PATIENT
from tests.service.conftest import HEAD, SMALL, connected, got, predicted, raw, rest_of, running, sent


def test_what_is_just_within_the_limits_is_taken(address):
    assert predicted(address, ["b" * 100] * 8).status_code == 200
    assert predicted(address, "\U0001f680" * 100).status_code == 200
    body = b'{"texts": "a"}'.ljust(4000)
    assert sent(address, body, "application/json; charset=utf-8").status_code == 200
    assert sent(address, body + b" ").status_code == 413


def test_bodies_too_large_are_refused_whether_announced_or_not(address):
    def chunks(count):
        for _ in range(count):
            yield b"x" * 1000

    for content in (b"x" * 100_000, chunks(5), chunks(300)):
        answer = sent(address, content)
        assert answer.status_code == 413
        assert answer.json() == {"detail": "the body has more than 4,000 bytes"}
    said = raw(address, HEAD % (5000, b"expect: 100-continue\r\n"))
    assert said.startswith(b"HTTP/1.1 413")  # and not 100 Continue
    said = raw(address, HEAD % (99999999999, b"") + b"x" * 1000)
    assert said.startswith(b"HTTP/1.1 413")
    body = b'{"texts":"rocket"}'
    in_chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = (HEAD % (0, b"")).replace(b"content-length: 0", b"transfer-encoding: chunked\r\nconnection: close")
    assert raw(address, head + in_chunks, end=False).startswith(b"HTTP/1.1 200")


def test_a_body_that_does_not_arrive_is_not_waited_for(watched):
    with running(watched, replace(SMALL, timeout=0.3)) as address, connected(address) as connection:
        connection.sendall(HEAD % (100, b"connection: close\r\n") + b'{"te')
        said = rest_of(connection)
        assert said.startswith(b"HTTP/1.1 503")
        assert json.loads(said.split(b"\r\n\r\n")[1]) == {"detail": "not answered within 0.3 seconds; try again"}


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
    """What is not HTTP never reaches the application: uvicorn answers 400 in plain text, or closes the connection."""
    generator = np.random.default_rng(0)
    said = [raw(address, generator.bytes(size)) for size in (1, 10, 1000, 100_000)]
    said += [
        raw(address, b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n"),
        raw(address, b"POST /predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
        raw(address, b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n"),
    ]
    assert {answer.split(b" ")[1] for answer in said if answer} <= {b"400", b"404", b"422"}
    upgrade = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    assert b"101" not in raw(address, upgrade).split(b"\r\n")[0]
    assert predicted(address, "rocket").status_code == 200


def test_requests_one_right_after_the_other(address):
    """Several requests in one go on one connection are answered in order."""
    texts = ["the team and the coach", "bank share price", "rocket in orbit"]
    bodies = [json.dumps({"texts": text}).encode() for text in texts]
    last = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    said = raw(address, b"".join(HEAD % (len(body), b"") + body for body in bodies) + last, end=False)
    labels = [predicted(address, text).json()["predictions"][0]["label"] for text in texts]
    assert re.findall(rb'"label":"(\w+)"', said) == [label.encode() for label in labels]
    assert said.count(b"HTTP/1.1 200 OK") == 4
