"""The measurements of speed, each on a shape small enough for a test."""

from benchmarks import records, runs
from benchmarks.records import Run
from benchmarks.subjects import speed
from tests.test_benchmarks_peers import small_encoder


def test_a_batch_goes_through_every_model(places, tmp_path, monkeypatch):
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    for name, value in (("VOCABULARY", 600), ("DIM", 64), ("BATCH", 2), ("LENGTH", 5)):
        monkeypatch.setattr(speed, name, value)
    monkeypatch.setattr(speed, "ENCODERS", {"BERT": ("bert", {**small, "vocab_size": 600})})
    assert runs.reproduce([Run("latency", {"device": "cpu"})], places, tmp_path) == []
    models = records.load(tmp_path)[0]["figures"]["models"]
    assert set(models) == {"BERT", "ADE tokens", "ADE anchors"}
    for name, each in models.items():
        assert each["eager_fp32"]["ms"] > 0
        assert ("projected" in each) == name.startswith("ADE")


def test_texts_are_timed(places, tmp_path, monkeypatch):
    small_encoder(places.models_dir / "minilm-l6")
    monkeypatch.setattr(speed, "PAUSE", 0)
    assert runs.reproduce([Run("throughput", {"peers": ["tfidf"]})], places, tmp_path) == []
    figures = records.load(tmp_path)[0]["figures"]
    assert all(each["texts_per_second"] > 0 for each in figures.values())
    assert {name for name, each in figures.items() if "cold_one_ms" in each} == {"ADE", "ADE tokens", "ADE anchors"}
    assert {speed.LIMIT, "TF-IDF + linear", "MiniLM-L6 whole"} < set(figures)
