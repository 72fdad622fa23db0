"""Help in groups: the common options and verbs first, the others under headings of their own."""

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup


class GroupedCommand(TyperCommand):
    """A verb whose options stand under the heading that their `rich_help_panel` names."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options group by group."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        _write(formatter, groups.items())


class GroupedVerbs(TyperGroup):
    """The verbs under the heading that their `rich_help_panel` names."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs group by group, each with the first sentence of its help."""
        groups: dict[str, list[tuple[str, str]]] = {}
        limit = formatter.width - 6 - max(map(len, self.commands))
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None)
            rows = groups.setdefault(heading if isinstance(heading, str) else "Commands", [])
            rows.append((name, command.get_short_help_str(limit)))
        _write(formatter, groups.items())


def _write(formatter: Any, groups: Iterable[tuple[str, list[tuple[str, str]]]]) -> None:
    for heading, rows in groups:
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)
