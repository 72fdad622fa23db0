"""The table `scale` as text, and what a billion rows would cost, computed from its rates."""

from benchmarks.book import Book, Record, markdown, size_of

BILLION, MACHINES = 1_000_000_000, 64
NOT_MEASURED = "<!-- not measured yet -->"


def scale(book: Book) -> str:
    """Rows a second of engines, processes that train, and memory over rows."""
    found: dict[str, list[Record]] = {}
    for record in book.table("scale"):
        found.setdefault(record["kind"], []).append(record)
    parts = [*map(_engines, found.get("engines", [])), *map(_processes, found.get("processes", []))]
    return "\n\n".join([*parts, *([_memory(found["scale"])] if "scale" in found else [])])


def _engines(record: Record) -> str:
    rows = [[name, f"{each['rows_per_second']:,.0f}"] for name, each in record["figures"].items()]
    top = f"`ade predict`, {record['settings']['rows']:,} rows of Parquet, {record['cores']} cores"
    return markdown([top, "rows/s"], rows)


def _processes(record: Record) -> str:
    rows = [
        [name, f"{each['texts_per_second']:,.0f}", f"{100 * each['dev_accuracy']:.2f}", f"{each['seconds']:.0f} s"]
        for name, each in record["figures"].items()
    ]
    top = f"`ade train`, {record['settings']['steps']:,} steps, {record['cores']} cores"
    return markdown([top, "texts/s", "validation accuracy", "in all"], rows)


def _memory(found: list[Record]) -> str:
    rows = []
    for record in sorted(found, key=lambda each: each["settings"]["rows"]):
        figures = record["figures"]
        train, predict = figures["train"], figures["predict"]
        cells = [size_of(figures["file_bytes"]), size_of(train["peak_bytes"]), f"{train['seconds']:,.0f} s"]
        cells += [size_of(predict["peak_bytes"]), f"{predict['rows_per_second']:,.0f}"]
        rows.append([f"{record['settings']['rows']:,}", *cells])
    steps = found[0]["settings"]["steps"]
    return markdown(
        ["rows", "file", "memory of `ade train`", f"time, {steps} steps", "memory of `ade predict`", "rows/s"], rows
    )


def billion(book: Book) -> str:
    """A billion rows on many machines like the one that was measured, all of whose cores predict."""
    found = [record for record in book.table("scale") if record["kind"] == "engines"]
    if not found:
        return NOT_MEASURED
    record = found[-1]
    rate = max(each["rows_per_second"] for name, each in record["figures"].items() if name.startswith("Ray"))
    hours = BILLION / rate / 3600
    settings, count = record["settings"], record["cores"]
    return (
        f"Ray predicted {settings['rows']:,} rows at {rate:,.0f} rows/s on a machine of {count} cores. A billion such "
        f"rows are {hours:,.0f} hours of that machine, or {hours / MACHINES:.1f} hours of {MACHINES} of them: computed "
        "from this rate, not measured, for workers that do not wait for each other and files that are read as fast."
    )
