"""Predictions as lines of text, CSV, TSV or JSON lines, beside the columns of their rows: written chunk by chunk."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from ade.data.problems import REGRESSION, Label
from ade.decision import Answer, Prediction, Tagged, decide, probabilities_of
from ade.errors import InputError

if TYPE_CHECKING:
    from ade.trained_model import Classifier

PredictionFormat = Literal["text", "csv", "tsv", "jsonl"]
BY_SUFFIX: dict[str, PredictionFormat] = {".txt": "text", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl"}
PREDICTION, PROBABILITY, TOP, ALL = "prediction", "probability", "top", "probabilities"  # columns that are added
TAGGING = "tagging"  # beside the kinds of problems of ade.data.problems
CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
Row = dict[str, Any]


class Extra(NamedTuple):
    """What is written about a text besides its label and probability."""

    top_k: int | None = None
    probabilities: bool = False
    threshold: float | None = None

    def columns(self, problem: str, names: Sequence[str]) -> list[str]:
        """The columns that predictions fill; what a model of this kind does not have is refused."""
        given = {"--top-k": self.top_k, "--probabilities": self.probabilities or None, "--threshold": self.threshold}
        flag = next((flag for flag, value in given.items() if value is not None), None)
        if flag is not None and problem == REGRESSION:
            raise InputError(f"{flag} is about probabilities, and a regression model predicts a number")
        if flag is not None and problem == TAGGING:
            raise InputError(f"{flag} is about the labels of texts, and a tagger labels words")

        columns = [PREDICTION] if problem in (REGRESSION, TAGGING) else [PREDICTION, PROBABILITY]
        for place in range(1, min(self.top_k or 0, len(names)) + 1):
            columns += [f"{TOP}_{place}", f"{TOP}_{place}_{PROBABILITY}"]
        return columns + [f"{PROBABILITY}_{name}" for name in names if self.probabilities]


@dataclass
class Output:
    """The prediction of a text; its most probable labels and the probabilities of all labels where asked for."""

    prediction: Prediction | Tagged
    top: list[tuple[Label, float]] | None = None
    probabilities: list[float] | None = None

    def as_dict(self, names: Sequence[str], key: str) -> Row:
        """Plain values for JSON, the label under `key`."""
        prediction = self.prediction
        if isinstance(prediction, Tagged):
            return {key: prediction.tags} if key == PREDICTION else prediction._asdict()
        values: Row = {key: prediction.label, PROBABILITY: prediction.probability}
        if key == PREDICTION and prediction.probability is None:
            del values[PROBABILITY]
        if self.top is not None:
            values[TOP] = [{"label": label, PROBABILITY: probability} for label, probability in self.top]
        if self.probabilities is not None:
            values[ALL] = dict(zip(names, self.probabilities, strict=True))
        return values


def outputs_of(classifier: "Classifier", texts: Sequence[str], first: int, extra: Extra) -> list[Output]:
    """Predict a chunk of texts; error messages number them from `first`."""
    scores = classifier.scores(texts, first)  # (n, C)
    predictions = decide(scores, classifier.saved.config, extra.threshold)
    outputs = [Output(each) for each in predictions]
    if extra.top_k is not None:
        for output, top in zip(outputs, decide(scores, classifier.saved.config, top_k=extra.top_k), strict=True):
            output.top = list(zip(top.label, top.probability, strict=True))  # type: ignore[arg-type]
    if extra.probabilities:
        for output, row in zip(outputs, probabilities_of(scores, classifier.problem).tolist(), strict=True):
            output.probabilities = row
    return outputs


def output_format(output: Path | None, given: PredictionFormat | None) -> PredictionFormat:
    """The format of the output: as given, else by the end of the file's name; text on standard output."""
    if given is not None or output is None:
        return given or "text"
    if output.suffix.lower() not in BY_SUFFIX:
        raise InputError(f"{output}: which format? end the name in {', '.join(BY_SUFFIX)}, or give --output-format")
    return BY_SUFFIX[output.suffix.lower()]


def write_predictions(
    file: IO[str],
    kind: PredictionFormat,
    columns: Sequence[str],
    names: Sequence[str],
    added: list[str],
    chunks: Iterable[tuple[Sequence[Row], Sequence[Output]]],
) -> None:
    """Write rows with their predictions, chunks of them that can be read at once; `added` are the columns it adds."""
    new = [PREDICTION, PROBABILITY, TOP, ALL] if kind == "jsonl" else added
    twice = next((name for name in columns if name in new), None)
    if twice is not None and kind != "text":
        raise InputError(f"the input has a column '{twice}' already, where the prediction would go; rename it")

    table = csv.writer(file, delimiter="\t" if kind == "tsv" else ",", lineterminator="\n")
    if kind in ("csv", "tsv"):
        table.writerow([*columns, *added])
    for rows, outputs in chunks:
        for row, output in zip(rows, outputs, strict=True):
            if kind == "text":
                file.write(format_output(output, names))
            elif kind == "jsonl":
                line = {**row, **output.as_dict(names, PREDICTION)}
                file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
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


def format_probability(probability: float | list[float]) -> str:
    """A probability, or several with | between."""
    return "|".join(f"{each:.4f}" for each in (probability if isinstance(probability, list) else [probability]))


def format_prediction(prediction: Prediction | Tagged) -> str:
    """One line per text, tab-separated: label and probability (of multi-label models several, with | between), or a
    number; an empty label below the threshold. For a tagged sentence one line per word, and an empty line after it."""
    if isinstance(prediction, Tagged):
        pairs = zip(prediction.words, prediction.tags, strict=True)
        return "".join(f"{one_line(word)}\t{one_line(tag)}\n" for word, tag in pairs) + "\n"
    if prediction.probability is None:
        return f"{prediction.label:.6g}\n"
    return f"{one_line(format_label(prediction.label))}\t{format_probability(prediction.probability)}\n"


def format_output(output: Output, names: Sequence[str]) -> str:
    """The line of a prediction; after it the next most probable labels, or all, where asked for."""
    line, several = format_prediction(output.prediction), isinstance(output.prediction[0], list)
    ranked: Sequence[tuple[Label, float]] = output.top or []
    if output.probabilities is not None:
        ranked = sorted(zip(names, output.probabilities, strict=True), key=lambda pair: -pair[1])
    pairs = ranked[0 if several else 1 :]  # after several labels all the most probable ones follow
    more = "".join(f"\t{one_line(format_label(label))}\t{probability:.4f}" for label, probability in pairs)
    return line[:-1] + more + "\n" if more else line


def _cells(output: Output) -> Iterator[str]:
    """The cells of a prediction in CSV."""
    prediction = output.prediction
    if isinstance(prediction, Tagged):
        yield " ".join(prediction.tags)
        return
    if prediction.probability is None:
        yield f"{prediction.label:.6g}"
        return
    yield from (format_label(prediction.label), format_probability(prediction.probability))
    for label, probability in output.top or ():
        yield from (format_label(label), f"{probability:.4f}")
    yield from (f"{each:.4f}" for each in output.probabilities or ())


def _cell(value: Any) -> Any:
    """A value of another column, as CSV can hold it."""
    if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, bool)):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return "|".join(value)
    return json.dumps(value, ensure_ascii=False, default=str)
