"""Do the tests notice a mistake? Changes one node of a file's syntax tree at a time and runs the tests of that file.

    python -m benchmarks mutants --each 20 --seed 1 pursuit codebook

Mutants are made in a temporary copy of the checkout, never in the checkout itself. A mutant that the tests still pass
with has survived: either no test looks there, or the change makes no difference.
"""

import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ade.errors import InputError

ROOT = Path(__file__).parent.parent
COPIED = ("ade", "benchmarks", "tests", "docs", "examples", "pyproject.toml", "README.md", "LICENSE")  # what tests read
TIMEOUT = 600.0  # seconds after which the tests of a mutant count as failed: it loops

# The method's own files with their tests, relative to ade/ and tests/.
METHOD: dict[str, tuple[str, ...]] = {
    "plain.py": ("test_plain.py", "test_paper.py"),
    "codebook.py": ("test_codebook.py",),
    "pursuit.py": ("test_pursuit.py",),
    "distillation.py": ("test_distillation.py", "test_paper.py"),
    "budget.py": ("test_budget.py",),
    "embedding.py": ("test_embedding.py", "test_paper.py"),
    "model.py": ("test_model.py", "test_backends.py"),
    "lexicon.py": ("test_lexicon.py",),
    "decision.py": ("test_decision.py",),
    "explanation.py": ("test_explanation.py",),
    "evaluation.py": ("test_evaluation.py",),
    "packing/bits.py": ("packing/test_bits.py",),
    "packing/format.py": ("packing/test_format.py",),
    "packing/keys.py": ("packing/test_keys.py",),
    "runtime/tables.py": ("runtime/test_tables.py", "test_backends.py"),
    "runtime/table_scores.py": ("runtime/test_table_scores.py", "test_backends.py"),
    "runtime/attention.py": ("runtime/test_attention.py",),
    "training/schedule.py": ("training/test_schedule.py",),
}

OTHER = {  # what an operator or a comparison may become
    "Add": "Sub", "Sub": "Add", "Mult": "Div", "Div": "Mult", "FloorDiv": "Mult", "Mod": "Mult", "Pow": "Mult",
    "MatMult": "Mult", "BitAnd": "BitOr", "BitOr": "BitAnd", "LShift": "RShift", "RShift": "LShift", "And": "Or",
    "Or": "And", "Lt": "LtE GtE", "LtE": "Lt Gt", "Gt": "GtE LtE", "GtE": "Gt Lt", "Eq": "NotEq", "NotEq": "Eq",
    "Is": "IsNot", "IsNot": "Is", "In": "NotIn", "NotIn": "In",
}  # fmt: skip
Change = Callable[[ast.AST], None]  # changes a node in place


@dataclass(frozen=True)
class Mutant:
    """A changed file: where, what was changed, and its source."""

    line: int
    what: str
    source: str


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a file: operator, comparison or constant changed, condition negated, line left out."""
    tree = ast.parse(source)
    number_of = {id(node): number for number, node in enumerate(ast.walk(tree))}
    made = []
    for node in _nodes(tree):
        for what, change in _changes(node):
            changed = copy.deepcopy(tree)
            twin = next(other for number, other in enumerate(ast.walk(changed)) if number == number_of[id(node)])
            change(twin)
            made.append(Mutant(getattr(node, "lineno", 0), what, ast.unparse(ast.fix_missing_locations(changed))))
    return made


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that is run: no annotations, no docstrings, no texts of errors, no imports."""
    if isinstance(tree, ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr):
        return
    yield tree
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child)


def _changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """What may be changed at a node, in words and as functions that change it."""
    match node:
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign():
            for name in _others(node.op):
                yield f"{type(node.op).__name__} -> {name}", _set("op", getattr(ast, name)())
        case ast.Compare():
            for name in _others(node.ops[0]):
                yield f"{type(node.ops[0]).__name__} -> {name}", _set("ops", [getattr(ast, name)(), *node.ops[1:]])
        case ast.UnaryOp(op=ast.USub()):
            yield "- -> +", _set("op", ast.UAdd())
        case ast.Constant(value=bool() | int() | float() as value):
            changed = (
                not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else 2 * value or 1.0
            )
            yield f"{value} -> {changed}", _set("value", changed)
        case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
            yield "condition negated", _set("test", ast.UnaryOp(ast.Not(), node.test))
    for number, statement in enumerate(getattr(node, "body", []) if isinstance(node, ast.stmt) else []):
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr) and not is_text:
            yield f"left out: {ast.unparse(statement)[:60]}", _leave_out(number)


def _others(operator: ast.AST) -> list[str]:
    return OTHER.get(type(operator).__name__, "").split()


def _set(name: str, value: Any) -> Change:
    return lambda node: setattr(node, name, value)


def _leave_out(number: int) -> Change:
    return lambda node: node.body.__setitem__(number, ast.Pass())  # type: ignore[attr-defined]


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
    environment = {**os.environ, "PYTHONPATH": str(work), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=work, env=environment, capture_output=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def method_files(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The method's files whose path contains one of these names; all of them without names."""
    for name in names:
        if not any(name in file for file in METHOD):
            raise InputError(f"'{name}' is none of the method's files: {', '.join(METHOD)}")
    return {file: tests for file, tests in METHOD.items() if not names or any(name in file for name in names)}
