"""The HTTP application: predictions, inspection, health and Prometheus metrics of one model, as a Starlette app.

One event loop reads and answers requests. Predictions run in one thread, for all queued requests together
(`batcher.py`); explanations and inspections run in others (`inspections.py`). `middleware.py` is around every request,
`schema.py` describes the routes.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

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
from ade.service.inspections import InspectionWorker, Worker
from ade.service.middleware import Metrics, RequestMiddleware, error_response
from ade.service.responses import JsonPredictor, parse_texts
from ade.service.schema import content_security_policy, openapi, reference_page
from ade.settings import ServiceSettings

if TYPE_CHECKING:
    from ade.inspector.reading import Inspector

PATHS = ("/", "/about", "/docs", "/explain", "/health", "/inspect", "/metrics", "/openapi.json", "/predict")


def create_app(
    predictor: Predictor,
    settings: ServiceSettings = ServiceSettings(),
    make_inspector: "Callable[[], Inspector] | None" = None,
) -> Starlette:
    """The application that serves a model; `make_inspector` is called when the page or an inspection is asked for."""
    metrics = Metrics(PATHS)
    predict_json = JsonPredictor(predictor)
    batcher = Batcher(predict_json, settings.batch, settings.queue, settings.wait_ms / 1000, metrics.batch)
    metrics.queued_texts.set_function(lambda: batcher.queued)
    inspections = InspectionWorker(make_inspector)
    explanations = Worker("ade-explain")
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

    def explain_json(texts: list[str]) -> bytes:
        found = [explanation.as_dict() for explanation in predictor.explain(texts)]
        return json.dumps({"explanations": found}, allow_nan=False).encode()

    async def explain(request: Request) -> Response:
        texts = await read_texts(request, settings.inspect_texts, settings.inspect_chars)
        return _json(await explanations.run(request, explain_json, texts))

    async def inspect(request: Request) -> Response:
        texts = await read_texts(request, settings.inspect_texts, settings.inspect_chars)
        return _json(await inspections.read(request, texts))

    async def about(request: Request) -> Response:
        return _json(await inspections.about(request))

    async def show_page(request: Request) -> Response:
        inspections.load_ahead()  # while the browser reads the page
        return _html(inspector_page())

    routes = [
        Route("/predict", predict, methods=["POST"]),
        Route("/explain", explain, methods=["POST"]),
        Route("/inspect", inspect, methods=["POST"]),
        Route("/about", about),
        Route("/health", _endpoint(lambda: JSONResponse(health))),
        Route("/metrics", _endpoint(lambda: Response(metrics.render(), media_type=CONTENT_TYPE_LATEST))),
        Route("/openapi.json", _endpoint(lambda: JSONResponse(description))),
        Route("/docs", _endpoint(lambda: _html(reference_page(description)))),
        Route("/", show_page),
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
