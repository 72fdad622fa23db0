"""Predictions as lines of text, CSV, TSV or JSON lines: `ade predict` writes a chunk of rows at a time."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ade.cli.display import format_label, format_prediction
from ade.data.problems import REGRESSION, Answer, Label, Prediction, Tagged, probabilities_of
from ade.errors import InputError

if TYPE_CHECKING:
    from ade.data.reading import TextRows
    from ade.predictor import Predictor

OutputFormat = Literal["text", "csv", "tsv", "jsonl"]
BY_SUFFIX: dict[str, OutputFormat] = {".txt": "text", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl"}
SEPARATOR = "|"  # between the labels of a multi-label prediction
PREDICTION, PROBABILITY, TOP, ALL = "prediction", "probability", "top", "probabilities"  # names of the columns we add
TAGGING = "tagging"  # beside the kinds of problems of ade.data.problems
Row = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What is written about a text besides its label and probability."""

    top_k: int | None = None
    probabilities: bool = False
    threshold: float | None = None

    def check(self, problem: str) -> None:
        """Refuse what a model of this kind does not have."""
        given = {"--top-k": self.top_k, "--probabilities": self.probabilities or None, "--threshold": self.threshold}
        flag = next((flag for flag, value in given.items() if value is not None), None)
        if flag is not None and problem == REGRESSION:
            raise InputError(f"{flag} is about probabilities, and a regression model predicts a number")
        if flag is not None and problem == TAGGING:
            raise InputError(f"{flag} is about the labels of texts, and a tagger labels words")


class Result(NamedTuple):
    """The prediction of a text, and where wanted its most probable labels and the probabilities of all labels."""

    prediction: Prediction | Tagged
    top: list[tuple[Label, float]] | None = None
    probabilities: list[float] | None = None


def results_of(predictor: "Predictor", texts: Sequence[str], first: int, wanted: Wanted) -> list[Result]:
    """Predict a chunk of texts; error messages number them from `first`."""
    scores = predictor.predict_scores(texts, first)  # (n, C)
    predictions = predictor.predictions_of(scores, wanted.threshold)
    if wanted.top_k is None and not wanted.probabilities:
        return [Result(each) for each in predictions]

    probabilities, labels = probabilities_of(scores, predictor.problem), predictor.labels
    count = min(wanted.top_k or 0, len(labels))
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :count]  # (n, k)
    tops = [[(labels[i], float(row[i])) for i in chosen] for row, chosen in zip(probabilities, best, strict=True)]
    return [
        Result(each, top if count else None, row.tolist() if wanted.probabilities else None)
        for each, top, row in zip(predictions, tops, probabilities, strict=True)
    ]


def output_format(output: Path | None, given: OutputFormat | None) -> OutputFormat:
    """The format of the output: as given, else by the end of the file's name; text on standard output."""
    if given is not None or output is None:
        return given or "text"
    if output.suffix.lower() not in BY_SUFFIX:
        known = ", ".join(BY_SUFFIX)
        raise InputError(f"{output}: which format? end the name in {known}, or give --output-format")
    return BY_SUFFIX[output.suffix.lower()]


@dataclass
class Writer:
    """Writes rows with their predictions to an open file."""

    file: IO[str]
    format: OutputFormat
    rows: "TextRows"
    names: Sequence[str]  # labels of the model; of a tagger none
    problem: str
    wanted: Wanted
    begun: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        added = [PREDICTION, PROBABILITY, TOP, ALL] if self.format == "jsonl" else self._columns()
        twice = [name for name in self.rows.columns if name in added]
        if twice and self.format != "text":
            raise InputError(f"the input has a column '{twice[0]}' already, where the prediction would go; rename it")

    def write(self, rows: Sequence[Row], results: Sequence[Result]) -> None:
        """Write a chunk, and let it be read at once."""
        self.begin()
        if self.format == "text":
            self.file.writelines(format_result(result, self.names) for result in results)
        elif self.format == "jsonl":
            lines = (self._json_row(row, result) for row, result in zip(rows, results, strict=True))
            self.file.writelines(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines)
        else:
            self._csv().writerows(
                [*(_cell(row.get(name)) for name in self.rows.columns), *self._cells(result)]
                for row, result in zip(rows, results, strict=True)
            )
        self.file.flush()

    def begin(self) -> None:
        """Write the header of CSV and TSV, once."""
        if not self.begun and self.format in ("csv", "tsv"):
            self._csv().writerow([*self.rows.columns, *self._columns()])
        self.begun = True

    def _csv(self) -> Any:
        return csv.writer(self.file, delimiter="\t" if self.format == "tsv" else ",", lineterminator="\n")

    def _columns(self) -> list[str]:
        """The names of the columns that a prediction fills."""
        columns = [PREDICTION]
        if self.problem not in (REGRESSION, TAGGING):
            columns.append(PROBABILITY)
        for place in range(1, min(self.wanted.top_k or 0, len(self.names)) + 1):
            columns += [f"{TOP}_{place}", f"{TOP}_{place}_{PROBABILITY}"]
        if self.wanted.probabilities:
            columns += [f"{PROBABILITY}_{name}" for name in self.names]
        return columns

    def _cells(self, result: Result) -> Iterator[str]:
        prediction = result.prediction
        if isinstance(prediction, Tagged):
            yield " ".join(prediction.tags)
            return
        if prediction.probability is None:
            yield f"{prediction.label:.6g}"
            return
        yield _label_cell(prediction.label)
        if isinstance(prediction.probability, list):
            yield SEPARATOR.join(f"{each:.4f}" for each in prediction.probability)
        else:
            yield f"{prediction.probability:.4f}"
        for label, probability in result.top or ():
            yield from (_label_cell(label), f"{probability:.4f}")
        yield from (f"{each:.4f}" for each in result.probabilities or ())

    def _json_row(self, row: Row, result: Result) -> Row:
        return {**row, **json_result(result, self.names, PREDICTION)}


def json_result(result: Result, names: Sequence[str], key: str = "label") -> Row:
    """The prediction of a text as plain values for JSON; its label under `key`."""
    prediction = result.prediction
    if isinstance(prediction, Tagged):
        return {key: prediction.tags} if key == PREDICTION else prediction._asdict()
    found: Row = {key: prediction.label, PROBABILITY: prediction.probability}
    if key == PREDICTION and prediction.probability is None:
        del found[PROBABILITY]
    if result.top is not None:
        found[TOP] = [{"label": label, PROBABILITY: probability} for label, probability in result.top]
    if result.probabilities is not None:
        found[ALL] = dict(zip(names, result.probabilities, strict=True))
    return found


def write_json(file: IO[str], results: Iterator[Result], names: Sequence[str]) -> None:
    """Write one JSON object with all predictions, one at a time."""
    file.write('{"predictions": [')
    for number, result in enumerate(results):
        file.write((", " if number else "") + json.dumps(json_result(result, names)))
    file.write("]}\n")


def format_result(result: Result, names: Sequence[str]) -> str:
    """A line of label and probability, tab-separated; after them the next most probable labels, or all, where wanted.

    After the labels of a multi-label prediction all the most probable ones follow.
    """
    line, several = format_prediction(result.prediction), isinstance(result.prediction[0], list)
    ranked: Sequence[tuple[Label, float]] = result.top or []
    if result.probabilities is not None:
        ranked = sorted(zip(names, result.probabilities, strict=True), key=lambda pair: -pair[1])
    pairs = ranked[0 if several else 1 :]
    more = "".join(f"\t{format_label(label)}\t{probability:.4f}" for label, probability in pairs)
    return line[:-1] + more + "\n" if more else line


def _label_cell(label: Answer | None) -> str:
    if label is None:
        return ""
    if isinstance(label, list):
        return SEPARATOR.join(map(_label_cell, label))
    return str(label).lower() if isinstance(label, bool) else str(label)


def _cell(value: Any) -> Any:
    """A value of another column, as CSV can hold it."""
    if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, bool)):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
