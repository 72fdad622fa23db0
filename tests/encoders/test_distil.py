"""Distilling an encoder: a real sentence-transformers teacher, its cached answers, resuming, sizes, bad input."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from ade.encoders.distil import distill_encoder, gather_texts
from ade.encoders.teacher import SentenceTeacher
from ade.errors import InputError
from ade.settings import EncoderSettings
from ade.trained_model import Encoder, unit
from tests.conftest import topic_texts

TEXTS = topic_texts(400, 0)[0]
SHORT = EncoderSettings(size="40kB", steps=150, batch_size=32, learning_rate=0.01, device="cpu")


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_text("\n".join(TEXTS) + "\n\n", "utf8")
    return file


def test_the_student_comes_close_to_its_teacher(sentence_folder, corpus, tmp_path):
    made = distill_encoder(sentence_folder, corpus, SHORT, out=tmp_path / "out")
    assert isinstance(made, Encoder)
    assert sum(path.stat().st_size for path in (tmp_path / "out").iterdir() if path.suffix != ".jsonl") < 44_000

    # Similarities of texts it has not seen, by numpy alone, beside the teacher's own.
    fresh = topic_texts(60, 9)[0]
    original = SentenceTransformer(str(sentence_folder), device="cpu")
    teacher = unit(original.encode(fresh) - original.encode(TEXTS).mean(0))  # all of its vectors are much alike
    assert made.metadata["dev"]["cosine"] > 0.6
    ours = Encoder.load(tmp_path / "out").encode(fresh)
    above = np.triu_indices(len(fresh), 1)
    alike = np.corrcoef((ours @ ours.T)[above], (teacher @ teacher.T)[above])[0, 1]
    assert alike > 0.5


def assert_same(first, second):
    for one, other in (
        (first.saved.table.stored()[1], second.saved.table.stored()[1]),
        (first.saved.layers, second.saved.layers),
    ):
        for name, array in one.items():
            assert np.array_equal(array, other[name]), name


def test_an_interrupted_run_ends_like_one_that_was_not(sentence_folder, corpus, tmp_path):
    class Stopped(Exception):
        pass

    def stop(what, done, total, metrics):
        if what == "train" and done >= 80:
            raise Stopped

    whole = distill_encoder(sentence_folder, corpus, SHORT, out=tmp_path / "whole")
    with pytest.raises(Stopped):
        distill_encoder(sentence_folder, corpus, SHORT, out=tmp_path / "out", progress=stop)
    with pytest.raises(InputError, match="--resume"):
        distill_encoder(sentence_folder, corpus, SHORT, out=tmp_path / "out")
    resumed = distill_encoder(sentence_folder, corpus, SHORT, out=tmp_path / "out", existing="resume")
    assert_same(whole, resumed)
    other = replace(SHORT, steps=20)
    with pytest.raises(InputError, match="had steps = 150, not 20"):
        distill_encoder(sentence_folder, corpus, other, out=tmp_path / "out", existing="resume")


def test_texts_are_gathered_once_each(tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,"one, two"\n2,three\n3,\n'.replace("3,\n", ""), "utf8")
    (tmp_path / "b.jsonl").write_text(
        json.dumps({"text": "three"}) + "\n" + json.dumps({"text": " four "}) + "\n", "utf8"
    )
    texts, _ = gather_texts([tmp_path / "a.csv", tmp_path / "b.jsonl"], [*TEXTS[:30], "", "three"])
    assert list(texts)[:3] == ["one, two", "three", "four"]
    assert len(texts) == len(set(texts))
    with pytest.raises(InputError, match="at least 20 different texts, found 1"):
        gather_texts([], ["one", "one", " "])


def test_bad_settings_and_teachers_are_refused(sentence_folder, corpus, tmp_path):
    with pytest.raises(InputError, match="16 dimensions; 17 cannot"):
        distill_encoder(sentence_folder, corpus, EncoderSettings(dim=17, device="cpu"))
    with pytest.raises(InputError, match="too few"):
        distill_encoder(sentence_folder, corpus, EncoderSettings(size="1kB", device="cpu"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="not a readable sentence encoder"):
        distill_encoder(tmp_path / "empty", corpus)
    with pytest.raises(InputError, match="give table"):
        distill_encoder(SentenceTeacher("any", "any", 3, None), corpus)
    with pytest.raises(InputError, match="batch_size"):
        EncoderSettings(batch_size=1)
    broken = tmp_path / "broken"
    shutil.copytree(sentence_folder, broken)
    (broken / "model.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="broken"):
        distill_encoder(broken, corpus)


def test_fewer_dimensions_and_more_layers(sentence_folder, corpus, tmp_path):
    settings = EncoderSettings(size="60kB", dim=8, layers=2, steps=5, batch_size=16, device="cpu")
    made = distill_encoder(sentence_folder, corpus, settings, out=tmp_path / "out")
    assert made.dim == 8
    assert made.saved.config.layers == 2
    assert np.allclose(Encoder.load(tmp_path / "out").encode(TEXTS[:9]), made.encode(TEXTS[:9]), atol=1e-5)


def test_texts_that_mean_the_same_come_nearer(sentence_folder, corpus, tmp_path):
    lines = tmp_path / "lines.tsv"
    first, second = TEXTS[:150], TEXTS[150:300]
    lines.write_text("".join(f"{a}\t{b}\n" for a, b in zip(first, second, strict=True)), "utf8")

    def alike(**given):
        made = distill_encoder(sentence_folder, corpus, SHORT, **given)
        return float((made.encode(first) * made.encode(second)).sum(1).mean())

    assert alike(translations=lines) > alike() + 0.05
