"""`ade.train`: from whatever holds texts and labels to a model, in one call."""

import json

import numpy as np
import pandas as pd
import pytest

import ade
from ade.cli.sizes import folder_sizes
from ade.errors import InputError
from ade.settings import DistillationSettings
from tests.conftest import topic_texts

QUICK = {"steps": 60, "batch_size": 16, "learning_rate": 0.01, "device": "cpu", "progress": False}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path_factory.mktemp("cache")))


def _weights(model):
    return {name: tensor.numpy() for name, tensor in model.model.state_dict().items()}


def _same(one, other):
    first, second = _weights(one), _weights(other)
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_files_lists_and_frames_train_the_same_model(codebook, tmp_path):
    texts, labels = topic_texts(200, 0)
    frame = pd.DataFrame({"review": texts, "topic": labels})
    frame.to_csv(tmp_path / "reviews.csv", index=False)
    models = [
        ade.train(texts, labels, codebook=codebook, **QUICK),
        ade.train(tmp_path / "reviews.csv", codebook=codebook, **QUICK),
        ade.train(frame, codebook=codebook, **QUICK),
        ade.train(list(zip(texts, labels, strict=True)), codebook=codebook, **QUICK),
    ]
    assert isinstance(models[0], ade.Classifier)
    assert all(_same(models[0], other) for other in models[1:])
    assert ade.evaluate(models[0], *topic_texts(100, 1)).accuracy > 0.8
    assert ade.evaluate(models[0], frame).n == 200


@pytest.mark.parametrize("labels", [[3, 10, -1], [True, False], [0.5, 2.0], ["a,b", "c\nd"], ["1", "01"]])
def test_labels_come_back_as_they_were_given(labels, codebook, tmp_path):
    texts, topics = topic_texts(200, 0)
    names = sorted(set(topics))
    given = [labels[names.index(topic) % len(labels)] for topic in topics]
    model = ade.train(texts, given, codebook=codebook, out=tmp_path / "model", **QUICK)
    for each in (model, ade.load(tmp_path / "model"), ade.Classifier.from_pretrained(tmp_path / "model", "cpu")):
        found = each.predict(texts)
        assert {type(label) for label in found} <= {type(labels[0])}
        assert set(found) <= set(labels)
        assert set(each.labels) == set(labels)
        assert all(isinstance(name, str) for name in each.names)
        assert next(each.stream(texts)).label == found[0]
        assert np.mean([one == other for one, other in zip(found, given, strict=True)]) > 0.8


def test_several_labels_come_back_as_they_were_given(codebook):
    texts, topics = topic_texts(200, 0)
    model = ade.train(texts, [[ord(topic[1]), 0] for topic in topics], codebook=codebook, **QUICK)
    assert all(isinstance(label, int) for labels in model.predict(texts[:5]) for label in labels)


def test_a_teacher_is_distilled_once_and_found_by_its_content(teacher, teacher_folder, codebook, monkeypatch):
    data = topic_texts(100, 0)
    first = ade.train(*data, teacher=teacher_folder, **QUICK | {"steps": 3}, train_anchors=False)
    monkeypatch.setattr("ade.training.codebooks.distill", lambda *_, **__: pytest.fail("distilled again"))
    again = ade.train(*data, teacher=teacher_folder, **QUICK | {"steps": 3}, train_anchors=False)
    assert _same(first, again)
    with pytest.raises(pytest.fail.Exception, match="distilled again"):  # another table
        ade.train(*data, teacher=teacher, **QUICK)


def test_without_a_teacher_the_embedded_one_is_taken(monkeypatch):
    small = DistillationSettings(anchors=16, pairs=2, rounds=1)
    monkeypatch.setattr("ade.training.codebooks._default_settings", lambda tokens: small)
    model = ade.train(*topic_texts(60, 0), **QUICK | {"steps": 3})
    assert model.model.config.about["teacher"] == "wordllama"


def test_a_size_is_that_of_the_folder(tmp_path):
    texts, labels = topic_texts(200, 0)
    model = ade.train(texts, labels, size="250kB", out=tmp_path / "model", **QUICK)
    assert model.model.config.packing is not None
    assert folder_sizes(tmp_path / "model")["bytes"] <= 250_000
    assert ade.load(tmp_path / "model").predict(texts) == model.predict(texts)


def test_validation_rows_may_be_given(codebook, tmp_path):
    texts, labels = topic_texts(100, 0)
    model = ade.train(texts, labels, codebook=codebook, validation=list(zip(*topic_texts(30, 1), strict=True)), **QUICK)
    assert model.model.config.about["dev"]["n"] == 30
    assert model.model.config.about["rows"] == 100


def test_models_are_saved_and_loaded(codebook, tmp_path):
    texts, labels = topic_texts(100, 0)
    model = ade.train(texts, labels, codebook=codebook, **QUICK)
    model.save(tmp_path / "model")
    assert ade.load(str(tmp_path / "model")).predict(texts) == model.predict(texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rat": 0.1}, "there is no setting 'learning_rat'; do you mean learning_rate?"),
        ({"steps": 3, "epochs": 1}, "give one of them"),
        ({"preset": "weak"}, "preset must be one of strong, paper"),
        ({"problem": "both"}, "problem must be one of single-label, multi-label, regression"),
        ({"unlabelled": ["a"]}, "distill_from"),
        ({"teacher": "wordllama"}, "--codebook is used as it is"),
        ({"size": "1MB"}, "--size needs a teacher"),
    ],
)
def test_what_does_not_fit_is_said(options, message, codebook):
    with pytest.raises(InputError, match=message):
        ade.train(["a", "b"] * 10, ["x", "y"] * 10, codebook=codebook, **options)


def test_a_size_does_not_go_with_what_it_chooses(teacher):
    for options, message in (
        ({"size": "1M"}, "is not a size"),
        ({"size": "1MB", "layer_bits": 4}, "layer_bits"),
        ({"size": "1MB", "layers": 2}, "leave out --layers"),
    ):
        with pytest.raises(InputError, match=message):
            ade.train(["a", "b"] * 10, ["x", "y"] * 10, teacher=teacher, **options)


def test_regression_by_its_name(codebook):
    texts, topics = topic_texts(200, 0)
    model = ade.train(texts, [ord(topic[1]) for topic in topics], codebook=codebook, problem="regression", **QUICK)
    assert isinstance(model.predict(texts[0]), float)


def test_progress_can_be_had_or_turned_off(codebook, capsys, monkeypatch):
    monkeypatch.delenv("ADE_PROGRESS")
    monkeypatch.setattr("ade.cli.display.SECONDS", 0.0)
    data, quick = topic_texts(60, 0), {**QUICK, "steps": 3}
    seen = []
    ade.train(*data, codebook=codebook, **quick | {"progress": lambda *given: seen.append(given[0])})
    ade.train(*data, codebook=codebook, **quick | {"progress": False})
    assert capsys.readouterr() == ("", "")
    assert "train" in seen
    ade.train(*data, codebook=codebook, **quick | {"progress": None})
    out, lines = capsys.readouterr()
    assert out == ""
    assert any(line.startswith("train 3/3 loss") for line in lines.splitlines())


def test_the_type_of_labels_is_in_the_config(codebook, tmp_path):
    ade.train(["goal", "bank"] * 20, [1, 2] * 20, codebook=codebook, out=tmp_path / "m", **QUICK | {"steps": 2})
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (config["label_type"], config["id2label"]) == ("int", {"0": "1", "1": "2"})
