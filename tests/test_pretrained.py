"""Loading and saving by transformers: the same model comes back, with another head where one is asked for."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from ade.configuration import CLASSIFIER, CODEBOOK, TAGGER, config_from_json
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.errors import InputError
from ade.folder import Saved
from ade.huggingface_config import AdeConfig
from ade.model import (
    AdeForSequenceClassification,
    AdeModel,
    model_of,
)
from ade.pretrained import with_head
from tests.models import codebook_folder, packed_codebook, random_model

IDS, MASK = torch.tensor([[3, 1, 5, 2], [4, 0, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("pretrained") / "model"
    random_model(packed_codebook(), lexicon=True, layer_bits=8, mean=1.0, deviation=2.0, class_weights=(1, 2, 3)).save(
        out
    )
    return out


def test_a_saved_model_is_loaded_by_its_class_and_by_the_auto_classes(folder, tmp_path):
    saved = Saved.read(folder)
    expected = model_of(saved).eval()(IDS, MASK).logits
    for kind in (AdeForSequenceClassification, AutoModelForSequenceClassification):
        model = kind.from_pretrained(folder)
        assert not model.training
        assert torch.equal(model(IDS, MASK).logits, expected)
        assert model.config.id2label == {0: "label 0", 1: "label 1", 2: "label 2"}
        model.save_pretrained(tmp_path / "again")
        for file in ("model.safetensors", "config.json", "tokenizer.packed.xz"):
            assert (tmp_path / "again" / file).read_bytes() == (folder / file).read_bytes()
    config = AutoConfig.from_pretrained(folder)
    assert isinstance(config, AdeConfig)
    assert config_from_json(config.to_dict()) == saved.config
    assert AutoTokenizer.from_pretrained(folder)("w0 w3 zzz")["input_ids"] == [2, 5, 1]


def test_auto_model_gives_token_vectors(folder):
    base, whole = AutoModel.from_pretrained(folder), AdeForSequenceClassification.from_pretrained(folder)
    assert isinstance(base, AdeModel)
    assert torch.equal(base(IDS, MASK).last_hidden_state, whole.ade(IDS, MASK).last_hidden_state)


def test_type_device_and_loading_info_are_those_asked_for(folder):
    load = AdeForSequenceClassification.from_pretrained
    assert load(folder, dtype="bfloat16").head.weight.dtype == torch.bfloat16
    assert load(folder, torch_dtype=torch.float64).head.weight.dtype == torch.float64
    assert load(folder, dtype="auto").head.weight.dtype == torch.float32
    for device in ("cpu", "auto"):
        assert load(folder, device_map=device).head.weight.device.type in ("cpu", "cuda")
    model, info = load(folder, output_loading_info=True)
    assert isinstance(model, AdeForSequenceClassification)
    assert set(map(len, info.values())) == {0}
    with pytest.raises(InputError, match="load_state_dict"):
        load(folder, state_dict={})
    with pytest.raises(InputError, match="not a model folder"):
        load(folder / "nothing")
    with pytest.raises(InputError, match="use from_pretrained"):
        AdeForSequenceClassification(AutoConfig.from_pretrained(folder))


def test_the_same_head_under_other_names_keeps_its_weights():
    saved = random_model(lexicon=True, metadata={"teacher": "t"}, class_weights=(1.0, 2.0, 3.0))
    for same in ({}, {"num_labels": 3}):
        assert with_head(saved, CLASSIFIER, same).config == saved.config
    renamed = with_head(saved, CLASSIFIER, {"id2label": {"2": "c", "0": "a", "1": "b"}})
    assert renamed.config == replace(saved.config, labels=("a", "b", "c"))
    assert renamed.layers is saved.layers
    assert renamed.lexicon is saved.lexicon


@pytest.mark.parametrize(
    ("kind", "wanted", "labels", "problem"),
    [
        (CLASSIFIER, {"num_labels": 2}, ("LABEL_0", "LABEL_1"), SINGLE),
        (CLASSIFIER, {"num_labels": 1}, ("LABEL_0",), REGRESSION),
        (CLASSIFIER, {"num_labels": 3, "problem_type": MULTI}, ("label 0", "label 1", "label 2"), MULTI),
        (TAGGER, {"id2label": {0: "O", 1: "B"}}, ("O", "B"), None),
    ],
)
def test_another_head_is_untrained_on_the_layers_of_the_folder(kind, wanted, labels, problem):
    saved = random_model(lexicon=True, metadata={"teacher": "t"}, class_weights=(1.0, 2, 3), mean=1.0, label_type="int")
    made = with_head(saved, kind, wanted)
    assert (made.config.kind, made.config.labels, made.config.problem) == (kind, labels, problem)
    assert (made.config.class_weights, made.config.mean, made.config.label_type) == (None, 0.0, "str")
    assert made.config.metadata == {}
    assert made.lexicon is None
    assert np.array_equal(made.layers["sat.projection.weight"], saved.layers["sat.projection.weight"])
    assert not made.layers["head.bias"].any()
    assert made.layers["head.weight"].shape == (len(labels), 16)
    bound = (6 / (len(labels) + 16)) ** 0.5
    assert 0.5 * bound < np.abs(made.layers["head.weight"]).max() <= bound


def test_a_codebook_needs_labels(tmp_path):
    codebook_folder(packed_codebook()).save(tmp_path / "book")
    with pytest.raises(
        InputError, match=f"a head needs labels: give num_labels or id2label, the folder holds {CODEBOOK}"
    ):
        AdeForSequenceClassification.from_pretrained(tmp_path / "book")
    model = AdeForSequenceClassification.from_pretrained(tmp_path / "book", num_labels=4)
    assert model(IDS, MASK).logits.shape == (2, 4)


@pytest.mark.parametrize(
    "imports",
    [
        "import ade\nfrom transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline",
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline\nimport ade",
        "from transformers import AutoConfig\nimport ade\n"
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline",
    ],
)
def test_auto_classes_know_us_whoever_is_imported_first(imports, folder):
    """In a fresh process: a saved folder through the Auto classes and a pipeline."""
    use = f"""
model = AutoModelForSequenceClassification.from_pretrained({str(folder)!r})
tokenizer = AutoTokenizer.from_pretrained({str(folder)!r})
found = pipeline("text-classification", model=model, tokenizer=tokenizer)("w0 w1")
print(type(model).__name__, type(tokenizer).__name__, found[0]["label"], sep=",")
"""
    done = subprocess.run([sys.executable, "-c", imports + use], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
    model, tokenizer, label = done.stdout.strip().split(",")
    assert (model, tokenizer) == ("AdeForSequenceClassification", "AdeTokenizer")
    assert label in {"label 0", "label 1", "label 2"}
