"""Makes the texts that encoders of many languages learn from: `python -m benchmarks corpora texts`.

    apt-get download wesnoth-1.16-data debian-handbook libreoffice-help-fi dict-freedict-swh-eng ...
    for each: dpkg -x PACKAGE.deb packages/PACKAGE

From the unpacked packages come message catalogues (`.mo`), manuals in HTML and FreeDict's dictionaries. What is
kept of a language is chosen by a hash of the text: the same packages give the same files.
"""

import gettext
import gzip
import hashlib
import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ade.errors import InputError

LANGUAGES = {
    "ara": "ar", "cmn": "zh", "deu": "de", "eng": "en", "fin": "fi", "fra": "fr", "hin": "hi", "jpn": "ja",
    "rus": "ru", "spa": "es", "swh": "sw", "tur": "tr", "vie": "vi",
}  # fmt: skip
TEXTS, ENTRIES = 45_000, 12_000  # maximum texts of a language: prose and messages; dictionary entries

MIN_CHARS, MAX_CHARS, MIN_LETTERS = 4, 400, 0.7  # of a text; its least fraction of letters
SPLIT_FROM = 60  # characters: longer texts are split into sentences
PROSE, ENTRY, MESSAGE = "prose", "entry", "message"
STORIES = ("wesnoth", "kstars")  # packages whose messages are prose: dialogues, descriptions
MARKUP = re.compile(r"<[^>]*>|\\[nt]|%[-0-9.]*[a-zA-Z]+|%\d\$?[a-z]?|\{[^}]*\}|\[[^\]]*\]|\$\w+|\w+\||[_&~]")
CODE = re.compile(r"https?:|/\w+/|[=<>{}|\\]")
NOT_TEXT = re.compile(r"<(pre|code|script|style|title)\b.*?</\1>", re.DOTALL | re.IGNORECASE)
BLOCK = re.compile(r"</?(?:p|li|td|dd|dt|h[1-6]|div|table|ul|ol)\b[^>]*>", re.IGNORECASE)  # begins or ends a paragraph
TAG = re.compile(r"<[^>]*>")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)|(?<=[\u3002\uff01\uff1f\u0964])")  # no space after the latter
CATALOGUE = re.compile(r"/([a-z]{2})(?:_[A-Z]{2})?/LC_MESSAGES/|([a-z]{2})_[A-Z]{2}\.mo$")
MANUAL = re.compile(r"/(?:html|help|installation-guide-\w+)/([a-z]{2})(?:[-_][A-Z]{2}|\.\w+)?/")
OTHER_REGIONS = ("zh_TW", "zh_HK", "pt_BR", "zh-TW")
DICTIONARY = re.compile(r"freedict-(\w+)-(\w+)\.dict\.dz$")
HEADWORD = re.compile(r"([^/<]+?) *(?:/[^/]+/|<\w+>)")

WORDS, EXPONENT = 30_000, 0.5  # most frequent words of a language; exponent of their frequency when drawn
OF_WORDS, PARTS = 90_000, 45_000  # drawn texts of a language: of single words, and parts of its texts
MAX_WORDS = 8  # of a text of drawn words
WITHOUT_SPACES = ("ja", "zh")
FULL_STOP = {"ja": "\u3002", "zh": "\u3002", "hi": "\u0964"}
PART_FROM = {True: 8, False: 20}  # words, or characters where there are no spaces: of a text that parts are taken from
PART_LENGTH = {True: (3, 9), False: (5, 16)}  # words or characters of a part: least, and one more than most

app = typer.Typer(help="Texts of many languages, for encoders to learn from.", no_args_is_help=True)


@app.callback()
def corpora() -> None:
    """Texts of many languages, for encoders to learn from."""


@app.command()
def texts(
    packages: Annotated[Path, typer.Argument(help="Folder of unpacked Debian packages.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="Folder to write to.", show_default=False)],
) -> None:
    """Write two files for each of thirteen languages: its texts, as de.txt, and texts that nobody wrote.

    A teacher has a vector for any text. Drawn words bring every usual word of a language of which there is little text;
    parts of texts are as short as what people say. They are in de.drawn.txt.
    """
    kind_of: dict[str, dict[str, str]] = {language: {} for language in LANGUAGES.values()}  # language -> text -> kind
    for source in (messages, manuals, entries):
        for language, kind, text in source(packages):
            kind_of[language].setdefault(text, kind)

    out.mkdir(parents=True, exist_ok=True)
    for language, kinds in sorted(kind_of.items()):
        drawn = sorted(kinds, key=place)
        prose, entry, message = ([text for text in drawn if kinds[text] == kind] for kind in (PROSE, ENTRY, MESSAGE))
        chosen = (prose[:TEXTS] + message)[:TEXTS] + entry[:ENTRIES]
        lines, generator = sorted(chosen, key=place), np.random.default_rng(0)
        _write(out / f"{language}.txt", lines)
        made = of_words(language, lines, OF_WORDS, generator) + parts_of(language, lines, PARTS, generator)
        _write(out / f"{language}.drawn.txt", made)


def place(text: str) -> int:
    """A number that depends on nothing but the text: where it stands in an order that looks random."""
    return int.from_bytes(hashlib.sha256(f"0 {text}".encode()).digest()[:8])


def _write(file: Path, lines: Sequence[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), "utf8")
    print(f"{file.name}: {len(lines):,} lines")


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text that are mostly letters, without markup."""
    for part in SENTENCE_END.split(" ".join(text.split())) if len(text) > SPLIT_FROM else [text]:
        clean = " ".join(html.unescape(MARKUP.sub(" ", html.unescape(part))).split()).strip(" -*:")
        letters = sum(character.isalpha() or "\u0900" <= character <= "\u097f" for character in clean)
        fits = MIN_CHARS <= len(clean) <= MAX_CHARS and letters >= MIN_LETTERS * len(clean.replace(" ", ""))
        if fits and not CODE.search(clean):
            yield clean


# -- texts of packages: language, kind, text -----------------------------------------------------------------------


def messages(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Messages of programs in English and translated, out of their catalogues."""
    for file in sorted(folder.rglob("*.mo")):
        match = CATALOGUE.search(str(file))
        language = match and (match[1] or match[2])
        if not language or not _is_wanted(language, file):
            continue
        kind = PROSE if any(name in str(file) for name in STORIES) else MESSAGE
        try:
            with open(file, "rb") as opened:
                catalogue = gettext.GNUTranslations(opened)._catalog  # type: ignore[attr-defined]
        except (OSError, UnicodeDecodeError):
            continue
        for key, translated in catalogue.items():
            original = (key[0] if isinstance(key, tuple) else key).rpartition("\x04")[2]
            if original and isinstance(translated, str):
                yield from (("en", kind, text) for text in sentences(original))
                if translated != original:
                    yield from ((language, kind, text) for text in sentences(translated))


def manuals(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Paragraphs of manuals; those of office programs count as messages."""
    for file in sorted((*folder.rglob("*.html"), *folder.rglob("*.page"))):
        match = MANUAL.search(str(file))
        if match is None or not _is_wanted(match[1], file):
            continue
        kind = MESSAGE if "office" in str(file) or file.suffix == ".page" else PROSE
        page = NOT_TEXT.sub("", file.read_text("utf8", "ignore"))
        for paragraph in BLOCK.split(page)[1:]:
            yield from ((match[1], kind, text) for text in sentences(TAG.sub("", paragraph)))


def _is_wanted(language: str, file: Path) -> bool:
    return language in LANGUAGES.values() and not any(region in str(file) for region in OTHER_REGIONS)


def entries(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Headwords of dictionaries, which stand before their pronunciation or kind, and what is said of them."""
    for file in sorted(folder.rglob("*.dict.dz")):
        match = DICTIONARY.search(file.name)
        if match is None:
            continue
        source, target = (LANGUAGES.get(code) for code in match.groups())
        for line in gzip.decompress(file.read_bytes()).decode("utf8", "ignore").splitlines():
            headword = HEADWORD.match(line)
            language = source if headword else target
            parts = [headword[1]] if headword else re.split(r"[;,]|^\s*\d+\.", line)
            if language:
                yield from ((language, ENTRY, text) for part in parts for text in sentences(part))


# -- texts that nobody wrote -----------------------------------------------------------------------------------------


def words_of(language: str, lines: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Words of a language with the probability of each; words of the texts where there is no list of words."""
    import wordfreq

    if language in wordfreq.available_languages():
        frequency = wordfreq.get_frequency_dict(language)
        words = sorted(frequency, key=lambda word: (-frequency[word], word))[:WORDS]
        weights = np.array([frequency[word] for word in words]) ** EXPONENT
    else:
        words = sorted({word for text in lines for word in text.split()})
        weights = np.ones(len(words))
    if not words:
        raise InputError(f"{language}: neither a list of words nor a text that has some")
    return words, weights / weights.sum()


def of_words(language: str, lines: Sequence[str], count: int, generator: np.random.Generator) -> list[str]:
    """Texts of drawn words; every other one looks like a sentence."""
    words, probabilities = words_of(language, lines)
    between = "" if language in WITHOUT_SPACES else " "
    ends = np.cumsum(generator.integers(1, MAX_WORDS + 1, count))
    chosen = generator.choice(len(words), int(ends[-1]), p=probabilities).tolist()  # one call: each reads all weights
    made = []
    for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        text = between.join(words[i] for i in chosen[start:end])
        made.append(text if number % 2 else f"{text[:1].upper()}{text[1:]}{FULL_STOP.get(language, '.')}")
    return made


def parts_of(language: str, lines: Sequence[str], count: int, generator: np.random.Generator) -> list[str]:
    """Parts of longer texts; every other one begins with a capital letter."""
    spaced = language not in WITHOUT_SPACES
    split = [text.split() if spaced else list(text) for text in lines]
    split = [pieces for pieces in split if len(pieces) >= PART_FROM[spaced]]
    made = []
    for number in range(count if split else 0):
        pieces = split[generator.integers(len(split))]
        length = int(generator.integers(*PART_LENGTH[spaced]))
        first = int(generator.integers(len(pieces) - length + 1))
        part = (" " if spaced else "").join(pieces[first : first + length]).strip()
        made.append(part if number % 2 else part[:1].upper() + part[1:])
    return made
