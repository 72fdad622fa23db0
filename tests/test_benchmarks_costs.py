"""The measurements of cost: throughput, growth, the service under load, a word among greedy clients."""

import numpy as np
import pytest

from ade.model import AdeForSequenceClassification
from ade.service.responses import parse_texts
from ade.settings import Architecture, ServiceSettings
from benchmarks import (
    fairness,
    growth,
    records,
    sections,
    service,
    speed,
    throughput,
)
from benchmarks.book import Book
from benchmarks.records import Run
from benchmarks.reproduce import reproduce
from benchmarks.tables import distillation_of, fairness_run, runs_of, service_run


def test_throughput_is_measured_warm_and_cold():
    codebook = speed.random_codebook(200, 20, 4, 64)
    found = throughput._ours(codebook, ("a", "b"))
    cold = {name for name, system in found.items() if system.projection is not None}
    assert cold == {"ADE tokens", "ADE gated", "ADE gated, packed"}
    for name, system in found.items():
        assert len(throughput.seconds_of(system, ["a b", "c"], 2, cold=name in cold)) == 2


def test_cold_means_that_no_row_is_kept():
    codebook = speed.random_codebook(200, 20, 4, 64)
    model = AdeForSequenceClassification.from_codebook(codebook, "ab", Architecture(attend="tokens"))
    folded = speed.projection_of(model)
    ids, offsets = np.arange(100), np.array([0, 100])
    first = folded.logits(ids, offsets)
    folded.logits(ids, offsets)
    assert folded.cache.hit_rate == 0.5
    speed.forget(folded)
    assert np.allclose(folded.logits(ids, offsets), first)
    assert folded.cache.hit_rate == 0


@pytest.mark.parametrize("mode", [0, 1])
def test_growth_is_measured_stage_by_stage(places, tmp_path, monkeypatch, mode):
    for name, small in (("COUNTS", (50, 150)), ("LENGTHS", (4, 8)), ("ANCHORS", (10, 20)), ("PAIRS", (1, 2))):
        monkeypatch.setattr(growth, name, small)
    monkeypatch.setattr(growth, "TOKENS", 100)
    settings = runs_of("growth")[mode].settings
    small = {**settings, "distillation": {**settings["distillation"], "anchors": 16}}
    runs = [Run("growth", kind, small) for kind in ("growth", "stages")]
    assert reproduce(runs, places, tmp_path / "results") == []
    figures, stages = (record["figures"] for record in records.load(tmp_path / "results"))
    assert [point["at"] for point in figures["texts"]] == [50, 150]
    assert all(point["resident_bytes"] > 1e6 for point in figures["texts"])
    assert all(point["microseconds"] > 0 for name in ("length", "anchors", "pairs") for point in figures[name])
    assert 0 < figures["hit_rate"] < 1
    assert set(stages) >= {"find rows", "gather, add positions", "attention", "gates, pooling"}


def test_load_on_the_service_is_measured(places, tmp_path):
    run = service_run("ag_news", "deberta-v3-xsmall", (1, 6), 0.25, {**distillation_of(16), "rounds": 1})
    assert reproduce([run], places, tmp_path / "results") == []
    (record,) = records.load(tmp_path / "results")
    figures = record["figures"]
    assert set(figures) == {service.TOGETHER, service.SINGLY}
    for way, by_clients in figures.items():
        assert list(by_clients) == ["1", "6"]
        for clients, each in by_clients.items():
            assert 0 < each["p50_ms"] <= each["p99_ms"]
            assert each["requests"] > 10
            assert each["batch"] == 1 if way == service.SINGLY or clients == "1" else each["batch"] > 1.5
            # each client has one request under way: Little's law, less what the client does in between
            assert 0.4 < each["requests_per_second"] * each["mean_ms"] / 1000 / int(clients) < 1.2
    assert sections.service(Book([{**record, "key": runs_of("service")[0].key}])).count("\n") == 3


def test_a_word_among_greedy_clients_is_measured(places, tmp_path, monkeypatch):
    monkeypatch.setattr(fairness, "WARM", 0.1)
    distillation = {**distillation_of(16), "rounds": 1}
    run = fairness_run("ag_news", "deberta-v3-xsmall", (0, 2), 0.5, distillation)
    assert reproduce([run], places, tmp_path / "results") == []
    (record,) = records.load(tmp_path / "results")
    assert list(record["figures"]) == ["0", "2"]
    for each in record["figures"].values():
        assert each["requests"] > 0
        assert each["refused"] == 0
        assert 0 < each["p50_ms"] <= each["p99_ms"] <= each["longest_ms"]
    table = sections.service(Book([{**record, "key": runs_of("service")[1].key}]))
    assert table.startswith("| greedy clients")
    assert table.count("\n") == 3


def test_greedy_clients_send_the_largest_requests_allowed():
    limits = ServiceSettings()
    many, long = fairness.largest(["a gloss of a word", 'and "another" one'])
    assert len(parse_texts(many, limits.max_texts, limits.max_chars)) == limits.max_texts
    assert {len(text) for text in parse_texts(long, limits.max_texts, limits.max_chars)} == {limits.max_chars}
    assert all(0.95 * limits.max_bytes < len(body) <= limits.max_bytes for body in (many, long))
