"""Saved: a model as it is stored, all of it in numpy; the one reader and the one writer of model folders.

A folder has `config.json`, `model.safetensors`, a tokenizer and a model card. Tables, lexicons and layers are unpacked
when a folder is read and packed when it is written; reading and writing again changes no byte of the weights.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors import deserialize
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from ade.codebook import Codebook, Stored, Table, read_table, rounded
from ade.configuration import CODEBOOK, ENCODER, Config, check_kind, config_from_json
from ade.errors import InputError
from ade.files import MARKER, model_folder, new_file, new_folder, reading_model
from ade.lexicon import Lexicon, read_lexicon
from ade.packing.bits import pack_rows, rows_stored, unpack_rows
from ade.packing.format import check_arrays, check_finite
from ade.packing.tokenizer_file import PACKED, TOKENIZER, read_tokenizer, write_tokenizer

WEIGHTS, FOR_TORCH = "model.safetensors", {"format": "pt"}  # the file, and what transformers looks for in it
TABLE, LEXICON = "ade.embedding.", "lexicon."  # what the names of their arrays begin with
BASE = ("norm.", "sat.", "layers.")  # layers whose stored names begin with `ade.`, as in PyTorch
READ = (MARKER, WEIGHTS, TOKENIZER, PACKED)  # the files that prediction reads


@dataclass(frozen=True, eq=False)
class Saved:
    """A model: settings, tokenizer, table, layers in float32, and a lexicon or none. A codebook has no layers."""

    config: Config
    tokenizer: Tokenizer
    table: Table
    layers: Mapping[str, np.ndarray]  # by the names of `Config.layer_shapes`
    lexicon: Lexicon | None = None

    def __post_init__(self) -> None:
        config, table = self.config, self.table
        if config.kind != CODEBOOK and table.dim % config.heads:
            raise InputError(f"dimension {table.dim} is not divisible by {config.heads} heads")
        if config.attend == "anchors" and not isinstance(table, Codebook):
            raise InputError("attention over anchors needs anchors, and the table is coded; attend over tokens")
        if self.tokenizer.get_vocab_size() > table.vocabulary:
            raise InputError(
                f"the tokenizer knows {self.tokenizer.get_vocab_size():,} tokens, the model {table.vocabulary:,}"
            )
        shapes = config.layer_shapes(table.dim)
        check_arrays({name: ("float32", shape) for name, shape in shapes.items()}, self.layers)
        for name in shapes:
            check_finite(name, self.layers[name])
        lexicon = self.lexicon
        if lexicon is not None and (lexicon.vocabulary, len(lexicon.bias)) != (table.vocabulary, config.outputs):
            raise InputError("its lexicon is for another number of tokens or labels")

    @classmethod
    def read(cls, source: str | Path, kind: str | None = None, **download: Any) -> "Saved":
        """Read a model folder, or a model on the hub; with a `kind`, raise `InputError` for another one.

        `download` are arguments for the hub, as `revision`.
        """
        folder = model_folder(source, **download)
        with reading_model(folder):
            given = json.loads((folder / MARKER).read_text("utf8"))
            config = config_from_json(given)
            if kind is not None:
                check_kind(folder, config.kind, kind)
            arrays = read_arrays(folder / WEIGHTS)
            table = read_table(given.get("table") or {}, _named(arrays, TABLE))
            lexicon = read_lexicon(given["lexicon"], _named(arrays, LEXICON)) if given.get("lexicon") else None
            layers = _read_layers(config, table.dim, arrays)
            return cls(config, read_tokenizer(folder), table, layers, lexicon)

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write a complete folder, or nothing where a file of it cannot be written."""
        with new_folder(Path(folder), {MARKER}, overwrite) as draft:
            self.write(draft)

    def write(self, folder: Path) -> None:
        """Write the files of a model into an existing folder."""
        sizes, arrays = self.stored()
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / WEIGHTS, FOR_TORCH)
        write_tokenizer(self.tokenizer, folder, self.packed, self.config.max_tokens)
        self.write_settings(folder, sizes)

    def stored(self) -> Stored:
        """Return the sizes of table and lexicon, and all arrays as they are stored."""
        sizes: dict[str, Any] = {"lexicon": None}
        sizes["table"], table = self.table.stored()
        arrays = {TABLE + name: array for name, array in table.items()} | _stored_layers(self.config, self.layers)
        if self.lexicon is not None:
            sizes["lexicon"], lexicon = self.lexicon.stored()
            arrays |= {LEXICON + name: array for name, array in lexicon.items()}
        return sizes, arrays

    def write_settings(self, folder: Path, sizes: Mapping[str, Any]) -> None:
        """Write `config.json` and the model card beside the other files."""
        from ade.model_card import CARD, card  # its library takes long to import, and prediction never writes

        config = self.config.as_json(self.table.vocabulary, self.table.dim, sizes)
        with new_file(folder / MARKER) as draft:
            draft.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf8")
        with new_file(folder / CARD) as draft:
            draft.write_text(card(self.config, self.table, nbytes_of(folder)), "utf8")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the files of the folder, which are several times smaller than the arrays."""
        with TemporaryDirectory() as folder:
            self.write(Path(folder))
            return _from_files, ({path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())},)

    def __deepcopy__(self, memo: object) -> "Saved":
        return self  # it is never changed

    @property
    def packed(self) -> bool:
        """Whether the table is stored in few bits."""
        return not isinstance(self.table, Codebook) or self.table.packing is not None

    def rounded(self) -> "Saved":
        """Return the model as it will be read back: with its values rounded, where they are packed."""
        layers = _read_layers(self.config, self.table.dim, _stored_layers(self.config, self.layers))
        return replace(self, table=rounded(self.table), layers=layers)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays."""
        return sum(array.nbytes for array in self.stored()[1].values())

    def with_metadata(self, **more: Any) -> "Saved":
        """Return the model with further metadata, for its card."""
        return replace(self, config=replace(self.config, metadata={**self.config.metadata, **more}))


def _from_files(files: Mapping[str, bytes]) -> Saved:
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        return Saved.read(folder)


def add_metadata(folder: Path, **more: Any) -> None:
    """Add to the metadata of a model folder, and to its card."""
    saved = Saved.read(folder).with_metadata(**more)
    saved.write_settings(folder, saved.stored()[0])


def nbytes_of(folder: str | Path) -> int:
    """Bytes of the files that prediction reads: weights, configuration and tokenizer."""
    return sum(path.stat().st_size for name in READ if (path := Path(folder) / name).is_file())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read every array of a safetensors file, bfloat16 as float32."""
    arrays = {}
    for name, entry in deserialize(path.read_bytes()):
        kind, data = entry["dtype"], bytes(entry["data"])
        if kind == "BF16":  # numpy has no such type; it is the upper half of a float32
            array = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(data, f"{kind[0].lower()}{int(kind[1:]) // 8}")  # as F32, I16
        arrays[name] = array.reshape(entry["shape"])
    return arrays


def new_layers(config: Config, dim: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return untrained layers: Xavier's uniform weights for linear ones, zero biases, LayerNorm as the identity."""
    generator = np.random.default_rng(seed)
    layers = {}
    for name, shape in config.layer_shapes(dim).items():
        if len(shape) == 2:
            bound = (6 / sum(shape)) ** 0.5
            layers[name] = generator.uniform(-bound, bound, shape).astype(np.float32)
        else:
            layers[name] = np.full(shape, float(name.endswith("norm.weight")), np.float32)
    return layers


def new_model(saved: Saved, config: Config, seed: int = 0) -> Saved:
    """Return an untrained model of these settings, with the table of another and all of its layers that fit.

    The head is new, unless both have the same labels and problem.
    """
    layers, old = new_layers(config, saved.table.dim, seed), saved.config
    same_head = (old.kind, old.labels, old.problem) == (config.kind, config.labels, config.problem)
    for name, array in saved.layers.items():
        fits = name in layers and array.shape == layers[name].shape
        if fits and (same_head or not name.startswith("head.")):
            layers[name] = array
    return Saved(config, saved.tokenizer, saved.table, layers)


def encoder_of(saved: Saved) -> Saved:
    """Return an encoder as it is; of a classifier, what gives its pooled vectors: the identity is its head."""
    if saved.config.kind == ENCODER:
        return saved
    dim = saved.table.dim
    config = replace(saved.config, kind=ENCODER, output_size=dim, labels=(), problem=None, mean=0.0, deviation=1.0)
    head = {"head.weight": np.eye(dim, dtype=np.float32), "head.bias": np.zeros(dim, np.float32)}
    return replace(saved, config=config, layers={**saved.layers, **head}, lexicon=None)


def _stored_layers(config: Config, layers: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays that layers are stored as: weights in few bits with a scale a row, or as they are."""
    arrays = {}
    for name, array in layers.items():
        stored = f"ade.{name}" if name.startswith(BASE) else name
        if config.layer_bits and array.ndim == 2:
            arrays[stored], arrays[stored.removesuffix("weight") + "scales"] = pack_rows(array, config.layer_bits)
        else:
            arrays[stored] = array
    return arrays


def _read_layers(config: Config, dim: int, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the layers in float32; those that are missing or of another shape are for `Saved` to refuse."""
    layers = {}
    for name, shape in config.layer_shapes(dim).items():
        stored = f"ade.{name}" if name.startswith(BASE) else name
        if config.layer_bits and len(shape) == 2:
            scales = stored.removesuffix("weight") + "scales"
            check_arrays(dict(zip((stored, scales), rows_stored(*shape, config.layer_bits), strict=True)), arrays)
            layers[name] = unpack_rows(arrays[stored], arrays[scales], shape[1])
        elif stored in arrays and arrays[stored].dtype.kind == "f":
            layers[name] = arrays[stored].astype(np.float32)
    return layers


def _named(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
