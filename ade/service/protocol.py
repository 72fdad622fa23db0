"""Uvicorn's HTTP protocol with limits on requests, answers and connections, and a way to stop that loses no request.

No setting of uvicorn does this. None limits how long a request may take to arrive (`timeout_keep_alive` counts only
between requests) or an answer to be read, so a client that sends or reads a byte now and then would hold its connection
for ever. `limit_concurrency` refuses `/health`, too. At shutdown uvicorn closes idle connections at once, and with them
requests that are on their way. A proxy in front of the service can do some of this, but the service must not depend on
one.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ade.service.metrics import Metrics
from ade.service.middleware import OVERLOADED

MAX_HEAD_BYTES = 1 << 16  # of a request line and its headers
REQUEST_SECONDS = 30.0  # in which a whole request must arrive
ANSWER_SECONDS = 30.0  # in which an answer must be read
IDLE_SECONDS = 1.0  # after which an idle connection may be closed to make room for a new one
SPARE_CONNECTIONS = 64  # beyond the limit, for /health


@dataclass(eq=False)
class Connections:
    """What all connections of a server share: their limits, the metrics, and whether the server is stopping."""

    max_bytes: int  # of a whole request, as sent
    max_connections: int
    metrics: Metrics
    is_stopping: bool = False
    spare: "dict[LimitedProtocol, None]" = field(default_factory=dict)  # beyond the limit, oldest first


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, shared: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.app: ASGIApp
        self.shared = shared
        self.received = 0  # bytes since the last response
        self.in_request = False  # between the first and the last byte of one
        self.idle_since = self.loop.time()
        self.deadline: asyncio.TimerHandle | None = None  # of a request
        self.answer_deadline: asyncio.TimerHandle | None = None
        self.closed_at_last: Any = None  # while stopping: the request whose answer says `connection: close`

    # -- connections -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected: its first request has to arrive in time."""
        super().connection_made(transport)
        self.shared.metrics.connections.inc()
        self._start_deadline()
        if len(self.connections) - len(self.shared.spare) > self.shared.max_connections and not self._close_idle():
            self._make_spare()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed."""
        self.shared.metrics.connections.dec()
        self.shared.spare.pop(self, None)
        self._cancel_deadline()
        if self.answer_deadline is not None:
            self.answer_deadline.cancel()
        super().connection_lost(error)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being read or answered."""
        return not self.in_request and (self.cycle is None or self.cycle.response_complete)

    def _close_idle(self) -> bool:
        """Close the connection that has been idle for longest, where there is one, to make room for this one."""
        latest = self.loop.time() - IDLE_SECONDS
        idle = [each for each in self.connections if each.is_idle and each.idle_since < latest and each is not self]
        if idle:
            min(idle, key=lambda each: each.idle_since).transport.close()
            self.shared.metrics.refuse("idle connection")
        return bool(idle)

    def _make_spare(self) -> None:
        """Answer nothing but /health on this connection; of too many such connections the oldest is closed."""
        spare, app = self.shared.spare, self.app
        if len(spare) >= SPARE_CONNECTIONS:
            oldest = next(iter(spare))
            del spare[oldest]
            oldest.transport.abort()
        spare[self] = None
        self.shared.metrics.refuse("too many connections")

        async def overloaded(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, OVERLOADED: True}, receive, send)

        self.app = overloaded

    # -- requests ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Count what has arrived of a request, and refuse what is too much."""
        self.received += len(data)
        super().data_received(data)
        in_body = self.cycle is not None and self.cycle.more_body
        is_complete = not in_body and self.cycle is not None and not self.cycle.response_complete

        if is_complete:
            self._cancel_deadline()
        elif not self.transport.is_closing():
            self._start_deadline()
            if self.received > (self.shared.max_bytes if in_body else MAX_HEAD_BYTES):
                self._refuse("400 Bad Request", "the request, or its head, is too large", "too large")

    def on_message_begin(self) -> None:
        """The first byte of a request has arrived."""
        self.in_request = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """The last byte of a request has arrived."""
        self.in_request = False
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """A request begins; on a spare connection, or while the server stops, its answer is the last."""
        before = self.closed_at_last
        super().on_headers_complete()
        if before is not None and not before.response_started and before is not self.cycle:
            before.keep_alive = True  # another request came before the answer: that one's is the last
            self.closed_at_last = None
        if self.shared.is_stopping or self in self.shared.spare:
            self._close_after_answer()

    def _close_after_answer(self) -> None:
        if self.cycle.keep_alive:
            self.cycle.keep_alive = False
            self.closed_at_last = self.cycle

    def on_response_complete(self) -> None:
        """The next request may begin; what is not sent yet has to be read in time."""
        self.received = 0
        self.idle_since = self.loop.time()
        if self.answer_deadline is not None:
            self.answer_deadline.cancel()
            self.answer_deadline = None
        if self.transport.get_write_buffer_size():
            self.answer_deadline = self.loop.call_later(ANSWER_SECONDS, self._on_answer_deadline)
        super().on_response_complete()

    def _on_answer_deadline(self) -> None:
        if self.transport.get_write_buffer_size():
            self.shared.metrics.refuse("slow reader")
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP."""
        self._refuse("400 Bad Request", msg, "malformed")

    def _start_deadline(self) -> None:
        if self.deadline is None:
            self.deadline = self.loop.call_later(REQUEST_SECONDS, self._on_deadline)

    def _cancel_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _on_deadline(self) -> None:
        if self.received:
            detail = f"the request did not arrive within {REQUEST_SECONDS:.0f} seconds"
            self._refuse("408 Request Timeout", detail, "slow sender")
        else:
            self.transport.close()

    def _refuse(self, status: str, detail: str, reason: str) -> None:
        """Answer with an error, unless another answer has begun, and close the connection."""
        self.shared.metrics.refuse(reason)
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps({"detail": detail}).encode()
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(f"HTTP/1.1 {status}\r\n{head}".encode() + body)
        self.transport.close()

    # -- stopping ----------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """The server is stopping: the answer to the request under way, or to the next one, is the last."""
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.response_started:
            self._close_after_answer()

    def close_if_idle(self, seconds: float) -> None:
        """Close the connection if no request has come for so many seconds."""
        if self.is_idle and self.loop.time() - self.idle_since >= seconds:
            self.transport.close()
