"""Pages of the site that are generated: the help of every command, the tables and plots of the recorded runs."""

import re
from pathlib import Path
from typing import Any

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    files.append(File.generated(config, "results.md", content=results()))
    files.append(File.generated(config, "commands.md", content=commands()))
    for plot in sorted((ROOT / "benchmarks" / "plots").glob("*.png")):
        files.append(File.generated(config, f"plots/{plot.name}", abs_src_path=str(plot)))
    return files


def results() -> str:
    """The generated tables; those that pages link to and that have no records yet are named at the end."""
    page = (ROOT / "benchmarks" / "README.md").read_text("utf8")
    texts = (path.read_text("utf8") for path in sorted((ROOT / "docs").glob("*.md")))
    linked = sorted({name for text in texts for name in re.findall(r"results\.md#(\w+)", text)})
    missing = [name for name in linked if f"\n## {name}\n" not in page]
    return page + "".join(f"\n## {name}\n\nNo records yet.\n" for name in missing)


def commands() -> str:
    """Every verb with its help, as the terminal shows it."""
    from ade.cli.main import app_with

    verb = typer.main.get_command(app_with())
    page = ["# Commands", "", "What `ade VERB --help` says, made from the code.", ""]
    for name, each in _verbs(verb, "ade"):
        context: Any = click.Context(each, info_name=name, terminal_width=92, max_content_width=92)
        page += [f"## {name}", "", "```text", each.get_help(context).strip(), "```", ""]
    return "\n".join(page)


def _verbs(command: Any, name: str) -> list[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        return [(name, command)]
    return [found for key, each in command.commands.items() for found in _verbs(each, f"{name} {key}")]
