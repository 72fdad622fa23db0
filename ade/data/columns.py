"""Which columns of a table hold the texts and the labels, where nobody has said so: found by names, or by values."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ade.errors import InputError

TEXT, LABEL = "text", "label"  # taken first, whatever other columns there are
TEXT_WORDS = {
    "abstract", "article", "body", "comment", "content", "description", "doc", "document", "email", "gloss", "headline",
    "input", "message", "passage", "post", "prompt", "query", "question", "review", "sentence", "sms", "story",
    "summary", "text", "title", "tweet", "utterance", "words",
}  # fmt: skip
LABEL_WORDS = {
    "category", "class", "emotion", "flag", "genre", "intent", "kind", "label", "lang", "language", "output",
    "polarity", "prediction", "rating", "score", "section", "sentiment", "spam", "stance", "stars", "subject", "tag",
    "target", "topic", "toxic", "type", "y",
}  # fmt: skip
ENDINGS = ("id", "idx", "name", "names", "str")  # label_id, class_name
MAX_WORDS = 4  # of a name; more are a text in a file without a header
MUCH_LONGER = 2  # times as long as labels, by which texts are told
NUMBER = re.compile(r"[-+]?[\d.,]+(?:e[-+]?\d+)?", re.IGNORECASE)
Rows = Sequence[Mapping[str, Any]]
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


@dataclass(frozen=True)
class Schema:
    """The names of the text and label columns and the kind of problem; None to find them."""

    text: str | None = None
    label: str | None = None
    problem: str | None = None


def find_columns(
    source: object, names: Sequence[str], text: str | None, label: str | None, sample: Callable[[], Rows] = list
) -> tuple[str, str]:
    """The names of the text column and the label column; those given are checked, the others are found.

    Found are `text` and `label`; else the first column that is named like a text (review, sentence, ...) and the last
    one that is named like a label (sentiment, intent, ...); of two columns, the other one. Where the names of two
    columns tell nothing, their values do: `sample` gives the first rows.
    """
    given = text is not None or label is not None
    if text is None:
        text = _find([name for name in names if name != label], TEXT, TEXT_WORDS)
    if label is None:
        label = _find([name for name in names[::-1] if name != text], LABEL, LABEL_WORDS)
    if not given and (text is None or label is None):
        rows = sample()
        _check_header(source, names, rows)
        if text is None and label is None:
            text, label = _told_by_values(names, rows)
    if len(names) == 2 and text is None and label in names:
        text = names[1 - names.index(label)]
    elif len(names) == 2 and label is None and text in names:
        label = names[1 - names.index(text)]

    text = _checked(source, names, text, TEXT)
    label = _checked(source, names, label, LABEL)
    if text == label:
        raise InputError(f"{source}: column '{text}' cannot hold both the texts and the labels")
    return text, label


def find_text_column(source: object, names: Sequence[str], text: str | None, sample: Callable[[], Rows] = list) -> str:
    """The name of the text column alone: as `find_columns`, or the only column there is."""
    if text is None:
        text = names[0] if len(names) == 1 else _find(names, TEXT, TEXT_WORDS)
    if text is None:
        rows = sample()
        _check_header(source, names, rows)
        text = _told_by_values(names, rows)[0]
    return _checked(source, names, text, TEXT)


def _told_by_values(names: Sequence[str], rows: Rows) -> tuple[str, str] | tuple[None, None]:
    """The text column and the label column of two, where the values of one are clearly longer texts."""
    if len(names) != 2 or not rows:
        return None, None
    lengths = {name: sum(_length(row.get(name)) for row in rows) for name in names}
    label, text = sorted(names, key=lambda name: lengths[name])
    return (text, label) if lengths[text] > MUCH_LONGER * lengths[label] else (None, None)


def _length(value: Any) -> int:
    """How much of a text a value is: its characters times its words, since some scripts have no spaces; 0 for none."""
    is_text = isinstance(value, str) and not NUMBER.fullmatch(value.strip())
    return len(value) * len(value.split()) if is_text else 0


def _check_header(source: object, names: Sequence[str], rows: Rows) -> None:
    """Refuse a first row that is data: a name in it is a sentence, or a value of its own column."""
    for name in names:
        if len(name.split()) > MAX_WORDS or any(row.get(name) == name for row in rows):
            advice = "write text,label above it, or name a column with --text-column"
            raise InputError(f"{source}: the first row is data, not a header ({name!r:.40}); {advice}")


def _checked(source: object, names: Sequence[str], name: str | None, what: str) -> str:
    """The name of a column of texts or labels, which must be there."""
    listed = ", ".join([f"{each:.40}" for each in names[:8]] + ["..."] * (len(names) > 8))
    if name is None:
        advice = f"call it '{what}', or name it with --{what}-column"
        raise InputError(f"{source}: which column holds the {what}s? the columns are {listed}; {advice}")
    if name not in names:
        raise InputError(f"{source}: no column '{name}', the columns are {listed} (--{what}-column)")
    return name


def _find(names: Sequence[str], usual: str, words: set[str]) -> str | None:
    """The column with the usual name, else the first one whose last word is one of these."""
    if usual in names:
        return usual
    return next((name for name in names if not words.isdisjoint(_last_word(name))), None)


def _last_word(name: str) -> set[str]:
    """The last word of a name in lower case, before an ending and in singular forms; none of a text in its place.

    That of `reviewText` and `review_texts` is the same.
    """
    words = [word.lower() for word in WORDS.findall(name)]
    if len(words) > 1 and words[-1] in ENDINGS:
        words.pop()
    if not 0 < len(words) <= MAX_WORDS:
        return set()
    word = words[-1]
    return {word, word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("ies") + "y"}
