"""Builds the corpus that the English encoder is distilled on: `python -m benchmarks encoder texts --out FOLDER`.

Every source is a package, fetched by name and exact version with the package manager's own client, whose texts are in
the public domain or under CC BY, MIT, BSD, Apache or WordNet's licence. What is missing there (opinions, requests of
customers, questions on facts, headlines) is drawn from a grammar written for this project. No text of an evaluation set
is kept. What is chosen depends on hashes alone: the same packages give the same files.
"""

import csv
import hashlib
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from ade.data.sources import EMBEDDED, load_dataset
from ade.errors import InputError
from benchmarks.corpora import place
from benchmarks.encoder import grammar
from benchmarks.encoder.sources import SOURCES, WORDNET, fetched, files_of, gloss_parts, lemmas, sentences

OWN = {"package": "written for this project", "version": "", "licence": "Apache-2.0"}
OWN_TEXTS = 60_000  # maximum
MIN_CHARS, MAX_CHARS, MIN_LETTERS = 3, 400, 0.75  # of a text; its least fraction of ASCII letters
CODE = re.compile(r"https?:|www\.|/\w+/|[=<>{}|\\^~$@_]|%[sd(]|\w\.\w+\(|\w\(\)|&\w+;|::|\.{4}|\]\(|[a-z][A-Z]\w*[A-Z]")
ENGLISH = {
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "can", "do", "for", "from", "has", "have", "he", "her",
    "his", "how", "i", "if", "in", "is", "it", "its", "my", "no", "not", "of", "on", "or", "she", "so", "that", "the",
    "their", "they", "this", "to", "was", "we", "were", "what", "when", "where", "who", "why", "will", "with", "you",
    "your",
}  # fmt: skip  # a text of many words has one of these
MANY_WORDS = 8

app = typer.Typer(help="The corpus of the English encoder.", no_args_is_help=True)


@app.callback()
def encoder() -> None:
    """The corpus of the English encoder."""


@app.command()
def texts(
    out: Annotated[Path, typer.Option(help="Folder to write to.", show_default=False)],
    exclude: Annotated[list[Path] | None, typer.Option(help="Folder of evaluation sets; again.")] = None,
    packages: Annotated[Path | None, typer.Option(help="Folder that keeps packages; OUT/packages without it.")] = None,
) -> None:
    """Write texts.txt, a text a line, and sources.json."""
    packages = packages or out / "packages"
    glosses = load_dataset(EMBEDDED, "test").texts
    taken = {normalised(text) for gloss in glosses for text in (gloss, *gloss_parts(gloss))}
    for folder in exclude or []:
        taken |= evaluation_texts(folder)

    kept: list[str] = []
    rows = []
    for source in SOURCES:
        package = fetched(source, packages)
        candidates = (text for name, data in files_of(package, source.files) for text in source.texts_of(name, data))
        chosen = sorted(fresh(candidates, taken), key=place)[: source.most]
        taken |= {normalised(text) for text in chosen}
        kept += chosen
        named = {"package": f"{source.client}: {source.package}", "version": source.version, "licence": source.licence}
        rows.append({**named, "texts": len(chosen), "sha256": hashlib.sha256(package.read_bytes()).hexdigest()})
        print(f"{source.package} {source.version}: {len(chosen):,} texts", file=sys.stderr)

    rules = grammar.rules() | lemmas(fetched(WORDNET, packages))
    own = sorted(fresh(grammar.texts(rules), taken), key=place)[:OWN_TEXTS]
    rows.append({**OWN, "texts": len(own), "sha256": hashlib.sha256(grammar.FILE.read_bytes()).hexdigest()})

    lines = sorted(kept + own, key=place)
    (out / "texts.txt").write_text("".join(f"{line}\n" for line in lines), "utf8")
    (out / "sources.json").write_text(json.dumps(rows, indent=1) + "\n", "utf8")
    print(f"{len(lines):,} texts of {len(rows)} sources in {out}")


def normalised(text: str) -> int:
    """The same number for texts that differ only in case, spaces and punctuation."""
    return place("".join(character for character in text.lower() if character.isalnum()))


def fresh(candidates: Iterable[str], taken: set[int]) -> list[str]:
    """The texts that look like English prose, once each, without those whose number is taken."""
    new: dict[int, str] = {}
    for candidate in candidates:
        text = " ".join(candidate.split()).strip(" -*#>")
        letters = sum(character.isascii() and character.isalpha() for character in text)
        words = re.findall(r"[a-z']+", text.lower())
        fits = MIN_CHARS <= len(text) <= MAX_CHARS and letters >= MIN_LETTERS * len(text.replace(" ", ""))
        if fits and not CODE.search(text) and (len(words) < MANY_WORDS or ENGLISH & set(words)):
            number = normalised(text)
            if number not in taken:
                new.setdefault(number, text)
    return list(new.values())


def evaluation_texts(folder: Path) -> set[int]:
    """Numbers of all texts of a folder of data sets, and of their sentences: cells of tables, lines of other files."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix != ".md"]
    if not files:
        raise InputError(f"{folder}: has no files of evaluation sets")
    numbers: set[int] = set()
    for file in files:
        with open(file, encoding="utf8", errors="ignore", newline="") as opened:
            table = csv.reader(opened) if file.suffix == ".csv" else (line.split("\t") for line in opened)
            for cell in (cell for row in table for cell in row if len(cell) >= MIN_CHARS):
                parts = (cell, *sentences(cell), *re.split(r"(?<=[.!?]) ", cell))  # some are split into words already
                numbers.update(normalised(part) for part in parts)
    return numbers
