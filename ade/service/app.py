"""The HTTP application: predictions, inspection, health and Prometheus metrics of one model, as a Starlette app.

One event loop reads and answers requests. Predictions run in one thread, for all queued requests together
(`batcher.py`); inspections run in another. `middleware.py` is around every request, `schema.py` describes the routes.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ade import __version__
from ade.errors import InputError
from ade.inspector.page import page as inspector_page
from ade.predictor import Predictor
from ade.service.batcher import Batcher, QueueFull
from ade.service.middleware import Metrics, RequestMiddleware, error_response
from ade.service.responses import JsonPredictor, parse_texts
from ade.service.schema import content_security_policy, openapi, reference_page
from ade.settings import ServiceSettings

if TYPE_CHECKING:
    from ade.inspector.reading import Inspector

PATHS = ("/", "/about", "/docs", "/health", "/inspect", "/metrics", "/openapi.json", "/predict")
MAX_INSPECTIONS = 8  # requests that may wait for an inspection


def create_app(
    predictor: Predictor,
    settings: ServiceSettings = ServiceSettings(),
    make_inspector: "Callable[[], Inspector] | None" = None,
) -> Starlette:
    """The application that serves a model; `make_inspector` is called on the first request for an inspection."""
    metrics = Metrics(PATHS)
    predict_json = JsonPredictor(predictor)
    batcher = Batcher(predict_json, settings.batch, settings.queue, settings.wait_ms / 1000, metrics.batch)
    metrics.queued_texts.set_function(lambda: batcher.queued)
    inspections = InspectionWorker(make_inspector)
    model = {"problem": predictor.problem, "labels": list(predictor.names), "max_tokens": predictor.max_tokens}
    health = {"status": "ready", "version": __version__, "model": model, "limits": asdict(settings)}
    description = openapi(__version__, settings)

    async def predict(request: Request) -> Response:
        texts = await read_texts(request, settings.max_texts, settings.max_chars)
        try:
            predictions = await batcher(texts, request.is_disconnected)
        except QueueFull:
            raise HTTPException(503, "too many texts are waiting; try again", {"retry-after": "1"}) from None
        return _json(b'{"predictions":[' + b",".join(predictions) + b"]}")

    async def inspect(request: Request) -> Response:
        texts = await read_texts(request, settings.inspect_texts, settings.inspect_chars)
        return _json(await inspections.read(texts))

    async def about(request: Request) -> Response:
        return _json(await inspections.about())

    routes = [
        Route("/predict", predict, methods=["POST"]),
        Route("/inspect", inspect, methods=["POST"]),
        Route("/about", about),
        Route("/health", _endpoint(lambda: JSONResponse(health))),
        Route("/metrics", _endpoint(lambda: Response(metrics.render(), media_type=CONTENT_TYPE_LATEST))),
        Route("/openapi.json", _endpoint(lambda: JSONResponse(description))),
        Route("/docs", _endpoint(lambda: _html(reference_page(description)))),
        Route("/", _endpoint(lambda: _html(inspector_page()))),
    ]
    middleware = [Middleware(RequestMiddleware, max_bytes=settings.max_bytes, metrics=metrics)]
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: error_response})
    app.router.redirect_slashes = False
    return app


def _endpoint(respond: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint whose response does not depend on the request; a coroutine, for which Starlette starts no thread."""

    async def endpoint(request: Request) -> Response:
        return respond()

    return endpoint


def _html(text: str) -> Response:
    return Response(text, media_type="text/html", headers={"content-security-policy": content_security_policy(text)})


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def read_texts(request: Request, max_texts: int, max_chars: int) -> list[str]:
    """The texts of a request's body; anything else than asked for is status 415 or 422."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the body must be sent as application/json")
    try:
        return parse_texts(await request.body(), max_texts, max_chars)
    except InputError as error:
        raise HTTPException(422, str(error)) from None


class InspectionWorker:
    """Runs inspections one at a time in a thread of its own; the inspector is made, and torch loaded, by the first."""

    def __init__(self, make_inspector: "Callable[[], Inspector] | None") -> None:
        self._make_inspector = make_inspector
        self._inspector: Inspector | None = None
        self._about = b""
        self._thread = ThreadPoolExecutor(1, "ade-inspect")
        self._waiting = 0

    async def read(self, texts: list[str]) -> bytes:
        """`Inspector.read` of each text, as JSON."""
        return await self._run(self._read_json, texts)

    async def about(self) -> bytes:
        """`Inspector.about`, as JSON."""
        return self._about or await self._run(self._about_json)

    async def _run(self, work: Callable[..., bytes], *arguments: Any) -> bytes:
        """Run `work` in the thread; status 409 where the service has no inspector, 503 where too many requests wait."""
        if self._make_inspector is None:
            raise HTTPException(409, "this service only predicts")
        if self._waiting >= MAX_INSPECTIONS:
            raise HTTPException(503, "too many inspections are waiting; try again", {"retry-after": "2"})
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        finally:
            self._waiting -= 1

    def _loaded(self) -> "Inspector":
        """The inspector; status 409 where the model cannot be loaded for it."""
        assert self._make_inspector is not None
        try:
            self._inspector = self._inspector or self._make_inspector()
        except InputError as error:
            raise HTTPException(409, str(error)) from None
        return self._inspector

    def _about_json(self) -> bytes:
        self._about = json.dumps(self._loaded().about(), allow_nan=False).encode()
        return self._about

    def _read_json(self, texts: list[str]) -> bytes:
        inspector = self._loaded()
        try:
            return json.dumps({"readings": [inspector.read(text) for text in texts]}, allow_nan=False).encode()
        except InputError as error:
            raise HTTPException(422, str(error)) from None
