"""Texts that wait at the same time are answered by one call: dynamic batching for a service.

While one batch is worked on, in a thread of its own, what arrives waits; all of it is the next batch. A request that
finds nobody waiting is answered at once. Where the last batch held several, others are likely to be on their way again,
and a short wait for them, never longer than asked for, saves calls.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")
PATIENCE = 0.05  # seconds after which a request is asked whether anyone still wants its answer


class Full(Exception):
    """So many texts wait already that no more are taken."""


class Left(Exception):
    """Whoever asked has left before the answer."""


@dataclass(eq=False, slots=True)
class Piece(Generic[Result]):
    """Texts of one request that go into one batch."""

    texts: Sequence[str]
    answer: "asyncio.Future[list[Result]]"
    gone: Callable[[], Awaitable[bool]] | None  # whether the one who asked has left
    since: float


class Gatherer(Generic[Result]):
    """Calls `work` in one thread with up to `most` texts at a time, from however many requests."""

    def __init__(
        self,
        work: Callable[[list[str]], list[Result]],
        most: int,
        room: int,
        wait: float = 0.0,
        seen: Callable[[int, int], None] | None = None,
    ) -> None:
        self._work, self._most, self._room, self._wait, self._seen = work, most, room, wait, seen
        self._thread = ThreadPoolExecutor(1, "ade-predict")
        self._queue: deque[Piece[Result]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._enough: asyncio.Future[None] | None = None  # set where the worker waits for more
        self._last, self._ended = 0, 0.0  # pieces of the last batch, and when it was answered
        self.waiting = 0  # texts nobody works on yet

    async def __call__(self, texts: Sequence[str], gone: Callable[[], Awaitable[bool]] | None = None) -> list[Result]:
        """The result of each text, in order; `Full` where too many wait already."""
        if self.waiting + len(texts) > self._room:
            raise Full
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        pieces: list[Piece[Result]] = [
            Piece(texts[start : start + self._most], loop.create_future(), gone, now)
            for start in range(0, len(texts), self._most)
        ]
        self._queue.extend(pieces)
        self.waiting += len(texts)
        if self._running is None:
            self._running = loop.create_task(self._run())
        elif self._enough is not None and self._worth():
            _wake(self._enough)
        if len(pieces) == 1:
            return await pieces[0].answer
        try:
            return [result for part in await asyncio.gather(*(piece.answer for piece in pieces)) for result in part]
        finally:
            for piece in pieces:
                piece.answer.cancel()  # what is still waiting when one piece has failed need not be worked on

    async def _run(self) -> None:
        """Batch after batch, until nobody waits."""
        loop = asyncio.get_running_loop()
        if time.monotonic() - self._ended > PATIENCE:
            self._last = 0  # long ago: it says nothing about now
        batch: list[Piece[Result]] = []
        try:
            while self._queue:
                if self._wait and not self._worth():
                    await self._more(loop)
                batch = await self._taken()
                if batch:
                    texts = [piece.texts for piece in batch]
                    results = await loop.run_in_executor(self._thread, self._answered, texts)
                    for piece, found in zip(batch, results, strict=True):
                        _settle(piece.answer, found)
                self._last, self._ended = len(batch), time.monotonic()
        finally:
            self._running = None
            for piece in (*batch, *self._queue):  # where it broke off, nobody is left waiting
                _settle(piece.answer, RuntimeError("the thread that predicts has ended"))

    def _worth(self) -> bool:
        """Whether as much waits as can be hoped for."""
        return self.waiting >= self._most or len(self._queue) >= self._last

    async def _more(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until it is worth it, or has been long enough."""
        self._enough = loop.create_future()
        timer = loop.call_later(self._wait, _wake, self._enough)
        await self._enough
        timer.cancel()
        self._enough = None

    async def _taken(self) -> list[Piece[Result]]:
        """The next batch, the oldest first; requests whose client has left are dropped on the way."""
        batch: list[Piece[Result]] = []
        count, now = 0, time.monotonic()
        while self._queue and count + len(self._queue[0].texts) <= self._most:
            piece = self._queue.popleft()
            self.waiting -= len(piece.texts)
            if piece.answer.done():
                continue
            if piece.gone is not None and now - piece.since > PATIENCE and await piece.gone():
                _settle(piece.answer, Left())
                continue
            batch.append(piece)
            count += len(piece.texts)
        if batch and self._seen is not None:
            self._seen(len(batch), count)
        return batch

    def _answered(self, parts: list[Sequence[str]]) -> list[list[Result] | Exception]:
        """Results of each part; where the whole fails, each part is tried by itself, so that one spoils no other."""
        try:
            found = self._work([text for texts in parts for text in texts])
        except Exception as error:
            failure: Exception | None = error
        else:
            failure = None
        if failure is not None:
            return [failure] if len(parts) == 1 else [self._answered([texts])[0] for texts in parts]
        results: list[list[Result] | Exception] = []
        start = 0
        for texts in parts:
            results.append(found[start : start + len(texts)])
            start += len(texts)
        return results


def _settle(answer: "asyncio.Future[list[Result]]", found: list[Result] | Exception) -> None:
    if answer.done():  # nobody wants it any more
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)


def _wake(sleeping: "asyncio.Future[None]") -> None:
    if not sleeping.done():
        sleeping.set_result(None)
