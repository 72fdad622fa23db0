"""The HTTP application: predictions, vectors, inspection, health and Prometheus metrics of one model, with Starlette.

One event loop reads and answers requests. Predictions run in one thread, for all queued requests together
(`batcher.py`); vectors, explanations and inspections run in others. `middleware.py` is around every request,
`schema.py` describes the routes, `state.py` holds the model.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ade import __version__
from ade.data.problems import REGRESSION
from ade.errors import InputError
from ade.inspector.page import page as inspector_page
from ade.service.access import Access, AccessMiddleware, has_key
from ade.service.batcher import Batcher, QueueFull
from ade.service.embeddings import embeddings_json, parse_embeddings
from ade.service.middleware import RequestMiddleware, error_response
from ade.service.model import ServedModel
from ade.service.responses import BYTES_PER_TOKEN, parse_query, parse_texts
from ade.service.schema import content_security_policy, openapi, reference_page
from ade.service.state import Service
from ade.settings import ServiceSettings

GZIP_BYTES = 1024  # of the smallest answer that is compressed
GZIP_LEVEL = 1
RETRY = {"retry-after": "1"}
NO_LABELS = "an encoder makes vectors and predicts nothing: use /v1/embeddings"


def create_app(
    model: ServedModel,
    settings: ServiceSettings = ServiceSettings(),
    access: Access = Access(),
    load: Callable[[], ServedModel] | None = None,
) -> Starlette:
    """The application that serves a model; `load` is called where it is to be loaded again."""
    service = Service(model, settings, load)
    routes = Routes(service, access)
    middleware = [
        Middleware(RequestMiddleware, max_bytes=settings.max_bytes, metrics=service.metrics),
        Middleware(GZipMiddleware, minimum_size=GZIP_BYTES, compresslevel=GZIP_LEVEL),
    ]
    if access.origins:
        headers = ("authorization", "x-api-key", "x-request-id")
        cors = {"allow_methods": ("GET", "POST"), "allow_headers": headers, "expose_headers": ("x-request-id",)}
        middleware.append(Middleware(CORSMiddleware, allow_origins=access.origins, **cors))
    middleware.append(Middleware(AccessMiddleware, access=access))
    app = Starlette(routes=routes.all(), middleware=middleware, exception_handlers={HTTPException: error_response})
    app.router.redirect_slashes = False
    app.state.service = service
    return app


class Routes:
    """The endpoints; each request is answered by the model that is served when it comes."""

    def __init__(self, service: Service, access: Access) -> None:
        self._service, self._settings, self._access = service, service.settings, access
        self._can_inspect = service.served.model.make_inspector is not None
        self._description = openapi(__version__, self._settings, self._can_inspect)

    def all(self) -> list[Route]:
        """All routes."""
        description, metrics = self._description, self._service.metrics
        routes = [
            Route("/predict", self.predict, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/explain", self.explain, methods=["POST"]),
            Route("/health", self.health),
            Route("/health/live", _endpoint(lambda: JSONResponse({"status": "live"}))),
            Route("/health/ready", self.ready),
            Route("/reload", self.reload, methods=["POST"]),
            Route("/metrics", _endpoint(lambda: Response(metrics.render(), media_type=CONTENT_TYPE_LATEST))),
            Route("/openapi.json", _endpoint(lambda: JSONResponse(description))),
            Route("/docs", _endpoint(lambda: _html(reference_page(description)))),
        ]
        if not self._can_inspect:
            return routes
        inspector = [Route("/inspect", self.inspect, methods=["POST"]), Route("/about", self.about)]
        return [*routes, *inspector, Route("/", self.page)]

    async def predict(self, request: Request) -> Response:
        """POST /predict."""
        served = self._service.served
        if served.model.is_encoder:
            raise HTTPException(409, NO_LABELS)
        parse = partial(parse_query, max_texts=self._settings.max_texts, max_chars=self._settings.max_chars)
        items = await self._read(request, parse, served.predict)
        if items[0][1] and (served.model.is_tagger or served.model.text_predictor().problem == REGRESSION):
            raise HTTPException(422, '"top_k" is for models that predict labels of texts')
        predictions = await self._batched(request, served.predict, items)
        return _json(b'{"predictions":[' + b",".join(predictions) + b"]}")

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        served, settings = self._service.served, self._settings
        if served.model.is_tagger:
            raise HTTPException(409, "a tagger has no vectors of texts")
        limits, model = (settings.max_texts, settings.max_chars), served.model
        parse = partial(parse_embeddings, limits=limits, dim=model.dim, truncatable=model.is_encoder)
        texts, wanted = await self._read(request, parse, served.embed)
        found = await self._batched(request, served.embed, [(text, wanted) for text in texts])
        return _json(embeddings_json(found, served.model.name))

    async def explain(self, request: Request) -> Response:
        """POST /explain."""
        served = self._service.served
        if served.model.is_tagger:
            raise HTTPException(409, "a tagger's predictions are not explained")
        if served.model.is_encoder:
            raise HTTPException(409, NO_LABELS)
        texts = await self._read_short(request)
        async with self._deadline():
            return _json(await served.explanations.run(request, _explain_json, served.model, texts))

    async def inspect(self, request: Request) -> Response:
        """POST /inspect."""
        served = self._service.served
        texts = await self._read_short(request)
        async with self._deadline():
            return _json(await served.inspections.read(request, texts))

    async def about(self, request: Request) -> Response:
        """GET /about."""
        async with self._deadline():
            return _json(await self._service.served.inspections.about(request))

    async def page(self, request: Request) -> Response:
        """GET /."""
        self._service.served.inspections.load_ahead()  # while the browser reads the page
        return _html(inspector_page())

    async def health(self, request: Request) -> Response:
        """GET /health."""
        return JSONResponse(self._service.health())

    async def ready(self, request: Request) -> Response:
        """GET /health/ready."""
        if self._service.is_stopping:
            raise HTTPException(503, "the service is stopping")
        return JSONResponse({"status": "ready"})

    async def reload(self, request: Request) -> Response:
        """POST /reload; a page of another site cannot send the header with the key."""
        if not has_key(self._access.keys, request.headers, basic=False):
            raise HTTPException(403, "a model is loaded again only for a key of --api-key-file, as a bearer token")
        try:
            await self._service.reload()
        except InputError as error:
            raise HTTPException(409, str(error)) from None
        if self._service.on_reload is not None:
            self._service.on_reload()
        return JSONResponse({"model": self._service.served.model.as_dict()})

    async def _read_short(self, request: Request) -> list[str]:
        """The texts of a request for explanations or inspections."""
        settings = self._settings
        return await self._read(
            request, partial(parse_texts, max_texts=settings.inspect_texts, max_chars=settings.inspect_chars)
        )

    async def _read(
        self, request: Request, parse: Callable[[bytes], Any], batcher: Batcher[Any, Any] | None = None
    ) -> Any:
        """What `parse` makes of a request's body; anything else than asked for is status 415 or 422.

        A large body for which the queue has no room is refused before it is parsed, which takes milliseconds.
        """
        content_type = request.headers.get("content-type", "")
        if content_type.partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "the body must be sent as application/json")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise HTTPException(415, "the body must be sent without a content-encoding")
        body = await request.body()
        tokens = len(body) // BYTES_PER_TOKEN
        if batcher is not None and tokens > self._settings.batch_tokens and not batcher.has_room(tokens):
            raise _queue_full()
        try:
            return parse(body)
        except InputError as error:
            raise HTTPException(422, str(error)) from None

    async def _batched(self, request: Request, batcher: Batcher[Any, Any], items: list[Any]) -> Any:
        """The results of a batcher; status 503 where its queue is full or the result comes too late."""
        async with self._deadline():
            try:
                return await batcher(items, request.is_disconnected)
            except QueueFull:
                raise _queue_full() from None

    @asynccontextmanager
    async def _deadline(self) -> Any:
        seconds = self._settings.timeout
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise HTTPException(503, f"not answered within {seconds:g} seconds; try again", RETRY) from None


def _queue_full() -> HTTPException:
    return HTTPException(503, "too many texts are waiting; try again", RETRY)


def _explain_json(model: ServedModel, texts: list[str]) -> bytes:
    found = [explanation.as_dict() for explanation in model.text_predictor().explain(texts)]
    return json.dumps({"explanations": found}, allow_nan=False).encode()


def _endpoint(respond: Callable[[], Response]) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint whose response does not depend on the request; a coroutine, for which Starlette starts no thread."""

    async def endpoint(request: Request) -> Response:
        return respond()

    return endpoint


def _html(text: str) -> Response:
    return Response(text, media_type="text/html", headers={"content-security-policy": content_security_policy(text)})


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
