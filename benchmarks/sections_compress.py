"""The table of whole models with their embedding table packed, as `sections.py` has the others."""

from collections.abc import Mapping

from benchmarks.book import Book, Record, markdown, size_of
from benchmarks.tables import TABLES
from benchmarks.tables_compress import ONNX, SOURCE

TASKS = {"tatoeba": "Tatoeba", "stsb": "STS-B"}


def compress(book: Book) -> str:
    """Bytes, and what each task has before and after; of tasks in several languages the mean and the worst loss."""
    rows = []
    for record in book.everywhere("compress"):
        figures = record["figures"]
        table = figures["table"]
        cells = [size_of(table["before"]), size_of(table["after"]), size_of(figures["weights"]["after"])]
        settings = record["settings"]
        name = settings["model"] + (", tuned" if settings["tune"] else "")
        name += " on its own text, too" if settings["compression"].get("own_texts") else ""
        rows.append([ONNX if record["kind"] == "compress_onnx" else name, *cells, "; ".join(_tasks(figures))])
    return markdown(["model", "table", "packed", "weights in all", "tasks"], rows)


def compress_speed(book: Book) -> str:
    """Texts or tokens a second and peak memory, the original's and with the table packed."""
    rows = []
    for record in book.everywhere("compress_speed"):
        rate, memory = record["figures"]["per_second"], record["figures"]["peak_bytes"]
        cells = [f"{rate[which]:,.1f}" for which in ("original", "packed")]
        cells += [f"{rate['packed'] / rate['original']:.2f}", *(size_of(memory[which]) for which in rate)]
        rows.append([record["settings"]["model"], record["settings"]["compression"]["size"], *cells])
    header = ["model", "table in", "a second, original", "packed", "ratio", "peak memory, original", "packed"]
    return markdown(header, rows)


def frontier(book: Book) -> str:
    """One way a row for every size: bytes, bits a weight, and the tasks; of Tatoeba the mean and the worst loss."""
    found = book.everywhere("frontier")
    source = next((each["figures"] for each in found if each["settings"]["method"] == SOURCE), None)
    order = {method: number for number, method in enumerate(TABLES["frontier"]())}
    found = sorted(found, key=lambda each: (order[each["settings"]["method"]], each["figures"]["bytes"]))
    rows = []
    for record in found:
        figures = record["figures"]
        translated = figures["tatoeba"]
        cells = [size_of(figures["bytes"]), f"{figures['bits']:.2f}", f"{mean_of(translated):.1f}"]
        cells += [_worst(source["tatoeba"], translated) if source else "-", f"{mean_of(figures['stsb']):.1f}"]
        rows.append([record["settings"]["method"], *cells])
    return markdown(["table", "size", "bits a weight", "Tatoeba, mean", "worst language", "STS-B, English"], rows)


def mean_of(by_language: Mapping[str, float]) -> float:
    """Return the mean over languages."""
    return sum(by_language.values()) / len(by_language)


def _worst(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    changes = {language: after[language] - before[language] for language in before}
    worst = min(changes, key=lambda language: changes[language])
    return f"{worst} {changes[worst]:+.1f}" if changes[worst] < 0 else "-"


def _tasks(figures: Record) -> list[str]:
    before, after = figures["before"], figures["after"]
    if "perplexity" in before:
        rise = 100 * (after["perplexity"] / before["perplexity"] - 1)
        found = [f"perplexity {before['perplexity']:.2f} to {after['perplexity']:.2f} ({rise:+.1f}%)"]
        rises = {
            name: 100 * (after["languages"][name] / value - 1) for name, value in before.get("languages", {}).items()
        }
        if rises:
            worst = max(rises, key=lambda name: rises[name])
            found.append(f"{len(rises)} languages {mean_of(rises):+.1f}% (worst: {worst} {rises[worst]:+.1f}%)")
        return found
    found = []
    for task, name in TASKS.items():
        if not before[task]:
            continue
        means = [mean_of(values[task]) for values in (before, after)]
        found.append(f"{name} {means[0]:.1f} to {means[1]:.1f} (worst: {_worst(before[task], after[task])})")
    return found
