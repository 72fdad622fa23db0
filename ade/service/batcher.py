"""Fair batching: texts of concurrent requests are predicted together, and clients take turns.

While one batch is predicted further requests wait; they make up the next batch, which has room for `batch_tokens`. A
request that finds nothing waiting is predicted at once. A batch is predicted in a thread, or, where that is likely to
take less than two milliseconds, by the event loop itself: handing it over and back takes as long as a short text.

The order is weighted fair queueing. A client that waits has a virtual time at which its next text is due: the clock
plus the cost of that text when the client arrives, and the cost of each next text later after that. The text that is
due first goes into the batch, and the clock moves on by its cost divided by the number of clients that wait. So clients
that ask for the same get the same share, a single word is predicted before the rest of long requests, however many
there are, and no number of words starves a long one.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any

from ade.errors import InputError
from ade.settings import ServiceSettings

INLINE_SECONDS = 0.002  # for which a batch may keep the event loop
FIRST_SECONDS = 1.0  # that the first batch is expected to take
RESERVED = 8  # an eighth of the queue is kept for requests that fit into one batch


class QueueFull(Exception):
    """The queue has no room for a request."""


@dataclass(eq=False, slots=True)
class Waiting:
    """A request in the queue."""

    items: Sequence[Any]
    costs: Sequence[int]
    answer: "asyncio.Future[list[Any]]"
    taken: int = 0  # items that are in a batch or predicted
    results: list[Any] = field(default_factory=list)

    def add(self, results: "list[Any] | Exception") -> None:
        """Add the results of the part that was in a batch; the last part answers the request, an error ends it."""
        if self.answer.done():  # it was cancelled, or another part has failed
            return
        if isinstance(results, Exception):
            self.answer.set_exception(results)
            return
        self.results.extend(results)
        if len(self.results) == len(self.items):
            self.answer.set_result(self.results)


class Batcher:
    """Calls `predict` with batches of items from any number of requests, one batch after the other.

    predict:   the results of a list of items, in order.
    cost:      the tokens of an item, roughly.
    on_batch:  called with the number of items of each batch.
    """

    def __init__(
        self,
        predict: Callable[[list[Any]], list[Any]],
        cost: Callable[[Any], int],
        settings: ServiceSettings,
        on_batch: Callable[[int], None] = lambda items: None,
    ) -> None:
        self._predict, self._cost, self._settings, self._on_batch = predict, cost, settings, on_batch
        self._thread = ThreadPoolExecutor(1, "ade-predict")
        self._queues: dict[Hashable, deque[Waiting]] = {}  # requests of each client that waits
        self._due: list[tuple[float, int, Hashable]] = []  # heap of virtual time, arrival, client
        self._clock = 0.0
        self._arrivals = count()
        self._task: asyncio.Task[None] | None = None
        self._last_cost, self._last_seconds = 1, FIRST_SECONDS  # of the last batch
        self.tokens = 0  # of all that waits

    async def __call__(self, items: Sequence[Any], client: Hashable = None) -> list[Any]:
        """The result of each of a request's items, in order; if it is cancelled, what still waits is dropped."""
        costs = [self._cost(item) for item in items]
        total, limit = sum(costs), self._settings.queue_tokens
        if total > self._settings.batch_tokens:
            limit -= limit // RESERVED
        if self.tokens and self.tokens + total > limit:  # where nothing else waits, any request may
            raise QueueFull

        loop = asyncio.get_running_loop()
        request = Waiting(items, costs, loop.create_future())
        self.tokens += total
        if client in self._queues:
            self._queues[client].append(request)
        else:
            self._queues[client] = deque([request])
            heappush(self._due, (self._clock + costs[0], next(self._arrivals), client))
        if self._task is None:
            self._task = loop.create_task(self._run())
        try:
            return await request.answer
        finally:
            self.tokens -= sum(costs[request.taken :])
            request.taken = len(items)

    async def _run(self) -> None:
        """Predict batch after batch until nothing waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._due:
                batch, cost = self._next_batch()
                if not batch:  # all that waited was dropped
                    continue
                parts = list(batch.values())
                if self._last_seconds * max(1.0, cost / self._last_cost) <= INLINE_SECONDS:
                    results = self._predicted(parts, cost)
                else:
                    results = await loop.run_in_executor(self._thread, self._predicted, parts, cost)
                for request, result in zip(batch, results, strict=True):
                    request.add(result)
                await asyncio.sleep(0)  # to the event loop, for the requests that have come
        finally:
            self._task = None

    def _next_batch(self) -> tuple[dict[Waiting, list[Any]], int]:
        """Take the items that are due first, as many as fit but at least one where any waits; and their cost."""
        batch: dict[Waiting, list[Any]] = {}
        total = 0
        while self._due:
            due, _, client = self._due[0]
            queue = self._queues[client]
            request = queue[0]
            if request.taken < len(request.items):  # else it was dropped
                cost = request.costs[request.taken]
                if batch and total + cost > self._settings.batch_tokens:
                    break
                self._clock += cost / len(self._queues)
                self.tokens -= cost
                total += cost
                batch.setdefault(request, []).append(request.items[request.taken])
                request.taken += 1

            heappop(self._due)
            while queue and queue[0].taken == len(queue[0].items):
                queue.popleft()
            if queue:
                heappush(self._due, (due + queue[0].costs[queue[0].taken], next(self._arrivals), client))
            else:
                del self._queues[client]
        return batch, total

    def _predicted(self, parts: list[list[Any]], cost: int) -> list[list[Any] | Exception]:
        """The results of a batch, which is counted and timed."""
        began = time.perf_counter()
        results = self._results(parts)
        self._last_cost, self._last_seconds = cost, time.perf_counter() - began
        self._on_batch(sum(map(len, parts)))
        return results

    def _results(self, parts: list[list[Any]]) -> list[list[Any] | Exception]:
        """The results of the part that each request has in a batch, or its error.

        Where predicting all of them fails, each is tried alone: a request that fails does not fail others.
        """
        try:
            results = iter(self._predict([item for items in parts for item in items]))
            return [list(islice(results, len(items))) for items in parts]
        except InputError as error:
            failure: Exception = error
        except BaseException as error:  # a panic in the tokenizer, which is written in Rust, is no Exception
            failure = RuntimeError("the prediction failed")
            failure.__cause__ = error
        if len(parts) == 1:
            return [failure]
        return [self._results([items])[0] for items in parts]
