"""Progress callbacks: long computations report to a function that the caller passes; nothing here prints."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

# Called with the stage, the steps done, the steps in all, and metrics to show.
Report = Callable[[str, int, int, Mapping[str, float]], None]


def silent(stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
    """Ignore the progress: the default of every `report` argument."""


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
