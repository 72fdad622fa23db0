"""Folders of models with packed tables: what is in them, and that they load bit for bit."""

import json
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from ade.compression.checkpoint import transformer_folder, write_folder
from ade.compression.head import PackedEmbedding, PackedHead
from ade.compression.outputs import is_decoder
from ade.compression.quantizer import replace_tables
from ade.compression.replacement import find_tables, packed_modules
from tests.compression.conftest import DIM, MODELS, ROWS, need_gemma4, outputs, some_ids, tiny_model, unpacked
from tests.conftest import PATIENT


@pytest.mark.parametrize("kind", MODELS)
def test_every_architecture_reloads_bit_for_bit_and_says_what_its_rows_say(kind, pack, tmp_path):
    model = pack(tiny_model(kind, tmp_path / "source"))
    before = outputs(model)
    write_folder(model, tmp_path / "source", tmp_path / "packed")

    loaded, report = type(model).from_pretrained(tmp_path / "packed", output_loading_info=True)
    assert {name: len(found) for name, found in report.items() if found} == {}
    assert list(packed_modules(loaded)) == list(packed_modules(model))
    assert torch.equal(outputs(loaded), before)

    for one in (loaded, model):
        one.save_pretrained(tmp_path / "again")
        again, report = type(model).from_pretrained(tmp_path / "again", output_loading_info=True)
        assert {name: len(found) for name, found in report.items() if found} == {}
        assert torch.equal(outputs(again), before)

    whole = unpacked(model, tmp_path / "source")
    assert not packed_modules(whole)
    assert torch.allclose(outputs(whole), before, atol=1e-5)


VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
GEMMA3 = {
    "mm_tokens_per_image": 4,
    "image_token_index": 300,
    "vision_config": VISION | {"image_size": 28, "patch_size": 14},
}
GEMMA4 = {"image_token_id": 300, "vision_config": VISION | {"num_key_value_heads": 2, "head_dim": 16}}


@pytest.mark.parametrize(("kind", "settings"), [("gemma3", GEMMA3), ("gemma4", GEMMA4)])
def test_the_text_part_of_a_model_of_texts_and_images_reloads_bit_for_bit(kind, settings, pack, tmp_path):
    if kind == "gemma4":
        need_gemma4()
    model_class = getattr(transformers, f"{kind.capitalize()}ForConditionalGeneration")
    model_class(model_class.config_class(text_config=MODELS[kind][1], **settings)).save_pretrained(tmp_path / "source")
    model = pack(model_class.from_pretrained(tmp_path / "source"))
    write_folder(model, tmp_path / "source", tmp_path / "packed")
    loaded = model_class.from_pretrained(tmp_path / "packed")
    assert isinstance(loaded.lm_head, PackedHead)
    assert is_decoder(loaded)
    with torch.no_grad():
        assert torch.equal(loaded(some_ids()).logits, model(some_ids()).logits)
        whole = unpacked(model, tmp_path / "source")
        assert torch.allclose(loaded(some_ids()).logits, whole(some_ids()).logits, atol=1e-5)


def test_other_files_are_copied_and_other_weights_are_not(pack, tmp_path):
    source = tmp_path / "source"
    kind = type(tiny_model("llama", source))
    settings = b'{"temperature": 0.5, "eos_token_id": 2}'  # transformers loads it, and refuses to save it
    kept = {"tokenizer.json", "1_Pooling/config.json", "2_Dense/pytorch_model.bin", "README.md"}
    left = {"pytorch_model.bin", "onnx/model.onnx", "tf_model.h5", "pytorch_model.bin.index.json"}
    for name in kept | left | {"generation_config.json"}:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(settings if "generation" in name else b"any content")
    write_folder(pack(kind.from_pretrained(source)), source, tmp_path / "packed")

    files = {str(p.relative_to(tmp_path / "packed")): p for p in (tmp_path / "packed").rglob("*") if p.is_file()}
    assert set(files) == kept | {"config.json", "model.safetensors", "generation_config.json"}
    assert files["generation_config.json"].read_bytes() == settings
    assert files["1_Pooling/config.json"].read_bytes() == b"any content"
    before, after = load_file(source / "model.safetensors"), load_file(files["model.safetensors"])
    unchanged = set(before) - {"model.embed_tokens.weight"}
    assert set(after) - unchanged == {name for name in after if ".table." in name} | {"model.embed_tokens.weight"}
    assert all(torch.equal(before[name], after[name]) for name in unchanged)


@pytest.mark.parametrize(
    ("kind", "classes"),
    [("bert-mlm", [AutoModel, AutoModelForMaskedLM]), ("llama", [AutoModel, AutoModelForCausalLM]),
     ("gemma3", [AutoModel, AutoModelForCausalLM]), ("llama-untied", [AutoModel, AutoModelForCausalLM])],
)  # fmt: skip
def test_a_folder_loads_with_and_without_its_head(kind, classes, pack, tmp_path):
    model = pack(tiny_model(kind, tmp_path / "source"))
    write_folder(model, tmp_path / "source", tmp_path / "packed")
    base, headed = (one.from_pretrained(tmp_path / "packed") for one in classes)
    assert torch.equal(outputs(base), outputs(model.base_model))
    assert torch.equal(outputs(headed), outputs(model))


@pytest.mark.parametrize("kind", ["llama-untied", "t5-untied"])
def test_an_untied_head_can_stay_whole(kind, tables, tmp_path):
    model = tiny_model(kind, tmp_path / "source")
    head = model.lm_head.weight.detach().clone()
    replace_tables(model, {find_tables(model).input: tables[0]})
    write_folder(model, tmp_path / "source", tmp_path / "packed")
    loaded = type(model).from_pretrained(tmp_path / "packed")
    loaded.tie_weights()
    assert isinstance(loaded.get_input_embeddings(), PackedEmbedding)
    assert torch.equal(loaded.lm_head.weight, head)
    assert torch.equal(outputs(loaded), outputs(model))


def test_a_fresh_process_needs_nothing_but_import_ade(pack, tmp_path):
    model = pack(tiny_model("llama", tmp_path / "source"))
    write_folder(model, tmp_path / "source", tmp_path / "packed")
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
        write_folder(pack(tiny_model(kind, tmp_path / kind)), tmp_path / kind, tmp_path / f"{kind}-packed")
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
    write_folder(model[0].auto_model, tmp_path / "source", tmp_path / "packed")
    loaded = SentenceTransformer(str(tmp_path / "packed"), device="cpu")
    texts = ["w1 w2 w77", "w200 w201"]
    assert isinstance(loaded[0].auto_model.get_input_embeddings(), PackedEmbedding)
    assert (loaded.encode(texts) == model.encode(texts)).all()

    loaded.save(str(tmp_path / "again"))
    again = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    assert (again.encode(texts) == model.encode(texts)).all()


def test_the_transformer_of_a_sentence_transformers_folder_may_be_in_a_subfolder(pack, tmp_path):
    model = pack(tiny_model("bert", tmp_path / "source/0_Transformer"))
    modules = [{"idx": 0, "path": "0_Transformer"}, {"idx": 1, "path": "1_Pooling"}]
    (tmp_path / "source/modules.json").write_text(json.dumps(modules))
    assert str(transformer_folder(tmp_path / "source")) == "0_Transformer"
    write_folder(model, tmp_path / "source", tmp_path / "packed")
    assert json.loads((tmp_path / "packed/modules.json").read_text()) == modules
    assert torch.equal(outputs(type(model).from_pretrained(tmp_path / "packed/0_Transformer")), outputs(model))
