"""What the verbs share: arguments and options of one meaning, and `--set`."""

import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from ade.cli import display
from ade.data.records import Format
from ade.errors import InputError
from ade.settings import PRESETS, TrainingSettings


def model_path(given: str) -> Path:
    """A model's folder, or its name on the hub; what is written as a path is never looked up there."""
    if os.path.isfile(given):
        raise typer.BadParameter(f"{given}: a file, not a model folder; the model comes before the texts")
    if given.startswith((".", "/", "~")) or given.endswith("/"):
        path = Path(given).expanduser()
        if not path.exists():
            raise typer.BadParameter(f"{given}: no such folder")
        return path
    return Path(given)


def text_file(given: str) -> str:
    """A file of texts; a sentence in place of its name is an error that says where it would be read."""
    if not os.path.exists(given) and len(given.split()) > 1 and not Path(given).suffix[1:].isalnum():
        advice = "give a text by a pipe: echo TEXT | ade predict MODEL"
        raise typer.BadParameter(f"no file is called '{given:.40}'; {advice}")
    return given


def argument(help: str, metavar: str | None = None, **more: Any) -> Any:
    """An argument whose default the help does not show."""
    return typer.Argument(help=help, metavar=metavar, show_default=False, **more)


def option(help: str, *names: str, metavar: str | None = None, **more: Any) -> Any:
    """An option; a flag that is off by default needs its name, as it has no opposite."""
    return typer.Option(*names, help=help, metavar=metavar, **more)


Model = Annotated[Path, argument("Model folder, or a name on the hub.", "MODEL", parser=model_path)]
Data = Annotated[str, argument("File, folder, hub name, or 'wordnet'.", "DATA")]
TextFile = Annotated[
    str, argument("Lines of text, CSV, TSV, JSON or Parquet; - is standard input.", "FILE", parser=text_file)
]
Out = Annotated[Path, option("Output folder.", metavar="FOLDER", show_default=False)]
Overwrite = Annotated[bool, option("Overwrite an earlier result.", "--overwrite")]
Resume = Annotated[bool, option("Continue an interrupted run.", "--resume")]
Json = Annotated[bool, option("Print the result as one JSON object.", "--json")]
Device = Annotated[str, option("auto, cpu or cuda.", metavar="NAME")]
RuntimeDevice = Annotated[str, option("cpu (numpy alone, no torch) or cuda.", metavar="NAME")]
TextFormat = Annotated[Format | None, option("Format of the input; by default from the file's name, else text.")]
TextColumn = Annotated[str | None, option("Column of the texts; by default found by its name.", metavar="NAME")]
LabelColumn = Annotated[str | None, option("Column of the labels; by default found by its name.", metavar="NAME")]
Size = Annotated[str | None, option("Size of the output folder, tokenizer included, as 2MB.", metavar="SIZE")]
Corpus = Annotated[list[Path] | None, option("Sample of the text to expect; repeatable.", metavar="FILE")]


@dataclass(frozen=True)
class MoreSettings:
    """What a verb takes by `--set`: the fields of settings classes that have no option of their own."""

    classes: tuple[type, ...]
    options: tuple[str, ...] = ("size", "device")  # fields with an option of their own

    def option(self) -> Any:
        """The option `--set`; `--set help` prints the settings and ends."""
        text = "Any other setting, repeatable; '--set help' lists them."
        return option(text, "--set", metavar="NAME=VALUE", callback=self._help, is_eager=True)

    def parse(self, given: Sequence[str] | None) -> dict[str, Any]:
        """The settings given as NAME=VALUE, by name."""
        types = {entry.name: get_args(entry.type)[0] for _, entry in self._fields()}
        settings = {}
        for word in given or ():
            name, equals, value = word.partition("=")
            name = name.replace("-", "_")
            if not equals:
                raise InputError(f"--set {word}: write NAME=VALUE, or '--set help' for all names")
            if name not in types:
                near = difflib.get_close_matches(name, types, 1)
                hint = f"do you mean {near[0]}?" if near else "'--set help' lists all"
                raise InputError(f"--set: there is no setting '{name}'; {hint}")
            settings[name] = _value(name, types[name], value)
        return settings

    def _fields(self) -> "Iterator[tuple[type, Field[Any]]]":
        for owner in self.classes:
            yield from ((owner, entry) for entry in fields(owner) if entry.name not in self.options)

    def _help(self, given: list[str] | None) -> list[str] | None:
        if "help" not in (given or ()):
            return given
        rows = []
        for owner, entry in self._fields():
            rows.append((entry.name, _default(owner, entry), entry.type.__metadata__[0]))  # type: ignore[union-attr]
        display.console().print(display.table(("setting", "default", ""), rows, texts=(0, 1, 2)))
        raise typer.Exit


def _default(owner: type, entry: "Field[Any]") -> str:
    """The default of a setting as `--set help` shows it; of training settings also that of the preset `paper`."""
    owners = PRESETS.values() if owner is TrainingSettings else [owner]
    values = [getattr(each, entry.name) for each in owners]
    shown = ["-" if value in (None, "") else str(value).lower() for value in values]
    return shown[0] if len({*shown}) == 1 else f"{shown[0]} (paper: {shown[1]})"


def _value(name: str, kind: Any, text: str) -> Any:
    """The value of a setting of some type from its text."""
    choices: Sequence[str] = ()
    if kind is bool:
        choices, text = ("true", "false"), text.lower()
    elif get_origin(kind) is Literal:
        choices = get_args(kind)
    if choices and text not in choices:
        raise InputError(f"--set {name}: one of {', '.join(choices)}, not '{text}'")
    if kind is bool:
        return text == "true"

    for number, what in ((int, "a whole number"), (float, "a number")):
        if number in (kind, *get_args(kind)):
            try:
                return number(text)
            except ValueError:
                raise InputError(f"--set {name}: {what} is needed, not '{text}'") from None
    return text


def existing_run(resume: bool, overwrite: bool) -> Literal["resume", "overwrite", "refuse"]:
    """What to do with an earlier run in the output folder."""
    if resume and overwrite:
        raise InputError("--resume continues the run in the folder, --overwrite deletes it: give one of them")
    if resume:
        return "resume"
    return "overwrite" if overwrite else "refuse"


def check_output(output: Path | None, overwrite: bool) -> None:
    """Refuse a file that cannot be written, or that is there already."""
    if output is None:
        return
    if output.is_dir() or not output.parent.is_dir():
        raise InputError(f"{output}: not a file in a folder that exists")
    if output.is_file() and not overwrite:
        raise InputError(f"{output}: already exists; choose another name or pass --overwrite")
