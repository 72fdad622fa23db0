"""The quantization method `ade` of transformers: what loads a folder with packed tables, with `import ade` alone.

`config.json` says under `quantization_config` which modules have a packed table and how large its arrays are; the
arrays are in the folder's safetensors files. Before weights are loaded, the modules are replaced and the arrays are
checked; transformers then fills them like any buffer.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ade.compression.head import CodedHead
from ade.compression.replacement import (
    Ties,
    closest,
    coded_modules,
    find_tables,
    modules_sharing,
    owners,
    put_tables,
    restore_ties,
    stored_as,
    unpack_tables,
)
from ade.compression.table import PackedTable, type_name
from ade.errors import InputError, first_line
from ade.packing.coded import TableShape

METHOD = "ade"
VERSION = 2  # of what is written
STUB = (1,)  # shape of what stands under the name of a packed weight: stock transformers refuses it
TYPES = {"U8": torch.uint8, "I8": torch.int8, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
Stored = Mapping[str, tuple[tuple[int, ...], torch.dtype | None]]  # shapes and types of a checkpoint's tensors


@register_quantization_config(METHOD)
class AdeQuantizationConfig(QuantizationConfigMixin):
    """Which modules have packed tables: for each name, the table's shape and the type of its whole rows."""

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
        return cls({name: description(module.packed, module) for name, module in owners(model).items()})

    def table_of(self, name: str) -> PackedTable:
        """Return a table of the described size, without content."""
        described = self.tables[name]
        dtype = getattr(torch, str(described.get("dtype")), None)
        if not isinstance(dtype, torch.dtype):
            raise InputError(f"{name}: unknown dtype {described.get('dtype')!r} of a packed table")
        return PackedTable(TableShape.from_dict(described.get("shape", {})), dtype)


def description(table: PackedTable, module: nn.Module) -> dict[str, Any]:
    """Return what config.json says about a packed table."""
    dtype = str(table.exact.dtype).removeprefix("torch.")
    return {"shape": table.shape.to_dict(), "dtype": dtype, "head": isinstance(module, CodedHead)}


@register_quantizer(METHOD)
class AdeQuantizer(HfQuantizer):
    """Replaces modules before weights are loaded, and checks what was loaded."""

    def __init__(self, quantization_config: AdeQuantizationConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.ties: Ties = []
        self._expected: dict[str, torch.Size] = {}

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to pack while loading: that takes a budget and text."""
        if not self.pre_quantized:
            raise InputError("tables are packed by `ade compress`, not while a model is loaded")

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        stored = stored_arrays(checkpoint_files) if checkpoint_files else None
        tables, absent = self._locate(model)
        whole: list[str] = []
        for name, table in tables.items():
            if stored is not None:
                check_arrays(model, name, stored, table)
                whole += [n for n in modules_sharing(model, name) if _has_own_weight(model, n, stored, table.shape)]

        self.ties = put_tables(model, tables, whole)
        _ignore_on_load(model, [re.escape(name.rpartition(".")[2]) + r"\.(weight|table\..*)$" for name in absent])
        _ignore_on_load(model, [re.escape(name.rpartition(".")[2]) + r"\.weight$" for name in coded_modules(model)])
        self._expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
        for module in coded_modules(model).values():
            module.while_loading(True)

    def _locate(self, model: Any) -> tuple[dict[str, PackedTable], list[str]]:
        """Return tables without content by the names of this model's modules, and the heads that it has not."""
        names = [n for n, module in model.named_modules() if isinstance(module, nn.Embedding | nn.Linear)]
        tables, absent = {}, []
        for source, described in self.quantization_config.tables.items():
            name = closest(source, names)
            if name is not None:
                tables[name] = self.quantization_config.table_of(source)
            elif described.get("head"):
                absent.append(source)
            else:
                raise InputError(f"config.json names a packed table {source}, which {type(model).__name__} has not")
        return tables, absent

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        for coded in coded_modules(model).values():
            coded.while_loading(False)
        for name, tensor in model.state_dict().items():
            if tensor.shape != self._expected.get(name, tensor.shape):
                given, fits = list(tensor.shape), list(self._expected[name])
                raise InputError(f"{name} has the shape {given} in the folder, {fits} would fit")
        for module in owners(model).values():
            if not module.packed.depths.is_meta:
                module.packed.check_depths()
                module.packed.slots()  # now, for graphs
        return model

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors to save: the model's, and stubs under the names of the packed weights."""
        model.config.quantization_config = self.quantization_config = AdeQuantizationConfig.of(model)
        stubs = {f"{name}.weight": torch.zeros(STUB, dtype=module.dtype) for name, module in owners(model).items()}
        return {**model.state_dict(), **stubs}, {}

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        given = dtype if isinstance(dtype, torch.dtype) and dtype != model.config.dtype else None
        unpack_tables(model, given)
        restore_ties(model, self.ties)
        return model

    def is_serializable(self) -> bool:
        """A model can be saved."""
        return True

    @property
    def is_trainable(self) -> bool:
        """The other weights, or adapters, can be trained; the tables stay."""
        return True

    @property
    def is_qat_trainable(self) -> bool:
        """`Trainer` then takes the model without adapters, too."""
        return True

    @property
    def is_compileable(self) -> bool:
        """`torch.compile` and `generate` with a static cache work."""
        return True


def replace_tables(model: Any, tables: Mapping[str, PackedTable], tie_head: bool = True) -> None:
    """Put packed tables into a loaded model, in place, by the names of the modules they replace (`find_tables`).

    Modules that share a replaced module's weight share its table, unless `tables` has one for them. With `tie_head`
    false, a head that shared the weight of the input embedding keeps it whole.
    """
    if getattr(model, "hf_quantizer", None) is not None:
        method = model.hf_quantizer.quantization_config.quant_method
        raise InputError(f"{type(model).__name__} is already quantized ({method}): take the original model")
    found = find_tables(model)
    whole = [found.head] if found.tied and found.head and not tie_head else []
    ties = put_tables(model, tables, whole)

    config = AdeQuantizationConfig.of(model)
    quantizer = AdeQuantizer(config)
    quantizer.ties = ties
    for module in owners(model).values():
        module.packed.slots()  # now, for graphs
    model.hf_quantizer, model.config.quantization_config = quantizer, config
    model.is_quantized, model.quantization_method = True, METHOD


def stored_arrays(files: Iterable[str | Path]) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Return shape and type of every tensor of safetensors files; raises InputError where one cannot be read."""
    found = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dictionary
                    part = file.get_slice(name)
                    found[name] = (tuple(part.get_shape()), TYPES.get(part.get_dtype()))
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: not a readable safetensors file ({first_line(error)})") from None
    return found


def check_arrays(model: Any, name: str, stored: Stored, table: PackedTable) -> None:
    """Raise InputError unless a checkpoint has every array of a packed table, in its shape and type."""
    prefixes = [key.removesuffix(".table.depths") for key in stored if key.endswith(".table.depths")]
    prefix = stored_as(model, name, prefixes)
    if prefix is None:
        raise InputError(f"the folder has no packed table {name}, which its config.json names")
    for array, (size, kind) in table.shape.arrays(type_name(table.exact.dtype)).items():
        given, dtype = stored.get(f"{prefix}.table.{array}"), getattr(torch, kind)
        if given != (size, dtype):
            has = "is missing" if given is None else f"is {list(given[0])} of {given[1]}"
            raise InputError(f"{prefix}.table.{array} {has}: config.json says {list(size)} of {dtype}")


def _has_own_weight(model: Any, name: str, stored: Stored, shape: TableShape) -> bool:
    """Whether the checkpoint has a whole table for a module that the model would tie: an output layer kept whole."""
    whole = [key.removesuffix(".weight") for key, (size, _) in stored.items() if size == (shape.rows, shape.dim)]
    return isinstance(model.get_submodule(name), nn.Linear) and stored_as(model, name, whole) is not None


def _ignore_on_load(model: Any, patterns: list[str]) -> None:
    """Keep tensors that are not of this model out of the report on loading."""
    known = model._keys_to_ignore_on_load_unexpected
    kind = set if isinstance(known, set) else list  # a list in early releases of transformers 5
    model._keys_to_ignore_on_load_unexpected = kind([*(known or ()), *patterns])
