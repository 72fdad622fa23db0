"""Tables made of records: what stands in a cell, which cells are bold, and the caption.

A cell is the mean over its runs, with the standard deviation where there are several. Of cells that are compared the
best is bold, and every one within one standard deviation of it.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
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


Asked = tuple[Sequence[Run], Figure]  # what a cell is made of


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
    """Rows of cells, each a figure of some runs."""

    corner: str
    rows: Mapping[str, Mapping[str, Asked]]  # title of the row -> title of the column -> cell
    compare: str = "column"  # cells of a 'row' or of a 'column' are compared with each other
    given: Mapping[str, Sequence[str]] = field(default_factory=dict)  # further rows, as the paper's
    name: str = ""
    caption: str = ""

    @property
    def columns(self) -> list[str]:
        """Titles of the columns."""
        return list(dict.fromkeys(column for row in self.rows.values() for column in row))

    @property
    def runs(self) -> dict[str, Sequence[Run]]:
        """The runs of each row's first cell: of a listing those of the whole row."""
        return {label: next(iter(row.values()))[0] for label, row in self.rows.items()}


def grid(corner: str, rows: Mapping[str, Mapping[str, Sequence[Run]]], figure: Figure, **more: Any) -> Table:
    """A table of one figure, with runs for each cell; cells of a row are compared."""
    asked = {label: {column: (runs, figure) for column, runs in row.items()} for label, row in rows.items()}
    return Table(corner, asked, **{"compare": "row", **more})


def listing(corner: str, rows: Mapping[str, Sequence[Run]], figures: Sequence[Figure], **more: Any) -> Table:
    """A table of several figures, with runs for each row."""
    return Table(
        corner, {label: {each.title: (runs, each) for each in figures} for label, runs in rows.items()}, **more
    )


def parts(corner: str, run: Run, paths: Mapping[str, str], figures: Sequence[Figure]) -> Table:
    """A table of several figures of one run, with a part of what it measured for each row."""
    asked = {}
    for label, path in paths.items():
        asked[label] = {each.title: ([run], replace(each, value=f"{path}.{each.value}")) for each in figures}
    return Table(corner, asked)


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


def mark(cells: Iterable[Cell]) -> None:
    """Make the best of some cells bold, and those within one standard deviation of it."""
    values = [(cell.value, cell) for cell in cells if cell.value is not None]
    if len(values) < 2 or not values[0][1].better:
        return
    best, cell = max(values, key=lambda each: each[1].better * each[0])
    for value, each in values:
        each.is_bold = abs(value - best) <= cell.deviation


def markdown(table: Table, book: Book) -> str:
    """The table and its caption; empty where there are no records. Raises `InputError` for records of two states."""
    used: list[Record] = []
    rows: dict[str, list[Cell]] = {}
    for label, row in table.rows.items():
        records = {column: book.of(runs) for column, (runs, _) in row.items()}
        cells = {column: cell_of(records[column], figure) for column, (_, figure) in row.items()}
        if any(cell.value is not None for cell in cells.values()):
            rows[label] = [cells.get(column, Cell("-")) for column in table.columns]
            used += chain(*records.values())
    if not rows:
        return ""
    used = list({record["key"]: record for record in used}.values())
    check_one_state(table.name, used)
    columns = list(zip(*rows.values(), strict=True))
    for group in rows.values() if table.compare == "row" else columns:
        mark(group)

    lines = [[table.corner, *table.columns], ["---"] + ["---:"] * len(columns)]
    lines += [[label, *map(str, cells)] for label, cells in rows.items()]
    lines += [[label, *cells] for label, cells in table.given.items()]
    kept = [0] + [at for at, column in enumerate(columns, 1) if any(cell.value is not None for cell in column)]
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
