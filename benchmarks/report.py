"""From result files to pages: `benchmarks/README.md`, the marked parts of the README, and the plots.

Every number in those pages comes through here, and every sentence under a table is checked against the records.
"""

from collections.abc import Callable
from pathlib import Path

from benchmarks import readings, records, sections
from benchmarks.book import Book, Record
from benchmarks.tables import TABLES

ROOT = Path(__file__).parent.parent
PLOTS = {
    "classification": "plots/bytes.png",
    "sat": "plots/anchors.png",
    "compression": "plots/cosine.png",
    "throughput": "plots/speed.png",
    "growth": "plots/growth.png",
    "size": "plots/pareto.png",
    "latency": "plots/stages.png",
}
SECTIONS: dict[str, Callable[[Book], str]] = {name: getattr(sections, name) for name in TABLES}
OVERVIEW = "overview"  # drawn in the README alone


def pages(found: list[Record]) -> dict[Path, str]:
    """Every generated page and what it should say."""
    book = Book(found)
    drawn = {name: section(book) if book.everywhere(name) else "" for name, section in SECTIONS.items()}
    body = [readings.OPENING]
    for name, text in drawn.items():
        if text:
            plot = [f"![]({PLOTS[name]})"] if name in PLOTS else []
            parts = [f"## {name}", text, sections.made(book.everywhere(name)), *plot, readings.text(name, book)]
            body.append("\n\n".join(part for part in parts if part))
    written = {ROOT / "benchmarks" / "README.md": "\n\n".join(body) + "\n"}

    front = (ROOT / "README.md").read_text("utf8")
    for name, text in {**drawn, OVERVIEW: sections.overview(book)}.items():
        begin, end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->"
        if begin in front:
            before, rest = front.split(begin, 1)
            front = before + begin + (text or NOT_MEASURED) + end + rest.split(end, 1)[1]
    written[ROOT / "README.md"] = front
    return written


NOT_MEASURED = "(To be measured again: what this table measures has changed.)"


def stale_pages(found: list[Record]) -> dict[Path, str]:
    """Pages that do not say what they should, with what they should say."""
    return {path: text for path, text in pages(found).items() if not path.exists() or path.read_text("utf8") != text}


def check_pages() -> tuple[list[str], list[str]]:
    """What is wrong: sentences the records contradict, stale pages; and sentences that wait for their records."""
    found = records.load()
    wrong, unmeasured = readings.untrue(Book(found))
    stale = [path.name for path in stale_pages(found)]
    return wrong + ([f"stale: {', '.join(stale)}; run 'make report'"] if stale else []), unmeasured


def write_pages() -> None:
    """Write the pages and draw the plots."""
    found = records.load()
    for path, text in stale_pages(found).items():
        path.write_text(text, "utf8")
    from benchmarks import plots

    plots.draw(found)
