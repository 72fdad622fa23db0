"""A model over HTTP: labels of texts, a look inside, health, and figures for Prometheus. Needs the extra `serve`.

One event loop reads and answers; predictions are made in one thread, for all requests that wait (`gathering.py`);
`gate.py` stands around it all. FastAPI routes the requests and describes the service.
"""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ade import __version__
from ade.errors import InputError
from ade.inspector.page import page as page_text
from ade.predictor import Predictor
from ade.service.batcher import Full, Gatherer
from ade.service.middleware import Gate, Metrics, Refused
from ade.service.responses import Answers, texts_of
from ade.service.schema import ABOUT, HEALTH, PREDICTIONS, READINGS, described, policy_of, reference, responses
from ade.settings import ServiceSettings

try:
    import prometheus_client  # noqa: F401 - used by the gate
    from fastapi import FastAPI, Request, Response
    from fastapi.routing import APIRoute
except ImportError as missing:
    raise InputError(f"the service needs its extra: pip install 'ade-embeddings[serve]' ({missing})") from None

if TYPE_CHECKING:
    from ade.inspector.reading import Inspector

PATHS = ("/", "/about", "/docs", "/health", "/inspect", "/metrics", "/openapi.json", "/predict")
LOOKS = 8  # requests that may wait for a look inside


class Straight(APIRoute):
    """A route whose function takes the request and gives the answer, with nothing in between."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.app = self._answered

    async def _answered(self, scope: Any, receive: Any, send: Any) -> None:
        answer = await self.endpoint(Request(scope, receive))
        await answer(scope, receive, send)


def service(
    predictor: Predictor,
    settings: ServiceSettings = ServiceSettings(),
    inspector: "Callable[[], Inspector] | None" = None,
) -> FastAPI:
    """The service of a model; `inspector` is called when a look inside is first asked for."""
    metrics = Metrics(PATHS)
    gather = Gatherer(Answers(predictor), settings.batch, settings.queue, settings.wait_ms / 1000, metrics.batched)
    metrics.waiting.set_function(lambda: gather.waiting)
    looks = Looks(inspector)
    app = FastAPI(
        title="ade", version=__version__, description="Labels of texts, and a look inside the model that gives them.",
        docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.router.route_class = Straight
    app.add_middleware(Gate, most=settings.max_bytes, metrics=metrics)
    health = {"status": "ready", "version": __version__, "model": facts(predictor), "limits": asdict(settings)}

    async def predict(request: Request) -> Response:
        """The label of a text, or of each of many, with the probabilities of all labels."""
        texts = await _texts(request, settings.max_texts, settings.max_chars)
        try:
            found = await gather(texts, request.is_disconnected)
        except Full:
            raise Refused(503, "too many texts are waiting; try again", retry_after="1") from None
        return _answer(b'{"predictions":[' + b",".join(found) + b"]}")

    async def inspect(request: Request) -> Response:
        """What the model makes of each token: its anchors, its share in the answer, what it attends to."""
        return _answer(await looks.at(await _texts(request, settings.inspect_texts, settings.inspect_chars)))

    async def about(request: Request) -> Response:
        """The model's labels and anchors, each anchor with its nearest words and its place on a map."""
        return _answer(await looks.about())

    async def ready(request: Request) -> Response:
        """That the service is up, which model it has, and what it takes."""
        return _answer(json.dumps(health).encode())

    async def figures(request: Request) -> Response:
        """Requests, times and batches, as Prometheus reads them."""
        text, kind = metrics.page()
        return Response(text, media_type=kind)

    told = described(settings.max_texts, settings.max_chars, PREDICTIONS, 503)
    app.add_api_route("/predict", predict, methods=["POST"], **told)
    told = described(settings.inspect_texts, settings.inspect_chars, READINGS, 409, 503)
    app.add_api_route("/inspect", inspect, methods=["POST"], **told)
    app.add_api_route("/about", about, responses=responses(ABOUT, 409, 503))
    app.add_api_route("/health", ready, responses=responses(HEALTH))
    plain = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    app.add_api_route("/metrics", figures, responses={200: plain})
    app.add_api_route("/", page, include_in_schema=False)
    app.add_api_route("/docs", docs, include_in_schema=False)
    return app


async def page(request: Request) -> Response:
    """The page that looks inside."""
    return _page(page_text())


async def docs(request: Request) -> Response:
    """What the service answers, as a page."""
    return _page(reference(request.app.openapi()))


def _page(text: str) -> Response:
    return Response(text, media_type="text/html", headers={"content-security-policy": policy_of(text)})


def _answer(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def _texts(request: Request, most: int, chars: int) -> list[str]:
    """The texts of a request's body, or why they are not taken."""
    kind = next((value for name, value in request.scope["headers"] if name == b"content-type"), b"")
    if kind.partition(b";")[0].strip().lower() != b"application/json":
        raise Refused(415, "the body must be sent as application/json")
    message = await request.receive()
    body = message["body"]
    if message["more_body"]:
        body = bytearray(body)  # grows in place, however small the pieces are
        while message["more_body"]:
            message = await request.receive()
            body += message["body"]
    try:
        return texts_of(body, most, chars)
    except InputError as error:
        raise Refused(422, str(error)) from None


def facts(predictor: Predictor) -> dict[str, Any]:
    """What a client may want to know of a model."""
    names = predictor.names
    return {"problem": predictor.problem, "labels": list(names), "max_tokens": predictor.max_tokens}


class Looks:
    """Looks inside a model, one at a time in a thread of their own; whatever they need is loaded with the first."""

    def __init__(self, make: "Callable[[], Inspector] | None") -> None:
        self._make = make
        self._made: Inspector | None = None
        self._about = b""
        self._thread = ThreadPoolExecutor(1, "ade-inspect")
        self._waiting = 0

    async def at(self, texts: list[str]) -> bytes:
        """Readings of texts, as JSON."""
        return await self._one(self._read, texts)

    async def about(self) -> bytes:
        """The model's anchors, as JSON."""
        return self._about or await self._one(self._tell)

    async def _one(self, look: Callable[..., bytes], *given: Any) -> bytes:
        if self._make is None:
            raise Refused(409, "this service only predicts")
        if self._waiting >= LOOKS:
            raise Refused(503, "too many looks inside are waiting; try again", retry_after="2")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, look, *given)
        finally:
            self._waiting -= 1

    def _inspector(self) -> "Inspector":
        assert self._make is not None
        if self._made is None:
            self._made = self._make()
        return self._made

    def _tell(self) -> bytes:
        try:
            self._about = json.dumps(self._inspector().about(), allow_nan=False).encode()
        except InputError as error:
            raise Refused(409, str(error)) from None
        return self._about

    def _read(self, texts: list[str]) -> bytes:
        try:
            inspector = self._inspector()
        except InputError as error:
            raise Refused(409, str(error)) from None
        try:
            return json.dumps({"readings": [inspector.read(text) for text in texts]}, allow_nan=False).encode()
        except InputError as error:
            raise Refused(422, str(error)) from None
