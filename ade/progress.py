"""How long work tells its caller where it stands; nothing here prints."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

# (what is being done, steps done, steps in all, figures worth showing)
Report = Callable[[str, int, int, Mapping[str, float]], None]


def silent(stage: str, done: int, total: int, figures: Mapping[str, float]) -> None:
    """Show nothing: what the library does unless it is handed something else."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' own progress bars and reports off the terminal."""
    from transformers.utils import logging as transformers_logging

    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()
