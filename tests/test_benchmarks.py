"""The harness itself, on data and a teacher made for the purpose."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from typer.testing import CliRunner

from ade.cli.sizes import linear_sizes
from ade.model import AdeForSequenceClassification
from ade.service.responses import parse_texts
from ade.settings import Architecture, ServiceSettings
from ade.teachers import Teacher
from benchmarks import (
    compression,
    context,
    fairness,
    growth,
    peers,
    readings,
    records,
    report,
    sections,
    service,
    speed,
    throughput,
    tuned_peers,
)
from benchmarks.__main__ import app
from benchmarks.accuracy import Places
from benchmarks.book import Book
from benchmarks.claims import Claim, ahead, not_ahead, says, within, within_spread
from benchmarks.quick import quick
from benchmarks.records import Run
from benchmarks.reproduce import plan, reproduce
from benchmarks.tables import TABLES, ade_run, distillation_of, fairness_run, peer_run, runs_of, service_run
from tests.conftest import FILLER, WORDS, topic_texts, word_tokenizer


@pytest.fixture
def places(tmp_path):
    for name in ("ag_news", "dbpedia_14"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for split, rows, seed in (("train", 200, 0), ("test", 80, 1)):
            with open(tmp_path / "data" / name / f"{split}.csv", "w", newline="") as file:
                writer = csv.writer(file)
                for text, label in zip(*topic_texts(rows, seed), strict=True):
                    writer.writerow([sorted(WORDS).index(label) + 1, "", text])
    folder = tmp_path / "teachers" / "deberta-v3-xsmall"
    folder.mkdir(parents=True)
    words = [*(word for group in WORDS.values() for word in group), *FILLER, *(f"w{i}" for i in range(100))]
    tokenizer = word_tokenizer(words)
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"weight": torch.randn(tokenizer.get_vocab_size(), 16)}, folder / "embeddings.safetensors")
    return Places(tmp_path / "data", tmp_path / "teachers", tmp_path / "work", "cpu")


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


def test_words_are_found_in_their_sentences():
    text, start, end = context._marked("one two <b> bank </b> three")
    assert (text, text[start:end]) == ("one two bank three", "bank")
    text, start, end = context._marked("<b>bank</b> of " + "x " * 50)
    assert (text[start:end], len(text.split())) == ("bank", context.WINDOW + 1)
    text, start, end = context._placed("Sound carries well over water .", 1)
    assert text[start:end] == "carries"


def test_rank_correlation_shares_ties():
    assert context.spearman(np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 30, 40])) == pytest.approx(1)
    assert context.spearman(np.array([1.0, 2, 3, 4]), np.array([4.0, 3, 2, 1])) == pytest.approx(-1)
    # by hand: ranks 1.5 1.5 3 against 1 2 3, Pearson of those is sqrt(3) / 2
    assert context.spearman(np.array([5.0, 5, 9]), np.array([1.0, 2, 3])) == pytest.approx(3**0.5 / 2)


def test_words_in_context_are_measured(places, tmp_path):
    (places.data / "wordsim").mkdir()
    (places.data / "wic").mkdir()
    (places.data / "ag_news").rename(places.data / "wordnet")
    line = "1\tbank\tn\tshare\tn\tthe <b> bank </b> of it\tin a <b> {word} </b> with\t{rating}"
    pairs = [line.format(word=word, rating=i) for i, word in enumerate(("bank", "share", "goal", "team"))]
    (places.data / "wordsim" / "scws_ratings.txt").write_text("\n".join(pairs))
    for split in ("train", "dev"):
        (places.data / "wic" / f"{split}.data.txt").write_text("bank\tN\t1-0\tthe bank of it\tbank profit\n" * 3)
        (places.data / "wic" / f"{split}.gold.txt").write_text("T\nF\nT\n")
    (run,) = {run.key: run for run in runs_of("context")[:1]}.values()
    short = {**run.settings["training"], "steps": 5, "batch_size": 16}
    distillation = {**run.settings["distillation"], "anchors": 16, "rounds": 1}
    small = Run("context", "context", {**run.settings, "training": short, "distillation": distillation})
    assert reproduce([small], places, tmp_path / "results") == []
    figures = records.load(tmp_path / "results")[0]["figures"]
    assert set(figures) == set(context.WAYS)
    for way in context.WAYS:
        assert -1 <= figures[way]["scws"] <= 1
        assert figures[way]["wic"] in (pytest.approx(1 / 3), pytest.approx(2 / 3))  # one pair repeated: all or nothing


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
    run = service_run("ag_news", "deberta-v3-xsmall", (1, 6), 0.5, {**distillation_of(16), "rounds": 1})
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


def test_a_word_among_greedy_clients_is_measured(places, tmp_path):
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
