"""From result files to pages: `benchmarks/README.md`, the marked parts of the README and of a page of docs, the plots.

Every number in those pages comes through here, and every sentence under a table is checked against the records.
"""

from collections.abc import Callable
from pathlib import Path

from benchmarks import chart, readings, records, sections, sections_scale
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
    "frontier": "plots/frontier.png",
    "frontier_decoder": "plots/frontier_decoder.png",
    "sentence": "plots/encoders.png",
}
SECTIONS: dict[str, Callable[[Book], str]] = {name: getattr(sections, name) for name in TABLES}
MARKED: dict[Path, dict[str, Callable[[Book], str]]] = {  # pages with parts between marks, and what stands there
    ROOT / "README.md": {"chart": chart.sentence, "install": sections.install},
    ROOT / "docs" / "reproducing.md": {"overview": sections.overview},
    ROOT / "docs" / "scale.md": {"billion": sections_scale.billion},
}


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

    for path, marked in MARKED.items():
        text = path.read_text("utf8")
        for name, section in marked.items():
            text = _filled(text, name, section(book))
        written[path] = text
    return written


def _filled(page: str, name: str, text: str) -> str:
    """A page with a text between the marks of this name."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    before, rest = page.split(begin, 1)
    return before + begin + (text or NOT_MEASURED) + "\n" + end + rest.split(end, 1)[1]


NOT_MEASURED = "(To be measured again: what this table measures has changed.)"


def stale_pages(found: list[Record]) -> dict[Path, str]:
    """Pages that do not say what they should, with what they should say."""
    return {path: text for path, text in pages(found).items() if not path.exists() or path.read_text("utf8") != text}


def check_pages() -> tuple[list[str], list[str]]:
    """What is wrong: sentences the records contradict, stale pages; and sentences that wait for their records."""
    found = records.load()
    wrong, unmeasured = readings.untrue(Book(found))
    stale = [str(path.relative_to(ROOT)) for path in stale_pages(found)]
    return wrong + ([f"stale: {', '.join(stale)}; run 'make report'"] if stale else []), unmeasured


def write_pages() -> None:
    """Write the pages and draw the plots."""
    found = records.load()
    for path, text in stale_pages(found).items():
        path.write_text(text, "utf8")
    from benchmarks import plots

    plots.draw(found)
