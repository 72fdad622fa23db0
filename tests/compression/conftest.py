"""Tiny random models of many architectures, and packed tables of their size."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import logging

from ade.coded_layer import PackedTable
from ade.compression.coder import encode_table
from ade.compression.quantizer import replace_tables
from ade.compression.replacement import find_tables, owners, tables_beside

ROWS, DIM = 301, 64  # an odd vocabulary
logging.set_verbosity_error()
logging.disable_progress_bar()

# fmt: off
SHAPE = {"vocab_size": 404, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 32}
COMMON = {"vocab_size": ROWS, "hidden_size": DIM, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0,
          "intermediate_size": 64, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
TIED = COMMON | {"num_key_value_heads": 2, "tie_word_embeddings": True}
UNTIED = COMMON | {"num_key_value_heads": 2, "tie_word_embeddings": False}
T5 = {"vocab_size": ROWS, "d_model": DIM, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 4,
      "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
BART = {"vocab_size": ROWS, "d_model": DIM, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64}
LAYERED = TIED | {"head_dim": 16, "vocab_size_per_layer_input": ROWS, "hidden_size_per_layer_input": 16,
                  "layer_types": ["sliding_attention", "full_attention"]}
MODELS = {  # class of the model, settings of its config
    "bert": ("BertModel", COMMON),
    "bert-mlm": ("BertForMaskedLM", COMMON),
    "bert-mlm-untied": ("BertForMaskedLM", COMMON | {"tie_word_embeddings": False}),
    "roberta-mlm": ("RobertaForMaskedLM", COMMON),
    "xlm-roberta-mlm": ("XLMRobertaForMaskedLM", COMMON),
    "xlm-roberta-labels": ("XLMRobertaForSequenceClassification", COMMON),
    "distilbert-mlm": ("DistilBertForMaskedLM", {"vocab_size": ROWS, "dim": DIM, "n_layers": 2, "n_heads": 4,
                                                 "hidden_dim": 64, "max_position_embeddings": 64}),
    "mpnet-mlm": ("MPNetForMaskedLM", COMMON),
    "deberta-v2": ("DebertaV2Model", COMMON),
    "deberta-v2-mlm": ("DebertaV2ForMaskedLM", COMMON),
    "electra-mlm": ("ElectraForMaskedLM", COMMON | {"embedding_size": DIM}),
    "albert-mlm": ("AlbertForMaskedLM", COMMON | {"embedding_size": DIM, "hidden_size": 128}),
    "modernbert-mlm": ("ModernBertForMaskedLM", COMMON | {"cls_token_id": 1, "sep_token_id": 2}),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": ROWS, "n_embd": DIM, "n_layer": 2, "n_head": 4, "n_positions": 64,
                                 "bos_token_id": 1, "eos_token_id": 2}),
    "gpt-neox-untied": ("GPTNeoXForCausalLM", COMMON),
    "llama": ("LlamaForCausalLM", TIED),
    "llama-untied": ("LlamaForCausalLM", UNTIED),
    "qwen2": ("Qwen2ForCausalLM", TIED),
    "gemma3": ("Gemma3ForCausalLM", TIED | {"head_dim": 16}),
    "gemma3n": ("Gemma3nForCausalLM", LAYERED | {"vocab_size_per_layer_input": 290, "laurel_rank": 8,
                                                 "altup_num_inputs": 2, "num_kv_shared_layers": 0}),
    "gemma4": ("Gemma4ForCausalLM", LAYERED | {"global_head_dim": 16}),
    "phi-bias": ("PhiForCausalLM", COMMON),
    "opt": ("OPTForCausalLM", COMMON | {"ffn_dim": 64, "word_embed_proj_dim": DIM}),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5-untied": ("T5ForConditionalGeneration", T5),
    "t5-encoder": ("T5EncoderModel", T5),
    "bart": ("BartForConditionalGeneration", BART | {"scale_embedding": True}),
}
# fmt: on


def need_gemma4() -> None:
    """Skip a test of tables for every layer where transformers is older than the models that have them as today."""
    if not hasattr(transformers, "Gemma4ForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} has no Gemma 4")


def random_model(kind: str, **more: Any) -> Any:
    """A random model of a kind, with further settings of its config."""
    name, settings = MODELS[kind]
    if kind in ("gemma3n", "gemma4"):
        need_gemma4()
    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**settings | more))


def tiny_model(kind: str, folder: Path) -> Any:
    """Save a random model of a kind to a folder, and load it from there."""
    model = random_model(kind)
    if kind == "t5-untied":  # the config always ties, but a checkpoint with another head is not tied
        model.lm_head.weight = torch.nn.Parameter(torch.randn(ROWS, DIM))
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder)


@pytest.fixture(scope="session")
def tables() -> tuple[PackedTable, PackedTable]:
    """Two packed tables of different content."""
    generator = torch.Generator().manual_seed(0)
    use = torch.arange(ROWS, 0, -1)
    made = [torch.randn(ROWS, DIM, generator=generator) * 0.02 for _ in range(2)]
    first, second = (encode_table(table, use, [0, 1, 2], 80_000) for table in made)
    return first, second


@pytest.fixture
def pack(tables) -> Callable[[Any], Any]:
    """Put packed tables into a model: one for the input, others for a head of its own and for tables beside them."""

    def put(model: Any) -> Any:
        found = find_tables(model)
        chosen = {found.input: copy.deepcopy(tables[0])}
        if found.head and not found.tied:
            chosen[found.head] = copy.deepcopy(tables[1])
        for name, dim in tables_beside(model).items():
            rows = model.get_submodule(name).weight.detach().reshape(-1, dim)
            chosen[name] = encode_table(rows, torch.ones(len(rows)), [0, 1, 5], 2 * rows.numel())
        replace_tables(model, chosen)
        return model

    return put


@torch.no_grad()
def unpacked(model: Any, folder: Path) -> Any:
    """The original of a packed model, from its folder, with what the codes stand for as its tables."""
    original = type(model).from_pretrained(folder, dtype=model.dtype).train(model.training)
    for name, module in owners(model).items():
        rows = module.packed(torch.arange(module.packed.shape.rows))
        original.get_submodule(name).weight.copy_(rows.view(module.size))
    return original


def some_ids(rows: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(3, ROWS, (rows, length), generator=torch.Generator().manual_seed(1))


def is_mapped(array: torch.Tensor, file: Path) -> bool:
    """Whether the content of an array is that of a file, read where it is used."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, last = line.split()[0].partition("-")
        if line.endswith(str(file)) and int(first, 16) <= array.data_ptr() < int(last, 16):
            return True
    return False


@torch.no_grad()
def outputs(model: Any, ids: torch.Tensor | None = None) -> torch.Tensor:
    """Logits, or hidden states where the model has no head."""
    ids = some_ids() if ids is None else ids
    more = {"decoder_input_ids": ids.flip(1)} if type(model).__name__.endswith("ForConditionalGeneration") else {}
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), **more)[0]


# Models of words, with tokenizers

WORDS = [f"word{number}" for number in range(400)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def texts(count: int, seed: int = 0) -> list[str]:
    chooser = random.Random(seed)
    weights = [1 / (number + 1) for number in range(len(WORDS))]
    return [" ".join(chooser.choices(WORDS, weights, k=8)) for _ in range(count)]


def save_tokenizer(folder, decoder):
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate([*SPECIAL, *WORDS])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if decoder:
        names |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    else:
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**SHAPE)).save_pretrained(folder)
    save_tokenizer(folder, decoder=False)
    return folder


@pytest.fixture(scope="session")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True, bos_token_id=2, eos_token_id=3)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    save_tokenizer(folder, decoder=True)
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    file.write_text("\n".join(texts(300)) + "\n", "utf8")
    return file
