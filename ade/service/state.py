"""What the routes share: the model that is served now, with its queues, and how it is replaced by another.

A request is answered by the model that was served when it came, also if another one is loaded meanwhile: a model keeps
its own queue and threads, which end with its last request.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ade import __version__
from ade.encoder import Encoder
from ade.errors import InputError
from ade.predictor import Predictor
from ade.service.access import HEALTH
from ade.service.batcher import Batcher, BatchLimits
from ade.service.embeddings import Embedding, Wanted, embed
from ade.service.inspections import InspectionWorker, Worker
from ade.service.metrics import Metrics
from ade.service.model import ServedModel
from ade.service.responses import Item, JsonPredictor, JsonTagger, estimated_tokens
from ade.settings import ServiceSettings

PATHS = (
    "/", "/about", "/docs", "/explain", "/inspect", "/metrics", "/openapi.json", "/predict", "/reload",
    "/v1/embeddings", *HEALTH,
)  # fmt: skip
log = logging.getLogger("ade.service")


class Served:
    """A model with its queues."""

    def __init__(self, model: ServedModel, settings: ServiceSettings, metrics: Metrics) -> None:
        self.model = model
        limits = BatchLimits(settings.batch, settings.batch_tokens, settings.queue, settings.wait_ms / 1000)
        longest = model.predictor.longest

        def cost(item: tuple[str, object]) -> int:
            return estimated_tokens(item[0], longest)

        predict = _json_predictions(model)
        steps = predict.steps if isinstance(predict, JsonPredictor) else None
        self.predict: Batcher[Item, bytes] = Batcher(predict, limits, cost, metrics.batch, metrics.queue, steps)
        self.embed: Batcher[tuple[str, Wanted], Embedding] = Batcher(
            self._embed, limits, cost, metrics.batch, metrics.queue
        )
        self.inspections = InspectionWorker(model.make_inspector)
        self.explanations = Worker("ade-explain")

    def _embed(self, items: list[tuple[str, Wanted]]) -> list[Embedding]:
        return embed(self.model.encoder(), items)


def _json_predictions(model: ServedModel) -> Callable[[Sequence[Item]], list[bytes]]:
    """What answers `/predict`; routes never ask an encoder."""
    predictor = model.predictor
    if isinstance(predictor, Predictor):
        return JsonPredictor(predictor)
    if isinstance(predictor, Encoder):
        return lambda items: []
    return JsonTagger(predictor)


class Service:
    """The model served now, the metrics, and whether the service is stopping."""

    def __init__(
        self, model: ServedModel, settings: ServiceSettings, load: Callable[[], ServedModel] | None = None
    ) -> None:
        self.settings, self._load = settings, load
        self.metrics = Metrics(PATHS)
        self.served = Served(model, settings, self.metrics)
        self.is_stopping = False
        self.on_reload: Callable[[], None] | None = None  # tells other workers
        self._reloading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def health(self) -> dict[str, Any]:
        """What `/health` answers."""
        status = "stopping" if self.is_stopping else "ready"
        model = self.served.model.as_dict()
        return {"status": status, "version": __version__, "model": model, "limits": vars(self.settings)}

    async def reload(self) -> None:
        """Load the model again, in a thread; where that fails, the one before stays, and an `InputError` says why."""
        if self._load is None:
            raise InputError("this service cannot load another model")
        async with self._reloading:
            try:
                model = await asyncio.get_running_loop().run_in_executor(None, self._load)
            except InputError:
                self.metrics.reloads.labels("failure").inc()
                raise
            self.served = Served(model, self.settings, self.metrics)
            self.metrics.reloads.labels("success").inc()

    def reload_soon(self) -> None:
        """Start to load the model again; for a signal handler. What goes wrong is logged."""
        self._task = asyncio.get_running_loop().create_task(self._reload_and_log())

    async def _reload_and_log(self) -> None:
        try:
            await self.reload()
        except InputError as error:
            log.error("the model was not loaded again: %s", error)
        else:
            log.warning("another model is served: %s", self.served.model.sha256)
