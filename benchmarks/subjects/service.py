"""Load on `ade serve`, and on peers behind FastAPI: requests a second and how long they take.

Each service is one process of its own, one after the other in one run; this process is the client, on the same machine
over loopback, so both share its cores. Every client keeps one connection and asks again as soon as it has its answer,
one text a request. The client does next to nothing: requests are bytes made beforehand, of an answer only the status
and the length are read.
"""

import asyncio
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ade.progress import Report
from benchmarks import library
from benchmarks.records import ROOT, Places, Run
from benchmarks.subjects.peers import TITLES, Predict, train
from benchmarks.tables import Figure, Table, digits, parts

CLIENTS, SECONDS = (1, 8, 64), 3.0
OURS, PEERS = "ade serve", ("fasttext", "model2vec")
TEXTS, REPEATS, MAX_REQUESTS = 2000, 3, 30_000
WARM_UP = 0.3  # of a repeat's time, before it counts


def service() -> Table:
    """Requests of one text to services of one process, from clients on the same machine that ask again at once."""
    figures = [
        Figure("requests/s", "requests_per_second", digits(0)),
        Figure("p50", "p50_ms", digits(1, " ms")),
        Figure("p99", "p99_ms", digits(1, " ms")),
    ]
    names = (OURS, *map(peer_name, PEERS))
    paths = {f"{name}, {clients}": f"{name}.{clients}" for name in names for clients in CLIENTS}
    return parts("service, clients", Run("service", {"data": "ag_news"}), paths, figures)


def peer_name(peer: str) -> str:
    """What a peer's service is called in the table."""
    return f"FastAPI + {TITLES[peer]}"


TABLES = (service,)


def run_service(settings: Mapping[str, Any], places: Places, report: Report) -> dict[str, Any]:
    """Figures of every number of clients, of `ade train` as it is and of each peer behind FastAPI."""
    rows, dev, test = library.load_rows(places, {"data": settings["data"]})
    texts = list(test.texts)[:TEXTS]
    folders = (str(places.data_dir), str(places.models_dir))
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work:
        library.fit(places, {"seed": 0}, rows, dev, Path(work) / "model", report)
        commands: dict[str, Sequence[str]] = {OURS: ade_serve(Path(work) / "model")}
        for peer in settings.get("peers", PEERS):
            program = ("-m", "benchmarks.subjects.service")
            commands[peer_name(peer)] = (*program, peer, settings["data"], *folders)
        for name, words in commands.items():
            with served(words) as address:
                load(address, texts, 8, 0.2)  # the rows of the tokens are cached
                figures[name] = {
                    str(clients): median_load(address, texts, clients, settings.get("seconds", SECONDS))
                    for clients in settings.get("clients", CLIENTS)
                }
    return figures


def ade_serve(model: Path) -> tuple[str, ...]:
    """The words after `python` that serve a model on any free port."""
    return ("-m", "ade", "serve", str(model), "--port", "0", "--json")


@contextmanager
def served(words: Sequence[str], tree: Path = ROOT) -> Iterator[str]:
    """A service in a process of its own; its address, once it is ready."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, *words], cwd=tree, text=True, **pipes) as process:  # imports from there
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise RuntimeError(f"the service did not start: {process.stderr.read() if process.stderr else ''}")
            yield json.loads(line)["address"]
        finally:
            process.terminate()
            process.wait(30)


def median_load(address: str, texts: Sequence[str], clients: int, seconds: float) -> dict[str, Any]:
    """The repeat with the middle rate."""
    repeats = [load(address, texts[repeat:], clients, seconds) for repeat in range(REPEATS)]
    return sorted(repeats, key=lambda each: each["requests_per_second"])[REPEATS // 2]


def load(address: str, texts: Sequence[str], clients: int, seconds: float) -> dict[str, Any]:
    """Requests a second and milliseconds a request, from so many clients at once."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    head = "POST /predict HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
    bodies = [json.dumps({"texts": text}).encode() for text in texts]
    requests = itertools.cycle([head.format(host, len(body)).encode() + body for body in bodies])
    ended: list[tuple[float, float]] = []  # when, after how long
    until = time.perf_counter() + (1 + WARM_UP) * seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        while time.perf_counter() < until and len(ended) < MAX_REQUESTS:
            began = time.perf_counter()
            writer.write(next(requests))
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"a request failed: {answer[:80]!r}")
            length = answer.lower().partition(b"content-length: ")[2]
            await reader.readexactly(int(length[: length.index(b"\r")]))
            now = time.perf_counter()
            ended.append((now, now - began))
        writer.close()

    async def all_clients() -> None:
        await asyncio.gather(*(client() for _ in range(clients)))

    asyncio.run(all_clients())
    first = ended[0][0]
    counted = [(when, taken) for when, taken in ended if when > first + WARM_UP * seconds]
    if len(counted) < 2:
        raise RuntimeError("too few requests were answered")
    milliseconds = 1000 * np.array([taken for _, taken in counted])
    return {
        "requests": len(counted),
        "requests_per_second": (len(counted) - 1) / (counted[-1][0] - counted[0][0]),
        "mean_ms": float(milliseconds.mean()),
        **{f"p{share}_ms": float(np.percentile(milliseconds, share)) for share in (50, 99)},
    }


# -- a peer behind FastAPI, as one would write it --------------------------------------------------------------------


def app_of(predict: Predict, names: Sequence[str]) -> Any:
    """The application of a model that gives class numbers."""
    from fastapi import Body, FastAPI

    app = FastAPI()

    @app.post("/predict")  # a coroutine: these models answer sooner than a thread is asked
    async def answer(texts: Annotated[str | list[str], Body(embed=True)]) -> dict[str, Any]:
        predicted = predict([texts] if isinstance(texts, str) else texts)
        return {"predictions": [{"label": names[number]} for number in predicted]}

    return app


def serve_peer(peer: str, data: str, data_dir: str, models_dir: str) -> None:
    """Train a peer with the first of each setting, and serve it on any free port, which is printed."""
    import uvicorn

    places = Places(Path(data_dir), Path(models_dir), Path(), "cpu")
    rows, _, _ = library.load_rows(places, {"data": data})
    app = app_of(train(peer, rows, places, 0, tune=False).predict, rows.names)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        print(json.dumps({"address": f"http://127.0.0.1:{bound.getsockname()[1]}"}), flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run([bound])


KINDS = {"service": run_service}

if __name__ == "__main__":
    serve_peer(*sys.argv[1:])
