"""What the verbs share: arguments and options of one meaning, `--set`, notices, printing a result."""

import difflib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from rich.console import Console

from ade.cli import display
from ade.data.columns import LABEL, TEXT
from ade.data.records import Format
from ade.errors import InputError
from ade.settings import PRESETS, TrainingSettings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAMPLE = 1000  # texts in which unknown tokens are counted
SHORT_NAMES = {"lr": "learning_rate", "bs": "batch_size", "wd": "weight_decay"}  # as people call settings
LANGUAGES = "(see the page 'Languages' of the documentation)"


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
        settings = {}
        for word in given or ():
            name, equals, value = word.partition("=")
            if not equals:
                raise InputError(f"--set {word}: write NAME=VALUE, or '--set help' for all names")
            known = self.meant_by(name)
            if known != name.replace("-", "_"):
                hint = f"do you mean {known}?" if known else "'--set help' lists all"
                raise InputError(f"--set: there is no setting '{name}'; {hint}")
            settings[known] = _value(known, get_args(self._fields()[known][1].type)[0], value)
        return settings

    def meant_by(self, name: str) -> str | None:
        """The setting of this name, or the one whose name is nearest to it."""
        names = [*self._fields()]
        near = difflib.get_close_matches(SHORT_NAMES.get(name, name.replace("-", "_")), names, 1, cutoff=0.7)
        return near[0] if near else None

    @staticmethod
    def of(verb: Callable[..., None]) -> "MoreSettings | None":
        """What a verb takes by `--set`, if anything."""
        more = signature(verb).parameters.get("more")
        return None if more is None else more.annotation.__metadata__[0].callback.__self__

    def _fields(self) -> "dict[str, tuple[type, Field[Any]]]":
        known = {entry.name: (owner, entry) for owner in self.classes for entry in fields(owner)}
        return {name: each for name, each in known.items() if name not in self.options}

    def _help(self, given: list[str] | None) -> list[str] | None:
        if "help" not in (given or ()):
            return given
        table = display.plain_table("setting", "default", "", wrap=True)
        table.columns[1].justify = table.columns[2].justify = "left"
        for name, (owner, entry) in self._fields().items():
            table.add_row(name, _default(owner, entry), entry.type.__metadata__[0])  # type: ignore[union-attr]
        display.console().print(table)
        raise typer.Exit


def _default(owner: type, entry: "Field[Any]") -> str:
    """The default of a setting as `--set help` shows it; of training settings also that of the preset `paper`."""
    owners = PRESETS.values() if owner is TrainingSettings else [owner]
    values = [getattr(each, entry.name) for each in owners]
    shown = ["-" if value in (None, "") else str(value).lower() for value in values]
    return shown[0] if len({*shown}) == 1 else f"{shown[0]} (paper: {shown[1]})"


def _value(name: str, kind: Any, text: str) -> Any:
    """The value of a setting of some type from its text."""
    choices = ("true", "false") if kind is bool else get_args(kind) if get_origin(kind) is Literal else ()
    text = text.lower() if kind is bool else text
    if choices and text not in choices:
        raise InputError(f"--set {name}: one of {', '.join(choices)}, not '{text}'")
    if kind is bool:
        return text == "true"
    number = next((each for each in (int, float) if each in (kind, *get_args(kind))), None)
    if number is None:
        return text
    try:
        return number(text)
    except ValueError:
        what = "a whole number" if number is int else "a number"
        raise InputError(f"--set {name}: {what} is needed, not '{text}'") from None


@dataclass
class Verbosity:
    """What `--quiet` says, for the whole process."""

    quiet: bool = False


verbosity = Verbosity()


def say(message: str) -> None:
    """Print a notice on stderr, unless --quiet was given."""
    if not verbosity.quiet:
        print(f"ade: {message}", file=sys.stderr)


def say_columns(source: str, dataset: Any) -> None:
    """Say which columns were found, where they are not called `text` and `label`."""
    columns = getattr(dataset, "columns", None)
    if columns not in (None, (TEXT, LABEL)):
        say(f"{source}: texts of the column '{columns[0]}', labels of '{columns[1]}'")


def say_remarks(source: str, dataset: Any, problem: str | None) -> None:
    """Say what to know before training on labelled texts."""
    from ade.data.dataset import Dataset, remarks

    for remark in remarks(dataset, problem) if isinstance(dataset, Dataset) else ():
        say(f"{source}: {remark}")


class UnknownTokenNotice:
    """Says once of texts, which may come chunk by chunk, that their tokens are unknown, and what that means."""

    def __init__(self, tokenizer: "Tokenizer", meaning: str) -> None:
        from ade.data.tokens import unknown_ids

        self.tokenizer, self.unknown_ids, self.meaning = tokenizer, unknown_ids(tokenizer), meaning
        self.texts = self.unknown = self.tokens = 0

    def see(self, texts: Sequence[str]) -> None:
        """Count the tokens of texts, until `SAMPLE` texts have been seen or the line has been printed."""
        if self.texts >= SAMPLE:
            return
        from ade.data.tokens import MAX_SHARE, count_unknown

        texts = texts[: SAMPLE - self.texts]
        unknown, tokens = count_unknown(self.tokenizer, texts, self.unknown_ids)
        self.texts, self.unknown, self.tokens = self.texts + len(texts), self.unknown + unknown, self.tokens + tokens
        if self.unknown > MAX_SHARE * self.tokens:
            self.texts, share = SAMPLE, 100 * self.unknown / self.tokens
            say(f"{share:.0f}% of the tokens of these texts are unknown or single bytes: {self.meaning} {LANGUAGES}")


def existing_run(resume: bool, overwrite: bool) -> Literal["resume", "overwrite", "refuse"]:
    """What to do with an earlier run in the output folder."""
    if resume and overwrite:
        raise InputError("--resume continues the run in the folder, --overwrite deletes it: give one of them")
    return "resume" if resume else "overwrite" if overwrite else "refuse"


def check_output(output: Path | None, overwrite: bool) -> None:
    """Refuse a file that cannot be written, or that is there already."""
    if output is None:
        return
    if output.is_dir() or not output.parent.is_dir():
        raise InputError(f"{output}: not a file in a folder that exists")
    if output.is_file() and not overwrite:
        raise InputError(f"{output}: already exists; choose another name or pass --overwrite")


def show(value: Mapping[str, Any], as_json: bool, draw: Callable[[Console], None]) -> None:
    """Print a result as one JSON object, or as `draw` prints it for a person."""
    if as_json:
        print(json.dumps(value))
    else:
        draw(display.console())
