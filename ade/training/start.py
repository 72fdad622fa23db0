"""Where a classifier starts: at random on a codebook, or from an encoder that has read much text already."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ade.codebook import Codebook
from ade.coded_embedding import CodedDictionary
from ade.compression.coded_table import CodedTable
from ade.compression.table import PackedTable
from ade.errors import InputError
from ade.packing.pairs import EMBEDDING_PREFIX
from ade.packing.unpack import unpacked
from ade.sentence_encoder import SentenceEncoder
from ade.settings import Architecture, TrainingSettings

SHARED = ("ade.norm.", "ade.sat.", "ade.layers.", "pooler.")  # layers that a classifier takes over


@dataclass(frozen=True)
class Start:
    """The codebook and the layers of a trained encoder."""

    codebook: Codebook | CodedTable
    weights: dict[str, Tensor]
    layers: int
    heads: int
    position_scale: float

    def fitted(self, training: TrainingSettings, shape: Architecture) -> tuple[TrainingSettings, Architecture]:
        """The settings with those that the layers were trained with."""
        shape = replace(shape, attend="tokens", layers=self.layers, heads=self.heads)
        return replace(training, position_scale=self.position_scale), shape


def start_from(folder: str | Path) -> Start:
    """Read what a classifier takes over from an encoder: a folder, or a name on the hub."""
    encoder = SentenceEncoder.load(folder, "cpu")
    config, state = unpacked(encoder.model.config.to_dict(), encoder.model.arrays())
    about = {name: value for name, value in encoder.model.config.about.items() if name in ("teacher", "license")}
    codebook = _codebook_of(encoder, state, about)
    taken = {name: torch.from_numpy(array) for name, array in state.items() if name.startswith(SHARED)}
    heads, scale = int(config["num_attention_heads"]), float(config["position_scale"])
    return Start(codebook, taken, int(config["layers"]), heads, scale)


def _codebook_of(
    encoder: SentenceEncoder, state: Mapping[str, np.ndarray], about: Mapping[str, Any]
) -> Codebook | CodedTable:
    """The codebook of an encoder, or its table in codes; `state` are its arrays with pairs in float32."""
    layer = encoder.model.ade.embedding
    if isinstance(layer, CodedDictionary):
        if not isinstance(layer.coded, PackedTable):
            raise InputError("--from: the table of this encoder is as training left it; save the encoder with `save`")
        return CodedTable(layer.coded, encoder.tokenizer, about)
    anchors, indices, weights, counts = (
        torch.from_numpy(np.ascontiguousarray(state[EMBEDDING_PREFIX + name]))
        for name in ("anchors", "indices", "weights", "counts")
    )
    return Codebook.from_pairs(anchors, indices, weights, counts, encoder.tokenizer, None, **about)
