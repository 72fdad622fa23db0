"""Uvicorn on a bound socket: limits on slow and oversized requests, a call when it is ready, graceful shutdown."""

import asyncio
import json
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn

from ade.errors import InputError

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as HttpProtocol
except ImportError:
    from uvicorn.protocols.http.h11_impl import H11Protocol as HttpProtocol

MAX_HEAD_BYTES = 1 << 16  # of a request line and its headers
CHUNK_OVERHEAD = 8  # bytes on the wire for a byte of the body, where each is sent as a chunk of its own
DRAINED_BYTES = 1 << 24  # what may be read of a body that is too large, before and after it is refused
REQUEST_SECONDS = 30.0  # in which a whole request must arrive
KEEP_ALIVE_SECONDS = 75  # longer than proxies keep idle connections
SHUTDOWN_SECONDS = 20  # in which running requests are still answered


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


class LimitedProtocol(HttpProtocol):
    """Uvicorn's HTTP protocol with limits on a request's time and size, and its own errors as JSON.

    No setting of uvicorn does this. None limits how long a request may take to arrive (`timeout_keep_alive` counts
    only between requests), so a client that sends a byte now and then would hold its connection for ever. The head has
    a limit with h11 alone (`h11_max_incomplete_event_size`), which is slower than httptools. A proxy in front of the
    service can do both, but the service must not depend on one.
    """

    def __init__(self, max_bytes: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.max_bytes = max_bytes  # of a whole request, as sent
        self.received = 0  # bytes since the last response
        self.deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected: its first request has to arrive in time."""
        super().connection_made(transport)
        self._start_deadline()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed."""
        self._cancel_deadline()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Count what has arrived of a request, and refuse what is too much."""
        super().data_received(data)
        self.received += len(data)
        in_body = self.cycle is not None and self.cycle.more_body
        is_complete = not in_body and self.cycle is not None and not self.cycle.response_complete

        if is_complete:
            self._cancel_deadline()
        elif not self.transport.is_closing():
            self._start_deadline()
            if self.received > (self.max_bytes if in_body else MAX_HEAD_BYTES):
                self._refuse("400 Bad Request", "the request, or its head, is too large")

    def on_response_complete(self) -> None:
        """The next request may begin."""
        self.received = 0
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP."""
        self._refuse("400 Bad Request", msg)

    def _start_deadline(self) -> None:
        if self.deadline is None:
            self.deadline = self.loop.call_later(REQUEST_SECONDS, self._on_deadline)

    def _cancel_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _on_deadline(self) -> None:
        if self.received:
            self._refuse("408 Request Timeout", f"the request did not arrive within {REQUEST_SECONDS:.0f} seconds")
        else:
            self.transport.close()

    def _refuse(self, status: str, detail: str) -> None:
        """Answer with an error, unless another answer has begun, and close the connection."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps({"detail": detail}).encode()
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(f"HTTP/1.1 {status}\r\n{head}".encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Uvicorn's server with the settings of this service; calls `on_ready` once it listens."""

    def __init__(self, app: Any, on_ready: Callable[[], None], max_bytes: int, access_log: bool = False) -> None:
        config = uvicorn.Config(
            app,
            http=partial(LimitedProtocol, CHUNK_OVERHEAD * max_bytes + DRAINED_BYTES),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="info" if access_log else "error",
            access_log=access_log,
            proxy_headers=access_log,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()


def serve(
    app: Any, bound: socket.socket, on_ready: Callable[[], None], max_bytes: int, access_log: bool = False
) -> None:
    """Serve an ASGI application, with bodies of up to `max_bytes`, until SIGINT or SIGTERM; then shut down gracefully.

    Requests under way at the signal are still answered.
    """
    server = Server(app, on_ready, max_bytes, access_log)
    signals = (signal.SIGINT, signal.SIGTERM)

    # Uvicorn raises the signal again after its shutdown; with its own handler in place that is a normal return.
    previous = {number: signal.signal(number, server.handle_exit) for number in signals}
    try:
        server.run([bound])
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
