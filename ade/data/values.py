"""Values of a cell as strings, and back: the name of a label, and the type in which it was given.

Models store labels as names. The type is kept beside them, so that predictions come back as the labels were given.
"""

import math
from typing import Any, Literal

from ade.data.problems import Label
from ade.data.rows import is_unicode

LabelType = Literal["str", "int", "float", "bool"]
TRUE, FALSE = "true", "false"
MISSING = ("NAType", "NaTType")  # classes of pandas for a missing value, which cannot be compared


class IntLiteral(str):
    """An integer of a JSON file, as it is written."""


class FloatLiteral(str):
    """A number with a fraction or an exponent of a JSON file, as it is written: 1.0 is not 1."""


class ValueProblem(ValueError):
    """A value that is no plain value; the message says what it is, without naming the cell."""


def plain(value: Any) -> tuple[str, LabelType] | None:
    """A value as a string, and its type; None where it is missing (None, NaN)."""
    if isinstance(value, str):
        return _string(value)
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


def _string(value: str) -> tuple[str, LabelType]:
    if not is_unicode(value):
        raise ValueProblem("has half of a surrogate pair, which is no character")
    if type(value) is str:
        return value, "str"
    kind: LabelType = "int" if isinstance(value, IntLiteral) else "float" if isinstance(value, FloatLiteral) else "str"
    return str(value), kind


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
