"""The table of encoders of sentences, as `sections.py` has the others."""

from typing import Any

from benchmarks.book import Book, Record, markdown, mean, size_of
from benchmarks.tables import TABLES
from benchmarks.tables_sentence import LANGUAGES, RATES, SIMILARITY

ASKED = {"tatoeba": LANGUAGES, "stsb": SIMILARITY}
MULTILINGUAL_PEERS = {"multilingual-e5-small": "teacher", "mean of its table": "mean"}
TASKS = ["STS-B", "Banking77, nearest", "TREC, nearest", "title finds text, at 1", "at 10"]


def sentence(book: Book) -> str:
    """What vectors are worth by task, bytes, and texts a second of all encoders in one run."""
    grid = TABLES["sentence"]()
    rates = book.of(grid.pop(RATES)[""])
    rows = []
    for name, columns in grid.items():
        for column, runs in columns.items():
            found = book.of(runs)
            if found:
                speed = _speed(rates, name)
                rows.append([f"{name}, {column}" if column else name, *_tasks(found), *speed])
    header = ["encoder", *TASKS, "size", "texts/s, 2 CPU cores", "one text"]
    return markdown(header, rows)


def _tasks(found: list[Record]) -> list[str]:
    tasks: list[dict[str, Any]] = [record["figures"]["tasks"] for record in found]
    values = [
        mean([100 * each["stsb"]["test"] for each in tasks], 1),
        *(mean([each["nearest"][data] for each in tasks], 1) for data in ("banking77", "trec")),
        *(mean([each["titles"][count] for each in tasks], 1) for count in ("1", "10")),
    ]
    return [*values, size_of(found[0]["figures"]["bytes"])]


def _speed(rates: list[Record], name: str) -> list[str]:
    measured = rates[0]["figures"].get(name) if rates else None
    if measured is None:
        return ["-", "-"]
    return [f"{measured['texts_per_second']:,.0f}", f"{measured['ms']:.2f} ms"]


def multilingual(book: Book) -> str:
    """The share of translations found and the similarity, by language, of encoders and what they come from."""
    rows: list[list[str]] = []
    for name, columns in TABLES["multilingual"]().items():
        for column, runs in columns.items():
            if not (found := book.of(runs)):
                continue
            figures = found[-1]["figures"]
            if not rows:
                rows += [[*_languages(other, figures[key]), "-"] for other, key in MULTILINGUAL_PEERS.items()]
            named = f"{name}, {column}" if column else name
            rows.append([*_languages(named, figures["encoder"]), size_of(figures["bytes"])])
    header = ["encoder", "Tatoeba, mean", *LANGUAGES, "STS-B, mean", *SIMILARITY, "size"]
    return markdown(header, rows)


def _languages(name: str, tasks: dict[str, dict[str, float]]) -> list[str]:
    translations, similar = ([tasks[task][each] for each in asked] for task, asked in ASKED.items())
    return [name, *(f"{value:.1f}" for part in (translations, similar) for value in (sum(part) / len(part), *part))]
