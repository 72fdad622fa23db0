"""The verb `ade predict`: texts of a file or of a pipe in, labels and probabilities out, as text, CSV, TSV or JSON."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

from ade.cli import display, options
from ade.cli.options import argument, option
from ade.cli.writing import (
    PREDICTION,
    PROBABILITY,
    WORDS,
    Output,
    OutputFormat,
    Row,
    added_columns,
    output_format,
    write_predictions,
)
from ade.configuration import CLASSIFIER, TAGGER, check_kind
from ade.data.columns import TEXT
from ade.data.problems import REGRESSION
from ade.data.records import Format, Records, read_texts
from ade.data.tokens import CHUNK
from ade.decision import decide
from ade.errors import InputError
from ade.files import ENGLISH, new_file

MAX_SCORES = 1 << 24  # class scores held in memory


def predict(
    model: Annotated[str, argument("Model folder, or a name on the hub; not with --labels.", "MODEL")],
    file: options.TextFile = "-",
    labels: Annotated[
        str | None, option("Labels without any training: a,b,c or a file of name TAB description.", metavar="LABELS")
    ] = None,
    format: options.TextFormat = None,
    text_column: options.TextColumn = None,
    output: Annotated[Path | None, option("File to write: .txt, .csv, .tsv or .jsonl.", metavar="FILE")] = None,
    top_k: Annotated[int | None, option("Write the K most probable labels.", metavar="K", min=1)] = None,
    threshold: Annotated[
        float | None,
        option("No label below this probability; of several labels all above it.", metavar="P", min=0, max=1),
    ] = None,
    explain: Annotated[bool, option("Print what every word adds to the label.", "--explain")] = False,
    device: options.RuntimeDevice = "cpu",
    overwrite: options.Overwrite = False,
    as_json: Annotated[bool, option("Print a JSON object per text.", "--json")] = False,
) -> None:
    """Predict label and probability of each text.

    Texts are read as a stream: files may have any length, and a line that comes through a pipe is answered at once. A
    tagger prints a word and its tag per line.
    """
    if labels is None:
        options.model_path(model)  # refuses what is no model before anything is read
    elif file == "-":  # `ade predict --labels a,b FILE`: the only argument is the file
        model, file = ENGLISH, model
    if output is not None and (as_json or explain):
        raise InputError(f"{'--json' if as_json else '--explain'} prints: leave out --output")
    if explain and (top_k is not None or threshold is not None):
        raise InputError("--explain explains the label: leave out --top-k and --threshold")
    kind: OutputFormat = "jsonl" if as_json else "text"
    if output is not None:
        kind = output_format(output)
    options.check_output(output, overwrite)

    with open_texts(file, format, text_column) as rows, stopping_early():
        loaded = _loaded(model, device, labels)
        if explain:
            _explain(loaded, rows, as_json)
            return
        if loaded.kind == TAGGER:
            added = [WORDS, PREDICTION]
        else:
            check_kind(model, loaded.kind, CLASSIFIER)
            count = len(loaded.saved.config.labels)
            added = [PREDICTION] if loaded.problem == REGRESSION else added_columns(min(top_k or 0, count))
        if PROBABILITY not in added and (top_k is not None or threshold is not None):
            raise InputError("--top-k and --threshold are for labels of texts; this model predicts a number, or tags")
        with _open_output(output, in_place=rows.stream is not None) as target:
            write_predictions(target, kind, rows.columns, added, _predicted(loaded, rows, top_k, threshold))


def _loaded(model: str, device: str, labels: str | None) -> Any:
    """A model, or the classifier of labels that an encoder makes without training."""
    from ade.trained_model import Encoder, load

    if labels is None:
        return load(options.model_path(model), device)
    return Encoder.load(options.model_path(model), device).classifier(_described(labels))


def _described(labels: str) -> dict[str, str]:
    """Labels and their descriptions: names with commas between them, or a file with a name, a tab, a description."""
    lines = Path(labels).read_text("utf8").splitlines() if os.path.isfile(labels) else labels.split(",")
    pairs = (line.partition("\t") for line in lines if line.strip())
    return {name.strip(): description.strip() or name.strip() for name, _, description in pairs}


def _predicted(
    loaded: Any, rows: Records, top_k: int | None, threshold: float | None
) -> Iterator[tuple[list[Row], list[Output]]]:
    """Chunks of rows, each with its predictions."""
    config = loaded.saved.config
    size = max(1, min(CHUNK, MAX_SCORES // max(1, len(config.labels))))
    for number, chunk in enumerate(rows.chunks(size)):
        texts = [row[rows.text] for row in chunk]
        if loaded.kind == TAGGER:
            yield chunk, [Output(each) for each in loaded.tagged(texts)]
            continue
        if number == 0:
            display.say_unknown_tokens(loaded.tokenizer, texts, "the model was made for other texts")
        scores = loaded.scores(texts)  # (n, C)
        outputs = [Output(each) for each in decide(scores, config, threshold)]
        if top_k is not None:
            most = decide(scores, config, top_k=top_k)
            outputs = [Output(output.prediction, top) for output, top in zip(outputs, most, strict=True)]
        yield chunk, outputs


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


@contextmanager
def open_texts(file: str, format: Format | None, text_column: str | None) -> Iterator[Records]:
    """Context manager: the rows of a file, of standard input or of a named pipe; says which column holds the texts."""
    with read_texts(file, format, text_column) as rows:
        if rows.stream is None and rows.text != TEXT:
            display.say(f"{file}: texts of the column '{rows.text}'")
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
