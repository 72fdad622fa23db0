"""`python -m benchmarks VERB`, from a checkout: make runs, write the pages, compare with another commit."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ade.cli import display
from ade.errors import InputError
from ade.progress import shown
from benchmarks import corpora
from benchmarks.encoder import texts
from benchmarks.records import RESULTS

app = typer.Typer(
    name="python -m benchmarks",
    help="What is measured, and how to repeat it.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(corpora.app, name="corpora")
app.add_typer(texts.app, name="encoder")
WORK = Path("runs/benchmarks")  # what is kept between runs


@app.command()
def reproduce(
    table: Annotated[str | None, typer.Option(help="One table; all of them without it.")] = None,
    cell: Annotated[str, typer.Option(help="Only cells whose 'row, column' contains this.")] = "",
    data_dir: Annotated[Path, typer.Option(help="Folder with ag_news and the other data sets.")] = Path("data"),
    models_dir: Annotated[Path, typer.Option(help="Folder with minilm-l6 and the other models.")] = Path("models"),
    results: Annotated[Path, typer.Option(help="Folder of records.")] = RESULTS,
    jobs: Annotated[int, typer.Option(help="Runs at once; 1 for timings.", min=1)] = 1,
    plan: Annotated[bool, typer.Option("--plan", help="Only list the runs that are to be made.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Make the runs that have no record from this state of the code, and record them."""
    from ade.devices import resolve_device
    from benchmarks import records, runs

    places = records.Places(data_dir, models_dir, WORK, resolve_device(device).type)
    todo = runs.missing(runs.runs_of(table, cell), records.load(results), places.device)
    if plan:
        print("".join(f"{run.kind} {dict(run.settings)}\n" for run in todo), end="")
        return
    print(f"{len(todo)} runs to make", file=sys.stderr)
    with shown() as report:
        failed = runs.reproduce(todo, places, results, jobs, report)
    print(f"{len(todo) - len(failed)} runs recorded in {results}")
    if failed:
        raise InputError("not made: " + "; ".join(failed))


@app.command()
def report(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail where a page is stale.")] = False,
) -> None:
    """Write benchmarks/README.md, the tables of README.md and docs, and the plots from the records."""
    from benchmarks import records
    from benchmarks.report import stale_pages, write_pages

    if not check:
        write_pages()
    elif stale := stale_pages(records.load()):
        names = ", ".join(str(path.relative_to(records.ROOT)) for path in stale)
        raise InputError(f"stale: {names}; run 'make report'")


@app.command()
def beside(
    ref: Annotated[str, typer.Argument(help="A commit, or the folder of another checkout.", show_default=False)],
    repeats: Annotated[int, typer.Option(help="Turns of each tree.", min=1)] = 5,
    steps: Annotated[int, typer.Option(help="Optimizer steps that are timed.", min=1)] = 100,
) -> None:
    """Measure this tree beside another commit, in turn: training, predictions, a cold start, the service."""
    from benchmarks.beside import HERE, beside as measured

    with shown() as progress:
        rows = measured(ref, repeats, (20, 20 + steps), progress)
    lines = [(row["what"], f"{row[HERE]:,.1f}", f"{row[ref]:,.1f}", f"{row['ratio']:.2f}") for row in rows]
    display.console().print(display.table(("", HERE, ref, "ratio"), lines))


@app.command()
def mutants(
    files: Annotated[list[str] | None, typer.Argument(help="Parts of their paths; all files that have tests.")] = None,
    each: Annotated[int, typer.Option(help="Maximum mutants of a file.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Draws the mutants.")] = 0,
) -> None:
    """Change one operator, comparison or constant at a time: do the tests notice?"""
    from benchmarks.mutants import files_with_tests, try_mutants

    tried: dict[str, list[bool]] = {}
    for file, mutant, killed in try_mutants(files_with_tests(files or []), each, seed):
        tried.setdefault(file, []).append(killed)
        if not killed:
            print(f"survived: {file}, line {mutant.line}: {mutant.what}", flush=True)
    tried["all"] = [killed for each_file in tried.values() for killed in each_file]
    lines = []
    for file, kills in tried.items():
        lines.append((file, str(sum(kills)), str(len(kills)), f"{sum(kills) / len(kills):.0%}"))
    display.console().print(display.table(("file", "killed", "mutants", "share"), lines))


@app.command()
def kill(
    kills: Annotated[int, typer.Option(help="Number of kills.", min=0)] = 100,
    full_disks: Annotated[int, typer.Option(help="Number of runs on a disk that fills up.", min=0)] = 100,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Kill ade's commands at random moments, or fill their disk; run again, every byte must be as undisturbed."""
    from benchmarks.kill import try_kills

    wrong = 0
    for what, problem in try_kills(kills, full_disks, seed):
        print(f"{what}: {problem or 'the same bytes'}", flush=True)
        wrong += bool(problem)
    if wrong:
        raise InputError(f"{wrong} of {kills + full_disks} went wrong")


def main() -> None:
    """Run a verb; a foreseeable failure is one line on stderr and exit status 1."""
    try:
        app(prog_name="python -m benchmarks")
    except InputError as error:
        sys.exit(f"benchmarks: {error}")


if __name__ == "__main__":
    main()
