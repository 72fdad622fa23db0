"""Which columns of a table hold the texts and the labels, where nobody has said so: found by their names."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ade.errors import InputError

TEXT, LABEL = "text", "label"  # taken first, whatever other columns there are
TEXT_WORDS = {
    "abstract", "article", "body", "comment", "content", "description", "doc", "document", "email", "gloss", "headline",
    "input", "message", "passage", "post", "prompt", "query", "question", "review", "sentence", "sms", "story",
    "summary", "text", "title", "tweet", "utterance", "words",
}  # fmt: skip
LABEL_WORDS = {
    "category", "class", "emotion", "flag", "genre", "intent", "kind", "label", "lang", "language", "output",
    "polarity", "rating", "score", "section", "sentiment", "spam", "stance", "stars", "subject", "tag", "target",
    "topic", "toxic", "type", "y",
}  # fmt: skip
ENDINGS = ("id", "idx", "name", "names", "str")  # label_id, class_name
MAX_WORDS = 4  # of a name; more are a text in a file without a header
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def find_columns(source: Path | str, names: Sequence[str], text: str | None, label: str | None) -> tuple[str, str]:
    """The names of the text column and the label column; those given are checked, the others are found.

    Found are `text` and `label`; else the first column that is named like a text (review, sentence, ...) and the last
    one that is named like a label (sentiment, intent, ...); of two columns, the other one.
    """
    text = text if text is not None else _first_text([name for name in names if name != label])
    label = label if label is not None else _last_label([name for name in names if name != text])
    if len(names) == 2 and (text is None) != (label is None):
        known = label if text is None else text
        other = next((name for name in names if name != known), None)
        text, label = (other, label) if text is None else (text, other)
    if text is None or label is None:
        what, flag = ("texts", "--text-column") if text is None else ("labels", "--label-column")
        raise InputError(f"{source}: which column holds the {what}? {_listed(names)}; name it with {flag}")
    check_columns(source, names, text, label)
    return text, label


def has_columns(names: Sequence[str], text: str | None, label: str | None) -> bool:
    """Whether `find_columns` would find both columns."""
    try:
        find_columns("", names, text, label)
    except InputError:
        return False
    return True


def find_text_column(source: Path | str, names: Sequence[str], text: str | None) -> str:
    """The name of the text column alone: as `find_columns`, or the only column there is."""
    found = text if text is not None else _first_text(names) or (names[0] if len(names) == 1 else None)
    if found is None:
        raise InputError(f"{source}: which column holds the texts? {_listed(names)}; name it with --text-column")
    _check(source, names, found, "--text-column")
    return found


def check_columns(source: Path | str, names: Sequence[str], text: str, label: str) -> None:
    """Raise an error unless the columns `text` and `label` are among the names, once each."""
    if text == label:
        raise InputError(f"{source}: column '{text}' cannot hold both the texts and the labels")
    _check(source, names, text, "--text-column")
    _check(source, names, label, "--label-column")


def _check(source: Path | str, names: Sequence[str], name: str, flag: str) -> None:
    if name not in names:
        raise InputError(f"{source}: no column '{name}', {_listed(names)} ({flag})")
    if list(names).count(name) > 1:
        raise InputError(f"{source}: {list(names).count(name)} columns are called '{name}'; rename all but one")


def _listed(names: Sequence[str]) -> str:
    return f"the columns are {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"


def _first_text(names: Sequence[str]) -> str | None:
    return _pick(names, TEXT, lambda words: words[-1] in TEXT_WORDS)


def _last_label(names: Sequence[str]) -> str | None:
    def is_label(words: list[str]) -> bool:
        head = words[:-1] if words[-1] in ENDINGS and len(words) > 1 else words
        return head[-1] in LABEL_WORDS

    return _pick(names[::-1], LABEL, is_label)


def _pick(names: Sequence[str], usual: str, fits: Callable[[list[str]], bool]) -> str | None:
    """The column called `usual`, else the first one whose words fit."""
    if usual in names:
        return usual
    return next((name for name in names if 0 < len(words := _words(name)) <= MAX_WORDS and fits(words)), None)


def _words(name: str) -> list[str]:
    """The words of a column's name, in lower case and in the singular: of `reviewText` and `review_texts` the same."""
    return [_singular(word.lower()) for word in WORDS.findall(name)]


def _singular(word: str) -> str:
    forms = (word, word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("ies") + "y")
    return next((form for form in forms if form in TEXT_WORDS | LABEL_WORDS), word)
