"""Dynamic batching with fair queueing: the texts of concurrent requests are predicted together, small requests first.

While one batch is predicted, in a thread of its own, new requests are queued; they make up the next batch. A request
that finds the queue empty is predicted at once. After a batch of several requests the next ones are likely to arrive
together again, so the batcher waits a moment for them, at most `max_wait` seconds.

The order is weighted fair queueing. A request waits for its next turn, with texts that cost (in estimated tokens) at
most a part of a batch, or with one text. The turn is due at the clock's time plus its cost, the turn after it its own
cost later, and the clock advances by the cost of what is predicted, divided by the number of requests that wait. So
equal requests are served in turn, a short request is predicted before the rest of a long one, and a long one has its
share of the time however many short ones come. A batch of long texts is predicted in steps, between which turns that
are short and due go first.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
CHECK_CLIENT_AFTER = 0.05  # seconds in the queue after which a request is dropped if its client has disconnected
FORGET_AFTER = 0.05  # seconds after which the size of the last batch no longer predicts the next one's
TURNS = 8  # that a batch has room for at least, unless single texts cost more
RESERVED = 8  # one part in so many of the queue is kept for requests that fit into one batch


class QueueFull(Exception):
    """The queue has no room for the texts of a request."""


class ClientDisconnected(Exception):
    """The client disconnected before its texts were predicted."""


@dataclass(frozen=True)
class BatchLimits:
    """Maximum items and cost of a batch, cost of all that waits, and seconds to wait after a batch of several."""

    items: int
    cost: int
    queued: int
    wait: float = 0.0


@dataclass(eq=False, slots=True)
class Waiting(Generic[Item, Result]):
    """A request in the queue."""

    items: Sequence[Item]
    costs: Sequence[int]
    answer: "asyncio.Future[list[Result]]"
    is_disconnected: Callable[[], Awaitable[bool]] | None
    checked_at: float  # when the client was last known to be there
    taken: int = 0  # items that are in a batch or predicted
    turn: int = 0  # items of the next turn
    results: list[Result] = field(default_factory=list)

    def next_turn(self, max_items: int, max_cost: int) -> int:
        """Set the items of the next turn, within the limits but at least one, and return their cost."""
        last, cost = self.taken + 1, self.costs[self.taken]
        while last < min(len(self.items), self.taken + max_items) and cost + self.costs[last] <= max_cost:
            cost += self.costs[last]
            last += 1
        self.turn = last - self.taken
        return cost


class Batcher(Generic[Item, Result]):
    """Calls `predict` in one thread with a batch of items, taken from any number of requests.

    cost:       of an item; a batch and the queue are limited by it.
    steps:      the same as `predict` in steps: yields None after each but the last, then the results.
    on_batch:   called with the number of requests and of items of each batch.
    on_queue:   called with what the number and the cost of queued items have changed by.
    """

    def __init__(
        self,
        predict: Callable[[list[Item]], list[Result]],
        limits: BatchLimits,
        cost: Callable[[Item], int],
        on_batch: Callable[[int, int], None] = lambda requests, items: None,
        on_queue: Callable[[int, int], None] = lambda items, cost: None,
        steps: Callable[[list[Item]], Iterator[list[Result] | None]] | None = None,
    ) -> None:
        self._predict, self._limits, self._cost, self._steps = predict, limits, cost, steps
        self._on_batch, self._on_queue = on_batch, on_queue
        self._thread = ThreadPoolExecutor(1, "ade-predict")
        self._heap: list[tuple[float, int, int, Waiting[Item, Result]]] = []  # due, arrival, cost, request
        self._arrivals = count()
        self._clock = 0.0
        self._task: asyncio.Task[None] | None = None
        self._enough_queued: asyncio.Future[None] | None = None  # set while the task waits for more requests
        self._last_size, self._last_ended = 0, 0.0  # requests of the last batch, and when it ended
        self.queued = self.queued_items = 0  # cost and number of the items in the queue

    def has_room(self, cost: int) -> bool:
        """Whether a request of this cost may be queued: always if nothing waits, else within the limit."""
        limit = self._limits.queued
        if cost > self._limits.cost:
            limit -= limit // RESERVED
        return not self.queued_items or self.queued + cost <= limit

    async def __call__(
        self, items: Sequence[Item], is_disconnected: Callable[[], Awaitable[bool]] | None = None
    ) -> list[Result]:
        """The result of each item of a request, in order; if it is cancelled, what still waits is dropped."""
        if not items:
            return []
        costs = [self._cost(item) for item in items]
        if not self.has_room(sum(costs)):
            raise QueueFull
        loop = asyncio.get_running_loop()
        request: Waiting[Item, Result] = Waiting(items, costs, loop.create_future(), is_disconnected, time.monotonic())
        self._count(len(items), sum(costs))
        self._push(request, self._clock)

        if self._task is None:
            self._task = loop.create_task(self._run())
        elif self._enough_queued is not None and self._is_enough():
            _wake(self._enough_queued)
        try:
            return await request.answer
        finally:
            self._drop(request)

    def _push(self, request: Waiting[Item, Result], now: float) -> None:
        """Queue the next turn of a request."""
        cost = request.next_turn(self._limits.items, self._limits.cost // TURNS)
        heappush(self._heap, (now + cost, next(self._arrivals), cost, request))

    def _drop(self, request: Waiting[Item, Result]) -> None:
        """Forget what still waits of a request; its entry of the heap is skipped when its turn comes."""
        if request.taken < len(request.items):
            self._count(request.taken - len(request.items), -sum(request.costs[request.taken :]))
            request.taken = len(request.items)

    def _count(self, items: int, cost: int) -> None:
        self.queued_items += items
        self.queued += cost
        self._on_queue(items, cost)

    async def _run(self) -> None:
        """Predict batch after batch until the queue is empty."""
        loop = asyncio.get_running_loop()
        if time.monotonic() - self._last_ended > FORGET_AFTER:
            self._last_size = 0
        batch: list[Waiting[Item, Result]] = []
        try:
            while self._heap:
                if self._limits.wait and not self._is_enough():
                    await self._wait_for_more(loop)
                parts = await self._next_batch()
                batch = list(parts)
                if parts:
                    found = await self._predict_in_steps(list(parts.values()))
                    for request, results in zip(parts, found, strict=True):
                        _add(request, results)
                self._last_size, self._last_ended = len(batch), time.monotonic()
        finally:
            self._task = None
            for request in (*batch, *(entry[-1] for entry in self._heap)):  # after a failure no request is left waiting
                if not request.answer.done():
                    request.answer.set_exception(RuntimeError("the thread that predicts has ended"))
            self._heap.clear()

    def _is_enough(self) -> bool:
        """Whether a whole batch is queued, or as many requests as the last batch had."""
        full = self.queued >= self._limits.cost or self.queued_items >= self._limits.items
        return full or len(self._heap) >= self._last_size

    async def _wait_for_more(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until enough is queued, at most `limits.wait` seconds."""
        self._enough_queued = loop.create_future()
        timer = loop.call_later(self._limits.wait, _wake, self._enough_queued)
        await self._enough_queued
        timer.cancel()
        self._enough_queued = None

    async def _next_batch(self, max_cost: int = 0) -> dict[Waiting[Item, Result], list[Item]]:
        """Take the turns that are due next, as many as fit; drop requests that have lost their client.

        An item that is larger than a batch is predicted alone, but not where a smaller `max_cost` is given.
        """
        parts: dict[Waiting[Item, Result], list[Item]] = {}
        total = items = 0
        now = time.monotonic()
        while self._heap and items < self._limits.items:
            due, _, cost, request = self._heap[0]
            is_too_much = items + request.turn > self._limits.items or total + cost > (max_cost or self._limits.cost)
            if is_too_much and (items or max_cost):
                break
            heappop(self._heap)
            if await self._is_gone(request, now):
                continue

            self._clock = min(due, self._clock + cost / (1 + len(self._heap)))
            total, items = total + cost, items + request.turn
            parts.setdefault(request, []).extend(request.items[request.taken : request.taken + request.turn])
            request.taken += request.turn
            if request.taken < len(request.items):
                self._push(request, due)
        if parts:
            self._count(-items, -total)
            self._on_batch(len(parts), items)
        return parts

    async def _is_gone(self, request: Waiting[Item, Result], now: float) -> bool:
        """Whether nobody waits for a request any more: it has failed or is dropped, or its client has disconnected."""
        if request.answer.done() or request.taken == len(request.items):
            return True
        if request.is_disconnected is not None and now - request.checked_at > CHECK_CLIENT_AFTER:
            request.checked_at = now
            if await request.is_disconnected():
                self._drop(request)
                if not request.answer.done():
                    request.answer.set_exception(ClientDisconnected())
        return request.answer.done()

    async def _predict_in_steps(self, parts: list[list[Item]]) -> list[list[Result] | BaseException]:
        """Results or an error for the part of each request; between steps, short requests that are due are served."""
        loop = asyncio.get_running_loop()
        if self._steps is not None:
            work = self._steps([item for items in parts for item in items])
            while (found := await loop.run_in_executor(self._thread, _step, work)) is None:
                urgent = await self._next_batch(self._limits.cost // TURNS)
                if urgent:
                    results = await loop.run_in_executor(self._thread, self._predict_parts, list(urgent.values()))
                    for request, result in zip(urgent, results, strict=True):
                        _add(request, result)
            if not isinstance(found, BaseException):
                return _split(found, parts)
        return await loop.run_in_executor(self._thread, self._predict_parts, parts)

    def _predict_parts(self, parts: list[list[Item]]) -> list[list[Result] | BaseException]:
        """Results or an error for the part of each request.

        Where predicting all of them fails, each part is tried alone: one bad request fails no other. A panic in the
        tokenizer, which is written in Rust, is a `BaseException`.
        """
        try:
            found = self._predict([item for items in parts for item in items])
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            failure: BaseException | None = error
        else:
            failure = None
        if failure is not None:
            return [failure] if len(parts) == 1 else [self._predict_parts([items])[0] for items in parts]
        return _split(found, parts)


def _step(work: Iterator[list[Result] | None]) -> list[Result] | BaseException | None:
    """One step of a prediction; what goes wrong is returned, since a panic is not an `Exception`."""
    try:
        return next(work)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return error


def _split(found: list[Result], parts: list[list[Item]]) -> list[list[Result] | BaseException]:
    """Results of all parts together -> those of each part."""
    results: list[list[Result] | BaseException] = []
    start = 0
    for items in parts:
        results.append(found[start : start + len(items)])
        start += len(items)
    return results


def _add(request: "Waiting[Item, Result]", found: "list[Result] | BaseException") -> None:
    """Give a request the results of its part of a batch; its future is set with the last ones, or with an error."""
    if request.answer.done():
        return
    if isinstance(found, BaseException):
        # A future takes no StopIteration, and a panic is not an Exception: the request fails with either as its cause.
        failure = RuntimeError(f"the prediction failed: {type(found).__name__}: {found}")
        failure.__cause__ = found
        request.answer.set_exception(found if isinstance(found, Exception) else failure)
        return
    request.results.extend(found)
    if len(request.results) == len(request.items):
        request.answer.set_result(request.results)


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
