"""The lexicon in training: it lowers the validation loss or is refused, keeps what pays, and reads whole texts."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from ade.classifier import predict_logits
from ade.data.batches import Encoded
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.tokenize import tokenize
from ade.lexicon import keys_of
from ade.runtime.runtime import Runtime
from ade.settings import STRONG, Architecture
from ade.training import lexicon_fit
from ade.training.lexicon_fit import (
    MIN_TEXTS,
    Fitted,
    count_entries,
    fit_lexicon,
    minimise,
    sampled,
)
from ade.training.lexicon_loss import TOLERANCE, Blend, Objective, Ragged, Validation
from ade.training.loop import fit_model
from tests.conftest import WORDS, topic_texts

CPU = torch.device("cpu")
NAMES = sorted(WORDS)
NUMBERS = {"sport": -1.0, "money": 0.5, "space": 2.0}  # of regression; money is the mean


def tokens(tokenizer, texts: list[str]) -> Ragged:
    return Ragged(*tokenize(tokenizer, texts, 10_000))


def test_of_very_many_tokens_a_sample_is_taken():
    offsets = np.array([0, 3, 4, 6, 10, 12, 20])
    texts = Ragged(np.arange(20, dtype=np.int32), offsets)
    targets = np.arange(6)
    assert sampled(texts, targets, 20) == (texts, targets)
    some, kept = sampled(texts, targets, 10)
    assert len(kept) == 3
    for row, start, end in zip(kept, some.offsets, some.offsets[1:], strict=False):
        assert some.ids[start:end].tolist() == list(range(offsets[row], offsets[row + 1]))
    assert np.array_equal(sampled(texts, targets, 10)[1], kept)  # the same sample again


def labels_of(problem: str, labels: list[str], texts: list[str]) -> np.ndarray:
    """The topic as a class; the topic and whether 'the' occurs as several labels; or a number that depends on both."""
    has_the = np.array(["the" in text.split() for text in texts])
    topic = np.array([NAMES.index(label) for label in labels])
    if problem == SINGLE:
        return topic
    if problem == MULTI:
        return np.column_stack([np.eye(3, dtype=bool)[topic], has_the])
    return (np.array([NUMBERS[label] for label in labels]) + 0.3 * has_the).astype(np.float32)


def weak_logits(problem: str, labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Scores of a model that has learned something, with much noise."""
    noise = np.random.default_rng(seed).standard_normal((len(labels), 1 if labels.ndim == 1 else labels.shape[1]))
    if problem == REGRESSION:
        return (labels[:, None] + noise).astype(np.float32)
    true = labels if problem == MULTI else np.eye(3)[labels]
    return (true * 2.0 - 1 + np.random.default_rng(seed).standard_normal(true.shape)).astype(np.float32)


def base_logits(problem: str, labels: np.ndarray, rows: int) -> np.ndarray:
    """Scores of a model that knows how frequent the labels are, and nothing of the texts."""
    if problem == REGRESSION:
        scores = labels.mean(keepdims=True)
    elif problem == MULTI:
        scores = np.log(labels.mean(0) / (1 - labels.mean(0)))
    else:
        scores = np.log(np.bincount(labels) / len(labels))
    return np.tile(scores, (rows, 1)).astype(np.float32)


def fit(tokenizer, problem: str, random: bool = False, dev_rows: int = 150, **more) -> tuple[Fitted | None, Validation]:
    """A lexicon beside a weak model; with `random`, on shuffled labels beside a model of their frequencies."""
    texts, names = topic_texts(400, 0)
    targets = labels_of(problem, names, texts)
    dev_texts, dev_names = topic_texts(dev_rows, 1)
    dev_labels = labels_of(problem, dev_names, dev_texts)
    logits = weak_logits(problem, dev_labels)
    if random:
        shuffle = np.random.default_rng(0).permutation
        targets, dev_labels = shuffle(targets), shuffle(dev_labels)
        logits = base_logits(problem, targets, len(dev_labels))
    validation = Validation(tokens(tokenizer, dev_texts), dev_labels, logits)
    vocabulary = tokenizer.get_vocab_size()
    return fit_lexicon(tokens(tokenizer, texts), targets, problem, validation, vocabulary, CPU, **more), validation


def blend_of(problem: str, validation: Validation) -> Blend:
    return Blend(validation, Objective.of(validation.labels, problem, None, CPU))


@pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])
def test_it_lowers_the_validation_loss(problem, teacher):
    fitted, validation = fit(teacher.tokenizer, problem)
    assert fitted is not None
    blend = blend_of(problem, validation)
    assert fitted.loss_without == pytest.approx(blend.loss_of_sum(validation.logits))

    # What is said of the loss is true of the lexicon as it is stored, by the plain formula.
    combined = fitted.model_weight * validation.logits + fitted.lexicon().logits(*validation.texts)
    assert fitted.loss == pytest.approx(blend.loss_of_sum(combined), rel=1e-5)
    assert fitted.loss < 0.6 * fitted.loss_without
    if problem == REGRESSION:
        assert fitted.weight == pytest.approx(1 - fitted.model_weight)
        assert 0 < fitted.model_weight < 0.5  # words say more than the noisy model
        error = np.square(combined[:, 0] - validation.labels).mean() / 2
        assert fitted.loss == pytest.approx(error, rel=1e-4)
    else:
        assert fitted.model_weight == 1


@pytest.mark.parametrize("dev_rows", [30, 100, 1000])
@pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])
def test_random_labels_have_none(problem, dev_rows, teacher):
    fitted, _ = fit(teacher.tokenizer, problem, random=True, dev_rows=dev_rows)
    assert fitted is None


@pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])
def test_rows_that_were_held_back_are_fitted_in_the_end(problem, teacher):
    apart, validation = fit(teacher.tokenizer, problem)
    fitted, _ = fit(teacher.tokenizer, problem, held_back=True)
    np.testing.assert_array_equal(fitted.lexicon().keys, apart.lexicon().keys)  # the choices are the same
    assert fitted.weight == apart.weight

    # What is said of the validation rows is from before they were fitted: without packing, so about the same.
    assert fitted.loss == pytest.approx(apart.loss, abs=0.02 * apart.loss_without)
    blend = blend_of(problem, validation)
    combined = fitted.model_weight * validation.logits + fitted.validation_logits
    assert fitted.loss == pytest.approx(blend.loss_of_sum(combined), rel=1e-5)

    # The final scores have seen them.
    own = [blend.objective.loss(torch.from_numpy(each.lexicon().logits(*validation.texts))) for each in (apart, fitted)]
    assert own[1] < own[0]


def test_soft_targets_are_extended_by_the_labels_held_back():
    objective = Objective(torch.tensor([[0.2, 0.8, 0.0]]), SINGLE)
    extended = objective.extended(np.array([2, 0]))
    torch.testing.assert_close(extended.targets, torch.tensor([[0.2, 0.8, 0.0], [0, 0, 1], [1, 0, 0]]))


@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
def test_the_temperature_is_the_best(scale, teacher):
    _, validation = fit(teacher.tokenizer, SINGLE)
    scores = scale * validation.logits
    blend = blend_of(SINGLE, validation)
    losses = [float(blend.objective.loss(torch.from_numpy(scores / each))) for each in np.geomspace(1 / 32, 32, 400)]
    assert blend.loss_of_sum(scores) <= min(losses) * 1.0001


def test_entries_occur_in_two_texts(teacher):
    texts = ["goal goal goal", "match goal", "match of a team", "of a comet"]
    vocabulary, ids = teacher.tokenizer.get_vocab_size(), teacher.tokenizer.get_vocab()
    keys, counts = count_entries(tokens(teacher.tokenizer, texts), vocabulary, 1000)

    pair = vocabulary * (ids["of"] + 1) + ids["a"]
    expected = {ids["goal"]: 2, ids["match"]: 2, ids["of"]: 2, ids["a"]: 2, pair: 2}  # not 'goal goal': one text
    assert dict(zip(keys.tolist(), counts.tolist(), strict=True)) == expected
    assert (np.diff(keys) > 0).all()
    assert len(count_entries(tokens(teacher.tokenizer, texts), vocabulary, 3)[0]) == 3


def test_counts_do_not_depend_on_the_chunk(teacher, monkeypatch):
    texts = tokens(teacher.tokenizer, topic_texts(50, 0)[0])
    whole = count_entries(texts, teacher.tokenizer.get_vocab_size(), 1000)
    monkeypatch.setattr(lexicon_fit, "CHUNK", 7)
    for one, other in zip(whole, count_entries(texts, teacher.tokenizer.get_vocab_size(), 1000), strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_entry_of_a_fitted_lexicon_is_rare(teacher):
    fitted, _ = fit(teacher.tokenizer, SINGLE)
    texts = tokens(teacher.tokenizer, topic_texts(400, 0)[0])
    keys, text = keys_of(*texts, teacher.tokenizer.get_vocab_size())
    seen = {(int(key), int(row)) for key, row in zip(keys, text, strict=True)}
    counts = np.bincount([key for key, _ in seen])
    assert counts[fitted.lexicon().keys].min() >= MIN_TEXTS
    assert (counts == 1).any()  # there were some to leave out


@pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])
def test_pruning_keeps_few_entries_and_the_loss(problem, teacher, monkeypatch):
    pruned, _ = fit(teacher.tokenizer, problem)
    monkeypatch.setattr(lexicon_fit, "FRACTIONS", ())
    whole, _ = fit(teacher.tokenizer, problem)
    assert len(pruned.lexicon()) <= len(whole.lexicon()) / 2
    assert pruned.nbytes < whole.nbytes

    # Pruning may cost the tolerance; the entries are then fitted again and both are packed, which costs a little, too.
    assert pruned.loss < whole.loss + (TOLERANCE + 0.02) * whole.loss_without

    # The words that decide stay, whatever their id. Of numbers, those of the mean decide nothing.
    topics = [topic for topic in WORDS if problem != REGRESSION or topic != "money"]
    deciding = {teacher.tokenizer.get_vocab()[word] for topic in topics for word in WORDS[topic]}
    assert deciding <= set(pruned.lexicon().keys.tolist())


@pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])
def test_a_size_limit_is_kept_and_what_fits_still_helps(problem, teacher):
    whole, _ = fit(teacher.tokenizer, problem)
    assert whole is not None
    limit = 2 * whole.nbytes // 3
    small, _ = fit(teacher.tokenizer, problem, max_bytes=limit)
    assert small is not None
    assert small.nbytes <= limit
    assert small.shape.entries < whole.shape.entries
    assert small.loss < 0.9 * small.loss_without
    same, _ = fit(teacher.tokenizer, problem, max_bytes=10 * whole.nbytes)
    assert same is not None
    assert same.nbytes == whole.nbytes
    none, _ = fit(teacher.tokenizer, problem, max_bytes=20)
    assert none is None


def test_class_weights_are_respected(teacher):
    """A class of weight 20 is predicted more often where a text says nothing about it."""
    plain, validation = fit(teacher.tokenizer, SINGLE)
    weighted, _ = fit(teacher.tokenizer, SINGLE, class_weights=[20.0, 1.0, 1.0])
    nothing = Ragged(np.array([1], np.int32), np.array([0, 1]))  # a text of [UNK]
    shares = [fitted.lexicon().logits(*nothing)[0] / fitted.weight for fitted in (plain, weighted)]
    before, after = (np.exp(scores[0]) / np.exp(scores).sum() for scores in shares)
    assert after > 2 * before
    weights = torch.tensor([20.0, 1.0, 1.0])
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(validation.logits), torch.from_numpy(validation.labels), weights
    )
    objective = Objective.of(validation.labels, SINGLE, [20.0, 1.0, 1.0], CPU)
    assert float(objective.loss(torch.from_numpy(validation.logits))) == pytest.approx(float(expected))


@pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])
def test_the_fit_is_a_minimum(problem, teacher):
    """Autograd over the plain formula finds no slope where L-BFGS with a gradient of its own has ended."""
    texts, names = topic_texts(60, 0)
    labels = labels_of(problem, names, texts)
    ragged = tokens(teacher.tokenizer, texts)
    vocabulary = teacher.tokenizer.get_vocab_size()
    keys, counts = count_entries(ragged, vocabulary, 1000)
    idf = (np.log(60 / counts) + 1).astype(np.float32)
    rows = lexicon_fit.features(lexicon_fit.Lexicon(vocabulary, keys, idf, idf[:, None], idf[:1]), ragged, CPU)
    np.testing.assert_allclose(rows.to_dense().norm(dim=1), 1, rtol=1e-5)

    count = {SINGLE: 3, MULTI: 4, REGRESSION: 1}[problem]
    objective = Objective.of(labels, problem, None, CPU)
    start = torch.zeros(len(keys), count), torch.zeros(count)
    weight, bias = (each.requires_grad_() for each in minimise(rows, objective, 0.05, start))
    loss = objective.loss(rows.to_dense() @ weight + bias) + 0.05 / 2 * weight.square().sum()
    loss.backward()
    assert weight.grad.abs().max() < 1e-3
    assert bias.grad.abs().max() < 1e-3
    assert float(loss.detach()) < float(objective.loss(rows.to_dense() @ start[0] + start[1]))


@pytest.fixture(scope="module")
def short_windows(codebook, topics, tmp_path_factory):
    """A classifier with windows of 4 tokens and a lexicon, in memory and in a folder."""
    folder = tmp_path_factory.mktemp("windows") / "model"
    settings = replace(STRONG, steps=40, batch_size=32, learning_rate=5e-3, device="cpu")
    return fit_model(codebook, topics, None, settings, Architecture(max_tokens=4), folder), folder


def test_long_texts_are_a_mean_over_windows_and_the_lexicon_over_all(short_windows):
    classifier, folder = short_windows
    model = classifier.model
    texts = ["goal match team league the of a coach score a it", "bank", "orbit rocket comet planet probe"]
    ids, offsets = tokenize(classifier.tokenizer, texts, 64)
    lexicon = lexicon_fit.unpack(
        lexicon_fit.LexiconShape(**model.config.lexicon),
        {name.removeprefix("lexicon."): array for name, array in model.arrays().items() if name.startswith("lexicon.")},
    )

    expected = []
    for start, end in pairwise(offsets):
        windows = [ids[i : min(i + 4, end)] for i in range(start, end, 4)]
        scores = []
        for window in windows:
            # A window by itself, without what the lexicon says of it alone.
            alone = Encoded(torch.from_numpy(window), np.array([0, len(window)]))
            scores.append(predict_logits(model, alone)[0] - lexicon.logits(window, np.array([0, len(window)]))[0])
        mean = np.average(scores, axis=0, weights=[len(window) for window in windows])
        expected.append(mean + lexicon.logits(ids[start:end], np.array([0, end - start]))[0])

    found = {
        "model": predict_logits(model, Encoded(torch.from_numpy(ids), offsets)),
        "Classifier": classifier.predict_scores(texts),
        "Runtime": Runtime.load(folder).predict_scores(texts),
    }
    for name, scores in found.items():
        np.testing.assert_allclose(scores, np.stack(expected), atol=1e-4, err_msg=name)
    # A pair of tokens on both sides of a window's end counts: the lexicon reads the whole text.
    assert not np.allclose(
        expected[0], found["model"][0] - lexicon.logits(ids[: offsets[1]], offsets[:2])[0], atol=1e-3
    )


def test_a_run_states_its_lexicon(short_windows):
    classifier, folder = short_windows
    stated = classifier.model.config.about["lexicon"]
    stored = sum(array.nbytes for name, array in classifier.model.arrays().items() if name.startswith("lexicon."))
    assert stated["entries"] == classifier.model.config.lexicon["entries"] > 10
    assert stated["bytes"] == stored
    assert json.loads((folder / "training.json").read_text())["lexicon"] == stated
    assert json.loads((folder / "config.json").read_text())["about"]["lexicon"] == stated
    assert f"scores of {stated['entries']:,} n-grams" in (folder / "README.md").read_text()


def test_a_run_without_one_says_so(codebook, topics, tmp_path):
    shuffled = Dataset(topics.texts, np.random.default_rng(0).permutation(topics.labels), topics.names)
    settings = replace(STRONG, steps=4, device="cpu")
    model = fit_model(codebook, shuffled, None, settings, None, tmp_path / "random").model
    assert model.config.lexicon is None
    assert json.loads((tmp_path / "random" / "training.json").read_text())["lexicon"] == {"entries": 0}
    assert "n-grams" not in (tmp_path / "random" / "README.md").read_text()

    fit_model(codebook, topics, None, replace(settings, lexicon=False), None, tmp_path / "off")
    assert "lexicon" not in json.loads((tmp_path / "off" / "training.json").read_text())
