"""Sizes and percentages as people write them, and settings that cannot be."""

import pytest

from ade.errors import InputError
from ade.settings import parse_percent, parse_size


def test_sizes_as_people_write_them():
    sizes = {"2MB": 2_000_000, "1.5 MiB": 1_572_864, "800kB": 800_000, "12345": 12_345, "2gb": 2 * 10**9, "9 B": 9}
    assert {text: parse_size(text) for text in sizes} == sizes
    assert (parse_size("64KiB"), parse_size("1GiB")) == (65_536, 2**30)
    for text in ("two", "2XB", "MB", "-1MB", "0", "", "inf", "1e999MB"):
        with pytest.raises(InputError, match="size"):
            parse_size(text)


def test_percentages():
    assert [parse_percent(text) for text in ("2%", " 0.5 ", "100%")] == [2, 0.5, 100]
    for text in ("0", "101%", "two", "-1"):
        with pytest.raises(InputError, match="a percentage"):
            parse_percent(text)
