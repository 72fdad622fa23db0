"""A sentence encoder as a teacher: known by its content, its vectors cached and continued."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ade.encoders.distil import gather_texts
from ade.encoders.teacher import SentenceTeacher
from ade.errors import InputError
from ade.trained_model import unit
from tests.conftest import topic_texts

TEXTS = gather_texts([], topic_texts(400, 0)[0])[0]


def counting(answered: list[int], stop_after: int = 1 << 30) -> SentenceTeacher:
    def encode(texts):
        if sum(answered) >= stop_after:
            raise KeyboardInterrupt
        answered.append(len(texts))
        return np.array([[len(text), text.count("a"), 1.0] for text in texts], np.float32)

    return SentenceTeacher("counting", "counts", 3, encode)


def test_a_teacher_is_known_again_though_weights_are_missing(sentence_folder, tmp_path):
    folder = tmp_path / "teacher"
    shutil.copytree(sentence_folder, folder)
    weights = load_file(folder / "model.safetensors")
    kept = {name: values for name, values in weights.items() if "pooler" not in name}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    identities = set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        identities.add(SentenceTeacher.load(folder, "cpu").identity)
    assert len(identities) == 1
    assert identities != {SentenceTeacher.load(folder, "cpu", "query: ").identity}


def test_answers_are_kept_and_continued(monkeypatch):
    monkeypatch.setattr("ade.encoders.teacher.SAVED_EVERY", 100)
    answered: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        counting(answered, stop_after=200).vectors(TEXTS)
    assert sum(answered) == 200
    found = counting(answered).vectors(TEXTS)
    assert sum(answered) == len(TEXTS)  # none is asked twice
    assert np.allclose(found, unit(counting([]).encode(list(TEXTS))), atol=1e-3)
    assert np.array_equal(counting(answered).vectors(TEXTS), found)
    assert sum(answered) == len(TEXTS)


@pytest.mark.parametrize("damage", ["cut", "shape", "note"])
def test_a_damaged_cache_is_made_anew(damage, tmp_path):
    answered: list[int] = []
    expected = np.array(counting(answered).vectors(TEXTS))
    (kept,) = (tmp_path / "cache" / "vectors").iterdir()
    if damage == "cut":
        (kept / "vectors.npy").write_bytes((kept / "vectors.npy").read_bytes()[:100])
    elif damage == "shape":
        np.save(kept / "vectors.npy", np.zeros((4, 4), np.float16))
    else:
        (kept / "done.json").write_text("{", "utf8")
    assert np.array_equal(counting(answered).vectors(TEXTS), expected)
    assert sum(answered) == 2 * len(TEXTS)


def test_vectors_that_are_not_finite_are_refused():
    teacher = SentenceTeacher("broken", "broken", 2, lambda texts: np.full((len(texts), 2), np.nan))
    with pytest.raises(InputError, match="not finite"):
        teacher.vectors(TEXTS)
