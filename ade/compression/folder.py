"""Write the folder of a model with packed tables: the files of the original folder, its tables replaced.

All other tensors keep their bytes, names and files; the tokenizer and the files around it are copied. What other
frameworks would read (PyTorch pickles, ONNX, TensorFlow ...) holds the whole table and is left out.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ade.compression.quantizer import STUB, AdeQuantizationConfig, stored_arrays
from ade.compression.replacement import closest, find_tables, modules_sharing, owners, stored_as
from ade.errors import InputError, first_line
from ade.files import MARKER, new_folder

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".gguf", ".tflite", ".pkl"}
OTHER_FOLDERS = {"onnx", "openvino", "coreml", ".git", ".cache"}


def save_compressed(model: Any, source: str | Path, out: str | Path, overwrite: bool = False) -> None:
    """Write the folder of a model whose tables `replace_tables` has packed, from the folder it was loaded from.

    `source` may be the folder of a sentence-transformers model; then `out` is one, too.
    """
    source = Path(source)
    inner = transformer_folder(source)
    if not owners(model):
        raise InputError(f"{type(model).__name__} has no packed table: call replace_tables first")
    config = read_json(source / inner / MARKER)
    if "quantization_config" in config:
        raise InputError(f"{source / inner}: is already quantized; take the folder of the original model")

    with new_folder(Path(out), [MARKER, "modules.json"], overwrite) as draft:
        _copy_files(source, draft, inner)
        names = _write_weights(model, source / inner, draft / inner)
        tables = AdeQuantizationConfig.of(model).tables
        packed = AdeQuantizationConfig({names[name]: table for name, table in tables.items()})
        if not {"dtype", "torch_dtype"} & set(config):  # transformers would take that of the first array
            config["dtype"] = str(model.dtype).removeprefix("torch.")
        config["quantization_config"] = packed.to_dict()
        (draft / inner / MARKER).write_text(json.dumps(config, indent=2) + "\n", "utf8")


def transformer_folder(source: Path) -> Path:
    """Return where in a folder the transformers model is: `.`, or a subfolder of a sentence-transformers model."""
    if (source / MARKER).is_file():
        return Path()
    for module in read_json(source / "modules.json") if (source / "modules.json").is_file() else ():
        inner = Path(str(module.get("path", "")))
        if (source / inner / MARKER).is_file() and "model_type" in read_json(source / inner / MARKER):
            return inner
    raise InputError(f"{source}: not the folder of a transformers or sentence-transformers model (no {MARKER})")


def read_json(path: Path) -> Any:
    """Read a JSON file; raises InputError where it cannot be read."""
    try:
        return json.loads(path.read_text("utf8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable JSON file ({first_line(error)})") from None


def _copy_files(source: Path, draft: Path, inner: Path) -> None:
    """Copy all files but the weights of the transformers model."""
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        beside = relative.parent == inner  # other modules of sentence-transformers keep their weights
        weights = beside and (path.suffix in OTHER_WEIGHTS or path.name.endswith((".safetensors", ".index.json")))
        if not path.is_file() or weights or OTHER_FOLDERS & set(relative.parts[:-1]):
            continue
        (draft / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, draft / relative)
    (draft / inner).mkdir(parents=True, exist_ok=True)


def _write_weights(model: Any, source: Path, out: Path) -> dict[str, str]:
    """Write the safetensors files; returns the name under which each packed module is stored."""
    files = _weight_files(source)
    if not files:
        return _write_unpickled(model, source, out)

    place = {key: path for path in files for key in stored_arrays([path])}
    changes, names = _changes(model, files)
    first = next(place[key] for key in changes if key in place)  # new arrays are beside a replaced table
    index: dict[str, str] = {}
    for path in files:
        affected = {key: change for key, change in changes.items() if place.get(key, first) == path}
        _rewrite(path, out / path.name, affected)
        index |= dict.fromkeys(stored_arrays([out / path.name]), path.name)
    if len(files) > 1:
        size = sum((out / path.name).stat().st_size for path in files)
        written = {"metadata": {"total_size": size}, "weight_map": index}
        (out / INDEX).write_text(json.dumps(written, indent=2) + "\n", "utf8")
    return names


def _weight_files(source: Path) -> list[Path]:
    if (source / WEIGHTS).is_file():
        return [source / WEIGHTS]
    if (source / INDEX).is_file():
        return [source / name for name in sorted(set(read_json(source / INDEX)["weight_map"].values()))]
    return []


def _write_unpickled(model: Any, source: Path, out: Path) -> dict[str, str]:
    """Do the same for a folder that has its weights only as PyTorch pickles."""
    state: dict[str, Tensor] = {}
    for path in sorted(source.glob("pytorch_model*.bin")):
        state |= torch.load(path, map_location="cpu", weights_only=True)
    if not state:
        raise InputError(f"{source}: has no weights (no {WEIGHTS})")
    unpickled = out / "unpickled"
    unpickled.mkdir()
    save_file({key: tensor.clone() for key, tensor in state.items()}, unpickled / WEIGHTS, {"format": "pt"})
    names = _write_weights(model, unpickled, out)
    shutil.rmtree(unpickled)
    return names


def _changes(model: Any, files: Sequence[Path]) -> tuple[dict[str, Tensor | None], dict[str, str]]:
    """Return the tensors that differ from those of the files (None: left out), and the names of packed modules."""
    stored = stored_arrays(files)
    changes: dict[str, Tensor | None] = {}
    names: dict[str, str] = {}
    for name, module in owners(model).items():
        size = (module.packed.shape.rows, module.packed.shape.dim)
        whole = [key.removesuffix(".weight") for key, (shape, _) in stored.items() if shape == size]
        found = _stored_name(model, name, whole)
        names[name] = found if found == closest(name, whole) else name
        original = _read(files, f"{found}.weight")
        rest = [other for other in whole if other != found]

        kept = _whole_head(model, name)
        copies = [other for other in rest if torch.equal(_read(files, f"{other}.weight"), original)]
        changes |= {f"{other}.weight": None for other in copies if closest(other, kept) is None}  # tied to the table
        changes |= module.packed.state_dict(prefix=f"{names[name]}.table.")
        changes |= {f"{key}.weight": torch.zeros(STUB, dtype=original.dtype) for key in (found, names[name])}
        changes |= {f"{head}.weight": original for head in kept if closest(head, rest) is None}
    return changes, names


def _stored_name(model: Any, name: str, whole: Sequence[str]) -> str:
    """Return under which name a checkpoint has the table of a module: its own, or that of one that is tied to it."""
    for module in (name, *modules_sharing(model, name), *_whole_head(model, name)):
        found = stored_as(model, module, whole)
        if found is not None:
            return found
    if len(whole) == 1:
        return whole[0]
    raise InputError(f"the original folder has no table for {name}: it is of another model")


def _whole_head(model: Any, name: str) -> list[str]:
    """Return the output layer where it is not packed, for the input embedding; else nothing."""
    found = find_tables(model)
    whole = found.head is not None and isinstance(model.get_submodule(found.head), nn.Linear)
    return [found.head] if found.head is not None and whole and name == found.input else []


def _read(files: Iterable[Path], key: str) -> Tensor:
    for path in files:
        with safe_open(path, framework="pt") as file:
            if key in file.keys():  # noqa: SIM118 - not a dictionary
                return file.get_tensor(key)
    raise KeyError(key)


def _rewrite(path: Path, out: Path, changes: dict[str, Tensor | None]) -> None:
    """Write a safetensors file with changes; a file without any is copied."""
    if not changes:
        shutil.copyfile(path, out)
        return
    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys() if key not in changes}  # noqa: SIM118
        metadata = file.metadata()
    tensors |= {key: change.cpu().contiguous() for key, change in changes.items() if change is not None}
    save_file(tensors, out, metadata)
