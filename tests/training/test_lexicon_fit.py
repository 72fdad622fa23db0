"""The lexicon in training: it lowers the validation loss or is refused, keeps what pays, and reads whole texts."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ade import lexicon as lexicon_module
from ade.backends import TableBackend
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.tokens import Ragged, tokenize
from ade.lexicon import MIN_TEXTS, Lexicon, frequent_keys, keys_of
from ade.model import model_of
from ade.settings import STRONG, Architecture
from ade.torch_backends import TorchBackend
from ade.trained_model import Classifier
from ade.training import lexicon_fit
from ade.training.lexicon_fit import (
    TOLERANCE,
    FittedLexicon,
    Objective,
    Validation,
    features,
    fit_lexicon,
    minimise,
    sampled,
)
from ade.training.loop import fit_model
from tests.conftest import WORDS, topic_texts, untrained

NAMES = sorted(WORDS)
NUMBERS = {"sport": -1.0, "money": 0.5, "space": 2.0}  # of regression; money is the mean
LABELS = {SINGLE: NAMES, MULTI: [*NAMES, "the"], REGRESSION: ["value"]}
PROBLEMS = pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])


def tokens(tokenizer, texts: list[str]) -> Ragged:
    return tokenize(tokenizer, texts, 10_000)


def labels_of(problem: str, labels: list[str], texts: list[str]) -> np.ndarray:
    """The topic as a class; the topic and whether 'the' occurs as several labels; or a number that depends on both."""
    has_the = np.array(["the" in text.split() for text in texts])
    topic = np.array([NAMES.index(label) for label in labels])
    if problem == SINGLE:
        return topic
    if problem == MULTI:
        return np.column_stack([np.eye(3, dtype=bool)[topic], has_the])
    return (np.array([NUMBERS[label] for label in labels]) + 0.3 * has_the).astype(np.float32)


def weak_scores(problem: str, labels: np.ndarray) -> np.ndarray:
    """Scores of a model that has learned something, with much noise."""
    true = np.eye(3)[labels] if problem == SINGLE else labels.reshape(len(labels), -1)
    noise = np.random.default_rng(0).standard_normal(true.shape)
    return ((true if problem == REGRESSION else true * 2.0 - 1) + noise).astype(np.float32)


def base_scores(problem: str, labels: np.ndarray, rows: int) -> np.ndarray:
    """Scores of a model that knows how frequent the labels are, and nothing of the texts."""
    if problem == REGRESSION:
        scores = labels.mean(keepdims=True)
    elif problem == MULTI:
        scores = np.log(labels.mean(0) / (1 - labels.mean(0)))
    else:
        scores = np.log(np.bincount(labels) / len(labels))
    return np.tile(scores, (rows, 1)).astype(np.float32)


def fit(
    codebook, problem: str, random: bool = False, dev_rows: int = 150, class_weights=None, **more
) -> tuple[FittedLexicon | None, Validation]:
    """A lexicon beside a weak model; with `random`, on shuffled labels beside a model of their frequencies."""
    texts, names = topic_texts(400, 0)
    targets = labels_of(problem, names, texts)
    dev_texts, dev_names = topic_texts(dev_rows, 1)
    dev_labels = labels_of(problem, dev_names, dev_texts)
    scores = weak_scores(problem, dev_labels)
    if random:
        shuffle = np.random.default_rng(0).permutation
        targets, dev_labels = shuffle(targets), shuffle(dev_labels)
        scores = base_scores(problem, targets, len(dev_labels))
    tokenizer = codebook.tokenizer
    validation = Validation(tokens(tokenizer, dev_texts), scores, Objective.of(dev_labels, problem, class_weights))
    saved = untrained(codebook, LABELS[problem], problem=problem, class_weights=class_weights)
    return fit_lexicon(saved, tokens(tokenizer, texts), targets, validation, **more), validation


def test_of_very_many_tokens_a_sample_is_taken():
    offsets = np.array([0, 3, 4, 6, 10, 12, 20])
    texts = Ragged(np.arange(20, dtype=np.int32), offsets)
    targets = np.arange(6)
    assert sampled(texts, targets, 20) == (texts, targets)
    some, kept = sampled(texts, targets, 10)
    assert len(kept) == 3
    for row, ids in zip(kept, some, strict=True):
        assert ids.tolist() == list(range(offsets[row], offsets[row + 1]))
    assert np.array_equal(sampled(texts, targets, 10)[1], kept)  # the same sample again


@PROBLEMS
def test_it_lowers_the_validation_loss(problem, codebook):
    fitted, validation = fit(codebook, problem)
    assert fitted is not None
    # What is said of the loss is true of the lexicon as it is stored, by the plain formula.
    combined = fitted.model_weight * validation.scores + fitted.lexicon.added(validation.texts)
    assert fitted.loss == pytest.approx(validation.loss(combined), rel=1e-5)
    assert fitted.loss < 0.6 * validation.loss(validation.scores)
    if problem == REGRESSION:
        assert fitted.weight == pytest.approx(1 - fitted.model_weight)
        assert 0 < fitted.model_weight < 0.5  # words say more than the noisy model
        error = np.square(combined - validation.objective.targets.numpy()).mean() / 2
        assert fitted.loss == pytest.approx(error, rel=1e-4)
    else:
        assert fitted.model_weight == 1


@pytest.mark.parametrize("dev_rows", [30, 100, 1000])
@PROBLEMS
def test_random_labels_have_none(problem, dev_rows, codebook):
    assert fit(codebook, problem, random=True, dev_rows=dev_rows)[0] is None


@PROBLEMS
def test_rows_of_the_validation_split_are_fitted_in_the_end(problem, codebook):
    apart, validation = fit(codebook, problem)
    fitted, _ = fit(codebook, problem, dev_from_training=True)
    np.testing.assert_array_equal(fitted.lexicon.keys, apart.lexicon.keys)  # the choices are the same
    assert fitted.weight == apart.weight

    # What is said of the validation rows is from before they were fitted: without packing, so about the same.
    assert fitted.loss == pytest.approx(apart.loss, abs=0.02 * validation.loss(validation.scores))
    combined = fitted.model_weight * validation.scores + fitted.added
    assert fitted.loss == pytest.approx(validation.loss(combined), rel=1e-5)

    # The final scores have seen them.
    added = [torch.from_numpy(each.lexicon.added(validation.texts)) for each in (apart, fitted)]
    assert validation.objective.loss(added[1]) < validation.objective.loss(added[0])


def test_soft_targets_are_extended_by_the_labels_of_the_validation_split():
    objective = Objective(torch.tensor([[0.2, 0.8, 0.0]]), SINGLE)
    extended = objective.extended(torch.tensor([2, 0]))
    torch.testing.assert_close(extended.targets, torch.tensor([[0.2, 0.8, 0.0], [0, 0, 1], [1, 0, 0]]))


@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
def test_the_temperature_is_the_best(scale, codebook):
    _, validation = fit(codebook, SINGLE)
    scores = torch.from_numpy(scale * validation.scores)
    losses = [float(validation.objective.loss(scores / each)) for each in np.geomspace(1 / 32, 32, 400)]
    assert validation.loss(scale * validation.scores) <= min(losses) * 1.0001


def test_entries_occur_in_two_texts(teacher):
    texts = tokens(teacher.tokenizer, ["goal goal goal", "match goal", "match of a team", "of a comet"])
    vocabulary, ids = teacher.tokenizer.get_vocab_size(), teacher.tokenizer.get_vocab()
    keys, counts = frequent_keys(texts, vocabulary, 1000)

    pair = vocabulary * (ids["of"] + 1) + ids["a"]
    expected = {ids["goal"]: 2, ids["match"]: 2, ids["of"]: 2, ids["a"]: 2, pair: 2}  # not 'goal goal': one text
    assert dict(zip(keys.tolist(), counts.tolist(), strict=True)) == expected
    assert (np.diff(keys) > 0).all()
    assert len(frequent_keys(texts, vocabulary, 3)[0]) == 3


def test_counts_do_not_depend_on_the_chunk(teacher, monkeypatch):
    texts = tokens(teacher.tokenizer, topic_texts(50, 0)[0])
    whole = frequent_keys(texts, teacher.tokenizer.get_vocab_size(), 1000)
    monkeypatch.setattr(lexicon_module, "CHUNK", 7)
    for one, other in zip(whole, frequent_keys(texts, teacher.tokenizer.get_vocab_size(), 1000), strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_entry_of_a_fitted_lexicon_is_rare(codebook):
    fitted, _ = fit(codebook, SINGLE)
    keys, text = keys_of(tokens(codebook.tokenizer, topic_texts(400, 0)[0]), codebook.table.vocabulary)
    seen = {(int(key), int(row)) for key, row in zip(keys, text, strict=True)}
    counts = np.bincount([key for key, _ in seen])
    assert counts[fitted.lexicon.keys].min() >= MIN_TEXTS
    assert (counts == 1).any()  # there were some to leave out


@PROBLEMS
def test_pruning_keeps_few_entries_and_the_loss(problem, codebook, monkeypatch):
    pruned, validation = fit(codebook, problem)
    monkeypatch.setattr(lexicon_fit, "FRACTIONS", ())
    whole, _ = fit(codebook, problem)
    assert len(pruned.lexicon) <= len(whole.lexicon) / 2
    assert pruned.lexicon.nbytes < whole.lexicon.nbytes

    # Pruning may cost the tolerance; the entries are then fitted again and both are packed, which costs a little, too.
    assert pruned.loss < whole.loss + (TOLERANCE + 0.02) * validation.loss(validation.scores)

    # The words that decide stay, whatever their id. Of numbers, those of the mean decide nothing.
    topics = [topic for topic in WORDS if problem != REGRESSION or topic != "money"]
    deciding = {codebook.tokenizer.get_vocab()[word] for topic in topics for word in WORDS[topic]}
    assert deciding <= set(pruned.lexicon.keys.tolist())


@PROBLEMS
def test_a_size_limit_is_kept_and_what_fits_still_helps(problem, codebook):
    whole, validation = fit(codebook, problem)
    limit = 2 * whole.lexicon.nbytes // 3
    small, _ = fit(codebook, problem, max_bytes=limit)
    assert small.lexicon.nbytes <= limit
    assert len(small.lexicon) < len(whole.lexicon)
    assert small.loss < 0.9 * validation.loss(validation.scores)
    same, _ = fit(codebook, problem, max_bytes=10 * whole.lexicon.nbytes)
    assert same.lexicon.nbytes == whole.lexicon.nbytes
    assert fit(codebook, problem, max_bytes=20)[0] is None


def test_class_weights_are_respected(codebook):
    """A class of weight 20 is predicted more often where a text says nothing about it."""
    weights = (20.0, 1.0, 1.0)
    nothing = Ragged.of([np.array([1])])  # a text of [UNK]
    probability = []
    for class_weights in (None, weights):
        fitted, validation = fit(codebook, SINGLE, class_weights=class_weights)
        scores = fitted.lexicon.added(nothing)[0] / fitted.weight
        probability.append(np.exp(scores[0]) / np.exp(scores).sum())
    assert probability[1] > 2 * probability[0]
    scores, objective = torch.from_numpy(validation.scores), validation.objective
    expected = torch.nn.functional.cross_entropy(scores, objective.targets, torch.tensor(weights))
    assert float(objective.loss(scores)) == pytest.approx(float(expected))


@PROBLEMS
def test_the_fit_is_a_minimum(problem, teacher):
    """Autograd over the plain formula finds no slope where L-BFGS with a gradient of its own has ended."""
    texts, names = topic_texts(60, 0)
    labels = labels_of(problem, names, texts)
    ragged = tokens(teacher.tokenizer, texts)
    vocabulary = teacher.tokenizer.get_vocab_size()
    keys, counts = frequent_keys(ragged, vocabulary, 1000)
    idf = (np.log(60 / counts) + 1).astype(np.float32)
    rows = features(Lexicon(vocabulary, keys, idf, idf[:, None], idf[:1]), ragged, torch.device("cpu"))
    np.testing.assert_allclose(rows.to_dense().norm(dim=1), 1, rtol=1e-5)

    count = len(LABELS[problem])
    objective = Objective.of(labels, problem)
    start = torch.zeros(len(keys), count), torch.zeros(count)
    weight, bias = (each.requires_grad_() for each in minimise(rows, objective, 0.05, start))
    loss = objective.loss(rows.to_dense() @ weight + bias) + 0.05 / 2 * weight.square().sum()
    loss.backward()
    assert weight.grad.abs().max() < 1e-3
    assert bias.grad.abs().max() < 1e-3
    assert float(loss.detach()) < float(objective.loss(rows.to_dense() @ start[0] + start[1]))


@pytest.fixture(scope="module")
def four_tokens(codebook, topics, tmp_path_factory):
    """A folder of a classifier whose attention reads four tokens, and its lexicon all."""
    folder = tmp_path_factory.mktemp("four") / "model"
    settings = replace(STRONG, steps=40, batch_size=32, learning_rate=5e-3, device="cpu")
    fit_model(codebook, topics, None, settings, Architecture(max_tokens=4), folder)
    return folder


def test_attention_reads_the_first_tokens_of_a_long_text_and_the_lexicon_all(four_tokens):
    model = Classifier.load(four_tokens)
    texts = ["goal match team league the of a coach score a it", "bank", "orbit rocket comet planet probe"]
    whole = tokenize(model.tokenizer, texts, 64)
    attention = replace(model.saved, lexicon=None)
    expected = TableBackend(attention).scores(whole.first(4)) + model.saved.lexicon.added(whole)
    by_torch = TorchBackend(model_of(model.saved))
    for scores in (model.scores(texts), model.backend.scores(whole), by_torch.scores(whole)):
        np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert np.abs(model.scores(texts) - model.backend.scores(whole.first(4))).max() > 1e-3


def test_a_run_states_its_lexicon(four_tokens):
    lexicon, config = Classifier.load(four_tokens).saved.lexicon, json.loads((four_tokens / "config.json").read_text())
    stated = config["metadata"]["lexicon"]
    assert stated["entries"] == len(lexicon) == config["lexicon"]["entries"] > 10
    assert stated["bytes"] == lexicon.nbytes
    assert json.loads((four_tokens / "training.json").read_text())["lexicon"] == stated
    assert f"scores of {stated['entries']:,} n-grams" in (four_tokens / "README.md").read_text()


def test_a_run_without_one_says_so(codebook, topics, tmp_path):
    shuffled = Dataset(topics.texts, np.random.default_rng(0).permutation(topics.labels), topics.names)
    settings = replace(STRONG, steps=4, device="cpu")
    assert fit_model(codebook, shuffled, None, settings, None, tmp_path / "random").lexicon is None
    assert json.loads((tmp_path / "random" / "training.json").read_text())["lexicon"] == {"entries": 0}
    assert "n-grams" not in (tmp_path / "random" / "README.md").read_text()

    fit_model(codebook, topics, None, replace(settings, lexicon=False), None, tmp_path / "off")
    assert "lexicon" not in json.loads((tmp_path / "off" / "training.json").read_text())


@given(
    entries=st.integers(1, 3000), labels=st.integers(1, 90), vocabulary=st.integers(60, 70_000), share=st.floats(0, 1.2)
)
def test_as_many_entries_are_kept_as_fit(entries, labels, vocabulary, share):
    most = lexicon_fit.most_bytes(entries, vocabulary, labels)
    limit = int(share * most)
    kept = lexicon_fit.entries_within(limit, entries, vocabulary, labels)
    assert kept == entries if limit >= most else 0 <= kept < entries
    assert kept == 0 or lexicon_fit.most_bytes(kept, vocabulary, labels) <= limit
    assert lexicon_fit.entries_within(None, entries, vocabulary, labels) == entries
