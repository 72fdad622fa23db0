"""Uvicorn on a socket: ready when it says so, strict with heads of requests, and with a good end.

Its fast reader takes a head of any size, and a request in any time; here both have a limit, and what cannot be read is
refused in JSON like everything else.
"""

import asyncio
import json
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from ade.errors import InputError

try:
    import uvicorn

    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Reader
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Reader
except ImportError as missing:
    raise InputError(f"the service needs its extra: pip install 'ade-embeddings[serve]' ({missing})") from None

HEAD = 1 << 16  # bytes of a request's head
OVERHEAD, SPARE = 8, 1 << 24  # what chunks of a byte each add to a body, and what is read of one that is too large
SLOWEST = 30.0  # seconds a request may take to arrive
KEPT = 75  # seconds an idle connection is kept: longer than proxies keep theirs
STOPPING = 20  # seconds in which requests under way are still answered


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address, port 0 for any that is free; nobody can connect before it is served."""
    found = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        if found is not None:
            found.close()
        raise InputError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None
    return found


def address_of(listening: socket.socket) -> str:
    """Where a bound socket is found."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Strict(Reader):
    """Uvicorn's reader of HTTP: a head has its limits, and all of a request `most` bytes."""

    def __init__(self, most: int, **given: Any) -> None:
        super().__init__(**given)
        self.most, self.taken = most, 0  # bytes since the last answer
        self.late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A request should follow soon."""
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing will follow."""
        self._arrived()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Some of a head or a body."""
        super().data_received(data)
        self.taken += len(data)
        in_body = self.cycle is not None and self.cycle.more_body
        if not in_body and self.cycle is not None and not self.cycle.response_complete:
            self._arrived()  # all of it
        elif not self.transport.is_closing():
            self._expect()
            if self.taken > (self.most if in_body else HEAD):
                self._refuse("400 Bad Request", "the request, or its head, is too large")

    def on_response_complete(self) -> None:
        """The next request may begin."""
        self.taken = 0
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What cannot be read is refused."""
        self._refuse("400 Bad Request", msg)

    def _expect(self) -> None:
        if self.late is None:
            self.late = self.loop.call_later(SLOWEST, self._slow)

    def _arrived(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None

    def _slow(self) -> None:
        if self.taken:
            self._refuse("408 Request Timeout", f"the request did not arrive within {SLOWEST:.0f} seconds")
        else:
            self.transport.close()

    def _refuse(self, status: str, detail: str) -> None:
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps({"detail": detail}).encode()
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(f"HTTP/1.1 {status}\r\n{head}".encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Uvicorn, saying when it is ready."""

    def __init__(self, app: Any, ready: Callable[[], None], max_bytes: int, access_log: bool = False) -> None:
        config = uvicorn.Config(
            app,
            http=partial(Strict, OVERHEAD * max_bytes + SPARE),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="info" if access_log else "error",
            access_log=access_log,
            proxy_headers=access_log,
            server_header=False,
            timeout_keep_alive=KEPT,
            timeout_graceful_shutdown=STOPPING,
        )
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def serve(
    app: Any, listening: socket.socket, ready: Callable[[], None], max_bytes: int, access_log: bool = False
) -> None:
    """Answer until a signal says stop; requests under way are answered first. Bodies have up to `max_bytes`."""
    server = Server(app, ready, max_bytes, access_log)
    stops = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, server.handle_exit) for number in stops}
    try:  # uvicorn raises a signal again once it has stopped for it: for us that was the end of a good run
        server.run([listening])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
