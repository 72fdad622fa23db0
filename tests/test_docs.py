"""The site builds without a warning, and every command it shows is one the command line knows, flag by flag."""

import importlib
import os
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
SHOWN = sorted(
    {
        (page.name, line.split("  #")[0].strip())
        for page in PAGES
        for block in re.findall(r"```\w*\n(.*?)```", page.read_text("utf8"), re.DOTALL)
        for line in re.findall(r"^(?:.*\| )?(?:\.venv/bin/)?(ade [a-z].*)$", block, re.MULTILINE)
    }
)


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_a_command_that_is_shown_exists(page, line, ade):
    words = line.split()
    verb = words[1:2]
    status, out, err = ade(*verb, "--help")
    assert status == 0, err
    for flag in re.findall(r"(?<!\S)(--[a-z-]+)", line):
        assert flag in out, f"{page}: '{line}' has {flag}, which 'ade {' '.join(verb)}' does not know"


MEASURED = sorted(
    {
        (page.name, line.split("  #")[0].split("`")[0].strip())
        for page in PAGES
        for line in re.findall(r"python -m benchmarks ([a-z][^`#\n]*)", page.read_text("utf8"))
    }
)


@pytest.mark.parametrize(("page", "line"), MEASURED)
def test_a_benchmark_that_is_shown_exists(page, line):
    verb = line.split()[0]
    done = CliRunner().invoke(benchmarks, [verb, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    for flag in re.findall(r"(?<!\S)\[?(--[a-z-]+)", line):
        assert flag in done.output, f"{page}: '{line}' has {flag}, which '{verb}' does not know"


NAMED = sorted(
    {
        (page.name, name)
        for page in PAGES
        for quoted in re.findall(r"`([^`\n]+)`", page.read_text("utf8"))
        for name in re.findall(r"^(?:ade|tests|benchmarks|examples)/[\w/.]+$", quoted)
    }
)


@pytest.mark.parametrize(("page", "name"), NAMED)
def test_a_file_that_is_named_exists(page, name):
    assert (ROOT / name).exists(), f"{page} names {name}"


def test_a_table_that_is_linked_exists():
    linked = {name for page in PAGES for name in re.findall(r"results\.md#(\w+)", page.read_text("utf8"))}
    assert linked <= {table.name for table in TABLES}


CODE = sorted(
    {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"`(ade(?:\.[A-Za-z_]+)+)(?:\([^`]*)?`", page.read_text("utf8"))
    }
)


@pytest.mark.parametrize(("page", "name"), CODE)
def test_a_name_in_the_package_that_is_shown_exists(page, name):
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            assert hasattr(found, part), f"{page} shows {name}"
            found = getattr(found, part)
        return


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
