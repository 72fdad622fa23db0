"""Words and their anchors, in a codebook, a model and a folder."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from ade.codebook import Codebook
from ade.configuration import CODEBOOK, Config
from ade.errors import InputError
from ade.folder import Saved
from ade.inspector import words
from ade.inspector.reading import Inspector
from ade.inspector.words import WordTable, inspect_words
from ade.model import model_of
from ade.trained_model import Classifier
from tests.conftest import ragged_codebook, untrained, word_tokenizer
from tests.models import coded_table, random_model


def animals_and_vehicles() -> Saved:
    """Anchor 0 is animals, anchor 1 vehicles; a bus is a little of an animal."""
    indices, weights = [0, 0, 0, 0, 1, 1, 0], [0.1, 0.1, 1.0, 0.9, 1.0, 0.8, -0.2]
    book = Codebook(np.eye(2, 4), indices, weights, [1, 1, 1, 1, 1, 2])
    return Saved(Config(kind=CODEBOOK), word_tokenizer(["cat", "dog", "car", "bus"]), book, {})


def test_a_words_anchors_heaviest_first():
    bus, cat = inspect_words(animals_and_vehicles(), ["bus", "cat"], nearest=2)
    assert (bus["word"], bus["token"]) == ("bus", "bus")
    assert [(use["anchor"], round(use["weight"], 3)) for use in bus["anchors"]] == [(1, 0.8), (0, -0.2)]
    assert [set(use["nearest"]) for use in bus["anchors"]] == [{"car", "bus"}, {"cat", "dog"}]
    assert cat["anchors"][0]["anchor"] == 0
    assert WordTable.of(animals_and_vehicles()).nearest([1], 4)[0][:2] == ["car", "bus"]
    with pytest.raises(InputError, match="makes no token"):
        inspect_words(animals_and_vehicles(), ["   "])
    with pytest.raises(InputError, match="no anchors"):
        WordTable.of(random_model(coded_table()))


def test_words_of_an_anchor_are_the_nearest_of_all(monkeypatch):
    names = ["".join(letters) for letters in product("abcdefghijklmnopqrstu", repeat=3)]  # 9,261
    monkeypatch.setattr(words, "BLOCK", 5)  # of 12 anchors
    saved = replace(ragged_codebook([2] * (len(names) + 2), dim=8), tokenizer=word_tokenizer(names))
    rows = saved.table.rows(np.arange(2, len(names) + 2))
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    nearest = WordTable.of(saved).nearest(np.arange(12), 5)
    for anchor, near in zip(saved.table.anchors, nearest, strict=True):
        expected = sorted((rows @ anchor).tolist(), reverse=True)[:5]
        assert [float(rows[names.index(word)] @ anchor) for word in near] == pytest.approx(expected, abs=2e-6)
    monkeypatch.setattr(words, "MAX_COSINES", 0)  # many anchors: the first words alone
    for near in WordTable.of(saved).nearest(np.arange(12), 5):
        assert max(map(names.index, near)) < words.MIN_WORDS


def test_the_pairs_of_a_model_compose_the_same_directions():
    saved = random_model()
    book = WordTable.of(saved).codebook
    np.testing.assert_allclose(np.linalg.norm(book.anchors, axis=1), 1, rtol=1e-5)
    ids = np.arange(saved.table.vocabulary)
    np.testing.assert_allclose(book.rows(ids) * saved.table.dim**0.5, saved.table.rows(ids), atol=1e-5)


def test_words_of_a_folder_and_in_a_text(codebook, topics, tmp_path, ade):
    classifier = Classifier(untrained(codebook, topics.names, heads=2))
    classifier.save(tmp_path / "model")
    codebook.save(tmp_path / "codebook")
    (bank,) = inspect_words(classifier, ["bank"], 2)
    (of_codebook,) = inspect_words(codebook, ["bank"], 2)
    assert [use["anchor"] for use in of_codebook["anchors"]] == [use["anchor"] for use in bank["anchors"]]
    assert inspect_words(tmp_path / "model", ["bank"], 2) == [bank]
    status, out, _ = ade("inspect", tmp_path / "model", "Bank", "--text", "the bank of the team", "--json")
    name, (bank,) = Inspector(classifier, 6).words_in("the bank of the team", ["Bank"])
    assert (status, json.loads(out)) == (0, {"adds_to": name, "words": [bank]})
    assert all(abs(use["adds"]) > 0 for use in bank["anchors"])
    status, out, _ = ade("inspect", tmp_path / "model", "bank", "--text", "the bank of the team")
    assert (status, f"What each anchor adds to {name}:" in out) == (0, True)
    status, _, err = ade("inspect", tmp_path / "codebook", "bank", "--text", "the bank")
    assert (status, err.count("\n"), "trained model" in err) == (2, 1, True)


def test_parameters_are_counted(codebook, topics, tmp_path, ade):
    saved = untrained(codebook, topics.names, heads=2, layers=2)
    saved.save(tmp_path / "model")
    status, out, _ = ade("inspect", tmp_path / "model", "--json")
    counts, model = json.loads(out)["parameters"], model_of(saved)
    layers = sum(parameter.numel() for parameter in model.ade.layers.parameters())
    assert (status, counts["layers"], counts["pairs"]) == (0, layers, len(codebook.table.indices))
    trained = sum(parameter.numel() for parameter in model.parameters())
    assert counts["total"] + counts["anchors"] + counts["pairs"] == trained
    status, out, _ = ade("inspect", tmp_path / "model")
    assert (status, f"{counts['total']:,}" in out) == (0, True)
