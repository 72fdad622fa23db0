"""Tokens of a text -> its words: a word that the tokenizer splits into several pieces is put together again.

By the characters on both sides of a token's border, not by the tokenizer's own notion of a word: some tokenizers have
none, others count punctuation to the word. Imports only the standard library.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

SPACE_MARKS = "▁Ġ"  # how tokenizers write the space before a word
APOSTROPHES = "'\u2019"
JOINER = "\u200d"  # holds the parts of one emoji, or of one letter of an Indic script, together
# Scripts written without spaces between words: their tokens stay as they are.
UNSPACED = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
)  # fmt: skip


@dataclass
class Pieces:
    """The tokens of one word, and the characters of the text it stands for: none where it is a special token."""

    tokens: list[int] = field(default_factory=list)
    start: int = 0
    end: int = 0


def group_pieces(text: str, tokens: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[Pieces]:
    """Group the tokens of a text into words, in order; every token is in exactly one. Words have no space around."""
    words: list[Pieces] = []
    spaces: list[int] = []  # tokens that are only a space: they belong to the word after it
    for i, (token, (start, end)) in enumerate(zip(tokens, spans, strict=True)):
        part = text[start:end]
        if (part and not part.strip()) or (not part and token and not token.strip(SPACE_MARKS)):
            spaces.append(i)
            continue

        start, end = end - len(part.lstrip()), start + len(part.rstrip())
        last = words[-1] if words and not spaces and words[-1].end > words[-1].start else None
        if last is not None and part and (start < last.end or (start == last.end and is_inside_word(text, start))):
            last.tokens.append(i)
            last.end = max(last.end, end)
        else:
            words.append(Pieces([*spaces, i], start, end))
            spaces = []

    if spaces:  # at the end of the text
        if not words:
            words.append(Pieces())
        words[-1].tokens += spaces
    return words


def is_inside_word(text: str, at: int) -> bool:
    """Whether the characters before and at this position belong to one word."""
    before, after = text[at - 1], text[at]
    if JOINER in (before, after) or unicodedata.category(after)[0] == "M":
        return True
    if _is_unspaced(before) or _is_unspaced(after):
        return False
    if before in APOSTROPHES:
        return at > 1 and text[at - 2].isalpha() and after.isalpha()
    if after in APOSTROPHES:
        return before.isalpha() and at + 1 < len(text) and text[at + 1].isalpha()
    return _is_letter(before) and _is_letter(after)


def _is_letter(character: str) -> bool:
    """Whether a character is a letter, a digit, or a mark on one of them."""
    return unicodedata.category(character)[0] in "LNM"


def _is_unspaced(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in UNSPACED)
