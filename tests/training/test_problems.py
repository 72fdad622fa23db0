"""Several labels, numbers, class weights: from rows to a folder and back, by every way of running a model."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION
from ade.data.tags import TaggedDataset
from ade.errors import InputError
from ade.evaluation import evaluate
from ade.folder import Saved
from ade.packing.format import Packing
from ade.settings import STRONG, Architecture
from ade.trained_model import Classifier, load
from ade.training.loop import fit_model
from tests.conftest import WORDS, topic_texts, untrained

QUICK = replace(STRONG, steps=200, batch_size=16, learning_rate=1e-2, token_dropout=0.1, device="cpu")
SHAPE = Architecture(heads=2)


def several(rows: int, seed: int) -> Dataset:
    """Two texts put together have the topics of both."""
    texts, labels = topic_texts(2 * rows, seed)
    names = tuple(sorted(WORDS))
    marks = np.zeros((rows, 3), dtype=bool)
    for i in range(rows):
        marks[i, [names.index(labels[2 * i]), names.index(labels[2 * i + 1])]] = True
    return Dataset([f"{texts[2 * i]} {texts[2 * i + 1]}" for i in range(rows)], marks, names)


def numbers(rows: int, seed: int) -> Dataset:
    """How much a text is about sport and not about money, far from zero."""
    texts, _ = topic_texts(2 * rows, seed)
    joined = [f"{texts[2 * i]} {texts[2 * i + 1]}" for i in range(rows)]
    count = [sum((w in WORDS["sport"]) - (w in WORDS["money"]) for w in text.split()) for text in joined]
    return Dataset(joined, 1000 + 50 * np.array(count, dtype=np.float32), ("value",))


def packed(codebook: Saved) -> Saved:
    return replace(codebook, table=replace(codebook.table, packing=Packing()))


def fit(start: Saved, data: Dataset, **changes) -> Classifier:
    return Classifier(fit_model(start, data, settings=replace(QUICK, **changes), architecture=SHAPE))


def test_several_labels_are_learned_and_come_back_from_a_folder(codebook, tmp_path):
    held = several(200, 1)
    texts = list(held.texts)
    model = fit(codebook, several(1000, 0))
    assert evaluate(model, held).micro_f1 > 0.85  # 0.69 without looking
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert (loaded.problem, loaded.predict(texts)) == (MULTI, model.predict(texts))
    probabilities = loaded.predict_proba(texts)
    for row, prediction in zip(probabilities, loaded.predict(texts), strict=True):
        assert prediction.label == [loaded.labels[i] for i in np.flatnonzero(row >= 0.5)]
        assert prediction.probability == [p for p in row.tolist() if p >= 0.5]
    assert not np.allclose(probabilities.sum(1), 1)
    answers = pipeline("text-classification", str(tmp_path / "model"), top_k=None)(texts[:5])
    for row, own in zip(answers, probabilities, strict=False):
        expected = dict(zip(model.labels, own.tolist(), strict=True))
        assert {each["label"]: each["score"] for each in row} == pytest.approx(expected, abs=1e-4)


def test_numbers_are_learned_as_they_are(codebook, tmp_path):
    held = numbers(200, 1)
    model = fit(codebook, numbers(1000, 0))
    assert evaluate(model, held).r2 > 0.7
    assert abs(model.scores(held.texts).mean() - held.labels.mean()) < 20
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert (loaded.problem, loaded.predict(held.texts)) == (REGRESSION, model.predict(held.texts))
    assert isinstance(loaded.predict(held.texts[0]).label, float)
    assert loaded.predict(held.texts[0]).probability is None
    with pytest.raises(InputError, match="has no probabilities"):
        loaded.predict_proba(["goal"])
    torch_model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    tokens = AutoTokenizer.from_pretrained(tmp_path / "model")(held.texts[0], return_tensors="pt")
    with torch.no_grad():
        value = torch_model(tokens["input_ids"], tokens["attention_mask"]).logits.item()
    assert value == pytest.approx(model.predict(held.texts[0]).label, rel=1e-4)


@pytest.mark.parametrize("bits", [0, 4])
def test_large_numbers_stay_numbers_packed_or_not(bits, codebook, tmp_path):
    data = numbers(300, 0)
    far = replace(data, labels=1e7 + 1e5 * (data.labels - 1000))
    start, shape = (packed(codebook), replace(SHAPE, layer_bits=bits)) if bits else (codebook, SHAPE)
    model = Classifier(fit_model(start, far, settings=replace(QUICK, steps=100), architecture=shape))
    assert model.saved.config.layer_bits == bits
    assert evaluate(model, far).r2 > 0.3
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").scores(far.texts), model.scores(far.texts))


def test_balanced_classes_help_the_rare_one(codebook, topics):
    rare = np.flatnonzero((topics.labels != 1) | (np.arange(len(topics)) % 12 == 0))
    settings = replace(QUICK, steps=60, learning_rate=2e-3, fit_to_data=False, lexicon=False)
    mean, weights = {}, {}
    for kind in ("none", "balanced"):
        saved = fit_model(codebook, topics.take(rare), topics, replace(settings, class_weights=kind), SHAPE)
        mean[kind] = Classifier(saved).predict_proba(topics.texts)[:, 1].mean()
        weights[kind] = saved.config.class_weights
    assert mean["balanced"] > 1.1 * mean["none"]  # after calibration
    assert weights["none"] is None
    assert weights["balanced"][1] > 3 * max(weights["balanced"][0], weights["balanced"][2])


def test_what_cannot_be_learned_is_refused(codebook, topics):
    flat = Dataset(["goal", "match"], np.array([1.0, 1.0], dtype=np.float32), ("value",))
    one_left = replace(flat, labels=np.array([1.0, 2.0], dtype=np.float32))  # after the validation split
    for data, changes, message in (
        (flat, {}, "numbers that differ"),
        (one_left, {}, "numbers that differ"),
        (numbers(20, 0), {"class_weights": "balanced"}, "numbers have none"),
        (numbers(100, 0), {"steps": 20, "learning_rate": 1e30}, "lower learning rate"),
        (TaggedDataset([], [], ("O",)), {}, "no rows"),
    ):
        with pytest.raises(InputError, match=message):
            fit(codebook, data, **changes)
    with pytest.raises(InputError, match="the dev rows for regression"):
        fit_model(codebook, topics, numbers(10, 0), settings=QUICK)
    with pytest.raises(InputError, match="the labels are of regression"):
        evaluate(Classifier(untrained(codebook, topics.names)), numbers(5, 0))


@pytest.mark.parametrize("problem", ["multi-label", "regression"])
def test_from_the_shell(problem, codebook, tmp_path, ade):
    codebook.save(tmp_path / "codebook")
    data, metric = (several, "micro_f1") if problem == "multi-label" else (numbers, "r2")
    (tmp_path / "data").mkdir()
    for split, rows in (("train", data(300, 0)), ("test", data(50, 1))):
        multi = problem == "multi-label"
        cells = ["|".join(np.array(rows.names)[row]) for row in rows.labels] if multi else rows.labels
        lines = [f"{text},{cell}" for text, cell in zip(rows.texts, cells, strict=True)]
        (tmp_path / "data" / f"{split}.csv").write_text("\n".join(["text,label", *lines]))
    chosen = ["--problem", problem, "--set", "steps=100", "--set", "learning_rate=0.005", "--device", "cpu", "--json"]
    status, out, err = ade(
        "train", tmp_path / "data", "--from", tmp_path / "codebook", "--out", tmp_path / "model", *chosen
    )
    assert status == 0, err
    assert json.loads(out)["test"][metric] > 0.4
    status, out, _ = ade("evaluate", tmp_path / "model", tmp_path / "data")
    assert (status, metric.replace("_f1", " F1").replace("r2", "R2") in out) == (0, True)
    (tmp_path / "texts.txt").write_text("goal match team bank market\nthe a of\n")
    status, out, _ = ade("predict", tmp_path / "model", tmp_path / "texts.txt")
    first, _ = out.splitlines()
    assert 500 < float(first) < 1500 if problem == "regression" else first.split("\t")[0] in ("money|sport", "sport")
