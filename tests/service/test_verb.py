"""`ade serve` as a process: what it says, what it loads, how it ends."""

import json
import re
import shutil
import signal
import subprocess
import sys

import pytest

from ade.data.problems import TAGGER
from ade.service.server import bind_socket
from tests.conftest import PATIENT
from tests.service.conftest import (
    HEAD,
    connected,
    got,
    posted,
    serving_verb,
)


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
