"""Texts that nobody wrote, for an encoder to learn from beside those of `multilingual_texts.py`.

    python -m benchmarks.drawn_texts data/multilingual

A teacher has a vector for any text. Words that are drawn at random bring every usual word of a language, where there is
little text of it; parts of texts are as short as what people say. Beside each file of texts, as de.txt, one of drawn
texts is written, as de.drawn.txt; the same texts give the same files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import wordfreq

from ade.errors import InputError
from benchmarks.multilingual import DRAWN, WRITTEN

WORDS = 30_000  # most frequent words of a language
OF_WORDS, PARTS = 90_000, 45_000  # texts of a language: of drawn words, and parts of its texts
MOST_WORDS = 8  # of a drawn text
EXPONENT = 0.5  # of a word's frequency: rare words are to be seen too
WITHOUT_SPACES = ("ja", "zh")
END = {"ja": "\u3002", "zh": "\u3002", "hi": "\u0964"}  # of a sentence; elsewhere a full stop
LONG = {True: 8, False: 20}  # words, or characters of a language without spaces: of a text that parts are taken from
PART = {True: (3, 9), False: (5, 16)}  # words or characters of a part, from and below


def words_of(language: str, texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Words of a language and how often each is drawn; words of the texts where no list is known."""
    if language in wordfreq.available_languages():
        known = wordfreq.get_frequency_dict(language)
        words = sorted(known, key=lambda word: (-known[word], word))[:WORDS]
        weights = np.array([known[word] for word in words]) ** EXPONENT
    else:
        words = sorted({word for text in texts for word in text.split()})
        weights = np.ones(len(words))
    if not words:
        raise InputError(f"{language}: neither a list of words nor a text that has some")
    return words, weights / weights.sum()


def of_words(language: str, texts: Sequence[str], count: int, generator: np.random.Generator) -> list[str]:
    """So many texts of drawn words; every other one looks like a sentence."""
    words, weights = words_of(language, texts)
    between = "" if language in WITHOUT_SPACES else " "
    ends = np.cumsum(generator.integers(1, MOST_WORDS + 1, count))
    drawn = generator.choice(len(words), int(ends[-1]), p=weights).tolist()  # at once: each call reads all weights
    found = []
    for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        text = between.join(words[place] for place in drawn[start:end])
        found.append(text if number % 2 else f"{text[:1].upper()}{text[1:]}{END.get(language, '.')}")
    return found


def parts_of(language: str, texts: Sequence[str], count: int, generator: np.random.Generator) -> list[str]:
    """So many parts of longer texts; every other one begins with a capital letter."""
    spaced = language not in WITHOUT_SPACES
    split = [text.split() if spaced else list(text) for text in texts]
    split = [pieces for pieces in split if len(pieces) >= LONG[spaced]]
    found = []
    for number in range(count if split else 0):
        pieces = split[generator.integers(len(split))]
        length = int(generator.integers(*PART[spaced]))
        first = int(generator.integers(len(pieces) - length + 1))
        part = (" " if spaced else "").join(pieces[first : first + length]).strip()
        found.append(part if number % 2 else part[:1].upper() + part[1:])
    return found


def main(
    folder: Annotated[Path, typer.Argument(help="Folder with a file of texts for each language.", show_default=False)],
) -> None:
    """Write drawn texts beside texts of many languages."""
    for file in sorted(folder.glob("*.txt")):
        if file.name.endswith((DRAWN, WRITTEN)):
            continue
        texts, generator = file.read_text("utf8").splitlines(), np.random.default_rng(0)
        drawn = of_words(file.stem, texts, OF_WORDS, generator) + parts_of(file.stem, texts, PARTS, generator)
        (folder / f"{file.stem}{DRAWN}").write_text("".join(f"{text}\n" for text in drawn), "utf8")
        print(f"{file.stem}: {len(drawn):,} drawn texts")


if __name__ == "__main__":
    typer.run(main)
