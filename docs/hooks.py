"""Pages of the site that are made from the code and the records: the commands' own help, the tables and plots."""

from pathlib import Path
from typing import Any

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not written by hand."""
    results = (ROOT / "benchmarks" / "README.md").read_text("utf8")
    files.append(File.generated(config, "results.md", content=results))
    files.append(File.generated(config, "commands.md", content=commands()))
    for plot in sorted((ROOT / "benchmarks" / "plots").glob("*.png")):
        files.append(File.generated(config, f"plots/{plot.name}", abs_src_path=str(plot)))
    return files


def commands() -> str:
    """Every verb with its help, as the terminal shows it."""
    from ade.cli.main import app

    verb = typer.main.get_command(app)
    page = ["# Commands", "", "What `ade VERB --help` says, made from the code.", ""]
    for name, each in _verbs(verb, "ade"):
        context: Any = click.Context(each, info_name=name, terminal_width=92, max_content_width=92)
        page += [f"## {name}", "", "```text", each.get_help(context).strip(), "```", ""]
    return "\n".join(page)


def _verbs(command: Any, name: str) -> list[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        return [(name, command)]
    return [found for key, each in command.commands.items() for found in _verbs(each, f"{name} {key}")]
