"""Encoders: the numpy one against the torch model, truncation, chunks, bad input, folders of another kind."""

import pickle

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st

from ade.backends import TableBackend
from ade.encoder import Encoder, unit
from ade.errors import InputError
from ade.model import model_of
from ade.torch_backends import TorchBackend
from tests.conftest import sentence_encoder

TEXTS = ["w1 w2 w3", "w4", "", "w5 w5 w1 w9 w2 w7", "w3 " * 300]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("encoders") / "one"
    sentence_encoder().save(out)
    return out


@pytest.mark.parametrize("layers", [1, 3])
def test_numpy_gives_the_vectors_of_torch(layers, tmp_path):
    encoder = sentence_encoder(layers)
    encoder.save(tmp_path / "encoder")
    loaded = Encoder.load(tmp_path / "encoder", threads=2)
    assert isinstance(loaded.backend, TableBackend)
    assert loaded.dim == 24
    texts = TEXTS * 8  # enough for several threads
    vectors = loaded.encode(texts)
    for other in (encoder, pickle.loads(pickle.dumps(encoder))):
        np.testing.assert_array_equal(other.encode(texts), vectors)
    model = model_of(encoder.saved).eval()
    np.testing.assert_allclose(Encoder(encoder.saved, TorchBackend(model)).encode(texts), vectors, atol=2e-6)
    for text, vector in zip(TEXTS, vectors, strict=False):
        ids = torch.tensor([loaded.tokenizer.encode(text).ids], dtype=torch.long)
        np.testing.assert_allclose(model(ids).embeddings[0].detach(), vector, atol=2e-6)
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
    with pytest.raises(InputError, match="text 3 "):
        list(encoder.stream(["w1", "w2", "w3", None]))


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
    with pytest.raises(InputError, match="text 1 "):
        encoder.encode(["fine", None])  # type: ignore[list-item]
    assert encoder.encode([]).shape == (0, 24)
    assert np.array_equal(encoder.encode({"text": TEXTS}), encoder.encode(TEXTS))  # type: ignore[arg-type]
    assert np.array_equal(unit(np.zeros((2, 3))), np.zeros((2, 3)))


def test_the_card_of_an_encoder_says_how_to_get_vectors(folder, capsys):
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == "sentence-similarity"
    assert "a unit vector of 24 dimensions" in card.text
    assert "Labels" not in card.text
    assert "pipeline(" not in card.text  # transformers has none for vectors of texts
    code = card.text.split("```python\n")[1].split("```")[0]
    exec(code.replace("FOLDER", str(folder)), {})  # what a reader of the card would run
    assert capsys.readouterr().out.strip() == "(2, 24)"
