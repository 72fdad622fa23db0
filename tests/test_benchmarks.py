"""The harness itself, on data and a teacher made for the purpose."""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from ade.cli.sizes import linear_sizes
from ade.teachers import Teacher
from benchmarks import (
    compression,
    peers,
    records,
    tuned_peers,
)
from benchmarks.quick import quick
from benchmarks.records import Run
from benchmarks.reproduce import plan, reproduce
from benchmarks.tables import TABLES, ade_run, peer_run, runs_of
from tests.conftest import FILLER, WORDS, word_tokenizer


def test_the_quick_harness_runs_whole_and_is_not_repeated(places, tmp_path):
    todo, seconds = plan(None, "cpu", True, tmp_path / "results")
    assert len(todo) == len(quick())
    assert seconds > 0
    todo = [run for run in todo if run.table != "service"]  # which tests below start
    assert reproduce(todo, places, tmp_path / "results") == []
    found = records.load(tmp_path / "results")
    assert len(found) == len(todo)
    first = next(record for record in found if record["kind"] == "ade")
    assert {"settings", "figures", "device", "versions", "commit", "data", "seconds"} <= set(first)
    assert first["data"]["train_rows"] == 200
    assert len(first["data"]["sha256"]) == 64
    assert 0 <= first["figures"]["accuracy"] <= 1
    assert {run.table for run in plan(None, "cpu", True, tmp_path / "results")[0]} == {"service"}


def test_runs_are_chosen_by_their_cell(tmp_path):
    every, _ = plan("multilingual", "cuda", False, tmp_path)
    some, _ = plan("multilingual", "cuda", False, tmp_path, cell="24 MB, translations")
    assert [(run.settings["encoder"]["size"], run.settings["translations"]) for run in some] == [("24MB", 1_000_000)]
    assert len(every) > len(some)
    assert plan("multilingual", "cuda", False, tmp_path, cell="no such row")[0] == []


def test_several_runs_at_once_give_the_same_figures(places, tmp_path):
    todo = [run for run in plan(None, "cpu", True, tmp_path / "none")[0] if run.kind == "ade"][:2]
    for jobs in (1, 2):
        assert reproduce(todo, places, tmp_path / str(jobs), jobs) == []
    first, second = (
        {r["key"]: r["figures"]["accuracy"] for r in records.load(tmp_path / str(jobs))} for jobs in (1, 2)
    )
    assert first.keys() == second.keys()
    assert first == pytest.approx(second, abs=0.05)  # one thread or two: sums in another order


def test_a_whole_encoder_is_fine_tuned(places, tmp_path):
    """The code that fine-tunes MiniLM, mpnet, BERT and the others, on a BERT small enough for a test."""
    folder = places.teachers / "minilm-l6"
    words = word_tokenizer([*(word for group in WORDS.values() for word in group), *FILLER])
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=words.get_vocab_size(), **shape)).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(folder)
    assert reproduce([peer_run("classification", "ag_news", "minilm-l6")], places, tmp_path / "results") == []
    figures = records.load(tmp_path / "results")[0]["figures"]
    assert 0.2 < figures["accuracy"] <= 1
    assert figures["texts_per_second"] > 0
    assert figures["model_bytes"] > 4 * 32 * words.get_vocab_size()
    assert figures["tokenizer_bytes"] > words.get_vocab_size()
    assert figures["bytes"] == figures["model_bytes"] + figures["tokenizer_bytes"]


def test_a_failed_run_is_named_and_the_rest_goes_on(places, tmp_path):
    broken = Run("classification", "peer", {"peer": "tfidf", "data": "nowhere", "seed": 0, "rows": 0})
    failed = reproduce([broken, *runs_of("parameters")], places, tmp_path / "results")
    assert len(failed) == 1
    assert "no such data set" in failed[0]
    assert [record["kind"] for record in records.load(tmp_path / "results")] == ["parameters"]


def test_a_changed_setting_is_another_run():
    assert ade_run("a", "ag_news").key == ade_run("b", "ag_news").key
    assert ade_run("a", "ag_news").key != ade_run("a", "ag_news", seed=1).key
    assert ade_run("a", "ag_news").key != ade_run("a", "ag_news", attend="gated").key


def test_settings_are_searched_one_after_the_other():
    grid = {"a": (1, 2, 3), "b": ("x", "y")}
    tried = []

    def score(options):
        tried.append(dict(options))
        return {1: 0.5, 2: 0.7, 3: 0.7}[options["a"]] + (0.1 if options == {"a": 2, "b": "y"} else 0)

    assert tuned_peers.search(grid, score) == ({"a": 2, "b": "y"}, pytest.approx(0.8))  # of equals the earlier
    assert len(tried) == 4


def test_folds_spread_every_class():
    labels = np.repeat([0, 1, 2], [9, 30, 4])
    fold = tuned_peers.folds(labels, 0)
    for label in range(3):
        counts = np.bincount(fold[labels == label], minlength=3)
        assert counts.max() - counts.min() <= 1
    assert (fold != tuned_peers.folds(labels, 1)).any()


@pytest.mark.parametrize("peer", ["tfidf", "nbsvm", "fasttext", "fasttext-ftz"])
def test_peers_are_tuned_on_training_rows(places, tmp_path, peer, monkeypatch):
    """What is chosen and every byte is recorded; test rows are only predicted."""
    needed = "fasttext" if peer.startswith("fasttext") else "sklearn"
    pytest.importorskip(needed, reason=f"{needed} is of the extra 'bench'")
    monkeypatch.setattr(tuned_peers, "FASTTEXT", {"text": ("lower case",), "wordNgrams": (2,), "epoch": (25,),
        "lr": (0.5, 0.1), "dim": (10,)})  # fmt: skip
    monkeypatch.setattr(peers, "FASTTEXT", tuned_peers.FASTTEXT)
    assert reproduce([peer_run("classification", "ag_news", peer)], places, tmp_path / "results") == []
    figures = records.load(tmp_path / "results")[0]["figures"]
    assert figures["accuracy"] > 0.8
    assert figures["chosen"]["cross_validated_accuracy"] > 0.8
    assert figures["bytes"] == figures["model_bytes"] + figures["tokenizer_bytes"] > 1000
    assert bool(figures["tokenizer_bytes"]) == (needed == "sklearn")  # fastText has one file


def test_the_bytes_of_a_linear_model_are_all_counted():
    found = linear_sizes(10, ["ab", "\u00fc"])
    assert found == {"bytes": 46, "model_bytes": 40, "tokenizer_bytes": 6}


def test_anchors_and_pairs_share_the_budget():
    shapes = compression.plain_shapes(8 << 20, 128_100, 384)
    assert [pairs for pairs, _ in shapes] == list(range(1, 9))
    for pairs, anchors in shapes:
        assert 8 * 128_100 * pairs + 4 * 384 * anchors <= 8 << 20
    assert dict(shapes)[7] > 2 * dict(shapes)[8]
    assert compression.plain_shapes(1000, 128_100, 384) == []


def test_the_papers_row_has_its_solver_and_epochs():
    for data, epochs, anchors in (("ag_news", 8, 700), ("dbpedia_14", 4, 500)):
        for run in TABLES["classification"]()["ADE, the paper's solver, K and epochs"][data]:
            assert run.settings["distillation"]["solver"] == "gradient"
            assert run.settings["training"]["epochs"] == epochs
            assert run.settings["distillation"]["anchors"] == anchors
    (learned,) = TABLES["classification"]()["Anchor & Transform (learned; no SAT, mean pooling)"]["ag_news"]
    assert learned.settings["training"]["train_weights"]
    assert not learned.settings["distillation"]["signed"]


@pytest.mark.parametrize(
    "row", ["ADE, the paper's solver, K and epochs", "Anchor & Transform (learned; no SAT, mean pooling)"]
)
def test_rows_with_the_gradient_solver_are_made(places, tmp_path, row):
    run = TABLES["classification"]()[row]["ag_news"][0]
    short = {**run.settings["training"], "steps": 5, "batch_size": 16}
    distillation = {**run.settings["distillation"], "anchors": 16, "rounds": 1}
    small = Run("classification", "ade", {**run.settings, "training": short, "distillation": distillation})
    assert reproduce([small], places, tmp_path / "results") == []
    assert 0 <= records.load(tmp_path / "results")[0]["figures"]["accuracy"] <= 1


def test_every_way_to_squeeze_a_table_keeps_its_budget(places):
    """Real faiss, a table with structure: what is asked for is not overstepped, and more bytes bring more."""
    pytest.importorskip("faiss", reason="faiss is of the extra 'bench'")
    generator = torch.Generator().manual_seed(0)
    words = word_tokenizer([f"w{i}" for i in range(1998)])
    table = torch.randn(30, 24, generator=generator)[torch.randint(30, (2000,), generator=generator)]
    teacher = Teacher("made", table + 0.5 * torch.randn(2000, 24, generator=generator), words)
    frequency = compression.frequencies_of(teacher, None)
    for method in compression.METHODS:
        found = [compression.compressed(teacher, method, budget, frequency) for budget in (40_000, 60_000)]
        for figures, budget in zip(found, (40_000, 60_000), strict=True):
            if figures["bytes"] and not method.startswith("int"):
                assert figures["bytes"] <= budget, method
        assert -1 <= found[0].get("cosine_p5", 0) <= found[0].get("cosine", 0) <= 1
        if found[0]["bytes"] and found[1]["bytes"] > 1.2 * found[0]["bytes"]:
            assert found[1]["cosine"] > found[0]["cosine"] - 0.01, method
    exact = compression.closeness(
        torch.nn.functional.normalize(teacher.table, dim=1).numpy(), teacher.table.numpy(), frequency
    )
    assert exact["recall_at_10"] == 1
    assert exact["cosine"] == pytest.approx(1)


def test_a_model_of_a_size_in_all_is_trained_packed(places, tmp_path):
    run = runs_of("packed")[3]
    assert run.settings["folder_size"] == "2.5 MB"
    short = {**run.settings["training"], "steps": 5, "batch_size": 16}
    small = {**run.settings, "training": short, "folder_size": "20kB"}
    assert reproduce([Run("packed", "ade", small)], places, tmp_path / "results") == []
    figures = records.load(tmp_path / "results")[0]["figures"]
    assert figures["bytes"] <= 20_000
    assert figures["tokenizer_bytes"] < 0.2 * figures["bytes"]
    assert figures["division"]["layer_bits"] == 8
