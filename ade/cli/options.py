"""What the verbs share: arguments, flags made from settings, how a result is shown."""

import inspect
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from ade.cli import display
from ade.errors import InputError
from ade.settings import MAX_SEED

Model = Annotated[Path, typer.Argument(help="A model folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Seed = Annotated[int, typer.Option(help="What every random choice follows from.", min=0, max=MAX_SEED)]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in the output folder.")]
TextColumn = Annotated[str, typer.Option(help="Column that holds the texts.")]
LabelColumn = Annotated[str, typer.Option(help="Column that holds the labels.")]
Problem = Annotated[
    Literal["single-label", "multi-label", "regression"] | None,
    typer.Option(help="What a label is: a class, several with | between them, a number. Lists are several anyway."),
]


def problem_named(problem: str | None) -> str | None:
    """A problem as a config states it."""
    return f"{problem.replace('-', '_')}_classification" if problem and problem != "regression" else problem


def flags_of(*classes: type, optional: bool = False) -> Callable[[Any], Any]:
    """Give a verb one flag for each field of these settings classes, in place of its `**settings`.

    With `optional`, a flag that is not given arrives as None: a preset decides.
    """

    def decorate(verb: Any) -> Any:
        signature = inspect.signature(verb)
        parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        for entry in (entry for settings in classes for entry in fields(settings)):
            kind: Any = entry.type | None if optional else entry.type  # type: ignore[operator]
            flag = Annotated[kind, typer.Option(help=_sentence(entry.metadata["help"]))]
            default = None if optional else entry.default
            parameters.append(
                inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=flag)
            )
        verb.__signature__ = signature.replace(parameters=parameters)
        return verb

    return decorate


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def pick(settings: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a settings class that were given."""
    return {entry.name: given[entry.name] for entry in fields(settings) if given.get(entry.name) is not None}


def show(value: Mapping[str, Any], as_json: bool, draw: Callable[[Console], None]) -> None:
    """One JSON object, or a drawing of it."""
    if as_json:
        print(json.dumps(value))
    else:
        draw(display.console())


def texts_of(file: Path | None) -> list[str]:
    """The lines of a file that are not empty; none without a file."""
    if file is None:
        return []
    with lines_of(str(file)) as lines:
        return [line for line in lines if line.strip()]


@contextmanager
def lines_of(file: str) -> Iterator[Iterator[str]]:
    """The lines of a file, or of standard input where it is `-`."""
    try:
        if file == "-":
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict", newline="\n")
            yield (line.rstrip("\r\n") for line in sys.stdin)
        else:
            with open(file, encoding="utf-8-sig", newline="\n") as opened:
                yield (line.rstrip("\r\n") for line in opened)
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text ({error.reason})") from None
