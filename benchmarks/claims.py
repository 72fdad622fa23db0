"""A sentence under a table, with what must hold of the records for it to be true.

A sentence that claims an order or a difference carries its checks. Where the records of a check are not there, the
sentence is left out of the page; where they say otherwise, `python -m benchmarks report --check` fails and names it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ade.evaluation import spread
from benchmarks.book import Book, Record
from benchmarks.tables import TABLES

Check = Callable[[Book], bool]
Cell = tuple[str, str, str]  # table, row and column, as in `tables.py`


class MissingError(Exception):
    """Records that a check needs are not there."""


@dataclass(frozen=True)
class Claim:
    """A sentence, and what it rests on."""

    sentence: str
    checks: tuple[Check, ...]

    def holds(self, book: Book) -> bool | None:
        """Whether every check holds; None where one cannot be made, for want of records."""
        try:
            return all(check(book) for check in self.checks)
        except MissingError:
            return None


def says(sentence: str, *checks: Check) -> Claim:
    """A sentence with its checks; without any, it only says what was done."""
    return Claim(sentence, checks)


def records(book: Book, cell: Cell) -> list[Record]:
    """All records of a cell."""
    table, row, column = cell
    runs = TABLES[table]()[row][column]
    found = book.of(runs)
    if len(found) < len(runs) or not found:
        raise MissingError(cell)
    return found


def values(book: Book, cell: Cell, metric: str = "accuracy") -> list[float]:
    """What the runs of a cell reached, in percent."""
    return [100 * record["figures"][metric] for record in records(book, cell)]


def mean(book: Book, cell: Cell, metric: str = "accuracy") -> float:
    """Mean over seeds, in percent."""
    return spread(values(book, cell, metric))[0]


def ahead(cell: Cell, *others: Cell, by: float = 0.0) -> Check:
    """The cell's mean is above that of each of the others, by more than so many points."""
    return lambda book: all(mean(book, cell) > mean(book, other) + by for other in others)


def not_ahead(cell: Cell, *others: Cell, by: float = 0.0) -> Check:
    """The cell's mean is not above that of any of the others by more than so many points."""
    return lambda book: all(mean(book, cell) <= mean(book, other) + by for other in others)


def within(cell: Cell, *others: Cell, points: float) -> Check:
    """The means differ by at most so many points."""
    return lambda book: all(abs(mean(book, cell) - mean(book, other)) <= points for other in others)


def within_spread(cell: Cell, *others: Cell) -> Check:
    """The means differ by at most the larger standard deviation over seeds."""

    def check(book: Book) -> bool:
        middle, deviation = spread(values(book, cell))
        found = [spread(values(book, other)) for other in others]
        return all(abs(middle - there) <= max(deviation, around) for there, around in found)

    return check


def near(cell: Cell, value: float, points: float) -> Check:
    """The cell's mean is at most so many points from a value of the paper."""
    return lambda book: abs(mean(book, cell) - value) <= points


def below(cell: Cell, *published: float) -> Check:
    """The cell's mean is below each of these values of the paper."""
    return lambda book: all(mean(book, cell) < value for value in published)


def times_the_bytes(cell: Cell, other: Cell, least: float) -> Check:
    """The cell's model takes at least so many times the bytes of the other's, tokenizers included."""

    def check(book: Book) -> bool:
        first, second = (records(book, each)[0]["figures"]["bytes"] for each in (cell, other))
        return first >= least * second

    return check


def every(table: str, test: Callable[[Record], bool], kind: str = "") -> Check:
    """A test of every record of a table (of one kind), on every device; at least one must be there."""

    def check(book: Book) -> bool:
        found = [record for record in book.everywhere(table) if kind in ("", record["kind"])]
        if not found:
            raise MissingError(table)
        return all(test(record) for record in found)

    return check


def whole(table: str, test: Callable[[list[Record]], bool]) -> Check:
    """A test of all records of a table together, none missing."""

    def check(book: Book) -> bool:
        found = book.table(table)
        if len(found) < sum(len(runs) for row in TABLES[table]().values() for runs in row.values()):
            raise MissingError(table)
        return test(found)

    return check


def rising(numbers: Sequence[float]) -> bool:
    """Each is larger than the one before."""
    return all(one < two for one, two in pairwise(numbers))


def flat(numbers: Sequence[float], share: float) -> bool:
    """The largest is at most this share above the smallest."""
    return max(numbers) <= (1 + share) * min(numbers)
