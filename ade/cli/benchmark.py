"""The verb `ade benchmark`: throughput and latency of a model on this machine, beside its tokenizer alone."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ade.cli import display
from ade.cli.options import ADVANCED, Json, Model, RuntimeDevice, TextColumn, say, show
from ade.data.problems import ENCODER, TAGGER
from ade.errors import InputError
from ade.files import kind_of

if TYPE_CHECKING:
    from ade.encoder import Encoder
    from ade.predictor import Predictor

# Where neither a file is given nor the embedded data set is installed.
SENTENCES = (
    "a large wading bird with long legs and a long bill",
    "The service was slow, but the food made up for it.",
    "shares of the bank fell after the market had closed",
    "How do I reset my password on a new phone?",
    "the team scored twice in the last minutes of the match",
    "Not worth the money: it broke after two days, and nobody answered my mails.",
)


Predict = Callable[[Sequence[str]], Any]


@dataclass(frozen=True)
class Timing:
    """How fast one thing was: texts per second of the whole set, and milliseconds of single texts."""

    name: str
    texts_per_second: float
    p50_ms: float
    p95_ms: float


def benchmark(
    model: Model,
    file: Annotated[
        Path | None,
        typer.Argument(help="Texts, as for 'ade predict'; by default WordNet's glosses, or a few sentences."),
    ] = None,
    text_column: TextColumn = None,
    texts: Annotated[int, typer.Option(help="Number of texts to take.", min=1)] = 2000,
    single: Annotated[
        int, typer.Option(help="Number of texts predicted one at a time.", min=1, rich_help_panel=ADVANCED)
    ] = 200,
    device: RuntimeDevice = "cpu",
    as_json: Json = False,
) -> None:
    """Measure how fast a model predicts, or an encoder encodes, on this machine.

    Texts per second of all texts, and the latency of single ones: cold, with no row of its tables cached, and warm;
    and the tokenizer alone, which no model can be faster than.
    """
    kind = kind_of(model)
    if kind == TAGGER:
        raise InputError(f"{model}: a tagger; classifiers, regression models and encoders are measured")
    taken, source = _texts(file, text_column, texts)
    began = time.perf_counter()
    loaded, predict = _load(model, device, kind)
    load_ms = 1000 * (time.perf_counter() - began)
    first_ms = _milliseconds(lambda: predict(taken[:1]))

    predict(taken)  # fills its caches
    timings = [
        _timing("cold", lambda: _load(model, device, kind)[1], taken, single),
        _timing("warm", lambda: predict, taken, single),
        _timing("tokenizer alone", lambda: _tokenizer(loaded), taken, single),
    ]
    result = {
        "model": str(model), "source": source, "texts": len(taken), "device": device,
        "load_ms": load_ms, "first_ms": first_ms, "results": [asdict(each) for each in timings],
    }  # fmt: skip
    show(result, as_json, lambda to: _print(to, result, timings))


def _load(model: Path, device: str, kind: str) -> "tuple[Predictor | Encoder, Predict]":
    """The model, and what is measured of it: class scores, or the vectors of an encoder."""
    if kind == ENCODER:
        from ade.encoder import Encoder

        encoder = Encoder.load(model, device)
        return encoder, encoder.encode
    from ade.cli.prediction import load_predictor

    predictor = load_predictor(model, device)
    return predictor, predictor.predict_scores


def _texts(file: Path | None, text_column: str | None, count: int) -> tuple[list[str], str]:
    """The texts to predict, and where they come from."""
    if file is not None:
        from ade.data.reading import read_texts

        with read_texts(file, None, text_column) as rows:
            taken = [row[rows.text] for row in islice(rows, count)]
        if not taken:
            raise InputError(f"{file}: has no texts")
        return taken, str(file)

    from ade.data.loading import EMBEDDED, load_dataset

    try:
        return list(load_dataset(EMBEDDED, "test").texts[:count]), EMBEDDED
    except InputError:
        say("the embedded data set is not installed: six sentences are repeated; give a file for texts of your own")
        return [SENTENCES[i % len(SENTENCES)] for i in range(count)], "sentences"


def _timing(name: str, load: Callable[[], Predict], texts: list[str], single: int) -> Timing:
    """Time all texts at once, and some of them one at a time, each with what `load` gives."""
    together, alone = load(), load()
    seconds = max(_milliseconds(lambda: together(texts)) / 1000, 1e-9)
    times = sorted(_milliseconds(partial(alone, [text])) for text in texts[:single])
    return Timing(name, len(texts) / seconds, _quantile(times, 0.5), _quantile(times, 0.95))


def _tokenizer(model: "Predictor | Encoder") -> Predict:
    from ade.data.tokenize import tokenize

    return lambda texts: tokenize(model.tokenizer, texts, model.longest)


def _milliseconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    """The smallest value that at least this fraction of the values does not exceed."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def _print(to: Any, result: dict[str, Any], timings: Sequence[Timing]) -> None:
    to.print(f"{result['model']}: {result['texts']:,} texts ({result['source']}) on {result['device']}")
    to.print(f"loading {result['load_ms']:.1f} ms, first prediction {result['first_ms']:.2f} ms")
    to.print()
    table = display.plain_table("", "texts/s", "one text: p50", "p95")
    for each in timings:
        table.add_row(each.name, f"{each.texts_per_second:,.0f}", f"{each.p50_ms:.3f} ms", f"{each.p95_ms:.3f} ms")
    to.print(table)
