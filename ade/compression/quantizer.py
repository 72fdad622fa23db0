"""The quantization method `ade` of transformers: what loads a folder with packed tables, with `import ade` alone.

`config.json` says under `quantization_config` which modules have a packed table and how large its arrays are; the
arrays are in the folder's safetensors files. Before weights are loaded, the modules are replaced and the arrays are
checked; transformers then fills them like any buffer.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ade.codebook import TableShape
from ade.coded_layer import PackedTable
from ade.compression.checkpoint import Stored, read_json, stored_tensors, transformer_folder
from ade.compression.head import PackedHead
from ade.compression.replacement import (
    closest,
    modules_sharing,
    owners,
    packed_modules,
    put_tables,
    stored_as,
)
from ade.errors import InputError
from ade.files import MARKER

METHOD = "ade"
VERSION = 4  # of what is written
STUB = (1,)  # shape of what stands under the name of a packed weight: stock transformers refuses it


@register_quantization_config(METHOD)
class AdeQuantizationConfig(QuantizationConfigMixin):
    """Which modules have packed tables: for each name, the table's shape, and whether it is an output layer's."""

    def __init__(self, tables: Mapping[str, Any] | None = None, version: int = VERSION, **_: Any) -> None:
        if version != VERSION:
            raise InputError(
                f"the tables are packed in version {version}, this ade reads version {VERSION}: compress again"
            )
        if not isinstance(tables, Mapping) or not tables:
            raise InputError("the quantization_config of config.json names no packed table")
        self.quant_method = METHOD
        self.version = version
        self.tables = {name: dict(table) for name, table in tables.items()}

    @classmethod
    def of(cls, model: Any) -> "AdeQuantizationConfig":
        """Describe the packed tables of a model."""
        tables = {}
        for name, module in owners(model).items():
            tables[name] = {"shape": asdict(module.packed.shape), "head": isinstance(module, PackedHead)}
        return cls(tables)


@register_quantizer(METHOD)
class AdeQuantizer(HfQuantizer):
    """Replaces modules before weights are loaded, and checks what was loaded."""

    is_trainable = True  # the other weights, or adapters, can be trained; the tables stay
    is_qat_trainable = True  # `Trainer` then takes the model without adapters, too
    is_compileable = True  # `torch.compile` and `generate` with a static cache work

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to pack while loading: that takes a budget and text."""
        if not self.pre_quantized:
            raise InputError("tables are packed by `ade compress`, not while a model is loaded")

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        stored = stored_tensors(checkpoint_files) if checkpoint_files else None
        tables, absent = self._locate(model)
        whole: list[str] = []
        for name, table in tables.items():
            if stored is not None:
                check_arrays(model, name, stored, table)
                size = (table.shape.rows, table.shape.dim)
                kept = [key.removesuffix(".weight") for key, (shape, _) in stored.items() if shape == size]
                heads = [n for n in modules_sharing(model, name) if isinstance(model.get_submodule(n), nn.Linear)]
                whole += [head for head in heads if stored_as(model, head, kept) is not None]
        put_tables(model, tables, whole)

        # Stubs, and tables of output layers that this model has not, are left out of the report on loading.
        unread = [re.escape(name.rpartition(".")[2]) + r"\.(weight|table\..*)$" for name in absent]
        unread += [re.escape(name.rpartition(".")[2]) + r"\.weight$" for name in packed_modules(model)]
        known = model._keys_to_ignore_on_load_unexpected
        kind = set if isinstance(known, set) else list  # a list in early releases of transformers 5
        model._keys_to_ignore_on_load_unexpected = kind([*(known or ()), *unread])

        for module in packed_modules(model).values():
            module.while_loading(True)

    def _locate(self, model: Any) -> tuple[dict[str, PackedTable], list[str]]:
        """Return tables without content by the names of this model's modules, and the heads that it has not."""
        names = [n for n, module in model.named_modules() if isinstance(module, nn.Embedding | nn.Linear)]
        tables, absent = {}, []
        for source, described in self.quantization_config.tables.items():
            name = closest(source, names)
            if name is not None:
                tables[name] = PackedTable(TableShape.from_dict(described.get("shape", {})))
            elif described.get("head"):
                absent.append(source)
            else:
                raise InputError(f"config.json names a packed table {source}, which {type(model).__name__} has not")
        return tables, absent

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        for coded in packed_modules(model).values():
            coded.while_loading(False)
        for module in owners(model).values():
            if not module.packed.depths.is_meta:
                module.packed.check_depths()
                module.packed.order_rows()
        return model

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors to save: the model's, and stubs under the names of the packed weights."""
        model.config.quantization_config = self.quantization_config = AdeQuantizationConfig.of(model)
        stubs = {f"{name}.weight": torch.zeros(STUB, dtype=module.like.dtype) for name, module in owners(model).items()}
        return {**model.state_dict(), **stubs}, {}

    def is_serializable(self) -> bool:
        """A model can be saved."""
        return True


def replace_tables(model: Any, tables: Mapping[str, PackedTable]) -> None:
    """Put packed tables into a loaded model, in place, by the names of the modules they replace (`find_tables`).

    Modules that share a replaced module's weight share its table, unless `tables` has one for them.
    """
    put_tables(model, tables)
    config = AdeQuantizationConfig.of(model)
    model.hf_quantizer = AdeQuantizer(config)
    model.config.quantization_config = config
    model.is_quantized, model.quantization_method = True, METHOD


def check_arrays(model: Any, name: str, stored: Stored, table: PackedTable) -> None:
    """Raise InputError unless a checkpoint has every array of a packed table, in its shape and type."""
    prefixes = [key.removesuffix(".table.depths") for key in stored if key.endswith(".table.depths")]
    prefix = stored_as(model, name, prefixes)
    if prefix is None:
        raise InputError(f"the folder has no packed table {name}, which its config.json names")
    for array, (size, kind) in table.shape.arrays().items():
        given = stored.get(f"{prefix}.table.{array}")
        dtype = getattr(torch, kind)
        if given != (size, dtype):
            has = "is missing" if given is None else f"is {list(given[0])} of {given[1]}"
            raise InputError(f"{prefix}.table.{array} {has}: config.json says {list(size)} of {dtype}")


def is_compressed(folder: Path) -> bool:
    """Whether this is the folder of a model with packed tables."""
    try:
        config = read_json(folder / transformer_folder(folder) / MARKER)
    except InputError:
        return False
    quantization = config.get("quantization_config") if isinstance(config, dict) else None
    return isinstance(quantization, dict) and quantization.get("quant_method") == METHOD
