"""Which runs make up which table. A run asked for by several tables is made once."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from ade.settings import EPOCHS, PRESETS, STRONG, Architecture, DistillationSettings, ServiceSettings, TeachingSettings
from benchmarks.records import Run
from benchmarks.tables_compress import compress, compress_speed, frontier, frontier_decoder
from benchmarks.tables_sentence import multilingual, sentence

Grid = dict[str, dict[str, list[Run]]]  # row, column, the runs whose mean stands there
REVISION = 1  # raise when a change to the model or the solvers changes results: every run that uses them is made anew
LEXICON = 2  # raise when the fit of the lexicon changes: every run with one is made anew
TUNING = 1  # raise when what peers choose from changes: every run of a tuned peer is made anew
TEACHER = "deberta-v3-xsmall"
ANCHORS = (100, 200, 300, 500, 700)
SEEDS = (0, 1, 2)
DATA = ("ag_news", "dbpedia_14")
TUNED = ("tfidf", "nbsvm", "fasttext", "fasttext-ftz")  # their settings are chosen on training rows
SHALLOW = (*TUNED, "model2vec")  # without a deep encoder
PEERS = (*SHALLOW, "minilm-l6")
PAPER_EPOCHS = {"ag_news": 8.0, "dbpedia_14": 4.0}  # its section on hyperparameters
PAPER_ANCHORS = {"ag_news": 700, "dbpedia_14": 500}  # its Table 1
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
BUDGETS, AS_IT_COMES = (1, 1.85, 2, 4, 8), "as it comes"  # MiB; 1.85 is a hundredth of the table
METHOD_REVISIONS = {"paper's plain pairs": 2, "PQ (faiss)": 2, "RQ (faiss)": 2}  # raise when a method is changed
CODED, CODED_ALIKE = "ADE, coded", "ADE, coded, rows alike"  # by use, or all rows counted alike
PACKED = ("2.5 MB", "1.5 MB")  # model folders in all: weights, tokenizer and configuration
ABLATED = ("ag_news", "wordnet")
JOINT = (("ag_news", TEACHER), ("banking77", TEACHER))  # where a lexicon is also trained with the model
RATES = [1.0, 10.0]  # how fast its scores may learn then, beside the model's weights
SCALE = (100_000, 1_000_000, 10_000_000)  # rows of a file


def ade_run(
    table: str, data: str, preset: str = "strong", anchors: int = 500, seed: int = 0, rows: int = 0, size: str = "",
    **shape: Any,
) -> Run:  # fmt: skip
    """One training run of ADE, every setting spelled out, so that a changed preset is a changed run."""
    teacher, lexicon = shape.pop("teacher", TEACHER), shape.pop("lexicon", False)
    training = asdict(replace(PRESETS[preset], seed=seed, lexicon=lexicon))
    if not lexicon:
        training.pop("lexicon")
    training.pop("device")
    if training["epochs"] is None:
        training["epochs"] = float(EPOCHS)  # as records have it; `training_of` reads it so
    for name in ("adapt", "class_weights", "lexicon_size"):
        if training[name] == getattr(STRONG, name):
            training.pop(name)
    shape = {"attend": "tokens", **shape}
    distillation = distillation_of(anchors, size)
    architecture = asdict(Architecture(**shape))
    for name in ("layer_bits", "layers"):  # settings that are younger than the oldest records
        if architecture[name] == getattr(Architecture, name):
            del architecture[name]
    settings = {
        "revision": REVISION, "data": data, "rows": rows, "teacher": teacher, "preset": preset,
        "distillation": distillation, "training": training, "architecture": architecture,
    }  # fmt: skip
    return Run(table, "ade", {**settings, "lexicon_revision": LEXICON} if lexicon else settings)


def distillation_of(anchors: int = 500, size: str = "") -> dict[str, Any]:
    """The settings of a codebook, as a run has them."""
    settings = asdict(DistillationSettings(anchors=anchors, size=size))
    settings.pop("device")
    if not size:
        settings.pop("size")
    return settings


def peer_run(table: str, data: str, peer: str, seed: int = 0, rows: int = 0) -> Run:
    """One peer, trained and measured on the same rows."""
    settings = {"peer": peer, "data": data, "seed": seed, "rows": rows}
    return Run(table, "peer", {**settings, "tuned": TUNING} if peer in TUNED else settings)


def changed(run: Run, training: Mapping[str, Any] | None = None, **settings: Any) -> Run:
    """The run with some of its settings another."""
    trained = {"training": {**run.settings["training"], **training}} if training else {}
    return Run(run.table, run.kind, {**run.settings, **trained, **settings})


def paper_run(table: str, data: str, seed: int) -> Run:
    """The paper's own solver, epochs and number of anchors, as near as the teacher and the rows here allow."""
    run = ade_run(table, data, "paper", PAPER_ANCHORS[data], seed)
    distillation = {**run.settings["distillation"], "solver": "gradient"}
    return changed(run, {"epochs": PAPER_EPOCHS[data]}, distillation=distillation)


def anchor_and_transform_run(table: str, data: str) -> Run:
    """Anchor & Transform (Liang et al., 2020): a non-negative transform over shared anchors, learned by gradient.

    The dense transform is learned with an L1 penalty and truncated; what is left of it, and the anchors, are trained
    on the task. No attention, so the weights of a token are the same in every text.
    """
    run = ade_run(table, data, sat=False, pooling="mean")
    learned = {"solver": "gradient", "signed": False, "threshold": 0.01}
    return changed(run, distillation={**run.settings["distillation"], **learned})


def taught_run(run: Run, **teaching: Any) -> Run:
    """The run with a fine-tuned encoder teaching."""
    return changed(run, encoder=ENCODER, teaching=asdict(TeachingSettings(**teaching)))


def seeds(table: str, data: str, **settings: Any) -> list[Run]:
    """One cell of a table: the same run with every seed."""
    return [ade_run(table, data, seed=seed, **settings) for seed in SEEDS]


def classification() -> Grid:
    """The paper's Table 1, ours and the peers."""
    name = "classification"
    grid: Grid = {
        "ADE, preset strong, gated (default)": {data: seeds(name, data, attend="gated", lexicon=True) for data in DATA},
        "ADE, preset strong, gated, without the lexicon": {data: seeds(name, data, attend="gated") for data in DATA},
        "ADE, preset strong, tokens": {data: seeds(name, data) for data in DATA},
        "ADE, preset paper (but solver pursuit, K=500, 8 epochs)": {
            data: seeds(name, data, preset="paper") for data in DATA
        },
        "ADE, the paper's solver, K and epochs": {
            data: [paper_run(name, data, seed) for seed in SEEDS] for data in DATA
        },
        "Anchor & Transform (learned; no SAT, mean pooling)": {
            data: [anchor_and_transform_run(name, data)] for data in DATA
        },
    }
    return grid | {peer: {data: [peer_run(name, data, peer)] for data in DATA} for peer in PEERS}


def accuracy() -> Grid:
    """Every data set, one preset: alone, taught by a fine-tuned encoder, and the peers."""
    name, grid = "accuracy", {}
    for data, teacher in (*((data, TEACHER) for data in EVERY), *((data, "wordllama") for data in EVERY)):
        whole, plain = (seeds(name, data, attend=ATTEND, teacher=teacher, lexicon=on) for on in (True, False))
        row = {"ADE": whole, "ADE, taught": [taught_run(run) for run in whole], "ADE without lexicon": plain}
        alone = {"data": data, "teacher": teacher, "distillation": distillation_of(), "rows": 0, "seed": 0}
        row["lexicon alone"] = [Run(name, "lexicon", {**alone, "lexicon_revision": LEXICON})]
        row["joint"] = [Run(name, "joint", {**whole[0].settings, "rates": RATES})] if (data, teacher) in JOINT else []
        row |= {peer: [peer_run(name, data, peer)] for peer in PEERS}
        grid[data if teacher == TEACHER else f"{data} ({teacher})"] = row
    return grid


def few() -> Grid:
    """AG News with a handful of rows of each class."""
    grid: Grid = {}
    for count in FEW:
        row = {
            "ADE (DeBERTa's table)": seeds("few", "ag_news", attend=ATTEND, lexicon=True),
            "ADE (MiniLM, contextual)": seeds(
                "few", "ag_news", attend=ATTEND, teacher=ENCODER + CONTEXTUAL, lexicon=True
            ),
        } | {
            peer: [peer_run("few", "ag_news", peer, seed) for seed in SEEDS] for peer in ("tfidf", "nbsvm", "model2vec")
        }
        grid[str(count)] = {name: [changed(run, per_class=count) for run in runs] for name, runs in row.items()}
    return grid


def ablation() -> Grid:
    """What each ingredient of the preset is worth: one left out at a time."""
    grid: Grid = {}
    for name, (training, shape) in LEFT_OUT.items():
        shape = {"attend": ATTEND, **shape}
        grid[name] = {data: [changed(ade_run("ablation", data, **shape), training)] for data in ABLATED}
    whole = grid["the preset"]
    grid["taught"] = {data: [taught_run(run) for run in runs] for data, runs in whole.items()}
    grid["taught, no variants of the texts"] = {  # schedule 2: as many steps as untaught rows get
        data: [changed(taught_run(run, variants=0), schedule=2) for run in runs] for data, runs in whole.items()
    }
    return grid


def context() -> Grid:
    """Words in context: does `gated`, trained on glosses, tell senses apart?"""
    runs = seeds("context", "wordnet", attend="gated")
    return one(*(Run("context", "context", run.settings) for run in runs))


def explain() -> Grid:
    """Deleting words: does the contribution of a word say what it does? The demo's model."""
    run = ade_run("explain", "wordnet", teacher="wordllama", attend="gated", lexicon=True)
    run = changed(run, {"epochs": 2.5, "learning_rate": 1.5e-3, "dropout": 0.1}, texts=1000)
    return one(Run("explain", "explain", run.settings))


def lexicon() -> Grid:
    """What the lexicon costs: the time of a fit, and of predictions by a model of few steps, with against without."""
    grid: Grid = {}
    for mode in ("gated", "tokens"):
        run = ade_run("lexicon", "ag_news", attend=mode, lexicon=True)
        fit, rates = {**run.settings, "fits": {"cuda": 3, "cpu": 1}}, changed(run, {"steps": 300}).settings
        grid[mode] = {"fit": [Run("lexicon", "lexicon_fit", fit)], "rates": [Run("lexicon", "lexicon_rates", rates)]}
    return grid


def windows() -> Grid:
    """Long texts (`man_pages.py` makes the files): the first window against all of them."""
    runs = seeds("windows", "man_pages", attend="gated", lexicon=True)
    return one(*(Run("windows", "windows", {**run.settings, "least": 600}) for run in runs))


def sat() -> Grid:
    """With and without SAT over the number of anchors, AG News, both presets."""
    return {
        f"{preset}, {'with' if on else 'without'} SAT": {
            str(k): seeds("sat", "ag_news", preset=preset, anchors=k, sat=on) for k in ANCHORS
        }
        for preset in ("strong", "paper")
        for on in (True, False)
    }


def anchors() -> Grid:
    """The number of anchors on DBpedia-14."""
    return {"strong": {str(k): seeds("anchors", "dbpedia_14", anchors=k) for k in ANCHORS}}


def attend() -> Grid:
    """The three readings of the paper."""
    return {mode: {"": seeds("attend", "ag_news", attend=mode)} for mode in ("tokens", "gated", "anchors")}


def gpe() -> Grid:
    """Grouped positions, one each, none."""
    grid: Grid = {}
    for mode in ("anchors", "tokens", "gated"):
        kinds = ("grouped", "each", "none") if mode == "anchors" else ("grouped", "none")
        grid[mode] = {kind: seeds("gpe", "ag_news", attend=mode, positions=kind) for kind in kinds}
    return grid


def compression() -> Grid:
    """The teacher's table against codebooks."""
    settings = {"revision": REVISION, "teacher": TEACHER}
    return one(*(Run("compression", "compression", {**settings, "anchors": k}) for k in ANCHORS))


def size() -> Grid:
    """The table in so many bytes: ours packed, the paper's pairs, and what people use instead."""

    def run(method: str, budget: int) -> list[Run]:
        settings = {"revision": REVISION, "teacher": TEACHER, "method": method, "budget": budget}
        if method in METHOD_REVISIONS:
            settings["method_revision"] = METHOD_REVISIONS[method]
        return [Run("size", "size", settings)]

    ours = ("ADE, packed", CODED, CODED_ALIKE)
    swept = (*ours, "paper's plain pairs", "PQ (faiss)", "RQ (faiss)", "SVD, int8", "k-means")
    grid = {method: {f"{mib} MiB": run(method, int(mib * 2**20)) for mib in BUDGETS} for method in swept}
    return grid | {method: {AS_IT_COMES: run(method, 0)} for method in ("int4 rows", "int8 rows")}


def packed() -> Grid:
    """Models of so many bytes in all, their vocabulary and codebook chosen by the words of the training rows."""
    grid: Grid = {}
    for data in (*DATA, "wordnet", "banking77"):
        whole = seeds("packed", data, attend=ATTEND, lexicon=True)
        row = {"unpacked": whole} | {
            f"{size} in all": [changed(run, folder_size=size) for run in whole] for size in PACKED
        }
        adapted = [changed(run, {"adapt": True}, folder_size=PACKED[-1]) for run in whole[:1]]
        grid[data] = row | {f"{PACKED[-1]}, --adapt (one seed)": adapted}
    return grid


def parameters() -> Grid:
    """Component by component."""
    return one(Run("parameters", "parameters", {"dim": 768, "labels": 4, "anchors": 100}))


def latency() -> Grid:
    """Batch 32 x 128 tokens at width 768, everything in one process, one after the other."""
    shape = {"batch": 32, "length": 128, "dim": 768, "anchors": 500, "pairs": 8}
    return one(Run("latency", "latency", {"revision": REVISION, "projected": True, "cold": True, **shape}))


def costs() -> Grid:
    """What making a model costs: distillation of the paper's table, and 6,000 steps of training."""
    base = ade_run("costs", "ag_news").settings
    shape = {"vocabulary": 128_100, "dim": 768, "anchors": 700}
    distillation = {"revision": REVISION, "shape": shape, "distillation": {**base["distillation"], "anchors": 700}}
    training = {name: base[name] for name in ("revision", "data", "teacher", "distillation")}
    training["training"] = {**base["training"], "steps": 6000}
    runs = [Run("costs", "distillation", distillation)]
    runs += [Run("costs", "training", {**training, "attend": mode}) for mode in ("tokens", "gated")]
    return one(*runs)


def throughput() -> Grid:
    """AG News test texts, raw text to label, on a CPU: what a user waits for; everything in one process."""
    return one(Run("throughput", "throughput", {"revision": REVISION, "data": "ag_news", "cold": True}))


def service() -> Grid:
    """Load on `ade serve`, from clients on the same machine; glosses and wordllama's table, so nothing is fetched."""
    loads = service_run("wordnet", "wordllama", (1, 8, 64), 3.0, distillation_of())
    return one(loads, fairness_run("wordnet", "wordllama", (0, 1, 40), 20.0, distillation_of()))


def service_run(data: str, teacher: str, clients: tuple[int, ...], seconds: float, distillation: dict[str, Any]) -> Run:
    """Requests of so many clients at once, for so many seconds each."""
    chosen = ServiceSettings()
    settings = {
        "revision": REVISION, "data": data, "teacher": teacher, "attend": ATTEND, "distillation": distillation,
        "clients": list(clients), "seconds": seconds, "batch": chosen.batch, "wait_ms": chosen.wait_ms,
    }  # fmt: skip
    return Run("service", "service", settings)


def fairness_run(data: str, teacher: str, greedy: tuple[int, ...], seconds: float, distillation: dict[str, Any]) -> Run:
    """One-word requests for so many seconds, among so many greedy clients."""
    chosen = ServiceSettings()
    settings = {
        "revision": REVISION, "data": data, "teacher": teacher, "attend": ATTEND, "distillation": distillation,
        "greedy": list(greedy), "seconds": seconds, "batch_tokens": chosen.batch_tokens, "queue": chosen.queue,
    }  # fmt: skip
    return Run("service", "fairness", settings)


def growth() -> Grid:
    """How prediction grows with texts, length, K and k, and where its time goes."""
    distillation = ade_run("growth", "ag_news").settings["distillation"]
    settings = {"revision": REVISION, "data": "ag_news", "distillation": distillation}
    return {
        kind: {mode: [Run("growth", kind, {**settings, "attend": mode})] for mode in ("tokens", "gated")}
        for kind in ("growth", "stages")
    }


def lookup() -> Grid:
    """Four ways to look a token up, as N, K and k grow."""
    shapes = [(n, 500, 8) for n in (1_000, 8_000, 32_000)] + [(8_000, k, 8) for k in (100, 2_000)]
    shapes += [(8_000, 500, k) for k in (2, 32)]
    settings = [{"vocabulary": n, "anchors": k, "pairs": p, "dim": 64} for n, k, p in shapes]
    return one(*(Run("lookup", "lookup", each) for each in settings))


def demo() -> Grid:
    """The main job of `make run`."""
    settings = {"revision": REVISION, "seed": 0, "epochs": 2.5, "attend": "gated", "lexicon_revision": LEXICON}
    return one(Run("demo", "demo", settings))


def install() -> Grid:
    """The packages that an install brings."""
    return one(*(Run("install", "install", {"extra": extra}) for extra in ("", "train")))


def scale() -> Grid:
    """Growth in rows, workers and processes."""
    shared = {"revision": REVISION, "data": "ag_news", "distillation": distillation_of()}
    return one(
        Run("scale", "engines", {**shared, "rows": 2_000_000, "workers": [1, 2]}),
        Run("scale", "processes", {**shared, "steps": 200, "ways": [[1, 1], [1, 2], [2, 1]]}),
        *(Run("scale", "scale", {**shared, "rows": rows, "steps": 200}) for rows in SCALE),
    )


def one(*runs: Run) -> Grid:
    """A table whose report makes its own rows of its runs."""
    return {"": {"": list(runs)}}


TABLES: dict[str, Callable[[], Grid]] = {
    table.__name__: table
    for table in (
        demo, classification, accuracy, few, ablation, context, explain, windows, sat, anchors, attend, gpe,
        compression, size, packed, compress, compress_speed, frontier, frontier_decoder, sentence, multilingual,
        parameters, latency, costs, lexicon, throughput, service, growth, lookup, install, scale,
    )
}  # fmt: skip


def runs_of(table: str, cell: str = "") -> list[Run]:
    """The runs of a table's cells whose row and column, as "row, column", contain `cell`."""
    return [
        run
        for row, columns in TABLES[table]().items()
        for column, runs in columns.items()
        for run in runs
        if cell in f"{row}, {column}"
    ]
