"""What is around every request: who may ask, how many at once, metrics, the last answers of a stop, failures.

What an unexpected exception says goes to the log, not to the client.
"""

import asyncio
import base64
import binascii
import hmac
import ipaddress
import logging
import re
import time
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ade.data.streams import reading_errors
from ade.errors import InputError

HEALTH = "/health"  # answered without a key, and however many requests there are
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
KEY = re.compile(r"[\x21-\x7e]{16,}")
CHALLENGE = {"www-authenticate": 'Bearer, Basic realm="ade", charset="UTF-8"'}
CLOSE = (b"connection", b"close")
RETRY = {"retry-after": "1"}
CLIENT_CLOSED_REQUEST = 499  # nginx's status; counted in the metrics, never sent
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
TEXTS = [2**i for i in range(11)]
log = logging.getLogger("ade.service")


class Metrics:
    """Prometheus metrics of one application, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        about = "Requests answered, by path and status, and how long each took."
        self.requests = Histogram("ade_request_seconds", about, ["path", "status"], registry=registry, buckets=SECONDS)
        self.active = Gauge("ade_active_requests", "Requests being read or answered.", registry=registry)
        self.waiting = Gauge("ade_waiting_tokens", "Tokens that wait, as estimated.", registry=registry)
        self.batches = Histogram("ade_batch_texts", "Texts of a batch.", registry=registry, buckets=TEXTS)


class RequestMiddleware:
    """Counts requests, refuses those that may not be answered, and answers for failures.

    While the service stops, every answer says `connection: close`; uvicorn then closes the connection after it.
    """

    def __init__(
        self, app: ASGIApp, max_requests: int, keys: Collection[str], hosts: Collection[str], metrics: Metrics
    ) -> None:
        self.app, self._max_requests, self._metrics = app, max_requests, metrics
        self._keys, self._hosts = keys, hosts
        self._active = 0
        metrics.active.set_function(lambda: self._active)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        began, status, state = time.perf_counter(), 0, scope["app"].state  # status 0 until the answer has started

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if state.is_stopping:
                    message["headers"] = [*message["headers"], CLOSE]
            await send(message)

        self._active += 1
        try:
            await (self._refusal(scope) or self.app)(scope, receive, send_counted)
        except ClientDisconnect:
            status = status or CLIENT_CLOSED_REQUEST
        except (Exception, asyncio.CancelledError) as error:
            if not status:
                await _failure(error)(scope, receive, send_counted)
        finally:
            self._active -= 1
            state.last_request = time.monotonic()
            path = scope["route"].path if "route" in scope else "other"
            self._metrics.requests.labels(path, status).observe(time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        """Return the answer to a request for another host, without a key, or beyond `max_requests` at once."""
        headers, is_health = Headers(scope=scope), scope["path"] == HEALTH
        if self._active > self._max_requests and not is_health:
            return JSONResponse({"detail": "too many requests at once; try again"}, 503, RETRY)
        if self._hosts and host_name(headers.get("host", "")) not in self._hosts:
            detail = "the service does not answer for this host; allow it with --allowed-host"
            return JSONResponse({"detail": detail}, 400)
        if self._keys and not is_health and not has_key(self._keys, headers):
            return JSONResponse({"detail": "an API key is needed"}, 401, CHALLENGE)
        return None


def _failure(error: BaseException) -> JSONResponse:
    """The answer to a failure of the service itself, which is logged, or to the end of a graceful shutdown."""
    if isinstance(error, asyncio.CancelledError):
        return JSONResponse({"detail": "the service is stopping"}, 503, RETRY)
    log.error("a request failed", exc_info=error)
    return JSONResponse({"detail": "the service failed on this request; its log says why"}, 500)


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys of a file, one a line; empty lines and lines that begin with # are skipped."""
    with reading_errors(path, "keys"):
        lines = path.read_text("utf8").splitlines()

    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys or not all(map(KEY.fullmatch, keys)):
        raise InputError(f"{path}: give at least one key, each a line of 16 or more ASCII characters without spaces")
    return keys


def hosts_of(bound: str, allowed: Collection[str]) -> tuple[str, ...]:
    """The names a request may give as its host: on a loopback address those of loopback, and those allowed.

    This refuses a page of another site that has made its own name point to 127.0.0.1 (DNS rebinding).
    """
    if not allowed and not ipaddress.ip_address(bound).is_loopback:
        return ()
    return (*LOOPBACK_HOSTS, *(host.lower().strip("[]") for host in allowed))


def host_name(header: str) -> str:
    """The name in a Host header, without its port and the brackets of an IPv6 address."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:  # a bracket without the other
        return ""


def has_key(keys: Collection[str], headers: Headers) -> bool:
    """Whether a request has one of the keys: as bearer token, as X-API-Key, or as the password a browser asks for."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    given = headers.get("x-api-key", "")
    if scheme.lower() == "bearer":
        given = value.strip()
    elif scheme.lower() == "basic":
        try:
            given = base64.b64decode(value, validate=True).decode("utf8").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    matches = [hmac.compare_digest(given.encode(), key.encode()) for key in keys]
    return any(matches)  # of all: it takes the same time for each
