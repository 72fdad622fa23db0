"""Texts in twelve languages beside their English originals, for an encoder to learn that they mean the same.

    python -m benchmarks.translated_texts packages data/multilingual

From the folder of unpacked Debian packages that `multilingual_texts.py` reads: message catalogues, sentence by sentence
where both sides have as many, FreeDict's dictionaries, of each headword the first words that stand for it, and CLDR's
names of symbols. Of each language there are at most so many lines of each, drawn by a hash of the line, so that the
same packages give the same file.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.man_pages import place
from benchmarks.multilingual import TRANSLATIONS
from benchmarks.multilingual_texts import LANGUAGES, catalogues, dictionaries, sentences

MESSAGES, ENTRIES, NAMES = 60_000, 30_000, 5_000  # lines of a language
OF_A_WORD = 2  # entries
NAMED = re.compile(r'<annotation cp="([^"]+)" type="tts">([^<]+)</annotation>')
UNLIKE_TEXT = frozenset("()[]:^/\t")  # of notes on grammar and use, and of names inside programs


def messages(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield language, English sentence and translation, of messages of programs."""
    for language, _, original, translated in catalogues(folder):
        pairs = zip(sentences(original), sentences(translated), strict=True)
        try:
            yield from [(language, *pair) for pair in pairs if language != "en"]
        except ValueError:  # other numbers of sentences
            continue


def entries(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield language, English word and what stands for it, of dictionaries from or into English."""
    last, count = "", 0
    for source, target, word, parts in dictionaries(folder):
        last, count = word, count if word == last else 0
        if "en" not in (source, target) or source is None or target is None:
            continue
        for meaning in (text for part in parts for text in sentences(part)):
            count += 1
            if count <= OF_A_WORD:
                yield (target, word, meaning) if source == "en" else (source, meaning, word)


def names(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield language, English name and name of symbols and pictures."""
    for english in sorted(folder.rglob("annotations*/en.xml")):
        known = dict(NAMED.findall(english.read_text("utf8")))
        for language in sorted(set(LANGUAGES.values()) - {"en"}):
            file = english.with_name(f"{language}.xml")
            named = NAMED.findall(file.read_text("utf8")) if file.is_file() else []
            yield from ((language, known[symbol], name) for symbol, name in named if symbol in known)


def main(
    packages: Annotated[Path, typer.Argument(help="Folder of unpacked Debian packages.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="Folder to write the file to.", show_default=False)],
) -> None:
    """Gather translations."""
    chosen: list[str] = []
    for source, most in ((messages, MESSAGES), (entries, ENTRIES), (names, NAMES)):
        found: dict[str, set[str]] = {}
        for language, original, translated in source(packages):
            if original != translated and not UNLIKE_TEXT & set(original + translated):
                found.setdefault(language, set()).add(f"{original}\t{translated}")
        for language, lines in sorted(found.items()):
            chosen += sorted(lines, key=place)[:most]
            print(f"{language}: {min(len(lines), most):,} {source.__name__}")
    out.mkdir(parents=True, exist_ok=True)
    (out / TRANSLATIONS).write_text("".join(f"{line}\n" for line in sorted(chosen, key=place)), "utf8")


if __name__ == "__main__":
    typer.run(main)
