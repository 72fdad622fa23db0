"""The table of whole models with their embedding table packed, as `sections.py` has the others."""

from benchmarks.book import Book, Record, markdown, size_of

TASKS = {"tatoeba": "Tatoeba", "stsb": "STS-B"}


def compress(book: Book) -> str:
    """Bytes, and what each task has before and after; of tasks in several languages the mean and the worst loss."""
    rows = []
    for record in book.everywhere("compress"):
        figures = record["figures"]
        table, seconds = figures["table"], figures["compress_seconds"]
        cells = [size_of(table["before"]), size_of(table["after"]), size_of(figures["weights"]["after"])]
        cells += ["; ".join(_tasks(figures)), f"{seconds:,.0f} s", size_of(figures["peak_bytes"])]
        rows.append([record["settings"]["model"], *cells])
    return markdown(["model", "table", "packed", "weights in all", "tasks", "time", "peak memory"], rows)


def _tasks(figures: Record) -> list[str]:
    before, after = figures["before"], figures["after"]
    if "perplexity" in before:
        rise = 100 * (after["perplexity"] / before["perplexity"] - 1)
        return [f"perplexity {before['perplexity']:.2f} to {after['perplexity']:.2f} ({rise:+.1f}%)"]
    found = []
    for task, name in TASKS.items():
        if not before[task]:
            continue
        changes = {language: after[task][language] - before[task][language] for language in before[task]}
        worst = min(changes, key=lambda language: changes[language])
        means = [sum(values[task].values()) / len(changes) for values in (before, after)]
        found.append(f"{name} {means[0]:.1f} to {means[1]:.1f} (worst: {worst} {changes[worst]:+.1f})")
    return found
