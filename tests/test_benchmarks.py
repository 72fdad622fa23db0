"""The harness: runs, their records and identities, on data and a teacher made for the purpose."""

import pytest

from ade.errors import InputError
from benchmarks import records, runs
from benchmarks.records import Run
from benchmarks.subjects.accuracy import default_runs, paper_runs, peer_run, table_runs
from benchmarks.tables import Book

SHORT = {"anchors": 16, "rounds": 1, "steps": 5, "batch_size": 16}


def test_runs_are_recorded_and_not_repeated(places, tmp_path, monkeypatch):
    todo = [
        default_runs("ag_news")[0],
        table_runs("ag_news", attend="anchors", positions="each", **SHORT)[0],
        table_runs("dbpedia_14", preset="paper", solver="gradient", **SHORT)[0],
        default_runs("ag_news", vectors=False)[0],
    ]
    assert runs.reproduce(todo, places, tmp_path / "results") == []
    found = records.load(tmp_path / "results")
    assert len(found) == len(todo)
    assert all(record["figures"]["train_rows"] == 200 for record in found)
    default, anchors, _, lexicon = (Book(found).of([run])[0] for run in todo)
    assert set(anchors["identity"]["read"]) == {"ag_news", "deberta-v3-xsmall"}
    for record in (default, lexicon):
        assert record["figures"]["accuracy"] > 0.8
        assert record["figures"]["bytes"] > 1000
    assert runs.missing(todo, found, "cpu") == []

    changed = {**records.state(), "sources": "0" * 64}
    monkeypatch.setattr(records, "state", lambda: changed)
    assert runs.missing(todo, found, "cpu") == todo  # another state of the code: all are made again
    records.write(todo[0], {**found[0], "figures": {}}, tmp_path / "results")
    assert len(records.load(tmp_path / "results")) == len(todo)  # in place of the older record


def test_a_failed_run_is_named_and_the_rest_goes_on(places, tmp_path):
    missing = peer_run("tfidf", "nowhere")
    (failed,) = runs.reproduce([missing, peer_run("tfidf", "ag_news")], places, tmp_path)
    assert "no such data set" in failed
    assert [record["settings"]["data"] for record in records.load(tmp_path)] == ["ag_news"]
    assert runs.reproduce([missing], places, tmp_path, jobs=2) == [failed]  # in a process of its own


def test_an_identity_changes_with_what_was_read(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "rows.csv").write_text("a,b\n")
    first = records.content_hash(folder)
    records.content_hash.cache_clear()
    assert records.content_hash(folder) == first
    (folder / "rows.csv").rename(folder / "other.csv")
    records.content_hash.cache_clear()
    assert records.content_hash(folder) != first  # the same bytes under another name
    known = records.identity({"data": first})
    assert known["sha256"] != records.identity({"data": "0"})["sha256"]
    assert records.is_current({"identity": known})
    assert not records.is_current({})  # from before identities


def test_records_of_two_states_are_refused():
    def made(sources="a", packages="p", device="cpu", **read):
        return {"identity": {"sources": sources, "packages": packages, "read": read}, "device": {"kind": device}}

    records.check_one_state("t", [made(rows="1"), made(packages="q", device="cuda", teacher="2"), {"device": {}}])
    for other in (made(sources="b"), made(packages="q"), made(rows="2")):
        with pytest.raises(InputError, match="table t: records of two states"):
            records.check_one_state("t", [made(rows="1"), other])


def test_every_record_belongs_to_a_run_and_is_one_line():
    known = {run.key for run in runs.runs_of(None)}
    found = records.load()
    assert found
    for record in found:
        assert record["key"] == Run(record["kind"], record["settings"]).key
        assert record["key"] in known, (record["kind"], record["settings"])
    assert len(Book(found).by_key) == len(found)


def test_runs_are_chosen_by_table_and_cell():
    some = runs.runs_of("multilingual", "24 MB")
    assert [(run.settings["size"], run.settings["corpus"]) for run in some] == [("24MB", "multilingual")]
    assert runs.runs_of("multilingual", "no such row") == []
    for device in ("cpu", "cuda"):
        (run,) = runs.runs_of("latency_gpu" if device == "cuda" else "latency_cpu")
        assert [each for each in ("cpu", "cuda") if runs.is_made_on(run, each)] == [device]
    assert not runs.is_made_on(peer_run("tfidf", "sst2"), "cuda")
    with pytest.raises(InputError, match="no table 'nothing'"):
        runs.runs_of("nothing")


def test_every_kind_of_run_in_a_table_can_be_made():
    assert {run.kind for run in runs.runs_of(None)} == set(runs.KINDS)


def test_the_papers_row_has_its_solver_epochs_and_anchors():
    for data, epochs, anchors in (("ag_news", 8, 700), ("dbpedia_14", 4, 500)):
        for run in paper_runs(data):
            chosen = {name: run.settings[name] for name in ("preset", "solver", "epochs", "anchors")}
            assert chosen == {"preset": "paper", "solver": "gradient", "epochs": epochs, "anchors": anchors}


def test_load_on_the_service_is_measured_beside_a_peer(places, tmp_path):
    settings = {"data": "ag_news", "clients": [1, 3], "seconds": 0.25, "peers": ["tfidf"]}
    assert runs.reproduce([Run("service", settings)], places, tmp_path) == []
    (record,) = records.load(tmp_path)
    assert list(record["figures"]) == ["ade serve", "FastAPI + TF-IDF + linear"]
    for name, by_clients in record["figures"].items():
        for each in by_clients.values():
            assert 0 < each["p50_ms"] <= each["p99_ms"], name
            assert each["requests_per_second"] > 0


def test_memory_and_time_are_measured_on_a_few_rows(places, tmp_path):
    assert runs.reproduce([Run("scale", {"rows": 300, "steps": 5})], places, tmp_path) == []
    (record,) = records.load(tmp_path)
    assert record["figures"]["train"]["peak_bytes"] > record["figures"]["predict"]["peak_bytes"] > 1e7
