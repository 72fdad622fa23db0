"""A one-word request on `ade serve` while greedy clients send the largest requests that are allowed.

The greedy clients are a process of their own (`greedy.py`), half of them with as many texts as a request may have, half
with the longest texts.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from ade.progress import Report
from ade.settings import ServiceSettings
from benchmarks.accuracy import Places
from benchmarks.greedy import read_answer, request_of
from benchmarks.records import Run
from benchmarks.service import made_model, served

PAUSE = 0.02  # seconds between two words
WARM = 2.0  # seconds before the first
ROOT = Path(__file__).parent.parent


def run_fairness(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Milliseconds of a one-word request, alone and among greedy clients."""
    settings = run.settings
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        texts, about = made_model(settings, places, Path(folder) / "model", report)
        for done, clients in enumerate(settings["greedy"]):
            report("fairness", done, len(settings["greedy"]), {})
            with served(Path(folder) / "model") as address, greedy(address, texts, clients):
                time.sleep(WARM)
                figures[str(clients)] = asyncio.run(words(address, settings["seconds"]))
    report("fairness", len(settings["greedy"]), len(settings["greedy"]), {})
    return figures, {"data": about}


async def words(address: str, seconds: float) -> dict[str, Any]:
    """Ask about one word, again and again on one connection."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"texts": "bird"}).encode()
    request = request_of(host, body)
    taken, refused, end = [], 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        writer.write(request)
        status, _ = await read_answer(reader)
        taken.append(1000 * (time.perf_counter() - began))
        refused += status != 200
        await asyncio.sleep(PAUSE)
    writer.close()
    percentiles = {f"p{share}_ms": float(np.percentile(taken, share)) for share in (50, 99)}
    return {"requests": len(taken), "refused": refused, **percentiles, "longest_ms": max(taken)}


@contextmanager
def greedy(address: str, texts: Sequence[str], clients: int) -> Iterator[None]:
    """So many greedy clients, in a process of their own; they have begun to ask."""
    if not clients:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.greedy", address, str(clients)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(b"\n".join(largest(texts)))
            process.stdin.close()
            if not process.stdout.readline():
                raise RuntimeError("the greedy clients did not start")
            yield
        finally:
            process.kill()


def largest(texts: Sequence[str]) -> list[bytes]:
    """The bodies of two requests just within the limits: as many texts, and as long ones, as they allow."""
    limits, source = ServiceSettings(), cycle(texts)
    bodies = []
    for chars in (limits.max_bytes // limits.max_texts - 8, limits.max_chars):
        long: list[str] = []
        while len(long) < limits.max_texts and (len(long) + 1) * (chars + 4) < limits.max_bytes - 100:
            text = ""
            while len(text) < chars:
                text += " " + next(source).encode("ascii", "ignore").decode().replace('"', "").replace("\\", "")
            long.append(text[:chars])
        bodies.append(json.dumps({"texts": long}).encode())
    return bodies
