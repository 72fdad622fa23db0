"""What the verbs share: common arguments, flags made from settings classes, reading lines, showing a result."""

import functools
import inspect
import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from ade.cli import display
from ade.data.columns import LABEL, TEXT
from ade.data.reading import Format
from ade.errors import InputError
from ade.settings import ARCHITECTURES, MAX_SEED, PRESETS

ADVANCED = "Advanced options"  # heading in the help, after the common options
_quiet = ContextVar("quiet", default=False)


def model_path(given: str) -> Path:
    """A model's folder, or its name on the hub; what is written as a path is never looked up there."""
    if given.startswith((".", "/", "~")) or given.endswith("/"):
        path = Path(given).expanduser()
        if not path.exists():
            raise typer.BadParameter(f"{given}: no such folder")
        return path
    return Path(given)


Model = Annotated[
    Path,
    typer.Argument(help="Model folder, or a name on the hub.", show_default=False, parser=model_path, metavar="MODEL"),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Seed = Annotated[int, typer.Option(help="Random seed.", min=0, max=MAX_SEED)]
Device = Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
RuntimeDevice = Annotated[str, typer.Option(help="cpu (numpy alone, no torch) or cuda.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Overwrite an earlier result in the output folder.")]
TextFile = Annotated[
    str, typer.Argument(help="Text file with one text per line, CSV, TSV, JSON or Parquet; - is standard input.")
]
TextFormat = Annotated[
    Format | None, typer.Option(help="Format of the input; by default from the file's name, else text.")
]
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

Engine = Annotated[
    Literal["ray"] | None,
    typer.Option(help="ray: work on the cores of many machines, or of this one, with Ray Data.", show_default=False),
]
Address = Annotated[
    str, typer.Option(help="With --engine ray: address of the cluster; auto finds it, local starts one here.")
]
Workers = Annotated[
    int | None,
    typer.Option(help="With --engine ray: number of processes; by default all cores.", min=1, show_default=False),
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
        say(f"{source}: texts of the column '{columns[0]}', labels of '{columns[1]}'")


def say(message: str) -> None:
    """Print a notice on stderr, unless --quiet was given."""
    if not _quiet.get():
        print(f"ade: {message}", file=sys.stderr)


def with_verbosity(verb: Any) -> Any:
    """Decorator: give a verb the options --quiet and --verbose."""

    @functools.wraps(verb)
    def run(*words: Any, quiet: bool, verbose: bool, **given: Any) -> Any:
        if quiet and verbose:
            raise InputError("--quiet says less, --verbose says more: give one of them")
        with _verbosity(quiet, verbose):
            return verb(*words, **given)

    signature = inspect.signature(verb)
    options = {
        "quiet": typer.Option("--quiet", "-q", help="Print no progress and no notices, only results and errors."),
        "verbose": typer.Option("--verbose", "-v", help="Also print warnings, and where an error comes from."),
    }
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])
        for name, option in options.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    return run


@contextmanager
def _verbosity(quiet: bool, verbose: bool) -> Iterator[None]:
    """Context manager: silence notices and progress, or let warnings, log messages and tracebacks through."""
    changes = {"ADE_PROGRESS": "0"} if quiet else {}
    if verbose:
        changes = {"TRANSFORMERS_VERBOSITY": "info", "HF_HUB_VERBOSITY": "info"}
    before = {name: os.environ.get(name) for name in changes}
    token = _quiet.set(quiet)
    os.environ.update(changes)
    try:
        with warnings.catch_warnings():
            if verbose:
                warnings.simplefilter("default")
            yield
    except Exception:
        if verbose:
            traceback.print_exc()
        raise
    finally:
        _quiet.reset(token)
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})


def flags_of(*classes: type, optional: bool = False, common: Collection[str] = ()) -> Callable[[Any], Any]:
    """Decorator: replace the `**settings` of a verb by one option per field of the given settings classes.

    With `optional`, options default to None, so that the verb can tell which were given and take the others from a
    preset. Options that are not `common` stand under a heading of their own in the help.
    """

    def decorate(verb: Any) -> Any:
        signature = inspect.signature(verb)
        parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        for entry in (entry for settings in classes for entry in fields(settings)):
            kind: Any = entry.type | None if optional else entry.type  # type: ignore[operator]
            shown = _preset_default(entry) if optional else ""
            option = typer.Option(
                help=_sentence(entry.metadata["help"]) + (f"  [default: {shown}]" if shown else ""),
                show_default=not optional and entry.default != "",
                rich_help_panel=None if entry.name in common else ADVANCED,
            )
            flag = Annotated[kind, option]
            default = None if optional else entry.default
            parameters.append(
                inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=flag)
            )
        verb.__signature__ = signature.replace(parameters=parameters)
        return verb

    return decorate


def _preset_default(entry: "Field[Any]") -> str:
    """What the presets take for a setting, as the help shows it; empty where the preset strong takes nothing."""
    given = {name: getattr(preset, entry.name, None) for name, preset in PRESETS.items()}
    if not hasattr(PRESETS["strong"], entry.name):
        given = {name: getattr(shape, entry.name, entry.default) for name, shape in ARCHITECTURES.items()}
    strong, paper = (_shown(entry.name, given[name]) for name in ("strong", "paper"))
    return strong if paper == strong or not strong else f"{strong}; with --preset paper {paper}"


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name.replace("_", "-") if value else f"no-{name.replace('_', '-')}"
    return "" if value is None else str(value)


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
