"""ASGI middleware around every request: its id, limit of the body's size, metrics, log, security headers, errors.

Every error is answered with `{"detail": ...}`. What an unexpected exception says goes to the log, not to the client.
"""

import asyncio
import logging
import re
import time
import uuid
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ade.service.access import HEALTH
from ade.service.batcher import ClientDisconnected
from ade.service.logs import ACCESS
from ade.service.metrics import Metrics

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
OVERLOADED = "ade.overloaded"  # in the scope of requests on connections beyond the limit
REQUEST_ID = b"x-request-id"
REQUEST_ID_FORM = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")  # of an id that a client gives; others are replaced
log = logging.getLogger("ade.service")
access_log = logging.getLogger(ACCESS)


async def error_response(_: Request, error: Exception) -> JSONResponse:
    """The exception handler for `HTTPException`: its status and headers, its detail as JSON."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


class RequestMiddleware:
    """Numbers requests, limits bodies to `max_bytes`, adds security headers, counts, logs and answers for failures."""

    def __init__(self, app: ASGIApp, max_bytes: int, metrics: Metrics) -> None:
        self.app, self._max_bytes, self._metrics = app, max_bytes, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0  # until the response has started
        request_id = _request_id(scope)

        async def send_secured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = message["headers"]
                message["headers"] = [*own, *SECURITY_HEADERS, (REQUEST_ID, request_id)]
                if all(name != CONTENT_SECURITY_POLICY for name, _ in own):
                    message["headers"].append((CONTENT_SECURITY_POLICY, DEFAULT_POLICY))
            await send(message)

        try:
            if OVERLOADED in scope and scope["path"] not in HEALTH:
                await _overloaded()(scope, receive, send_secured)
            else:
                await self.app(scope, LimitedBody(scope, receive, self._max_bytes).receive, send_secured)
        except (ClientDisconnect, ClientDisconnected):
            status = status or CLIENT_CLOSED_REQUEST
        except (Exception, asyncio.CancelledError) as error:
            response = _unexpected(error, request_id.decode())
            if not status:
                await response(scope, receive, send_secured)
        seconds = time.perf_counter() - began
        self._metrics.request(scope["path"], status, seconds)
        if access_log.isEnabledFor(logging.INFO):
            _log_request(scope, request_id.decode(), status, seconds)


def _request_id(scope: Scope) -> bytes:
    """The id that the client gave, where it is plain text of a sane length; a new one otherwise."""
    given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
    return given if REQUEST_ID_FORM.fullmatch(given) else uuid.uuid4().hex.encode()


def _log_request(scope: Scope, request_id: str, status: int, seconds: float) -> None:
    host, port = scope.get("client") or ("-", 0)
    method, path, version = scope["method"], quote(scope["path"]), scope["http_version"]
    line = f'{host}:{port} - "{method} {path} HTTP/{version}" {status} {1000 * seconds:.1f}ms {request_id}'
    fields = {
        "request_id": request_id, "client": host, "method": method, "path": path, "status": status,
        "seconds": round(seconds, 6),
    }  # fmt: skip
    access_log.info("%s", line, extra=fields)


def _overloaded() -> JSONResponse:
    headers = {"connection": "close", "retry-after": "1"}
    return JSONResponse({"detail": "too many connections; try again"}, 503, headers)


def _unexpected(error: BaseException, request_id: str) -> JSONResponse:
    """The response to a failure of the service itself, which is logged, or to its shutdown."""
    if isinstance(error, asyncio.CancelledError):  # the time for a graceful shutdown is over
        return JSONResponse({"detail": "the service is stopping"}, 503, {"connection": "close", "retry-after": "1"})
    log.error("request %s failed", request_id, exc_info=error, extra={"request_id": request_id})
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
