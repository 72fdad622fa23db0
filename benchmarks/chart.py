"""What the README's chart of accuracy against bytes shows, and its sentence."""

from textwrap import fill

from benchmarks.book import SHORT, Book, Record, percent, size_of
from benchmarks.tables import PEERS, TABLES

CHART = (
    "ADE, 1.5 MB",
    "fastText .ftz",
    "TF-IDF + SVM",
    "MiniLM-L6 whole",
)  # points of the chart that are put in words


def sizes(book: Book) -> dict[str, list[Record]]:
    """What the README's chart shows, AG News alone: ADE in few bytes and as it comes, and every peer."""
    asked = TABLES["accuracy"]()
    packed_runs = TABLES["packed"]()["ag_news"]
    chosen = {
        **{f"ADE, {name.removesuffix(' in all')}": runs for name, runs in packed_runs.items() if "in all" in name},
        "ADE": asked["ag_news"]["ADE"],
        "ADE, embedded teacher": asked["ag_news (wordllama)"]["ADE"],
        **{SHORT[name]: asked["ag_news"][name] for name in PEERS},
    }
    return {name: found for name, runs in chosen.items() if (found := book.of(runs))}


def sentence(book: Book) -> str:
    """The README's sentence under the chart."""
    found = sizes(book)
    (rows,) = {records[0]["data"]["train_rows"] for records in found.values()} or {0}
    told = [
        f"{name.partition(', ')[0]} reaches {percent(found[name])}% in {size_of(found[name][0]['figures']['bytes'])}"
        for name in CHART
        if name in found
    ]
    text = f"AG News, all trained on the same {rows:,} rows, fastText and TF-IDF tuned on them: {', '.join(told)}."
    return fill(text, 120) if told else ""
