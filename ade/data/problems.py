"""The kinds of problems (single-label, multi-label, regression), and labels as they were given.

Models store labels as names. The type in which they were given is kept beside them: predictions come back in it.
"""

import math
from typing import Any, Literal

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
PROBLEMS = {"single-label": SINGLE, "multi-label": MULTI, "regression": REGRESSION}  # as people name them
Label = str | int | float | bool  # as it was given
LabelType = Literal["str", "int", "float", "bool"]
TRUE, FALSE = "true", "false"
MISSING = ("NAType", "NaTType")  # classes of pandas for a missing value, which cannot be compared


class ValueProblem(ValueError):
    """A value that is no plain value; the message says what it is, without naming the cell."""


def plain(value: Any) -> tuple[str, LabelType] | None:
    """A value as a string, and its type; None where it is missing (None, NaN)."""
    if isinstance(value, str):
        if not is_unicode(value):
            raise ValueProblem("has half of a surrogate pair, which is no character")
        return value, "str"
    if value is None or type(value).__name__ in MISSING:
        return None
    if hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return plain(value.item())  # a number of numpy
    if isinstance(value, (bool, int, float)):
        return _number(value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf8"), "str"
        except UnicodeDecodeError:
            raise ValueProblem("is not UTF-8 text") from None
    if isinstance(value, dict) or is_listed(value):
        what = "an object" if isinstance(value, dict) else "a list"
        raise ValueProblem(f"holds {what}, expected plain values")
    return str(value), "str"  # a date, a decimal number


def _number(value: bool | int | float) -> tuple[str, LabelType] | None:
    if isinstance(value, bool):
        return (TRUE if value else FALSE), "bool"
    if isinstance(value, int):
        return str(value), "int"
    return None if math.isnan(value) else (repr(value), "float")


def is_listed(value: Any) -> bool:
    """Whether a value is a list of values: a list, tuple or set, or an array."""
    return isinstance(value, (list, tuple, set, frozenset)) or getattr(value, "ndim", 0) == 1


def restored(name: str, kind: str) -> Label:
    """A label as it was given, from its name and type."""
    if kind == "int":
        return int(name)
    if kind == "float":
        return float(name)
    return name == TRUE if kind == "bool" else name


def is_unicode(text: str) -> bool:
    """Whether a string can be encoded: JSON escapes and other sources may hold half of a surrogate pair."""
    try:
        return text.isascii() or bool(text.encode("utf8"))
    except UnicodeEncodeError:
        return False
