"""The README's chart: every model of few bytes and every peer is in it, and its sentence comes from the records."""

import re

import pytest

from benchmarks import chart, records, report
from benchmarks.book import SHORT, Book
from benchmarks.tables import PACKED, PEERS


@pytest.fixture(scope="module")
def book() -> Book:
    return Book(records.load())


def test_the_chart_shows_every_packed_model_and_every_peer(book):
    shown = chart.sizes(book)
    assert {*(f"ADE, {size}" for size in PACKED), *(SHORT[peer] for peer in PEERS), "ADE"} <= shown.keys()
    for found in shown.values():
        figures = found[0]["figures"]
        assert figures["bytes"] > figures.get("tokenizer_bytes", 0)


def test_the_sentence_has_the_mean_and_the_bytes_of_the_records(book):
    said = " ".join(chart.sentence(book).split())
    for name in chart.CHART:
        found = chart.sizes(book)[name]
        accuracy = 100 * sum(record["figures"]["accuracy"] for record in found) / len(found)
        megabytes = found[0]["figures"]["bytes"] / 1e6
        pattern = rf"{re.escape(name.partition(', ')[0])} reaches {accuracy:.2f}[^,]*% in {megabytes:.1f} MB"
        assert re.search(pattern, said), name
    assert chart.sentence(Book([])) == ""


def test_marked_parts_are_filled_and_the_rest_stays():
    pages = report.pages([])
    for path, marked in report.MARKED.items():
        before, after = path.read_text("utf8"), pages[path]
        for name in marked:
            assert f"<!-- begin {name} -->\n" in after
            pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
            before, after = pattern.sub(r"\1\2", before), pattern.sub(r"\1\2", after)
        assert before == after
    assert report.NOT_MEASURED in pages[report.ROOT / "README.md"]
