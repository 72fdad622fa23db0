import json
import shutil

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

from ade.errors import InputError
from ade.settings import Architecture, TrainingSettings
from ade.trained_model import Classifier
from ade.training import soft_targets
from ade.training.loop import fit_model
from ade.training.soft_targets import LabelTeacher, variants_of, with_soft_targets
from tests.conftest import WORDS, word_tokenizer

NAMES = tuple(sorted(WORDS))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(soft_targets, "MAX_VARIANTS", 2)


def test_opinions_are_the_encoders_own(encoder, topics):
    """Against the same model called by hand, one text at a time: the padding and the order of classes are right."""
    texts = [*topics.texts[:40], ""]
    found = LabelTeacher.load(encoder, NAMES, "cpu").probabilities(texts)
    model = BertForSequenceClassification.from_pretrained(encoder).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(encoder)
    for row, text in zip(found[:40], texts, strict=False):
        with torch.inference_mode():
            logits = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits[0]
        assert np.allclose(row, logits.softmax(0).flip(0).numpy(), atol=1e-3)
    assert np.allclose(found.sum(1), 1, atol=2e-3)
    assert found.std(0).max() > 0.01  # the texts do differ to it


def test_it_is_asked_once(encoder, topics, tmp_path, monkeypatch):
    teacher = LabelTeacher.load(encoder, NAMES, "cpu")
    first = teacher.probabilities(topics.texts[:20])
    monkeypatch.setattr(LabelTeacher, "_predict", lambda *_: pytest.fail("asked again"))
    assert np.allclose(LabelTeacher.load(encoder, NAMES, "cpu").probabilities(topics.texts[:20]), first, atol=1e-3)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    with pytest.raises(pytest.fail.Exception, match="asked again"):
        teacher.probabilities(topics.texts[:19])
    with torch.no_grad():
        teacher.model.classifier.bias += 1  # another model, another answer
    with pytest.raises(pytest.fail.Exception, match="asked again"):
        teacher.probabilities(topics.texts[:20])


def test_a_damaged_answer_is_asked_for_again(encoder, topics, tmp_path):
    teacher = LabelTeacher.load(encoder, NAMES, "cpu")
    first = teacher.probabilities(topics.texts[:20])
    (path,) = (tmp_path / "cache").iterdir()
    whole = path.read_bytes()
    np.save(tmp_path / "short.npy", first[:-1])
    for damaged in (whole[: len(whole) // 2], b"", b"no array", (tmp_path / "short.npy").read_bytes()):
        path.write_bytes(damaged)
        assert np.array_equal(teacher.probabilities(topics.texts[:20]), first)
        assert path.read_bytes() == whole  # and is kept for the next time


def test_a_cache_that_cannot_be_written_costs_no_run(encoder, topics, tmp_path, monkeypatch):
    teacher = LabelTeacher.load(encoder, NAMES, "cpu")
    first = teacher.probabilities(topics.texts[:20])
    (tmp_path / "file").touch()
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "file" / "cache"))
    assert np.array_equal(teacher.probabilities(topics.texts[:20]), first)


def test_a_teacher_that_answers_nonsense_is_refused(encoder, topics):
    teacher = LabelTeacher.load(encoder, NAMES, "cpu")
    with torch.no_grad():
        teacher.model.classifier.weight[0, 0] = float("nan")
    with pytest.raises(InputError, match="teacher's probabilities are not finite"):
        teacher.probabilities(topics.texts[:20])


def test_taught_data_blends_labels_and_opinions(encoder, topics):
    teacher = LabelTeacher.load(encoder, NAMES, "cpu")
    extra = ["rocket of the team", "share price"]
    lesson = with_soft_targets(topics, teacher, extra)
    assert len(topics) + 2 < len(lesson) <= 3 * (len(topics) + 2)
    assert len(set(lesson.texts[len(topics) :])) == len(lesson) - len(topics)  # nothing twice
    assert "" not in lesson.texts
    assert list(lesson.texts[: len(topics)]) == list(topics.texts)
    assert lesson.labelled == len(topics)
    opinions = teacher.probabilities(lesson.texts)
    sure = np.eye(3)[topics.labels]
    assert np.allclose(lesson.targets[: len(topics)], 0.5 * sure + 0.5 * opinions[: len(topics)], atol=2e-3)
    assert np.allclose(lesson.targets[len(topics) :], opinions[len(topics) :], atol=2e-3)


def test_variants_are_stretches_of_their_texts():
    texts = ["a b c d e f g h i j", "k", ""]
    made = variants_of(texts, 30)
    assert len(made) == 90
    assert made == variants_of(texts, 30)
    for i, text in enumerate(made):
        words, source = text.split(), texts[i % 3].split()
        assert words == [word for word in source if word in words]  # in order, nothing new
    assert max(len(text.split()) for text in made[::3]) > 6 > min(len(text.split()) for text in made[::3])


def test_an_ade_model_can_be_the_teacher(codebook, topics, tmp_path, ade, topic_folder):
    """From the command line: train one, learn from it, with texts that have no label."""
    (tmp_path / "more.txt").write_text("the rocket and the comet\n\nprofit of the bank\n")
    codebook.save(tmp_path / "codebook")
    common = ["train", topic_folder, "--from", tmp_path / "codebook", "--json", "--device", "cpu"]
    common += ["--set", "steps=100", "--set", "learning_rate=0.02"]
    assert ade(*common, "--out", tmp_path / "first")[0] == 0
    more = ["--distill-from", tmp_path / "first", "--unlabelled", tmp_path / "more.txt"]
    status, out, err = ade(*common, "--out", tmp_path / "second", *more)
    assert status == 0, err
    assert json.loads(out)["test"]["accuracy"] > 0.8
    assert Classifier.load(tmp_path / "second").labels == NAMES


@pytest.mark.parametrize("names", [("sport", "money"), ("sport", "money", "music")])
def test_a_teacher_of_other_classes_is_refused(encoder, names):
    with pytest.raises(InputError, match=r"classes|does not know"):
        LabelTeacher.load(encoder, names, "cpu")


def test_what_is_no_classifier_is_refused_in_one_line(tmp_path, ade, codebook, topic_folder):
    codebook.save(tmp_path / "codebook")
    common = ["train", topic_folder, "--from", tmp_path / "codebook", "--out", tmp_path / "out"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "more.txt").write_text("the rocket\n")
    for given, message in (
        (("--distill-from", tmp_path / "empty"), f"{tmp_path / 'empty'}: not a readable sequence classifier"),
        (("--distill-from", tmp_path / "codebook"), "a classifier of texts is needed here"),
        (("--unlabelled", tmp_path / "more.txt"), "--distill-from"),
    ):
        status, _, err = ade(*common, *given)
        assert (status, err.strip().count("\n")) == (2, 0)
        assert message in err


def test_an_encoder_without_a_classifier_is_refused(encoder, tmp_path):
    BertModel.from_pretrained(encoder).save_pretrained(tmp_path / "headless")
    shutil.copy(encoder / "tokenizer.json", tmp_path / "headless")
    shutil.copy(encoder / "tokenizer_config.json", tmp_path / "headless")
    with pytest.raises(InputError, match="without a trained classifier"):
        LabelTeacher.load(tmp_path / "headless", ("LABEL_0", "LABEL_1"), "cpu")


def test_classes_without_names_must_fit_by_number(topics, monkeypatch):
    """A teacher that is always right, but counts the classes otherwise."""
    monkeypatch.setattr(soft_targets, "MAX_VARIANTS", 0)
    teacher = LabelTeacher(torch.nn.Linear(1, 1), word_tokenizer(["a"]), np.arange(3), named=False)
    right = np.eye(3, dtype=np.float32)[topics.labels]
    for answers, fits in ((right, True), (np.roll(right, 1, 1), False)):
        teacher.probabilities = lambda texts, report, answers=answers: answers.copy()
        if fits:
            assert np.array_equal(with_soft_targets(topics, teacher).targets, right)
        else:
            with pytest.raises(InputError, match="id2label"):
                with_soft_targets(topics, teacher)


def test_a_run_with_soft_targets_is_resumed(encoder, codebook, topics, tmp_path):
    """The second time the probabilities come from the cache; they must be the same."""
    rows, dev = topics.split(0.2, 0)
    settings = TrainingSettings(steps=20, batch_size=16, device="cpu")
    for out, existing in (("whole", "refuse"), ("run", "refuse"), ("run", "resume")):
        soft = with_soft_targets(rows, LabelTeacher.load(encoder, NAMES, "cpu"))
        fit_model(codebook, soft, dev, settings, Architecture(heads=2), tmp_path / out, existing)
    files = [(tmp_path / out / "model.safetensors").read_bytes() for out in ("whole", "run")]
    assert files[0] == files[1]
