"""The loop learns, chooses weights by validation, stops where nothing improves, and refuses what cannot be learned."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ade.data.dataset import Dataset
from ade.errors import InputError
from ade.evaluation import evaluate
from ade.settings import STRONG, Architecture
from ade.trained_model import Classifier
from ade.training import loop, tasks
from ade.training.checkpoints import CHECKPOINT, DONE, STATE
from ade.training.loop import fit_model
from ade.training.step import TrainStep

QUICK = replace(STRONG, steps=60, batch_size=16, learning_rate=5e-3, token_dropout=0.2, lexicon=False, device="cpu")


@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_it_learns(attend, codebook, topics):
    rows, held = topics.split(0.25, seed=0)
    saved = fit_model(codebook, rows, settings=replace(QUICK, steps=400), architecture=Architecture(attend=attend))
    assert evaluate(Classifier(saved), held).accuracy > 0.9


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_it_learns_on_the_gpu(attend, codebook, topics):
    """By recorded graphs over tokens, without them over anchors."""
    rows, held = topics.split(0.25, seed=0)
    settings = replace(QUICK, steps=400, device="cuda")
    saved = fit_model(codebook, rows, settings=settings, architecture=Architecture(attend=attend))
    assert evaluate(Classifier(saved), held).accuracy > 0.9


def test_soft_targets_are_what_is_learned(codebook, topics):
    """Targets that contradict the labels: the model follows the targets."""
    turned = replace(topics, labels=(topics.labels + 1) % 3)
    rows = replace(topics, targets=np.eye(3, dtype=np.float32)[turned.labels])
    saved = fit_model(codebook, rows, turned, replace(QUICK, steps=400))
    assert evaluate(Classifier(saved), turned).accuracy > 0.9


def test_the_same_seed_gives_the_same_model(codebook, topics):
    first, second, other = (fit_model(codebook, topics, settings=replace(QUICK, seed=seed)) for seed in (1, 1, 2))
    for name, layer in first.layers.items():
        np.testing.assert_array_equal(layer, second.layers[name])
    assert not np.array_equal(first.layers["head.weight"], other.layers["head.weight"])


@pytest.mark.parametrize(("anchors", "weights"), [(True, False), (False, True), (False, False)])
def test_what_is_frozen_does_not_move(anchors, weights, codebook, topics):
    settings = replace(QUICK, steps=20, train_anchors=anchors, train_weights=weights)
    before, after = codebook.table.normalised(), fit_model(codebook, topics, settings=settings).table
    assert np.array_equal(before.anchors, after.anchors) is not anchors
    assert np.array_equal(before.weights, after.weights) is not weights


def test_a_run_that_diverges_stops_and_says_so(codebook, topics, tmp_path):
    """Steps so large that numbers overflow: no model, no success, a log that is JSON."""
    settings = replace(QUICK, learning_rate=1e30, weight_decay=0.0)
    with pytest.raises(InputError, match=r"diverged: by step \d+ of 60 .* lower learning rate than"):
        fit_model(codebook, topics, settings=settings, out=tmp_path / "run")
    assert not {"model.safetensors", DONE} & {path.name for path in (tmp_path / "run").iterdir()}
    fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run", existing="overwrite")


def test_weights_that_are_not_finite_stop_a_run_before_they_are_kept(codebook, topics, tmp_path, monkeypatch):
    """The loss is that of the step before: the weights are looked at, too."""

    def spoiled(self, *arguments, step=TrainStep.step):
        sums = step(self, *arguments)
        with torch.no_grad():
            self.model.head.weight[0, 0] = float("nan")
        return torch.ones_like(sums)

    monkeypatch.setattr(TrainStep, "step", spoiled)
    with pytest.raises(InputError, match="diverged: by step 3 of 60"):
        fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    assert not (tmp_path / "run" / CHECKPOINT / STATE).exists()


@pytest.mark.parametrize(
    ("errors", "kept"),
    [
        (range(0, 120, 3), 3),  # three more wrong every time: the first weights are kept
        (range(60, 100), 3 * 8),  # one more: accuracy 0.90 of 600 rows has a standard error of 7.3 rows
        ([0] * 40, 60),  # of equally good weights the last are kept
    ],
)
def test_weights_are_kept_while_they_are_about_as_good_as_the_best(errors, kept, codebook, topics, monkeypatch):
    """A run ends after PATIENCE validations without such weights; it is validated every 3 of 60 steps."""
    numbers, steps, weights = iter(errors), [], {}

    def scores(backend, texts):
        weights[len(weights) * 3 + 3] = backend.model.head.weight.detach().clone()
        return np.eye(3)[(topics.labels + (np.arange(len(texts)) < next(numbers))) % 3]

    monkeypatch.setattr(tasks.TorchBackend, "scores", scores)
    saved = fit_model(codebook, topics, topics, QUICK, report=lambda stage, done, *_: steps.append(done))
    assert steps[-1] == min(60, kept + 3 * loop.PATIENCE)
    found, expected = saved.layers["head.weight"], weights[kept].numpy()  # but for the temperature
    np.testing.assert_allclose(found / np.linalg.norm(found), expected / np.linalg.norm(expected), atol=1e-6)


def test_data_that_cannot_be_learned_is_refused(codebook, topics, tmp_path):
    few = Dataset(["goal", "bank"], np.array([0, 1]), ("x", "y"))
    with pytest.raises(InputError, match="no class has two rows"):
        fit_model(codebook, few, settings=QUICK)
    one = Dataset(["goal", "match"], np.array([0, 0]), ("x",))
    with pytest.raises(InputError, match="at least two classes"):
        fit_model(codebook, one, settings=QUICK, out=tmp_path / "run")
    other = Dataset(["goal"], np.array([0]), ("unheard",))
    with pytest.raises(InputError, match="not trained on: unheard"):
        fit_model(codebook, topics, other, QUICK, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
