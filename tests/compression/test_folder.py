"""Folders of models with packed tables: what is in them, and that they load bit for bit."""

import json
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from ade.compression.folder import save_compressed, transformer_folder
from ade.compression.head import CodedEmbedding, CodedHead
from ade.compression.quantizer import replace_tables
from ade.compression.replacement import coded_modules, find_tables, owners
from ade.errors import InputError
from tests.compression.conftest import DIM, MODELS, ROWS, outputs, some_ids, tiny_model
from tests.conftest import PATIENT


@pytest.mark.parametrize("kind", MODELS)
def test_every_architecture_reloads_bit_for_bit(kind, pack, tmp_path):
    model = pack(tiny_model(kind, tmp_path / "source"))
    before = outputs(model)
    save_compressed(model, tmp_path / "source", tmp_path / "packed")

    loaded, report = type(model).from_pretrained(tmp_path / "packed", output_loading_info=True)
    assert {name: len(found) for name, found in report.items() if found} == {}
    assert list(coded_modules(loaded)) == list(coded_modules(model))
    assert torch.equal(outputs(loaded), before)

    for one in (loaded, model):
        one.save_pretrained(tmp_path / "again")
        again, report = type(model).from_pretrained(tmp_path / "again", output_loading_info=True)
        assert {name: len(found) for name, found in report.items() if found} == {}
        assert torch.equal(outputs(again), before)


def test_the_text_part_of_a_model_of_texts_and_images_reloads_bit_for_bit(pack, tmp_path):
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=transformers.Gemma3TextConfig(**MODELS["gemma3"][2]),
        vision_config=transformers.SiglipVisionConfig(**vision, image_size=28, patch_size=14),
        mm_tokens_per_image=4,
        image_token_index=300,
    )
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path / "source")
    model = pack(transformers.Gemma3ForConditionalGeneration.from_pretrained(tmp_path / "source"))
    save_compressed(model, tmp_path / "source", tmp_path / "packed")
    loaded = transformers.Gemma3ForConditionalGeneration.from_pretrained(tmp_path / "packed")
    assert isinstance(loaded.lm_head, CodedHead)
    with torch.no_grad():
        assert torch.equal(loaded(some_ids()).logits, model(some_ids()).logits)


@pytest.mark.parametrize("kind", MODELS)
def test_a_dequantised_model_says_the_same_and_reloads(kind, pack, tmp_path):
    original = tiny_model(kind, tmp_path / "source")
    ties = dict(original.all_tied_weights_keys)
    model = pack(original)
    before = outputs(model)
    model.dequantize()
    assert not coded_modules(model)
    assert model.all_tied_weights_keys == ties
    assert torch.allclose(outputs(model), before, atol=1e-5)

    model.save_pretrained(tmp_path / "whole")
    assert "quantization_config" not in json.loads((tmp_path / "whole/config.json").read_text())
    assert torch.equal(outputs(type(model).from_pretrained(tmp_path / "whole")), outputs(model))


@pytest.mark.parametrize("kind", ["bert-mlm", "llama-untied", "t5", "bart"])
def test_all_other_tensors_keep_their_bytes(kind, pack, tmp_path):
    model = pack(tiny_model(kind, tmp_path / "source"))
    save_compressed(model, tmp_path / "source", tmp_path / "packed")
    source, packed = (load_file(tmp_path / name / "model.safetensors") for name in ("source", "packed"))

    replaced = {f"{name}.weight" for name in owners(model)}
    assert replaced <= set(source)
    for name, tensor in source.items():
        assert packed[name].dtype == tensor.dtype
        assert packed[name].shape == ((1,) if name in replaced else tensor.shape)
        assert name in replaced or torch.equal(packed[name], tensor)
    assert all(".table." in name for name in set(packed) - set(source))


def test_other_files_are_copied_and_other_weights_are_not(pack, tmp_path):
    source = tmp_path / "source"
    model = pack(tiny_model("bert-mlm", source))
    for name in ("tokenizer.json", "1_Pooling/config.json", "2_Dense/pytorch_model.bin", "README.md"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(b"kept")
    for name in ("pytorch_model.bin", "onnx/model.onnx", "tf_model.h5", "pytorch_model.bin.index.json"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(b"has the whole table")
    save_compressed(model, source, tmp_path / "packed")
    written = {
        str(path.relative_to(tmp_path / "packed")) for path in (tmp_path / "packed").rglob("*") if path.is_file()
    }
    assert written == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md",
        "1_Pooling/config.json", "2_Dense/pytorch_model.bin",
    } - ({"generation_config.json"} - {path.name for path in source.iterdir()})  # fmt: skip
    assert (tmp_path / "packed/1_Pooling/config.json").read_bytes() == b"kept"


@pytest.mark.parametrize(
    ("kind", "classes"),
    [("bert-mlm", [AutoModel, AutoModelForMaskedLM]), ("llama", [AutoModel, AutoModelForCausalLM]),
     ("gemma3", [AutoModel, AutoModelForCausalLM]), ("llama-untied", [AutoModel, AutoModelForCausalLM])],
)  # fmt: skip
def test_a_folder_loads_with_and_without_its_head(kind, classes, pack, tmp_path):
    model = pack(tiny_model(kind, tmp_path / "source"))
    save_compressed(model, tmp_path / "source", tmp_path / "packed")
    base, headed = (one.from_pretrained(tmp_path / "packed") for one in classes)
    assert torch.equal(outputs(base), outputs(model.base_model))
    assert torch.equal(outputs(headed), outputs(model))


def test_a_base_model_is_enough_to_compress_a_folder_with_a_head(pack, tmp_path):
    whole = tiny_model("bert-mlm", tmp_path / "source")
    base = pack(AutoModel.from_pretrained(tmp_path / "source"))
    save_compressed(base, tmp_path / "source", tmp_path / "packed")
    headed = AutoModelForMaskedLM.from_pretrained(tmp_path / "packed")
    assert isinstance(headed.get_output_embeddings(), CodedHead)
    assert torch.equal(outputs(headed), outputs(pack(whole)))


def test_files_in_shards_stay_in_shards(pack, tmp_path):
    model = tiny_model("llama-untied", tmp_path / "one")
    model.save_pretrained(tmp_path / "source", max_shard_size="60KB")
    shards = sorted(path.name for path in (tmp_path / "source").glob("*.safetensors"))
    assert len(shards) > 2
    pack(model)
    save_compressed(model, tmp_path / "source", tmp_path / "packed")
    assert sorted(path.name for path in (tmp_path / "packed").glob("*.safetensors")) == shards
    assert torch.equal(outputs(type(model).from_pretrained(tmp_path / "packed")), outputs(model))


def test_a_folder_of_pickles_is_compressed_too_and_none_is_written(pack, tmp_path):
    model = tiny_model("bert-mlm", tmp_path / "source")
    state = load_file(tmp_path / "source/model.safetensors")
    (tmp_path / "source/model.safetensors").unlink()
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"]  # as old checkpoints do
    torch.save(state, tmp_path / "source/pytorch_model.bin")
    pack(model)
    save_compressed(model, tmp_path / "source", tmp_path / "packed")
    assert not list((tmp_path / "packed").rglob("*.bin"))
    loaded = type(model).from_pretrained(tmp_path / "packed")
    assert isinstance(loaded.cls.predictions.decoder, CodedHead)
    assert torch.equal(outputs(loaded), outputs(model))


def test_a_tied_head_can_stay_whole(pack, tmp_path):
    original = tiny_model("gemma3", tmp_path / "source")
    table = original.lm_head.weight.detach().clone()
    model = pack(original, tie_head=False)
    assert torch.equal(model.lm_head.weight, table)
    save_compressed(model, tmp_path / "source", tmp_path / "packed")
    loaded = type(model).from_pretrained(tmp_path / "packed")
    assert isinstance(loaded.model.embed_tokens, CodedEmbedding)
    assert torch.equal(loaded.lm_head.weight, table)
    loaded.tie_weights()
    assert torch.equal(outputs(loaded), outputs(model))


def test_a_tied_head_can_have_a_table_of_its_own(tables, tmp_path):
    model = tiny_model("llama", tmp_path / "source")
    found = find_tables(model)
    replace_tables(model, {found.input: tables[0], found.head: tables[1]})
    save_compressed(model, tmp_path / "source", tmp_path / "packed")
    loaded = type(model).from_pretrained(tmp_path / "packed")
    assert torch.equal(loaded.lm_head.packed.book_0, tables[1].book_0)
    assert torch.equal(outputs(loaded), outputs(model))


@pytest.mark.parametrize("kind", ["llama-untied", "t5-untied"])
def test_a_head_of_its_own_can_stay_whole(kind, tables, tmp_path):
    model = tiny_model(kind, tmp_path / "source")
    replace_tables(model, {find_tables(model).input: tables[0]})
    save_compressed(model, tmp_path / "source", tmp_path / "packed")
    loaded = type(model).from_pretrained(tmp_path / "packed")
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    assert torch.equal(outputs(loaded), outputs(model))


def test_a_fresh_process_needs_nothing_but_import_ade(pack, tmp_path):
    model = pack(tiny_model("llama", tmp_path / "source"))
    save_compressed(model, tmp_path / "source", tmp_path / "packed")
    save_file({"ids": some_ids(), "logits": outputs(model)}, tmp_path / "expected.safetensors")
    program = f"""
import ade, sys
assert "torch" not in sys.modules and "transformers" not in sys.modules
import torch
torch.set_num_threads(1)
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
expected = load_file({str(tmp_path / "expected.safetensors")!r})
model = AutoModelForCausalLM.from_pretrained({str(tmp_path / "packed")!r})
assert torch.equal(model(expected["ids"]).logits, expected["logits"])
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENT)


def test_without_ade_transformers_raises(pack, tmp_path):
    for kind in ("bert-mlm", "llama", "llama-untied"):
        save_compressed(pack(tiny_model(kind, tmp_path / kind)), tmp_path / kind, tmp_path / f"{kind}-packed")
    program = f"""
import sys
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM
for kind in ("bert-mlm", "llama", "llama-untied"):
    for one in (AutoModel, AutoModelForMaskedLM if kind == "bert-mlm" else AutoModelForCausalLM):
        try:
            one.from_pretrained({str(tmp_path)!r} + "/" + kind + "-packed")
        except RuntimeError as error:
            assert "mismatch" in str(error), error
        else:
            raise AssertionError(kind)
assert "ade" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENT)


def test_a_sentence_transformers_folder_stays_one(pack, tmp_path):
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(ROWS - 5))]
    tokenizer = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(words)})
    tiny_model("bert", tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    modules = [Transformer(str(tmp_path / "bert")), Pooling(DIM, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "source"))

    model = SentenceTransformer(str(tmp_path / "source"), device="cpu")
    pack(model[0].auto_model)
    save_compressed(model[0].auto_model, tmp_path / "source", tmp_path / "packed")
    loaded = SentenceTransformer(str(tmp_path / "packed"), device="cpu")
    texts = ["w1 w2 w77", "w200 w201"]
    assert isinstance(loaded[0].auto_model.get_input_embeddings(), CodedEmbedding)
    assert (loaded.encode(texts) == model.encode(texts)).all()

    loaded.save(str(tmp_path / "again"))
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    assert (again.encode(texts) == model.encode(texts)).all()


def test_the_transformer_of_a_sentence_transformers_folder_may_be_in_a_subfolder(pack, tmp_path):
    model = pack(tiny_model("bert", tmp_path / "source/0_Transformer"))
    modules = [{"idx": 0, "path": "0_Transformer"}, {"idx": 1, "path": "1_Pooling"}]
    (tmp_path / "source/modules.json").write_text(json.dumps(modules))
    assert str(transformer_folder(tmp_path / "source")) == "0_Transformer"
    save_compressed(model, tmp_path / "source", tmp_path / "packed")
    assert json.loads((tmp_path / "packed/modules.json").read_text()) == modules
    assert torch.equal(outputs(type(model).from_pretrained(tmp_path / "packed/0_Transformer")), outputs(model))


def test_what_cannot_be_written_is_refused(pack, tmp_path):
    plain = tiny_model("bert", tmp_path / "source")
    with pytest.raises(InputError, match="call replace_tables first"):
        save_compressed(plain, tmp_path / "source", tmp_path / "packed")
    model = pack(plain)
    save_compressed(model, tmp_path / "source", tmp_path / "packed")
    with pytest.raises(InputError, match="already holds an earlier result"):
        save_compressed(model, tmp_path / "source", tmp_path / "packed")
    with pytest.raises(InputError, match="already quantized"):
        save_compressed(model, tmp_path / "packed", tmp_path / "twice")
    with pytest.raises(InputError, match="already quantized"):
        pack(model)
    with pytest.raises(InputError, match=r"no config\.json"):
        save_compressed(model, tmp_path, tmp_path / "third")
    smaller = transformers.BertModel(transformers.BertConfig(**MODELS["bert"][2] | {"vocab_size": 99}))
    smaller.save_pretrained(tmp_path / "smaller")
    with pytest.raises(InputError, match="of another model"):
        save_compressed(model, tmp_path / "smaller", tmp_path / "third")
    assert not (tmp_path / "third").exists()
