"""A packed model as it is before packing: codebook and layers in float32."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ade.config_values import FEED_FORWARD
from ade.lexicon import PREFIX as LEXICON
from ade.packing.bits import layer_weight
from ade.packing.pairs import EMBEDDING_PREFIX, stored_pairs

TOKENS_AT_A_TIME = 8192


def unpacked(
    config: Mapping[str, Any], state: Mapping[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and arrays of a model with codebook and layers in float32; as they are, where it is not packed.

    A coded table stays as it is.
    """
    if not config.get("packed"):
        return dict(config), dict(state)

    wide = dict(state) if config.get("coded") else _with_plain_pairs(config, state)

    scaled = [name for name in wide if name.endswith(".scales") and not name.startswith(LEXICON)]
    for layer in [name.removesuffix(".scales") for name in scaled]:
        weight, scales = wide[f"{layer}.weight"], wide.pop(f"{layer}.scales")
        wide[f"{layer}.weight"] = layer_weight(weight, scales, inputs_of(layer, int(config["hidden_size"])))
    return {**config, "packed": None}, wide


def _with_plain_pairs(config: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    pairs = stored_pairs(config, state)
    tokens = np.arange(pairs.vocabulary)
    looked_up = [pairs.of(tokens[i : i + TOKENS_AT_A_TIME]) for i in range(0, len(tokens), TOKENS_AT_A_TIME)]
    wide = {name: array for name, array in state.items() if not name.startswith(EMBEDDING_PREFIX)}
    wide[f"{EMBEDDING_PREFIX}anchors"] = pairs.anchors()
    wide[f"{EMBEDDING_PREFIX}indices"] = np.concatenate([index[real] for index, _, real in looked_up])
    wide[f"{EMBEDDING_PREFIX}weights"] = np.concatenate([weight[real] for _, weight, real in looked_up])
    wide[f"{EMBEDDING_PREFIX}counts"] = pairs.counts(tokens)
    return wide


def inputs_of(layer: str, dim: int) -> int:
    """How many numbers a linear layer of a model reads, by the layer's name."""
    return FEED_FORWARD * dim if layer.endswith(".outer") else dim
