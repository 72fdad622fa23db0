"""Model folders: what is saved is read back, packing twice changes no byte, and what is damaged is one plain error."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from ade.codebook import rounded
from ade.configuration import CLASSIFIER, CODEBOOK, FORMAT, KINDS, TAGGER, Config
from ade.errors import InputError
from ade.files import kind_of
from ade.folder import WEIGHTS, Saved, add_metadata, nbytes_of, new_layers, new_model, read_arrays
from ade.packing.tokenizer_file import PACKED
from tests.conftest import word_tokenizer
from tests.models import codebook_folder, coded_table, off, packed_codebook, random_lexicon, random_model

TABLES = {"pairs": lambda: None, "packed": packed_codebook, "coded": coded_table}


def model_of_every_kind(kind: str, table: str, bits: int) -> Saved:
    book = TABLES[table]()
    if kind == CODEBOOK:
        return codebook_folder(random_model(book).table)
    return random_model(
        book, lexicon=kind == CLASSIFIER, kind=kind, layers=2, layer_bits=bits, metadata={"teacher": "t"}
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("table", "bits"), [("pairs", 0), ("packed", 4), ("packed", 16), ("coded", 8)])
def test_what_is_saved_is_read_back_and_packing_twice_changes_no_byte(kind, table, bits, tmp_path):
    saved = model_of_every_kind(kind, table, bits)
    saved.save(tmp_path / "one")
    again = Saved.read(tmp_path / "one")
    again.save(tmp_path / "two")
    names = {path.name for path in (tmp_path / "one").iterdir()}
    tokenizer_file = "tokenizer.json" if table == "pairs" else PACKED
    assert names == {"config.json", "model.safetensors", "README.md", "tokenizer_config.json", tokenizer_file}
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name

    as_stored, ids = saved.rounded(), np.arange(saved.table.vocabulary)
    assert again.config == saved.config
    assert again.tokenizer.get_vocab() == saved.tokenizer.get_vocab()
    assert np.array_equal(again.table.rows(ids), as_stored.table.rows(ids))
    assert np.array_equal(as_stored.table.rows(ids), rounded(saved.table).rows(ids))
    assert again.layers.keys() == as_stored.layers.keys() == saved.layers.keys()
    for name, array in as_stored.layers.items():
        assert array.dtype == np.float32
        assert np.array_equal(again.layers[name], array), name
        assert off(array, saved.layers[name]) < {0: 1e-9, 4: 0.1, 8: 0.01, 16: 1e-3}[bits]
    if saved.lexicon is not None:
        for name in ("keys", "idf", "scores", "bias"):
            assert np.array_equal(getattr(again.lexicon, name), getattr(saved.lexicon, name))
    assert kind_of(tmp_path / "one") == Saved.read(tmp_path / "one", kind).config.kind == kind
    with pytest.raises(InputError, match="is needed here"):
        Saved.read(tmp_path / "one", TAGGER if kind == CLASSIFIER else CLASSIFIER)
    assert again.packed is saved.packed is (table != "pairs")


def test_bytes_are_those_of_the_arrays_and_of_the_files_that_prediction_reads(tmp_path):
    saved = random_model(packed_codebook(), lexicon=True, layer_bits=8)
    saved.save(tmp_path / "model")
    assert saved.nbytes == sum(array.nbytes for array in load_file(tmp_path / "model" / WEIGHTS).values())
    read = ("config.json", "model.safetensors", "tokenizer.packed.xz")
    assert nbytes_of(tmp_path / "model") == sum((tmp_path / "model" / name).stat().st_size for name in read)


def test_metadata_is_added_to_a_folder_that_is_there(tmp_path):
    saved = random_model(metadata={"teacher": "t"})
    saved.save(tmp_path / "model")
    before = (tmp_path / "model" / WEIGHTS).read_bytes()
    add_metadata(tmp_path / "model", accuracy=0.5)
    assert dict(Saved.read(tmp_path / "model").config.metadata) == {"teacher": "t", "accuracy": 0.5}
    assert (tmp_path / "model" / WEIGHTS).read_bytes() == before
    assert dict(saved.with_metadata(a=1).config.metadata) == {"teacher": "t", "a": 1}


def nan_at_the_end(array: np.ndarray) -> np.ndarray:
    return np.append(array.ravel()[:-1], np.nan).reshape(array.shape).astype(array.dtype)


DAMAGES: list[tuple[str, Any, str]] = [  # a file and its content, settings, or an array and what becomes of it
    ("config.json", b"{", "not a readable ADE model"),
    ("config.json", b"[]", "not a readable ADE model"),
    ("config.json", None, r"not a model folder \(no config.json\); make one with 'ade train'"),
    (WEIGHTS, b"nonsense", "not a readable ADE model"),
    (WEIGHTS, None, "not a readable ADE model"),
    (PACKED, None, r"has no tokenizer\.json"),
    (PACKED, b"nonsense", "not a readable packed tokenizer"),
    ("settings", {"format": FORMAT + 1}, "install a newer ade"),
    ("settings", {"format": FORMAT - 1}, "train the model again"),
    ("settings", {"table": None}, "a kind of table that this version does not know: None"),
    ("settings", {"table": {"kind": "packed"}}, "the sizes or arrays of its table are not valid"),
    ("settings", {"lexicon": {"entries": 3}}, "the sizes of its lexicon are not valid"),
    ("settings", {"heads": 5}, "dimension 16 is not divisible by 5 heads"),
    ("settings", {"id2label": {"0": "a", "1": "b"}}, "'head.weight' should be int8 of shape"),
    ("settings", {"layer_bits": 4}, "should be uint8 of shape"),
    ("ade.embedding.codes", lambda array: array[:-1], "'codes' should be"),
    ("ade.embedding.pairs", lambda array: None, "'pairs' should be"),
    ("ade.embedding.anchors_scales", nan_at_the_end, "'anchors' holds numbers that are not finite"),
    ("ade.embedding.scale_range", nan_at_the_end, "not finite"),
    ("pooler.weight", lambda array: None, "'pooler.weight' should be int8"),
    ("pooler.scales", lambda array: None, "'pooler.scales' should be float16"),
    ("head.scales", nan_at_the_end, "'head.weight' holds numbers that are not finite"),
    ("head.bias", nan_at_the_end, "'head.bias' holds numbers that are not finite"),
    ("head.bias", lambda array: None, "'head.bias' should be float32"),
    ("ade.norm.weight", lambda array: array[:-1], r"'norm.weight' should be float32 of shape \(16,\)"),
    ("ade.norm.weight", lambda array: array.astype(np.int32), "'norm.weight' should be float32"),
    ("lexicon.keys_high", lambda array: array[:-1], "'keys_high' should be"),
    ("lexicon.bias", nan_at_the_end, "'bias of the lexicon' holds numbers that are not finite"),
    ("lexicon.idf_range", nan_at_the_end, "'idf of the lexicon' holds numbers that are not finite"),
]


@pytest.mark.parametrize(("name", "change", "says"), DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line_that_names_it(name, change, says, tmp_path):
    folder = tmp_path / "broken"
    random_model(packed_codebook(), lexicon=True, layer_bits=8).save(folder)
    if name == "settings":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **change}))
    elif not callable(change):
        (folder / name).unlink()
        if change is not None:
            (folder / name).write_bytes(change)
    else:
        arrays = load_file(folder / WEIGHTS)
        changed = change(arrays.pop(name))
        save_file(arrays if changed is None else {**arrays, name: np.ascontiguousarray(changed)}, folder / WEIGHTS)
    with pytest.raises(InputError, match=says) as caught:
        Saved.read(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_models_that_cannot_be_are_refused_before_they_are_saved():
    saved = random_model(lexicon=True)
    layers = dict(saved.layers)
    for change, says in (
        ({"table": packed_codebook(dim=10)}, "dimension 10 is not divisible by 4 heads"),
        ({"tokenizer": word_tokenizer([f"w{i}" for i in range(17)])}, "the tokenizer knows 19 tokens, the model 18"),
        ({"layers": {**layers, "head.bias": layers["head.bias"][:-1]}}, "'head.bias' should be"),
        ({"layers": {**layers, "head.bias": layers["head.bias"].astype(float)}}, "'head.bias' should be float32"),
        ({"layers": {**layers, "norm.bias": layers["norm.bias"] * np.nan}}, "'norm.bias' holds"),
        ({"lexicon": random_lexicon(18, 4)}, "another number of tokens or labels"),
        ({"lexicon": random_lexicon(17, 3)}, "another number of tokens or labels"),
    ):
        with pytest.raises(InputError, match=says):
            replace(saved, **change)
    with pytest.raises(InputError, match="attention over anchors needs anchors, and the table is coded"):
        random_model(coded_table(), attend="anchors")


def test_layers_in_half_precision_and_bfloat16_are_read_as_float32(tmp_path):
    saved = random_model()
    saved.save(tmp_path / "model")
    arrays = {name: torch.from_numpy(array) for name, array in load_file(tmp_path / "model" / WEIGHTS).items()}
    for kind, most in ((torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        half = {name: array.to(kind) if array.is_floating_point() else array for name, array in arrays.items()}
        save_torch(half, tmp_path / "model" / WEIGHTS)
        for name, array in Saved.read(tmp_path / "model").layers.items():
            assert array.dtype == np.float32
            np.testing.assert_allclose(array, saved.layers[name], rtol=most, atol=1e-7)
        found = read_arrays(tmp_path / "model" / WEIGHTS)
        assert np.array_equal(found["head.weight"], half["head.weight"].float().numpy())


def test_an_occupied_folder_is_left_alone_and_a_failed_save_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    with pytest.raises(InputError, match="something else"):
        random_model().save(tmp_path / "mine", overwrite=True)
    random_model().save(tmp_path / "model")
    with pytest.raises(InputError, match="--overwrite"):
        random_model().save(tmp_path / "model")
    random_model(labels=5).save(tmp_path / "model", overwrite=True)

    def full(arrays: dict, path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("ade.folder.save_file", full)
    with pytest.raises(InputError, match="No space"):
        random_model().save(tmp_path / "model", overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "model"}
    assert Saved.read(tmp_path / "model").config.outputs == 5


def test_untrained_layers_are_xaviers_with_zero_biases_and_norms_that_change_nothing():
    config = Config(labels=("a", "b"), layers=2)
    layers = new_layers(config, 64)
    assert {name: array.shape for name, array in layers.items()} == config.layer_shapes(64)
    for name, array in layers.items():
        assert array.dtype == np.float32
        if array.ndim == 1:
            assert (array == name.endswith("norm.weight")).all(), name
            continue
        bound = (6 / sum(array.shape)) ** 0.5
        assert 0.9 * bound < np.abs(array).max() <= bound
    assert np.array_equal(layers["head.weight"], new_layers(config, 64)["head.weight"])
    assert not np.array_equal(layers["head.weight"], new_layers(config, 64, seed=1)["head.weight"])


def test_a_new_model_takes_the_table_and_the_layers_that_fit_but_never_the_head():
    saved = random_model(lexicon=True, layers=2)
    config = Config(kind=TAGGER, labels=("O", "B", "I"), heads=2)
    made = new_model(saved, config, seed=3)
    assert (made.config, made.table, made.tokenizer, made.lexicon) == (config, saved.table, saved.tokenizer, None)
    fresh = new_layers(config, 16, 3)
    assert made.layers.keys() == fresh.keys()
    for name, array in made.layers.items():
        assert np.array_equal(array, (fresh if name.startswith("head.") else saved.layers)[name]), name
    wider = new_model(saved, replace(saved.config, layers=3))
    assert np.array_equal(wider.layers["layers.0.inner.weight"], saved.layers["layers.0.inner.weight"])
    assert not wider.layers["layers.1.inner.bias"].any()
