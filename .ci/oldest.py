"""Print the oldest supported releases of the dependencies, as constraints: of all users, and of the extras named."""

import re
import sys
import tomllib
from pathlib import Path

REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,]+\])?[>=]=(?P<oldest>[\w.]+)")
TOGETHER = {"tokenizers": "0.22.2", "numpy": "2.0.2"}  # what transformers, wordllama and pandas ask for


def oldest(extras: list[str]) -> dict[str, str]:
    """The lower bound of every dependency, by name."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf8"))["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    wanted = [each for group in groups for each in group if not each.startswith(project["name"])]
    found = {}
    for each in wanted:
        match = REQUIREMENT.match(each)
        if match is None:
            raise SystemExit(f"pyproject.toml: '{each}' has no lower bound")
        found[match["name"]] = match["oldest"]
    return found | (TOGETHER if "train" in extras else {})


if __name__ == "__main__":
    print("\n".join(f"{name}=={version}" for name, version in oldest(sys.argv[1:]).items()))
