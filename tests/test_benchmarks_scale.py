"""The table `scale`: its kinds run on a few rows, and its text follows the records."""

import pytest

from benchmarks import records, scale, sections_scale
from benchmarks.book import Book
from benchmarks.records import Run
from benchmarks.reproduce import reproduce
from benchmarks.tables import distillation_of, runs_of

SMALL = {"data": "ag_news", "distillation": {**distillation_of(16), "rounds": 1}}


def test_engines_and_growth_are_measured_on_a_few_rows(places, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    todo = [
        Run("scale", "engines", {**SMALL, "rows": 500, "workers": [1]}),
        Run("scale", "scale", {**SMALL, "rows": 300, "steps": 5}),
    ]
    assert reproduce(todo, places, tmp_path / "results") == []
    engines, growth = (record["figures"] for record in records.load(tmp_path / "results"))
    assert set(engines) == {"one process", "Ray, workers: 1"}
    assert growth["train"]["peak_bytes"] > growth["predict"]["peak_bytes"] > 1e7


def test_processes_are_measured_on_a_few_rows(places, tmp_path, ade, monkeypatch):
    """The command runs in this process, as the test above starts one for the same verb."""

    def measured(name, *words, threads):
        status, out, errors = ade(*words)
        assert (name, threads, status) == ("ade", 1, 0), errors
        return scale.Measured(1.0, 1, out)

    monkeypatch.setattr(scale, "measured", measured)
    run = Run("scale", "processes", {**SMALL, "steps": 5, "ways": [[1, 1]]})
    assert reproduce([run], places, tmp_path / "results") == []
    (record,) = records.load(tmp_path / "results")
    assert 0 < record["figures"]["processes: 1, threads of each: 1"]["dev_accuracy"] <= 1


def test_a_billion_rows_are_computed_from_the_recorded_rate():
    run = runs_of("scale")[0]
    figures = {"one process": {"rows_per_second": 9e9}, "Ray, workers: 2": {"rows_per_second": 10_000.0}}
    record = {"key": run.key, "kind": run.kind, "settings": run.settings, "figures": figures, "cores": 2}
    assert sections_scale.billion(Book([])) == sections_scale.NOT_MEASURED
    text = sections_scale.billion(Book([record]))
    assert "2,000,000 rows at 10,000 rows/s" in text
    assert "28 hours of that machine, or 0.4 hours of 64" in text
    assert "| Ray, workers: 2 | 10,000 |" in sections_scale.scale(Book([record]))
