"""Do the tests notice a mistake? Changes one node of a file's syntax tree at a time and runs the tests of that file.

    python -m benchmarks mutants --each 20 --seed 1 pursuit codebook

Mutants are made in a temporary copy of the checkout, never in the checkout itself. A mutant that the tests still pass
with has survived: either no test looks there, or the change makes no difference.
"""

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ade.errors import InputError

ROOT = Path(__file__).parent.parent
COPIED = ("ade", "benchmarks", "tests", "docs", "examples", "pyproject.toml", "README.md", "LICENSE")  # what tests read
TIMEOUT = 600.0  # seconds after which the tests of a mutant count as failed: it loops

FURTHER = {  # tests of a file beside those that lie at its place below tests/
    **dict.fromkeys(("plain.py", "distillation.py", "embedding.py"), "test_paper.py"),
    **dict.fromkeys(("model.py", "runtime/table_scores.py"), "test_backends.py"),
}
SWAPPED = "Add Sub, Mult Div, BitAnd BitOr, LShift RShift, And Or, Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn"
PAIRS = [pair.split() for pair in SWAPPED.split(", ")]
OTHER = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}  # what an operator becomes
OTHER |= dict.fromkeys(("FloorDiv", "Mod", "Pow", "MatMult"), "Mult")
NOT_RUN = (ast.Import, ast.ImportFrom, ast.Raise, ast.JoinedStr)  # or whose text does not matter


@dataclass(frozen=True)
class Mutant:
    """A changed file: where, what was changed, and its source."""

    line: int
    what: str
    source: str


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a file: operator, comparison or constant changed, condition negated, line left out."""
    made = []
    for number, node in enumerate(_nodes(ast.parse(source))):
        for choice, (what, *_) in enumerate(_changes(node)):
            tree = ast.parse(source)
            changed = list(_nodes(tree))[number]
            _, field, value = _changes(changed)[choice]
            setattr(changed, field, value)
            made.append(Mutant(getattr(node, "lineno", 0), what, ast.unparse(ast.fix_missing_locations(tree))))
    return made


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that is run: no annotations, no texts of errors, no imports."""
    if isinstance(tree, NOT_RUN):
        return
    yield tree
    for name, value in ast.iter_fields(tree):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child)


def _changes(node: Any) -> list[tuple[str, str, Any]]:
    """What may be changed at a node: in words, the field, and its new value."""
    match node:
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign() if new := _swapped(node.op):
            return [(f"{_name(node.op)} -> {_name(new)}", "op", new)]
        case ast.Compare() if new := _swapped(node.ops[0]):
            return [(f"{_name(node.ops[0])} -> {_name(new)}", "ops", [new, *node.ops[1:]])]
        case ast.UnaryOp(op=ast.USub()):
            return [("- -> +", "op", ast.UAdd())]
        case ast.Constant(value=bool() as value):
            return [(f"{value} -> {not value}", "value", not value)]
        case ast.Constant(value=int() | float() as value):
            return [(f"{value} -> {value + 1}", "value", value + 1)]
    found: list[tuple[str, str, Any]] = []
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        found.append(("condition negated", "test", ast.UnaryOp(ast.Not(), node.test)))
    for number, statement in enumerate(getattr(node, "body", []) if isinstance(node, ast.stmt) else []):
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr) and not is_text:
            without = [*node.body[:number], ast.Pass(), *node.body[number + 1 :]]
            found.append((f"left out: {ast.unparse(statement)[:60]}", "body", without))
    return found


def _name(operator: ast.AST) -> str:
    return type(operator).__name__


def _swapped(operator: ast.AST) -> ast.AST | None:
    """The operator that stands in for another."""
    other = OTHER.get(_name(operator))
    return getattr(ast, other)() if other else None


def try_mutants(
    files: Mapping[str, Sequence[str]], each: int, seed: int, root: Path = ROOT
) -> Iterator[tuple[str, Mutant, bool]]:
    """Try mutants of files, at most `each` of a file, drawn by the seed: file, mutant, and whether a test noticed."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for name in COPIED:
            copied = shutil.copytree if (root / name).is_dir() else shutil.copy
            if (root / name).exists():
                copied(root / name, work / name)
        for file, tests in files.items():
            path = work / "ade" / file
            source = path.read_text("utf8")
            if tests_fail(work, tests):
                raise InputError(f"{file}: tests/{' tests/'.join(tests)} fail before anything is changed")
            every = mutants(source)
            chosen = random.Random(f"{seed} {file}").sample(every, min(each, len(every)))
            for mutant in sorted(chosen, key=lambda mutant: mutant.line):
                path.write_text(mutant.source, "utf8")
                yield file, mutant, tests_fail(work, tests)
            path.write_text(source, "utf8")


def tests_fail(work: Path, tests: Sequence[str]) -> bool:
    """Whether a test fails or does not end in time."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(work), "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    try:
        done = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=work, env=environment, capture_output=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def files_with_tests(names: Sequence[str]) -> dict[str, list[str]]:
    """The files of `ade/` that have tests of their own, with these; those whose path contains one of the names."""
    files = sorted(str(path.relative_to(ROOT / "ade")) for path in (ROOT / "ade").rglob("*.py"))
    mirrored = {file: str(Path(file).with_name(f"test_{Path(file).name}")) for file in files}
    tested = {
        file: [test, *FURTHER.get(file, "").split()]
        for file, test in mirrored.items()
        if (ROOT / "tests" / test).is_file() and any(name in file for name in names or [""])
    }
    for name in names:
        if not any(name in file for file in tested):
            raise InputError(f"'{name}' is in the path of no file of ade/ that has tests of its own")
    return tested
