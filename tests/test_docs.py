"""The site builds without a warning, and every command it shows is one the command line knows, flag by flag."""

import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app as benchmarks
from benchmarks.runs import TABLES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page.name: page.read_text("utf8") for page in PAGES}


def shown(pattern: str) -> list[tuple[str, str]]:
    """The pages and what they show of a pattern, each once."""
    return sorted({(page, each.strip()) for page, text in TEXTS.items() for each in re.findall(pattern, text, re.M)})


def flags(line: str) -> list[str]:
    return re.findall(r"(?<!\S)\[?(--[a-z-]+)", line)


@pytest.mark.parametrize(("page", "line"), shown(r"^(?:.*\| )?(?:\.venv/bin/)?(ade [a-z].*?)(?:  #.*)?$"))
def test_a_command_that_is_shown_exists(page, line, ade):
    verb = line.split()[1]
    status, out, err = ade(verb, "--help")
    assert status == 0, err
    for flag in flags(line):
        assert flag in out, f"{page}: '{line}' has {flag}, which 'ade {verb}' does not know"


@pytest.mark.parametrize(("page", "line"), shown(r"python -m benchmarks ([a-z][^`#\n]*)"))
def test_a_benchmark_that_is_shown_exists(page, line):
    verb = line.split()[0]
    done = CliRunner().invoke(benchmarks, [verb, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    for flag in flags(line):
        assert flag in done.output, f"{page}: '{line}' has {flag}, which '{verb}' does not know"


@pytest.mark.parametrize(("page", "name"), shown(r"`((?:ade|tests|benchmarks|examples)/[\w/.]+)`"))
def test_a_file_that_is_named_exists(page, name):
    assert (ROOT / name).exists(), f"{page} names {name}"


def test_a_table_that_is_linked_exists():
    assert {name for _, name in shown(r"results\.md#(\w+)")} <= {table.name for table in TABLES}


@pytest.mark.parametrize(("page", "name"), shown(r"`(ade(?:\.[A-Za-z_]+)+)(?:\([^`]*)?`"))
def test_a_name_in_the_package_that_is_shown_exists(page, name):
    pkgutil.resolve_name(name)


def test_the_site_builds_and_lists_every_verb(tmp_path):
    made = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(made, capture_output=True, text=True, cwd=ROOT, env=quiet, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    commands = (tmp_path / "site" / "commands" / "index.html").read_text("utf8")
    from typer.main import get_command

    from ade.cli.main import app_with

    for verb in get_command(app_with()).commands:
        assert f"ade {verb}" in commands
    api = (tmp_path / "site" / "api" / "index.html").read_text("utf8")
    for name in re.findall(r"^::: (\S+)", (ROOT / "docs" / "api.md").read_text("utf8"), re.MULTILINE):
        assert f'id="{name}"' in api
    for page in (tmp_path / "site").rglob("*.html"):  # a reader needs no network
        assert not re.findall(r'<(?:script|link|img)\b[^>]*(?:src|href)="https?:', page.read_text("utf8")), page
