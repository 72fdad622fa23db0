"""The verb `ade predict`: texts of a file or of a pipe in, labels and probabilities out, as text, CSV, TSV or JSON."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from ade.cli import display
from ade.cli.options import (
    Json,
    Overwrite,
    RuntimeDevice,
    TextColumn,
    TextFile,
    TextFormat,
    UnknownTokenNotice,
    argument,
    check_output,
    model_path,
    option,
    say,
)
from ade.cli.writing import TAGGING, Extra, Output, PredictionFormat, Row, output_format, outputs_of, write_predictions
from ade.configuration import CLASSIFIER, TAGGER, check_kind
from ade.data.columns import TEXT
from ade.data.records import Format, Records, read_texts
from ade.data.tokens import CHUNK
from ade.errors import InputError
from ade.files import ENGLISH, new_file

MAX_SCORES = 1 << 24  # class scores held in memory
Outputs = Callable[[list[str], int], list[Output]]  # of texts, and the number of texts before them


def predict(
    model: Annotated[str, argument("Model folder, or a name on the hub; not with --labels.", "MODEL")],
    file: TextFile = "-",
    labels: Annotated[
        str | None, option("Labels without any training: a,b,c or a file of name TAB description.", metavar="LABELS")
    ] = None,
    format: TextFormat = None,
    text_column: TextColumn = None,
    output: Annotated[
        Path | None, option("File to write: .txt, .csv, .tsv, .jsonl; with --engine ray a folder.", metavar="FILE")
    ] = None,
    output_as: Annotated[
        PredictionFormat | None, option("By default from the name of --output, else text.", "--output-format")
    ] = None,
    top_k: Annotated[int | None, option("Write the K most probable labels.", metavar="K", min=1)] = None,
    probabilities: Annotated[bool, option("Write the probability of every label.", "--probabilities")] = False,
    threshold: Annotated[
        float | None,
        option("No label below this probability; of several labels all above it.", metavar="P", min=0, max=1),
    ] = None,
    explain: Annotated[bool, option("Print what every word adds to the label.", "--explain")] = False,
    device: RuntimeDevice = "cpu",
    engine: Annotated[Literal["ray"] | None, option("ray: work on many cores or machines, with Ray Data.")] = None,
    address: Annotated[str, option("With --engine ray: a cluster's address, auto or local.", metavar="HOST")] = "local",
    workers: Annotated[int | None, option("With --engine ray: number of processes.", metavar="N", min=1)] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Predict label and probability of each text.

    Texts are read as a stream: files may have any length, and a line that comes through a pipe is answered at once. A
    tagger prints a word and its tag per line.
    """
    extra = Extra(top_k, probabilities, threshold)
    if labels is None:
        model_path(model)  # refuses what is no model before anything is read
    if labels is not None and file == "-":  # `ade predict --labels a,b FILE`: the only argument is the file
        model, file = ENGLISH, model
    if (as_json or explain) and (output is not None or output_as is not None):
        raise InputError(f"{'--json' if as_json else '--explain'} prints: leave out --output and --output-format")
    if explain and extra != Extra():
        raise InputError("--explain explains the label: leave out --top-k, --probabilities and --threshold")
    if engine is not None:
        refused = {"--json": as_json, "--explain": explain, "--output-format": output_as, "--top-k": top_k}
        flag = next((flag for flag, value in refused.items() if value), None)
        if flag is not None:
            raise InputError(f"{flag} is not for --engine ray, which writes a folder of Parquet files")
        if output is None or file == "-":
            raise InputError("--engine ray reads files and writes a folder of Parquet files: give FILE and --output")
        from ade.integrations.ray import connected, predict_files

        with connected(address, workers):
            predict_files(
                model_path(model), file, output, format, overwrite, text_column=text_column, workers=workers,
                probabilities=probabilities, threshold=threshold,
            )  # fmt: skip
        return
    kind = output_format(output, output_as)
    check_output(output, overwrite)

    with open_texts(file, format, text_column) as rows, stopping_early():
        if explain:
            _explain(_loaded(model, device, labels), rows, as_json)
            return
        columns, names, outputs = _outputs_of(model, _loaded(model, device, labels), extra)
        size = max(1, min(CHUNK, MAX_SCORES // max(1, len(names))))
        chunks = rows.chunks(size)
        predicted = ((chunk, outputs([row[rows.text] for row in chunk], first)) for first, chunk in chunks)
        if as_json:
            _print_json(predicted, names)
            return
        with _open_output(output, in_place=rows.stream is not None) as target:
            write_predictions(target, kind, rows.columns, names, columns, predicted)


def _loaded(model: str, device: str, labels: str | None) -> Any:
    """A model, or the classifier of labels that an encoder makes without training."""
    from ade.trained_model import Encoder, load

    if labels is None:
        return load(model_path(model), device)
    return Encoder.load(model_path(model), device).classifier(_described(labels))


def _described(labels: str) -> dict[str, str]:
    """Labels and their descriptions: names with commas between them, or a file with a name, a tab, a description."""
    if os.path.isfile(labels):
        lines = [line for line in Path(labels).read_text("utf8").splitlines() if line.strip()]
        pairs = (line.partition("\t") for line in lines)
        return {name.strip(): description.strip() or name.strip() for name, _, description in pairs}
    return {name.strip(): name.strip() for name in labels.split(",") if name.strip()}


def _outputs_of(model: str, loaded: Any, extra: Extra) -> tuple[list[str], tuple[str, ...], Outputs]:
    """The columns that a model's predictions fill, its labels, and how it predicts a chunk of texts."""
    if loaded.kind == TAGGER:
        return extra.columns(TAGGING, ()), (), lambda texts, _: [Output(each) for each in loaded.stream(texts)]
    check_kind(model, loaded.kind, CLASSIFIER)
    names = loaded.saved.config.labels
    columns = extra.columns(loaded.problem, names)
    notice = UnknownTokenNotice(loaded.tokenizer, "the model was made for other texts")

    def outputs(texts: list[str], first: int) -> list[Output]:
        made = outputs_of(loaded, texts, first, extra)
        notice.see(texts)
        return made

    return columns, names, outputs


def _explain(classifier: Any, rows: Records, as_json: bool) -> None:
    """Print the explanation of each text as soon as it is made."""
    check_kind("--explain", classifier.kind, CLASSIFIER)
    to = display.console()
    for row in rows.rows:
        explanation = classifier.explain(row[rows.text])
        if as_json:
            print(json.dumps(explanation.as_dict()), flush=True)
        else:
            display.print_explanation(to, explanation)
            sys.stdout.flush()


def _print_json(predicted: Iterator[tuple[list[Row], list[Output]]], names: Sequence[str]) -> None:
    """Print one JSON object with all predictions, one after the other."""
    sys.stdout.write('{"predictions": [')
    for number, output in enumerate(output for _, outputs in predicted for output in outputs):
        sys.stdout.write((", " if number else "") + json.dumps(output.as_dict(names, "label")))
    sys.stdout.write("]}\n")


@contextmanager
def open_texts(file: str, format: Format | None, text_column: str | None) -> Iterator[Records]:
    """Context manager: the rows of a file, of standard input or of a named pipe; says which column holds the texts."""
    with read_texts(file, format, text_column) as rows:
        if rows.stream is None and rows.text != TEXT:
            say(f"{file}: texts of the column '{rows.text}'")
        yield rows


@contextmanager
def stopping_early() -> Iterator[None]:
    """Context manager: that the reader of standard output, as `head`, stops before the end is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _open_output(output: Path | None, in_place: bool) -> Iterator[IO[str]]:
    """Context manager: standard output or a file, which appears when all is written; `in_place`, at once."""
    if output is None:
        yield sys.stdout
    elif in_place or (output.exists() and not output.is_file()):
        with open(output, "w", encoding="utf8", newline="") as file:
            yield file
    else:
        with new_file(output) as draft, open(draft, "w", encoding="utf8", newline="") as file:
            yield file
