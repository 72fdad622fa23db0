import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from ade.classifier import Classifier
from ade.data.dataset import Dataset
from ade.errors import InputError
from ade.evaluation import evaluate
from ade.settings import PAPER, PRESETS, STRONG, Architecture
from ade.training import checkpoints, tasks
from ade.training import loop as training
from ade.training.checkpoints import BEST, DONE, LAST, METRICS, RUN
from ade.training.loop import fit_model
from ade.training.schedule import fit_to_data, learning_rate, steps_of
from ade.training.step import TrainStep

QUICK = replace(STRONG, steps=60, batch_size=16, learning_rate=5e-3, token_dropout=0.2, lexicon=False, device="cpu")


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
def test_it_learns(attend, codebook, topics):
    rows, held = topics.split(0.25, seed=0)
    classifier = fit_model(codebook, rows, settings=replace(QUICK, steps=400), architecture=Architecture(attend=attend))
    assert evaluate(classifier, held).accuracy > 0.9


def test_presets_are_the_papers_and_ours():
    assert (PAPER.learning_rate, PAPER.batch_size, PAPER.warmup_steps, PAPER.epochs) == (2e-5, 32, 500, 8)
    assert PAPER.train_anchors
    assert not PAPER.train_weights
    assert set(PRESETS) == {"paper", "strong"}


def of_size(rows: int, classes: int, targets: np.ndarray | None = None) -> Dataset:
    return Dataset(["x"] * rows, np.arange(rows) % classes, tuple(map(str, range(classes))), targets)


def test_settings_fit_themselves_to_the_data():
    settings = fit_to_data(STRONG, of_size(30_000, 16), mean_length=20)
    assert settings.learning_rate == pytest.approx(4**0.8 * STRONG.learning_rate)
    assert fit_to_data(STRONG, of_size(30_000, 1000), mean_length=20).learning_rate == pytest.approx(3.5e-3)
    assert settings.token_dropout == pytest.approx(STRONG.token_dropout / 2)
    assert settings.dropout == STRONG.dropout
    assert settings.steps == 8 * 30_000 / 64
    assert fit_to_data(PAPER, of_size(100, 16), mean_length=20) == PAPER


def test_few_rows_get_more_steps_and_more_dropout():
    few, some = (fit_to_data(STRONG, of_size(rows, 4), mean_length=40) for rows in (32, 5_000))
    assert (few.steps, some.steps) == (200, 1000)
    assert few.dropout == 0.4
    assert STRONG.dropout < some.dropout <= 0.4
    assert fit_to_data(STRONG, of_size(5_000, 77), mean_length=40).steps > 2000
    assert fit_to_data(replace(STRONG, steps=7), of_size(32, 4), mean_length=40).steps == 7


@pytest.mark.parametrize("epochs", [7.0, 8.0, 9.0])
def test_epochs_that_were_asked_for_stand(epochs):
    """Whatever their number: 8, which the preset takes, is not another way to leave them out."""
    for rows in (of_size(64, 4), taught_of_size(64, 64)):
        settings = fit_to_data(replace(STRONG, epochs=epochs), rows, mean_length=40)
        assert settings.steps == 0
        assert steps_of(settings, len(rows)) == epochs
    assert steps_of(STRONG, 6_400) == 800


def taught_of_size(labelled: int, rows: int, classes: int = 4) -> Dataset:
    targets = np.full((rows, classes), 1 / classes, np.float32)
    return replace(of_size(rows, classes, targets), labelled=labelled)


def test_taught_rows_get_as_many_steps_as_untaught_ones_and_less_noise():
    for labelled in (32, 5_000, 30_000):
        plain = fit_to_data(STRONG, of_size(labelled, 4), mean_length=40)
        alone = fit_to_data(STRONG, taught_of_size(labelled, labelled), mean_length=40)
        assert alone.steps == plain.steps  # no variants: nothing more to learn from, nothing less either
        assert fit_to_data(STRONG, taught_of_size(labelled, 2 * labelled), mean_length=40).steps == plain.steps
    assert alone.dropout == STRONG.dropout / 2
    assert alone.token_dropout == STRONG.token_dropout / 2


def test_many_variants_get_a_quarter_of_the_passes():
    settings = fit_to_data(STRONG, taught_of_size(16_000, 320_000), mean_length=40)
    assert settings.steps == 2 * 320_000 / 64
    part = taught_of_size(16_000, 320_000).take(np.arange(8_000, 168_000))
    assert (part.labelled, len(part)) == (8_000, 160_000)
    assert fit_to_data(STRONG, part, mean_length=40).steps == 2 * 160_000 / 64


def test_soft_targets_are_what_is_learned(codebook, topics):
    """Targets that contradict the labels: the model follows the targets."""
    turned = (topics.labels + 1) % 3
    rows = replace(topics, targets=np.eye(3, dtype=np.float32)[turned])
    classifier = fit_model(
        codebook, rows, replace(topics, labels=turned), replace(QUICK, steps=400), Architecture(attend="tokens")
    )
    assert evaluate(classifier, replace(topics, labels=turned)).accuracy > 0.9


@pytest.mark.parametrize("attend", ["tokens", "gated"])
def test_a_run_that_diverges_stops_and_says_so(attend, codebook, topics, tmp_path):
    """Steps so large that numbers overflow: no model, no success, a log that is JSON."""
    settings = replace(QUICK, learning_rate=1e30, weight_decay=0.0)
    with pytest.raises(InputError, match=r"diverged: by step \d+ of 60 .* lower learning rate than"):
        fit_model(codebook, topics, settings=settings, architecture=Architecture(attend=attend), out=tmp_path / "run")
    assert not {"model.safetensors", DONE} & {path.name for path in (tmp_path / "run").iterdir()}
    fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run", existing="overwrite")


def test_weights_that_are_not_finite_stop_a_run_before_they_are_kept(codebook, topics, tmp_path, monkeypatch):
    """The loss is that of the step before: the weights are looked at, too."""

    def spoiled(self, *arguments, step=TrainStep.step):
        found = step(self, *arguments)
        with torch.no_grad():
            self.wrapped.classifier.weight[0, 0] = float("nan")
        return torch.ones_like(found)

    monkeypatch.setattr(TrainStep, "step", spoiled)
    with pytest.raises(InputError, match="diverged: by step 3 of 60"):
        fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    assert not (tmp_path / "run" / LAST).exists()


def test_learning_rate_rises_then_falls_to_zero():
    rates = [learning_rate(step, 100, replace(QUICK, warmup_steps=10)) for step in range(100)]
    assert rates[9] == max(rates) == QUICK.learning_rate
    assert rates[0] == pytest.approx(QUICK.learning_rate / 10)
    assert 0 < rates[99] < 0.02 * QUICK.learning_rate
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_the_same_seed_gives_the_same_model(codebook, topics):
    first, second, other = (fit_model(codebook, topics, settings=replace(QUICK, seed=s)) for s in (1, 1, 2))
    for one, two in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(first.model.classifier.weight, other.model.classifier.weight)


@pytest.mark.parametrize(("anchors", "weights"), [(True, False), (False, True), (False, False)])
def test_what_is_frozen_does_not_move(anchors, weights, codebook, topics):
    settings = replace(QUICK, steps=20, train_anchors=anchors, train_weights=weights)
    before = training.AdeForSequenceClassification.from_codebook(codebook, topics.names).ade.embedding
    after = fit_model(codebook, topics, settings=settings).model.ade.embedding
    assert torch.equal(before.anchors, after.anchors) is not anchors
    assert torch.equal(before.weights, after.weights) is not weights


class Stop(Exception):
    pass


def _interrupt(monkeypatch, after):
    """Make the run die right after its n-th checkpoint."""
    save, calls = checkpoints.RunFolder.save, []

    def counted(self, *arguments):
        save(self, *arguments)
        calls.append(1)
        if len(calls) == after:
            raise Stop

    monkeypatch.setattr(checkpoints.RunFolder, "save", counted)


@pytest.mark.parametrize("attend", ["tokens", "gated"])
def test_a_resumed_run_ends_where_an_uninterrupted_one_ends(attend, codebook, topics, tmp_path, monkeypatch):
    shape = Architecture(attend=attend)
    whole = fit_model(codebook, topics, None, QUICK, shape, tmp_path / "whole")
    with monkeypatch.context() as patch:
        _interrupt(patch, after=7)
        with pytest.raises(Stop):
            fit_model(codebook, topics, None, QUICK, shape, tmp_path / "cut")
    assert (tmp_path / "cut" / LAST).exists()
    assert not (tmp_path / "cut" / DONE).exists()
    resumed = fit_model(codebook, topics, None, QUICK, shape, tmp_path / "cut", "resume")
    for (name, one), two in zip(whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    logs = [
        [json.loads(line) for line in (tmp_path / run / METRICS).read_text().splitlines()] for run in ("whole", "cut")
    ]
    for line in (*logs[0], *logs[1]):
        line.pop("rate")
    assert [line["step"] for line in logs[0]] == [line["step"] for line in logs[1]]
    assert logs[0] == logs[1]


def test_the_folder_of_a_finished_run(codebook, topics, tmp_path):
    classifier = fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", METRICS, DONE} <= names
    assert not {LAST, BEST} & names
    loaded = Classifier.load(tmp_path / "run", "cpu")
    assert np.array_equal(loaded.predict_proba(topics.texts[:50]), classifier.predict_proba(topics.texts[:50]))
    lines = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert lines[-1]["step"] == 60
    assert {"loss", "accuracy", "dev_accuracy", "rate"} <= set(lines[-1])
    again = fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run", existing="resume")  # nothing left to do
    assert torch.equal(again.model.classifier.weight, classifier.model.classifier.weight)


def test_a_run_that_stops_improving_ends_early(codebook, topics, tmp_path, monkeypatch):
    """Dev accuracy that falls at every look: the first weights are kept and the run ends after PATIENCE more."""
    falling = iter(range(40))

    def worse(model, texts):
        wrong = np.arange(len(texts)) < 3 * next(falling)
        return np.eye(3)[(topics.labels + wrong) % 3]

    monkeypatch.setattr(tasks, "predict_logits", worse)
    fit_model(codebook, topics, topics, QUICK, out=tmp_path / "run")
    done = json.loads((tmp_path / "run" / DONE).read_text())
    assert done["steps"] == 3 * (1 + training.PATIENCE)  # a look every 3 of 60 steps
    assert done["dev_accuracy"] == 1.0


def test_of_equally_good_looks_the_last_is_kept(codebook, topics, monkeypatch):
    monkeypatch.setattr(tasks, "predict_logits", lambda model, texts: np.eye(3)[topics.labels[: len(texts)]])
    kept = []
    monkeypatch.setattr(training, "_loop", lambda run, *rest, loop=training._loop: (loop(run, *rest), kept.append(run)))
    fit_model(codebook, topics, topics, QUICK)
    assert kept[0].progress.stale == 0
    assert kept[0].progress.step == 60


def test_a_torn_last_line_of_the_log_does_no_harm(codebook, topics, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        _interrupt(patch, after=2)
        with pytest.raises(Stop):
            fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    with open(tmp_path / "run" / METRICS, "a") as file:
        file.write('{"step": 7, "lo')
    fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run", existing="resume")
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert steps == list(range(3, 61, 3))


def test_one_row_a_class_cannot_be_split(codebook):
    few = Dataset(["goal", "bank"], np.array([0, 1]), ("x", "y"))
    with pytest.raises(InputError, match="no dev split can be held back"):
        fit_model(codebook, few, settings=QUICK)


def test_a_full_disk_keeps_the_last_good_checkpoint(codebook, topics, tmp_path, monkeypatch):
    save_file, calls = checkpoints.save_file, []

    def filling(tensors, path, *rest):
        calls.append(path)
        if len(calls) > 6:
            path.write_bytes(b"half a file")
            raise SafetensorError("No space left on device")
        save_file(tensors, path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_file", filling)
        with pytest.raises(InputError, match=r"No space left on device.*last one is kept"):
            fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {RUN, LAST, BEST, METRICS}
    resumed = fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run", existing="resume")
    whole = fit_model(codebook, topics, settings=QUICK)
    assert torch.equal(resumed.model.classifier.weight, whole.model.classifier.weight)


def test_resuming_another_run_is_refused(codebook, topics, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        _interrupt(patch, after=1)
        with pytest.raises(Stop):
            fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    other = replace(QUICK, learning_rate=1e-3)
    with pytest.raises(InputError, match=r"had learning_rate = .*; resume with the same settings"):
        fit_model(codebook, topics, settings=other, out=tmp_path / "run", existing="resume")
    with pytest.raises(InputError, match="holds an interrupted run; use --resume"):
        fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run")
    path = tmp_path / "run" / LAST
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match="not a readable checkpoint"):
        fit_model(codebook, topics, settings=QUICK, out=tmp_path / "run", existing="resume")
    fit_model(codebook, topics, settings=replace(QUICK, steps=5), out=tmp_path / "run", existing="overwrite")
    assert (tmp_path / "run" / DONE).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"epochs": -1.0}, "epochs must be above 0"),
    ],
)
def test_impossible_settings(changes, message):
    with pytest.raises(InputError, match=message):
        replace(STRONG, **changes)


def test_overwrite_spares_what_only_looks_like_a_run(codebook, topics, tmp_path):
    for name in (METRICS, "precious.txt"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match="something else"):
        fit_model(codebook, topics, settings=QUICK, out=tmp_path, existing="overwrite")
    assert (tmp_path / "precious.txt").exists()


def test_an_occupied_folder_is_refused_before_any_work(codebook, topics, tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("precious")
    monkeypatch.setattr(tasks, "encode", None)  # would fail if it were reached
    with pytest.raises(InputError, match="something else"):
        fit_model(codebook, topics, settings=QUICK, out=tmp_path)


def test_bad_data(codebook, topics, tmp_path):
    one = Dataset(["goal", "match"], np.array([0, 0]), ("x",))
    with pytest.raises(InputError, match="at least two classes"):
        fit_model(codebook, one, settings=QUICK, out=tmp_path / "run")
    other = Dataset(["goal"], np.array([0]), ("unheard",))
    with pytest.raises(InputError, match="not trained on: unheard"):
        fit_model(codebook, topics, other, QUICK, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_training_on_the_gpu(codebook, topics):
    rows, held = topics.split(0.25, seed=0)
    classifier = fit_model(codebook, rows, settings=replace(QUICK, steps=400, device="cuda"))
    assert evaluate(classifier, held).accuracy > 0.9


def test_later_weights_are_kept_while_they_are_within_one_standard_error_of_the_best(
    codebook, topics, tmp_path, monkeypatch
):
    """Of 600 rows 60 wrong, then one more at every validation: 0.90 has a standard error of 7.3 rows."""
    wrong = iter(range(60, 100))

    def worse(model, texts):
        return np.eye(3)[(topics.labels + (np.arange(600) < next(wrong))) % 3]

    monkeypatch.setattr(tasks, "predict_logits", worse)
    fit_model(codebook, topics, topics, QUICK, out=tmp_path / "run")
    done = json.loads((tmp_path / "run" / DONE).read_text())
    assert done["dev_accuracy"] == pytest.approx(1 - 67 / 600)
    assert done["steps"] == 3 * (8 + training.PATIENCE)
