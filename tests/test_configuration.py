"""Settings that no model can have are refused, whoever makes or reads them; the others come back from JSON."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from ade.configuration import (
    CLASSIFIER,
    CODEBOOK,
    ENCODER,
    FORMAT,
    KINDS,
    TAGGER,
    Config,
    check_kind,
    config_from_json,
    default_heads,
)
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.errors import InputError

BASE: dict[str, Any] = {"labels": ("a", "b")}
WRONG: list[tuple[str, Any, str]] = [
    ("kind", "AdeForPoetry", "kind must be one of AdeForSequenceClassification, .*, not 'AdeForPoetry'"),
    ("labels", (), "a model that predicts labels needs at least one"),
    ("label_type", "list", "label_type must be one of str, int, float, bool"),
    ("problem", "ranking", "problem must be one of single_label_classification, "),
    ("attend", "letters", "attend must be one of tokens, anchors, not 'letters'"),
    ("positions", "some", "positions must be one of grouped, each, none"),
    ("positions", "each", "a position for each anchor needs attention over anchors"),
    ("pooling", "max", "pooling must be one of attention, mean"),
    ("layer_bits", 3, "layer_bits must be one of 4, 8, 16"),
    ("sat", "yes", "sat must be one of True, not 'yes'"),
    ("layers", 25, "layers must be a whole number from 1 to 24"),
    ("heads", 0, "heads must be a whole number from 1 to 16,777,216"),
    ("max_tokens", 0, "max_tokens must be a whole number from 1 to 16,777,216, not 0"),
    ("max_tokens", "512", "max_tokens must be a whole number"),
    ("output_size", -1, "output_size must be a whole number from 0"),
    ("token_dropout", -0.1, "token_dropout must be a number from 0 to 1"),
    ("position_scale", -1.0, "position_scale must be"),
    ("position_scale", float("nan"), "position_scale must be a number"),
    ("mean", float("inf"), "mean must be a number"),
    ("mean", True, "mean must be a number"),
    ("deviation", -1.0, "deviation must be a number from 0"),
]


@pytest.mark.parametrize(("name", "value", "says"), WRONG, ids=str)
def test_a_wrong_value_is_refused(name, value, says):
    with pytest.raises(InputError, match=says):
        Config(**{**BASE, name: value})


def test_the_largest_and_smallest_values_are_allowed():
    Config(labels=("a",), heads=1, max_tokens=1, layers=24, dropout=1.0, token_dropout=0, position_scale=0, deviation=0)
    Config(labels=("a",), heads=1 << 24, max_tokens=1 << 24, mean=-1e300, position_scale=1e6)


def test_settings_that_exclude_each_other_are_refused():
    for more in ({"sat": False}, {"attend": "anchors"}):
        with pytest.raises(InputError, match="further layers need SAT, and attention over tokens"):
            Config(**BASE, layers=2, **more)
        Config(**BASE, layers=1, **more)
    Config(**BASE, attend="anchors", positions="each")
    with pytest.raises(InputError, match="at least one"):
        Config(kind=TAGGER)
    with pytest.raises(InputError, match="output_size must be at least 1"):
        Config(kind=ENCODER)
    Config(kind=CODEBOOK)


def test_the_problem_of_a_classifier_follows_from_its_labels_as_in_transformers():
    assert Config(labels=("a",)).problem == REGRESSION
    assert Config(labels=("a", "b")).problem == SINGLE
    assert Config(labels=("a", "b"), problem=MULTI).problem == MULTI
    assert Config(kind=TAGGER, labels=("a", "b")).problem is None


ENCODES = Config(kind=ENCODER, output_size=7, layers=2)
FULL = Config(
    labels=("1", "2"), label_type="int", problem=MULTI, attend="anchors", positions="each", position_scale=0.5,
    pooling="mean", heads=3, max_tokens=9, layer_bits=4, mean=1.0, deviation=2.0, dropout=0.1, token_dropout=0.2,
    class_weights=(1.0, 3.0), metadata={"teacher": "t"},
)  # fmt: skip


@pytest.mark.parametrize("config", [FULL, ENCODES, Config(kind=TAGGER, labels=("O",)), Config(kind=CODEBOOK)])
def test_settings_come_back_from_json(config):
    given = json.loads(json.dumps(config.as_json(100, 16, {"table": {"kind": "pairs"}})))
    assert config_from_json(given) == config
    assert (given["vocab_size"], given["hidden_size"], given["table"]) == (100, 16, {"kind": "pairs"})
    assert given["architectures"] == [config.kind]
    assert given["id2label"] == {str(i): label for i, label in enumerate(config.labels)}
    assert given["label2id"] == {label: i for i, label in enumerate(config.labels)}
    assert set(asdict(config)) - {"kind", "labels", "problem"} <= set(given)


def test_json_of_other_models_formats_and_values_is_refused():
    for change, says in (
        ({"model_type": "bert"}, r"not an ADE model \(its model_type is bert\)"),
        ({"format": FORMAT + 1}, f"its format is {FORMAT + 1}, .* reads format {FORMAT}; install a newer ade"),
        ({"format": FORMAT - 1}, f"its format is {FORMAT - 1}, .*; train the model again"),
        ({"format": None}, "its format is None, .*; train the model again"),
        ({"id2label": {"0": "a", "2": "b"}}, "its id2label does not number the labels from 0 on"),
        ({"id2label": None}, "needs at least one"),
        ({"architectures": ["BertModel"]}, "kind must be one of"),
        ({"architectures": None}, "kind must be one of"),
        ({"attend": "letters"}, "attend must be one of"),
    ):
        with pytest.raises(InputError, match=says):
            config_from_json({**FULL.as_json(100, 16, {}), **change})


def test_another_kind_than_needed_is_named_with_what_to_do():
    for kind, wanted, says in (
        (ENCODER, CLASSIFIER, "an encoder, .*; a classifier of texts is needed here: 'ade encode' writes its vectors"),
        (CODEBOOK, CLASSIFIER, "a codebook without a model; a classifier of texts is needed here: 'ade train --from'"),
        (CLASSIFIER, ENCODER, "a classifier of texts; an encoder is needed here, as 'ade distill-encoder' makes it"),
        (TAGGER, CLASSIFIER, "a tagger, which labels words; a classifier of texts is needed here$"),
        ("Other", CLASSIFIER, "no ADE model; a classifier of texts is needed here$"),
    ):
        with pytest.raises(InputError, match=f"^folder: {says}"):
            check_kind("folder", kind, wanted)
    for kind in KINDS:
        check_kind("folder", kind, kind)


def test_heads_are_64_wide_where_that_divides_the_width():
    assert [default_heads(dim) for dim in (1, 64, 128, 384, 96, 300, 67)] == [1, 1, 2, 6, 2, 5, 67]
