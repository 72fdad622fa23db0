"""AdePreTrainedModel: what the models share, whatever their head; how transformers loads and saves them.

A model is made of what was read (`Saved`) and gives it back (`to_saved`), so that there is one reader and one writer of
folders: weights that are packed on disk are unpacked here, and packed again when the model is saved.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ade.devices import resolve_device
from ade.embedding import LexiconLayer
from ade.errors import InputError
from ade.folder import Saved, new_model
from ade.huggingface_config import AdeConfig

DOWNLOAD = ("revision", "subfolder", "cache_dir", "token", "local_files_only", "force_download")
HEAD = ("num_labels", "id2label", "label2id", "problem_type")
BASE = "ade."  # the name of the model without its head


class AdePreTrainedModel(PreTrainedModel):
    """Base class of the models."""

    config_class = AdeConfig
    base_model_prefix = "ade"
    accepts_loss_kwargs = False  # the loss is a mean: Trainer divides it where it accumulates gradients
    kind = ""  # of `ade.configuration.KINDS`; empty for the model without a head
    lexicon: LexiconLayer | None
    class_weights: Tensor | None

    def __init__(self, saved: Saved) -> None:
        if not isinstance(saved, Saved):
            raise InputError(f"{type(self).__name__} is made of a saved model: use from_pretrained")
        super().__init__(AdeConfig(**saved.config.as_json(saved.table.vocabulary, saved.table.dim, {})))
        self.settings, self.tokenizer = saved.config, saved.tokenizer
        self.lexicon = None  # set here: a value of the class would hide the layer
        self.saved_lexicon = saved.lexicon  # never trained; the model without a head saves it again
        weights = saved.config.class_weights  # of each class in the loss; None where all are alike
        self.register_buffer("class_weights", None if weights is None else torch.tensor(weights), persistent=False)

    @torch.no_grad()
    def load_layers(self, saved: Saved) -> None:
        """Copy a model's layers; those of a head that this class lacks are kept to be saved again."""
        self.post_init()
        parameters = {name.removeprefix(BASE): parameter for name, parameter in self.named_parameters()}
        for name in saved.layers.keys() & parameters.keys():
            parameters[name].copy_(torch.from_numpy(saved.layers[name]))
        self.unused_layers = {name: layer for name, layer in saved.layers.items() if name not in parameters}

    def to_saved(self) -> Saved:
        """Return the model as it will be stored."""
        state = {name.removeprefix(BASE): tensor for name, tensor in self.named_parameters()}
        table = self.base_model.embedding.to_table()
        layers = dict(self.unused_layers)
        for name in self.settings.layer_shapes(table.dim).keys() - layers.keys():
            layers[name] = state[name].detach().float().cpu().numpy()
        return Saved(self.settings, self.tokenizer, table, layers, self.saved_lexicon)

    @classmethod
    def from_pretrained(cls, source: str | os.PathLike[str], *_: Any, **given: Any) -> Any:
        """Load a model folder or a model on the hub.

        With other labels than the folder's, or a folder of another kind, the head is untrained. Arguments choose
        labels, type, device and what to download; no remote code is run.
        """
        if given.get("state_dict") is not None:
            raise InputError("state_dict is not taken: load the model, then call load_state_dict on it")
        given = {name: value for name, value in given.items() if value is not None}
        saved = Saved.read(os.fspath(source), **{name: given[name] for name in DOWNLOAD if name in given})
        if cls.kind:
            wanted = {}
            for name in HEAD:
                of_config = getattr(given.get("config"), name, None)  # pipelines and Auto classes put the labels there
                wanted[name] = given.get(name, of_config)
            saved = with_head(saved, cls.kind, wanted)
        model = cls(saved)

        dtype = given.get("dtype") or given.get("torch_dtype")
        if isinstance(dtype, str):
            dtype = None if dtype == "auto" else getattr(torch, dtype)
        device = given.get("device_map")
        if device == "auto":
            device = resolve_device("auto")
        model = model.to(device=device, dtype=dtype).eval()
        if given.get("output_loading_info"):
            return model, {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": [], "error_msgs": []}
        return model

    def save_pretrained(self, save_directory: str | os.PathLike[str], *_: Any, **__: Any) -> None:
        """Write the files of a model folder, packed as the model's settings say."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        self.to_saved().write(folder)

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Leave the weights as they are: they are copied from what was read."""


def with_head(saved: Saved, kind: str, wanted: Mapping[str, Any]) -> Saved:
    """Return a model with the head that is wanted, untrained where it is another than the model's."""
    config = saved.config
    names = wanted.get("id2label")
    labels = config.labels if names is None else tuple(str(names[i]) for i in sorted(names, key=int))
    count = wanted.get("num_labels")
    if count is not None and count != len(labels):
        labels = tuple(f"LABEL_{i}" for i in range(count))
    problem = wanted.get("problem_type") or (config.problem if len(labels) == len(config.labels) else None)
    if (kind, len(labels), problem) == (config.kind, len(config.labels), config.problem):
        return replace(saved, config=replace(config, labels=labels))
    if not labels:
        raise InputError(f"a head needs labels: give num_labels or id2label, the folder holds {config.kind}")
    untrained = replace(config, label_type="str", mean=0.0, deviation=1.0, class_weights=None, metadata={})
    return new_model(saved, replace(untrained, kind=kind, labels=labels, problem=problem))
