"""Explanations and inspections: one at a time, in a thread, and only for clients that still wait for them."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from ade.errors import InputError
from ade.service.batcher import ClientDisconnected

if TYPE_CHECKING:
    from ade.inspector.reading import Inspector

MAX_WAITING = 8  # requests that may wait for a worker
CHECK_CLIENT_EVERY = 0.1  # seconds after which a waiting request is dropped if its client has disconnected


class Worker:
    """Runs the work of one request at a time in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.thread = ThreadPoolExecutor(1, name)
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def run(self, request: Request, work: Callable[..., bytes], *arguments: Any) -> bytes:
        """Run `work` in the thread; status 503 where too many requests wait, 422 where the input does not fit."""
        if self._waiting >= MAX_WAITING:
            raise HTTPException(503, "too many requests are waiting; try again", {"retry-after": "1"})
        self._waiting += 1
        try:
            await self._wait_for_turn(request)
            running = asyncio.get_running_loop().run_in_executor(self.thread, _without_panic, work, *arguments)
            running.add_done_callback(self._end_turn)
            return await asyncio.shield(running)  # work that takes too long for its request still ends its turn
        except InputError as error:
            raise HTTPException(422, str(error)) from None
        finally:
            self._waiting -= 1

    def _end_turn(self, ended: "asyncio.Future[bytes]") -> None:
        self._turn.release()
        if not ended.cancelled():
            ended.exception()  # seen, even if nobody waits for it any more

    async def _wait_for_turn(self, request: Request) -> None:
        """Wait until no other request is worked on; a client that types on has left by then, and is dropped."""
        while True:
            try:
                async with asyncio.timeout(CHECK_CLIENT_EVERY):
                    await self._turn.acquire()
                return
            except TimeoutError:
                if await request.is_disconnected():
                    raise ClientDisconnected from None


def _without_panic(work: Callable[..., bytes], *arguments: Any) -> bytes:
    """Call `work`; a panic in the tokenizer, which is not an `Exception`, becomes one."""
    try:
        return work(*arguments)
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"the tokenizer failed: {error}") from error


class InspectionWorker(Worker):
    """A worker with an inspector, which is made, and torch loaded, when it is first needed."""

    def __init__(self, make_inspector: "Callable[[], Inspector] | None") -> None:
        super().__init__("ade-inspect")
        self._make_inspector = make_inspector
        self._inspector: Inspector | None = None
        self._about = b""
        self._is_loading = False

    def load_ahead(self) -> None:
        """Start to load the inspector, where there is one; a failure is left to the first request that needs it."""
        if self._make_inspector is not None and not self._is_loading:
            self._is_loading = True
            self.thread.submit(self._about_json)

    async def read(self, request: Request, texts: list[str]) -> bytes:
        """`Inspector.read` of each text, as JSON; status 409 where the service cannot inspect its model."""
        return await self.run(request, self._read_json, texts)

    async def about(self, request: Request) -> bytes:
        """`Inspector.about`, as JSON."""
        return self._about or await self.run(request, self._about_json)

    def _loaded(self) -> "Inspector":
        """The inspector; status 409 where there is none or the model cannot be loaded for it."""
        if self._make_inspector is None:
            raise HTTPException(409, "this service only predicts")
        try:
            self._inspector = self._inspector or self._make_inspector()
        except InputError as error:
            raise HTTPException(409, str(error)) from None
        return self._inspector

    def _about_json(self) -> bytes:
        self._about = self._about or json.dumps(self._loaded().about(), allow_nan=False).encode()
        return self._about

    def _read_json(self, texts: list[str]) -> bytes:
        inspector = self._loaded()
        return json.dumps({"readings": [inspector.read(text) for text in texts]}, allow_nan=False).encode()
