"""How long work tells its caller where it stands; nothing here prints."""

from collections.abc import Callable, Mapping

# (what is being done, steps done, steps in all, figures worth showing)
Report = Callable[[str, int, int, Mapping[str, float]], None]


def silent(stage: str, done: int, total: int, figures: Mapping[str, float]) -> None:
    """Show nothing: what the library does unless it is handed something else."""
