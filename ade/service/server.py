"""Uvicorn on a bound socket, with a stop that loses no request.

Uvicorn's own stop closes idle connections at once, and with them requests that are on their way; connections that the
system has made but uvicorn has not accepted are reset.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from ade.errors import InputError

KEEP_ALIVE_SECONDS = 75  # longer than proxies keep idle connections
LAST_SECONDS = 1.0  # after the grace period: for the request of a connection that was made at its end
SHUTDOWN_SECONDS = 20.0  # after that: for requests under way
POLL_SECONDS = 0.02
BACKLOG = 2048  # connections that the system keeps until they are accepted


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at an address, port 0 for any free one; who connects waits until the server accepts."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise InputError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None


def url_of(bound: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Uvicorn's server for an application of `create_app`; calls `on_ready` once it listens.

    From the first signal to stop, every answer closes its connection, and for `grace` seconds new connections and
    requests are still accepted; for none where nobody has asked for as long. Then it stops to listen, answers what
    comes on open connections, and closes idle ones. A second signal ends the grace period, a third ends everything.
    """

    def __init__(self, app: FastAPI, on_ready: Callable[[], None], grace: float) -> None:
        self._state, self._on_ready, self._grace = app.state, on_ready, grace
        self._signals = 0
        config = uvicorn.Config(
            app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, timeout_keep_alive=KEEP_ALIVE_SECONDS, backlog=BACKLOG,
            headers=[("x-content-type-options", "nosniff")],
        )  # fmt: skip
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal to stop."""
        self._signals += 1
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop without losing a request."""
        connections, tasks = self.server_state.connections, self.server_state.tasks
        self._state.is_stopping = True
        await self._until(lambda: self._signals > 1 or self._is_idle(), self._grace)

        await self._stop_listening(sockets or [])
        await self._until(lambda: not connections, LAST_SECONDS)
        for connection in list(connections):
            connection.shutdown()  # closes it if it is idle
        if not await self._until(lambda: not (connections or tasks), SHUTDOWN_SECONDS):
            for task in tasks:  # they are answered with status 503
                task.cancel()
            await self._until(lambda: not tasks, LAST_SECONDS)
        for connection in list(connections):
            connection.transport.abort()

    def _is_idle(self) -> bool:
        """Whether no request is under way, and none was in the last `grace` seconds."""
        return not self.server_state.tasks and time.monotonic() - self._state.last_request > self._grace

    async def _until(self, happened: Callable[[], bool], seconds: float) -> bool:
        """Wait until something happens, for at most these seconds; return whether it has."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not happened():
            if loop.time() >= deadline or self._signals > 2:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def _stop_listening(self, sockets: list[socket.socket]) -> None:
        """Accept what the system has connected already, then close the sockets.

        Duplicates keep the sockets open while the event loop gives them up.
        """
        loop = asyncio.get_running_loop()
        listening = [each.dup() for each in sockets]
        for server in self.servers:
            server.close()
        for each in sockets:
            each.close()
        await asyncio.sleep(0)

        accepted: list[socket.socket] = []
        for each in listening:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # there is no other
                while True:
                    accepted.append(each.accept()[0])
            each.close()
        for connection in accepted:
            connection.setblocking(False)
            with contextlib.suppress(OSError):  # the client has left
                await loop.connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
