"""Output for people: tables at most 100 columns wide on standard output, notices on standard error."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ade.cli.writing import Output, format_output, one_line
from ade.data.columns import LABEL, TEXT

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ade.explanation import Explanation

STRONGEST, MOST_WORDS = 8, 20  # n-grams and words of an explanation that are listed
WIDTH = 100
SAMPLE = 1000  # texts in which unknown tokens are counted
LANGUAGES = "(see the page 'Languages' of the documentation)"
quiet = False  # what --quiet sets, for the whole process


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


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, texts: Sequence[int] = (0,)
) -> Table:
    """A plain table. Columns of `texts` stand to the left and are wrapped where they are too long, numbers are not."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        is_text = number in texts
        side: Any = "left" if is_text else "right"
        made.add_column(column, justify=side, header_style="dim", no_wrap=not is_text, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """A line for each name and value."""
    return table(rows[0], rows[1:], texts=(0, 1))


def metric_name(name: str) -> str:
    """A metric as people spell it."""
    return name.replace("_", " ").replace("f1", "F1").replace("r2", "R2")


def format_metric(name: str, value: float | None) -> str:
    """Fractions as percentages; counts, errors and correlations as they are."""
    if value is None or isinstance(value, int):
        return "-" if value is None else f"{value:,}"
    is_number = name.endswith(("error", "r2", "pearson", "spearman"))
    return f"{value:.4g}" if is_number else f"{100 * value:.2f}"


def say(message: str) -> None:
    """Print a notice on stderr, unless --quiet was given."""
    if not quiet:
        print(f"ade: {message}", file=sys.stderr)


def say_columns(source: str, dataset: Any) -> None:
    """Say which columns were found, where they are not called `text` and `label`."""
    columns = getattr(dataset, "columns", None)
    if columns not in (None, (TEXT, LABEL)):
        say(f"{source}: texts of the column '{columns[0]}', labels of '{columns[1]}'")


def say_unknown_tokens(tokenizer: "Tokenizer", texts: Sequence[str], meaning: str) -> None:
    """Say of texts that many of their tokens are unknown, and what that means."""
    from ade.data.tokens import MAX_SHARE, unknown_share

    step = max(1, len(texts) // SAMPLE)  # not the first ones alone: rows may be sorted
    share = unknown_share(tokenizer, texts[::step])
    if share > MAX_SHARE:
        say(f"{100 * share:.0f}% of the tokens of these texts are unknown or single bytes: {meaning} {LANGUAGES}")


def show(value: Mapping[str, Any], as_json: bool, *parts: Table | Text | str) -> None:
    """Print a result as one JSON object, or for a person as tables and lines."""
    if as_json:
        print(json.dumps(value))
    else:
        console().print(*parts, sep="\n")


def print_explanation(to: Console, explanation: "Explanation") -> None:
    """Print a prediction, and what words and n-grams add to the margin between its label and the runner-up."""
    prediction, margin = explanation.prediction, explanation.margin()
    to.print(Text(format_output(Output(prediction)).rstrip("\n").replace("\t", "  "), style="bold"))
    name = "the number" if prediction.probability is None else one_line(margin.name)
    listed = [(one_line(word), round(adds, 3)) for word, adds in margin.words[:MOST_WORDS]]
    further = len(margin.words) - len(listed)
    rest = round(margin.value, 3) - sum(adds for _, adds in listed)  # what is printed adds up
    rest_name = "special tokens and bias" + (f", {further} more words" if further else "")
    rows = [*listed, (rest_name, rest), ("sum", margin.value)]
    to.print(table(("word", f"adds to {name}"[:60]), [(word, f"{adds:+.3f}") for word, adds in rows]))
    if margin.ngrams:
        strongest = ", ".join(f"'{one_line(ngram)}' {adds:+.3f}" for ngram, adds in margin.ngrams[:STRONGEST])
        to.print(Text(f"strongest n-grams, in their words: {strongest}"))
    to.print()
