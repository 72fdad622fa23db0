"""Accuracy: the paper's tables, six data sets beside peers, few rows, models of a size, and one setting changed."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ade
from benchmarks import library
from benchmarks.library import Report
from benchmarks.records import Places, Run
from benchmarks.subjects.fine_tuned import FineTuned
from benchmarks.subjects.peers import TITLES, run_peer
from benchmarks.tables import NAMES, Figure, Table, grid, listing, nbytes, percent

TEACHER, SMALL_TEACHER = "deberta-v3-xsmall", "wordllama"
SEEDS = (0, 1, 2)
DATA = ("ag_news", "dbpedia_14")  # of the paper
EVERY = (*DATA, "wordnet", "sst2", "trec", "banking77")
ANCHORS = (100, 200, 300, 500, 700)
SIZES = ("2.5 MB", "1.5 MB")  # of a model folder in all
PER_CLASS, FEW_PEERS = (8, 64, 512), ("tfidf", "model2vec", "minilm+ngrams")
PLAIN: dict[str, Any] = {"lexicon": False}
CHANGED: dict[str, dict[str, Any]] = {  # one setting changed at a time, all without lexicon
    "as it is": {},
    "no token dropout": {"token_dropout": 0.0},
    "no dropout of features": {"dropout": 0.0},
    "no weight decay": {"weight_decay": 0.0},
    "weights of the pairs frozen": {"train_weights": False},
    "anchors frozen": {"train_anchors": False},
    "not fitted to the data": {"fit_to_data": False},
    "positions at full size": {"position_scale": 1.0},
    "no positions": {"positions": "none"},
    "mean pooling": {"pooling": "mean"},
    "no SAT": {"sat": False},
    "attention over anchors": {"attend": "anchors"},
    "soft targets": {"taught": "minilm-l6"},
}
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
PAPER_EPOCHS = {"ag_news": 8.0, "dbpedia_14": 4.0}  # its section on hyperparameters
PAPER_BEST_ANCHORS = {"ag_news": 700, "dbpedia_14": 500}  # its Table 1


def ade_run(data: str, seed: int = 0, teacher: str = TEACHER, **changes: Any) -> Run:
    """One model trained and tested; what is not said is ade's default."""
    return Run("ade", {"data": data, "teacher": teacher, "seed": seed, **changes})


def seeds(data: str, teacher: str = TEACHER, **changes: Any) -> list[Run]:
    """The same run with every seed."""
    return [ade_run(data, seed, teacher, **changes) for seed in SEEDS]


def default_runs(data: str, **changes: Any) -> list[Run]:
    """`ade train` without flags: convex fits on the encoder of the package."""
    return [Run("ade", {"data": data, "seed": seed, **changes}) for seed in SEEDS]


def paper_runs(data: str) -> list[Run]:
    """The paper's own solver, epochs and number of anchors."""
    chosen: Outcome = {"anchors": PAPER_BEST_ANCHORS[data], "solver": "gradient", "epochs": PAPER_EPOCHS[data]}
    return seeds(data, preset="paper", **chosen)


def anchor_and_transform_run(data: str) -> Run:
    """Anchor & Transform (Liang et al., 2020): a non-negative transform over shared anchors, learned by gradient.

    It is learned with an L1 penalty and truncated; what is left of it, and the anchors, are trained on the task. There
    is no attention, so a token has the same weights in every text.
    """
    return ade_run(data, **PLAIN, solver="gradient", signed=False, threshold=0.01, sat=False, pooling="mean")


def peer_run(peer: str, data: str, seed: int = 0, **changes: Any) -> Run:
    """A peer, trained and tested on the same rows."""
    return Run("peer", {"peer": peer, "data": data, "seed": seed, **changes})


# -- tables --------------------------------------------------------------------------------------------------------

ACCURACY = Figure("accuracy", "accuracy", percent, better=1)
SIZE = Figure("size", "bytes", nbytes, spread=False)
SCORES = [
    ACCURACY,
    Figure("macro F1", "macro_f1", percent, better=1),
    Figure("precision", "precision", percent, better=1),
    Figure("recall", "recall", percent, better=1),
]
TRAIN_ROWS = Figure("rows", "train_rows", "{:,.0f}".format, spread=False)


def classification(data: str) -> Table:
    rows = {
        "ADE": seeds(data),
        "ADE without lexicon": seeds(data, **PLAIN),
        "ADE, preset paper": seeds(data, preset="paper"),
        "ADE, preset paper, the paper's solver, K and epochs": paper_runs(data),
        "Anchor & Transform": [anchor_and_transform_run(data)],
        **{title: [peer_run(peer, data)] for peer, title in TITLES.items()},
    }
    given = {}
    for name, (accuracy, f1) in PAPER_CLASSIFICATION[data].items():
        figures = (f"{accuracy:.2f}", "-" if f1 is None else f"{f1:.2f}")
        given[f"paper: {name}"] = (f"{PAPER_ROWS[data]:,}", *figures, "-", "-", "-")
    return listing(NAMES[data], rows, [TRAIN_ROWS, *SCORES, SIZE], given=given)


def classification_news() -> Table:
    """AG News: test metrics in percent, mean ± standard deviation over seeds; bytes of all that prediction reads."""
    return classification("ag_news")


def classification_dbpedia() -> Table:
    """DBpedia-14: test metrics in percent, mean ± standard deviation over seeds; bytes of all that prediction reads."""
    return classification("dbpedia_14")


def accuracy_rows() -> dict[str, dict[str, list[Run]]]:
    rows = {}
    for teacher in (TEACHER, SMALL_TEACHER):
        for data in EVERY:
            rows[NAMES[data] + ("" if teacher == TEACHER else f" ({teacher})")] = {
                "ADE, no flags": default_runs(data),
                "ADE": seeds(data, teacher),
                "ADE, soft targets": seeds(data, teacher, taught="minilm-l6"),
                "ADE without lexicon": seeds(data, teacher, **PLAIN),
                "lexicon alone": [Run("lexicon", {"data": data, "teacher": teacher, "seed": 0})],
                **{title: [peer_run(peer, data)] for peer, title in TITLES.items()},
            }
    return rows


def accuracy() -> Table:
    """Six data sets, two teachers: test accuracy in percent, mean ± standard deviation over seeds."""
    return grid("accuracy", accuracy_rows(), ACCURACY)


def accuracy_bytes() -> Table:
    """Bytes of all that prediction reads, tokenizer included."""
    return grid("size", accuracy_rows(), SIZE)


def overview() -> Table:
    """On DeBERTa-v3-xsmall's table: test accuracy in percent, mean ± standard deviation over seeds."""
    return grid("accuracy", {NAMES[data]: accuracy_rows()[NAMES[data]] for data in EVERY}, ACCURACY)


def chart() -> Table:
    """AG News, all trained on the same 49,612 rows: test accuracy in percent, bytes of all that prediction reads."""
    own = accuracy_rows()[NAMES["ag_news"]]
    ours = {"ADE": default_runs("ag_news"), "ADE on DeBERTa's table": own["ADE without lexicon"]}
    return listing("", ours | {title: own[title] for title in TITLES.values()}, [ACCURACY, SIZE])


def few() -> Table:
    """Few rows of each class, drawn by the seed: test accuracy in percent, mean ± standard deviation over seeds."""
    rows: dict[str, dict[str, list[Run]]] = {}
    for data in EVERY:
        for count in (*PER_CLASS, 0):
            drawn: dict[str, Any] = {"per_class": count} if count else {}
            peers = {TITLES[peer]: [peer_run(peer, data, seed, **drawn) for seed in SEEDS] for peer in FEW_PEERS}
            rows[f"{NAMES[data]}, {count or 'all'}"] = {"ADE": default_runs(data, **drawn), **peers}
    return grid("rows of a class", rows, ACCURACY)


def ablation() -> Table:
    """One setting changed at a time, without lexicon: test accuracy in percent, one seed."""
    rows = {
        name: {NAMES[data]: [ade_run(data, **PLAIN, **change)] for data in ("ag_news", "wordnet")}
        for name, change in CHANGED.items()
    }
    return grid("changed", rows, ACCURACY, compare="column")


def over_anchors(data: str, **changes: Any) -> dict[str, list[Run]]:
    """A row over the number of anchors; K = 500 is the default."""
    chosen: dict[int, dict[str, Any]] = {k: changes if k == 500 else {**changes, "anchors": k} for k in ANCHORS}
    return {str(k): seeds(data, **settings) for k, settings in chosen.items()}


def sat() -> Table:
    """AG News over K, ours without lexicon: test accuracy in percent, mean ± standard deviation over seeds."""
    rows, given = {}, {}
    ours: dict[str, dict[str, Any]] = {"preset strong": PLAIN, "preset paper": {"preset": "paper"}}
    for name, settings in ours.items():
        rows[f"{name}, with SAT"] = over_anchors("ag_news", **settings)
        rows[f"{name}, without SAT"] = over_anchors("ag_news", **settings, sat=False)
    for on, name in ((True, "paper, with SAT"), (False, "paper, without SAT")):
        given[name] = [f"{PAPER_SAT[on][k]:.2f}" for k in ANCHORS]
    return grid("K", rows, ACCURACY, compare="column", given=given)


def anchors() -> Table:
    """DBpedia-14 over K, ours without lexicon: test accuracy in percent, mean ± standard deviation over seeds."""
    given = {"paper": [f"{PAPER_ANCHORS[k]:.2f}" for k in ANCHORS]}
    return grid("K", {"preset strong": over_anchors("dbpedia_14", **PLAIN)}, ACCURACY, given=given)


def attend() -> Table:
    """AG News, what attention reads, without lexicon: test metrics in percent, mean ± standard deviation over seeds."""
    rows = {"tokens": seeds("ag_news", **PLAIN), "anchors": seeds("ag_news", **PLAIN, attend="anchors")}
    return listing("attention over", rows, SCORES[:2])


def gpe() -> Table:
    """AG News, one position a word (grouped), one an anchor (each) or none, without lexicon: test accuracy in percent,
    mean ± standard deviation over seeds.
    """
    rows: dict[str, dict[str, list[Run]]] = {}
    for mode, kinds in (("anchors", ("grouped", "each", "none")), ("tokens", ("grouped", "none"))):
        chosen = PLAIN if mode == "tokens" else {**PLAIN, "attend": mode}
        settings = {kind: chosen if kind == "grouped" else {**chosen, "positions": kind} for kind in kinds}
        rows[mode] = {kind: seeds("ag_news", **each) for kind, each in settings.items()}
    return grid("attention over", rows, ACCURACY)


def packed() -> Table:
    """Model folders of a size in all: test accuracy in percent, mean ± standard deviation over seeds."""
    rows = {
        NAMES[data]: {"as it is": seeds(data), **{size: seeds(data, size=size) for size in SIZES}}
        for data in (*DATA, "wordnet", "banking77")
    }
    return grid("accuracy", rows, ACCURACY)


TABLES = (
    classification_news, classification_dbpedia, accuracy, accuracy_bytes, few, ablation, sat, anchors, attend, gpe,
    packed,
)  # fmt: skip


# -- runs ----------------------------------------------------------------------------------------------------------


def run_ade(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Metrics on test rows, bytes, and seconds of training."""
    rows, dev, test = library.load_rows(places, settings)
    count, more = len(rows), {}
    if "taught" in settings:
        rows, dev = (rows, dev) if dev is not None else ade.validation_split(rows, 0)
        more["distill_from"] = fine_tuned(places, settings["taught"], settings["data"], rows, report)
    with tempfile.TemporaryDirectory() as folder:
        out, began = Path(folder) / "model", time.perf_counter()
        model = library.fit(places, settings, rows, dev, out, report, **more)
        seconds = time.perf_counter() - began
        sizes = library.folder_sizes(out)
    metrics = ade.evaluate(model, test).as_dict()
    return {**metrics, **sizes, "train_seconds": seconds, "train_rows": count, "test_rows": len(test)}


def fine_tuned(places: Places, name: str, data: str, rows: ade.Dataset, report: Report) -> Path:
    """An encoder fine-tuned on these rows, kept in the work folder: it teaches."""
    folder = places.work / "encoders" / f"{name}-{data}-{library.rows_hash(rows)}"
    source = places.model(name)
    with library.made_once(folder) as missing:
        if missing:
            FineTuned(source, rows.names, places.device).fit(rows, 0, report).save(folder)
    return folder


def run_lexicon(settings: Mapping[str, Any], places: Places, report: Report) -> Outcome:
    """Metrics of a lexicon without a model."""
    rows, dev, test = library.load_rows(places, settings)
    dev_from_training, count = dev is None, len(rows)
    if dev is None:
        rows, dev = ade.validation_split(rows, settings["seed"])
    began = time.perf_counter()
    model, scores = library.fit_lexicon_alone(places, settings["teacher"], rows, dev, dev_from_training, report)
    seconds = time.perf_counter() - began
    metrics = library.compare(test.labels, scores(test.texts).argmax(1), rows.names).as_dict()
    tokenizer = ade.load_teacher(library.teacher_path(places, settings["teacher"])).tokenizer
    sizes = library.sizes(model, len(tokenizer.to_str().encode("utf8")))
    return {**metrics, **sizes, "train_seconds": seconds, "train_rows": count, "test_rows": len(test)}


KINDS = {"ade": run_ade, "lexicon": run_lexicon, "peer": run_peer}
