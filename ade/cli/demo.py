"""The verb `ade run`: labels without rows, training, an explanation and a search, on WordNet glosses."""

import time
from pathlib import Path
from typing import Annotated, Any

from ade.cli import display
from ade.cli.options import option
from ade.files import ENGLISH
from ade.progress import shown

ROWS, TEST_ROWS = 10_000, 2_000  # of the glosses, so that the demo takes seconds
TEXT = "a wading bird with long legs"
QUERY = "someone who repairs shoes"


def run(out: Annotated[Path, option("Output folder.", metavar="FOLDER")] = Path("runs/demo")) -> None:
    """Run the demo on data that is included.

    Classifies WordNet glosses by the names of their labels, trains on them, explains a prediction, and searches.
    """
    from ade.data.sources import EMBEDDED, load_dataset
    from ade.encoders.search import Index
    from ade.evaluation import evaluate
    from ade.folder import nbytes_of
    from ade.trained_model import Encoder
    from ade.training.train import train

    data = load_dataset(EMBEDDED, "train")
    test = load_dataset(EMBEDDED, "test")
    data, test = data.split(ROWS / len(data), 0)[1], test.split(TEST_ROWS / len(test), 0)[1]
    encoder = Encoder.load(ENGLISH)
    by_names: Any = evaluate(encoder.classifier(data.names), test)
    began = time.perf_counter()
    with shown() as report:
        model = train(data, out=out, existing="overwrite", progress=report)
    seconds = time.perf_counter() - began
    trained: Any = evaluate(model, test)

    to = display.console()
    accuracies = [
        ("names of the labels alone", f"{100 * by_names.accuracy:.1f}", "none", ""),
        ("trained", f"{100 * trained.accuracy:.1f}", f"{seconds:.0f} s", display.size(nbytes_of(out))),
    ]
    to.print(display.table(("WordNet glosses, 25 classes", "accuracy", "training", "size"), accuracies))
    to.print(f"\n{TEXT}")
    display.print_explanation(to, model.explain(TEXT))
    hits = Index(test.texts, encoder.encode(list(test.texts))).search(encoder.encode(QUERY), 3)
    found = [(hit.text, f"{hit.score:.3f}") for hit in hits]
    to.print(display.table((f"nearest to '{QUERY}'", "cosine"), found))
    to.print(f"\nThe model is in {out}. Try:")
    to.print(f"  echo 'a sum of money owed' | ade predict {out}")
    to.print("  ade predict --labels sports,politics,science FILE")
