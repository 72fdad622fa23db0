"""Distilling an encoder: a real sentence-transformers teacher, its cached answers, resuming, sizes, bad input."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from ade.encoder import Encoder, unit
from ade.errors import InputError
from ade.sentence_encoder import SentenceEncoder
from ade.settings import EncoderSettings
from ade.training.distill_encoder import distill_encoder, gather_texts
from ade.training.sentence_teacher import SentenceTeacher
from tests.conftest import FILLER, WORDS, topic_texts, word_tokenizer

TEXTS = topic_texts(400, 0)[0]
SHORT = EncoderSettings(size="40kB", steps=150, batch_size=32, learning_rate=0.01, device="cpu")


@pytest.fixture(scope="module")
def sentence_folder(tmp_path_factory):
    """A real sentence encoder, too small to know anything."""
    folder = tmp_path_factory.mktemp("sentence") / "teacher"
    words = word_tokenizer([*(word for group in WORDS.values() for word in group), *FILLER])
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=words.get_vocab_size(), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, initializer_range=0.3,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder.parent / "bert")
    fast = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained(folder.parent / "bert")
    module = Transformer(str(folder.parent / "bert"))
    SentenceTransformer(modules=[module, Pooling(16, "mean"), Normalize()], device="cpu").save(str(folder))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_text("\n".join(TEXTS) + "\n\n", "utf8")
    return file


def test_the_student_comes_close_to_its_teacher(sentence_folder, corpus, tmp_path):
    made = distill_encoder(sentence_folder, corpus, SHORT, out=tmp_path / "out")
    assert isinstance(made, SentenceEncoder)
    assert sum(path.stat().st_size for path in (tmp_path / "out").iterdir() if path.suffix != ".jsonl") < 44_000

    # Similarities of texts it has not seen, by numpy alone, beside the teacher's own.
    fresh = topic_texts(60, 9)[0]
    original = SentenceTransformer(str(sentence_folder), device="cpu")
    teacher = unit(original.encode(fresh) - original.encode(TEXTS).mean(0))  # all of its vectors are much alike
    assert made.model.config.about["dev"]["cosine"] > 0.6
    ours = Encoder.load(tmp_path / "out").encode(fresh)
    above = np.triu_indices(len(fresh), 1)
    alike = np.corrcoef((ours @ ours.T)[above], (teacher @ teacher.T)[above])[0, 1]
    assert alike > 0.5


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
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    other = replace(SHORT, steps=20)
    with pytest.raises(InputError, match="had steps = 150, not 20"):
        distill_encoder(sentence_folder, corpus, other, out=tmp_path / "out", existing="resume")


def test_several_processes_are_refused(sentence_folder, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # as `accelerate launch` sets it
    with pytest.raises(InputError, match="in one process, not in 2"):
        distill_encoder(sentence_folder, corpus, SHORT, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv("WORLD_SIZE", "1")
    distill_encoder(sentence_folder, corpus, replace(SHORT, steps=1), out=tmp_path / "out")


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
    monkeypatch.setattr("ade.training.sentence_teacher.ANSWERED", 100)
    texts, answered = gather_texts([], TEXTS)[0], []
    with pytest.raises(KeyboardInterrupt):
        counting(answered, stop_after=200).vectors(texts)
    assert sum(answered) == 200
    found = counting(answered).vectors(texts)
    assert sum(answered) == len(texts)  # none is asked twice
    expected = counting([]).encode(list(texts))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.allclose(found, expected, atol=1e-3)
    assert np.array_equal(counting(answered).vectors(texts), found)
    assert sum(answered) == len(texts)


@pytest.mark.parametrize("damage", ["cut", "shape", "note"])
def test_a_damaged_cache_is_made_anew(damage, tmp_path):
    texts, answered = gather_texts([], TEXTS)[0], []
    expected = np.array(counting(answered).vectors(texts))
    (kept,) = (tmp_path / "cache" / "vectors").iterdir()
    if damage == "cut":
        (kept / "vectors.npy").write_bytes((kept / "vectors.npy").read_bytes()[:100])
    elif damage == "shape":
        np.save(kept / "vectors.npy", np.zeros((4, 4), np.float16))
    else:
        (kept / "done.json").write_text("{", "utf8")
    assert np.array_equal(counting(answered).vectors(texts), expected)
    assert sum(answered) == 2 * len(texts)


def test_vectors_that_are_not_finite_are_refused():
    teacher = SentenceTeacher("broken", "broken", 2, lambda texts: np.full((len(texts), 2), np.nan))
    with pytest.raises(InputError, match="not finite"):
        teacher.vectors(gather_texts([], TEXTS)[0])


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
        distill_encoder(counting([]), corpus)
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
    assert len(made.model.ade.layers) == 1
    assert np.allclose(Encoder.load(tmp_path / "out").encode(TEXTS[:9]), made.encode(TEXTS[:9]), atol=1e-5)


def test_texts_that_mean_the_same_come_nearer(sentence_folder, corpus, tmp_path):
    lines = tmp_path / "lines.tsv"
    first, second = TEXTS[:150], TEXTS[150:300]
    lines.write_text("".join(f"{a}\t{b}\n" for a, b in zip(first, second, strict=True)), "utf8")

    def alike(**given):
        made = distill_encoder(sentence_folder, corpus, SHORT, **given)
        return float((made.encode(first) * made.encode(second)).sum(1).mean())

    assert alike(translations=lines) > alike() + 0.05
