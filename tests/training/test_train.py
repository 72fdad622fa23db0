"""`ade.train`: from whatever holds texts and labels to a model, in one call; and from its folder the same scores."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ade
from ade.errors import InputError
from ade.folder import nbytes_of
from ade.packing.format import Packing
from ade.settings import DistillationSettings
from tests.conftest import topic_texts

QUICK = {"steps": 60, "batch_size": 16, "learning_rate": 0.01, "device": "cpu", "progress": False}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path_factory.mktemp("cache")))


def same(one: ade.Classifier, other: ade.Classifier) -> bool:
    texts = topic_texts(50, 5)[0]
    return np.array_equal(one.scores(texts), other.scores(texts))


def test_files_lists_and_frames_train_the_same_model(codebook, tmp_path):
    texts, labels = topic_texts(200, 0)
    frame = pd.DataFrame({"review": texts, "topic": labels})
    frame.to_csv(tmp_path / "reviews.csv", index=False)
    given = (tmp_path / "reviews.csv"), frame, list(zip(texts, labels, strict=True))
    model = ade.train(texts, labels, start=codebook, **QUICK)
    assert isinstance(model, ade.Classifier)
    for data in given:
        assert same(model, ade.train(data, start=codebook, **QUICK))
    assert ade.evaluate(model, *topic_texts(100, 1)).accuracy > 0.8
    assert ade.evaluate(model, frame).n == 200


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("lexicon", [True, False])
def test_what_is_trained_loaded_and_pickled_gives_the_same_scores(packed, lexicon, codebook, tmp_path):
    """Bit for bit."""
    start = replace(codebook, table=replace(codebook.table, packing=Packing())) if packed else codebook
    model = ade.train(*topic_texts(300, 0), start=start, out=tmp_path / "trained", **QUICK, lexicon=lexicon)
    assert (model.saved.packed, model.saved.lexicon is not None) == (packed, lexicon)
    model.save(tmp_path / "saved")
    files = [path.name for path in (tmp_path / "saved").iterdir()]
    for folder in (tmp_path / "trained", tmp_path / "saved"):
        assert same(model, ade.load(folder))
    for name in files:
        assert (tmp_path / "trained" / name).read_bytes() == (tmp_path / "saved" / name).read_bytes()

    assert same(model, pickle.loads(pickle.dumps(model)))


@pytest.mark.parametrize("labels", [[3, 10, -1], [True, False], [0.5, 2.0], ["a,b", "c\nd"], ["1", "01"]])
def test_labels_come_back_as_they_were_given(labels, codebook, tmp_path):
    texts, topics = topic_texts(200, 0)
    names = sorted(set(topics))
    given = [labels[names.index(topic) % len(labels)] for topic in topics]
    problem = "single-label"  # which decimals are not, unless they are said to be
    model = ade.train(texts, given, problem=problem, start=codebook, out=tmp_path / "model", **QUICK)
    for each in (model, ade.load(tmp_path / "model")):
        predicted = [prediction.label for prediction in each.predict(texts)]
        assert {type(label) for label in predicted} == {type(labels[0])}
        assert set(predicted) <= set(labels)
        assert set(each.labels) == set(labels)
        assert each.predict(texts[0]).label == predicted[0]
        assert np.mean([one == other for one, other in zip(predicted, given, strict=True)]) > 0.8
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["label_type"] == type(labels[0]).__name__
    assert all(isinstance(name, str) for name in config["id2label"].values())


def test_several_labels_and_numbers_come_back_as_they_were_given(codebook):
    texts, topics = topic_texts(200, 0)
    model = ade.train(texts, [[ord(topic[1]), 0] for topic in topics], start=codebook, **QUICK)
    assert all(isinstance(label, int) for labels, _ in model.predict(texts[:5]) for label in labels)
    model = ade.train(texts, [ord(topic[1]) for topic in topics], start=codebook, problem="regression", **QUICK)
    assert isinstance(model.predict(texts[0]).label, float)


def test_a_teacher_is_distilled_once_and_found_by_its_content(teacher, teacher_folder, monkeypatch):
    data = topic_texts(100, 0)
    first = ade.train(*data, teacher=teacher_folder, **QUICK | {"steps": 3}, train_anchors=False)
    monkeypatch.setattr("ade.training.start.distill", lambda *_, **__: pytest.fail("distilled again"))
    again = ade.train(*data, teacher=teacher_folder, **QUICK | {"steps": 3}, train_anchors=False)
    assert same(first, again)
    with pytest.raises(pytest.fail.Exception, match="distilled again"):  # another table
        ade.train(*data, teacher=teacher, **QUICK)


def test_the_paper_begins_with_the_embedded_table_and_all_else_with_the_encoder(monkeypatch):
    small = DistillationSettings(anchors=16, pairs=2, rounds=1)
    monkeypatch.setattr("ade.training.start.DistillationSettings", lambda: small)
    texts, labels = topic_texts(60, 0)
    assert ade.train(texts, labels, progress=False).metadata["teacher"] == "all-MiniLM-L6-v2"
    for more in ({"preset": "paper"}, {"attend": "anchors"}):
        model = ade.train(texts, labels, steps=3, device="cpu", progress=False, **more)
        assert model.metadata["teacher"] == "wordllama"


def test_layers_are_trained_further_where_that_is_better():
    texts, labels = topic_texts(200, 0)
    noisy = [name if i % 5 else "sport" for i, name in enumerate(labels)]
    fitted = ade.train(texts, noisy, progress=False)
    english = ade.load("english").saved
    for name in ("sat.projection.weight", "norm.weight"):
        np.testing.assert_array_equal(fitted.saved.layers[name], english.layers[name])
    further = ade.train(texts, noisy, steps=2, learning_rate=1e-7, device="cpu", progress=False)
    np.testing.assert_allclose(further.scores(texts[:20]), fitted.scores(texts[:20]), atol=1e-3)  # it was no better
    assert further.metadata["kept"] == "fits"


def test_a_classifier_of_the_same_labels_goes_on(tmp_path):
    texts, labels = topic_texts(120, 0)
    first = ade.train(texts, labels, progress=False)
    first.save(tmp_path / "first")
    again = ade.train(
        texts, labels, start=tmp_path / "first", steps=1, learning_rate=1e-7, device="cpu", progress=False
    )
    assert again.predict(texts[:30])[0].label == first.predict(texts[:30])[0].label
    other = ade.train(texts, [label.upper() for label in labels], start=tmp_path / "first", progress=False)
    assert set(other.labels) == {label.upper() for label in labels}


@pytest.mark.parametrize("layers", [1, 2])
def test_a_size_is_that_of_the_folder(layers, teacher, tmp_path):
    chosen = {"size": "30kB", "layers": layers, "teacher": teacher, "out": tmp_path / "model"}
    model = ade.train(*topic_texts(200, 0), **QUICK | chosen)
    assert 0 < nbytes_of(tmp_path / "model") <= 30_000
    assert same(model, ade.load(tmp_path / "model"))
    assert model.saved.packed


def test_validation_rows_may_be_given(codebook):
    texts, labels = topic_texts(100, 0)
    validation = list(zip(*topic_texts(30, 1), strict=True))
    model = ade.train(texts, labels, start=codebook, validation=validation, **QUICK)
    assert (model.metadata["dev"]["n"], model.metadata["rows"]) == (30, 100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rat": 0.1}, "there is no setting 'learning_rat'; do you mean learning_rate?"),
        ({"steps": 3, "epochs": 1}, "give one of them"),
        ({"preset": "weak"}, "preset must be one of strong, paper"),
        ({"problem": "both"}, "problem must be one of single-label, multi-label, regression"),
        ({"unlabelled": ["a"]}, "distill_from"),
        ({"teacher": "wordllama"}, "--from names a model"),
        ({"size": "1M"}, "is not a size"),
        ({"size": "1MB", "layer_bits": 4}, "layer_bits"),
    ],
)
def test_what_does_not_fit_is_said(options, message, codebook):
    with pytest.raises(InputError, match=message):
        ade.train(["a", "b"] * 10, ["x", "y"] * 10, start=codebook, progress=False, **options)


def test_nothing_is_computed_for_a_folder_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("precious")
    monkeypatch.setattr("ade.training.train.fit_convex", lambda *_, **__: pytest.fail("fitted"))
    with pytest.raises(InputError, match="something else"):
        ade.train(*topic_texts(60, 0), out=Path(tmp_path), progress=False)
