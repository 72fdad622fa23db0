"""Progress of long computations: they call a `Report`; the ones made here show it on stderr."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

SECONDS = 5.0  # between two lines of progress, where there is no terminal
FORMATS = {  # of the metrics that are shown
    "loss": "loss {:.3f}",
    "best": "dev {:.3f}",
    "cosine": "cos {:.3f}",
    "rate": "{:,.0f}/s",
}

# Called with the stage, the steps done, the steps in all, and metrics to show.
Report = Callable[[str, int, int, Mapping[str, float]], None]


def silent(stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
    """Ignore the progress: the default of every `report` argument."""


@contextmanager
def shown(wanted: "bool | Report | None" = None) -> Iterator[Report]:
    """Context manager: a `Report` that shows the progress on stderr, or the one that the caller gives.

    In terminals and notebooks it draws a bar per stage, with the time left and the latest metrics; elsewhere it prints
    a line every few seconds. Nothing is shown where `wanted` is False, or where it is None and the environment variable
    `ADE_PROGRESS` is 0.
    """
    if callable(wanted):
        yield wanted
        return
    if wanted is False or (wanted is None and os.environ.get("ADE_PROGRESS") == "0"):
        yield silent
        return
    from rich.console import Console

    stderr = Console(stderr=True, highlight=False)
    if stderr.is_terminal or (stderr.is_jupyter and find_spec("ipywidgets") is not None):
        yield from _bars(stderr)
    else:
        yield lines(stderr)


def _bars(console: "Console") -> Iterator[Report]:
    from rich.progress import Progress, TextColumn

    metrics_column = TextColumn("{task.fields[metrics]}")
    with Progress(*Progress.get_default_columns(), metrics_column, console=console) as bars:
        tasks = {}

        def report(stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total, metrics="")
            bars.update(tasks[stage], completed=done, total=total, metrics=_format(metrics))

        yield report


def lines(console: "Console") -> Report:
    """Return a `Report` that prints a line, at most every `SECONDS`: the stage, what is done of it, and its metrics."""
    last = time.monotonic()

    def report(stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        nonlocal last
        if time.monotonic() - last < SECONDS:
            return
        last = time.monotonic()
        line = f"{stage} {done:,}/{total:,} {_format(metrics)}"
        console.print(line.rstrip(), markup=False, soft_wrap=True)

    return report


def _format(metrics: Mapping[str, float]) -> str:
    return " ".join(text.format(metrics[name]) for name, text in FORMATS.items() if name in metrics)


@contextmanager
def quiet() -> Iterator[None]:
    """Turn off the progress bars and log messages of transformers and sentence-transformers within a `with` block."""
    from transformers.utils import logging as transformers_logging

    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    sentences = logging.getLogger("sentence_transformers")
    level = sentences.level
    sentences.setLevel(logging.ERROR)
    try:
        yield
    finally:
        sentences.setLevel(level)
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()
