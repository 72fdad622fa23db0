"""Accuracy: six data sets beside peers, few rows, the paper's tables."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ade
from ade.progress import Report
from benchmarks import library
from benchmarks.records import Places, Run
from benchmarks.subjects.peers import TITLES, run_peer
from benchmarks.tables import NAMES, Figure, Table, digits, grid, listing, nbytes, percent

TEACHER = "deberta-v3-xsmall"  # of the paper's own way
SEEDS = (0, 1, 2)
PAPER_DATA = ("ag_news", "dbpedia_14")
DATA = (*PAPER_DATA, "wordnet", "sst2", "trec", "banking77")
ANCHORS = (100, 200, 300, 500, 700)
PER_CLASS, FEW_PEERS = (8, 64, 512), ("tfidf", "model2vec", "minilm+ngrams")
STRONG: dict[str, Any] = {"lexicon": False}  # our preset on a table, to stand beside the paper's
Outcome = dict[str, Any]

# The paper's own figures, to stand beside ours; its models were trained on all rows of each set.
PAPER_ROWS = {"ag_news": 120_000, "dbpedia_14": 560_000}
PAPER_CLASSIFICATION = {  # accuracy, F1
    "ag_news": {"BERT": (94.48, 94.45), "DistilBERT": (92.76, 94.78), "DeBERTa": (94.50, 94.48),
        "ELECTRA": (91.80, 91.80), "ANT": (91.00, None), "ADE": (90.64, 90.62)},
    "dbpedia_14": {"BERT": (99.00, 99.00), "DistilBERT": (95.21, 96.20), "DeBERTa": (97.80, 97.74),
        "ELECTRA": (99.20, 99.20), "ANT": (97.20, None), "ADE": (98.06, 98.06)},
}  # fmt: skip
PAPER_SAT = {True: {100: 87.96, 200: 88.97, 300: 89.16, 500: 90.18, 700: 90.64},
       False: {100: 73.43, 200: 70.49, 300: 73.80, 500: 72.20, 700: 62.18}}  # fmt: skip
PAPER_ANCHORS = {100: 97.10, 200: 97.18, 300: 97.59, 500: 98.06, 700: 97.99}
PAPER_STORAGE = {100: 8.49, 200: 8.79, 300: 9.08, 500: 9.28}  # MiB, table 375.3
PAPER_SHAPE = (128_100, 768)
MIB = 2**20

PAPER_EPOCHS = {"ag_news": 8.0, "dbpedia_14": 4.0}  # its section on hyperparameters
PAPER_BEST_ANCHORS = {"ag_news": 700, "dbpedia_14": 500}  # its Table 1


def default_runs(data: str, **changes: Any) -> list[Run]:
    """`ade train` as it is, with every seed: convex fits on the encoder of the package."""
    return [Run("ade", {"data": data, "seed": seed, **changes}) for seed in SEEDS]


def table_runs(data: str, **changes: Any) -> list[Run]:
    """The paper's way: all layers trained, on the pairs of a pretrained table."""
    return [Run("ade", {"data": data, "teacher": TEACHER, "seed": seed, **changes}) for seed in SEEDS]


def paper_runs(data: str) -> list[Run]:
    """The paper's own solver, epochs and number of anchors."""
    chosen: Outcome = {"anchors": PAPER_BEST_ANCHORS[data], "solver": "gradient", "epochs": PAPER_EPOCHS[data]}
    return table_runs(data, preset="paper", **chosen)


def anchor_and_transform_run(data: str) -> Run:
    """Anchor & Transform (Liang et al., 2020): a non-negative transform over shared anchors, learned by gradient.

    It is learned with an L1 penalty and truncated; what is left of it, and the anchors, are trained on the task. There
    is no attention, so a token has the same weights in every text.
    """
    chosen: Outcome = {"solver": "gradient", "signed": False, "threshold": 0.01, "sat": False, "pooling": "mean"}
    return table_runs(data, **STRONG, **chosen)[0]


def peer_run(peer: str, data: str, seed: int = 0, **changes: Any) -> Run:
    """A peer, trained and tested on the same rows."""
    return Run("peer", {"peer": peer, "data": data, "seed": seed, **changes})


ACCURACY = Figure("accuracy", "accuracy", percent, better=1)
MACRO_F1 = Figure("macro F1", "macro_f1", percent, better=1)
SIZE = Figure("size", "bytes", nbytes, spread=False)
TRAIN_ROWS = Figure("rows", "train_rows", "{:,.0f}".format, spread=False)
TEST_ROWS = Figure("test rows", "test_rows", "{:,.0f}".format, spread=False)


def accuracy_rows() -> dict[str, dict[str, list[Run]]]:
    rows = {}
    for data in DATA:
        rows[NAMES[data]] = {
            "ADE": default_runs(data),
            "ADE, 2 MB": default_runs(data, size="2MB"),
            "ADE on DeBERTa's table": table_runs(data, **STRONG),
            "lexicon alone": default_runs(data, vectors=False)[:1],
            **{title: [peer_run(peer, data)] for peer, title in TITLES.items()},
        }
    return rows


def accuracy() -> Table:
    """Six data sets: test accuracy in percent, mean ± standard deviation over seeds."""
    return grid("accuracy", accuracy_rows(), ACCURACY)


def accuracy_bytes() -> Table:
    """Bytes of all that prediction reads, tokenizer included."""
    return grid("size", accuracy_rows(), SIZE)


def chart() -> Table:
    """AG News, all trained on the same 49,612 rows: test accuracy in percent, bytes of all that prediction reads."""
    rows = accuracy_rows()[NAMES["ag_news"]]
    shown = {name: runs for name, runs in rows.items() if name != "lexicon alone"}
    return listing("", shown, [ACCURACY, SIZE])


def few() -> Table:
    """Few rows of each class, drawn by the seed: test accuracy in percent, mean ± standard deviation over seeds."""
    rows: dict[str, dict[str, list[Run]]] = {}
    for data in DATA:
        for count in (*PER_CLASS, 0):
            drawn: dict[str, Any] = {"per_class": count} if count else {}
            peers = {TITLES[peer]: [peer_run(peer, data, seed, **drawn) for seed in SEEDS] for peer in FEW_PEERS}
            rows[f"{NAMES[data]}, {count or 'all'}"] = {"ADE": default_runs(data, **drawn), **peers}
    return grid("rows of a class", rows, ACCURACY)


def classification(data: str) -> Table:
    rows = {
        "ADE": default_runs(data),
        "ADE, preset strong, without lexicon": table_runs(data, **STRONG),
        "ADE, preset paper": table_runs(data, preset="paper"),
        "ADE, preset paper, the paper's solver, K and epochs": paper_runs(data),
        "Anchor & Transform": [anchor_and_transform_run(data)],
        **{title: [peer_run(peer, data)] for peer, title in TITLES.items()},
    }
    given = {}
    for name, (accuracy, f1) in PAPER_CLASSIFICATION[data].items():
        figures = (f"{accuracy:.2f}", "-" if f1 is None else f"{f1:.2f}")
        given[f"paper: {name}"] = (f"{PAPER_ROWS[data]:,}", "-", *figures, "-")
    return listing(NAMES[data], rows, [TRAIN_ROWS, TEST_ROWS, ACCURACY, MACRO_F1, SIZE], given=given)


def classification_news() -> Table:
    """AG News: test metrics in percent, mean ± standard deviation over seeds; bytes of all that prediction reads."""
    return classification("ag_news")


def classification_dbpedia() -> Table:
    """DBpedia-14: test metrics in percent, mean ± standard deviation over seeds; bytes of all that prediction reads."""
    return classification("dbpedia_14")


def over_anchors(data: str, **changes: Any) -> dict[str, list[Run]]:
    """A row over the number of anchors; K = 500 is the default."""
    row = {}
    for k in ANCHORS:
        anchors = {} if k == 500 else {"anchors": k}
        row[str(k)] = table_runs(data, **changes, **anchors)
    return row


def sat() -> Table:
    """AG News over K, ours without lexicon: test accuracy in percent, mean ± standard deviation over seeds."""
    rows, given = {}, {}
    presets: dict[str, dict[str, Any]] = {"preset strong": STRONG, "preset paper": {"preset": "paper"}}
    for name, settings in presets.items():
        rows[f"{name}, with SAT"] = over_anchors("ag_news", **settings)
        rows[f"{name}, without SAT"] = over_anchors("ag_news", **settings, sat=False)
    for on, name in ((True, "paper, with SAT"), (False, "paper, without SAT")):
        given[name] = [f"{PAPER_SAT[on][k]:.2f}" for k in ANCHORS]
    return grid("K", rows, ACCURACY, compare="column", given=given)


def anchors() -> Table:
    """DBpedia-14 over K, ours without lexicon: test accuracy in percent, mean ± standard deviation over seeds."""
    given = {"paper": [f"{PAPER_ANCHORS[k]:.2f}" for k in ANCHORS]}
    return grid("K", {"preset strong": over_anchors("dbpedia_14", **STRONG)}, ACCURACY, given=given)


def gpe() -> Table:
    """AG News, one position a word (grouped), one an anchor (each) or none, without lexicon: test accuracy in percent,
    mean ± standard deviation over seeds.
    """
    rows: dict[str, dict[str, list[Run]]] = {}
    for mode, kinds in (("anchors", ("grouped", "each", "none")), ("tokens", ("grouped", "none"))):
        rows[mode] = {}
        for kind in kinds:
            changes = {"attend": mode, "positions": kind}
            changed = {name: value for name, value in changes.items() if value not in ("tokens", "grouped")}
            rows[mode][kind] = table_runs("ag_news", **STRONG, **changed)  # what is the default is not said
    return grid("attention over", rows, ACCURACY)


def compression() -> Table:
    """Codebooks of DeBERTa-v3-xsmall's table over K, tokenizer apart; at width 768 in the paper's storage."""
    figures = [
        Figure("bytes, d=384", "bytes", nbytes),
        Figure("ratio", "ratio", digits(1, "x")),
        Figure("cosine", "cosine", digits(3)),
        Figure("cosine, 5%", "cosine_p5", digits(3)),
        Figure("MiB at d=768", lambda figures: figures["paper_width_bytes"] / MIB, digits(2)),
        Figure("ratio at d=768", "paper_width_ratio", digits(1, "x")),
        Figure("paper's MiB", lambda figures: PAPER_STORAGE.get(figures["anchors"]), digits(2)),
    ]
    return listing("K", {str(k): [Run("compression", {"teacher": TEACHER, "anchors": k})] for k in ANCHORS}, figures)


TABLES = (
    accuracy, accuracy_bytes, few, classification_news, classification_dbpedia, sat, anchors, gpe, compression,
)  # fmt: skip


def run_ade(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Metrics on test rows, bytes, and seconds of training."""
    rows, dev, test = library.load_rows(places, settings)
    with tempfile.TemporaryDirectory() as folder:
        out, began = Path(folder) / "model", time.perf_counter()
        model = library.fit(places, settings, rows, dev, out, report)
        seconds = time.perf_counter() - began
        size = library.folder_bytes(out)
    metrics = ade.evaluate(model, test).as_dict()
    return {**metrics, "bytes": size, "train_seconds": seconds, "train_rows": len(rows), "test_rows": len(test)}


def run_compression(settings: Mapping[str, Any], places: Places, report: Report) -> dict[str, Any]:
    """A codebook with K anchors: bytes on disk, and in the paper's storage at the paper's width."""
    folder = library.codebook_of(places, settings, report)
    saved = ade.Saved.read(folder)
    codebook = saved.table
    assert isinstance(codebook, ade.Codebook)
    on_disk, table = (folder / "model.safetensors").stat().st_size, 4 * codebook.vocabulary * codebook.dim
    count, width = PAPER_SHAPE
    at_width = 4 * settings["anchors"] * width + 8 * count * codebook.max_pairs
    return {
        "anchors": settings["anchors"],
        "bytes": on_disk,
        "ratio": table / on_disk,
        "paper_width_bytes": at_width,
        "paper_width_ratio": 4 * count * width / at_width,
        "cosine": saved.config.metadata["cosine"],
        "cosine_p5": saved.config.metadata["cosine_p5"],
    }


KINDS = {"compression": run_compression, "ade": run_ade, "peer": run_peer}
