"""ASGI middleware around every request: limit of the body's size, metrics, security headers, errors as JSON.

Every error is answered with `{"detail": ...}`. What an unexpected exception says goes to the log, not to the client.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ade.service.batcher import ClientDisconnected

DRAIN_BYTES = 8 << 20  # of a body that is too large: a client that is cut off while it sends never reads the answer
DRAIN_SECONDS = 2.0
CONTENT_SECURITY_POLICY = b"content-security-policy"
DEFAULT_POLICY = b"default-src 'none'; frame-ancestors 'none'"  # for responses that are not a page
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
CLIENT_CLOSED_REQUEST = 499  # nginx's status; counted in the metrics, never sent
LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZE_BUCKETS = [2**i for i in range(11)]
log = logging.getLogger("ade.service")


class Metrics:
    """Prometheus metrics of one application, in a registry of their own."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.registry = own = CollectorRegistry()
        ProcessCollector(registry=own)
        self._paths = {*paths}  # any other path is counted as "other"
        self._counts = Counter("ade_requests", "Requests answered.", ["path", "status"], registry=own)
        self._seconds = Histogram(
            "ade_request_seconds", "From the head of a request to the end of its answer.", ["path"],
            buckets=LATENCY_BUCKETS, registry=own,
        )  # fmt: skip
        self._children: dict[tuple[str, int], tuple[Any, Any]] = {}  # `labels()` takes longer than counting
        self.texts = Counter("ade_texts", "Texts predicted.", registry=own)
        self.batch_texts = Histogram("ade_batch_texts", "Texts of a batch.", buckets=SIZE_BUCKETS, registry=own)
        self.batch_requests = Histogram(
            "ade_batch_requests", "Requests of a batch.", buckets=SIZE_BUCKETS, registry=own
        )
        self.queued_texts = Gauge("ade_waiting_texts", "Texts that wait for a batch.", registry=own)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        path = path if path in self._paths else "other"
        if (path, status) not in self._children:
            self._children[path, status] = self._counts.labels(path, status), self._seconds.labels(path)
        count, latency = self._children[path, status]
        count.inc()
        latency.observe(seconds)

    def batch(self, requests: int, texts: int) -> None:
        """Count one batch."""
        self.texts.inc(texts)
        self.batch_texts.observe(texts)
        self.batch_requests.observe(requests)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


async def error_response(_: Request, error: Exception) -> JSONResponse:
    """The exception handler for `HTTPException`: its status and headers, its detail as JSON."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


class RequestMiddleware:
    """Limits bodies to `max_bytes`, adds security headers, counts requests, and answers for unexpected exceptions."""

    def __init__(self, app: ASGIApp, max_bytes: int, metrics: Metrics) -> None:
        self.app, self._max_bytes, self._metrics = app, max_bytes, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0  # until the response has started

        async def send_secured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = message["headers"]
                message["headers"] = [*own, *SECURITY_HEADERS]
                if all(name != CONTENT_SECURITY_POLICY for name, _ in own):
                    message["headers"].append((CONTENT_SECURITY_POLICY, DEFAULT_POLICY))
            await send(message)

        try:
            await self.app(scope, LimitedBody(scope, receive, self._max_bytes).receive, send_secured)
        except (ClientDisconnect, ClientDisconnected):
            status = status or CLIENT_CLOSED_REQUEST
        except (Exception, asyncio.CancelledError) as error:
            response = _unexpected(error)
            if not status:
                await response(scope, receive, send_secured)
        self._metrics.request(scope["path"], status, time.perf_counter() - began)


def _unexpected(error: BaseException) -> JSONResponse:
    """The response to a failure of the service itself, which is logged, or to its shutdown."""
    if isinstance(error, asyncio.CancelledError):  # the time for a graceful shutdown is over
        return JSONResponse({"detail": "the service is stopping"}, 503, {"connection": "close"})
    log.error("a request failed", exc_info=error)
    return JSONResponse({"detail": "the service failed on this request; its log says why"}, 500)


class LimitedBody:
    """The `receive` of a request, raising status 413 once the body has more than `max_bytes`."""

    def __init__(self, scope: Scope, receive: Receive, max_bytes: int) -> None:
        self._headers, self._receive, self._max_bytes = scope["headers"], receive, max_bytes
        self._count, self._complete = 0, False

    async def receive(self) -> Message:
        """The next message of the request."""
        if self._complete:
            return await self._receive()

        if not self._count:  # nothing is read yet: the announced length may be too much already
            announced = int(next((value for name, value in self._headers if name == b"content-length"), b"0"))
            if announced > self._max_bytes:
                waits_for_continue = any(name == b"expect" for name, _ in self._headers)
                await self._too_large(drain=announced <= DRAIN_BYTES and not waits_for_continue)

        message = await self._receive()
        self._count += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._count > self._max_bytes:
            await self._too_large(drain=not self._complete)
        return message

    async def _too_large(self, drain: bool) -> None:
        """Raise status 413, after reading on for a while where `drain`."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while drain and self._count <= DRAIN_BYTES:
                    message = await self._receive()
                    self._count += len(message.get("body", b""))
                    drain = message.get("more_body", False)
        except TimeoutError:
            pass
        raise HTTPException(413, f"the body has more than {self._max_bytes:,} bytes", {"connection": "close"})
