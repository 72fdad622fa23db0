"""The measurement behind `compress`: tasks of a tiny encoder and a tiny decoder, before and after."""

import csv
from itertools import pairwise

import pytest
import torch

from ade.compression.source import load_model
from ade.progress import silent
from benchmarks import records, sections
from benchmarks.accuracy import Places
from benchmarks.book import Book
from benchmarks.compress import CHOSEN_ON, perplexity, stsb, tatoeba
from benchmarks.reproduce import reproduce
from benchmarks.tables_compress import compress_run
from tests.compression.test_compress import decoder, encoder, texts  # noqa: F401


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
    assert tatoeba(model, tokenizer, places.data / "tatoeba", ["fin"]) == {"fin": 100.0}
    found = stsb(model, tokenizer, places.data / "stsb", ["en"])["en"]
    assert -100 <= found <= 100
    with open(places.data / "stsb" / "stsb-en-test.csv", "w", newline="") as file:
        csv.writer(file).writerows([("word1 word2", "word1 word2", 5), ("word1 word2", "word90 word7 word5", 1)])
    assert stsb(model, tokenizer, places.data / "stsb", ["en"])["en"] == pytest.approx(100)


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
        compress_run("decoder", "22kB", **changes),
    ]
    assert reproduce(runs, places, tmp_path / "results") == []
    encoded, decoded = (record["figures"] for record in records.load(tmp_path / "results"))
    assert encoded["before"]["tatoeba"] == {"fin": 100.0}
    assert encoded["table"]["after"] < encoded["table"]["before"]
    assert decoded["after"]["perplexity"] != decoded["before"]["perplexity"] > 1
    assert encoded["peak_bytes"] > 1e7

    book = Book(records.load(tmp_path / "results"))
    book.everywhere = lambda name: book.all  # type: ignore[method-assign]
    table = sections.compress(book)
    assert "Tatoeba 100.0 to" in table
    assert "perplexity" in table
    assert table.count("\n") == 3
