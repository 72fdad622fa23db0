"""Makes the texts that encoders of many languages learn from: `python -m benchmarks corpora texts|translations|drawn`.

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

DRAWN = ".drawn.txt"  # ending of the files of texts that nobody wrote
TRANSLATIONS = "translations.tsv"  # lines of texts with the same meaning, separated by tabs
LANGUAGES = {
    "ara": "ar", "cmn": "zh", "deu": "de", "eng": "en", "fin": "fi", "fra": "fr", "hin": "hi", "jpn": "ja",
    "rus": "ru", "spa": "es", "swh": "sw", "tur": "tr", "vie": "vi",
}  # fmt: skip
TEXTS, ENTRIES = 45_000, 12_000  # maximum texts of a language: prose and messages; dictionary entries
PAIRS = {"messages": 60_000, "entries": 30_000}  # maximum translation pairs of a language
ENTRIES_PER_WORD = 2  # translations of a headword

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
NOT_IN_PAIRS = frozenset("()[]:^/\t")  # of notes on grammar and use, and of names inside programs

WORDS, EXPONENT = 30_000, 0.5  # most frequent words of a language; exponent of their frequency when drawn
OF_WORDS, PARTS = 90_000, 45_000  # drawn texts of a language: of single words, and parts of its texts
MAX_WORDS = 8  # of a text of drawn words
WITHOUT_SPACES = ("ja", "zh")
FULL_STOP = {"ja": "\u3002", "zh": "\u3002", "hi": "\u0964"}
PART_FROM = {True: 8, False: 20}  # words, or characters where there are no spaces: of a text that parts are taken from
PART_LENGTH = {True: (3, 9), False: (5, 16)}  # words or characters of a part: least, and one more than most

app = typer.Typer(help="Texts of many languages, for encoders to learn from.", no_args_is_help=True)
Packages = Annotated[Path, typer.Argument(help="Folder of unpacked Debian packages.", show_default=False)]
Out = Annotated[Path, typer.Argument(help="Folder to write to.", show_default=False)]


@app.command()
def texts(packages: Packages, out: Out) -> None:
    """Write a file of texts for each of thirteen languages, as de.txt."""
    kind_of: dict[str, dict[str, str]] = {language: {} for language in LANGUAGES.values()}  # language -> text -> kind
    for source in (messages, manuals, entries):
        for language, kind, text in source(packages):
            kind_of[language].setdefault(text, kind)

    out.mkdir(parents=True, exist_ok=True)
    for language, kinds in sorted(kind_of.items()):
        drawn = sorted(kinds, key=place)
        prose, entry, message = ([text for text in drawn if kinds[text] == kind] for kind in (PROSE, ENTRY, MESSAGE))
        chosen = (prose[:TEXTS] + message)[:TEXTS] + entry[:ENTRIES]
        _write(out / f"{language}.txt", sorted(chosen, key=place))


@app.command()
def translations(packages: Packages, out: Out) -> None:
    """Write a file of English texts with their translations into twelve languages."""
    chosen: list[str] = []
    for source in (translated_messages, translated_entries):
        lines: dict[str, set[str]] = {}  # by language
        for language, original, translated in source(packages):
            if original != translated and not NOT_IN_PAIRS & set(original + translated):
                lines.setdefault(language, set()).add(f"{original}\t{translated}")
        most = PAIRS[source.__name__.removeprefix("translated_")]
        for language in sorted(lines):
            chosen += sorted(lines[language], key=place)[:most]
    out.mkdir(parents=True, exist_ok=True)
    _write(out / TRANSLATIONS, sorted(chosen, key=place))


@app.command()
def drawn(
    folder: Annotated[Path, typer.Argument(help="Folder with a file of texts for each language.", show_default=False)],
) -> None:
    """Write texts of drawn words and parts of texts beside each file of texts, as de.drawn.txt.

    A teacher has a vector for any text. Drawn words bring every usual word of a language of which there is little text;
    parts of texts are as short as what people say.
    """
    for file in sorted(folder.glob("*.txt")):
        if not file.name.endswith(DRAWN):
            lines, generator = file.read_text("utf8").splitlines(), np.random.default_rng(0)
            made = of_words(file.stem, lines, OF_WORDS, generator) + parts_of(file.stem, lines, PARTS, generator)
            _write(folder / f"{file.stem}{DRAWN}", made)


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
    """Messages of programs in English and translated."""
    for language, kind, original, translated in _catalogues(folder):
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


def entries(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Headwords of dictionaries, and what is said of them."""
    for source, target, word, parts in _dictionaries(folder):
        language, found = (target, parts) if parts else (source, [word])
        if language:
            yield from ((language, ENTRY, text) for part in found for text in sentences(part))


def _is_wanted(language: str | None, file: Path) -> bool:
    return language in LANGUAGES.values() and not any(region in str(file) for region in OTHER_REGIONS)


def _catalogues(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Language, kind, message and translation of every message catalogue."""
    for file in sorted(folder.rglob("*.mo")):
        match = CATALOGUE.search(str(file))
        language = match and (match[1] or match[2])
        if not _is_wanted(language, file):
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
                yield str(language), kind, original, translated


def _dictionaries(folder: Path) -> Iterator[tuple[str | None, str | None, str, list[str]]]:
    """Source and target language, headword and what one line says of it, for every line of every dictionary.

    A headword stands before its pronunciation or kind; its own line says nothing of it.
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


# -- translation pairs: language, English text, translation ----------------------------------------------------------


def translated_messages(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Messages of programs, sentence by sentence where both sides have equally many."""
    for language, _, original, translated in _catalogues(folder):
        ours, theirs = list(sentences(original)), list(sentences(translated))
        if language != "en" and len(ours) == len(theirs):
            yield from ((language, *pair) for pair in zip(ours, theirs, strict=True))


def translated_entries(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Words of dictionaries from or into English, with the first words that stand for them."""
    last, count = "", 0
    for source, target, word, parts in _dictionaries(folder):
        last, count = word, count if word == last else 0
        if "en" not in (source, target) or source is None or target is None:
            continue
        for meaning in (text for part in parts for text in sentences(part)):
            count += 1
            if count <= ENTRIES_PER_WORD:
                yield (target, word, meaning) if source == "en" else (source, meaning, word)


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
