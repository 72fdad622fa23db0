"""Teachers: a pretrained model's input embedding table and its tokenizer (the paper's stage 1 input).

Only the embedding table is read, never the rest of the model, and only from safetensors, which cannot run code.
"""

import importlib.util
import json
from dataclasses import dataclass
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor

from ade.codebook import Table
from ade.configuration import CODEBOOK, ENCODER, Config
from ade.errors import InputError, first_line
from ade.files import MARKER, OWN_MODELS, kind_of, looks_like_hub_name
from ade.folder import WEIGHTS, Saved
from ade.packing.tokenizer_file import TOKENIZER, read_tokenizer

DEFAULT_TEACHER = "wordllama"
EMBEDDINGS, INDEX = "embeddings.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Teacher:
    """An embedding table with the tokenizer whose ids are its rows."""

    name: str
    table: Tensor  # (N, d), any float type
    tokenizer: Tokenizer
    license: str | None = None  # as its model card or package states it

    @property
    def nbytes(self) -> int:
        """Bytes of the table in float32, as the paper counts them."""
        return self.table.numel() * 4

    def take(self, tokenizer: Tokenizer, rows: np.ndarray) -> "Teacher":
        """Return the teacher with some of its rows, and the tokenizer whose ids they are."""
        return Teacher(self.name, self.table[torch.from_numpy(rows)], tokenizer, self.license)

    def as_saved(self, table: Table, **metadata: Any) -> Saved:
        """Return a table that was distilled from this teacher, as a folder has it."""
        rows, dim = self.table.shape
        about = {"teacher": self.name, "license": self.license, "rows": rows, "dim": dim}
        return Saved(Config(kind=CODEBOOK, metadata={**about, **metadata}), self.tokenizer, table, {})

    @classmethod
    def of(cls, saved: Saved) -> "Teacher":
        """Return the table of a model or codebook as a teacher, to be fitted to another size."""
        metadata, table = saved.config.metadata, saved.table
        rows = torch.from_numpy(table.rows(np.arange(table.vocabulary)))
        return cls(str(metadata.get("teacher") or "a table"), rows, saved.tokenizer, metadata.get("license"))


def load_teacher(source: str | Path = DEFAULT_TEACHER) -> Teacher:
    """Load a teacher from a folder, a Hugging Face hub name, or the embedded default.

    A folder holds either a Hugging Face model or `embeddings.safetensors` beside `tokenizer.json`.
    """
    path, name = Path(source), str(source)
    if name == DEFAULT_TEACHER and not path.is_dir():
        table, tokenizer = _read_wordllama()
        stated_license = (metadata("wordllama")["License"] or "").partition("\n")[0] or None
    else:
        if path.is_file() or not (path.is_dir() or looks_like_hub_name(name)):
            raise InputError(f"{source}: a teacher is the folder of a model or its hub name")
        folder = path if path.is_dir() else _download(name)
        table, tokenizer = _read_folder(folder)
        stated_license = _license_of(folder)
    if path.exists():
        name = path.resolve().name
    return Teacher(name, fit_rows(table, tokenizer, source), tokenizer, stated_license)


def _license_of(folder: Path) -> str | None:
    """Return the license that a folder's model card states; None without a readable card."""
    from huggingface_hub import metadata_load

    try:
        stated = (metadata_load(folder / "README.md") or {}).get("license")
    except Exception:  # no card, or not a readable one
        return None
    return stated if isinstance(stated, str) else None


def _read_wordllama() -> tuple[Tensor, Tokenizer]:
    spec = importlib.util.find_spec("wordllama")  # locates the package without importing it
    if spec is None or not spec.submodule_search_locations:
        raise InputError("the default teacher ships in the package wordllama: pip install 'ade-embeddings[train]'")
    folder = Path(spec.submodule_search_locations[0])
    table = _read_tensor(folder / "weights" / "l2_supercat_256.safetensors", "embedding.weight")
    return table, Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))


def _read_folder(folder: Path) -> tuple[Tensor, Tokenizer]:
    kind = kind_of(folder)
    if kind.startswith(OWN_MODELS):
        trained = "'ade train --from' starts from it"
        instead = trained if kind in (ENCODER, CODEBOOK) else "give the teacher that it was made from"
        raise InputError(f"{folder}: an ADE model has no embedding table to distil; {instead}")
    tokenizer = _read_tokenizer(folder)
    if (folder / EMBEDDINGS).exists():
        return _read_tensor(folder / EMBEDDINGS), tokenizer
    if (folder / MARKER).exists():
        return _read_tensor(*_find_tensor(folder)), tokenizer
    raise InputError(f"{folder}: holds neither {EMBEDDINGS} nor a Hugging Face config.json")


def _read_tokenizer(folder: Path) -> Tokenizer:
    if (folder / TOKENIZER).exists():
        tokenizer = read_tokenizer(folder)
    elif (folder / "tokenizer_config.json").exists():
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False).backend_tokenizer
    else:
        raise InputError(f"{folder}: has no tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _read_tensor(path: Path, name: str | None = None) -> Tensor:
    """Read one tensor of a safetensors file; without a `name`, its only one."""
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            if name is None and len(names) != 1:
                raise InputError(f"{path}: expected one tensor, found {len(names)}: {', '.join(names[:5])}")
            return file.get_tensor(name or names[0])
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from None


def _find_tensor(folder: Path) -> tuple[Path, str]:
    """Return the file that holds the input embeddings of a Hugging Face model, and their name in it."""
    wanted = _input_embedding_name(folder)
    files = _tensor_files(folder)
    matches = [name for name in files if name == wanted or name.endswith("." + wanted) or wanted.endswith("." + name)]
    if not matches:
        raise InputError(f"{folder}: no tensor named like '{wanted}' among {len(files)} in its safetensors")
    name = min(matches, key=len)
    return files[name], name


def _input_embedding_name(folder: Path) -> str:
    """Return the parameter name of the input embeddings in the model class that the folder's config names."""
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):  # names and shapes of the parameters, without memory
            model = AutoModel.from_config(config, trust_remote_code=False)
    except (ValueError, KeyError, OSError) as error:
        raise InputError(f"{folder}: not a model transformers knows ({first_line(error)})") from None
    weight = model.get_input_embeddings().weight
    return next(name for name, parameter in model.named_parameters() if parameter is weight)


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Return the safetensors file that holds each tensor, by its name; the weights may be sharded."""
    index, single = folder / INDEX, folder / WEIGHTS
    if index.exists():
        try:
            return {name: folder / file for name, file in json.loads(index.read_text("utf8"))["weight_map"].items()}
        except (ValueError, KeyError, AttributeError):
            raise InputError(f"{index}: not a readable index of weights") from None
    if not single.exists():
        raise InputError(f"{folder}: has no {WEIGHTS}; pickled weights are never loaded, convert them first")
    try:
        with safe_open(single, "pt") as file:
            return dict.fromkeys(file.keys(), single)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{single}: not a readable safetensors file ({error})") from None


def _download(name: str) -> Path:
    """Download tokenizer, config and the one weights file that holds the input embeddings; return their folder."""
    from huggingface_hub import snapshot_download

    small = ["README.md", "*.json", "*.txt", "*.model", EMBEDDINGS]
    try:
        folder = Path(snapshot_download(name, allow_patterns=small))
        if not (folder / EMBEDDINGS).exists():
            wanted = _find_tensor(folder)[0].name if (folder / INDEX).exists() else WEIGHTS
            folder = Path(snapshot_download(name, allow_patterns=[*small, wanted]))
        return folder
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name}: neither a folder nor a reachable hub name ({first_line(error)})") from None


def fit_rows(table: Tensor, tokenizer: Tokenizer, source: str | Path) -> Tensor:
    """Add mean rows to a table until every token id of the tokenizer has one; rows without a token stay.

    Raises `InputError` for a table that is none, or holds NaN or infinity.
    """
    if table.ndim != 2 or not table.is_floating_point():
        raise InputError(f"the embedding table is {table.dtype} {tuple(table.shape)}, expected floats of shape (N, d)")
    for start in range(0, len(table), 65536):
        finite = torch.isfinite(table[start : start + 65536]).all(1)
        if not finite.all():
            row = start + int((~finite).nonzero()[0])
            raise InputError(f"{source}: row {row} of the embedding table holds NaN or infinity")
    missing = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1 - len(table)
    if missing <= 0:
        return table
    mean = table.float().mean(0, keepdim=True).to(table.dtype)
    return torch.cat([table, mean.expand(missing, -1)])
