"""A service on a real socket, clients for it, and a runtime that can be watched."""

import asyncio
import contextlib
import json
import select
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ade.runtime.runtime import Runtime
from ade.service.access import Access
from ade.service.app import create_app
from ade.service.model import ServedModel
from ade.service.server import Server, bind_socket, url_of
from ade.settings import STRONG, Architecture, ServiceSettings
from ade.training.loop import fit_model
from tests.conftest import PATIENT, until

SMALL = ServiceSettings(
    max_bytes=4000, max_texts=8, max_chars=100, timeout=PATIENT, batch=16, queue=1000, inspect_texts=1, grace=0
)
SECRET = "the password is swordfish"
HEAD = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"


@pytest.fixture(scope="session")
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
def running(predictor, chosen=SMALL, inspector=None, access=Access(), load=None, server=Server, buffer=0):
    """A service on a free port, stopped and joined at the end."""
    ready = threading.Event()
    model = predictor if isinstance(predictor, ServedModel) else ServedModel(predictor, make_inspector=inspector)
    with bind_socket("127.0.0.1", 0) as bound:
        if buffer:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)  # of answers, in the system
        server = server(create_app(model, chosen, access, load), ready.set, chosen)
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            assert ready.wait(PATIENT)
            yield url_of(bound)
        finally:
            if isinstance(model.predictor, Watched):
                model.predictor.go.set()  # where a test has failed, nobody is left waiting
            server.should_exit = server.is_hurried = True
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


@contextlib.contextmanager
def serving_verb(folder, *words):
    """`ade serve` as a process; gives it and its address once it says it is ready."""
    always = ["--port", "0", "--json", "--timeout", str(PATIENT)]  # no request is given up on a slow machine
    command = [sys.executable, "-m", "ade", "serve", str(folder), *always, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)["address"]
        finally:
            process.kill()


def asked_in_one_batch(predictor: Watched, address: str, texts: list[str]) -> list[httpx.Response]:
    """Answers to a first request and to one for each text: these gather in one batch while the first is held."""

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=address, timeout=PATIENT) as client:
            first = asyncio.create_task(client.post("/predict", json={"texts": "first"}))
            await asyncio.to_thread(predictor.busy.wait, PATIENT)
            rest = [asyncio.create_task(client.post("/predict", json={"texts": text})) for text in texts]
            await asyncio.to_thread(until, lambda: metrics_of(address)["ade_waiting_texts"] == len(texts))
            predictor.go.set()
            return await asyncio.gather(first, *rest)

    return asyncio.run(ask())
