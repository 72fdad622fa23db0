"""Which runs make up which table. A run asked for by several tables is made once."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from ade.settings import PRESETS, Architecture, DistillationSettings, TeachingSettings
from benchmarks.records import Run

REVISION = 1  # raise when a change to the model or the solvers changes results: every run that uses them is made anew
TEACHER = "deberta-v3-xsmall"
ANCHORS = (100, 200, 300, 500, 700)
SEEDS = (0, 1, 2)
DATA = ("ag_news", "dbpedia_14")
PEERS = ("tfidf", "fasttext", "fasttext-ftz", "model2vec", "minilm-l6")
EVERY = (*DATA, "wordnet", "sst2", "trec", "banking77")
ATTEND = Architecture().attend
ENCODER = "minilm-l6"  # fine-tuned on the same rows, it teaches
CONTEXTUAL = "+contextual"  # after a teacher's name: its whole encoder is asked about its vocabulary
FEW = (8, 64, 512)  # rows a class
LEFT_OUT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # training settings, architecture
    "the preset": ({}, {}),
    "no token dropout": ({"token_dropout": 0.0}, {}),
    "no dropout of features": ({"dropout": 0.0}, {}),
    "no weight decay": ({"weight_decay": 0.0}, {}),
    "weights of the pairs frozen": ({"train_weights": False}, {}),
    "anchors frozen": ({"train_anchors": False}, {}),
    "not fitted to the data": ({"fit_to_data": False}, {}),
    "positions at full size": ({"position_scale": 1.0}, {}),
    "no positions": ({}, {"positions": "none"}),
    "mean pooling": ({}, {"pooling": "mean"}),
    "no SAT": ({}, {"sat": False}),
    "tokens in place of gated" if ATTEND == "gated" else "gated in place of tokens": (
        {}, {"attend": "tokens" if ATTEND == "gated" else "gated"}),
}  # fmt: skip
QUICK_ROWS = 400  # rows of each split in the quick harness


def ade_run(
    table: str, data: str, preset: str = "strong", anchors: int = 500, seed: int = 0, rows: int = 0, **shape: Any
) -> Run:
    """One training run of ADE, every setting spelled out, so that a changed preset is a changed run."""
    teacher = shape.pop("teacher", TEACHER)
    training = asdict(replace(PRESETS[preset], seed=seed))
    training.pop("device")
    shape = {"attend": "tokens", "pooling": "attention", **shape}
    if shape["pooling"] == "mean":  # Anchor & Transform: the weights belong to the type and stay
        training["train_weights"] = False
    distillation = asdict(DistillationSettings(anchors=anchors))
    distillation.pop("device")
    architecture = asdict(Architecture(**shape))
    settings = {
        "revision": REVISION, "data": data, "rows": rows, "teacher": teacher, "preset": preset,
        "distillation": distillation, "training": training, "architecture": architecture,
    }  # fmt: skip
    return Run(table, "ade", settings)


def peer_run(table: str, data: str, peer: str, seed: int = 0, rows: int = 0) -> Run:
    """One peer, trained and measured on the same rows."""
    return Run(table, "peer", {"peer": peer, "data": data, "seed": seed, "rows": rows})


def changed(run: Run, training: Mapping[str, Any] | None = None, **settings: Any) -> Run:
    """The run with some of its settings another."""
    trained = {"training": {**run.settings["training"], **training}} if training else {}
    return Run(run.table, run.kind, {**run.settings, **trained, **settings})


def taught_run(run: Run, **teaching: Any) -> Run:
    """The run with a fine-tuned encoder teaching."""
    return changed(run, encoder=ENCODER, teaching=asdict(TeachingSettings(**teaching)))


def classification() -> list[Run]:
    """The paper's Table 1, ours and the peers."""
    name, runs = "classification", []
    for data in DATA:
        for seed in SEEDS:
            runs += [ade_run(name, data, "strong", 500, seed, attend=mode) for mode in ("gated", "tokens")]
            runs += [ade_run(name, data, "paper", 500, seed)]
        runs += [ade_run(name, data, "strong", 500, 0, sat=False, pooling="mean")]
        runs += [peer_run(name, data, peer) for peer in PEERS]
    return runs


def accuracy() -> list[Run]:
    """Every data set, one preset: alone, taught by a fine-tuned encoder, and the peers."""
    name, runs = "accuracy", []
    for data, teacher in (*((data, TEACHER) for data in EVERY), ("wordnet", "wordllama")):
        for seed in SEEDS:
            plain = ade_run(name, data, seed=seed, attend=ATTEND, teacher=teacher)
            runs += [plain, taught_run(plain)]
    return runs + [peer_run(name, data, peer) for data in EVERY for peer in PEERS]


def few() -> list[Run]:
    """AG News with a handful of rows of each class."""
    runs = []
    for count in FEW:
        for seed in SEEDS:
            for teacher in (TEACHER, ENCODER + CONTEXTUAL):
                run = ade_run("few", "ag_news", seed=seed, attend=ATTEND, teacher=teacher)
                runs.append(changed(run, per_class=count))
            for peer in ("tfidf", "model2vec"):
                runs.append(changed(peer_run("few", "ag_news", peer, seed), per_class=count))
    return runs


def ablation() -> list[Run]:
    """What each ingredient of the preset is worth: one left out at a time."""
    runs = []
    for data in ("ag_news", "wordnet"):
        for training, shape in LEFT_OUT.values():
            runs.append(changed(ade_run("ablation", data, **{"attend": ATTEND, **shape}), training))
        runs += [taught_run(runs[-len(LEFT_OUT)], **kind) for kind in ({}, {"variants": 0})]
    return runs


def context() -> list[Run]:
    """Words in context: does `gated`, trained on glosses, tell senses apart?"""
    runs = []
    for seed in SEEDS:
        settings = dict(ade_run("context", "wordnet", seed=seed, attend="gated").settings)
        runs.append(Run("context", "context", settings))
    return runs


def sat() -> list[Run]:
    """With and without SAT over the number of anchors, AG News, both presets."""
    grid = [(preset, k, on) for preset in ("strong", "paper") for k in ANCHORS for on in (True, False)]
    return [ade_run("sat", "ag_news", preset, k, seed, sat=on) for preset, k, on in grid for seed in SEEDS]


def anchors() -> list[Run]:
    """The number of anchors on DBpedia-14."""
    return [ade_run("anchors", "dbpedia_14", "strong", k, seed) for k in ANCHORS for seed in SEEDS]


def attend() -> list[Run]:
    """The three readings of the paper."""
    return [
        ade_run("attend", "ag_news", seed=seed, attend=mode)
        for mode in ("tokens", "gated", "anchors")
        for seed in SEEDS
    ]


def gpe() -> list[Run]:
    """Grouped positions, one each, none."""
    kinds = [("anchors", "grouped"), ("anchors", "each"), ("anchors", "none")]
    kinds += [(mode, positions) for mode in ("tokens", "gated") for positions in ("grouped", "none")]
    return [
        ade_run("gpe", "ag_news", seed=seed, attend=mode, positions=positions)
        for mode, positions in kinds
        for seed in SEEDS
    ]


def compression() -> list[Run]:
    """The teacher's table against codebooks."""
    return [
        Run("compression", "compression", {"revision": REVISION, "teacher": TEACHER, "anchors": k}) for k in ANCHORS
    ]


def parameters() -> list[Run]:
    """Component by component."""
    return [Run("parameters", "parameters", {"dim": 768, "labels": 4, "anchors": 100})]


def latency() -> list[Run]:
    """Batch 32 x 128 tokens at width 768, everything in one process, one after the other."""
    return [
        Run(
            "latency",
            "latency",
            {"revision": REVISION, "batch": 32, "length": 128, "dim": 768, "anchors": 500, "pairs": 8},
        )
    ]


def throughput() -> list[Run]:
    """AG News test texts, raw text to label, on a CPU: what a user waits for; everything in one process."""
    return [Run("throughput", "throughput", {"revision": REVISION, "data": "ag_news"})]


def growth() -> list[Run]:
    """How prediction grows with texts, length, K and k, and where its time goes."""
    distillation = ade_run("growth", "ag_news").settings["distillation"]
    settings = {"revision": REVISION, "data": "ag_news", "distillation": distillation}
    kinds = [(kind, mode) for kind in ("growth", "stages") for mode in ("tokens", "gated")]
    return [Run("growth", kind, {**settings, "attend": mode}) for kind, mode in kinds]


def lookup() -> list[Run]:
    """Four ways to look a token up, as N, K and k grow."""
    shapes = [(n, 500, 8) for n in (1_000, 8_000, 32_000)] + [(8_000, k, 8) for k in (100, 2_000)]
    shapes += [(8_000, 500, k) for k in (2, 32)]
    return [Run("lookup", "lookup", {"vocabulary": n, "anchors": k, "pairs": p, "dim": 64}) for n, k, p in shapes]


def demo() -> list[Run]:
    """The main job of `make run`."""
    return [Run("demo", "demo", {"revision": REVISION, "seed": 0, "epochs": 4.0})]


TABLES: dict[str, Callable[[], list[Run]]] = {
    "demo": demo,
    "classification": classification,
    "accuracy": accuracy,
    "few": few,
    "ablation": ablation,
    "context": context,
    "sat": sat,
    "anchors": anchors,
    "attend": attend,
    "gpe": gpe,
    "compression": compression,
    "parameters": parameters,
    "latency": latency,
    "throughput": throughput,
    "growth": growth,
    "lookup": lookup,
}


def quick() -> list[Run]:
    """A slice of everything: the same code on a few hundred rows, into a folder of its own."""
    short = {"steps": 20, "batch_size": 32}
    runs = []
    for run in (
        ade_run("classification", "ag_news", rows=QUICK_ROWS),
        ade_run("sat", "ag_news", "paper", 100, rows=QUICK_ROWS, sat=False),
        ade_run("attend", "dbpedia_14", rows=QUICK_ROWS, attend="gated"),
        ade_run("gpe", "ag_news", rows=QUICK_ROWS, attend="anchors", positions="each"),
    ):
        distillation = {**run.settings["distillation"], "anchors": 64, "rounds": 2}
        runs.append(changed(run, short, distillation=distillation))
    runs += [peer_run("classification", "ag_news", "tfidf", rows=QUICK_ROWS), *parameters()]
    runs.append(Run("lookup", "lookup", {"vocabulary": 1_000, "anchors": 50, "pairs": 4, "dim": 16}))
    return runs
