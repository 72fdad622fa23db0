"""A compressed encoder in ONNX Runtime: the hidden states of PyTorch, and the table as packed as in the folder."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import ade
from ade.cli.main import app
from ade.compression.folder import save_compressed
from ade.compression.replacement import owners
from ade.errors import InputError
from ade.integrations import onnx_compressed
from ade.integrations.onnx_compressed import Lookup, export_encoder, is_compressed
from ade.integrations.onnx_four_bits import in_four_bits, quantized
from tests.compression.conftest import ROWS, pack, tables, tiny_model  # noqa: F401
from tests.compression.test_compress import corpus, decoder, encoder, save_tokenizer, texts  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def packed_encoder(encoder, corpus, tmp_path):  # noqa: F811
    ade.compress(encoder, tmp_path / "packed", ade.CompressionSettings(size="24kB"), [corpus])
    return tmp_path / "packed"


def ragged(rows: int, length: int, vocabulary: int, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(length) < torch.randint(1, length + 1, (rows, 1), generator=generator)
    ids = torch.randint(3, vocabulary, (rows, length), generator=generator) * mask
    return ids, mask.long()


def states_of(path, ids: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["last_hidden_state"], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0]


def test_the_lookup_in_operations_of_onnx_reads_the_same_rows(pack, tmp_path):  # noqa: F811
    model = pack(tiny_model("bert", tmp_path))
    (module,) = owners(model).values()
    ids = torch.arange(ROWS).reshape(7, -1)
    lookup = Lookup(module)
    assert torch.equal(lookup.slots(), module.packed.slots())
    torch.testing.assert_close(lookup(ids), module(ids))


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta-labels", "mpnet-mlm", "distilbert-mlm"])
def test_ragged_batches_of_several_architectures(kind, pack, tmp_path):  # noqa: F811
    source = tmp_path / "source"
    model = tiny_model(kind, source)
    save_tokenizer(source, decoder=False)
    save_compressed(pack(model), source, tmp_path / "packed")
    body = model.base_model.eval()

    export_encoder(tmp_path / "packed", tmp_path / "onnx")
    for rows, length in ((1, 1), (4, 17), (9, 60)):
        ids, mask = ragged(rows, length, ROWS)
        with torch.no_grad():
            expected = body(input_ids=ids, attention_mask=mask).last_hidden_state.numpy()
        np.testing.assert_allclose(
            states_of(tmp_path / "onnx" / "model.onnx", ids, mask), expected, rtol=1e-3, atol=1e-4
        )


def test_codes_stay_codes(packed_encoder, tmp_path):
    written, _ = export_encoder(packed_encoder, tmp_path / "onnx")
    graph = onnx.load(tmp_path / "onnx" / "model.onnx").graph
    arrays = {array.name: numpy_helper.to_array(array) for array in graph.initializer}
    constants = [node for node in graph.node if node.op_type == "Constant"]
    constants = [numpy_helper.to_array(node.attribute[0].t) for node in constants if node.attribute[0].HasField("t")]
    codes = [array for name, array in arrays.items() if ".codes_" in name]
    assert codes
    assert {array.dtype for array in codes} == {np.dtype(np.uint8)}
    assert max(array.size for array in constants) <= 512  # position ids
    assert 404 not in {array.size for array in constants}  # nothing else has a number for every row

    table = sum(array.nbytes for name, array in arrays.items() if "word_embeddings" in name)
    assert table <= json.loads((packed_encoder / "compression.json").read_text())["table"]["after"]
    whole = {shape for shape in (array.shape for array in arrays.values()) if 404 in shape}
    assert (404, 32) not in whole
    assert written.bytes == (tmp_path / "onnx" / "model.onnx").stat().st_size
    assert written.difference < 1e-4


def test_float16_weights_stay_float16_in_the_file(encoder, corpus, tmp_path):  # noqa: F811
    model = transformers.AutoModel.from_pretrained(encoder, dtype=torch.float16)
    model.save_pretrained(tmp_path / "half")
    save_tokenizer(tmp_path / "half", decoder=False)
    ade.compress(tmp_path / "half", tmp_path / "packed", ade.CompressionSettings(size="24kB"), [corpus])
    export_encoder(tmp_path / "packed", tmp_path / "onnx")

    stored = {array.name: array.data_type for array in onnx.load(tmp_path / "onnx" / "model.onnx").graph.initializer}
    wide = [name for name, kind in stored.items() if kind == onnx.TensorProto.FLOAT]
    assert all("word_embeddings" in name for name in wide)  # scales and the mean
    assert sum(kind == onnx.TensorProto.FLOAT16 for kind in stored.values()) > 10

    ids, mask = ragged(5, 11, 404)
    body = torch.nn.Module.float(transformers.AutoModel.from_pretrained(tmp_path / "packed")).eval()
    with torch.no_grad():
        expected = body(input_ids=ids, attention_mask=mask).last_hidden_state.numpy()
    np.testing.assert_allclose(states_of(tmp_path / "onnx" / "model.onnx", ids, mask), expected, rtol=1e-3, atol=1e-4)


def test_the_command_exports_either_kind_of_folder(packed_encoder, tmp_path):
    assert is_compressed(packed_encoder)
    assert not is_compressed(tmp_path)
    done = CliRunner().invoke(app, ["export", str(packed_encoder), "--out", str(tmp_path / "onnx"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["files"][0]["file"] == "model.onnx"
    assert {path.name for path in (tmp_path / "onnx").iterdir()} >= {"model.onnx", "tokenizer.json", "config.json"}
    config = json.loads((tmp_path / "onnx" / "config.json").read_text())
    assert config["model_type"] == "bert"
    assert "quantization_config" not in config


def test_decoders_are_refused(decoder, corpus, tmp_path):  # noqa: F811
    ade.compress(decoder, tmp_path / "packed", ade.CompressionSettings(size="24kB"), [corpus])
    with pytest.raises(InputError, match="not an encoder"):
        export_encoder(tmp_path / "packed", tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_a_graph_that_differs_is_not_written(packed_encoder, tmp_path, monkeypatch):
    plain = Lookup.forward
    monkeypatch.setattr(onnx_compressed.Lookup, "forward", lambda lookup, ids: plain(lookup, ids) * 1.1)
    with pytest.raises(InputError, match="off PyTorch"):
        export_encoder(packed_encoder, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


@pytest.mark.parametrize("block", [16, 32, 64])
def test_four_bits_are_what_the_operator_of_onnxruntime_reads(block):
    """The product of `MatMulNBits` is that with the matrix which the codes, scales and zero points say."""
    generator = np.random.default_rng(block)
    weight = generator.normal(0.1, 1, (24, 3 * block)).astype(np.float32)
    weight[0] = 0
    weight[1] = np.abs(weight[1]) + 5  # far from zero
    inputs = generator.normal(size=(5, 7, weight.shape[1])).astype(np.float32)

    codes, scales, zeros = quantized(weight, block)
    both = np.stack([codes & 15, codes >> 4], 3).reshape(24, 3, block).astype(np.float32)
    nibbles = np.stack([zeros & 15, zeros >> 4], 1).reshape(24, -1)[:, :3, None]
    read = ((both - nibbles) * scales.reshape(24, 3, 1)).reshape(weight.shape)
    step = (weight.reshape(24, 3, block).max(2).clip(0) - weight.reshape(24, 3, block).min(2).clip(None, 0)) / 15
    assert np.square(read - weight).mean() <= np.square(step).mean() / 12 * 1.3

    made = helper.make_graph(
        [
            helper.make_node("Transpose", ["weight"], ["turned"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "turned"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["a", "b", weight.shape[1]])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["a", "b", 24])],
        [numpy_helper.from_array(weight, "weight")],
    )
    data = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    small = in_four_bits(data)
    assert [node.op_type for node in onnx.load_model_from_string(small).graph.node] == ["MatMulNBits"]
    session = onnxruntime.InferenceSession(small, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": inputs})[0], inputs @ read.T, rtol=1e-3, atol=1e-3)


def test_four_bits_are_a_fraction_of_the_file_and_point_where_the_states_did(packed_encoder, tmp_path):
    whole, small = export_encoder(packed_encoder, tmp_path / "onnx")
    assert small.file == "model_q4.onnx"
    assert small.bytes < whole.bytes
    assert 0 < small.difference < small.spread / 2
    graph = onnx.load(tmp_path / "onnx" / "model_q4.onnx").graph
    assert sum(node.op_type == "MatMulNBits" for node in graph.node) >= 6  # attention and feed-forward
    ids, mask = ragged(6, 12, 404)
    ours, theirs = (states_of(tmp_path / "onnx" / name, ids, mask) for name in ("model_q4.onnx", "model.onnx"))
    cosine = (ours * theirs).sum(2) / np.linalg.norm(ours, axis=2) / np.linalg.norm(theirs, axis=2)
    assert cosine[mask.numpy() > 0].min() > 0.9


@pytest.mark.parametrize("mode", ["mean", "cls"])
@pytest.mark.parametrize("unit", [True, False])
def test_a_sentence_transformers_folder_has_its_vectors_as_an_output(mode, unit, encoder, corpus, tmp_path):  # noqa: F811
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    parts = [Transformer(str(encoder)), Pooling(32, pooling_mode=mode), *([Normalize()] if unit else [])]
    SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "source"))
    ade.compress(tmp_path / "source", tmp_path / "packed", ade.CompressionSettings(size="24kB"), [corpus])
    export_encoder(tmp_path / "packed", tmp_path / "onnx")

    loaded = SentenceTransformer(str(tmp_path / "packed"), device="cpu")
    some = texts(6)
    batch = loaded.tokenizer(some, padding=True, return_tensors="np")
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    feed = {name: batch[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    (found,) = session.run(["sentence_embedding"], feed)
    np.testing.assert_allclose(found, loaded.encode(some), rtol=1e-3, atol=1e-4)
