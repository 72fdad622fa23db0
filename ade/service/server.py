"""Uvicorn on a bound socket: a call when it is ready, a signal to load the model anew, a stop that loses no request."""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from ade.errors import InputError
from ade.service.logs import ACCESS
from ade.service.protocol import Connections, LimitedProtocol
from ade.settings import ServiceSettings

CHUNK_OVERHEAD = 8  # bytes on the wire for a byte of the body, where each is sent as a chunk of its own
DRAINED_BYTES = 1 << 24  # what may be read of a body that is too large, before and after it is refused
KEEP_ALIVE_SECONDS = 75  # longer than proxies keep idle connections
SHUTDOWN_SECONDS = 20  # after the grace period, in which running requests are still answered
POLL_SECONDS = 0.02
BACKLOG = 2048  # connections that the system keeps until they are accepted


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket bound to an address, port 0 for any free one; nobody can connect before `serve` listens on it."""
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise InputError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None
    return bound


def url_of(bound: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Uvicorn's server for an application of `create_app`; calls `on_ready` once it listens.

    From the first signal to stop, every answer closes its connection, and for the grace period new connections and
    requests are still taken. Then it stops to listen, answers what it has read, and closes idle connections. A second
    signal ends the grace period, a third SIGINT ends everything.
    """

    def __init__(self, app: Any, on_ready: Callable[[], None], settings: ServiceSettings = ServiceSettings()) -> None:
        max_bytes = CHUNK_OVERHEAD * settings.max_bytes + DRAINED_BYTES
        self.service, self._on_ready, self._grace = app.state.service, on_ready, settings.grace
        self.shared = Connections(max_bytes, settings.max_connections, self.service.metrics)
        self.should_exit: bool
        self.force_exit: bool
        self.is_hurried = self.is_closed = False  # by a second signal; whether it has stopped to listen
        config = uvicorn.Config(
            app,
            http=partial(LimitedProtocol, self.shared),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=logging.getLogger(ACCESS).isEnabledFor(logging.INFO),  # the client's address is for the log
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            backlog=BACKLOG,
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to stop."""
        self.force_exit = self.force_exit or (self.is_closed and sig == signal.SIGINT)
        self.is_hurried = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        if not self.started:
            return
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.service.reload_soon)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop without losing a request."""
        self.shared.is_stopping = self.service.is_stopping = True
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._until(lambda: self.is_hurried, self._grace)

        self.is_closed = True
        await self._stop_listening(sockets or [])
        if not await self._until(self._is_done, SHUTDOWN_SECONDS):
            for task in self.server_state.tasks:  # they are answered with status 503
                task.cancel()
            await self._until(lambda: not self.server_state.tasks, 1.0)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def _is_done(self) -> bool:
        """Whether all connections are closed; those that have been idle for the grace period are closed now."""
        for connection in list(self.server_state.connections):
            connection.close_if_idle(0.0 if self.is_hurried else self._grace)
        return self.force_exit or not (self.server_state.connections or self.server_state.tasks)

    async def _until(self, happened: Callable[[], bool], seconds: float) -> bool:
        """Wait for something, at most so many seconds; whether it has happened."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not happened():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def _stop_listening(self, sockets: list[socket.socket]) -> None:
        """Accept what the system has connected already, then close the sockets: nobody is turned away after connecting.

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
            with contextlib.suppress(OSError):  # BlockingIOError: there is no other
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


def serve(app: Any, bound: socket.socket, on_ready: Callable[[], None], settings: ServiceSettings) -> None:
    """Serve an application of `create_app` until SIGINT or SIGTERM; then stop without losing a request."""
    Server(app, on_ready, settings).run([bound])
