"""From records to pages: `benchmarks/README.md`, the marked parts of README and docs, the plots.

Every number in those pages comes through here.
"""

from pathlib import Path

from benchmarks import plots, records
from benchmarks.records import ROOT, Record
from benchmarks.runs import TABLES
from benchmarks.subjects.accuracy import accuracy, chart
from benchmarks.subjects.scale import install
from benchmarks.tables import Book, Table, markdown, named

PAGE = ROOT / "benchmarks" / "README.md"
OPENING = """# Results

Made by `python -m benchmarks report` from the records in `results/`; `python -m benchmarks reproduce` makes those that
are missing. Bold: the best of a row or column, and what is within one standard deviation of it. Training sets are parts
of the official ones, so the paper's figures stand here for orientation. A record keeps its settings, device, versions,
and hashes of the sources, packages, data and models it was made from."""
MARKED: dict[Path, tuple[Table, ...]] = {  # pages with parts between marks, and the tables that stand there
    ROOT / "README.md": (named(chart), named(install)),
    ROOT / "docs" / "reproducing.md": (named(accuracy),),
}
NOT_MEASURED = "(Not measured yet.)"


def pages(found: list[Record]) -> dict[Path, str]:
    """Every generated page and what it should say."""
    book = Book(found)
    body = [OPENING]
    for table in TABLES:
        if text := markdown(table, book):
            plot = plots.FOLDER / f"{plots.BESIDE.get(table.name)}.png"
            body += [f"## {table.name}", text, *([f"![](plots/{plot.name})"] if plot.exists() else [])]
    written = {PAGE: "\n\n".join(body) + "\n"}
    for path, tables in MARKED.items():
        page = path.read_text("utf8")
        for table in tables:
            page = fill(page, table.name, markdown(table, book) or NOT_MEASURED)
        written[path] = page
    return written


def fill(page: str, name: str, text: str) -> str:
    """A page with a text between the marks of this name."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    before, _, rest = page.partition(begin)
    return before + begin + text + "\n" + end + rest.partition(end)[2]


def stale_pages(found: list[Record]) -> dict[Path, str]:
    """Pages that do not say what they should, with what they should say."""
    return {path: text for path, text in pages(found).items() if not path.exists() or path.read_text("utf8") != text}


def write_pages() -> None:
    """Draw the plots and write the pages."""
    found = records.load()
    plots.draw(Book(found))
    for path, text in stale_pages(found).items():
        path.write_text(text, "utf8")
