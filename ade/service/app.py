"""The HTTP application of one model, with FastAPI: predictions, vectors, explanations, inspection, health, metrics.

One event loop reads and answers requests; texts go through `batcher.py` to a thread in which the model predicts them.
`middleware.py` and `access.py` are around every request.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ValidationError
from starlette.middleware.cors import CORSMiddleware

from ade import __version__
from ade.errors import InputError
from ade.inspector.page import page
from ade.service import schema
from ade.service.access import Access, AccessMiddleware
from ade.service.batcher import Batcher, QueueFull
from ade.service.metrics import Metrics
from ade.service.middleware import RETRY, RequestMiddleware
from ade.service.model import BYTES_PER_TOKEN, Embed, Query, ServedModel
from ade.service.settings import ServiceSettings

JSON = "application/json"
SLOWER = 16  # times, about, an explanation takes what a prediction takes
QUEUE_FULL = "too many texts are waiting; try again"
TOO_LARGE = "the body has more than {:,} bytes"
CORS_HEADERS = ("authorization", "content-type", "x-api-key")
ERRORS = {
    400: "the service does not answer for this host, or the request is not HTTP",
    401: "an API key is needed",
    500: "the service failed; its log says why",
    503: "too many requests wait, or this one has for too long, or the service is stopping: try again",
}
BODY_ERRORS = {
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is not application/json",
    422: "the body is not of this form, or beyond the limits",
}


class Route(APIRoute):
    """A route whose endpoint takes the request itself: FastAPI looks for no dependencies, but describes it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The endpoint."""
        return self.endpoint


class Endpoints:
    """Answers of one model, and what they share: how a body is read, and how texts go to the model and come back."""

    def __init__(self, model: ServedModel, settings: ServiceSettings, metrics: Metrics) -> None:
        self._model, self._settings, self._metrics = model, settings, metrics
        self.bodies = schema.request_bodies(settings, model.dim, model.encoder is not None)
        self._predict_body, self._embed_body, self._text_body = self.bodies
        self._predict = Batcher(model.predict, model.cost, settings, metrics.batch)
        self._embed = Batcher(model.embed, model.cost, settings, metrics.batch)
        self._explain = Batcher(model.explain, self._slow_cost, settings)
        self._inspect = Batcher(model.inspect, self._slow_cost, settings)
        self._about: asyncio.Task[bytes] | None = None
        batchers = (self._predict, self._embed, self._explain, self._inspect)
        metrics.watch("ade_waiting_tokens", "Tokens that wait, as estimated.", lambda: sum(b.tokens for b in batchers))

    async def predict(self, request: Request) -> Response:
        """Predict the label of a text, or of each of a list of texts, with their probabilities."""
        body = await self._read(request, self._predict_body, self._predict)
        queries = [Query(text, body.top_k) for text in _list(body.texts)]
        predictions = await self._answer(request, self._predict, queries)
        return Response(b'{"predictions":[' + b",".join(predictions) + b"]}", media_type=JSON)

    async def embeddings(self, request: Request) -> Response:
        """Return the vector of a text, or of each of a list of texts, as in OpenAI's API."""
        body = await self._read(request, self._embed_body, self._embed)
        dim = body.dimensions or self._model.dim
        items = [Embed(text, body.encoding_format, dim) for text in _list(body.input)]
        return Response(self._model.embeddings(await self._answer(request, self._embed, items)), media_type=JSON)

    async def explain(self, request: Request) -> Response:
        """Return what every word and n-gram of a text adds to the score of every label."""
        body = await self._read(request, self._text_body, self._explain)
        (explanation,) = await self._answer(request, self._explain, [Query(body.text)])
        return Response(explanation, media_type=JSON)

    async def inspect(self, request: Request) -> Response:
        """Return the anchors, the pooling weight and the attention of each token of a text, and the explanation."""
        body = await self._read(request, self._text_body, self._inspect)
        (reading,) = await self._answer(request, self._inspect, [Query(body.text)])
        return Response(reading, media_type=JSON)

    async def about(self, request: Request) -> Response:
        """Return the anchors of the model, each with its nearest words and its place on a map."""
        return Response(await asyncio.shield(self._making_about()), media_type=JSON)

    def _making_about(self) -> asyncio.Task[bytes]:
        self._about = self._about or asyncio.create_task(asyncio.to_thread(self._model.about))
        return self._about

    async def page(self, request: Request) -> Response:
        """Return the inspector's page, which will ask about the model."""
        self._making_about()
        return Response(page(), media_type="text/html")

    async def model(self, request: Request) -> Response:
        """Return what is served, and within which limits."""
        return JSONResponse({**self._model.info(), "limits": asdict(self._settings)})

    async def health(self, request: Request) -> Response:
        """Return whether the service is ready or stopping."""
        status = "stopping" if request.app.state.is_stopping else "ready"
        return JSONResponse({"status": status, "version": __version__})

    async def ready(self, request: Request) -> Response:
        """Say whether requests should be sent here: status 503 once the service is stopping."""
        if request.app.state.is_stopping:
            raise HTTPException(503, "the service is stopping", RETRY)
        return await self.health(request)

    async def metrics(self, request: Request) -> Response:
        """Return requests, latencies and batches in Prometheus' text format."""
        return Response(self._metrics.render(), media_type=CONTENT_TYPE_LATEST)

    def _slow_cost(self, query: Query) -> int:
        """The cost of an explanation or an inspection."""
        return SLOWER * self._model.cost(query)

    async def _read(self, request: Request, body: Any, batcher: Batcher) -> Any:
        """The checked body of a request; a large one for which the queue has no room is refused unread."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise HTTPException(415, f"the body must be sent as {JSON}")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise HTTPException(415, "the body must be sent without a content-encoding")
        most, seconds = self._settings.max_bytes, self._settings.timeout
        announced = int(request.headers.get("content-length", "0"))
        if announced > most:
            raise HTTPException(413, TOO_LARGE.format(most))
        tokens = announced // BYTES_PER_TOKEN
        if tokens > self._settings.batch_tokens and not batcher.has_room(tokens):
            raise HTTPException(503, QUEUE_FULL, RETRY)

        content = bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    content += chunk
                    if len(content) > most:
                        raise HTTPException(413, TOO_LARGE.format(most))
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {seconds:g} seconds") from None
        try:
            return body.model_validate_json(content)
        except ValidationError as error:
            raise HTTPException(422, schema.problem_of(error)) from None

    async def _answer(self, request: Request, batcher: Batcher, items: Sequence[Any]) -> Any:
        """What the model makes of each item; status 503 where the queue is full or the answer comes too late."""
        seconds = self._settings.timeout
        try:
            async with asyncio.timeout(seconds):
                return await batcher(items, request.client, request.is_disconnected)
        except QueueFull:
            raise HTTPException(503, QUEUE_FULL, RETRY) from None
        except TimeoutError:
            raise HTTPException(503, f"not answered within {seconds:g} seconds; try again", RETRY) from None


def create_app(model: ServedModel, settings: ServiceSettings = ServiceSettings(), access: Access = Access()) -> FastAPI:
    """The application that serves a model."""
    metrics = Metrics()
    app = FastAPI(title="ade", version=__version__, redoc_url=None, redirect_slashes=False, responses=_errors(ERRORS))
    app.state.is_stopping = False
    app.add_exception_handler(InputError, lambda _, error: JSONResponse({"detail": str(error)}, 422))
    if access.keys or access.hosts:
        app.add_middleware(AccessMiddleware, access=access)
    if access.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=access.origins, allow_methods=("GET", "POST"), allow_headers=CORS_HEADERS
        )
    app.add_middleware(RequestMiddleware, max_requests=settings.max_requests, metrics=metrics)

    app.router.route_class = Route
    _add_routes(app, Endpoints(model, settings, metrics), model)
    metrics.paths = {route.path for route in app.routes if isinstance(route, APIRoute)}
    return app


def _add_routes(app: FastAPI, answers: Endpoints, model: ServedModel) -> None:
    """Add the routes for what the model can do, and those about the service."""

    def post(path: str, endpoint: Callable[..., Any], body: type[BaseModel], answer: Any) -> None:
        content = {JSON: {"schema": body.model_json_schema()}}
        extra = {"requestBody": {"required": True, "content": content}}
        app.post(path, response_model=answer, responses=_errors(BODY_ERRORS), openapi_extra=extra)(endpoint)

    predict_body, embed_body, text_body = answers.bodies
    if model.encoder is None:
        post("/predict", answers.predict, predict_body, schema.Predictions)
    if model.dim:
        post("/v1/embeddings", answers.embeddings, embed_body, schema.Embeddings)
    if model.classifier is not None:
        post("/explain", answers.explain, text_body, schema.Explanation)
    if model.inspector is not None:
        post("/inspect", answers.inspect, text_body, dict[str, Any])
        app.get("/about", response_model=dict[str, Any])(answers.about)
        app.get("/", include_in_schema=False)(answers.page)
    app.get("/model", response_model=schema.Model)(answers.model)
    app.get("/health", response_model=schema.Health)(answers.health)
    app.get("/health/ready", response_model=schema.Health)(answers.ready)
    app.get("/metrics", response_class=PlainTextResponse)(answers.metrics)


def _errors(descriptions: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    return {status: {"description": text, "model": schema.Error} for status, text in descriptions.items()}


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
