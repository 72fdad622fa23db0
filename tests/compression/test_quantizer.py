"""Models with packed tables in use: generating, other dtypes and devices, graphs, training; damaged folders."""

import copy
import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ade.compression.folder import save_compressed
from ade.compression.head import CodedEmbedding, CodedHead
from ade.compression.quantizer import AdeQuantizationConfig, replace_tables
from ade.compression.replacement import closest, find_tables
from ade.errors import InputError
from tests.compression.conftest import DIM, MODELS, ROWS, outputs, some_ids, tiny_model


@pytest.fixture
def llama(pack, tmp_path):
    """A folder with a packed tied model."""
    save_compressed(pack(tiny_model("llama", tmp_path / "source")), tmp_path / "source", tmp_path / "packed")
    return tmp_path / "packed"


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


# Which modules


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bert", ("embeddings.word_embeddings", None, ())),
        ("bert-mlm", ("bert.embeddings.word_embeddings", "cls.predictions.decoder", ("cls.predictions.decoder",))),
        ("llama-untied", ("model.embed_tokens", "lm_head", ())),
        ("t5", ("shared", "lm_head", ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"))),
        ("t5-untied", ("shared", "lm_head", ("encoder.embed_tokens", "decoder.embed_tokens"))),
    ],
)
def test_tables_are_found(kind, expected, pack, tmp_path):
    model = tiny_model(kind, tmp_path)
    found = find_tables(model)
    assert (found.input, found.head, set(found.shared)) == (*expected[:2], set(expected[2]))
    assert found.tied == (found.head in expected[2])
    assert find_tables(pack(model)) == found  # and again, packed


def test_a_model_without_an_input_embedding_is_refused():
    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    with pytest.raises(InputError, match="ViTModel has no input embedding"):
        find_tables(transformers.ViTModel(config))


def test_all_modules_that_share_a_table_share_the_packed_one(pack, tmp_path):
    model = pack(tiny_model("t5", tmp_path))
    owner = model.shared
    assert [module.packed is owner.packed for module in (model.encoder.embed_tokens, model.lm_head)] == [True, True]
    assert sum("table.codes_0" in name for name in model.state_dict()) == 1
    twin = copy.deepcopy(model)
    assert twin.lm_head.packed is twin.shared.packed is not owner.packed
    assert torch.equal(outputs(twin), outputs(model))


def test_a_table_of_another_size_is_refused(tables, tmp_path):
    config = transformers.LlamaConfig(**MODELS["llama"][2] | {"vocab_size": 400})
    with pytest.raises(InputError, match=f"model.embed_tokens is 400 x {DIM}, the packed table {ROWS} x {DIM}"):
        replace_tables(transformers.LlamaForCausalLM(config), {"model.embed_tokens": tables[0]})


@pytest.mark.parametrize(
    ("name", "candidates", "found"),
    [
        ("bert.embeddings.word_embeddings", ["embeddings.word_embeddings", "embeddings.position"], 0),
        ("embeddings.word_embeddings", ["cls.decoder", "bert.embeddings.word_embeddings"], 1),
        ("lm_head", ["model.embed_tokens"], None),
        ("embed_tokens", ["encoder.embed_tokens", "decoder.embed_tokens"], None),
        ("decoder.embed_tokens", ["encoder.embed_tokens", "decoder.embed_tokens"], 1),
        ("a.b", [], None),
    ],
)
def test_names_agree_from_their_ends(name, candidates, found):
    assert closest(name, candidates) == (None if found is None else candidates[found])


# In use


@pytest.mark.parametrize("kind", ["llama", "llama-untied", "gemma3", "gpt2", "qwen2", "phi-bias", "opt", "t5", "bart"])
def test_greedy_decoding_equals_that_of_the_dequantised_model(kind, pack, tmp_path):
    model = pack(tiny_model(kind, tmp_path))
    whole = copy.deepcopy(model).dequantize()
    ids = some_ids(3, 5)
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    generated = model.generate(ids, **options)
    assert torch.equal(generated, whole.generate(ids, **options))
    with torch.inference_mode():
        assert torch.equal(generated, model.generate(ids, **options))


def test_a_model_in_bfloat16_computes_in_bfloat16_from_the_same_table(llama):
    expected = outputs(load(llama))
    model = load(llama, dtype=torch.bfloat16)
    assert outputs(model).dtype == torch.bfloat16
    assert torch.allclose(outputs(model).float(), expected, atol=0.02)
    assert model.model.embed_tokens.table.mean.dtype == torch.float32

    cast = load(llama).to(torch.bfloat16)  # has the same rows
    assert torch.equal(cast.model.embed_tokens(some_ids()), model.model.embed_tokens(some_ids()))
    assert cast.model.embed_tokens(some_ids()).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["gemma3", "bart"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaled_embeddings_are_scaled_as_before(kind, dtype, pack, tmp_path):
    tiny_model(kind, tmp_path)
    model_class = getattr(transformers, MODELS[kind][0])
    model = pack(model_class.from_pretrained(tmp_path, dtype=dtype))
    embedding = model.get_input_embeddings() if kind == "gemma3" else model.get_decoder().embed_tokens
    packed = embedding(some_ids())
    assert embedding.scale == DIM**0.5
    model.dequantize()
    embedding = model.get_input_embeddings() if kind == "gemma3" else model.get_decoder().embed_tokens
    assert type(embedding).__name__.endswith("ScaledWordEmbedding")
    assert torch.equal(embedding(some_ids()), packed)


PLACES = dict.fromkeys(["model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head"], "cpu")


@pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}, PLACES | {"model.layers": "disk"}])
def test_device_maps(llama, device_map, tmp_path):
    expected = outputs(load(llama))
    model = load(llama, device_map=device_map, offload_folder=str(tmp_path / "offloaded"))
    assert torch.equal(outputs(model), expected)


def test_an_offloaded_table_says_why_not(llama, tmp_path):
    options = {"device_map": PLACES | {"model.embed_tokens": "disk"}, "offload_folder": str(tmp_path / "offloaded")}
    assert torch.equal(outputs(load(llama, **options)), outputs(load(llama)))  # the table stays
    model = load(llama, **options, offload_buffers=True)
    with pytest.raises(InputError, match="without offload_buffers"):
        outputs(model)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_logits_and_greedy_decoding_are_those_of_the_cpu(llama):
    expected = outputs(load(llama))
    model = load(llama, device_map="cuda")
    assert torch.allclose(outputs(model, some_ids().cuda()).cpu(), expected, atol=1e-4)
    moved = load(llama).cuda()
    assert torch.equal(outputs(moved, some_ids().cuda()), outputs(model, some_ids().cuda()))
    options = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(
        moved.generate(some_ids(1).cuda(), **options).cpu(), load(llama).generate(some_ids(1), **options)
    )


def test_it_compiles_into_one_graph(llama):
    model = load(llama)
    for ids in (some_ids(1, 4), some_ids(2, 9)):  # few vectors, and many
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.allclose(outputs(compiled, ids), outputs(model, ids), atol=1e-5)


def test_a_moved_or_copied_model_still_compiles(llama):
    model = copy.deepcopy(load(llama)).to("cpu", torch.float64)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.allclose(outputs(compiled), outputs(load(llama)).double(), atol=1e-5)


def test_it_exports(pack, tmp_path):
    model = pack(tiny_model("bert", tmp_path))
    ids = some_ids()
    exported = torch.export.export(model, (ids,), strict=False).module()
    with torch.no_grad():
        assert torch.allclose(exported(ids)[0], model(ids)[0], atol=1e-6)


def test_resizing_says_what_to_do_and_works_after_it(llama):
    model = load(llama)
    with pytest.raises(AttributeError, match=r"call model\.dequantize\(\) first"):
        model.resize_token_embeddings(ROWS + 3)
    assert not hasattr(model.get_input_embeddings(), "weight")
    expected = outputs(model)
    model.dequantize().resize_token_embeddings(ROWS + 3)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert outputs(model).shape[-1] == ROWS + 3
    assert torch.allclose(outputs(model)[..., :ROWS], expected, atol=1e-5)


def test_dequantising_to_another_dtype(llama):
    assert load(llama).dequantize(torch.bfloat16).get_input_embeddings().weight.dtype == torch.bfloat16
    assert load(llama).to(torch.bfloat16).dequantize().get_input_embeddings().weight.dtype == torch.bfloat16


def test_the_rest_of_a_model_can_be_trained(llama):
    model = load(llama).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(10):
        loss = model(some_ids(), labels=some_ids()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if ".table." not in name}


def test_the_trainer_takes_it_and_its_checkpoints_load(pack, tmp_path):
    model = pack(tiny_model("bert-mlm", tmp_path / "source"))
    rows = [{"input_ids": row, "labels": row} for row in some_ids(8)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, save_steps=2, report_to=[], use_cpu=True, disable_tqdm=True
    )
    transformers.Trainer(model, arguments, train_dataset=rows).train()
    loaded = type(model).from_pretrained(tmp_path / "checkpoint-2")
    assert torch.equal(outputs(loaded), outputs(model.eval()))


def test_a_model_that_reads_the_weight_itself_says_why_not(pack):
    config = transformers.DebertaV2Config(**MODELS["deberta-v2"][2], legacy=False)
    with pytest.raises((AttributeError, InputError), match="packed"):  # by then or, in early releases, at once
        outputs(pack(transformers.DebertaV2ForMaskedLM(config)))


def test_lora_on_top(llama, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    settings = peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    model = peft.get_peft_model(load(llama), settings)
    model(input_ids=some_ids(), labels=some_ids()).loss.backward()
    gradients = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert gradients
    assert all("lora_" in name for name in gradients)

    expected = outputs(model.eval())
    model.save_pretrained(tmp_path / "adapter")
    assert torch.equal(outputs(peft.PeftModel.from_pretrained(load(llama), tmp_path / "adapter")), expected)
    merged = model.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(outputs(load(tmp_path / "merged")), outputs(merged))
    assert torch.allclose(outputs(merged), expected, atol=1e-4)


def test_pipelines_take_a_packed_model(llama):
    model = load(llama)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=_words(), eos_token="w2", pad_token="w0")
    pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    (answer,) = pipe("w5 w9", max_new_tokens=3, do_sample=False, return_tensors=True)
    expected = model.generate(torch.tensor([[5, 9]]), max_new_tokens=3, do_sample=False)
    assert answer["generated_token_ids"] == expected[0].tolist()


def _words():
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(ROWS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


# Damaged and foreign folders


def change_config(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def change_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


TABLE = "model.embed_tokens.table"


def refused(folder, message):
    with pytest.raises(InputError, match=message) as raised:
        load(folder)
    assert "\n" not in str(raised.value)


def test_a_truncated_file_is_refused(llama):
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    refused(llama, "not a readable safetensors file")


@pytest.mark.parametrize("array", ["codes_0", "book_1", "depths", "exact", "mean", "rotation_scale"])
def test_a_missing_array_is_refused(llama, array):
    change_weights(llama, lambda tensors: tensors.pop(f"{TABLE}.{array}"))
    refused(llama, "no packed table" if array == "depths" else f"{array} is missing")


def test_an_array_of_another_shape_or_type_is_refused(llama):
    name = f"{TABLE}.codes_0"
    change_weights(llama, lambda tensors: tensors.update({name: tensors[name][:, 1:].clone()}))
    refused(llama, rf"codes_0 is \[4, {ROWS - 4}\] of torch.uint8: config.json says \[4, {ROWS - 3}\] of torch.uint8")
    change_weights(llama, lambda tensors: tensors.update({name: torch.zeros(4, ROWS - 3)}))
    refused(llama, "codes_0 is .* of torch.float32")


def test_rows_that_do_not_add_up_are_refused(llama):
    change_weights(llama, lambda tensors: tensors[f"{TABLE}.depths"].zero_())
    refused(llama, "the file is damaged")


def test_other_weights_of_another_shape_are_refused(llama):
    name = "model.layers.0.mlp.up_proj.weight"  # transformers checks no shape of a quantized model
    change_weights(llama, lambda tensors: tensors.update({name: tensors[name][:32].clone()}))
    refused(llama, rf"{name} has the shape \[32, 64\] in the folder, \[64, 64\] would fit")


def test_a_config_of_another_model_is_refused(llama):
    change_config(llama, lambda config: config.update(vocab_size=999))
    refused(llama, f"model.embed_tokens is 999 x {DIM}, the packed table {ROWS} x {DIM}")


def test_a_table_that_the_model_has_not_is_refused(llama):
    change_config(llama, lambda config: config["quantization_config"].update(tables={"wte": {}}))
    refused(llama, "a packed table wte, which LlamaForCausalLM has not")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": {}}, "names no packed table"),
        ({"version": 1}, "version 1, this ade reads version 2"),
        ({"tables": {"model.embed_tokens": {"dtype": "float32"}}}, "not the shape of a packed table"),
        ({"tables": {"model.embed_tokens": {"dtype": "int17", "shape": {}}}}, "unknown dtype 'int17'"),
    ],
)
def test_a_config_that_says_nothing_of_use_is_refused(llama, change, message):
    change_config(llama, lambda config: config["quantization_config"].update(change))
    refused(llama, message)


def test_packing_while_loading_is_refused(llama, tmp_path):
    described = json.loads((llama / "config.json").read_text())["quantization_config"]["tables"]
    with pytest.raises(InputError, match="packed by `ade compress`"):
        load(tmp_path / "source", quantization_config=AdeQuantizationConfig(described))


def test_the_stub_is_not_taken_for_the_table(llama):
    model = load(llama)
    assert isinstance(model.get_input_embeddings(), CodedEmbedding)
    assert isinstance(model.get_output_embeddings(), CodedHead)
    assert load_file(llama / "model.safetensors")["model.embed_tokens.weight"].shape == (1,)
