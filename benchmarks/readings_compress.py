"""What the tables of other models' packed tables say, in words: each sentence with the checks it rests on."""

from collections.abc import Callable

from benchmarks.book import Book, Record
from benchmarks.claims import Check, Claim, MissingError, records, says
from benchmarks.sections_compress import mean_of
from benchmarks.tables_compress import OURS, SOURCE

E5 = "multilingual-e5-small"


def change(book: Book, model: str, size: str, task: str, of: Callable[[list[float]], float]) -> float:
    """Points that a task has after compression, less those before: the mean over languages, or the least."""
    figures = records(book, ("compress", model, size))[0]["figures"]
    before, after = figures["before"][task], figures["after"][task]
    return of([after[language] - before[language] for language in before])


def average(numbers: list[float]) -> float:
    """Return the mean."""
    return sum(numbers) / len(numbers)


def rise(book: Book, model: str, size: str) -> float:
    """How much the perplexity of a model rises, in percent."""
    figures = records(book, ("compress", model, size))[0]["figures"]
    return 100 * (figures["after"]["perplexity"] / figures["before"]["perplexity"] - 1)


def _frontier(book: Book) -> tuple[Record, list[Record], list[Record]]:
    """The figures of the source, of ours and of all others, by bytes."""
    found = {
        (record["settings"]["method"], record["settings"]["size"]): record["figures"]
        for record in book.everywhere("frontier")
    }
    if (SOURCE, "") not in found:
        raise MissingError("frontier")
    ours = [figures for (method, _), figures in found.items() if method == OURS]
    others = [figures for (method, _), figures in found.items() if method not in (OURS, SOURCE)]
    return found[SOURCE, ""], sorted(ours, key=_bytes), sorted(others, key=_bytes)


def _bytes(figures: Record) -> int:
    return figures["bytes"]


def none_is_better(task: str, points: float = 0.0) -> Check:
    """No other way has as few bytes as one of ours and more than so many points above it."""

    def check(book: Book) -> bool:
        _, ours, others = _frontier(book)
        pairs = [(mine, other) for mine in ours for other in others if other["bytes"] <= mine["bytes"]]
        return all(mean_of(mine[task]) + points >= mean_of(other[task]) for mine, other in pairs)

    return check


def at_most_below(size: str, points: float, task: str = "tatoeba") -> Check:
    """In this size, ours is at most so many points below the source."""

    def check(book: Book) -> bool:
        source = _frontier(book)[0]
        figures = records(book, ("frontier", OURS, size))[0]["figures"]
        return mean_of(figures[task]) >= mean_of(source[task]) - points

    return check


READINGS: dict[str, list[Claim]] = {
    "compress": [
        says(
            "No corpus was given and nothing tuned: word lists say what is used. Rates are of the first 400 test "
            "sentences or pairs of each language for e5, of all pairs for the other encoders, and of the first 20,000 "
            "tokens of WikiText-2's test text for decoders."
        ),
        says(
            "multilingual-e5-small in 12 MB, 16 times smaller than in float16, loses a point on Tatoeba, where the "
            "target was at most 1.0 and at most 2.0 for the worst language: both are missed by a little. STS-B is "
            "within its target of 1 point in all six languages. The other weights stay as they are, so that the target "
            "of 24 MB in all is missed, too.",
            lambda book: -1.2 < change(book, E5, "12MB", "tatoeba", average) < -1.0,
            lambda book: -2.5 < change(book, E5, "12MB", "tatoeba", min) < -2.0,
            lambda book: change(book, E5, "12MB", "stsb", min) > -1.0,
            lambda book: records(book, ("compress", E5, "12MB"))[0]["figures"]["weights"]["after"] > 24e6,
        ),
    ],
}
