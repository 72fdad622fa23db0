"""`python -m benchmarks VERB`, from a checkout: run the tables, measure this machine, write the pages."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ade.cli import display
from ade.cli.options import Device, Json, show
from ade.errors import InputError

app = typer.Typer(
    name="python -m benchmarks",
    help="What is measured, and how to repeat it.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
DataDir = Annotated[Path, typer.Option(help="Folder with ag_news, dbpedia_14 and the other data sets.")]
TeachersDir = Annotated[Path, typer.Option(help="Folder with deberta-v3-xsmall and minilm-l6.")]
WorkDir = Annotated[Path, typer.Option(help="Folder for codebooks made on the way.")]


@app.command()
def reproduce(
    table: Annotated[str | None, typer.Option(help="One table; all of them without it.")] = None,
    cell: Annotated[str, typer.Option(help="Of the tables, only cells whose 'row, column' contains this.")] = "",
    data_dir: DataDir = Path("../shared/data"),
    teachers_dir: TeachersDir = Path("teachers"),
    work_dir: WorkDir = Path("runs/reproduce"),
    results: Annotated[
        Path | None, typer.Option(help="Folder of result files.", show_default="benchmarks/results")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at once.", min=1)] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="The whole harness on a few hundred rows.")] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Make the runs of the tables that are not recorded yet."""
    from ade.devices import resolve_device
    from benchmarks.accuracy import Places
    from benchmarks.records import RESULTS
    from benchmarks.reproduce import plan
    from benchmarks.reproduce import reproduce as make

    places = Places(data_dir, teachers_dir, work_dir, resolve_device(device).type)
    folder = results or (work_dir / "quick" if quick else RESULTS)
    todo, seconds = plan(table, places.device, quick, folder, cell)
    print(f"{len(todo)} runs to make, about {max(1, round(seconds / jobs / 60))} minutes", file=sys.stderr)

    with display.progress() as report:
        failed = make(todo, places, folder, jobs, report)
    result = {"runs": len(todo), "failed": failed, "results": str(folder)}
    show(result, as_json, lambda to: show_reproduced(to, result))


@app.command()
def speed(
    device: Annotated[str, typer.Option(help="cpu: raw text to label; cuda: forward passes of full batches.")] = "cpu",
    data_dir: DataDir = Path("../shared/data"),
    teachers_dir: TeachersDir = Path("teachers"),
    work_dir: WorkDir = Path("runs/reproduce"),
    as_json: Json = False,
) -> None:
    """Measure ADE, MiniLM-L6 and the limit they are compared with on this machine; nothing is recorded."""
    from benchmarks.accuracy import Places
    from benchmarks.records import LIMIT, device_of
    from benchmarks.reproduce import KINDS
    from benchmarks.tables import runs_of

    kind = "throughput" if device == "cpu" else "latency"
    places = Places(data_dir, teachers_dir, work_dir, device)
    with display.progress() as report:
        figures, _ = KINDS[kind](runs_of(kind)[0], places, report)
    machine = device_of(device)
    result = {"device": machine, "figures": figures}
    if kind == "throughput":
        show(result, as_json, lambda to: show_speeds(to, figures, machine, LIMIT))
    else:
        show(result, as_json, lambda to: show_latencies(to, figures, machine))


@app.command()
def size(
    teacher: Annotated[str, typer.Option(help="A folder, text vectors, a hub name, or 'wordllama'.")] = "wordllama",
    budget: Annotated[list[str], typer.Option(help="Bytes, as 1MiB; may be given again.")] = ["1MiB", "2MiB"],  # noqa: B006
    method: Annotated[list[str] | None, typer.Option(help="Only these methods; may be given again.")] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Text file; its token counts weight the cosine. Zipf's law without.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compress a table into so many bytes: ADE beside the paper's pairs, PQ, RQ, SVD, k-means, int8 and int4."""
    from ade.packing.budget import parse_size
    from ade.teachers import load_teacher
    from benchmarks.compression import METHODS, UNSWEPT, compressed, frequencies_of

    unknown = [name for name in method or () if name not in METHODS]
    if unknown:
        raise InputError(f"no method '{unknown[0]}'; there are {', '.join(METHODS)}")
    budgets = [parse_size(text) for text in budget]
    loaded = load_teacher(teacher)
    frequency = frequencies_of(loaded, corpus)

    found = []
    with display.progress() as report:
        for name in method or METHODS:
            for bytes_asked in budgets if name not in UNSWEPT else budgets[:1]:
                figures = compressed(loaded, name, bytes_asked, frequency, report)
                found.append({"method": name, "budget": bytes_asked, **figures})
    result = {"teacher": loaded.name, "table_bytes": loaded.nbytes, "results": found}
    show(result, as_json, lambda to: show_sizes(to, result))


@app.command()
def report(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail where a page is stale or a sentence is not true.")
    ] = False,
) -> None:
    """Write benchmarks/README.md, the tables of README.md and the plots from the records."""
    from benchmarks.report import check_pages, write_pages

    if not check:
        write_pages()
        return
    wrong, unmeasured = check_pages()
    for line in unmeasured:
        print(f"not measured yet, left out: {line}", file=sys.stderr)
    if wrong:
        raise InputError("; ".join(wrong))


def show_reproduced(to: Console, result: Mapping[str, Any]) -> None:
    """How many runs were made, and which could not be."""
    to.print(f"{result['runs'] - len(result['failed'])} runs recorded in {result['results']}")
    for line in result["failed"]:
        to.print(f"not made: {line}")


def show_speeds(to: Console, figures: Mapping[str, Any], device: Mapping[str, Any], limit: str) -> None:
    """Texts a second on a CPU, beside those of the system that is the `limit`."""
    most = figures[limit]["texts_per_second"]
    columns = ("texts/s", "of the limit", "one text", "texts/s, cold", "one text, cold")
    table = display.plain_table(f"{device['name']}, {device['threads']} cores", *columns)
    for name, each in figures.items():
        rate = each["texts_per_second"]
        cells = [f"{rate:,.0f}", f"{100 * rate / most:.1f}%", f"{each['one_ms']:.2f} ms"]
        if "cold_texts_per_second" in each:
            cells += [f"{each['cold_texts_per_second']:,.0f}", f"{each['cold_one_ms']:.2f} ms"]
        table.add_row(name, *cells)
    to.print(table)
    to.print("Cold: no row of a token is in the cache yet, as on texts never seen before.")


def show_latencies(to: Console, figures: Mapping[str, Any], device: Mapping[str, Any]) -> None:
    """Milliseconds of a batch, and of one that fills a GPU, beside what the GPU does at best."""
    from benchmarks.sections import WAYS

    table = display.plain_table(f"{device['name']}, ms", *WAYS.values())
    for name, each in figures["models"].items():
        table.add_row(name, *(f"{each[kind]['ms']:.3f}" if kind in each else "-" for kind in WAYS))
    to.print(table)

    limits = figures["limits"]
    for name, large in figures["large"].items():
        floor = 1000 * max(large["bytes"] / limits["copy_bytes"], large["flops"] / limits["matmul_flops"])
        share = f"{100 * floor / large['ms']:.0f}% of what reading and multiplying alone would allow"
        to.print(f"{name}, {large['texts']:,} texts at once: {large['ms']:.2f} ms, {share}")
    if limits:
        copy, product = limits["copy_bytes"] / 1e12, limits["matmul_flops"] / 1e12
        to.print(f"The device copies {copy:.2f} TB/s and multiplies {product:.0f} TFLOP/s in bfloat16.")


def show_sizes(to: Console, result: Mapping[str, Any]) -> None:
    """Every method at each budget."""
    to.print(f"{result['teacher']}: {display.size(result['table_bytes'])} as it is, the tokenizer apart")
    table = display.plain_table("bytes asked for", "method", "used", "cosine", "by frequency", "5%", "of 10", "seconds")
    table.columns[1].justify = "left"
    for each in sorted(result["results"], key=lambda each: each["budget"]):
        if not each["bytes"]:
            table.add_row(display.size(each["budget"]), each["method"], "does not fit")
            continue
        asked = display.size(each["budget"]) if each["bytes"] <= each["budget"] else "(as it comes)"
        figures = [f"{each[name]:.3f}" for name in ("cosine", "weighted_cosine", "cosine_p5", "recall_at_10")]
        table.add_row(asked, each["method"], display.size(each["bytes"]), *figures, f"{each['seconds']:.0f}")
    to.print(table)
    to.print("Cosine to the teacher's rows: mean, weighted by frequency, 5th percentile; nearest neighbours kept.")


def main() -> None:
    """Run a verb; a foreseeable failure is one line on stderr and exit status 2."""
    try:
        app(prog_name="python -m benchmarks")
    except InputError as error:
        sys.exit(f"benchmarks: {error}")


if __name__ == "__main__":
    main()
