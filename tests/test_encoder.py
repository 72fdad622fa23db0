"""Encoders: the numpy one against the torch model, truncation, chunks, bad input, folders of another kind."""

import shutil
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import ade
from ade.classifier import Classifier
from ade.encoder import Encoder, truncated, unit
from ade.errors import InputError
from ade.model import AdeForSequenceClassification
from ade.runtime.encoder import RuntimeEncoder
from ade.runtime.runtime import Runtime
from ade.sentence_encoder import SentenceEncoder
from ade.sentence_model import SIMILARITY, embedding_loss
from tests.conftest import sentence_encoder

TEXTS = ["w1 w2 w3", "w4", "", "w5 w5 w1 w9 w2 w7", "w3 " * 300]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("encoders") / "one"
    sentence_encoder().save(out)
    return out


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("attend", ["tokens", "gated"])
def test_numpy_gives_the_vectors_of_torch(layers, attend, tmp_path):
    encoder = sentence_encoder(layers, attend)
    encoder.save(tmp_path / "encoder")
    loaded = Encoder.load(tmp_path / "encoder", threads=2)
    assert isinstance(loaded, RuntimeEncoder)
    assert loaded.dim == 24
    texts = TEXTS * 8  # enough for several threads
    vectors = loaded.encode(texts)
    assert np.allclose(vectors, encoder.encode(texts), atol=2e-6)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 0.05


@given(texts=st.lists(st.lists(st.integers(0, 11), max_size=40), max_size=9))
def test_a_text_has_one_vector_whatever_stands_beside_it(texts):
    encoder = sentence_encoder()
    written = [" ".join(f"w{number}" for number in words) for words in texts]
    together = encoder.encode(written)
    assert together.shape == (len(texts), 24)
    for text, vector in zip(written, together, strict=True):
        assert np.allclose(encoder.encode(text), vector, atol=1e-5)


def test_a_stream_gives_what_a_list_gives(folder, monkeypatch):
    monkeypatch.setattr("ade.encoder.CHUNK", 2)
    encoder = Encoder.load(folder)
    parts = list(encoder.stream(iter(TEXTS)))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert np.allclose(np.concatenate(parts), encoder.encode(TEXTS), atol=1e-6)


def test_vectors_can_be_truncated(folder):
    encoder = Encoder.load(folder)
    whole, short = encoder.encode(TEXTS), encoder.encode(TEXTS, dim=5)
    assert np.allclose(short, whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True), atol=1e-6)
    for dim in (0, 25):
        with pytest.raises(InputError, match="24 dimensions"):
            encoder.encode(TEXTS, dim=dim)


def test_bad_texts_are_refused(folder):
    encoder = Encoder.load(folder)
    with pytest.raises(InputError, match="give a text or a list"):
        encoder.encode(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="1"):
        encoder.encode(["fine", None])  # type: ignore[list-item]
    assert encoder.encode([]).shape == (0, 24)
    assert np.array_equal(unit(np.zeros((2, 3))), np.zeros((2, 3)))
    assert truncated(np.ones((2, 3)), None).shape == (2, 3)


def test_other_kinds_of_models_are_refused(folder, codebook, topics, tmp_path):
    for load in (Runtime.load, Classifier.load):
        with pytest.raises(InputError, match=r"an encoder, which turns texts into vectors; a classifier .* needed"):
            load(folder)
    Classifier(AdeForSequenceClassification.from_codebook(codebook, ["a", "b"]), codebook.tokenizer).save(
        tmp_path / "c"
    )
    for load in (Encoder.load, SentenceEncoder.load):
        with pytest.raises(InputError, match="a classifier of texts; an encoder is needed here"):
            load(tmp_path / "c")
    with pytest.raises(InputError, match="not a model folder"):
        Encoder.load(tmp_path)
    shutil.copytree(folder, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(InputError, match="not a readable ADE model"):
        Encoder.load(tmp_path / "cut")


def test_the_numpy_encoder_loads_no_torch(folder):
    program = (
        f"import sys, ade; print(ade.load({str(folder)!r}).encode(['w1 w2']).shape); "
        "print([m for m in ('torch', 'transformers', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["(1, 24)", "[]"]


def test_ade_load_gives_an_encoder(folder):
    assert isinstance(ade.load(folder), RuntimeEncoder)


def test_the_loss_is_zero_where_all_is_as_wanted_and_counts_short_vectors():
    wanted = F.normalize(torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    flat = torch.cat([wanted[:, :2], torch.zeros(6, 6)], 1)
    flat = F.normalize(flat, dim=1)  # all of it in the first fourth, so truncating changes nothing
    assert float(embedding_loss(flat, flat)) == pytest.approx(0, abs=1e-6)

    other = F.normalize(torch.randn(6, 8, generator=torch.Generator().manual_seed(1)), dim=1)
    short = F.normalize(other[:, :2], dim=1)
    alike = wanted @ wanted.T
    squared = [float(((each @ each.T) - alike).square().mean()) for each in (other, short)]
    expected = float((1 - (other * wanted).sum(1)).mean()) + SIMILARITY * sum(squared) / 2
    assert float(embedding_loss(other, 3 * wanted)) == pytest.approx(expected, rel=1e-5)  # lengths do not count


@pytest.mark.parametrize("layers", [1, 3])
def test_onnx_gives_the_same_vectors(layers, tmp_path):
    """Truncated as the tokenizer does, padded, and one without any token; the export compares many more."""
    encoder = sentence_encoder(layers)
    files = ade.export(encoder, tmp_path / "onnx")
    assert [each.file for each in files] == ["model.onnx", "model.int8.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    rows = [encoder.tokenizer.encode(text).ids for text in TEXTS]
    ids, mask = np.zeros((2, len(rows), 32), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    (found,) = session.run(["embeddings"], {"input_ids": ids, "attention_mask": mask})
    assert np.allclose(found, encoder.encode(TEXTS), atol=1e-5)


def test_the_card_of_an_encoder_says_how_to_get_vectors(folder, capsys):
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == "sentence-similarity"
    assert "a unit vector of 24 dimensions" in card.text
    assert "Labels" not in card.text
    assert "pipeline(" not in card.text  # transformers has none for vectors of texts
    code = card.text.split("```python\n")[1].split("```")[0]
    exec(code.replace("FOLDER", str(folder)), {})  # what a reader of the card would run
    assert capsys.readouterr().out.strip() == "(2, 24)"
