"""What the verbs share: common arguments, flags made from settings classes, reading lines, showing a result."""

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
from ade.data.columns import LABEL, TEXT
from ade.errors import InputError
from ade.settings import MAX_SEED

Model = Annotated[Path, typer.Argument(help="Model folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Seed = Annotated[int, typer.Option(help="Random seed.", min=0, max=MAX_SEED)]
Device = Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Overwrite an earlier result in the output folder.")]
TextColumn = Annotated[
    str | None, typer.Option(help="Name of the text column; by default found: text, review, sentence, ...")
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Name of the label column; by default found: label, sentiment, intent, ...")
]
DataArgument = Annotated[
    str | None,
    typer.Argument(metavar="DATA", help="Dataset: a file, a folder, a hub name, or 'wordnet'.", show_default=False),
]
DataOption = Annotated[str | None, typer.Option("--data", help="The same as an option.", show_default=False)]
Problem = Annotated[
    Literal["single-label", "multi-label", "regression"] | None,
    typer.Option(
        help="Problem type. Multi-label columns hold lists, or names separated by |; without this option, lists are "
        "multi-label and everything else is single-label."
    ),
]


def one_source(argument: str | None, option: str | None) -> str:
    """The dataset that was given as an argument or with `--data`."""
    if (argument is None) == (option is None):
        raise InputError("give the dataset once: as an argument, or with --data")
    return str(argument if option is None else option)


def say_columns(source: str, dataset: Any) -> None:
    """Say on stderr which columns were found, where they are not called `text` and `label`."""
    columns = getattr(dataset, "columns", None)
    if columns not in (None, (TEXT, LABEL)):
        print(f"ade: {source}: texts of the column '{columns[0]}', labels of '{columns[1]}'", file=sys.stderr)


def flags_of(*classes: type, optional: bool = False) -> Callable[[Any], Any]:
    """Decorator: replace the `**settings` of a verb by one option per field of the given settings classes.

    With `optional`, options default to None, so that the verb can tell which were given and take the others from a
    preset.
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
    """The options among `given` that are fields of a settings class and are not None."""
    return {entry.name: given[entry.name] for entry in fields(settings) if given.get(entry.name) is not None}


def show(value: Mapping[str, Any], as_json: bool, draw: Callable[[Console], None]) -> None:
    """Print a result as one JSON object, or as `draw` prints it for a person."""
    if as_json:
        print(json.dumps(value))
    else:
        draw(display.console())


def read_texts(file: Path | None) -> list[str]:
    """The lines of a file without the empty ones; an empty list where there is no file."""
    if file is None:
        return []
    with lines_of(str(file)) as lines:
        return [line for line in lines if line.strip()]


@contextmanager
def lines_of(file: str) -> Iterator[Iterator[str]]:
    """Context manager: iterate over the lines of a UTF-8 file, or of standard input if `file` is `-`."""
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
