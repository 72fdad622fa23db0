"""Bytes: ways to keep a table, whole models before and after, encoders and what their vectors are worth."""

import csv
from itertools import pairwise

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from ade.compression import frequencies
from ade.compression.checkpoint import load_model
from ade.encoders import distil as encoder_distil
from ade.errors import InputError
from benchmarks import records, runs
from benchmarks.records import Places, Run
from benchmarks.subjects import compress, vectors
from benchmarks.subjects.quantizers import WAYS, in_groups, trimmed
from benchmarks.subjects.sentence import other_encoder
from tests.compression.conftest import decoder, encoder, texts  # noqa: F401

AXES = {"one": [2.0, 0.0], "half": [3.0, 3.0], "other": [0.0, 5.0], "back": [-1.0, 0.0]}  # of any length


def encode(some):
    return np.array([AXES[text] for text in some])


@pytest.fixture
def folders(tmp_path, encoder, decoder, monkeypatch):  # noqa: F811
    """Texts and small models under the names that are measured."""
    data, models = tmp_path / "data", tmp_path / "models"
    for name in ("tatoeba", "stsb", "wikitext-2"):
        (data / name).mkdir(parents=True)
    some = texts(vectors.CHOSEN_ON + 30, seed=1)
    for side in ("fin", "eng", "deu"):
        for pair in ("fin", "deu"):
            (data / "tatoeba" / f"{pair}-eng.{side}").write_text("\n".join(some) + "\n", "utf8")
    for part in ("test", "dev"):
        with open(data / "stsb" / f"stsb-en-{part}.csv", "w", newline="") as file:
            csv.writer(file).writerows((a, b, i % 6) for i, (a, b) in enumerate(pairwise(some[:21])))
    (data / "wikitext-2" / "test.txt").write_text("\n".join(some), "utf8")
    models.mkdir()
    (models / "multilingual-e5-small").symlink_to(encoder)
    (models / "gemma3-270m").symlink_to(decoder)
    monkeypatch.setattr(frequencies, "FORMS", ((str, " ", 1.0, 300),))  # few words of each language's list
    monkeypatch.setattr(compress, "STSB", ("en",))
    monkeypatch.setattr(compress, "LANGUAGES", {"multilingual-e5-small": ("fin",), "gemma3-270m": ("fin",)})
    return Places(data, models, tmp_path / "work", "cpu")


def test_a_sentence_is_its_own_translation_and_judgements_are_compared_by_rank(folders):
    model, tokenizer = load_model(folders.model("multilingual-e5-small"))
    found = vectors.tatoeba(lambda some: vectors.encode_by(model, tokenizer, some), folders, ["fin"])
    assert found == {"fin": 100.0}
    pairs = [("one", "one", 5), ("one", "half", 4), ("one", "back", 3), ("one", "other", 2)]
    with open(folders.data_dir / "stsb" / "stsb-en-test.csv", "w", newline="") as file:
        csv.writer(file).writerows(pairs)
    # By hand: judgements rank 1 2 3 4, cosines 1, 0.7, -1, 0 rank 1 2 4 3; so 1 - 6 * 2 / (4 * 15).
    assert vectors.stsb(encode, folders) == pytest.approx(80)
    assert vectors.stsb(encode, folders, rows=3) == pytest.approx(100)


def test_the_vector_of_a_text_is_that_of_the_text_alone(encoder, monkeypatch):  # noqa: F811
    model, tokenizer = load_model(encoder)
    some = [*texts(8), "word1"]
    monkeypatch.setattr(vectors, "BATCH", 4)
    found = vectors.encode_by(model, tokenizer, some)
    for text, vector in zip(some, found, strict=True):
        with torch.no_grad():
            mean = model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, mean / mean.norm(), atol=1e-5)


def test_perplexity_is_that_of_the_logits(folders):
    model, tokenizer = load_model(folders.model("gemma3-270m"))
    ids = tokenizer("word3 word1 word8", add_special_tokens=False)["input_ids"]
    window = torch.tensor([[tokenizer.bos_token_id, *ids]])
    with torch.no_grad():
        wanted = model(input_ids=window, labels=window).loss.exp()
    assert compress.perplexity(model, tokenizer, [ids]) == pytest.approx(float(wanted), rel=1e-4)
    with pytest.raises(InputError, match="too short"):
        compress.perplexity(model, tokenizer, [])


def test_models_are_measured_before_and_after(folders, tmp_path, encoder):  # noqa: F811
    todo = [Run("compress", {"model": model, "size": "22kB"}) for model in ("multilingual-e5-small", "gemma3-270m")]
    assert runs.reproduce(todo, folders, tmp_path / "results") == []
    encoded, decoded = (record["figures"] for record in records.load(tmp_path / "results"))
    assert encoded["before"]["tatoeba"] == {"fin": 100.0}
    assert encoded["table"]["after"] < encoded["table"]["before"]
    assert decoded["after"]["perplexity"] != decoded["before"]["perplexity"] > 1
    assert decoded["after"]["languages"]["fin"] != decoded["before"]["languages"]["fin"] > 1

    (folders.models_dir / "multilingual-e5-small").unlink()
    parts = [Transformer(str(encoder)), Pooling(32, "mean"), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save(str(folders.models_dir / "multilingual-e5-small"))
    exported = Run("compress_onnx", {"model": "multilingual-e5-small", "size": "22kB"})
    assert runs.reproduce([exported], folders, tmp_path / "onnx") == []
    (record,) = records.load(tmp_path / "onnx")
    assert record["figures"]["after"]["tatoeba"] == {"fin": 100.0}
    assert record["figures"]["weights"]["after"] > record["figures"]["table"]["after"]  # the layers are in it


def test_a_frontier_has_every_way_in_its_bytes(folders, tmp_path):
    ways = {compress.SOURCE: "", "trimmed vocabulary": "0.006MB", compress.OURS: "0.022MB", "int2": ""}
    settings = [{"model": "multilingual-e5-small", "method": way, "size": size} for way, size in ways.items()]
    assert runs.reproduce([Run("frontier", each) for each in settings], folders, tmp_path / "results") == []
    source, few, ours, two = (record["figures"] for record in records.load(tmp_path / "results"))
    assert max(few["bytes"], two["bytes"]) <= 6_000 + 2 * 8 * 32 < source["bytes"]
    assert ours["bytes"] <= 22_000
    assert ours["bits"] == pytest.approx(16 * ours["bytes"] / source["bytes"])
    assert few["tatoeba"]["fin"] <= two["tatoeba"]["fin"] <= source["tatoeba"]["fin"] == 100.0


def test_rounding_errs_less_with_more_bits_and_offsets_reach_the_largest():
    table = np.random.default_rng(0).normal(3, size=(50, 64)).astype(np.float32)
    for ending in ("", ", offsets"):
        errors = [np.square(WAYS[f"int{bits}{ending}"](table, 0, np.ones(50))[0] - table).mean() for bits in (2, 3, 4)]
        assert all(before > 2 * after for before, after in pairwise(errors))
    rows, used = WAYS["int2, offsets"](table, 0, np.ones(50))
    assert used == 50 * (64 // 4 + 2 * (2 + 2))
    assert len(np.unique(rows[0, :32])) <= 4 >= len(np.unique(in_groups(table, 2)[0, :32]))
    np.testing.assert_allclose(rows[0, :32].max(), table[0, :32].max(), rtol=2e-3)


def test_trimming_keeps_the_rows_that_are_used():
    table = np.random.default_rng(0).normal(size=(500, 64)).astype(np.float32)
    rows, used = trimmed(table, 4 * 500 + 100 * (64 + 4), np.arange(500.0))
    assert used == 4 * 500 + 100 * (64 + 4)
    assert np.abs(rows[400:] - table[400:]).max() < 0.03
    np.testing.assert_allclose(rows[:400], np.broadcast_to(table[:400].mean(0), (400, 64)), rtol=1e-4, atol=1e-5)


def test_an_encoder_of_many_languages_is_distilled_and_measured(folders, monkeypatch, tmp_path):
    monkeypatch.setattr(encoder_distil, "CODED_FROM", 100)
    found = {"tatoeba": lambda encode, places: vectors.tatoeba(encode, places, ["fin"]), "STSB": ("en",)}
    for name, value in found.items():
        monkeypatch.setattr(f"benchmarks.subjects.sentence.{name}", value)
    folder = folders.data_dir / "multilingual"
    folder.mkdir()
    (folder / "de.txt").write_text("\n".join(texts(60, seed=2)) + "\n", "utf8")
    (folder / "de.drawn.txt").write_text("word1 word2\n", "utf8")
    settings = {"teacher": "multilingual-e5-small", "corpus": "multilingual", "seed": 0}
    todo = Run("encoder", {**settings, "size": "70kB", "steps": 3})
    assert runs.reproduce([todo], folders, tmp_path) == []
    figures = records.load(tmp_path)[0]["figures"]
    assert figures["bytes"] < 70_000
    assert figures["tatoeba"]["fin"] > 50  # of the same texts
    mean, _ = other_encoder("mean of multilingual-e5-small's table", folders)
    assert mean(["word1", "word1 word1"]).shape == (2, 32)
