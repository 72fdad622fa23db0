"""Limits of connections: too many of them, those that stay idle, clients that do not read, and what is counted."""

import json
import socket
import threading
from dataclasses import replace

import httpx
import pytest

from ade.runtime.runtime import Runtime
from ade.service import protocol
from ade.settings import ServiceSettings
from tests.conftest import PATIENT, until
from tests.service.conftest import HEAD, SMALL, Watched, connected, got, metrics_of, posted, raw, rest_of, running

BODY = json.dumps({"texts": "a rocket"}).encode()
ASK = HEAD % (len(BODY), b"") + BODY


def test_health_is_answered_however_many_are_connected(folder, monkeypatch):
    """Three times as many as allowed, all of them in the middle of a request."""
    monkeypatch.setattr(protocol, "SPARE_CONNECTIONS", 5)
    with running(Runtime.load(folder), replace(SMALL, max_connections=10)) as address:
        busy = []
        for _ in range(30):
            busy.append(connected(address))
            busy[-1].sendall(ASK[:-3])
        for path in ("/health", "/health/live", "/health/ready"):
            assert got(address, path).status_code == 200
        answer = posted(address, "rocket")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json() == {"detail": "too many connections; try again"}
        for connection in busy[:10]:  # those within the limit are served
            connection.sendall(ASK[-3:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        for connection in busy:
            connection.close()
        until(lambda: got(address, "/metrics").status_code == 200)
        seen = metrics_of(address)
        assert seen["ade_refused_total too many connections"] >= 20
        assert posted(address, "rocket").status_code == 200
        until(lambda: metrics_of(address)["ade_connections"] == 1)  # that of the question itself


def test_an_idle_connection_makes_room(folder, monkeypatch):
    """The one that has been idle for longest is closed; those with a request are not."""
    monkeypatch.setattr(protocol, "IDLE_SECONDS", -1.0)
    with running(Runtime.load(folder), replace(SMALL, max_connections=3)) as address:
        first, second, busy = (connected(address) for _ in range(3))
        busy.sendall(ASK[:-3])
        for connection in (first, second):
            connection.sendall(ASK)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert posted(address, "rocket").status_code == 200
        assert first.recv(1) == b""
        second.sendall(ASK)
        assert second.recv(65536).startswith(b"HTTP/1.1 200")
        busy.sendall(ASK[-3:])
        assert busy.recv(65536).startswith(b"HTTP/1.1 200")
        for connection in (first, second, busy):
            connection.close()


def test_an_answer_that_nobody_reads_is_dropped(folder, monkeypatch):
    monkeypatch.setattr(protocol, "ANSWER_SECONDS", 0.2)
    chosen = ServiceSettings(timeout=PATIENT, max_texts=3000, max_bytes=1 << 20, grace=0)
    body = json.dumps({"texts": ["a"] * 3000}).encode()  # an answer of 300 kB
    with running(Runtime.load(folder), chosen, buffer=4096) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((host, int(port)))
            slow.sendall(HEAD % (len(body), b"") + body)
            until(lambda: metrics_of(address).get("ade_refused_total slow reader") == 1)
            until(lambda: metrics_of(address)["ade_connections"] == 1)
        assert posted(address, "rocket").status_code == 200
        assert len(posted(address, ["a"] * 3000).json()["predictions"]) == 3000  # read at once, it is complete


def test_what_the_reader_refuses_is_counted(folder, monkeypatch):
    monkeypatch.setattr(protocol, "REQUEST_SECONDS", 0.3)
    with running(Runtime.load(folder)) as address:
        raw(address, b"not HTTP at all\r\n\r\n", end=False)
        raw(address, b"GET /" + b"a" * 300_000, end=False)
        with connected(address) as connection:
            connection.sendall(ASK[:-3])
            assert rest_of(connection).startswith(b"HTTP/1.1 408")
        seen = metrics_of(address)
        reasons = {name.removeprefix("ade_refused_total "): seen[name] for name in seen if "ade_refused_total" in name}
        assert reasons == {"malformed": 1, "too large": 1, "slow sender": 1}


@pytest.mark.parametrize("path", ["/predict", "/explain", "/inspect", "/v1/embeddings"])
def test_a_request_that_waits_too_long_is_told_to_come_again(folder, path):
    """The thread is held at work by another request; what is given up is not worked on."""

    class Held(Watched):
        def explain(self, texts, first=0):
            self.busy.set()
            assert self.go.wait(PATIENT)
            return super().explain(texts, first)

        def pooled_vectors(self, ids, offsets):
            self.busy.set()
            assert self.go.wait(PATIENT)
            return super().pooled_vectors(ids, offsets)

    class Inspector:
        def read(self, text):
            predictor.busy.set()
            assert predictor.go.wait(PATIENT)
            return {"text": text}

    predictor = Held.load(folder)
    body = {"input": "rocket"} if path == "/v1/embeddings" else {"texts": "rocket"}

    def ask() -> httpx.Response:
        return httpx.post(address + path, json=body, timeout=PATIENT)

    with running(predictor, replace(SMALL, timeout=0.3), Inspector) as address:
        predictor.go.clear()
        first = threading.Thread(target=ask)
        first.start()
        assert predictor.busy.wait(PATIENT)
        answer = ask()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json() == {"detail": "not answered within 0.3 seconds; try again"}
        until(lambda: metrics_of(address)["ade_waiting_tokens"] == 0)
        predictor.go.set()
        first.join(PATIENT)
        until(lambda: ask().status_code == 200)
