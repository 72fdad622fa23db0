"""The map in CONTRIBUTING.md: it is complete, says what the files say of themselves, and imports follow its order.

python -m tests.test_architecture     writes the map again, from the first lines of the files
"""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE, PAGE = ROOT / "ade", ROOT / "CONTRIBUTING.md"
START, END = "is complete. Rooms are folders.\n\n```\n", "```\n"  # around the map
ROOM = 92  # characters of a line of the map that are left for what a file says of itself
MOST_FILES, MOST_LINES = 12, 400  # of a room, of a file
TORCH_FREE = (
    "plain",
    "codebook",
    "lexicon",
    "configuration",
    "folder",
    "backends",
    "trained_model",
    "evaluation",
    "fitting.convex",
    "runtime.tables",
)


def written_map() -> str:
    return PAGE.read_text("utf8").partition(START)[2].partition(END)[0]


def groups() -> list[list[str]]:
    """The groups of the map: names of files and rooms of the package, without what is said of them."""
    names = [
        [line.split()[0].removesuffix(".py") for line in group.splitlines() if not line.startswith(" ")]
        for group in written_map().strip("\n").split("\n\n")
    ]
    return [[name.rstrip("/") for name in group] for group in names]


def sentence_of(path: Path) -> str:
    """The first paragraph of a file's docstring in one line: as many whole clauses of it as fit."""
    said = ast.get_docstring(ast.parse(path.read_text("utf8"))) or ""
    paragraph = " ".join(said.partition("\n\n")[0].split())
    if len(paragraph) <= ROOM:
        return paragraph
    ends = [match.start() for match in re.finditer(r"[.;:,] ", paragraph[: ROOM + 1]) if match.start() > ROOM // 4]
    return paragraph[: ends[-1]] if ends else paragraph[:ROOM].rsplit(" ", 1)[0]


def made_map() -> str:
    """The map with one sentence a file, in the groups of the one that is written."""
    lines = []
    for group in groups():
        for name in group:
            path = PACKAGE / f"{name}.py"
            if path.is_file():
                lines.append(f"{path.name:<26}{sentence_of(path)}")
                continue
            lines.append(f"{name}/")
            files = [file for file in sorted((PACKAGE / name).glob("*.py")) if file.name != "__init__.py"]
            lines.extend(f"  {file.name:<24}{sentence_of(file)}" for file in files)
        lines.append("")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n") + "\n"


@cache
def modules() -> list[str]:
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    return [".".join(path.parts) for path in paths if path.name not in ("__init__", "__main__")]


def rank_of(module: str) -> int:
    return next(i for i, group in enumerate(groups()) if module.partition(".")[0] in group)


def imported(module: str) -> set[str]:
    """Modules of ours that a module imports anywhere, but for those of annotations."""
    tree = ast.parse((PACKAGE / (module.replace(".", "/") + ".py")).read_text("utf8"))
    hints = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    hinted = {id(inner) for node in hints for inner in ast.walk(node)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in hinted:
            if node.module == "ade":
                found |= {alias.name for alias in node.names if alias.name in modules()}
            elif node.module and node.module.startswith("ade."):
                found.add(node.module.removeprefix("ade."))
    return found


def test_the_map_says_what_the_files_say():
    assert written_map() == made_map(), "write it again: make map"


def test_every_file_and_room_is_on_the_map():
    names = {path.stem for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "__main__")}
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    listed = [name for group in groups() for name in group]
    assert sorted(listed) == sorted(names | rooms)


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_from_its_group_or_above(module):
    for other in imported(module):
        assert rank_of(other) <= rank_of(module), f"{module} imports {other}"


def test_rooms_have_few_files_and_files_few_lines():
    for room in {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}:
        assert len([path for path in room.glob("*.py") if path.name != "__init__.py"]) <= MOST_FILES, room
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text("utf8").splitlines()) <= MOST_LINES, path


def test_no_room_is_named_like_a_public_function():
    import ade

    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert not rooms & {*dir(ade), "export"}


@pytest.mark.parametrize(
    ("name", "absent"),
    [("ade", ("torch", "pyarrow", "transformers", "numpy"))]
    + [("ade.cli.main", ("torch", "pyarrow", "transformers"))]
    + [(f"ade.{name}", ("torch", "pyarrow", "transformers", "ade.cli", "ade.training")) for name in TORCH_FREE],
)
def test_what_importing_leaves_out(name, absent):
    code = f"import sys, {name}; print([each for each in {absent!r} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_plain_imports_nothing_of_ours():
    assert not imported("plain")


def test_every_public_name_is_known_to_type_checkers_and_can_be_completed():
    import ade

    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf8"))
    (typed,) = (node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    names = {(node.module, alias.asname) for node in typed.body for alias in node.names}
    assert names == {(f"ade.{module}", name) for name, module in ade._MODULE_OF.items()}
    assert {name for _, name in names} | {"__version__"} == set(dir(ade))


def main() -> None:
    """Write the map again."""
    page = PAGE.read_text("utf8")
    PAGE.write_text(page.replace(START + written_map(), START + made_map()), "utf8")


if __name__ == "__main__":
    main()
