"""`ade serve` as a process: what it says, what it loads, how it ends."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import httpx
import psutil

from ade.service.server import bind_socket
from tests.conftest import PATIENT, until
from tests.service.conftest import got, posted, serving_verb


def test_torch_is_loaded_only_for_inspection(folder):
    program = (
        "import sys, threading, urllib.request\n"
        "from ade.cli import main as cli\nfrom ade.service import app as serving, run\n"
        "made = serving.create_app\n"
        "def create_app(*given):\n"
        "    app = made(*given)\n"
        "    app.routes.append(serving.Route('/loaded', loaded))\n"
        "    return app\n"
        "async def loaded(request):\n"
        "    return serving.Response('torch' if 'torch' in sys.modules else 'none')\n"
        "run.create_app = create_app\n"
        "cli.main()\n"
    )
    command = [sys.executable, "-c", program, "serve", str(folder), "--port", "0", "--json", "--timeout", str(PATIENT)]
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
    (tmp_path / "empty.txt").write_text("# no key\n")
    (tmp_path / "short.txt").write_text("# keys\n\nsesame\n")
    shutil.copytree(folder, tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for words, says in (
        ((tmp_path, "--port", "0"), "not a model folder"),
        ((tmp_path / "damaged", "--port", "0"), f"{tmp_path / 'damaged'}: not a readable ADE model"),
        ((tmp_path / "damaged", "--port", "0", "--workers", "2"), f"{tmp_path / 'damaged'}: not a readable ADE model"),
        ((folder, "--host", "nowhere.invalid"), "cannot listen at nowhere.invalid"),
        ((folder, "--port", "70000"), "65535"),
        ((folder, "--batch", "0"), "batch must be at least 1, not 0"),
        ((folder, "--timeout", "0"), "timeout must be above 0 and at most 3600, not 0"),
        ((folder, "--grace", "-1"), "grace must be between 0 and 3600, not -1"),
        ((folder, "--port", "0", "--api-key-file", tmp_path / "none.txt"), "none.txt: the keys cannot be read"),
        ((folder, "--port", "0", "--api-key-file", tmp_path / "empty.txt"), "empty.txt: has no key"),
        ((folder, "--port", "0", "--api-key-file", tmp_path / "short.txt"), "short.txt, line 3: a key has at least 16"),
    ):
        status, out, errors = ade("serve", *words)
        assert (status, out, errors.count("\n")) == (2, "", 1)
        assert says in errors


def test_requests_are_written_down_where_asked_for(folder):
    with serving_verb(folder, "--access-log", "--grace", "0") as (process, address):
        httpx.get(f"{address}/health", headers={"x-request-id": "mine-1"}, timeout=PATIENT)
        process.terminate()
        _, errors = process.communicate(timeout=PATIENT)
    assert re.search(r'127\.0\.0\.1:\d+ - "GET /health HTTP/1.1" 200 [\d.]+ms mine-1$', errors, re.MULTILINE)
    assert process.returncode == 0


def test_the_log_is_json_where_asked_for(folder):
    """Every line is an object, also where the path of a request looks like the end of a line."""
    with serving_verb(folder, "--access-log", "--log-format", "json", "--grace", "0") as (process, address):
        posted(address, "rocket")
        got(address, '/no%0Awhere"')
        process.terminate()
        _, errors = process.communicate(timeout=PATIENT)
    _, *lines = errors.splitlines()
    first, second = (json.loads(line) for line in lines)
    assert (first["method"], first["path"], first["status"], first["level"]) == ("POST", "/predict", 200, "info")
    assert re.fullmatch(r"[0-9a-f]{32}", first["request_id"])
    assert 0 < first["seconds"] < PATIENT
    assert (second["path"], second["status"]) == ("/no%0Awhere%22", 404)


def test_workers_share_the_socket_and_the_metrics_and_are_replaced(folder, tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text("0123456789abcdef\n")
    headers = {"authorization": "Bearer 0123456789abcdef"}

    def get(path: str) -> httpx.Response:
        return httpx.get(address + path, headers=headers, timeout=PATIENT)

    words = ("--workers", "2", "--grace", "0.2", "--no-inspect", "--api-key-file", keys)
    with serving_verb(folder, *words) as (process, address):
        workers = children_of(process.pid)
        assert len(workers) == 2
        for _ in range(20):
            answer = httpx.post(f"{address}/predict", json={"texts": "a"}, headers=headers, timeout=PATIENT)
            assert answer.status_code == 200
        seen = get("/metrics").text  # of both, whoever says it
        assert 'ade_requests_total{path="/predict",status="200"} 20.0' in seen
        assert httpx.post(f"{address}/reload", headers=headers, timeout=PATIENT).status_code == 200
        until(lambda: sum(reloads(get("/metrics").text)) >= 3)  # the one that was asked, and then both
        assert children_of(process.pid) == workers

        os.kill(workers[0], signal.SIGKILL)
        until(lambda: len(now := children_of(process.pid)) == 2 and workers[0] not in now)
        assert get("/health").status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENT) == 0
        assert children_of(process.pid) == []


def reloads(metrics: str) -> list[float]:
    return [float(value) for value in re.findall(r'ade_reloads_total{result="success"} (\S+)', metrics)]


def children_of(pid: int) -> list[int]:
    """The workers of a supervisor."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie
                found += [each.pid] if "spawn_main" in " ".join(each.cmdline()) else []
    return sorted(found)


def test_workers_end_with_their_supervisor(folder):
    with serving_verb(folder, "--workers", "2", "--grace", "0") as (process, _):
        workers = children_of(process.pid)
        process.kill()
        process.wait(PATIENT)
        until(lambda: not any(map(is_running, workers)))


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # nobody may have waited for it
    except psutil.NoSuchProcess:
        return False
