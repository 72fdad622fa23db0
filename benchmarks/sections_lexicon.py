"""The tables of the lexicon's costs and of long texts, as `sections.py` has the others."""

from benchmarks.book import Book, Record, markdown, mean
from benchmarks.records import ALL, FIRST
from benchmarks.tables import TABLES

WAYS = {"texts_per_second": "texts/s, warm", "cold_texts_per_second": "texts/s, cold"}
READ = {FIRST: "first window", ALL: "whole text", "": "left out"}


def lexicon(book: Book) -> str:
    """With against without: a fit, and predictions, on every device there is."""
    asked, rows = TABLES["lexicon"](), []
    known = {run.key: mode for mode, row in asked.items() for runs in row.values() for run in runs}
    for record in book.everywhere("lexicon"):
        mode, figures, device = known[record["key"]], record["figures"], record["device"]
        costs = _fit(figures) if record["kind"] == "lexicon_fit" else _rates(figures)
        rows += [[f"{mode}, {what}", device["name"], *cells] for what, *cells in costs]
    return markdown(["AG News", "device", "without lexicon", "with", "with / without"], rows)


def _fit(figures: Record) -> list[list[str]]:
    seconds = [f"{figures[way]['seconds']:.1f} s" for way in ("without", "with")]
    return [["fit", *seconds, f"{figures['ratio']:.2f}"]]


def _rates(figures: Record) -> list[list[str]]:
    """Texts a second of a CPU's record, milliseconds of a GPU's."""
    rows = []
    for name, ratio in figures["ratios"].items():
        values = [figures[way][name] for way in ("without", "with")]
        if name in WAYS:
            rows.append([WAYS[name], *(f"{value:,.0f}" for value in values), f"{ratio:.2f}"])
        else:
            texts = f"batch of {int(name):,} x {figures['length']}"
            rows.append([texts, *(f"{value['ms']:.3f} ms" for value in values), f"{ratio:.2f}"])
    return rows


def windows(book: Book) -> str:
    """Accuracy on long texts by what is read of them."""
    found = book.table("windows")
    accuracies: dict[tuple[str, str], list[float]] = {}
    for record in found:
        for each in record["figures"]["readings"]:
            accuracies.setdefault((each["attention"], each["lexicon"]), []).append(100 * each["accuracy"])
    rows = [[READ[attention], READ[lexicon], mean(accuracies[attention, lexicon])] for attention, lexicon in accuracies]
    figures = found[0]["figures"] if found else {"texts": 0, "median_tokens": 0}
    top = f"{figures['texts']:,} manual pages, {figures['median_tokens']:,.0f} tokens in the median; attention reads"
    return markdown([top, "lexicon reads", "accuracy"], rows)
