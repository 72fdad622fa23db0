"""Predictions as lines of text, CSV, TSV or JSON lines, beside the columns of their rows: written chunk by chunk."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from ade.decision import Answer, Prediction, Tagged
from ade.errors import InputError

OutputFormat = Literal["text", "csv", "tsv", "jsonl"]
BY_SUFFIX: dict[str, OutputFormat] = {".txt": "text", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl"}
WORDS, PREDICTION, PROBABILITY, TOP = "words", "prediction", "probability", "top"  # columns that are added
CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
Row = dict[str, Any]


class Output(NamedTuple):
    """The prediction of a text, and its most probable labels where asked for."""

    prediction: Prediction | Tagged
    top: Prediction | None = None


def output_format(output: Path) -> OutputFormat:
    """The format of a file of predictions, by the end of its name."""
    if output.suffix.lower() not in BY_SUFFIX:
        raise InputError(f"{output}: which format? end the name in {', '.join(BY_SUFFIX)}")
    return BY_SUFFIX[output.suffix.lower()]


def added_columns(top: int) -> list[str]:
    """The columns that labels of texts, with the `top` most probable ones, fill in CSV."""
    columns = [PREDICTION, PROBABILITY]
    for place in range(1, top + 1):
        columns += [f"{TOP}_{place}", f"{TOP}_{place}_{PROBABILITY}"]
    return columns


def write_predictions(
    file: IO[str],
    kind: OutputFormat,
    columns: Sequence[str],
    added: Sequence[str],
    chunks: Iterable[tuple[Sequence[Row], Sequence[Output]]],
) -> None:
    """Write rows with their predictions, chunks of them that can be read at once; `added` are the columns it adds."""
    new = [*added, TOP] if kind == "jsonl" else added
    twice = next((name for name in columns if name in new), None)
    if twice is not None and kind != "text":
        raise InputError(f"the input has a column '{twice}' already, where the prediction would go; rename it")

    table = csv.writer(file, delimiter="\t" if kind == "tsv" else ",", lineterminator="\n")
    if kind in ("csv", "tsv"):
        table.writerow([*columns, *added])
    for rows, outputs in chunks:
        for row, output in zip(rows, outputs, strict=True):
            if kind == "text":
                file.write(format_output(output))
            elif kind == "jsonl":
                file.write(json.dumps({**row, **_values(output)}, ensure_ascii=False, default=str) + "\n")
            else:
                table.writerow([*(_cell(row.get(name)) for name in columns), *_cells(output)])
        file.flush()


def one_line(label: str) -> str:
    """A label with line breaks, tabs and other control characters escaped as in Python strings."""
    return label.translate(CONTROLS)


def format_label(label: Answer | None) -> str:
    """A label as text and CSV have it; several with | between, truth values as in JSON."""
    if isinstance(label, list):
        return "|".join(map(format_label, label))
    if isinstance(label, bool):
        return str(label).lower()
    return "" if label is None else str(label)


def format_output(output: Output) -> str:
    """One line per text: label and probability, or a number, and further labels. Of a sentence one line per word."""
    prediction = output.prediction
    if isinstance(prediction, Tagged):
        pairs = zip(prediction.words, prediction.tags, strict=True)
        return "".join(f"{one_line(word)}\t{one_line(tag)}\n" for word, tag in pairs) + "\n"
    cells = _cells(output)
    if not isinstance(prediction.label, list):
        del cells[2:4]  # the most probable label stands first already
    return "\t".join(map(one_line, cells)) + "\n"


def _cells(output: Output) -> list[str]:
    """The cells of a prediction in CSV."""
    prediction, top = output
    if isinstance(prediction, Tagged):
        return [" ".join(prediction.words), " ".join(prediction.tags)]
    if prediction.probability is None:
        return [f"{prediction.label:.6g}"]

    several = isinstance(prediction.probability, list)
    probabilities: Any = prediction.probability if several else [prediction.probability]
    cells = [format_label(prediction.label), "|".join(f"{each:.4f}" for each in probabilities)]
    for label, probability in _pairs(top):
        cells += [format_label(label), f"{probability:.4f}"]
    return cells


def _values(output: Output) -> Row:
    """The values of a prediction in JSON."""
    prediction, top = output
    if isinstance(prediction, Tagged):
        return {WORDS: prediction.words, PREDICTION: prediction.tags}
    values: Row = {PREDICTION: prediction.label}
    if prediction.probability is not None:
        values[PROBABILITY] = prediction.probability
    if top is not None:
        values[TOP] = [{"label": label, PROBABILITY: probability} for label, probability in _pairs(top)]
    return values


def _pairs(top: Prediction | None) -> Iterable[tuple[Any, float]]:
    """The most probable labels, each with its probability."""
    return () if top is None else zip(top.label, top.probability, strict=True)  # type: ignore[arg-type]


def _cell(value: Any) -> Any:
    """A value of another column, as CSV can hold it."""
    if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, bool)):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "|".join(value)
    return json.dumps(value, ensure_ascii=False, default=str)
