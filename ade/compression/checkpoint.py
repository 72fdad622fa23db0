"""The folder of a model in Hugging Face's layout: where it is, what its files hold, and the same with coded tables.

`transformers` loads the model and writes its weights, in shards where they are large. Everything else in the folder is
copied: tokenizer, card, other modules of sentence-transformers. What other frameworks would read (PyTorch pickles,
ONNX, TensorFlow ...) holds the whole table and is left out.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ade.errors import InputError, first_line
from ade.files import MARKER, OWN_MODELS, kind_of, looks_like_hub_name
from ade.progress import quiet

WANTED = ["*.json", "*.safetensors", "*.txt", "*.model", "README.md", "LICENSE*", "*/config.json"]
MODULES, GENERATION = "modules.json", "generation_config.json"  # of sentence-transformers; of decoders
WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".onnx", ".gguf", ".tflite"}
OTHER_FOLDERS = {"onnx", "openvino", "coreml", ".git", ".cache"}
TYPES = {"U8": torch.uint8, "I8": torch.int8, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
Stored = dict[str, tuple[tuple[int, ...], torch.dtype | None]]  # shape and type of each tensor of a checkpoint


def source_folder(source: str | Path) -> Path:
    """Return the folder of a model, downloaded if it is a hub name."""
    path = Path(source)
    if path.is_dir():
        if kind_of(path).startswith(OWN_MODELS):
            raise InputError(f"{path}: an ADE model, whose table is small already; choose its size when you train it")
        return path
    if not looks_like_hub_name(str(source)):
        raise InputError(f"{source}: no such folder")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), allow_patterns=WANTED))
    except Exception as error:
        raise InputError(f"{source}: neither a folder nor a reachable hub name ({first_line(error)})") from None


def transformer_folder(source: Path) -> Path:
    """Return where in a folder the transformers model is: `.`, or a subfolder of a sentence-transformers model."""
    if (source / MARKER).is_file():
        return Path()
    for module in read_json(source / MODULES) if (source / MODULES).is_file() else ():
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


def load_model(folder: Path) -> tuple[Any, Any]:
    """Load a model with the class its config names, and its tokenizer; safetensors only, never remote code."""
    import transformers

    folder = folder / transformer_folder(folder)
    try:
        named = read_json(folder / MARKER).get("architectures") or []
        kind = getattr(transformers, str(named[0]), None) if named else None
        kind = kind or transformers.AutoModel
        with quiet():
            model = kind.from_pretrained(folder, use_safetensors=True, trust_remote_code=False)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except InputError:
        raise
    except Exception as error:  # of any library: the folder is damaged or of another kind
        raise InputError(f"{folder}: not a model transformers can load ({first_line(error)})") from None
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise InputError(f"{folder}: needs a tokenizer with a tokenizer.json")
    return model.eval(), tokenizer


def stored_tensors(files: Iterable[str | Path]) -> Stored:
    """Return shape and type of every tensor of safetensors files; raises InputError where one cannot be read."""
    stored: Stored = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dictionary
                    part = file.get_slice(name)
                    stored[name] = (tuple(part.get_shape()), TYPES.get(part.get_dtype()))
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: not a readable safetensors file ({first_line(error)})") from None
    return stored


def write_folder(model: Any, source: Path, folder: Path) -> None:
    """Write a model that was loaded from the folder `source`, and `replace_tables` changed, to the folder `folder`.

    Where `source` is a sentence-transformers model, `folder` is one, too.
    """
    inner = transformer_folder(source)
    if model.can_generate():  # the settings are copied as they are: transformers refuses to save some that it loads
        model.generation_config = type(model.generation_config)()
    with quiet():
        model.save_pretrained(folder / inner)
    (folder / inner / GENERATION).unlink(missing_ok=True)

    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        beside = relative.parent == inner  # other modules of sentence-transformers keep their weights
        written = beside and (path.suffix in WEIGHTS or path.name == MARKER or path.name.endswith(".index.json"))
        if path.is_file() and not written and not OTHER_FOLDERS & set(relative.parts[:-1]):
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / relative)
