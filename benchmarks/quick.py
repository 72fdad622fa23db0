"""The quick harness: a slice of every table on a few hundred rows."""

from benchmarks.records import Run
from benchmarks.tables import TEACHER, ade_run, changed, distillation_of, fairness_run, peer_run, runs_of, service_run

QUICK_ROWS = 400  # rows of each split


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
    runs += [peer_run("classification", "ag_news", "tfidf", rows=QUICK_ROWS), *runs_of("parameters")]
    runs.append(service_run("ag_news", TEACHER, (1, 4), 0.3, {**distillation_of(64), "rounds": 2}))
    runs.append(fairness_run("ag_news", TEACHER, (0, 2), 0.5, {**distillation_of(64), "rounds": 2}))
    runs.append(Run("lookup", "lookup", {"vocabulary": 1_000, "anchors": 50, "pairs": 4, "dim": 16}))
    return runs
