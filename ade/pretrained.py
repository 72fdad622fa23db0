"""AdePreTrainedModel: what the models share, whatever their head.

How a model is made from a codebook, how its weights are initialised, and how they are packed into few bits.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ade.codebook import Codebook
from ade.compression.coded_table import CodedTable
from ade.configuration import AdeConfig
from ade.embedding import AnchorEmbedding, PackedLinear
from ade.packing.bits import pack_layer
from ade.packing.format import Packing
from ade.settings import Architecture


class AdePreTrainedModel(PreTrainedModel):
    """Base class of the models: config, weight initialisation, and how a model is made from a codebook and packed."""

    config_class = AdeConfig
    base_model_prefix = "ade"
    accepts_loss_kwargs = False  # the loss is a mean: Trainer divides it where it accumulates gradients
    _class_weight_cache: tuple[Any, Tensor] | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state dict as numpy arrays: floats in float32, packed integers as they are."""
        tensors = {name: tensor.detach().cpu() for name, tensor in self.state_dict().items()}
        return {name: (t.float() if t.is_floating_point() else t).numpy() for name, t in tensors.items()}

    @classmethod
    def from_codebook(
        cls,
        codebook: Codebook | CodedTable,
        labels: Sequence[str] = ("value",),
        architecture: Architecture | None = None,
        **more: Any,
    ) -> Self:
        """Make an untrained model on a codebook; `more` are further arguments of `AdeConfig`, as `problem_type`."""
        architecture = architecture or Architecture()
        packing = Packing() if isinstance(codebook, CodedTable) else codebook.packing
        config = AdeConfig(
            **_sizes(codebook),
            id2label=dict(enumerate(labels)),
            label2id={name: i for i, name in enumerate(labels)},
            attend=architecture.attend,
            sat=architecture.sat,
            layers=architecture.layers,
            positions=architecture.positions,
            pooling=architecture.pooling,
            num_attention_heads=architecture.heads or None,
            max_tokens=architecture.max_tokens,
            packing=None if packing is None else replace(packing, layer_bits=architecture.layer_bits).as_dict(),
            **more,
        )
        model = cls(config)
        layer = model.base_model.embedding
        if isinstance(codebook, CodedTable):
            layer.load(codebook.table)
        else:
            layer.load_codebook(codebook)
        return model

    @torch.no_grad()
    def packed(self) -> Self:
        """Return the model with its weights packed as `config.packing` says.

        Returns the model itself where it has no packing or is packed already.
        """
        if not self.config.packing or self.config.packed:
            return self
        packing = Packing(**self.config.packing)
        state, prefix = self.arrays(), "embedding." if self.base_model is self else "ade.embedding."

        # The codebook, or the coded table.
        sizes, arrays = self.base_model.embedding.packed_arrays(packing)

        # The linear layers; biases and LayerNorm stay as they are.
        stored = {prefix + name: array for name, array in arrays.items()}
        for name, array in state.items():
            if name.startswith(prefix):
                continue
            layer = name.removesuffix(".weight")
            if array.ndim == 2 and layer != name:
                stored[name], stored[f"{layer}.scales"] = pack_layer(array, packing.layer_bits)
            else:
                stored[name] = array

        model = type(self)(AdeConfig.from_dict({**self.config.to_dict(), "packed": sizes}))
        model.load_state_dict({name: torch.from_numpy(array) for name, array in stored.items()})
        return model.to(self.device).eval()

    def _class_weights(self, logits: Tensor) -> Tensor | None:
        """Return the loss weight of each class (C,), on the device of the logits; None where all are alike.

        Weights for another number of classes, as under a new head, are ignored. The tensor is kept: it could not be
        made while a CUDA graph is recorded.
        """
        given = self.config.class_weights
        if given is None or len(given) != logits.shape[-1]:
            return None
        key = (tuple(given), logits.device, logits.dtype)
        if self._class_weight_cache is None or self._class_weight_cache[0] != key:
            with torch.inference_mode(False):
                self._class_weight_cache = (key, torch.tensor(given, device=logits.device, dtype=logits.dtype))
        return self._class_weight_cache[1]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        def untouched(tensor: Tensor) -> bool:  # not loaded from a file
            return not getattr(tensor, "_is_hf_initialized", False)

        if isinstance(module, nn.Linear):
            if untouched(module.weight):
                nn.init.xavier_uniform_(module.weight)
            if module.bias is not None and untouched(module.bias):
                nn.init.zeros_(module.bias)
        elif isinstance(module, PackedLinear) and untouched(module.bias):
            for tensor in (*module.buffers(), *module.parameters()):  # a head of another size is zero-initialised
                nn.init.zeros_(tensor)
        elif isinstance(module, nn.LayerNorm) and untouched(module.weight):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, AnchorEmbedding) and untouched(module.anchors):
            nn.init.normal_(module.anchors)
            nn.init.normal_(module.weights)


def _sizes(codebook: Codebook | CodedTable) -> dict[str, Any]:
    """The arguments of `AdeConfig` that a codebook decides."""
    if isinstance(codebook, CodedTable):
        shape = codebook.table.shape
        sizes = {"vocab_size": shape.rows, "hidden_size": shape.dim, "coded": shape.to_dict()}
        return {**sizes, "anchors": 1, "pairs": 0, "max_pairs": 1}
    return {
        "vocab_size": codebook.vocabulary,
        "hidden_size": codebook.dim,
        "anchors": len(codebook.anchors),
        "pairs": len(codebook.indices),
        "max_pairs": codebook.max_pairs,
    }
