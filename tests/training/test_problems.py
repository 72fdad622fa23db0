"""Several labels, numbers, class weights: from rows to a folder and back, by every way of running a model."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from ade.classifier import Classifier
from ade.data.conll import TaggedDataset
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.errors import InputError
from ade.evaluation import compare_multi_label, compare_numbers, evaluate
from ade.model import AdeForSequenceClassification
from ade.packing.format import Packing
from ade.runtime.runtime import Runtime
from ade.settings import STRONG, Architecture
from ade.training.loop import fit_model
from tests.conftest import WORDS, ragged_codebook, topic_texts
from tests.test_paper import small_model

QUICK = replace(STRONG, steps=200, batch_size=16, learning_rate=1e-2, token_dropout=0.1, device="cpu")
SHAPE = Architecture(attend="tokens", heads=2)


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


@pytest.fixture(scope="module")
def marked(codebook):
    return fit_model(codebook, several(1000, 0), settings=QUICK, architecture=SHAPE)


@pytest.fixture(scope="module")
def valued(codebook):
    return fit_model(codebook, numbers(1000, 0), settings=QUICK, architecture=SHAPE)


def test_several_labels_are_learned_and_come_back_from_a_folder(marked, tmp_path):
    held = several(200, 1)
    assert evaluate(marked, held).micro_f1 > 0.85  # 0.69 without looking
    marked.save(tmp_path / "model")
    texts = list(held.texts)
    for loaded in (Classifier.load(tmp_path / "model"), Runtime.load(tmp_path / "model")):
        assert loaded.problem == MULTI
        assert loaded.predict(texts) == marked.predict(texts)
        chances = loaded.predict_proba(texts)
        assert [[loaded.names[i] for i in np.flatnonzero(row >= 0.5)] for row in chances] == loaded.predict(texts)
        assert not np.allclose(chances.sum(1), 1)
        first = next(loaded.stream(iter(texts)))
        assert first.label == loaded.predict(texts[0])
        assert first.probability == pytest.approx([p for p in chances[0] if p >= 0.5], abs=1e-6)
    said = pipeline("text-classification", str(tmp_path / "model"), top_k=None)(texts[:5])
    for row, own in zip(said, marked.predict_proba(texts[:5]), strict=True):
        assert {each["label"]: pytest.approx(each["score"], abs=1e-4) for each in row} == dict(
            zip(marked.names, own, strict=True)
        )


def test_numbers_are_learned_as_they_are(valued, tmp_path):
    held = numbers(200, 1)
    found = evaluate(valued, held)
    assert found.r2 > 0.7
    valued.save(tmp_path / "model")
    runtime = Runtime.load(tmp_path / "model")
    assert runtime.problem == REGRESSION
    assert np.allclose(runtime.predict(held.texts), valued.predict(held.texts), rtol=1e-5)
    assert abs(np.mean(runtime.predict(held.texts)) - held.labels.mean()) < 20
    assert isinstance(runtime.predict(held.texts[0]), float)
    assert next(runtime.stream([held.texts[0]])) == (pytest.approx(valued.predict(held.texts[0]), rel=1e-5), None)
    with pytest.raises(InputError, match="has no probabilities"):
        runtime.predict_proba(["goal"])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    tokens = AutoTokenizer.from_pretrained(tmp_path / "model")(held.texts[0], return_tensors="pt")
    with torch.no_grad():
        value = model(tokens["input_ids"], tokens["attention_mask"]).logits.item()
    assert value == pytest.approx(valued.predict(held.texts[0]), rel=1e-4)


def test_a_packed_number_is_what_was_trained(codebook):
    book = replace(codebook, packing=Packing())
    assert evaluate(fit_model(book, numbers(1000, 0), settings=QUICK, architecture=SHAPE), numbers(200, 1)).r2 > 0.6


@pytest.mark.parametrize("bits", [0, 4, 8, 16])
def test_large_numbers_stay_numbers(bits, codebook, tmp_path):
    data = numbers(300, 0)
    far = replace(data, labels=1e7 + 1e5 * (data.labels - 1000))
    book = replace(codebook, packing=Packing() if bits else None)
    shape = replace(SHAPE, layer_bits=bits or 8)
    made = fit_model(book, far, settings=replace(QUICK, steps=100), architecture=shape)
    assert evaluate(made, far).r2 > 0.3
    made.save(tmp_path / "model")
    assert np.allclose(Runtime.load(tmp_path / "model").predict(far.texts), made.predict(far.texts), rtol=1e-4)


def test_losses_are_those_of_the_problem():
    ids, mask = torch.tensor([[3, 1, 5, 2], [4, 1, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    weight = torch.tensor([0.5, 2.0, 1.0])
    marks, classes = torch.tensor([[1.0, 0, 1], [0, 0, 1]]), torch.tensor([2, 0])

    def model_of(**more):
        model = AdeForSequenceClassification.from_codebook(ragged_codebook([1, 3, 2, 4, 1, 5]), "abc", SHAPE, **more)
        return model.eval()

    for problem, labels, expected in (
        (SINGLE, classes, lambda z: F.cross_entropy(z, classes, weight)),
        (SINGLE, marks.softmax(1), lambda z: F.cross_entropy(z, marks.softmax(1), weight)),
        (MULTI, marks, lambda z: F.binary_cross_entropy_with_logits(z, marks, pos_weight=weight)),
    ):
        model = model_of(problem_type=problem, class_weights=weight.tolist())
        found = model(ids, mask, labels)
        assert found.loss.item() == pytest.approx(expected(found.logits).item(), rel=1e-5)
    for labels, problem in ((classes, SINGLE), (marks, MULTI)):  # nobody said: as transformers guesses
        model = model_of()
        assert model(ids, mask, labels).loss > 0
        assert model.config.problem_type == problem
    single = AdeForSequenceClassification.from_codebook(ragged_codebook([1, 3, 2, 4, 1, 5]), ["value"], SHAPE).eval()
    found = single(ids, mask, torch.tensor([1.5, -2.0]))
    assert found.loss.item() == pytest.approx(((found.logits[:, 0] - torch.tensor([1.5, -2.0])) ** 2).mean().item())
    assert single.config.problem_type == REGRESSION


def test_class_weights_follow_the_config():
    ids, labels = torch.tensor([[3, 1]]), torch.tensor([1])
    weights = [0.5, 2.0, 1.0]
    model = AdeForSequenceClassification.from_codebook(
        ragged_codebook([1, 3, 2, 4]), "abc", SHAPE, problem_type=SINGLE, class_weights=weights
    ).eval()
    mixed = torch.cat([ids, ids]), None, torch.tensor([0, 1])
    with torch.inference_mode():
        first = model(*mixed).loss.item()
    model.config.class_weights = [3.0, 0.1, 1.0]
    other = model(*mixed).loss
    other.backward()  # what was made in inference mode is no hindrance
    assert other.item() != pytest.approx(first)
    model.config.class_weights = [1.0, 2.0]  # of a head this is not
    plain = F.cross_entropy(model(ids).logits, labels)
    assert model(ids, labels=labels).loss.item() == pytest.approx(plain.item(), rel=1e-5)


def test_balanced_classes_help_the_rare_one(codebook, topics):
    rare = np.flatnonzero((topics.labels != 1) | (np.arange(len(topics)) % 12 == 0))
    settings = replace(QUICK, steps=60, learning_rate=2e-3, fit_to_data=False, lexicon=False)
    said = {}
    for kind in ("none", "balanced"):
        found = fit_model(codebook, topics.take(rare), topics, replace(settings, class_weights=kind), SHAPE)
        said[kind] = (found.predict_proba(topics.texts)[:, 1]).mean()
        weights = found.model.config.class_weights
        assert (weights is None) == (kind == "none")
    assert said["balanced"] > 1.2 * said["none"]
    assert weights[1] > 3 * max(weights[0], weights[2])
    with pytest.raises(InputError, match="none or balanced"):
        replace(QUICK, class_weights="some")


def test_what_cannot_be_learned_is_refused(codebook, topics):
    flat = Dataset(["goal", "match"], np.array([1.0, 1.0], dtype=np.float32), ("value",))
    with pytest.raises(InputError, match="numbers that differ"):
        fit_model(codebook, flat, settings=QUICK)
    with pytest.raises(InputError, match="numbers that differ"):  # once one is held back
        fit_model(codebook, replace(flat, labels=np.array([1.0, 2.0], dtype=np.float32)), settings=QUICK)
    with pytest.raises(InputError, match="numbers have none"):
        fit_model(codebook, numbers(20, 0), settings=replace(QUICK, class_weights="balanced"))
    with pytest.raises(InputError, match="lower learning rate"):
        fit_model(codebook, numbers(100, 0), settings=replace(QUICK, steps=20, learning_rate=1e30), architecture=SHAPE)
    with pytest.raises(InputError, match="no rows"):
        fit_model(codebook, TaggedDataset([], [], ("O",)), settings=QUICK)
    with pytest.raises(InputError, match="the dev rows for regression"):
        fit_model(codebook, topics, numbers(10, 0), settings=QUICK)
    classifier = Classifier(small_model(), ragged_codebook([1, 3, 2, 4, 1, 5]).tokenizer)
    with pytest.raises(InputError, match="the labels are of regression"):
        evaluate(classifier, numbers(5, 0))


def test_a_run_on_numbers_resumes_where_it_stopped(codebook, tmp_path):
    data, settings = numbers(200, 0), replace(QUICK, steps=60)

    class Stop(Exception):
        pass

    def stop(what: str, done: int, total: int, figures: object) -> None:
        if done >= 33:
            raise Stop

    whole = fit_model(codebook, data, settings=settings, architecture=SHAPE, out=tmp_path / "whole")
    with pytest.raises(Stop):
        fit_model(codebook, data, settings=settings, architecture=SHAPE, out=tmp_path / "cut", report=stop)
    resumed = fit_model(codebook, data, settings=settings, architecture=SHAPE, out=tmp_path / "cut", existing="resume")
    assert np.allclose(resumed.predict(data.texts), whole.predict(data.texts), rtol=1e-5)
    assert "dev_r2" in json.loads((tmp_path / "cut" / "training.json").read_text())


def test_figures_are_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    truth, predicted = generator.random((40, 5)) < 0.3, generator.random((40, 5)) < 0.4
    found = compare_multi_label(truth, predicted)
    assert found.micro_f1 == pytest.approx(metrics.f1_score(truth, predicted, average="micro"))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(truth, predicted, average="macro"))
    assert found.precision == pytest.approx(metrics.precision_score(truth, predicted, average="micro"))
    assert found.recall == pytest.approx(metrics.recall_score(truth, predicted, average="micro"))
    assert found.exact == pytest.approx(metrics.accuracy_score(truth, predicted))
    from scipy import stats

    true, near = generator.integers(0, 6, 50).astype(float), generator.integers(0, 9, 50).astype(float)
    numbered = compare_numbers(true, near)
    assert numbered.r2 == pytest.approx(metrics.r2_score(true, near))
    assert numbered.pearson == pytest.approx(stats.pearsonr(true, near)[0])
    assert numbered.spearman == pytest.approx(stats.spearmanr(true, near)[0])
    assert numbered.mean_error == pytest.approx(metrics.mean_absolute_error(true, near))
    assert numbered.root_mean_square_error == pytest.approx(metrics.root_mean_squared_error(true, near))
    assert compare_numbers(true, np.ones(50)).pearson is None


@pytest.mark.parametrize("problem", ["multi-label", "regression"])
def test_from_the_shell(problem, codebook, tmp_path, ade):
    codebook.save(tmp_path / "codebook")
    data = several if problem == "multi-label" else numbers
    (tmp_path / "data").mkdir()
    for split, seed in (("train", 0), ("test", 1)):
        rows = data(300 if split == "train" else 50, seed)
        shown = (
            ["|".join(np.array(rows.names)[row]) for row in rows.labels] if problem == "multi-label" else rows.labels
        )
        lines = [f"{text},{label}" for text, label in zip(rows.texts, shown, strict=True)]
        (tmp_path / "data" / f"{split}.csv").write_text("\n".join(["text,label", *lines]))
    flags = ["--problem", problem, "--steps", 100, "--learning-rate", 0.005, "--attend", "tokens", "--device", "cpu"]
    made = ["train", "--codebook", tmp_path / "codebook", "--data", tmp_path / "data", "--out", tmp_path / "model"]
    status, out, err = ade(*made, *flags, "--json")
    assert status == 0, err
    figure = "micro_f1" if problem == "multi-label" else "r2"
    assert json.loads(out)["test"][figure] > 0.4
    status, out, _ = ade("evaluate", tmp_path / "model", "--data", tmp_path / "data")
    assert status == 0
    assert ("micro F1" if problem == "multi-label" else "R2") in out
    (tmp_path / "texts.txt").write_text("goal match team bank market\nthe a of\n")
    status, out, _ = ade("predict", tmp_path / "model", tmp_path / "texts.txt")
    lines = out.splitlines()
    assert len(lines) == 2
    if problem == "regression":
        assert 500 < float(lines[0]) < 1500
    else:
        assert lines[0].split("\t")[0] in ("money|sport", "money", "sport")
    status, out, _ = ade("predict", tmp_path / "model", tmp_path / "texts.txt", "--json")
    assert len(json.loads(out)["predictions"]) == 2
