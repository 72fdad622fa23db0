"""Output for people: tables at most 100 columns wide on standard output, notices on standard error."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ade.cli.writing import Output, format_label, format_output, one_line
from ade.data.columns import LABEL, TEXT

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ade.explanation import Explanation

STRONGEST = 8  # n-grams of an explanation that are listed
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
    """Print a prediction, and what words and n-grams add to the score of its most probable label."""
    label, prediction = explanation.index(), explanation.prediction
    name = "the number" if prediction.probability is None else one_line(format_label(explanation.names[label]))
    to.print(Text(format_output(Output(prediction)).rstrip("\n").replace("\t", "  "), style="bold"))
    rows = []
    for word in explanation.words:
        weight = f"{100 * word.pooling_weight:.1f}%"
        rows.append((one_line(word.text), f"{word.total[label]:+.3f}", f"{word.lexicon[label]:+.3f}", weight))
    to.print(table(("word", f"adds to {name[:24]}", "of it n-grams", "pooling weight"), rows))

    by_ngrams = [(ngram.text, float(ngram.contributions[label])) for ngram in explanation.ngrams]
    strongest = sorted(by_ngrams, key=lambda each: -abs(each[1]))[:STRONGEST]
    if strongest:
        listed = ", ".join(f"'{one_line(ngram)}' {value:+.3f}" for ngram, value in strongest)
        to.print(Text(f"strongest n-grams: {listed}"))
    by_words = sum(float(word.pooled[label]) for word in explanation.words)
    bias = explanation.bias[label] + explanation.lexicon_bias[label]
    sums = f"words {by_words:+.3f}, n-grams {sum(value for _, value in by_ngrams):+.3f}, bias {bias:+.3f}"
    to.print(Text(f"score of {name}: {explanation.scores[label]:.3f} = {sums}"))
    to.print()
