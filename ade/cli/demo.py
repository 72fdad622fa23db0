"""The demo of `ade run`: labels without rows, training, an explanation and a search, on WordNet glosses."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ade.cli import display
from ade.data.sources import EMBEDDED, load_dataset
from ade.encoders.search import Hit, Index
from ade.evaluation import evaluate
from ade.explanation import Explanation
from ade.files import ENGLISH
from ade.folder import nbytes_of
from ade.progress import Report, silent
from ade.trained_model import Encoder
from ade.training.train import train

ROWS, TEST_ROWS = 10_000, 2_000  # of the glosses, so that the demo takes seconds
TEXT = "a wading bird with long legs"
QUERY = "someone who repairs shoes"


@dataclass(frozen=True)
class Demo:
    """The results of the demo."""

    by_names: float  # accuracy of a classifier that knows the names of the labels alone
    trained: float  # accuracy after training
    seconds: float  # of training
    bytes: int  # of the model's folder
    explanation: Explanation
    hits: list[Hit]
    folder: Path


def run_demo(folder: Path, rows: int = ROWS, report: Report = silent) -> Demo:
    """Classify by names alone, train, explain and search; all on the embedded glosses."""
    data, test = load_dataset(EMBEDDED, "train"), load_dataset(EMBEDDED, "test")
    data, test = data.split(rows / len(data), 0)[1], test.split(TEST_ROWS / len(test), 0)[1]
    encoder = Encoder.load(ENGLISH)
    by_names: Any = evaluate(encoder.classifier(data.names), test)

    began = time.perf_counter()
    model = train(data, out=folder, existing="overwrite", progress=report)
    seconds = time.perf_counter() - began
    trained: Any = evaluate(model, test)
    hits = Index(test.texts, encoder.encode(list(test.texts))).search(encoder.encode(QUERY), 3)
    return Demo(by_names.accuracy, trained.accuracy, seconds, nbytes_of(folder), model.explain(TEXT), hits, folder)


def print_demo(to: Console, demo: Demo) -> None:
    """Print the results of the demo, and what to try next."""
    table = display.plain_table("WordNet glosses, 25 classes", "accuracy", "training", "size")
    table.add_row("names of the labels alone", f"{100 * demo.by_names:.1f}", "none", "")
    table.add_row("trained", f"{100 * demo.trained:.1f}", f"{demo.seconds:.0f} s", display.size(demo.bytes))
    to.print(table)
    to.print(f"\n{TEXT}")
    display.print_explanation(to, demo.explanation)
    found = display.plain_table(f"nearest to '{QUERY}'", "cosine")
    for hit in demo.hits:
        found.add_row(hit.text, f"{hit.score:.3f}")
    to.print(found)
    to.print(f"\nThe model is in {demo.folder}. Try:")
    to.print(f"  echo 'a sum of money owed' | ade predict {demo.folder}")
    to.print("  ade predict --labels sports,politics,science FILE")
