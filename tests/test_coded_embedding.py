"""Encoders whose table is coded: the layer against plain rows, numpy and ONNX against torch, what is refused."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

import ade
from ade.coded_embedding import CodedDictionary
from ade.compression.coded_table import CodedTable
from ade.encoder import Encoder
from ade.errors import InputError
from ade.integrations.onnx_export import export
from ade.packing.coded import Stage, TableShape
from ade.runtime.encoder import RuntimeEncoder
from ade.sentence_encoder import SentenceEncoder
from ade.sentence_model import AdeForSentenceEmbedding
from ade.settings import Architecture
from tests.compression.test_table import random_table
from tests.conftest import word_tokenizer

TEXTS = ["w1 w2 w3", "w4", "", "w5 w5 w1 w9 w2 w7", "w3 " * 300]
DEPTHS = "ade.embedding.coded.depths"
SHAPE = TableShape(14, 16, 2, (Stage(8, 12), Stage(4, 9, shared=True), Stage(2, 4)))


def coded_table() -> CodedTable:
    tokenizer = word_tokenizer([f"w{number}" for number in range(12)])
    assert tokenizer.get_vocab_size() == SHAPE.rows
    return CodedTable(random_table(SHAPE, dtype=torch.float16), tokenizer, {"teacher": "random"})


def coded_encoder(layers: int = 1) -> SentenceEncoder:
    """An encoder on a coded table, none of whose parameters is at its starting value."""
    table, shape = coded_table(), Architecture(attend="tokens", layers=layers, heads=4, max_tokens=32, layer_bits=8)
    model = AdeForSentenceEmbedding.from_codebook(table, (), shape, output_size=24, position_scale=0.3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return SentenceEncoder(model, table.tokenizer)


def test_rows_are_those_of_the_table():
    table = coded_table().table
    layer = coded_encoder().model.ade.embedding
    assert isinstance(layer, CodedDictionary)
    layer.load(table)
    ids = torch.arange(SHAPE.rows)
    composed, plain = layer.compose(ids).detach(), table(ids)
    assert torch.allclose(composed, plain, rtol=1e-5, atol=1e-5)


def test_books_are_rounded_to_what_is_stored():
    encoder, ids = coded_encoder(), torch.arange(SHAPE.rows)
    layer, stored = encoder.model.ade.embedding, encoder.model.packed().ade.embedding
    trained = layer.compose(ids).detach()
    assert layer.round_as_stored()
    rounded = layer.compose(ids).detach()
    assert (rounded - trained).abs().max() > 1e-4
    assert torch.allclose(rounded, stored.compose(ids), rtol=1e-5, atol=1e-5)
    assert layer.round_as_stored()
    assert torch.allclose(layer.compose(ids).detach(), rounded, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layers", [1, 2])
def test_numpy_torch_and_onnx_give_the_same_vectors(layers, tmp_path):
    encoder = coded_encoder(layers)
    encoder.save(tmp_path / "encoder")
    loaded, torch_one = Encoder.load(tmp_path / "encoder", threads=2), SentenceEncoder.load(tmp_path / "encoder", "cpu")
    assert isinstance(loaded, RuntimeEncoder)
    assert torch_one.model.config.packed
    vectors = loaded.encode(TEXTS * 8)
    assert np.allclose(vectors, torch_one.encode(TEXTS * 8), atol=2e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 0.05
    cosine = F.cosine_similarity(*(torch.from_numpy(each.encode(TEXTS)) for each in (encoder, torch_one)), dim=1)
    assert cosine.min() > 0.99  # packing rounds books and layers to 8 bits

    for file in export(torch_one, tmp_path / "onnx"):
        session = onnxruntime.InferenceSession(tmp_path / "onnx" / file.file)
        encoding = loaded.tokenizer.encode("w5 w5 w1 w9 w2 w7")
        feed = {"input_ids": [encoding.ids], "attention_mask": [encoding.attention_mask]}
        (found,) = session.run(None, {name: np.array(rows, np.int64) for name, rows in feed.items()})
        assert np.allclose(found[0], vectors[3], atol=1e-5)


def test_a_model_in_bfloat16_keeps_its_table():
    encoder = coded_encoder()
    before = encoder.encode(TEXTS)
    encoder.model.to(torch.bfloat16)
    assert encoder.model.ade.embedding.coded.mean.dtype == torch.float32
    after = encoder.encode(TEXTS)
    assert (before * after).sum(1).min() > 0.99


def test_what_needs_anchors_is_refused_in_a_line(tmp_path, ade):
    coded_encoder().save(tmp_path / "encoder")
    layer = coded_encoder().model.ade.embedding
    for call in (layer.table, lambda: layer.pairs_of(torch.tensor([1]))):
        with pytest.raises(InputError, match="coded"):
            call()
    code, _, error = ade("inspect", tmp_path / "encoder", "w1")
    assert code == 2
    assert "coded" in error
    assert error.count("\n") == 1


def test_a_classifier_starts_from_it(tmp_path):
    coded_encoder().save(tmp_path / "encoder")
    texts = [" ".join(f"w{6 * label + number % 5}" for number in range(3, 9)) for label in (0, 1) for _ in range(40)]
    rows = {"text": texts, "label": ["low"] * 40 + ["high"] * 40}
    chosen = {"steps": 150, "learning_rate": 5e-3, "batch_size": 16, "lexicon": False}
    made = ade.train(rows, start=tmp_path / "encoder", out=tmp_path / "model", **chosen, progress=False)
    assert made.model.config.coded
    asked = [texts[0], texts[-1]]
    assert ade.load(tmp_path / "model").predict(asked) == made.predict(asked) == ["low", "high"]


def test_a_damaged_folder_is_refused(tmp_path):
    coded_encoder().save(tmp_path / "encoder")
    config = json.loads((tmp_path / "encoder" / "config.json").read_text())
    for change in ({"attend": "gated"}, {"coded": {**config["coded"], "rows": 15}}, {"vocab_size": 15}):
        (tmp_path / "encoder" / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(InputError):
            Encoder.load(tmp_path / "encoder")


def test_a_table_folder_reads_back(tmp_path):
    made = coded_table()
    made.save(tmp_path / "table")
    again = CodedTable.load(tmp_path / "table")
    assert (again.digest(), dict(again.about)) == (made.digest(), {"teacher": "random"})
    assert again.tokenizer.to_str() == made.tokenizer.to_str()
    (tmp_path / "table" / "table.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="not a packed table"):
        CodedTable.load(tmp_path / "table")


def test_the_card_speaks_of_coded_rows(tmp_path):
    coded_encoder().save(tmp_path / "encoder")
    card = (tmp_path / "encoder" / "README.md").read_text("utf8")
    assert "14 coded rows of width 16" in card
    assert "anchor" not in card.split("How to use")[0]
    assert ade.load(tmp_path / "encoder").encode("w1").shape == (24,)


def test_damaged_arrays_and_books_in_training_are_refused(tmp_path):
    encoder = coded_encoder()
    encoder.save(tmp_path / "encoder")
    file = tmp_path / "encoder" / "model.safetensors"
    arrays = load_file(file)
    save_file({**arrays, DEPTHS: torch.zeros_like(arrays[DEPTHS])}, file, {"format": "pt"})
    for kind in (RuntimeEncoder, SentenceEncoder):
        with pytest.raises(InputError, match="damaged"):
            kind.load(tmp_path / "encoder", "cpu")

    encoder.model.save_pretrained(tmp_path / "training")  # books as parameters, beside the bytes they started from
    encoder.tokenizer.save(str(tmp_path / "training" / "tokenizer.json"))
    with pytest.raises(InputError, match="not packed"):
        RuntimeEncoder.load(tmp_path / "training")
