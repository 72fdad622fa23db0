"""The verb `ade predict`: texts of a file or of a pipe in, labels and probabilities out."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ade.cli import display
from ade.cli.files import check_output, open_output, open_texts, stopping_early
from ade.cli.notices import UnknownTokenNotice
from ade.cli.options import (
    Address,
    Engine,
    Json,
    Model,
    RuntimeDevice,
    TextColumn,
    TextFile,
    TextFormat,
    Workers,
)
from ade.cli.writing import TAGGING, OutputFormat, Result, Wanted, Writer, output_format, results_of, write_json
from ade.data.problems import TAGGER
from ade.data.reading import Format
from ade.data.streams import chunks
from ade.data.tokenize import CHUNK
from ade.errors import InputError
from ade.files import kind_of

if TYPE_CHECKING:
    from ade.data.reading import TextRows
    from ade.predictor import Predictor

MAX_SCORES = 1 << 24  # class scores held in memory at a time
Predict = Callable[[list[str], int], list[Result]]  # of a chunk of texts, and the number of texts before it


def predict(
    model: Model,
    file: TextFile = "-",
    format: TextFormat = None,
    text_column: TextColumn = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write to this file (.txt, .csv, .tsv, .jsonl), by default standard output. With --engine ray, the "
            "folder of Parquet files to write."
        ),
    ] = None,
    output_as: Annotated[
        OutputFormat | None,
        typer.Option(
            "--output-format", help="By default from the name of --output, else text; csv and jsonl keep all columns."
        ),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Write the K most probable labels.", min=1)] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write the probability of every label.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Leave the label empty where its probability is lower. Multi-label models: predict the labels of at "
            "least this probability, by default 0.5.",
            min=0,
            max=1,
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Also print what every word adds to the label; with --json an object per line."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite the file of --output.")] = False,
    device: RuntimeDevice = "cpu",
    engine: Engine = None,
    address: Address = "local",
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Predict label and probability of each text.

    Texts are read as a stream: files may have any length, and a line that comes through a pipe is answered at once. A
    tagger prints a word and its tag per line.
    """  # fmt: skip
    wanted = Wanted(top_k, probabilities, threshold)
    if (as_json or explain) and (output is not None or output_as is not None):
        raise InputError(f"{'--json' if as_json else '--explain'} prints: leave out --output and --output-format")
    if explain and wanted != Wanted():
        raise InputError("--explain explains the label: leave out --top-k, --probabilities and --threshold")
    if engine is not None:
        _refuse_on_ray({"--json": as_json, "--explain": explain, "--output-format": output_as, "--top-k": top_k})
        options = {"text_column": text_column, "workers": workers, "probabilities": probabilities}
        _predict_on_ray(model, file, output, format, overwrite, address, {**options, "threshold": threshold})
        return
    kind = output_format(output, output_as)
    check_output(output, overwrite)

    with open_texts(file, format, text_column) as (rows, stream):
        if explain:
            stopping_early(lambda: _explain_rows(model, device, rows, as_json))
            return
        problem, names, answer = _load(model, device, wanted)
        size = max(1, min(CHUNK, MAX_SCORES // max(1, len(names))))
        batches = _answers(rows, chunks(rows, size, stream), answer)
        if as_json:
            found = (result for _, results in batches for result in results)
            stopping_early(lambda: write_json(sys.stdout, found, names))
            return

        with open_output(output, in_place=stream is not None) as target:
            writer = Writer(target, kind, rows, names, problem, wanted)
            stopping_early(lambda: _write(writer, batches))


def _refuse_on_ray(given: Mapping[str, object]) -> None:
    flag = next((flag for flag, value in given.items() if value), None)
    if flag is not None:
        raise InputError(f"{flag} is not for --engine ray, which writes a folder of Parquet files")


def _predict_on_ray(
    model: Path,
    file: str,
    output: Path | None,
    format: Format | None,
    overwrite: bool,
    address: str,
    options: dict[str, Any],
) -> None:
    from ade.integrations.ray_data import connected, predict_files

    if output is None or file == "-":
        raise InputError("--engine ray reads files and writes a folder of Parquet files: give FILE and --output")
    with connected(address, options["workers"]):
        predict_files(model, file, output, format, overwrite, **options)


def _write(writer: Writer, batches: Iterator[tuple[list[dict[str, Any]], list[Result]]]) -> None:
    for rows, results in batches:
        writer.write(rows, results)
    writer.begin()  # a header, even without rows
    writer.file.flush()


def _answers(
    rows: "TextRows", batches: Iterator[list[dict[str, Any]]], answer: Predict
) -> Iterator[tuple[list[dict[str, Any]], list[Result]]]:
    first = 0
    for batch in batches:
        yield batch, answer([row[rows.text] for row in batch], first)
        first += len(batch)


def _explain_rows(model: Path, device: str, rows: "TextRows", as_json: bool) -> None:
    """Print the explanation of each text as soon as it is made."""
    if kind_of(model) == TAGGER:
        raise InputError(f"{model}: a tagger, which labels words; --explain needs a classifier or a regression model")
    predictor, to = load_predictor(model, device), display.console()
    for number, row in enumerate(rows):
        (explanation,) = predictor.explain([row[rows.text]], first=number)
        if as_json:
            print(json.dumps(explanation.as_dict()), flush=True)
        else:
            display.print_explanation(to, explanation)
            sys.stdout.flush()


def _load(model: Path, device: str, wanted: Wanted) -> tuple[str, tuple[str, ...], Predict]:
    """The kind of problem of a model, its labels, and how it predicts a chunk."""
    if kind_of(model) == TAGGER:
        wanted.check(TAGGING)
        from ade.classifier import Tagger

        tagger = Tagger.load(model, device)
        return TAGGING, (), lambda texts, _: [Result(each) for each in tagger.stream(texts)]

    predictor = load_predictor(model, device)
    wanted.check(predictor.problem)
    notice = UnknownTokenNotice(predictor.tokenizer)

    def answer(texts: list[str], first: int) -> list[Result]:
        results = results_of(predictor, texts, first, wanted)
        notice.see(texts)
        return results

    return predictor.problem, predictor.names, answer


def load_predictor(model: Path, device: str) -> "Predictor":
    """On the CPU the numpy runtime, which loads no torch; on other devices the PyTorch model."""
    if device == "cpu":
        from ade.runtime.runtime import Runtime

        return Runtime.load(model)
    from ade.classifier import Classifier

    return Classifier.load(model, device)
