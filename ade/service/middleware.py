"""What every request passes on its way in and out: a limit on its body, counts and times, strict headers, plain errors.

The ASGI layer around the service. Whatever goes wrong inside, the answer is `{"detail": ...}` and no more; the trace
goes to the log.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ade.service.batcher import Left

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

DRAINED = 8 << 20  # bytes of a body too large that are still read, so that its sender comes to reading the answer
DRAINING = 2.0  # seconds that may take
POLICY = b"content-security-policy"
CLOSED = b"default-src 'none'; frame-ancestors 'none'"  # of answers that are no page
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
LEFT = 499  # counted, never sent: the client was gone
log = logging.getLogger("ade.service")


class Refused(Exception):
    """An answer other than 200: its status and what it says."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]


class Metrics:
    """Figures for Prometheus, in a registry of their own."""

    def __init__(self, paths: Iterable[str]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counts = Counter("ade_requests", "Requests answered.", ["path", "status"], registry=self.registry)
        buckets = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
        times = Histogram(
            "ade_request_seconds", "From the head of a request to the end of its answer.", ["path"], buckets=buckets,
            registry=self.registry,
        )  # fmt: skip
        self._paths, self._counts, self._times = {*paths}, counts, times
        self._known: dict[tuple[str, int], tuple[Any, Any]] = {}  # looking a label up takes longer than counting
        sizes = [2**i for i in range(11)]
        self.texts = Counter("ade_texts", "Texts predicted.", registry=self.registry)
        self.batch = Histogram("ade_batch_texts", "Texts of a batch.", buckets=sizes, registry=self.registry)
        self.gathered = Histogram("ade_batch_requests", "Requests of a batch.", buckets=sizes, registry=self.registry)
        self.waiting = Gauge("ade_waiting_texts", "Texts that wait for a batch.", registry=self.registry)

    def request(self, path: str, status: int, seconds: float) -> None:
        """One request answered."""
        path = path if path in self._paths else "other"
        if (path, status) not in self._known:
            self._known[path, status] = self._counts.labels(path, status), self._times.labels(path)
        count, times = self._known[path, status]
        count.inc()
        times.observe(seconds)

    def batched(self, requests: int, texts: int) -> None:
        """One batch begun."""
        self.texts.inc(texts)
        self.batch.observe(texts)
        self.gathered.observe(requests)

    def page(self) -> tuple[bytes, str]:
        """All figures, and the content type they are written in."""
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class Gate:
    """ASGI middleware; `most` is the limit of a body in bytes."""

    def __init__(self, app: Application, most: int, metrics: Metrics) -> None:
        self.app, self._most, self._metrics = app, most, metrics

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Let one request through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = message["headers"]
                message["headers"] = [*own, *HEADERS]
                if all(name != POLICY for name, _ in own):
                    message["headers"].append((POLICY, CLOSED))
            await send(message)

        try:
            await self.app(scope, _Body(scope, receive, self._most).read, answer)
        except Left:
            status = status or LEFT
        except (Exception, asyncio.CancelledError) as error:
            refused = _refusal(error)
            if not status:
                await _plain(answer, refused)
        self._metrics.request(scope["path"], status, time.perf_counter() - began)


def _refusal(error: BaseException) -> Refused:
    """What is said of an error; what went wrong in the service itself is only written down."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, asyncio.CancelledError):  # the server stops, and has waited long enough
        return Refused(503, "the service is stopping", connection="close")
    log.error("a request failed", exc_info=error)
    return Refused(500, "the service failed on this request; its log says why")


class _Body:
    """A request's body as it arrives; too much of it, and it is refused."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, most: int) -> None:
        self._headers, self._receive, self._most = scope["headers"], receive, most
        self._count, self._whole = 0, False

    async def read(self) -> Message:
        """The next message."""
        if self._whole:
            return await self._receive()
        if not self._count:
            announced = int(next((value for name, value in self._headers if name == b"content-length"), b"0"))
            if announced > self._most:
                asked_first = any(name == b"expect" for name, _ in self._headers)
                await self._too_large(announced <= DRAINED and not asked_first)
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Left
        self._count += len(message.setdefault("body", b""))
        self._whole = not message.setdefault("more_body", False)
        if self._count > self._most:
            await self._too_large(not self._whole)
        return message

    async def _too_large(self, drain: bool) -> None:
        """Refuse, after reading on for a while: a sender that is cut off would never see why."""
        try:
            async with asyncio.timeout(DRAINING):
                while drain and self._count <= DRAINED:
                    message = await self._receive()
                    self._count += len(message.get("body", b""))
                    drain = message.get("more_body", False)
        except TimeoutError:
            pass
        raise Refused(413, f"the body has more than {self._most:,} bytes", connection="close")


async def _plain(send: Send, refused: Refused) -> None:
    """An error as JSON."""
    body = json.dumps({"detail": refused.detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *refused.headers]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
