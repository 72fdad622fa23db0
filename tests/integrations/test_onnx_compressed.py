"""A compressed encoder in ONNX Runtime: the hidden states of PyTorch, and the table as packed as in the folder."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from onnx import numpy_helper
from typer.testing import CliRunner

import ade
from ade.cli.main import app
from ade.compression.folder import save_compressed
from ade.compression.replacement import owners
from ade.errors import InputError
from ade.integrations import onnx_compressed
from ade.integrations.onnx_compressed import Lookup, export_encoder, is_compressed
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
    (written,) = export_encoder(packed_encoder, tmp_path / "onnx")
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
