"""Texts in thirteen languages, a file of lines for each, from a folder of unpacked Debian packages.

    apt-get download wesnoth-1.16-data fortunes-de debian-handbook libreoffice-help-fi dict-freedict-swh-eng ...
    for each: dpkg -x PACKAGE.deb packages/PACKAGE
    python -m benchmarks.multilingual_texts packages data/multilingual

Read are message catalogues (`.mo`), manuals in HTML, fortunes and FreeDict's dictionaries. Of each language there are
at most so many prose texts, then dictionary entries, then messages of programs, each drawn by a hash of the text, so
the same packages give the same files.
`drawn_texts.py` adds texts that nobody wrote.
"""

import gettext
import gzip
import html
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.man_pages import place

LANGUAGES = {
    "ara": "ar", "cmn": "zh", "deu": "de", "eng": "en", "fin": "fi", "fra": "fr", "hin": "hi", "jpn": "ja",
    "rus": "ru", "spa": "es", "swh": "sw", "tur": "tr", "vie": "vi",
}  # fmt: skip
TEXTS, ENTRIES = 45_000, 12_000  # of a language: in all without entries of dictionaries, and of these
SHORTEST, LONGEST, LETTERS = 4, 400, 0.7  # characters of a text, and its least share of letters
SPLIT_FROM = 60  # characters: longer texts are split into sentences
PROSE, ENTRY, MESSAGE = "prose", "entry", "message"
STORIES = ("wesnoth", "kstars")  # packages whose messages are prose: dialogues, descriptions
MARKUP = re.compile(r"<[^>]*>|\\[nt]|%[-0-9.]*[a-zA-Z]+|%\d\$?[a-z]?|\{[^}]*\}|\[[^\]]*\]|\$\w+|\w+\||[_&~]")
CODE = re.compile(r"https?:|/\w+/|[=<>{}|\\]")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)|(?<=[\u3002\uff01\uff1f\u0964])")  # no space after the latter
CATALOGUE = re.compile(r"/([a-z]{2})(?:_[A-Z]{2})?/LC_MESSAGES/|([a-z]{2})_[A-Z]{2}\.mo$")
MANUAL = re.compile(r"/(?:html|help|installation-guide-\w+)/([a-z]{2})(?:[-_][A-Z]{2}|\.\w+)?/")
OTHER_REGIONS = ("zh_TW", "zh_HK", "pt_BR", "zh-TW")
DICTIONARY = re.compile(r"freedict-(\w+)-(\w+)\.dict\.dz$")
HEADWORD = re.compile(r"([^/<]+?) *(?:/[^/]+/|<\w+>)")
Found = Iterator[tuple[str, str, str]]  # language, kind, text


class _Paragraphs(HTMLParser):
    """The paragraphs of a page, without code."""

    BLOCKS, CODE = ("p", "li", "td", "dd", "h1", "h2", "h3"), ("pre", "code", "script", "style")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._text: list[str] | None = None
        self._code = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._code += tag in self.CODE
        if tag in self.BLOCKS:
            self._end()
            self._text = []

    def handle_endtag(self, tag: str) -> None:
        self._code = max(0, self._code - (tag in self.CODE))
        if tag in self.BLOCKS:
            self._end()

    def handle_data(self, data: str) -> None:
        if self._text is not None and not self._code:
            self._text.append(data)

    def _end(self) -> None:
        if self._text:
            self.found.append("".join(self._text))
        self._text = None


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text that are mostly letters, without markup."""
    for part in SENTENCE_END.split(" ".join(text.split())) if len(text) > SPLIT_FROM else [text]:
        clean = " ".join(html.unescape(MARKUP.sub(" ", html.unescape(part))).split()).strip(" -*:")
        letters = sum(character.isalpha() or "\u0900" <= character <= "\u097f" for character in clean)
        fits = SHORTEST <= len(clean) <= LONGEST and letters >= LETTERS * len(clean.replace(" ", ""))
        if fits and not CODE.search(clean):
            yield clean


def catalogues(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield messages of programs with their translation: language, kind, message, translation."""
    for file in sorted(folder.rglob("*.mo")):
        match = CATALOGUE.search(str(file))
        language = match and (match[1] or match[2])
        if language not in LANGUAGES.values() or any(region in str(file) for region in OTHER_REGIONS):
            continue
        kind = PROSE if any(name in str(file) for name in STORIES) else MESSAGE
        try:
            with open(file, "rb") as opened:
                catalogue = gettext.GNUTranslations(opened)._catalog  # type: ignore[attr-defined]
        except (OSError, UnicodeDecodeError):
            continue
        for key, translated in catalogue.items():
            original = (key[0] if isinstance(key, tuple) else key).rpartition("\x04")[2]
            if not original or not isinstance(translated, str):
                continue
            yield str(language), kind, original, translated


def messages(folder: Path) -> Found:
    """Translated messages of programs, and the English ones."""
    for language, kind, original, translated in catalogues(folder):
        yield from (("en", kind, text) for text in sentences(original))
        if translated != original:
            yield from ((language, kind, text) for text in sentences(translated))


def manuals(folder: Path) -> Found:
    """Paragraphs of manuals; those of office programs are messages more than prose."""
    for file in sorted((*folder.rglob("*.html"), *folder.rglob("*.page"))):
        match = MANUAL.search(str(file))
        if match is None or match[1] not in LANGUAGES.values() or any(region in str(file) for region in OTHER_REGIONS):
            continue
        page = _Paragraphs()
        page.feed(file.read_text("utf8", "ignore"))
        kind = MESSAGE if "office" in str(file) or file.suffix == ".page" else PROSE
        yield from ((match[1], kind, text) for paragraph in page.found for text in sentences(paragraph))


def fortunes(folder: Path) -> Found:
    """Quotations, one after each line of a percent sign."""
    for package in sorted(folder.glob("fortunes*")):
        language = package.name.rpartition("-")[2] if "-" in package.name else "en"
        if language not in LANGUAGES.values():
            continue
        for file in sorted(package.rglob("games/fortunes/**/*")):
            if file.is_file() and file.suffix not in (".dat", ".u8"):
                for quotation in re.sub("\x1b\\[[0-9;]*m", "", file.read_text("utf8", "ignore")).split("\n%"):
                    yield from ((language, PROSE, text) for text in sentences(quotation))


def dictionaries(folder: Path) -> Iterator[tuple[str | None, str | None, str, list[str]]]:
    """Yield source and target language, headword and what one of the other lines says of it; or a headword and nothing.

    Headwords stand before their pronunciation or kind.
    """
    for file in sorted(folder.rglob("*.dict.dz")):
        match = DICTIONARY.search(file.name)
        if match is None:
            continue
        source, target = (LANGUAGES.get(code) for code in match.groups())
        word = ""
        for line in gzip.decompress(file.read_bytes()).decode("utf8", "ignore").splitlines():
            headword = HEADWORD.match(line)
            word = headword[1] if headword else word
            yield source, target, word, [] if headword else re.split(r"[;,]|^\s*\d+\.", line)


def entries(folder: Path) -> Found:
    """Headwords, and what is said of them."""
    for source, target, word, parts in dictionaries(folder):
        language, texts = (target, parts) if parts else (source, [word])
        if language:
            yield from ((language, ENTRY, text) for part in texts for text in sentences(part))


def main(
    packages: Annotated[Path, typer.Argument(help="Folder of unpacked Debian packages.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="Folder to write a file for each language to.", show_default=False)],
) -> None:
    """Gather texts of many languages."""
    found: dict[str, dict[str, str]] = {language: {} for language in LANGUAGES.values()}
    for source in (messages, manuals, fortunes, entries):
        for language, kind, text in source(packages):
            found[language].setdefault(text, kind)
    out.mkdir(parents=True, exist_ok=True)
    for language, texts in sorted(found.items()):
        drawn = sorted(texts, key=place)
        kinds = {kind: [text for text in drawn if texts[text] == kind] for kind in (PROSE, ENTRY, MESSAGE)}
        chosen = kinds[PROSE][:TEXTS] + kinds[MESSAGE]
        chosen = sorted(chosen[:TEXTS] + kinds[ENTRY][:ENTRIES], key=place)
        (out / f"{language}.txt").write_text("".join(f"{text}\n" for text in chosen), "utf8")
        print(f"{language}: {len(chosen):,} texts")


if __name__ == "__main__":
    typer.run(main)
