"""From result files to pages: `benchmarks/README.md`, the marked parts of the README, and the plots.

    python -m benchmarks.report [--check]

Every figure in those pages comes through here. `--check` writes nothing and fails where a page is stale.
"""

import argparse
import sys
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


def pages(found: list[Record]) -> dict[Path, str]:
    """Every generated page and what it should say."""
    book = Book(found)
    drawn = {name: section(book) if book.table(name) else "" for name, section in SECTIONS.items()}
    body = [readings.OPENING]
    for name, text in drawn.items():
        if text:
            plot = f"\n\n![]({PLOTS[name]})" if name in PLOTS else ""
            body.append(f"## {name}\n\n{text}{plot}\n\n{readings.READINGS.get(name, '')}".rstrip())
    written = {ROOT / "benchmarks" / "README.md": "\n\n".join(body) + "\n"}
    front = (ROOT / "README.md").read_text("utf8")
    for name, text in drawn.items():
        begin, end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->"
        if begin in front:
            before, rest = front.split(begin, 1)
            front = before + begin + text + end + rest.split(end, 1)[1]
    written[ROOT / "README.md"] = front
    return written


def main() -> None:
    """Write the pages, or only check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a page is stale")
    check = parser.parse_args().check
    found = records.load()
    stale = {path: text for path, text in pages(found).items() if not path.exists() or path.read_text("utf8") != text}
    if check:
        sys.exit(f"stale: {', '.join(path.name for path in stale)}; run 'make report'" if stale else 0)
    for path, text in stale.items():
        path.write_text(text, "utf8")
    from benchmarks import plots

    plots.draw(found)


if __name__ == "__main__":
    main()
