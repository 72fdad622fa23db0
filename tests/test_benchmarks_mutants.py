"""Mutants: each differs from its source in one place, and tests that look there kill it."""

import ast

import pytest

from ade.errors import InputError
from benchmarks.mutants import FURTHER, files_with_tests, mutants, try_mutants

SOURCE = '''
"""A module."""
import math


def larger(a: int, b: int = 2) -> int:
    """The larger one."""
    best = a
    if b > a and a != 7:
        best = b
    return best + 0
'''


def test_every_mutant_has_one_change_and_no_text_is_one():
    made = mutants(SOURCE)
    whole = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in made:
        lines = mutant.source.splitlines()
        assert sum(one != other for one, other in zip(lines, whole, strict=True)) == 1
        ast.parse(mutant.source)
    assert sorted(mutant.what for mutant in made) == [
        "0 -> 1", "2 -> 3", "7 -> 8", "Add -> Sub", "And -> Or", "Gt -> GtE", "NotEq -> Eq", "condition negated",
        "left out: best = a", "left out: best = b",
    ]  # fmt: skip


def test_tests_kill_what_they_look_at(tmp_path):
    (tmp_path / "ade").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "ade" / "__init__.py").touch()
    (tmp_path / "ade" / "sums.py").write_text(
        "def double(a):\n    return a + a\n\n\ndef half(a):\n    return a * 0.5\n"
    )
    test = "from ade.sums import double\n\n\ndef test_it():\n    assert double(3) == {}\n"
    (tmp_path / "tests" / "test_sums.py").write_text(test.format(6))
    files = {"sums.py": ("test_sums.py",)}
    found = {(mutant.line, mutant.what): killed for _, mutant, killed in try_mutants(files, 99, 0, tmp_path)}
    assert found == {(2, "Add -> Sub"): True, (6, "Mult -> Div"): False, (6, "0.5 -> 1.5"): False}
    (tmp_path / "tests" / "test_sums.py").write_text(test.format(7))
    with pytest.raises(InputError, match="fail before"):
        list(try_mutants(files, 1, 0, tmp_path))


def test_files_are_found_with_their_tests():
    assert files_with_tests(["pursuit"]) == {"pursuit.py": ["test_pursuit.py"]}
    every = files_with_tests([])
    assert every["packing/bits.py"] == ["packing/test_bits.py"]
    assert set(FURTHER) <= set(every)
    with pytest.raises(InputError, match="'nothing' is in the path of no file"):
        files_with_tests(["nothing"])
