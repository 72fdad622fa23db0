"""Dynamic batching: the texts of concurrent requests are predicted by one call.

While one batch is predicted, in a thread of its own, new requests are queued; they make up the next batch. A request
that finds the queue empty is predicted at once. After a batch of several requests the next ones are likely to arrive
together again, so the batcher waits a moment for them, at most `max_wait` seconds.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")
CHECK_CLIENT_AFTER = 0.05  # seconds in the queue after which a request is dropped if its client has disconnected
FORGET_AFTER = 0.05  # seconds after which the size of the last batch no longer predicts the next one's


class QueueFull(Exception):
    """The queue has no room for the texts of a request."""


class ClientDisconnected(Exception):
    """The client disconnected before its texts were predicted."""


@dataclass(eq=False, slots=True)
class Chunk(Generic[Result]):
    """Texts of one request that go into the same batch."""

    texts: Sequence[str]
    results: "asyncio.Future[list[Result]]"
    is_disconnected: Callable[[], Awaitable[bool]] | None
    queued_at: float


class Batcher(Generic[Result]):
    """Calls `predict` in one thread with at most `max_texts` texts at a time, taken from any number of requests.

    max_queued:  texts that may wait; beyond that a request raises `QueueFull`.
    max_wait:    seconds to wait for more requests after a batch of several.
    on_batch:    called with the number of requests and of texts of each batch.
    """

    def __init__(
        self,
        predict: Callable[[list[str]], list[Result]],
        max_texts: int,
        max_queued: int,
        max_wait: float = 0.0,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> None:
        self._predict, self._on_batch = predict, on_batch
        self._max_texts, self._max_queued, self._max_wait = max_texts, max_queued, max_wait
        self._thread = ThreadPoolExecutor(1, "ade-predict")
        self._queue: deque[Chunk[Result]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._enough_queued: asyncio.Future[None] | None = None  # set while the task waits for more requests
        self._last_size, self._last_ended = 0, 0.0  # chunks of the last batch, and when it ended
        self.queued = 0  # texts in the queue

    async def __call__(
        self, texts: Sequence[str], is_disconnected: Callable[[], Awaitable[bool]] | None = None
    ) -> list[Result]:
        """The result of each text of a request, in order."""
        if self.queued + len(texts) > self._max_queued:
            raise QueueFull
        chunks = self._enqueue(texts, is_disconnected)

        loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._run())
        elif self._enough_queued is not None and self._is_enough():
            _wake(self._enough_queued)

        if len(chunks) == 1:
            return await chunks[0].results
        try:
            parts = await asyncio.gather(*(chunk.results for chunk in chunks))
            return [result for part in parts for result in part]
        finally:
            for chunk in chunks:
                chunk.results.cancel()  # when one chunk has failed, the others need not be predicted

    def _enqueue(
        self, texts: Sequence[str], is_disconnected: Callable[[], Awaitable[bool]] | None
    ) -> list[Chunk[Result]]:
        """Queue the texts of a request in chunks of at most `max_texts`."""
        loop, now = asyncio.get_running_loop(), time.monotonic()
        chunks: list[Chunk[Result]] = [
            Chunk(texts[start : start + self._max_texts], loop.create_future(), is_disconnected, now)
            for start in range(0, len(texts), self._max_texts)
        ]
        self._queue.extend(chunks)
        self.queued += len(texts)
        return chunks

    async def _run(self) -> None:
        """Predict batch after batch until the queue is empty."""
        loop = asyncio.get_running_loop()
        if time.monotonic() - self._last_ended > FORGET_AFTER:
            self._last_size = 0
        batch: list[Chunk[Result]] = []
        try:
            while self._queue:
                if self._max_wait and not self._is_enough():
                    await self._wait_for_more(loop)
                batch = await self._next_batch()
                if batch:
                    texts = [chunk.texts for chunk in batch]
                    results = await loop.run_in_executor(self._thread, self._predict_chunks, texts)
                    for chunk, found in zip(batch, results, strict=True):
                        _resolve(chunk.results, found)
                self._last_size, self._last_ended = len(batch), time.monotonic()
        finally:
            self._task = None
            for chunk in (*batch, *self._queue):  # after a failure no request is left waiting
                _resolve(chunk.results, RuntimeError("the thread that predicts has ended"))

    def _is_enough(self) -> bool:
        """Whether a whole batch is queued, or as many chunks as the last batch had."""
        return self.queued >= self._max_texts or len(self._queue) >= self._last_size

    async def _wait_for_more(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until enough is queued, at most `max_wait` seconds."""
        self._enough_queued = loop.create_future()
        timer = loop.call_later(self._max_wait, _wake, self._enough_queued)
        await self._enough_queued
        timer.cancel()
        self._enough_queued = None

    async def _next_batch(self) -> list[Chunk[Result]]:
        """Take the next batch from the queue, oldest first; drop what is cancelled or has lost its client."""
        batch: list[Chunk[Result]] = []
        count, now = 0, time.monotonic()
        while self._queue and count + len(self._queue[0].texts) <= self._max_texts:
            chunk = self._queue.popleft()
            self.queued -= len(chunk.texts)
            if chunk.results.done():
                continue
            waited = now - chunk.queued_at
            if chunk.is_disconnected is not None and waited > CHECK_CLIENT_AFTER and await chunk.is_disconnected():
                _resolve(chunk.results, ClientDisconnected())
                continue
            batch.append(chunk)
            count += len(chunk.texts)
        if batch and self._on_batch is not None:
            self._on_batch(len(batch), count)
        return batch

    def _predict_chunks(self, chunks: list[Sequence[str]]) -> list[list[Result] | Exception]:
        """Results or an error for each chunk.

        Where predicting all of them fails, each chunk is tried alone: one bad request fails no other.
        """
        try:
            found = self._predict([text for texts in chunks for text in texts])
        except Exception as error:
            failure: Exception | None = error
        else:
            failure = None
        if failure is not None:
            return [failure] if len(chunks) == 1 else [self._predict_chunks([texts])[0] for texts in chunks]

        results: list[list[Result] | Exception] = []
        start = 0
        for texts in chunks:
            results.append(found[start : start + len(texts)])
            start += len(texts)
        return results


def _resolve(results: "asyncio.Future[list[Result]]", found: list[Result] | Exception) -> None:
    """Set a future's result or exception, unless it is done or cancelled."""
    if results.done():
        return
    if isinstance(found, Exception):
        results.set_exception(found)
    else:
        results.set_result(found)


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
