"""The table of whole models with their embedding table packed, as `sections.py` has the others."""

from collections.abc import Mapping
from statistics import geometric_mean

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
    found, source = _by_way_and_size(book, "frontier")
    rows = []
    for record in found:
        figures = record["figures"]
        translated = figures["tatoeba"]
        cells = [size_of(figures["bytes"]), f"{figures['bits']:.2f}", f"{mean_of(translated):.1f}"]
        cells += [_worst(source["tatoeba"], translated) if source else "-", f"{mean_of(figures['stsb']):.1f}"]
        rows.append([record["settings"]["method"], *cells])
    return markdown(["table", "size", "bits a weight", "Tatoeba, mean", "worst language", "STS-B, English"], rows)


def frontier_decoder(book: Book) -> str:
    """The same for a decoder: its perplexity, how many times the source's that is, and the same in languages."""
    found, source = _by_way_and_size(book, "frontier_decoder")
    rows = []
    for record in found:
        figures = record["figures"]
        cells = [size_of(figures["bytes"]), f"{figures['bits']:.2f}", f"{figures['perplexity']:,.2f}"]
        cells += _times(source, figures) if source else ["-"] * 3
        rows.append([record["settings"]["method"], *cells])
    header = [
        "table",
        "size",
        "bits a weight",
        "perplexity",
        "times the source's",
        "languages, geometric mean",
        "worst",
    ]
    return markdown(header, rows)


def _times(before: Record, after: Record) -> list[str]:
    """How many times a perplexity is what it was, that of the languages in the mean, and the worst of them."""
    times = {name: after["languages"][name] / value for name, value in before["languages"].items()}
    worst = max(times, key=lambda name: times[name])
    found = [after["perplexity"] / before["perplexity"], geometric_mean(times.values()), times[worst]]
    written = [f"{each:.2f}x" if each < 1000 else f"{each:.0e}x" for each in found]
    return [*written[:2], f"{worst} {written[2]}"]


def _by_way_and_size(book: Book, table: str) -> tuple[list[Record], Record | None]:
    """The records of a frontier, by way and then size, and the figures of the table as it came."""
    found = book.everywhere(table)
    source = next((each["figures"] for each in found if each["settings"]["method"] == SOURCE), None)
    order = {method: number for number, method in enumerate(TABLES[table]())}
    return sorted(found, key=lambda each: (order[each["settings"]["method"]], each["figures"]["bytes"])), source


def rise_of(before: Record, after: Record) -> float:
    """By how many percent the perplexity is higher."""
    return 100 * (after["perplexity"] / before["perplexity"] - 1)


def rises_by_language(before: Record, after: Record) -> dict[str, float]:
    """The same for each language."""
    return {name: 100 * (after["languages"][name] / value - 1) for name, value in before["languages"].items()}


def _in_languages(before: Record, after: Record) -> list[str]:
    rises = rises_by_language(before, after)
    worst = max(rises, key=lambda name: rises[name])
    return [f"{mean_of(rises):+,.1f}%", f"{worst} {rises[worst]:+,.1f}%"]


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
        rise = rise_of(before, after)
        found = [f"perplexity {before['perplexity']:.2f} to {after['perplexity']:.2f} ({rise:+.1f}%)"]
        if before.get("languages"):
            mean, worst = _in_languages(before, after)
            found.append(f"{len(before['languages'])} languages {mean} (worst: {worst})")
        return found
    found = []
    for task, name in TASKS.items():
        if not before[task]:
            continue
        means = [mean_of(values[task]) for values in (before, after)]
        found.append(f"{name} {means[0]:.1f} to {means[1]:.1f} (worst: {_worst(before[task], after[task])})")
    return found
