"""Which modules of a model hold its tables, and which names of a checkpoint they have."""

import copy

import pytest
import torch
import transformers

from ade.compression.quantizer import replace_tables
from ade.compression.replacement import closest, find_tables, tables_beside
from ade.errors import InputError
from tests.compression.conftest import DIM, MODELS, ROWS, outputs, tiny_model


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
def test_tables_are_found(kind, expected, tmp_path):
    found = find_tables(tiny_model(kind, tmp_path))
    assert (found.input, found.head, set(found.shared)) == (*expected[:2], set(expected[2]))
    assert found.tied == (found.head in expected[2])


@pytest.mark.parametrize("kind", ["bert", "roberta-mlm", "gpt2", "opt", "t5", "bart", "gemma3", "gemma3n", "gemma4"])
def test_other_tables_of_tokens_are_found_and_positions_left_alone(kind, tmp_path):
    layered = {"model.embed_tokens_per_layer": 16} if kind in ("gemma3n", "gemma4") else {}
    assert tables_beside(tiny_model(kind, tmp_path)) == layered


def test_what_does_not_fit_is_refused(tables):
    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    with pytest.raises(InputError, match="ViTModel has no input embedding"):
        find_tables(transformers.ViTModel(config))
    config = transformers.LlamaConfig(**MODELS["llama"][1] | {"vocab_size": 400})
    with pytest.raises(InputError, match=f"model.embed_tokens is 400 x {DIM}, the packed table {ROWS} x {DIM}"):
        replace_tables(transformers.LlamaForCausalLM(config), {"model.embed_tokens": tables[0]})


def test_all_modules_that_share_a_table_share_the_coded_one(pack, tmp_path):
    model = pack(tiny_model("t5", tmp_path))
    owner = model.shared
    assert [module.packed is owner.packed for module in (model.encoder.embed_tokens, model.lm_head)] == [True, True]
    assert sum("table.codes_0" in name for name in model.state_dict()) == 1
    twin = copy.deepcopy(model)
    assert twin.lm_head.packed is twin.shared.packed is not owner.packed
    assert torch.equal(outputs(twin), outputs(model))


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
