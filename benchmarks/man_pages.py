"""Manual pages as long texts to classify by section: train.csv and test.csv from a folder of unpacked packages.

    apt-get download manpages manpages-dev freebsd-manpages ... && for each: dpkg -x PACKAGE.deb pages/PACKAGE
    python -m benchmarks.man_pages pages data/man_pages

Pages are rendered by groff. What names the section is removed: header, footer, the NAME part, and the number after the
name of another page. Rows are chosen and divided by a hash of the text, so the same pages give the same files.
"""

import csv
import gzip
import hashlib
import re
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

SECTIONS = {
    "1": "user command", "2": "system call", "3": "library function", "4": "device", "5": "file format",
    "7": "overview", "8": "administration", "9": "kernel interface",
}  # fmt: skip
TOKENS = 600  # words and punctuation marks a page must have
TESTS = 5  # one row in so many is a test row
RENDER = ("groff", "-mandoc", "-Tutf8", "-P-cbou", "-rLL=100n", "-rHY=0")
TOKEN = re.compile(r"\w+|[^\w\s]")
NAMES_SECTION = re.compile(
    r"\(\s*\d[a-z0-9]*\s*\)"  # printf(3), BIO_new(3ssl)
    r"|\b(man|section|sections|chapter)\s*[1-9]\w{0,4}\b"  # man3, man 3, section 3
    r"|\.[1-9](ssl|pm|perl|x|erl|tcl|posix)?(\.gz)?\b"  # printf.3, printf.3.gz
    r"|\b\w+ (Functions|Calls|Commands|Utilities|Formats|Files|Interfaces|Administration|Managers?'s?) Manual\b",
    re.IGNORECASE,
)


def section_of(path: Path) -> str | None:
    """The label of a page by its file name, as `printf.3.gz` or `BIO_new.3ssl`; None for other sections."""
    suffix = path.name.removesuffix(".gz").rpartition(".")[2]
    return SECTIONS.get(suffix[:1])


def body(rendered: str) -> str:
    """The text of a rendered page without what names its section."""
    lines = [line for line in rendered.splitlines() if line.strip()][1:-1]  # header and footer
    kept, inside = [], False
    for line in lines:
        if not line[0].isspace():  # the title of a part
            inside = line.strip().upper() == "NAME"
        if not inside:
            kept.append(line.strip())
    return re.sub(r"\s+", " ", NAMES_SECTION.sub(" ", " ".join(kept))).strip()


def render(path: Path) -> str:
    """A page as plain text; empty for one that only refers to another page."""
    source = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(source) < TOKENS:  # too few characters for so many tokens, or a reference
        return ""
    found = subprocess.run(RENDER, input=source, capture_output=True, cwd=path.parent, check=False)
    return body(found.stdout.decode("utf8", "replace"))


def pages(folder: Path) -> Iterator[tuple[str, str]]:
    """Text and label of every long page below a folder, each text once."""
    paths = [path for path in sorted(folder.rglob("man/man*/*")) if path.is_file() and section_of(path)]
    seen = set()
    with ThreadPoolExecutor() as pool:
        for path, text in zip(paths, pool.map(render, paths), strict=True):
            label = section_of(path)
            if label is not None and text not in seen and len(TOKEN.findall(text)) >= TOKENS:
                seen.add(text)
                yield text, label


def place(text: str, seed: int = 0) -> int:
    """A number that depends on nothing but text and seed."""
    return int.from_bytes(hashlib.sha256(f"{seed} {text}".encode()).digest()[:8])


def choose(rows: Iterable[tuple[str, str]], per_label: int, chars: int) -> dict[str, list[tuple[str, str]]]:
    """At most so many rows of each label, their texts cut to so many characters, divided into train and test."""
    found: dict[str, list[str]] = {}
    for text, label in rows:
        found.setdefault(label, []).append(text)
    splits: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for label, texts in found.items():
        for text in sorted(texts, key=place)[:per_label]:
            splits["test" if place(text, 1) % TESTS == 0 else "train"].append((text[:chars], label))
    return {name: sorted(split, key=lambda row: place(row[0], 2)) for name, split in splits.items()}


def build(
    folder: Annotated[Path, typer.Argument(help="Folder of unpacked packages.")],
    out: Annotated[Path, typer.Argument(help="Folder for train.csv and test.csv.")],
    per_label: Annotated[int, typer.Option(help="Maximum rows of a section.")] = 600,
    chars: Annotated[int, typer.Option(help="Characters of a page that are kept.")] = 12_000,
) -> None:
    """Write train.csv and test.csv: manual pages of at least 600 tokens, labelled by section."""
    splits = choose(pages(folder), per_label, chars)
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        with open(out / f"{name}.csv", "w", newline="", encoding="utf8") as file:
            csv.writer(file).writerows([("text", "label"), *rows])


if __name__ == "__main__":
    typer.run(build)
