"""Which values the configuration of a model may have, whoever reads it: transformers, or the runtime without torch."""

import math
from collections.abc import Mapping
from typing import Any

from ade.data.problems import PROBLEMS
from ade.errors import InputError

ATTEND = ("tokens", "anchors", "gated")
POSITIONS = ("grouped", "each", "none")
POOLING = ("attention", "mean")
LABEL_TYPES = ("str", "int", "float", "bool")
CHOICES: dict[str, tuple[str | None, ...]] = {
    "attend": ATTEND,
    "positions": POSITIONS,
    "pooling": POOLING,
    "label_type": LABEL_TYPES,
    "problem_type": (None, *PROBLEMS.values()),
}
MAX_SIZE = 1 << 24  # of the vocabulary, vectors, anchors, windows: far beyond any model
SIZES = (  # from 1 on
    "vocab_size", "hidden_size", "anchors", "max_pairs", "num_attention_heads", "max_tokens", "output_size",
)  # fmt: skip
MAX_LAYERS = 24
FEED_FORWARD = 4  # width of a feed-forward block, in widths of the model
EPSILON = 1e-5  # of LayerNorm


def check_config(config: Mapping[str, Any]) -> None:
    """Raise an `InputError` for the first value that no model can have; what is not given is not checked."""
    for name, allowed in CHOICES.items():
        if name in config and config[name] not in allowed:
            raise InputError(f"{name} must be one of {', '.join(filter(None, allowed))}, not '{config[name]}'")
    for name in SIZES:
        _check_size(config, name, 1, MAX_SIZE)
    _check_size(config, "pairs", 0, MAX_SIZE * 64)
    _check_size(config, "layers", 1, MAX_LAYERS)
    for name in ("dropout", "token_dropout"):
        _check_number(config, name, 0.0, 1.0)
    _check_number(config, "position_scale", 0.0, 1e6)
    if not isinstance(config.get("sat", True), bool):
        raise InputError(f"sat must be true or false, not {config['sat']!r}")
    if config.get("layers", 1) > 1 and (config.get("sat") is False or config.get("attend") == "anchors"):
        raise InputError("further layers need SAT, and attention over tokens: not sat false or attend anchors")

    _check_coded(config)

    scale = config.get("scale")  # both are 0 where the lexicon alone predicts
    if scale is not None and not (
        isinstance(scale, list | tuple) and len(scale) == 2 and all(map(_is_number, scale)) and scale[1] >= 0
    ):
        raise InputError(f"scale must be a mean and a standard deviation of at least 0, not {scale!r}")
    if "hidden_size" in config and config["hidden_size"] % config.get("num_attention_heads", 1):
        raise InputError(f"dimension {config['hidden_size']} is not divisible by {config['num_attention_heads']} heads")


def _check_coded(config: Mapping[str, Any]) -> None:
    coded = config.get("coded")
    if coded is None:
        return
    sizes = (config.get("vocab_size"), config.get("hidden_size"))
    if not isinstance(coded, Mapping) or (coded.get("rows"), coded.get("dim")) != sizes:
        raise InputError("coded must be the shape of a packed table with as many rows and columns as the model")
    if config.get("attend") != "tokens":
        raise InputError(f"a coded table has no anchors: attend must be tokens, not '{config.get('attend')}'")


def _check_size(config: Mapping[str, Any], name: str, least: int, most: int) -> None:
    given = config.get(name, least)
    if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= most:
        raise InputError(f"{name} must be a whole number from {least:,} to {most:,}, not {given!r}")


def _check_number(config: Mapping[str, Any], name: str, least: float, most: float) -> None:
    given = config.get(name, least)
    if not _is_number(given) or not least <= given <= most:
        raise InputError(f"{name} must be a number from {least:g} to {most:g}, not {given!r}")


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
