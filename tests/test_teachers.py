import gzip
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import processors
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    BertModel,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    Gemma3TextConfig,
    LlamaConfig,
    MPNetConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from ade.errors import InputError
from ade.teachers import contextual_teacher, load_teacher
from tests.conftest import word_tokenizer

SMALL = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
FAMILIES = {
    "bert": (BertConfig(**SMALL), AutoModelForMaskedLM),
    "deberta": (DebertaV2Config(**SMALL), AutoModel),
    "mpnet": (MPNetConfig(**SMALL), AutoModel),
    "electra": (ElectraConfig(**SMALL, embedding_size=8), AutoModel),
    "distilbert": (DistilBertConfig(vocab_size=40, dim=8, n_layers=1, n_heads=2, hidden_dim=8), AutoModelForMaskedLM),
    "llama": (LlamaConfig(**SMALL, num_key_value_heads=2), AutoModelForCausalLM),
    "gemma": (Gemma3TextConfig(**SMALL, num_key_value_heads=2, head_dim=4), AutoModelForCausalLM),
    "qwen": (Qwen2Config(**SMALL, num_key_value_heads=2), AutoModelForCausalLM),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_finds_the_input_embeddings_of_every_family(family, tmp_path):
    config, kind = FAMILIES[family]
    model = kind.from_config(config)
    model.save_pretrained(tmp_path)
    word_tokenizer([f"w{i}" for i in range(30)]).save(str(tmp_path / "tokenizer.json"))
    teacher = load_teacher(tmp_path)
    assert torch.equal(teacher.table, model.get_input_embeddings().weight.detach())


def test_sharded_weights(tmp_path):
    model = AutoModel.from_config(FAMILIES["bert"][0])
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    word_tokenizer(["a"]).save(str(tmp_path / "tokenizer.json"))
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert torch.equal(load_teacher(tmp_path).table, model.get_input_embeddings().weight.detach())


def test_npy_and_safetensors_folders_agree(teacher_folder, tmp_path):
    first = load_teacher(teacher_folder)
    np.save(tmp_path / "embeddings.npy", first.table.numpy())
    first.tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert torch.equal(load_teacher(tmp_path).table, first.table)


@pytest.mark.parametrize("header", ["", "3 2\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_text_vectors(header, packed, tmp_path):
    content = header + "the 1.0 2.0\ncat 3.0 4.0\nsat -1.0 0.5\n"
    path = tmp_path / ("v.vec.gz" if packed else "v.txt")
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    teacher = load_teacher(path)
    cat = teacher.tokenizer.encode("The CAT sat.").ids
    assert teacher.table[cat[1]].tolist() == [3.0, 4.0]
    assert teacher.tokenizer.id_to_token(cat[3]) == "[UNK]"
    assert len(teacher.table) == 5  # three words, [PAD] and [UNK]


def test_words_with_spaces_in_text_vectors(tmp_path):
    (tmp_path / "v.txt").write_text("a 1 2\n. . . 3 4\nb 5 6\n")
    teacher = load_teacher(tmp_path / "v.txt")
    assert len(teacher.table) == 5
    assert teacher.table[teacher.tokenizer.token_to_id("b")].tolist() == [5, 6]


def test_fewer_rows_than_the_tokenizer_has_tokens_are_filled_up(teacher, tmp_path):
    save_file({"weight": teacher.table[:-4].clone()}, tmp_path / "embeddings.safetensors")
    teacher.tokenizer.save(str(tmp_path / "tokenizer.json"))
    table = load_teacher(tmp_path).table
    assert len(table) == len(teacher.table)
    torch.testing.assert_close(table[-1], teacher.table[:-4].mean(0))


def test_surplus_rows_stay(teacher, tmp_path):
    save_file({"weight": torch.cat([teacher.table, teacher.table])}, tmp_path / "embeddings.safetensors")
    teacher.tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert len(load_teacher(tmp_path).table) == 2 * len(teacher.table)


def test_the_embedded_default():
    teacher = load_teacher()
    assert teacher.table.shape == (32000, 256)
    assert teacher.tokenizer.encode("a wading bird").tokens[-1].endswith("bird")


def _folder(tmp_path, teacher, table):
    save_file({"weight": table}, tmp_path / "embeddings.safetensors")
    teacher.tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_nan_is_refused_by_row(teacher, tmp_path):
    table = teacher.table.clone()
    table[7, 3] = float("nan")
    with pytest.raises(InputError, match=r"row 7 .*NaN"):
        load_teacher(_folder(tmp_path, teacher, table))


def test_truncated_safetensors(teacher, tmp_path):
    folder = _folder(tmp_path, teacher, teacher.table)
    path = folder / "embeddings.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="not a readable safetensors"):
        load_teacher(folder)


def test_pickle_is_never_loaded(tmp_path):
    np.save(tmp_path / "embeddings.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    word_tokenizer(["a"]).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="plain"):
        load_teacher(tmp_path)
    (tmp_path / "embeddings.npy").unlink()
    FAMILIES["bert"][0].save_pretrained(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickled weights are never loaded"):
        load_teacher(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [("a 1 2\nb 1\n", "v.txt:2: 1 numbers"), ("", "no vectors"), ("a b c\n", "not text vectors")],
)
def test_bad_text_vectors(content, message, tmp_path):
    (tmp_path / "v.txt").write_text(content)
    with pytest.raises(InputError, match=message):
        load_teacher(tmp_path / "v.txt")


def test_other_bad_sources(tmp_path):
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        load_teacher(tmp_path)
    (tmp_path / "tokenizer.json").write_text(word_tokenizer(["a"]).to_str())
    with pytest.raises(InputError, match="holds neither"):
        load_teacher(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    with pytest.raises(InputError, match="not a model transformers knows"):
        load_teacher(tmp_path)


def test_a_whole_encoder_is_asked_about_its_vocabulary(tmp_path, ade):
    """Against the encoder called by hand on one entry between its special tokens; and from the command line."""
    words = word_tokenizer(["[CLS]", "[SEP]", "cat", "dog", "car", "bus"])
    words.add_special_tokens(["[CLS]", "[SEP]"])
    first, last = words.token_to_id("[CLS]"), words.token_to_id("[SEP]")
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", first), ("[SEP]", last)]
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        initializer_range=1.0,
    )  # fmt: skip
    model = BertModel(config).eval()
    model.save_pretrained(tmp_path / "encoder")
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]").save_pretrained(tmp_path / "encoder")
    teacher = contextual_teacher(tmp_path / "encoder", "cpu")
    with torch.inference_mode():
        rows = torch.stack([model(torch.tensor([[first, i, last]])).last_hidden_state[0].mean(0) for i in range(8)])
    assert torch.allclose(teacher.table, rows - rows.mean(0), atol=1e-5)
    assert teacher.tokenizer.encode("dog bus").ids == [first, 5, 7, last]
    command = ["distill", "--teacher", tmp_path / "encoder", "--contextual", "--anchors", 4, "--pairs", 2, "--json"]
    status, out, err = ade(*command, "--out", tmp_path / "codebook")
    assert status == 0, err
    assert json.loads(out)["teacher"] == "encoder, contextual"
    status, _, err = ade(*command[:1], "--teacher", tmp_path / "codebook", *command[3:], "--out", tmp_path / "other")
    assert status == 2
    assert "not a readable encoder" in err
