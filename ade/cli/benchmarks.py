"""The verbs that measure: `ade benchmark` and `ade reproduce`; they need a checkout of the repository."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ade.cli import display
from ade.cli.options import Device, Json, Seed, show
from ade.errors import InputError

benchmark = typer.Typer(help="Measure this machine; from a checkout of the repository.", no_args_is_help=True)
DataDir = Annotated[Path, typer.Option(help="Folder with ag_news and dbpedia_14.")]
TeachersDir = Annotated[Path, typer.Option(help="Folder with deberta-v3-xsmall and minilm-l6.")]
WorkDir = Annotated[Path, typer.Option(help="Folder for codebooks made on the way.")]


@benchmark.command()
def speed(
    device: Annotated[str, typer.Option(help="cpu: raw text to label; cuda: forward passes of full batches.")] = "cpu",
    data_dir: DataDir = Path("../shared/data"),
    teachers_dir: TeachersDir = Path("teachers"),
    work_dir: WorkDir = Path("runs/reproduce"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """ADE, MiniLM-L6 and the limit they are measured against, side by side in one process."""
    with _checkout():
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
        show(result, as_json, lambda to: display.speeds(to, figures, machine, LIMIT))
    else:
        show(result, as_json, lambda to: display.latencies(to, figures, machine))


@benchmark.command()
def size(
    teacher: Annotated[str, typer.Option(help="A folder, text vectors, a hub name, or 'wordllama'.")] = "wordllama",
    budget: Annotated[list[str], typer.Option(help="Bytes, as 1MiB; may be given again.")] = ["1MiB", "2MiB"],  # noqa: B006
    method: Annotated[list[str] | None, typer.Option(help="Only these ways; may be given again.")] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="Text file; its token counts weight the cosine. Zipf's law without.")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """A table in so many bytes: ADE packed beside the paper's pairs, PQ, RQ, SVD, k-means and plain int8 and int4."""
    with _checkout():
        from benchmarks.compressors import METHODS, UNSWEPT
        from benchmarks.size import frequencies_of, squeezed
    from ade.packing.budget import parse_size
    from ade.teachers import load_teacher

    unknown = [name for name in method or () if name not in METHODS]
    if unknown:
        raise InputError(f"no way '{unknown[0]}'; there are {', '.join(METHODS)}")
    budgets = [parse_size(text) for text in budget]
    loaded = load_teacher(teacher)
    frequency = frequencies_of(loaded, corpus)
    found = []
    with display.progress() as report:
        for name in method or METHODS:
            for bytes_asked in budgets if name not in UNSWEPT else budgets[:1]:
                figures = squeezed(loaded, name, bytes_asked, frequency, report)
                found.append({"method": name, "budget": bytes_asked, **figures})
    result = {"teacher": loaded.name, "table_bytes": loaded.nbytes, "results": found}
    show(result, as_json, lambda to: display.sizes(to, result))


@contextmanager
def _checkout() -> Iterator[None]:
    """Imports of the benchmarks, which are not part of the installed package."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    try:
        yield
    except ImportError as error:
        raise InputError(f"the benchmarks need a checkout and its extra: pip install -e '.[bench]' ({error})") from None


def reproduce(
    table: Annotated[str | None, typer.Option(help="One table; all of them without it.")] = None,
    data_dir: DataDir = Path("../shared/data"),
    teachers_dir: TeachersDir = Path("teachers"),
    work_dir: WorkDir = Path("runs/reproduce"),
    results: Annotated[
        Path | None, typer.Option(help="Folder of result files.", show_default="benchmarks/results")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at once.", min=1)] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="The whole harness on a few hundred rows.")] = False,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run the benchmark tables that are not recorded yet; from a checkout of the repository."""
    from ade.devices import resolve_device

    with _checkout():
        from benchmarks.accuracy import Places
        from benchmarks.records import RESULTS
        from benchmarks.reproduce import plan
        from benchmarks.reproduce import reproduce as make
    places = Places(data_dir, teachers_dir, work_dir, resolve_device(device).type)
    folder = results or (work_dir / "quick" if quick else RESULTS)
    todo, seconds = plan(table, places.device, quick, folder)
    print(f"ade: {len(todo)} runs to make, about {max(1, round(seconds / jobs / 60))} minutes", file=sys.stderr)
    with display.progress() as report:
        failed = make(todo, places, folder, jobs, report)
    result = {"runs": len(todo), "failed": failed, "results": str(folder)}
    show(result, as_json, lambda to: display.reproduced(to, result))
