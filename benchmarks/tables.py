"""Tables made of records: what stands in a cell, which cells are bold, and the caption.

A cell is the mean over its runs, with the standard deviation where there are several. Of cells that are compared the
best is bold, and every one within one standard deviation of it.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from benchmarks.records import Record, Run, check_one_state

OLD = "†"  # marks rows whose records were made before records had identities
NAMES = {
    "ag_news": "AG News",
    "dbpedia_14": "DBpedia-14",
    "wordnet": "WordNet glosses",
    "sst2": "SST-2",
    "trec": "TREC",
    "banking77": "Banking77",
}


@dataclass(frozen=True)
class Figure:
    """One figure of a record: its title, where it is found, how it is written, and whether more or less is better."""

    title: str
    value: str | Callable[[Any], float | None]  # of the figures of a record; names are joined by dots
    write: Callable[[float], str]
    better: int = 0  # 1: more; -1: less; 0: not compared
    spread: bool = True  # whether the standard deviation over runs is written

    def of(self, figures: Any) -> float | None:
        """The figure of a record; None where it is missing."""
        return at(figures, self.value) if isinstance(self.value, str) else self.value(figures)


@dataclass
class Cell:
    """What is written, and the value that is compared, with its standard deviation."""

    text: str
    value: float | None = None
    deviation: float = 0.0
    better: int = 0
    is_bold: bool = False

    def __str__(self) -> str:
        return f"**{self.text}**" if self.is_bold else self.text


@dataclass(frozen=True)
class Table:
    """Rows of cells. A grid has one figure and runs for each cell; a listing has several figures and runs for each row.

    With `parts`, the rows of a listing are the parts of its records.
    """

    corner: str
    rows: Mapping[str, Mapping[str, Sequence[Run]]]  # a listing has one column, ""
    figures: Sequence[Figure]
    compare: str = "column"  # cells of a 'row' or of a 'column' are compared with each other
    parts: Callable[[Record], Mapping[str, Any]] | None = None  # label -> figures
    given: Mapping[str, Sequence[str]] = field(default_factory=dict)  # further rows, as the paper's
    name: str = ""
    caption: str = ""

    @property
    def columns(self) -> list[str]:
        """Titles of the columns of runs."""
        return list(dict.fromkeys(column for row in self.rows.values() for column in row))

    @property
    def cells(self) -> list[tuple[str, Sequence[Run]]]:
        """What runs are called, and the runs."""
        every = ((row, column, runs) for row, columns in self.rows.items() for column, runs in columns.items())
        return [(f"{row}, {column}".removesuffix(", "), runs) for row, column, runs in every]

    def lines(self, book: "Book") -> tuple[list[str], list[list[Cell]], list[list[Record]]]:
        """Header, rows of cells with their label first, and the records of each row."""
        groups = {label: [book.of(row.get(column, ())) for column in self.columns] for label, row in self.rows.items()}
        if self.parts is not None:
            every = [record for (records,) in groups.values() for record in records]
            groups = {name: [[{**each, "figures": part}]] for each in every for name, part in self.parts(each).items()}
        rows = [
            [Cell(label), *(cell_of(records, figure) for records in columns for figure in self.figures)]
            for label, columns in groups.items()
        ]
        for group in rows if self.compare == "row" else list(zip(*rows, strict=True))[1:]:
            mark([cell for cell in group if cell.value is not None])
        titles = self.columns if self.columns != [""] else [figure.title for figure in self.figures]
        return [self.corner, *titles], rows, [list(chain(*columns)) for columns in groups.values()]


def grid(corner: str, rows: Mapping[str, Mapping[str, Sequence[Run]]], figure: Figure, **more: Any) -> Table:
    """A table of one figure, each cell the mean of its runs; cells of a row are compared."""
    return Table(corner, rows, [figure], **{"compare": "row", **more})


def listing(corner: str, rows: Mapping[str, Sequence[Run]], figures: Sequence[Figure], **more: Any) -> Table:
    """A table of several figures with a row for each group of runs, or for each part of each record."""
    return Table(corner, {label: {"": runs} for label, runs in rows.items()}, figures, **more)


def named(make: Callable[[], Table]) -> Table:
    """The table that a function makes, by the function's name, with its docstring as caption."""
    return replace(make(), name=make.__name__, caption=" ".join((make.__doc__ or "").split()))


class Book:
    """All records, found by the runs that ask for them."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.by_key = {record["key"]: record for record in records}

    def of(self, runs: Sequence[Run]) -> list[Record]:
        """The records of these runs, those that exist."""
        return [self.by_key[run.key] for run in runs if run.key in self.by_key]


def cell_of(records: Sequence[Record], figure: Figure) -> Cell:
    """The mean of a figure over records."""
    found = [figure.of(record["figures"]) for record in records]
    values = [value for value in found if value is not None]
    if not values:
        return Cell("-")
    value, deviation = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
    text = figure.write(value)
    if len(values) > 1 and figure.spread:
        text += f" ± {figure.write(deviation)}"
    return Cell(text, value, deviation, figure.better)


def mark(cells: Sequence[Cell]) -> None:
    """Make the best of some cells bold, and those within one standard deviation of it."""
    if len(cells) < 2 or not cells[0].better:
        return
    best = max(cells, key=lambda cell: cell.better * (cell.value or 0.0))
    for cell in cells:
        cell.is_bold = abs((cell.value or 0.0) - (best.value or 0.0)) <= best.deviation


def markdown(table: Table, book: Book) -> str:
    """The table and its caption; empty where there are no records. Raises `InputError` for records of two states."""
    header, rows, used = table.lines(book)
    filled = [number for number, row in enumerate(rows) if any(cell.value is not None for cell in row)]
    if not filled:
        return ""
    rows, used = [rows[number] for number in filled], [used[number] for number in filled]
    every = [record for records in used for record in records]
    check_one_state(table.name, every)
    old = [any("identity" not in record for record in records) for records in used]
    kept = [0] + [at for at in range(1, len(header)) if any(row[at].value is not None for row in rows)]
    lines = [header]
    for row, is_old in zip(rows, old, strict=True):
        label = f"{row[0].text} {OLD}" if is_old and not all(old) else row[0].text
        lines.append([label, *map(str, row[1:])])
    lines += [[label, *cells] for label, cells in table.given.items()]
    lines = [[line[at] for at in kept] for line in lines]
    lines.insert(1, ["---"] + ["---:"] * (len(kept) - 1))
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{text}\n\n{table.caption} {origin(every, any(old), all(old))}"


def origin(records: Sequence[Record], some_old: bool, all_old: bool) -> str:
    """Where the records of a table were made, and from which state."""
    devices = {}
    for record in records:
        jobs = record.get("jobs", 1)
        devices[record["device"].get("name", record["device"]["kind"]) + ("" if jobs == 1 else f", {jobs} at once")] = 1
    states = dict.fromkeys(record["identity"]["sources"][:8] for record in records if "identity" in record)
    parts = ["; ".join(devices), *(f"sources {each}" for each in states)]
    if some_old:
        parts.append("recorded before identities" if all_old else f"{OLD} recorded before identities")
    return f"({'; '.join(parts)}.)"


def percent(value: float) -> str:
    """A fraction, in percent."""
    return f"{100 * value:.2f}"


def nbytes(value: float) -> str:
    """A number of bytes."""
    return f"{value / 1e6:.1f} MB" if value < 1e9 else f"{value / 1e9:.1f} GB"


def digits(count: int, unit: str = "") -> Callable[[float], str]:
    """A number with so many decimals."""
    return lambda value: f"{value:,.{count}f}{unit}"


def at(figures: Any, names: str) -> Any:
    """What is found by names joined by dots, each within the one before; None where one is missing."""
    for name in names.split("."):
        if not isinstance(figures, Mapping) or name not in figures:
            return None
        figures = figures[name]
    return figures
