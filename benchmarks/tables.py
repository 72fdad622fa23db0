"""Tables made of records: what stands in a cell, which cells are bold, and the caption.

A cell is the mean over its runs, with the standard deviation where there are several. Of cells that are compared the
best is bold, and every one within one standard deviation of it.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.records import Record, Run, check_one_state

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

    def records(self, book: "Book") -> dict[str, list[list[Record]]]:
        """The records of each row, column by column."""
        rows = {label: [book.of(row.get(column, ())) for column in self.columns] for label, row in self.rows.items()}
        if self.parts is not None:
            whole = [record for (records,) in rows.values() for record in records]
            rows = {name: [[{**each, "figures": part}]] for each in whole for name, part in self.parts(each).items()}
        return {label: columns for label, columns in rows.items() if any(columns)}


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
    cells = [cell for cell in cells if cell.value is not None]
    if len(cells) < 2 or not cells[0].better:
        return
    best = max(cells, key=lambda cell: cell.better * (cell.value or 0.0))
    for cell in cells:
        cell.is_bold = abs((cell.value or 0.0) - (best.value or 0.0)) <= best.deviation


def markdown(table: Table, book: Book) -> str:
    """The table and its caption; empty where there are no records. Raises `InputError` for records of two states."""
    found = table.records(book)
    if not found:
        return ""
    used = [record for columns in found.values() for records in columns for record in records]
    check_one_state(table.name, used)
    rows = [[cell_of(records, figure) for records in columns for figure in table.figures] for columns in found.values()]
    for group in rows if table.compare == "row" else zip(*rows, strict=True):
        mark(group)
    titles = [figure.title for figure in table.figures] if table.columns == [""] else table.columns
    lines = [[table.corner, *titles]]
    lines += [[label, *map(str, row)] for label, row in zip(found, rows, strict=True)]
    lines += [[label, *cells] for label, cells in table.given.items()]
    lines.insert(1, ["---"] + ["---:"] * len(titles))
    kept = [
        0,
        *(at for at, column in enumerate(zip(*rows, strict=True), 1) if any(cell.text != "-" for cell in column)),
    ]
    text = "\n".join("| " + " | ".join(line[at] for at in kept) + " |" for line in lines)
    return f"{text}\n\n{table.caption} {origin(used)}"


def origin(records: Sequence[Record]) -> str:
    """Where the records of a table were made, and from which state."""
    parts = []
    for record in records:
        jobs = record.get("jobs", 1)
        parts.append(record["device"]["name"] + ("" if jobs == 1 else f", {jobs} at once"))
    parts += [f"sources {record['identity']['sources'][:8]}" for record in records if "identity" in record]
    old = sum("identity" not in record for record in records)
    if old:
        parts.append(f"{old} of {len(records)} runs recorded before identities")
    return f"({'; '.join(dict.fromkeys(parts))}.)"


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
