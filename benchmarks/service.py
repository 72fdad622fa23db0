"""Load on `ade serve`: requests a second and how long they take, with requests answered together and one at a time.

The service is a process of its own; this one is the client, on the same machine over loopback, so both share its cores.
Every client keeps one connection and asks again as soon as it has its answer, one text a request. The client does next
to nothing: requests are bytes made beforehand, of an answer only the status and the length are read.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ade.classifier import Classifier
from ade.model import AdeForSequenceClassification
from ade.progress import Report
from ade.settings import Architecture
from benchmarks.accuracy import Places, codebook_for, load_rows
from benchmarks.records import Run

TEXTS = 2000  # different texts asked about
REPEATS = 3
MOST = 30_000  # requests of one repeat, whatever the time
WARM = 0.3  # of a repeat's time, before it counts
TOGETHER, SINGLY = "together", "one at a time"


def run_service(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures of every number of clients, both ways; how well the model is trained does not matter."""
    settings = run.settings
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        texts, about = made_model(settings, places, Path(folder) / "model", report)
        for done, (way, batch) in enumerate(((TOGETHER, settings["batch"]), (SINGLY, 1))):
            report("load", done, 2, {})
            flags = ("--batch", str(batch), "--wait-ms", str(settings["wait_ms"]))
            with served(Path(folder) / "model", *flags) as address:
                _warm(address, texts)
                figures[way] = {
                    str(clients): _median(address, texts, clients, settings["seconds"])
                    for clients in settings["clients"]
                }
    report("load", 2, 2, {})
    return figures, {"data": about}


def made_model(settings: Mapping[str, Any], places: Places, out: Path, report: Report) -> tuple[list[str], Any]:
    """Write an untrained model; the texts to ask about, and what is known of the data."""
    rows, test, about = load_rows(places, {"data": settings["data"], "rows": 0})
    codebook = codebook_for(places, settings["teacher"], dict(settings["distillation"]), report)
    shape = Architecture(attend=settings["attend"])
    model = AdeForSequenceClassification.from_codebook(codebook, rows.names, shape)
    Classifier(model, codebook.tokenizer).save(out)
    return [test.texts[i] for i in range(min(TEXTS, len(test)))], about


@contextmanager
def served(model: Path, *flags: str) -> Iterator[str]:
    """The service as a user starts it; its address, once it is ready."""
    command = [sys.executable, "-m", "ade", "serve", str(model), "--port", "0", "--json", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise RuntimeError(f"the service did not start: {process.stderr.read() if process.stderr else ''}")
            yield json.loads(line)["address"]
        finally:
            process.terminate()
            process.wait(30)


def _warm(address: str, texts: Sequence[str]) -> None:
    """Every text once, so that the rows of its tokens are there."""
    for start in range(0, len(texts), 100):
        body = json.dumps({"texts": texts[start : start + 100]}).encode()
        request = urllib.request.Request(f"{address}/predict", body, {"content-type": "application/json"})
        urllib.request.urlopen(request).read()


def _median(address: str, texts: Sequence[str], clients: int, seconds: float) -> dict[str, Any]:
    """The repeat with the middle rate."""
    found = []
    for repeat in range(REPEATS):
        before = _batches(address)
        figures = asyncio.run(_load(address, texts[repeat:], clients, seconds))
        requests, batches = (after - earlier for after, earlier in zip(_batches(address), before, strict=True))
        found.append({**figures, "batch": requests / max(1, batches)})
    found.sort(key=lambda each: each["requests_per_second"])
    return found[len(found) // 2]


def _batches(address: str) -> tuple[float, float]:
    """Requests so far, and the batches they were answered in, as the service counts them."""
    lines = urllib.request.urlopen(f"{address}/metrics").read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return float(values["ade_batch_requests_sum"]), float(values["ade_batch_requests_count"])


async def _load(address: str, texts: Sequence[str], clients: int, seconds: float) -> dict[str, Any]:
    """Requests a second and milliseconds a request, from so many clients at once."""
    loop = asyncio.get_running_loop()
    host, port = address.removeprefix("http://").rsplit(":", 1)
    head = "POST /predict HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
    bodies = [json.dumps({"texts": text}).encode() for text in texts]
    requests = itertools.cycle([head.format(host, len(body)).encode() + body for body in bodies])
    asking = Asking(requests, time.perf_counter() + (1 + WARM) * seconds)
    callers = [(await loop.create_connection(lambda: Caller(asking), host, int(port)))[1] for _ in range(clients)]
    await asyncio.gather(*(caller.done for caller in callers))
    ended = np.array(asking.ended)
    taken = np.array(asking.taken)[ended > ended[0] + WARM * seconds]
    counted = ended[ended > ended[0] + WARM * seconds]
    if asking.failed or len(counted) < 2:
        raise RuntimeError(f"{asking.failed} of {len(ended)} requests failed")
    return {
        "requests": len(counted),
        "requests_per_second": (len(counted) - 1) / float(counted[-1] - counted[0]),
        "mean_ms": 1000 * float(taken.mean()),
        **{f"p{share}_ms": 1000 * float(np.percentile(taken, share)) for share in (50, 99)},
    }


class Asking:
    """What all clients share: the requests, until when, and what came of them."""

    def __init__(self, requests: Iterator[bytes], until: float) -> None:
        self.requests, self.until = requests, until
        self.taken: list[float] = []
        self.ended: list[float] = []
        self.failed = 0


class Caller(asyncio.Protocol):
    """One client: asks, waits for the answer, asks again."""

    def __init__(self, asking: Asking) -> None:
        self.asking, self.said = asking, b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._ask()

    def _ask(self) -> None:
        self.began = time.perf_counter()
        self.transport.write(next(self.asking.requests))

    def data_received(self, data: bytes) -> None:
        self.said += data
        head = self.said.find(b"\r\n\r\n")
        if head < 0:
            return
        length = self.said.index(b"content-length: ") + 16
        if len(self.said) < head + 4 + int(self.said[length : self.said.index(b"\r", length)]):
            return
        now, asking = time.perf_counter(), self.asking
        asking.taken.append(now - self.began)
        asking.ended.append(now)
        asking.failed += not self.said.startswith(b"HTTP/1.1 200")
        self.said = b""
        if now < asking.until and len(asking.ended) < MOST:
            self._ask()
        else:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.asking.failed += error is not None
        self.done.set_result(None)
