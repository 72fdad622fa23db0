"""A service on a real socket, clients for it, and a model that can be watched at work."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ade.service import batcher
from ade.service.app import create_app
from ade.service.model import Query, ServedModel
from ade.service.server import Server, bind_socket, url_of
from ade.settings import STRONG, Architecture, ServiceSettings
from ade.training.loop import fit_model
from tests.conftest import PATIENT, until

SMALL = ServiceSettings(max_bytes=4000, max_texts=8, max_chars=100, timeout=PATIENT, queue_tokens=10_000, grace=0)
SECRET = "the password is swordfish"
HEAD = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"


@pytest.fixture(scope="session")
def folder(codebook, topics, tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "tokens"
    settings = replace(STRONG, steps=60, batch_size=16, learning_rate=5e-3, device="cpu")
    fit_model(codebook, topics, settings=settings, architecture=Architecture(attend="tokens"), out=out)
    return out


class Watched(ServedModel):
    """A model that can be held at work, fails where a text says so, and remembers what it was asked."""

    def __init__(self, *given):
        super().__init__(*given)
        self.asked, self.busy, self.go = [], threading.Event(), threading.Event()
        self.go.set()

    def _work(self, texts):
        self.asked.append(list(texts))
        self.busy.set()
        assert self.go.wait(PATIENT)
        if any("boom" in text for text in self.asked[-1]):
            raise RuntimeError(SECRET)


for name in ("predict", "embed", "explain", "inspect"):

    def watched_method(self, queries, method=getattr(ServedModel, name)):
        self._work(query.text for query in queries)
        return method(self, queries)

    setattr(Watched, name, watched_method)


@pytest.fixture
def watched(folder, monkeypatch):
    monkeypatch.setattr(batcher, "INLINE_SECONDS", -1.0)  # the event loop must go on while the model is held
    model = Watched.load(folder)
    model.asked.clear()
    model.busy.clear()
    return model


@contextlib.contextmanager
def running(model, settings=SMALL, server=Server, **access):
    """A service on a free port, stopped and joined at the end."""
    ready = threading.Event()
    with bind_socket("127.0.0.1", 0) as bound:
        server = server(create_app(model, settings, **access), ready.set, settings.grace)
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            assert ready.wait(PATIENT)
            yield url_of(bound)
        finally:
            if isinstance(model, Watched):
                model.go.set()  # where a test has failed, nobody is left waiting
            for _ in range(2):
                server.handle_exit(15, None)
            thread.join(PATIENT)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def address(folder):
    with running(ServedModel.load(folder)) as found:
        yield found


def got(address: str, path: str = "", **headers: str) -> httpx.Response:
    return httpx.get(address + path, headers=headers, timeout=PATIENT)


def posted(address: str, path: str, **body: object) -> httpx.Response:
    return httpx.post(address + path, json=body, timeout=PATIENT)


def predicted(address: str, texts: object) -> httpx.Response:
    return posted(address, "/predict", texts=texts)


def sent(address: str, content: object, kind: str = "application/json") -> httpx.Response:
    """The answer to a body sent as it is."""
    return httpx.post(f"{address}/predict", content=content, headers={"content-type": kind}, timeout=PATIENT)


def metrics_of(address: str) -> dict[str, float]:
    values = {}
    for family in text_string_to_metric_families(got(address, "/metrics").text):
        for sample in family.samples:
            values[f"{sample.name} {','.join(sample.labels.values())}".strip()] = sample.value
    return values


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


def raw(address: str, content: bytes, end: bool = True) -> bytes:
    """What a server says to bytes sent as they are."""
    with connected(address) as connection:
        with contextlib.suppress(OSError):  # it may have closed already
            connection.sendall(content)
            if end:
                connection.shutdown(socket.SHUT_WR)
        return rest_of(connection)


@contextlib.contextmanager
def serving_verb(folder, *words):
    """`ade serve` as a process; gives it and its address once it says it is ready."""
    always = ["--port", "0", "--json", "--set", f"timeout={PATIENT}"]  # no request is given up on a slow machine
    command = [sys.executable, "-m", "ade", "serve", str(folder), *always, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)["address"]
        finally:
            process.kill()


def asked_in_one_batch(model: Watched, address: str, texts: list[str]) -> list[httpx.Response]:
    """Answers to a first request and to one for each text: these gather in one batch while the first is held."""

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=address, timeout=PATIENT) as client:
            model.go.clear()
            first = asyncio.create_task(client.post("/predict", json={"texts": "first"}))
            await asyncio.to_thread(model.busy.wait, PATIENT)
            rest = [asyncio.create_task(client.post("/predict", json={"texts": text})) for text in texts]
            await asyncio.to_thread(wait_for, model, address, texts)
            model.go.set()
            return await asyncio.gather(first, *rest)

    return asyncio.run(ask())


def wait_for(model: ServedModel, address: str, texts: list[str]) -> None:
    """Until these texts are what waits for a batch."""
    until(lambda: metrics_of(address)["ade_waiting_tokens"] == sum(model.cost(Query(text)) for text in texts))
