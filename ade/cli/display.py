"""Output for people: tables at most 100 columns wide on standard output, numbers and texts as they are shown."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ade.cli.writing import format_label, format_prediction, one_line

if TYPE_CHECKING:
    from ade.explanation import Contributions, Explanation

WIDTH = 100


def console() -> Console:
    """A console on standard output; colours only on a terminal."""
    terminal = Console()
    width = min(WIDTH, terminal.width) if terminal.is_terminal else WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


def size(count: float) -> str:
    """A number of bytes with a decimal unit, as 1.5 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def plain_table(*columns: str, title: str | None = None, wrap: bool = False) -> Table:
    """A plain table: the first column to the left, numbers to the right.

    Where the table is too wide, the first column is wrapped and the others, which hold numbers, are not; with `wrap`,
    for other values, all columns may be.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        side: Any = "right" if number else "left"
        table.add_column(column, justify=side, header_style="dim", no_wrap=number > 0 and not wrap, overflow="fold")
    return table


def print_facts(to: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Print a line for each name and value; long values are wrapped."""
    table = plain_table(*rows[0], wrap=True)
    for row in rows[1:]:
        table.add_row(*row)
    to.print(table)


def metric_name(name: str) -> str:
    """A metric as people spell it."""
    return name.replace("_", " ").replace("f1", "F1").replace("r2", "R2")


def format_metric(name: str, value: float | None) -> str:
    """Fractions as percentages; counts, errors and correlations as they are."""
    if value is None or isinstance(value, int):
        return "-" if value is None else f"{value:,}"
    is_number = name.endswith(("error", "r2", "pearson", "spearman"))
    return f"{value:.4g}" if is_number else f"{100 * value:.2f}"


def print_explanation(to: Console, explanation: "Explanation") -> None:
    """Print a prediction, then what every word and the strongest n-grams add to the score of its most probable label.

    On a terminal the words of the text are coloured by that; elsewhere they are a table.
    """
    parts, prediction = explanation.contributions(), explanation.prediction
    name = "the number" if prediction.probability is None else one_line(format_label(parts.label))
    to.print(Text(format_prediction(prediction).rstrip("\n").replace("\t", "  "), style="bold"))
    if to.is_terminal:
        to.print(_coloured(explanation, parts))
    else:
        table = plain_table("word", f"adds to {name[:24]}", "of it n-grams", "pooling weight")
        for word, pooled, total in zip(explanation.words, parts.words, parts.totals, strict=True):
            cells = (f"{total:+.3f}", f"{total - pooled:+.3f}", f"{100 * word.pooling_weight:.1f}%")
            table.add_row(one_line(word.text), *cells)
        to.print(table)

    strongest = [f"'{one_line(ngram.text)}' {value:+.3f}" for ngram, value in explanation.strongest_ngrams()]
    if strongest:
        to.print(Text(f"strongest n-grams: {', '.join(strongest)}"))
    bias = parts.bias + parts.lexicon_bias
    sums = f"words {sum(parts.words):+.3f}, n-grams {sum(parts.ngrams):+.3f}, bias {bias:+.3f}"
    to.print(Text(f"score of {name}: {parts.score:.3f} = {sums}"))
    to.print()


def _coloured(explanation: "Explanation", parts: "Contributions") -> Text:
    """The words of a text: what adds to the score in green, what takes from it in red, the strongest with numbers."""
    most = max((abs(total) for total in parts.totals), default=0.0) or 1.0
    line, end = Text(), 0
    for word, total in zip(explanation.words, parts.totals, strict=True):
        if word.start == word.end:  # a special token stands nowhere in the text
            line.append(f"{one_line(word.text)} ", "dim")
            continue
        line.append(one_line(explanation.text[end : word.start]))
        strength, colour = abs(total) / most, "green" if total > 0 else "red"
        line.append(one_line(word.text), f"bold {colour}" if strength > 0.5 else colour if strength > 0.1 else "")
        if strength > 0.25:  # not by colour alone
            line.append(f"{total:+.2f}", "dim")
        end = max(end, word.end)
    line.append(one_line(explanation.text[end:]))
    return line
