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
MAX_WORDS, MAX_NAME = 4, 40  # words and characters of a name; more are a text in a file without a header
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
    is_named = text is not None or label is not None
    text = text if text is not None else _find([name for name in names if name != label], TEXT, TEXT_WORDS)
    if label is None:
        label = _find([name for name in names[::-1] if name != text], LABEL, LABEL_WORDS, ENDINGS)
    if text is None or label is None:
        rows = sample()
        if not is_named:
            _check_header(source, names, rows)
        if len(names) == 2 and text is label is None:
            text, label = _told_by_values(names, rows)
        elif len(names) == 2:
            other = next((name for name in names if name not in (text, label)), None)
            text, label = (other, label) if text is None else (text, other)
    if text is None or label is None:
        what, flag = ("texts", "--text-column") if text is None else ("labels", "--label-column")
        raise InputError(f"{source}: which column holds the {what}? {_listed(names)}; name it with {flag}")
    if text == label:
        raise InputError(f"{source}: column '{text}' cannot hold both the texts and the labels")
    _check(source, names, text, "--text-column")
    _check(source, names, label, "--label-column")
    return text, label


def find_text_column(source: object, names: Sequence[str], text: str | None, sample: Callable[[], Rows] = list) -> str:
    """The name of the text column alone: as `find_columns`, or the only column there is."""
    name = text if text is not None else _find(names, TEXT, TEXT_WORDS) or (names[0] if len(names) == 1 else None)
    if name is None:
        rows = sample()
        _check_header(source, names, rows)
        name = _told_by_values(names, rows)[0]
    if name is None:
        advice = "name it with --text-column, or give it alone"
        raise InputError(f"{source}: which column holds the texts? {_listed(names)}; {advice}")
    _check(source, names, name, "--text-column")
    return name


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
    for name in () if {TEXT, LABEL} & {*names} else names:
        if len(name.split()) > MAX_WORDS or len(name) > MAX_NAME or any(row.get(name) == name for row in rows):
            advice = "write text,label above it, or name a column with --text-column"
            raise InputError(f"{source}: the first row is data, not a header ({name!r:.40}); {advice}")


def _check(source: object, names: Sequence[str], name: str, flag: str) -> None:
    if name not in names:
        raise InputError(f"{source}: no column '{name}', {_listed(names)} ({flag})")
    if list(names).count(name) > 1:
        raise InputError(f"{source}: {list(names).count(name)} columns are called '{name}'; rename all but one")


def _listed(names: Sequence[str]) -> str:
    return f"the columns are {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"


def _find(names: Sequence[str], usual: str, words: set[str], endings: Sequence[str] = ()) -> str | None:
    """The column with the usual name, else the first one whose last word is one of these."""
    return usual if usual in names else next((name for name in names if _last_word(name, endings) in words), None)


def _last_word(name: str, endings: Sequence[str] = ()) -> str | None:
    """The last word of a name, in lower case and in the singular, before an ending; of a text in place of a name none.

    That of `reviewText` and `review_texts` is the same.
    """
    words = [_singular(word.lower()) for word in WORDS.findall(name)]
    if not 0 < len(words) <= MAX_WORDS:
        return None
    return words[-2] if words[-1] in endings and len(words) > 1 else words[-1]


def _singular(word: str) -> str:
    forms = (word, word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("ies") + "y")
    return next((form for form in forms if form in TEXT_WORDS | LABEL_WORDS), word)
