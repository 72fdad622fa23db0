"""Models with coded tables in use: generating, other dtypes and devices, graphs, training; damaged folders."""

import copy
import json
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ade.compression.checkpoint import write_folder
from ade.compression.quantizer import AdeQuantizationConfig
from ade.errors import InputError
from tests.compression.conftest import DIM, MODELS, ROWS, is_mapped, outputs, some_ids, tiny_model, unpacked

PLACES = dict.fromkeys(["model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head"], "cpu")
TABLE = "model.embed_tokens.table"


@pytest.fixture
def llama(pack, tmp_path):
    """A folder with a coded tied model."""
    write_folder(pack(tiny_model("llama", tmp_path / "source")), tmp_path / "source", tmp_path / "packed")
    return tmp_path / "packed"


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


@pytest.mark.parametrize(
    "kind", ["llama", "llama-untied", "gemma3", "gemma3n", "gemma4", "gpt2", "phi-bias", "t5", "bart"]
)
def test_greedy_decoding_equals_that_of_the_model_with_decoded_tables(kind, pack, tmp_path):
    model = pack(tiny_model(kind, tmp_path))
    whole = unpacked(model, tmp_path)
    ids = some_ids(3, 5)
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    generated = model.generate(ids, **options)
    assert torch.equal(generated, whole.generate(ids, **options))
    with torch.inference_mode():
        assert torch.equal(generated, model.generate(ids, **options))


def test_a_model_in_bfloat16_computes_in_bfloat16_from_the_same_table(llama):
    expected, model = outputs(load(llama)), load(llama, dtype=torch.bfloat16)
    assert outputs(model).dtype == torch.bfloat16
    assert torch.allclose(outputs(model).float(), expected, atol=0.02)
    assert model.model.embed_tokens.table.mean.dtype == torch.float32

    cast = load(llama).to(torch.bfloat16)  # has the same rows
    assert torch.equal(cast.model.embed_tokens(some_ids()), model.model.embed_tokens(some_ids()))


@pytest.mark.parametrize("kind", ["gemma3", "bart"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaled_embeddings_are_scaled_as_before(kind, dtype, pack, tmp_path):
    tiny_model(kind, tmp_path)
    model = pack(getattr(transformers, MODELS[kind][0]).from_pretrained(tmp_path, dtype=dtype))

    def embedding(model):
        return model.get_input_embeddings() if kind == "gemma3" else model.get_decoder().embed_tokens

    packed = embedding(model)(some_ids())
    whole = embedding(unpacked(model, tmp_path))
    assert type(whole).__name__.endswith("ScaledWordEmbedding")
    assert torch.equal(whole(some_ids()), packed)


@pytest.mark.parametrize(
    "device_map", ["auto", PLACES | {"model.layers": "disk"}, PLACES | {"model.embed_tokens": "disk"}]
)
def test_device_maps(llama, device_map, tmp_path):
    model = load(llama, device_map=device_map, offload_folder=str(tmp_path / "offloaded"))
    assert torch.equal(outputs(model), outputs(load(llama)))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the kernel what is mapped")
def test_codes_stay_in_the_file_and_are_read_where_they_are_used(llama):
    for model in (load(llama), load(llama, dtype=torch.bfloat16)):
        outputs(model)
        table = model.model.embed_tokens.table
        assert all(is_mapped(table.get_buffer(name), llama / "model.safetensors") for name in ("codes_0", "codes_1"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_logits_and_greedy_decoding_are_those_of_the_cpu(llama):
    model = load(llama, device_map="cuda")
    assert torch.allclose(outputs(model, some_ids().cuda()).cpu(), outputs(load(llama)), atol=1e-4)
    moved = load(llama).cuda()
    assert torch.equal(outputs(moved, some_ids().cuda()), outputs(model, some_ids().cuda()))
    options = {"max_new_tokens": 8, "do_sample": False}
    generated = moved.generate(some_ids(1).cuda(), **options).cpu()
    assert torch.equal(generated, load(llama).generate(some_ids(1), **options))


def test_it_compiles_into_one_graph_also_moved_or_copied(llama):
    for model in (load(llama), copy.deepcopy(load(llama)).to("cpu", torch.float64)):
        for ids in (some_ids(1, 4), some_ids(2, 9)):  # few vectors, and many
            torch._dynamo.reset()
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
            assert torch.allclose(outputs(compiled, ids), outputs(model, ids), atol=1e-5)


def test_resizing_says_what_to_do(llama):
    with pytest.raises(AttributeError, match="change the original model, then compress it again"):
        load(llama).resize_token_embeddings(ROWS + 3)


def test_the_trainer_trains_the_rest_and_its_checkpoints_load(llama, tmp_path):
    model = load(llama)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rows = [{"input_ids": row, "labels": row} for row in some_ids(8)]
    options = {"max_steps": 2, "save_steps": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    transformers.Trainer(model, transformers.TrainingArguments(str(tmp_path), **options), train_dataset=rows).train()
    assert torch.equal(outputs(load(tmp_path / "checkpoint-2")), outputs(model.eval()))
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if ".table." not in name}


def test_a_model_that_reads_the_weight_itself_says_why_not(pack):
    config = transformers.DebertaV2Config(**MODELS["deberta-v2"][1], legacy=False)
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


# Damaged and foreign folders


def refused(folder, message):
    with pytest.raises(InputError, match=message) as raised:
        load(folder)
    assert "\n" not in str(raised.value)


def changed(llama, change):
    """Change the tensors of a folder."""
    tensors = load_file(llama / "model.safetensors")
    change(tensors)
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})


def test_a_truncated_file_is_refused(llama):
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    refused(llama, "not a readable safetensors file")


CODES = f"{TABLE}.codes_0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{TABLE}.depths"), "no packed table"),
        (lambda t: t.pop(f"{TABLE}.book_1"), "book_1 is missing"),
        (lambda t: t.update({CODES: t[CODES][:, 1:].clone()}),
         rf"codes_0 is \[4, {ROWS - 4}\] of torch.uint8: config.json says \[4, {ROWS - 3}\] of torch.uint8"),
        (lambda t: t.update({CODES: torch.zeros(4, ROWS - 3)}), "codes_0 is .* of torch.float32"),
        (lambda t: t[f"{TABLE}.depths"].zero_(), "the file is damaged"),
    ],
)  # fmt: skip
def test_damaged_arrays_are_refused(llama, change, message):
    changed(llama, change)
    refused(llama, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": {}}, "names no packed table"),
        ({"tables": {"wte": {}}}, "a packed table wte, which LlamaForCausalLM has not"),
        ({"version": 1}, "version 1, this ade reads version 4"),
        ({"tables": {"model.embed_tokens": {}}}, "not the shape of a coded table"),
        (None, f"model.embed_tokens is 999 x {DIM}, the packed table {ROWS} x {DIM}"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(llama, change, message):
    config = json.loads((llama / "config.json").read_text())
    config["quantization_config"] |= change or {}
    config |= {} if change else {"vocab_size": 999}
    (llama / "config.json").write_text(json.dumps(config))
    refused(llama, message)


def test_packing_while_loading_is_refused(llama, tmp_path):
    described = json.loads((llama / "config.json").read_text())["quantization_config"]["tables"]
    with pytest.raises(InputError, match="packed by `ade compress`"):
        load(tmp_path / "source", quantization_config=AdeQuantizationConfig(described))
