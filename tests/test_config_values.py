"""Values of a configuration that no model can have are refused, with torch and without."""

import json
import shutil

import pytest

from ade.classifier import Classifier
from ade.config_values import check_config
from ade.configuration import AdeConfig
from ade.errors import InputError
from ade.model import AdeForSequenceClassification
from ade.runtime.runtime import Runtime

WRONG = [
    ("max_tokens", -5, "max_tokens must be a whole number from 1"),
    ("max_tokens", 0, "max_tokens must be"),
    ("max_tokens", 1 << 40, "max_tokens must be"),
    ("max_tokens", "512", "max_tokens must be"),
    ("max_tokens", True, "max_tokens must be"),
    ("vocab_size", 0, "vocab_size must be"),
    ("hidden_size", -8, "hidden_size must be"),
    ("anchors", 0, "anchors must be"),
    ("max_pairs", 0, "max_pairs must be"),
    ("pairs", -1, "pairs must be"),
    ("num_attention_heads", 0, "num_attention_heads must be"),
    ("num_attention_heads", 7, "not divisible by 7 heads"),
    ("attend", "letters", "attend must be one of tokens, anchors, gated, not 'letters'"),
    ("positions", "some", "positions must be one of"),
    ("pooling", "max", "pooling must be one of"),
    ("label_type", "list", "label_type must be one of"),
    ("problem_type", "ranking", "problem_type must be one of"),
    ("dropout", 1.5, "dropout must be a number from 0 to 1"),
    ("token_dropout", -0.1, "token_dropout must be"),
    ("position_scale", -1.0, "position_scale must be"),
    ("position_scale", float("nan"), "position_scale must be"),
    ("sat", "yes", "sat must be true or false"),
    ("scale", [0.0, -1.0], "scale must be a mean and a standard deviation"),
    ("scale", [1.0], "scale must be"),
]


@pytest.fixture(scope="module")
def folder(codebook, tmp_path_factory):
    out = tmp_path_factory.mktemp("config") / "model"
    Classifier(AdeForSequenceClassification.from_codebook(codebook, ("a", "b")), codebook.tokenizer).save(out)
    return out


@pytest.mark.parametrize(("name", "value", "says"), WRONG)
def test_a_wrong_value_is_refused_whoever_reads_it(folder, tmp_path, name, value, says):
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, name: value}))
    for load in (Classifier.load, Runtime.load):
        with pytest.raises(InputError, match=says) as refused:
            load(copy)
        assert str(copy) in str(refused.value)


def test_the_configurations_we_write_are_right(folder):
    check_config(json.loads((folder / "config.json").read_text()))
    check_config(vars(AdeConfig()))
    check_config({})
