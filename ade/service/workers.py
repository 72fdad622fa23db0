"""Several processes that serve the same socket: started again when they die, stopped and told to reload together.

Each worker has its own copy of the model; the system gives every new connection to one of them. Uvicorn's own
supervisor is not used: it starts uvicorn's plain server, and ends workers that are busy loading.
"""

import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import NamedTuple

from ade.errors import InputError
from ade.service.metrics import SHARED_FOLDER

Work = Callable[[socket.socket, Callable[[], None]], None]  # serves a socket; calls its argument when it is ready
POLL_SECONDS = 0.1
RESTART_SECONDS = 0.5
FAILED = 3  # exit status of a worker that could not start
READY = "ready"
log = logging.getLogger("ade.service")
HANGUP = getattr(signal, "SIGHUP", None)  # Windows has no such signal


class Worker(NamedTuple):
    """A process, and where it says that it is ready, or why it cannot start."""

    process: BaseProcess
    says: Connection


class Supervisor:
    """Starts `count` workers, which must be picklable, and keeps them going until a signal to stop."""

    def __init__(self, work: Work, count: int, bound: socket.socket, on_ready: Callable[[], None]) -> None:
        self._work, self._count, self._bound, self._on_ready = work, count, bound, on_ready
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[Worker] = []
        self._signals: list[int] = []

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM and all workers have stopped; an `InputError` where none can start."""
        handled = [number for number in (signal.SIGINT, signal.SIGTERM, HANGUP) if number is not None]
        previous = {number: signal.signal(number, self._note) for number in handled}
        folder = os.environ[SHARED_FOLDER] = tempfile.mkdtemp(prefix="ade-metrics-")
        try:
            self._workers = [self._start() for _ in range(self._count)]
            self._supervise()
        finally:
            for worker in self._workers:
                worker.process.kill()  # those that are left after an error
            for number, handler in previous.items():
                signal.signal(number, handler)
            del os.environ[SHARED_FOLDER]
            shutil.rmtree(folder, ignore_errors=True)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _start(self) -> Worker:
        says, said = self._context.Pipe()
        process = self._context.Process(target=_run, args=(self._work, self._bound, said), daemon=False)
        process.start()
        said.close()
        return Worker(process, says)

    def _supervise(self) -> None:
        ready: set[int | None] = set()  # process ids
        announced = is_stopping = False
        while self._workers:
            wait([worker.process.sentinel for worker in self._workers], POLL_SECONDS)
            while self._signals:
                number = self._signals.pop(0)
                if number != HANGUP and not is_stopping:
                    is_stopping = True
                    self._bound.close()  # before the workers close theirs: connections are never left without one
                for worker in self._workers:
                    _send(worker.process, HANGUP if number == HANGUP else signal.SIGTERM)

            for worker in [each for each in self._workers if each.process.pid not in ready]:
                message = _heard(worker)
                if message == READY:
                    ready.add(worker.process.pid)
                elif message and not announced:
                    raise InputError(message)
                elif message:
                    log.error("a worker cannot start: %s", message)
            if not announced and len(ready) == self._count:
                announced = True
                self._on_ready()
            self._replace_dead(announced, is_stopping)

    def _replace_dead(self, announced: bool, is_stopping: bool) -> None:
        """Start workers that have died again; one that dies before all were ready ends the service."""
        for i in reversed(range(len(self._workers))):
            process = self._workers[i].process
            if process.is_alive():
                continue
            process.join()
            _forget_metrics(process.pid)
            if is_stopping:
                del self._workers[i]
            elif not announced:
                raise InputError(_heard(self._workers[i]) or f"a worker ended with status {process.exitcode}")
            else:
                log.error("a worker ended with status %s; another is started", process.exitcode)
                time.sleep(RESTART_SECONDS)  # one that cannot start must not keep the machine busy
                self._workers[i] = self._start()


def _heard(worker: Worker) -> str:
    """What a worker says; an empty string where it has said nothing."""
    try:
        return worker.says.recv_bytes().decode() if worker.says.poll() else ""
    except (EOFError, OSError):
        return ""


def _send(process: BaseProcess, number: int | None) -> None:
    if process.is_alive() and process.pid is not None and number is not None:
        os.kill(process.pid, number)


def _forget_metrics(pid: int | None) -> None:
    """Gauges of a worker that is gone no longer count; its counters do."""
    from prometheus_client.multiprocess import mark_process_dead

    if pid is not None:
        mark_process_dead(pid)


def _run(work: Work, bound: socket.socket, said: Connection) -> None:
    """A worker process; in a session of its own, so that Ctrl-C is for the supervisor alone."""
    if hasattr(os, "setsid"):
        os.setsid()
    threading.Thread(target=_end_with_supervisor, args=(said,), daemon=True).start()
    try:
        work(bound, lambda: said.send_bytes(READY.encode()))
    except InputError as error:
        said.send_bytes(str(error).encode())
        sys.exit(FAILED)


def _end_with_supervisor(said: Connection) -> None:
    """Stop when the supervisor is gone, however it ended: its end of the pipe is closed then."""
    with contextlib.suppress(EOFError, OSError):
        said.recv_bytes()
    os.kill(os.getpid(), signal.SIGTERM)


def reload_all() -> None:
    """In a worker: have the supervisor tell all workers to load the model again."""
    if HANGUP is not None:
        os.kill(os.getppid(), HANGUP)
