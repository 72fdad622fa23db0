"""The report of the benchmarks: pages follow the records, and sentences are checked against them."""

import json
import re

from typer.testing import CliRunner

from benchmarks import (
    readings,
    records,
    report,
    sections,
)
from benchmarks.__main__ import app
from benchmarks.book import Book
from benchmarks.claims import Claim, ahead, not_ahead, says, within, within_spread
from benchmarks.tables import TABLES, ade_run, runs_of


def test_pages_follow_the_records():
    """Every table is drawn from records alone: no records, no figures; a record more, a figure more."""
    empty = report.pages([])
    assert "ADE, preset strong" not in empty[report.ROOT / "benchmarks" / "README.md"]
    run = ade_run("classification", "ag_news")
    figures = {
        "accuracy": 0.98765,
        "macro_f1": 0.9,
        "precision": 0.9,
        "recall": 0.9,
        "bytes": 1e6,
        "train_seconds": 9.0,
    }
    record = {
        "key": run.key,
        "kind": "ade",
        "settings": run.settings,
        "figures": figures,
        "data": {"name": "ag_news", "train_rows": 5},
    }
    record = json.loads(json.dumps({**record, "device": {"kind": "cpu"}, "commit": "0123456789", "jobs": 3}))
    page = report.pages([record])[report.ROOT / "benchmarks" / "README.md"]
    assert "98.77" in page
    assert "Made on cpu (3 runs at once); commits 01234567." in page


def made_records(run_accuracies):
    """A record for each run of these cells, with the accuracies given."""
    return [
        {"key": run.key, "kind": run.kind, "settings": run.settings, "device": {"kind": "cpu"}, "jobs": 1,
         "figures": {"accuracy": accuracy, "bytes": 1, "model_bytes": 1, "tokenizer_bytes": 0}}
        for runs, accuracies in run_accuracies
        for run, accuracy in zip(runs, accuracies, strict=True)
    ]  # fmt: skip


def test_checks_read_the_records():
    """By hand: means 90.0 (spread 1.0) and 90.5 (spread 0.0)."""
    grid = TABLES["attend"]()
    tokens, gated, anchors = (("attend", mode, "") for mode in ("tokens", "gated", "anchors"))
    found = made_records([(grid["tokens"][""], (0.89, 0.90, 0.91)), (grid["gated"][""], (0.905, 0.905, 0.905))])
    book = Book(found)
    assert ahead(gated, tokens)(book)
    assert ahead(gated, tokens, by=0.4)(book)
    assert not ahead(gated, tokens, by=0.6)(book)
    assert not ahead(tokens, gated)(book)
    assert not_ahead(tokens, gated)(book)
    assert within(tokens, gated, points=0.6)(book)
    assert not within(tokens, gated, points=0.4)(book)
    assert within_spread(tokens, gated)(book)
    assert says("gated is ahead", ahead(gated, tokens)).holds(book) is True
    assert says("tokens is ahead", ahead(tokens, gated)).holds(book) is False
    assert says("of anchors nothing is known", ahead(gated, anchors)).holds(book) is None


def test_a_falsified_record_fails_the_check(tmp_path, monkeypatch):
    """All sentences hold on the records there are; with one made up, the one that rests on it is named."""
    found = records.load()
    assert readings.untrue(Book(found))[0] == []
    keys = {run.key for run in TABLES["attend"]()["anchors"][""]}
    for record in found:
        if record["key"] in keys:
            record["figures"]["accuracy"] = 0.99
    wrong, _ = readings.untrue(Book(found))
    assert [line for line in wrong if line.startswith("attend") and "gives the least" in line]

    for record in found:
        with open(tmp_path / f"all-{record['device']['kind']}.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
    monkeypatch.setattr(records.load, "__defaults__", (tmp_path,))
    done = CliRunner().invoke(app, ["report", "--check"])
    assert done.exit_code != 0
    assert "gives the least" in str(done.exception)


def test_every_sentence_that_claims_an_order_has_a_check():
    order = re.compile(r"\b(ahead|behind|faster|slowest|within|smaller|closest|fastest|loses?|least|best of)\b")
    for name, claims in readings.READINGS.items():
        for claim in claims:
            assert isinstance(claim, Claim)
            assert claim.checks or not order.search(claim.sentence), f"{name}: {claim.sentence}"


def test_a_table_without_its_records_leaves_its_claims_out():
    assert "gives the least" not in readings.text("attend", Book([]))
    assert "One preset everywhere." in readings.text("accuracy", Book([]))


def test_all_tables_have_runs_and_sections():
    assert set(TABLES) == set(report.SECTIONS)
    for name in TABLES:
        assert runs_of(name), name


def test_the_overview_has_accuracy_and_size_in_a_cell():
    key = TABLES["accuracy"]()["trec"]["tfidf"][0].key
    assert "98." not in sections.overview(Book([]))
    assert "| TREC | - | - | 98.77, 1.0 MB |" in sections.overview(
        Book([{"key": key, "figures": {"accuracy": 0.98765, "bytes": 1e6}}])
    )


def test_what_is_noted_of_a_record_is_printed_once():
    record = {"device": {"kind": "cpu", "name": "A"}, "jobs": 2, "commit": "0123456789", "note": "made in the rain"}
    plain = {"device": {"kind": "cuda"}, "commit": "abcdefghij"}
    assert sections.made([record, record, plain]) == (
        "Made on A (2 runs at once), cuda (alone); commits 01234567, abcdefgh. 01234567: made in the rain."
    )
