"""Stopping: every request that was sent is answered, however busy the machine is.

Clients stop when an answer says `connection: close`, as proxies and pools of connections do. The grace period is so
long that it never ends by itself in these tests: a second signal ends it once all clients know.
"""

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from ade.service import server as serving
from ade.service.app import create_app
from ade.service.model import ServedModel
from ade.service.server import Server, bind_socket
from ade.settings import ServiceSettings
from tests.conftest import PATIENT, until
from tests.service.conftest import HEAD, connected, got, predicted, rest_of, running, serving_verb

LONG = ServiceSettings(grace=PATIENT, timeout=PATIENT, max_requests=2000)
BODY = json.dumps({"texts": ["the rocket"] * 3}).encode()
ASK = HEAD % (len(BODY), b"") + BODY
STOPS, CLIENTS = 25, 16


async def answer_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of the next answer; raises where the connection ends before it is complete."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r")[0])
    return head, await reader.readexactly(length)


class Crowd:
    """Clients that ask again and again, on one connection each or on a new one each time, until told to go."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.answered, self.lost, self.told = 0, [], 0

    async def client(self, keeps: bool) -> None:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            while True:
                writer.write(ASK)
                await writer.drain()
                head, body = await answer_of(reader)
                assert head.startswith(b"HTTP/1.1 200"), head
                assert body.count(b'"label"') == 3
                self.answered += 1
                if b"connection: close" in head:
                    self.told += 1
                    return
                if not keeps:
                    writer.close()
                    reader, writer = await asyncio.open_connection(self.host, self.port)
        except (OSError, asyncio.IncompleteReadError, AssertionError) as error:
            self.lost.append(repr(error))
        finally:
            writer.close()

    async def run(self, stop: Callable[[], None]) -> None:
        asking = [asyncio.create_task(self.client(i % 4 != 0)) for i in range(CLIENTS)]
        while self.answered < 2 * CLIENTS and not self.lost:  # all of them are at work
            await asyncio.sleep(0)
        stop()
        await asyncio.gather(*asking)


@pytest.fixture(scope="module")
def model(folder):
    return ServedModel.load(folder, inspect=False)


def test_stops_under_load_lose_nothing(model):
    """Half the clients that a stop meets have a request on its way, a quarter of them on a connection just opened."""
    for _ in range(STOPS):
        ready = threading.Event()
        with bind_socket("127.0.0.1", 0) as bound:
            server = Server(create_app(model, LONG), ready.set, LONG.grace)
            thread = threading.Thread(target=server.run, args=([bound],))
            thread.start()
            assert ready.wait(PATIENT)
            crowd = Crowd(*bound.getsockname())
            asyncio.run(asyncio.wait_for(crowd.run(lambda s=server: s.handle_exit(signal.SIGTERM, None)), PATIENT))
            assert crowd.lost == []
            assert crowd.told == CLIENTS
            server.handle_exit(signal.SIGTERM, None)  # nobody is left: the grace period may end
            thread.join(PATIENT)
            assert not thread.is_alive()


class Reachable(Server):
    """A server that a test can reach, and hold just before it stops to listen."""

    def __init__(self, *given):
        super().__init__(*given)
        Reachable.made = self
        self.held, self.go = threading.Event(), threading.Event()
        self.go.set()

    async def _stop_listening(self, sockets):
        self.held.set()
        assert self.go.wait(PATIENT)
        await super()._stop_listening(sockets)

    def stop(self, signals: int = 1) -> None:
        for _ in range(signals):
            self.handle_exit(signal.SIGTERM, None)


def test_new_connections_are_taken_in_the_grace_period_and_none_after(model):
    with running(model, LONG, server=Reachable) as address:
        server = Reachable.made
        idle, silent = connected(address), connected(address)
        idle.sendall(ASK)
        assert b"connection: close" not in idle.recv(65536)
        server.stop()
        until(lambda: got(address, "/health").status_code == 503)
        assert predicted(address, "rocket").headers["connection"] == "close"
        for connection in (idle, silent):  # opened before the signal, and answered after it
            connection.sendall(ASK)
            said = rest_of(connection)
            assert said.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in said
            connection.close()
        server.stop()
        host, port = address.removeprefix("http://").split(":")
        until(lambda: not _is_open(host, int(port)))


def _is_open(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=PATIENT):
        return True
    return False


def test_connections_that_the_system_has_made_are_accepted_before_the_socket_is_closed(model):
    """A client that was connected by the system, but not accepted yet, would be reset; some of them send late."""
    with running(model, replace(LONG, grace=0), server=Reachable) as address:
        server = Reachable.made
        server.go.clear()
        server.stop()
        assert server.held.wait(PATIENT)
        waiting = [connected(address) for _ in range(20)]
        for connection in waiting[::2]:
            connection.sendall(ASK)
        server.go.set()
        for connection in waiting[1::2]:
            connection.sendall(ASK)
        for connection in waiting:
            with connection:
                assert rest_of(connection).startswith(b"HTTP/1.1 200")


def test_a_request_that_takes_too_long_is_told_so(watched, monkeypatch):
    monkeypatch.setattr(serving, "SHUTDOWN_SECONDS", 0.2)
    with running(watched, LONG, server=Reachable) as address, connected(address) as connection:
        watched.go.clear()
        connection.sendall(ASK)
        assert watched.busy.wait(PATIENT)
        Reachable.made.stop(2)
        said = rest_of(connection)
        assert said.startswith(b"HTTP/1.1 503")
        assert b"the service is stopping" in said


def test_the_process_ends_well_with_requests_under_way(folder):
    body = json.dumps({"texts": ["the rocket"] * 50}).encode()
    with serving_verb(folder, "--set", "grace=600", "--allowed-host", "x") as (process, address):
        busy = [connected(address) for _ in range(30)]
        for connection in busy:
            connection.sendall(HEAD % (len(body), b"expect: 100-continue\r\n"))
        for connection in busy:
            assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"  # it is being read
        for i, connection in enumerate(busy):
            connection.sendall(body if i % 3 else body[:-5])
        process.send_signal(signal.SIGINT)
        until(lambda: got(address, "/health").status_code == 503)
        for connection in busy[::3]:
            connection.sendall(body[-5:])
        for connection in busy:
            with connection, connection.makefile("rb") as said:
                assert said.readline() == b"HTTP/1.1 200 OK\r\n"
                headers = http.client.parse_headers(said)
                assert said.read(int(headers["content-length"])).count(b'"label"') == 50
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=PATIENT)
    assert process.returncode == 0
    assert (out, errors) == ("", f"ade: {folder} is served at {address}\n")


def test_an_idle_service_has_no_grace_period(folder):
    """Nobody has asked for anything; a connection that says nothing may be open."""
    with serving_verb(folder, "--set", f"grace={10 * PATIENT}") as (process, address), connected(address) as idle:
        process.terminate()
        assert idle.recv(1) == b""
        assert process.wait(PATIENT) == 0


def test_the_grace_period_ends_by_itself(folder):
    """Idle clients do not keep it from ending."""
    with serving_verb(folder, "--set", "grace=0.1") as (process, address), connected(address) as idle:
        predicted(address, "rocket")
        process.terminate()
        assert idle.recv(1) == b""
        assert process.wait(PATIENT) == 0
