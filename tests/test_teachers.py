"""Teachers: the table of input embeddings of any model, what is filled up, and what is never loaded."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    Gemma3TextConfig,
)  # fmt: skip

from ade.configuration import CODEBOOK, ENCODER
from ade.errors import InputError
from ade.teachers import Teacher, fit_rows, load_teacher
from tests.conftest import word_tokenizer
from tests.models import codebook_folder, packed_codebook, random_model

SMALL = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
FAMILIES = {
    "bert": (BertConfig(**SMALL), AutoModelForMaskedLM),
    "electra": (ElectraConfig(**SMALL, embedding_size=8), AutoModel),
    "distilbert": (DistilBertConfig(vocab_size=40, dim=8, n_layers=1, n_heads=2, hidden_dim=8), AutoModelForMaskedLM),
    "gemma": (Gemma3TextConfig(**SMALL, num_key_value_heads=2, head_dim=4), AutoModelForCausalLM),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shard", ["5GB", "2KB"])
def test_finds_the_input_embeddings_of_every_family(family, shard, tmp_path):
    config, kind = FAMILIES[family]
    model = kind.from_config(config)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    word_tokenizer([f"w{i}" for i in range(30)]).save(str(tmp_path / "tokenizer.json"))
    teacher = load_teacher(tmp_path)
    assert torch.equal(teacher.table, model.get_input_embeddings().weight.detach())


def test_missing_rows_are_filled_with_the_mean_and_surplus_rows_stay(teacher):
    few = fit_rows(teacher.table[:-4].half(), teacher.tokenizer, "x")
    assert few.dtype == torch.float16
    assert torch.equal(few[:-4], teacher.table[:-4].half())
    torch.testing.assert_close(few[-4:], few[:-4].float().mean(0).half().expand(4, -1))
    many = torch.cat([teacher.table, teacher.table])
    assert fit_rows(many, teacher.tokenizer, "x") is many
    for table in (teacher.table.int(), teacher.table[0]):
        with pytest.raises(InputError, match=r"expected floats of shape \(N, d\)"):
            fit_rows(table, teacher.tokenizer, "x")


def test_a_teacher_with_some_of_its_rows_and_as_a_folder(teacher):
    licensed = Teacher(teacher.name, teacher.table, teacher.tokenizer, "mit")
    assert licensed.nbytes == teacher.table.numel() * 4
    small = licensed.take(word_tokenizer(["a"]), np.array([4, 0, 2]))
    assert torch.equal(small.table, teacher.table[[4, 0, 2]])
    assert (small.name, small.license, small.tokenizer.get_vocab_size()) == ("tiny", "mit", 3)
    saved = small.as_saved(codebook_folder(packed_codebook()).table, cosine=0.5)
    about = {"teacher": "tiny", "license": "mit", "rows": 3, "dim": 16}
    assert (saved.config.kind, dict(saved.config.metadata)) == (CODEBOOK, {**about, "cosine": 0.5})
    again = Teacher.of(saved)
    assert (again.name, again.license, again.tokenizer) == ("tiny", "mit", small.tokenizer)
    np.testing.assert_array_equal(again.table, saved.table.rows(np.arange(19)))
    assert Teacher.of(codebook_folder(packed_codebook())).name == "a table"


def test_the_embedded_default():
    teacher = load_teacher()
    assert teacher.table.shape == (32000, 256)
    assert teacher.tokenizer.encode("a wading bird").tokens[-1].endswith("bird")
    assert (teacher.name, teacher.license) == ("wordllama", "MIT License")


def test_nan_is_refused_by_row_and_what_is_cut_off_too(teacher, tmp_path):
    table, path = teacher.table.clone(), tmp_path / "embeddings.safetensors"
    table[7, 3] = float("nan")
    save_file({"weight": table}, path)
    teacher.tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match=r"row 7 .*NaN"):
        load_teacher(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="not a readable safetensors"):
        load_teacher(tmp_path)


def test_pickle_is_never_loaded(tmp_path):
    word_tokenizer(["a"]).save(str(tmp_path / "tokenizer.json"))
    FAMILIES["bert"][0].save_pretrained(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickled weights are never loaded"):
        load_teacher(tmp_path)


def test_other_bad_sources(tmp_path):
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        load_teacher(tmp_path)
    (tmp_path / "tokenizer.json").write_text(word_tokenizer(["a"]).to_str())
    with pytest.raises(InputError, match="holds neither"):
        load_teacher(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    with pytest.raises(InputError, match="not a model transformers knows"):
        load_teacher(tmp_path)
    for source in (tmp_path / "config.json", tmp_path / "nowhere", "./nowhere"):
        with pytest.raises(InputError, match="a teacher is the folder of a model or its hub name"):
            load_teacher(source)


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        (codebook_folder(packed_codebook()), "'ade train --from' starts from it"),
        (random_model(kind=ENCODER), "'ade train --from' starts from it"),
        (random_model(), "give the teacher that it was made from"),
    ],
)
def test_a_folder_of_ours_is_no_teacher(saved, says, tmp_path):
    saved.save(tmp_path / "model")
    with pytest.raises(InputError, match=f"an ADE model has no embedding table to distil; {says}"):
        load_teacher(tmp_path / "model")
