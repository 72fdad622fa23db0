"""The HTTP application of one model, with FastAPI: predictions, vectors, explanations, inspection, health, metrics.

One event loop reads and answers requests; texts go through `batcher.py` to the model.
`middleware.py` is around every request.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from pydantic_core import to_json

from ade import __version__
from ade.errors import InputError
from ade.inspector.page import page
from ade.service import schema
from ade.service.batcher import Batcher, QueueFull
from ade.service.middleware import RETRY, Metrics, RequestMiddleware
from ade.service.model import ServedModel
from ade.settings import ServiceSettings

JSON = "application/json"
ERRORS = (400, 401, 500, 503)  # of every route: another host, no key, a failure, too many requests or too late
BODY_ERRORS = (413, 415, 422)


class Route(APIRoute):
    """A route whose endpoint takes the request itself: FastAPI looks for no dependencies, but describes it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The endpoint."""
        return self.endpoint


def create_app(
    model: ServedModel,
    settings: ServiceSettings = ServiceSettings(),
    keys: Sequence[str] = (),
    hosts: Sequence[str] = (),
) -> FastAPI:
    """The application that serves a model: open to all without `keys`, under any name without `hosts`."""
    app = FastAPI(title="ade", version=__version__, redoc_url=None, redirect_slashes=False, responses=_errors(ERRORS))
    app.state.is_stopping = False
    app.state.last_request = float("-inf")  # when the last one was answered, by the monotonic clock
    app.add_exception_handler(InputError, lambda _, error: JSONResponse({"detail": str(error)}, 422))
    app.router.route_class = Route
    endpoints = Endpoints(model, settings)
    endpoints.add_to(app)

    limit, metrics = settings.max_requests, endpoints.metrics
    app.add_middleware(RequestMiddleware, max_requests=limit, keys=keys, hosts=hosts, metrics=metrics)
    return app


class Endpoints:
    """Answers of one model, and what they share: how a body is read, and how texts go to the model and come back."""

    def __init__(self, model: ServedModel, settings: ServiceSettings) -> None:
        self.metrics = Metrics()
        self._model, self._settings = model, settings
        self._predict_body, self._embed_body, self._text_body = schema.request_bodies(settings, model.dim)
        self._about: asyncio.Task[dict[str, Any]] | None = None
        work = (model.predict, model.embed, model.explain, model.inspect)
        batchers = [Batcher(each, model.cost, settings, self.metrics.batches.observe) for each in work]
        self._predict, self._embed, self._explain, self._inspect = batchers
        self.metrics.waiting.set_function(lambda: sum(batcher.tokens for batcher in batchers))

    def add_to(self, app: FastAPI) -> None:
        """Add the routes for what the model can do, and those about the service."""

        def post(path: str, endpoint: Callable[..., Any], body: type[schema.Body], answer: Any) -> None:
            content = {JSON: {"schema": body.model_json_schema()}}
            extra = {"requestBody": {"required": True, "content": content}}
            app.post(path, response_model=answer, responses=_errors(BODY_ERRORS), openapi_extra=extra)(endpoint)

        if self._model.encoder is not None:
            post("/v1/embeddings", self.embeddings, self._embed_body, schema.Embeddings)
        else:
            post("/predict", self.predict, self._predict_body, schema.Predictions)
        if self._model.classifier is not None:
            post("/explain", self.explain, self._text_body, dict[str, Any])
        if self._model.inspector is not None:
            post("/inspect", self.inspect, self._text_body, dict[str, Any])
            app.get("/about", response_model=dict[str, Any])(self.about)
            app.get("/", include_in_schema=False)(self.page)
        app.get("/model", response_model=dict[str, Any])(self.model)
        app.get("/health", response_model=dict[str, str])(self.health)
        app.get("/metrics", response_class=PlainTextResponse)(self.prometheus)

    async def predict(self, request: Request) -> Response:
        """Predict the label of a text, or of each of a list of texts, with their probabilities."""
        predictions = await self._results(request, self._predict_body, self._predict)
        return _json({"predictions": predictions})

    async def embeddings(self, request: Request) -> Response:
        """Return the vector of a text, or of each of a list of texts, as in OpenAI's API."""
        embedded = await self._results(request, self._embed_body, self._embed)
        data = [{"object": "embedding", "index": i, "embedding": vector} for i, (vector, _) in enumerate(embedded)]
        tokens = sum(tokens for _, tokens in embedded)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json({"object": "list", "data": data, "model": self._model.name, "usage": usage})

    async def explain(self, request: Request) -> Response:
        """Return what every word and n-gram of a text adds to the score of every label."""
        (explanation,) = await self._results(request, self._text_body, self._explain)
        return _json(explanation)

    async def inspect(self, request: Request) -> Response:
        """Return the anchors, the pooling weight and the attention of each token of a text, and the explanation."""
        (reading,) = await self._results(request, self._text_body, self._inspect)
        return _json(reading)

    async def about(self, request: Request) -> Response:
        """Return the anchors of the model, each with its nearest words and its place on a map."""
        assert self._model.inspector is not None
        self._about = self._about or asyncio.create_task(asyncio.to_thread(self._model.inspector.about))
        return _json(await asyncio.shield(self._about))

    async def page(self, request: Request) -> Response:
        """Return the inspector's page."""
        return Response(page(), media_type="text/html")

    async def model(self, request: Request) -> Response:
        """Return what is served, and within which limits."""
        config = self._model.model.saved.config
        described = {"name": self._model.name, "kind": config.kind, "problem": config.problem, "labels": config.labels}
        sizes = {"max_tokens": config.max_tokens, "dim": self._model.dim or None}
        return _json({**described, **sizes, "limits": asdict(self._settings)})

    async def health(self, request: Request) -> Response:
        """Say whether requests should be sent here: status 503 once the service is stopping."""
        if request.app.state.is_stopping:
            raise HTTPException(503, "the service is stopping", RETRY)
        return _json({"status": "ready", "version": __version__})

    async def prometheus(self, request: Request) -> Response:
        """Return requests, latencies and batches in Prometheus' text format."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _results(self, request: Request, body: type[schema.Body], batcher: Batcher) -> list[Any]:
        """What the model makes of each text of a body; status 503 where the queue is full or it takes too long."""
        seconds = self._settings.timeout
        try:
            async with asyncio.timeout(seconds):
                content = await self._read(request)
                return await batcher(body.model_validate_json(content).queries(), request.client)
        except ValidationError as error:
            raise HTTPException(422, schema.problem_of(error)) from None
        except QueueFull:
            raise HTTPException(503, "too many texts are waiting; try again", RETRY) from None
        except TimeoutError:
            raise HTTPException(503, f"not answered within {seconds:g} seconds; try again", RETRY) from None

    async def _read(self, request: Request) -> bytearray:
        """The body of a request, up to the limit."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise HTTPException(415, f"the body must be sent as {JSON}")
        limit = self._settings.max_bytes
        too_large = HTTPException(413, f"the body has more than {limit:,} bytes")
        if int(request.headers.get("content-length", "0")) > limit:
            raise too_large

        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > limit:
                raise too_large
        return content


def _json(value: dict[str, Any]) -> Response:
    return Response(to_json(value, inf_nan_mode="null"), media_type=JSON)


def _errors(statuses: tuple[int, ...]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": schema.Error} for status in statuses}
