"""ASGI middleware around every request: how many there may be, metrics, the last answers of a stop, failures.

What an unexpected exception says goes to the log, not to the client.
"""

import asyncio
import logging
import time

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ade.service.access import HEALTH
from ade.service.metrics import Metrics

CLOSE = (b"connection", b"close")
RETRY = {"retry-after": "1"}
CLIENT_CLOSED_REQUEST = 499  # nginx's status; counted in the metrics, never sent
log = logging.getLogger("ade.service")


class RequestMiddleware:
    """Counts requests, refuses those beyond `max_requests` at once, and answers for failures.

    While the service stops, every answer says `connection: close`; uvicorn then closes the connection after it.
    """

    def __init__(self, app: ASGIApp, max_requests: int, metrics: Metrics) -> None:
        self.app, self._max_requests, self._metrics = app, max_requests, metrics
        self._active = 0
        metrics.watch("ade_active_requests", "Requests being read or answered.", lambda: self._active)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        began, status = time.perf_counter(), 0  # until the answer has started

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if scope["app"].state.is_stopping:
                    message["headers"] = [*message["headers"], CLOSE]
            await send(message)

        self._active += 1
        try:
            if self._active > self._max_requests and scope["path"] not in HEALTH:
                answer = JSONResponse({"detail": "too many requests at once; try again"}, 503, RETRY)
                await answer(scope, receive, send_counted)
            else:
                await self.app(scope, receive, send_counted)
        except ClientDisconnect:
            status = status or CLIENT_CLOSED_REQUEST
        except (Exception, asyncio.CancelledError) as error:
            if not status:
                await _failure(error)(scope, receive, send_counted)
        finally:
            self._active -= 1
            self._metrics.request(scope["path"], status, time.perf_counter() - began)


def _failure(error: BaseException) -> JSONResponse:
    """The answer to a failure of the service itself, which is logged, or to the end of a graceful shutdown."""
    if isinstance(error, asyncio.CancelledError):
        return JSONResponse({"detail": "the service is stopping"}, 503, RETRY)
    log.error("a request failed", exc_info=error)
    return JSONResponse({"detail": "the service failed on this request; its log says why"}, 500)
