"""The measurement behind `compress`: tasks of a tiny encoder and a tiny decoder, before and after."""

import csv
from itertools import pairwise

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from ade.compression import use
from ade.compression.source import load_model
from ade.progress import silent
from benchmarks import compress_speed, records, sections
from benchmarks.accuracy import Places
from benchmarks.book import Book
from benchmarks.compress import CHOSEN_ON, encoder_of, perplexity, similarity, tatoeba
from benchmarks.frontier import METHODS, in_groups, trimmed
from benchmarks.records import Run
from benchmarks.reproduce import reproduce
from benchmarks.tables_compress import (
    ONNX,
    OURS,
    SOURCE,
    compress_run,
    decoder_frontier_run,
    frontier_run,
    speed_run,
)
from tests.compression.test_compress import decoder, encoder, texts  # noqa: F401


@pytest.fixture
def few_words(monkeypatch):
    monkeypatch.setattr(use, "FORMS", tuple((*form, 200) for *form, _ in use.FORMS))
    lists = {language: dict(list(words.items())[:200]) for language, words in use.word_lists(["de", "en"]).items()}
    monkeypatch.setattr(use, "word_lists", lambda languages=(): lists)


@pytest.fixture
def places(tmp_path, encoder, decoder):  # noqa: F811
    data = tmp_path / "data"
    for name in ("tatoeba", "stsb", "wikitext-2"):
        (data / name).mkdir(parents=True)
    some = texts(CHOSEN_ON + 30, seed=1)
    for side in ("fin", "eng"):
        (data / "tatoeba" / f"fin-eng.{side}").write_text("\n".join(some) + "\n", "utf8")
    with open(data / "stsb" / "stsb-en-test.csv", "w", newline="") as file:
        csv.writer(file).writerows((a, b, i % 6) for i, (a, b) in enumerate(pairwise(some[:21])))
    (data / "wikitext-2" / "test.txt").write_text("\n".join(some), "utf8")
    (data / "corpus.txt").write_text("\n".join(texts(300)) + "\n", "utf8")
    (tmp_path / "teachers").mkdir()
    (tmp_path / "teachers" / "encoder").symlink_to(encoder)
    (tmp_path / "teachers" / "decoder").symlink_to(decoder)
    return Places(data, tmp_path / "teachers", tmp_path / "work", "cpu")


def test_a_sentence_is_its_own_translation_and_judgements_are_ranked(places):
    model, tokenizer = load_model(places.teachers / "encoder")
    encode = encoder_of(model, tokenizer)
    assert tatoeba(encode, places.data / "tatoeba", ["fin"]) == {"fin": 100.0}
    found = similarity(encode, places.data / "stsb", ["en"])["en"]
    assert -100 <= found <= 100
    with open(places.data / "stsb" / "stsb-en-test.csv", "w", newline="") as file:
        csv.writer(file).writerows([("word1 word2", "word1 word2", 5), ("word1 word2", "word90 word7 word5", 1)])
    assert similarity(encode, places.data / "stsb", ["en"])["en"] == pytest.approx(100)


def test_perplexity_is_that_of_the_logits(places):
    model, tokenizer = load_model(places.teachers / "decoder")
    found = perplexity(model, tokenizer, "word3 word1 word8", 0, silent)
    ids = torch.tensor([[2, *tokenizer("word3 word1 word8", add_special_tokens=False)["input_ids"]]])
    with torch.no_grad():
        wanted = model(input_ids=ids, labels=ids).loss.exp()
    assert found == pytest.approx(float(wanted), rel=1e-4)


def test_models_are_recorded_and_reported(places, tmp_path):
    changes = {"corpus": ["corpus.txt"], "rows": 20, "tokens": 300}
    runs = [
        compress_run("encoder", "22kB", **changes, languages=["fin"], similarity=["en"]),
        compress_run("decoder", "22kB", **changes, languages=["fin"]),
    ]
    assert reproduce(runs, places, tmp_path / "results") == []
    encoded, decoded = (record["figures"] for record in records.load(tmp_path / "results"))
    assert encoded["before"]["tatoeba"] == {"fin": 100.0}
    assert encoded["table"]["after"] < encoded["table"]["before"]
    assert decoded["after"]["perplexity"] != decoded["before"]["perplexity"] > 1
    assert decoded["after"]["languages"]["fin"] != decoded["before"]["languages"]["fin"] > 1
    assert encoded["peak_bytes"] > 1e7

    book = Book(records.load(tmp_path / "results"))
    book.everywhere = lambda name: book.all  # type: ignore[method-assign]
    table = sections.compress(book)
    assert "Tatoeba 100.0 to" in table
    assert "perplexity" in table
    assert table.count("\n") == 3


def test_rounding_in_groups_has_as_many_levels_as_bits_allow_and_errs_less_with_more():
    table = np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32)
    errors = [np.square(in_groups(table, bits) - table).mean() for bits in (2, 3, 4, 8)]
    assert all(before > 3 * after for before, after in pairwise(errors))
    group = in_groups(table, 2)[0, :32]
    assert len(np.unique(group)) <= 4


def test_levels_with_offsets_reach_from_the_least_to_the_largest_and_cost_an_offset_more():
    table = np.random.default_rng(0).normal(3, size=(50, 64)).astype(np.float32)
    found = [METHODS[f"int{bits}, offsets"](table, 0, np.ones(50)) for bits in (2, 3, 4)]
    errors = [np.square(rows - table).mean() for rows, _ in found]
    assert all(before > 3 * after for before, after in pairwise(errors))
    assert errors[0] < np.square(in_groups(table, 2) - table).mean()  # whose levels lie around zero
    rows, used = found[0]
    assert used == 50 * (64 // 4 + 2 * (2 + 2))
    assert len(np.unique(rows[0, :32])) <= 4
    np.testing.assert_allclose(rows[0, :32].max(), table[0, :32].max(), rtol=2e-3)


def test_trimming_keeps_the_rows_that_are_used():
    table = np.random.default_rng(0).normal(size=(500, 64)).astype(np.float32)
    use = np.arange(500.0)
    rows, used = trimmed(table, 4 * 500 + 100 * (64 + 4), use)
    assert used == 4 * 500 + 100 * (64 + 4)
    assert np.abs(rows[400:] - table[400:]).max() < 0.03
    np.testing.assert_allclose(rows[:400], np.broadcast_to(table[:400].mean(0), (400, 64)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["PQ (faiss)", "RQ (faiss)"])
@pytest.mark.filterwarnings("ignore")
def test_quantizers_keep_to_the_size_and_err_less_with_more(method):
    table = np.random.default_rng(0).normal(size=(4000, 32)).astype(np.float32)
    found = [METHODS[method](table, size, np.ones(4000)) for size in (45_000, 90_000)]
    assert found[0][1] <= 45_000 < found[1][1] <= 90_000
    few, many = (np.square(rows - table).mean() for rows, _ in found)
    assert many < few < np.square(table).mean()


def test_a_frontier_is_recorded_and_reported(places, tmp_path, few_words):
    changes = {"languages": ["fin"], "similarity": ["en"], "rows": 20, "pairs": 10}
    wanted = {SOURCE: "", OURS: "22kB", "int2": "", "trimmed vocabulary": "6kB"}
    runs = [frontier_run("encoder", method, size, **changes) for method, size in wanted.items()]
    assert reproduce(runs, places, tmp_path / "results") == []
    source, ours, two, few = (record["figures"] for record in records.load(tmp_path / "results"))
    assert source["bytes"] == 404 * 32 * 4
    assert ours["bytes"] <= 22_000
    assert two["bytes"] == 404 * (32 // 4 + 2) + 2 * 4 * 32
    assert few["bytes"] <= 6_000 + 2 * 4 * 32
    assert few["tatoeba"]["fin"] <= two["tatoeba"]["fin"] <= source["tatoeba"]["fin"] == 100.0

    book = Book(records.load(tmp_path / "results"))
    book.everywhere = lambda name: book.all  # type: ignore[method-assign]
    table = sections.frontier(book)
    assert table.count("\n") == 5
    assert "| as it came | 0.1 MB | 32.00 | 100.0 | - |" in table


def test_a_frontier_of_a_decoder_has_its_perplexities(places, tmp_path, few_words):
    wanted = {SOURCE: "", OURS: "22kB", "int8": "", "trimmed vocabulary": "6kB"}
    changes = {"languages": ["fin"], "rows": 20, "tokens": 300}
    runs = [decoder_frontier_run("decoder", method, size, **changes) for method, size in wanted.items()]
    assert reproduce(runs, places, tmp_path / "results") == []
    source, ours, fine, few = (record["figures"] for record in records.load(tmp_path / "results"))
    assert few["bytes"] < fine["bytes"] < source["bytes"]
    assert ours["bytes"] <= 22_000
    coarse, changed = (abs(each["perplexity"] / source["perplexity"] - 1) for each in (few, fine))
    assert changed < coarse  # of untrained layers either may be lower than the source's
    assert fine["languages"]["fin"] == pytest.approx(source["languages"]["fin"], rel=1e-2)

    book = Book(records.load(tmp_path / "results"))
    book.everywhere = lambda name: book.all  # type: ignore[method-assign]
    table = sections.frontier_decoder(book)
    assert table.count("\n") == 5
    assert "| 1.00x | 1.00x | fin 1.00x |" in table


def test_an_exported_encoder_is_measured_beside_the_original(places, tmp_path, encoder, few_words):  # noqa: F811
    folder = places.teachers / "sentences"
    parts = [Transformer(str(encoder)), Pooling(32, "mean"), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder))
    asked = compress_run("sentences", "22kB", rows=20, languages=["fin"], similarity=["en"])
    assert reproduce([Run("compress", "compress_onnx", asked.settings)], places, tmp_path / "results") == []
    (record,) = records.load(tmp_path / "results")
    assert record["figures"]["after"]["tatoeba"] == {"fin": 100.0}
    assert record["figures"]["weights"]["after"] > record["figures"]["table"]["after"]  # the layers are in it
    book = Book([record])
    book.everywhere = lambda name: book.all  # type: ignore[method-assign]
    assert f"| {ONNX} |" in sections.compress(book)


def test_speed_and_memory_are_measured_beside_the_original(places, tmp_path, monkeypatch, few_words):
    def memory_of(*given, measure=compress_speed.memory_of):
        measured.append(measure(*given))
        return measured[-1]

    measured, held = [], np.ones(10**8)  # of this process, not of those that it starts
    monkeypatch.setattr(compress_speed, "memory_of", memory_of)
    monkeypatch.setattr(compress_speed, "REPEATS", 1)
    assert reproduce([speed_run("decoder", "22kB")], places, tmp_path / "results") == []
    (record,) = records.load(tmp_path / "results")
    assert set(record["figures"]["per_second"]) == {"original", "packed"}
    assert all(rate > 0 for rate in record["figures"]["per_second"].values())
    assert set(record["figures"]["peak_bytes"]) == {"original", "packed"}  # of so small models no more than noise
    book = Book([record])
    book.everywhere = lambda name: book.all  # type: ignore[method-assign]
    assert sections.compress_speed(book).count("\n") == 2

    assert len(measured) == 3
    assert 5e7 < measured[0] < held.nbytes

    (places.data / "tatoeba" / "deu-eng.deu").write_text("\n".join(texts(20)) + "\n", "utf8")
    rates = compress_speed.rates_of({"original": places.teachers / "encoder"}, "encoder", places, silent)
    assert rates["original"] > 0
