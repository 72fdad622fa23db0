"""CodedTable: a packed table without a model, with its tokenizer, as a folder of its own."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from ade.compression.table import PackedTable, type_name
from ade.data.tokenizer_file import read_tokenizer, write_tokenizer
from ade.errors import InputError, first_line
from ade.files import new_folder
from ade.packing.coded import TABLE_FILE, TableShape

ARRAYS, SHAPE = "table.safetensors", TABLE_FILE
TOKENIZER_BYTES = "tokenizer_bytes"  # in `about`, of a table whose folder has a given size
TABLE_JSON = 6_000  # bytes of table.json, and of the header of the arrays, at most


@dataclass(frozen=True, eq=False)
class CodedTable:
    """A packed table with its tokenizer; what is known of it is in `about`."""

    table: PackedTable
    tokenizer: Tokenizer
    about: Mapping[str, Any] = field(default_factory=dict)

    def digest(self) -> str:
        """Return a hash of the arrays."""
        found = hashlib.sha256()
        for array in self.table.state_dict().values():
            found.update(array.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()[:16]

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.table.shape.rows

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write `table.safetensors`, `table.json` and the tokenizer; nothing where one of them fails."""
        with new_folder(Path(folder), {SHAPE}, overwrite) as draft:
            self.write(draft)

    def write(self, folder: Path) -> None:
        """Write the files into an existing folder; the tokenizer packed where its bytes were counted."""
        arrays = {name: array.contiguous() for name, array in self.table.state_dict().items()}
        save_file(arrays, folder / ARRAYS)
        about = {**self.about, **self.table.shape.to_dict(), "exact_dtype": type_name(self.table.exact.dtype)}
        (folder / SHAPE).write_text(json.dumps(about, indent=2) + "\n", "utf8")
        write_tokenizer(self.tokenizer, folder, packed=TOKENIZER_BYTES in self.about)

    @classmethod
    def load(cls, folder: str | Path) -> "CodedTable":
        """Read such a folder; raises InputError for one that is not."""
        folder = Path(folder)
        try:
            about = json.loads((folder / SHAPE).read_text("utf8"))
            shape, kind = TableShape.from_dict(about), str(about.pop("exact_dtype"))
            arrays = load_file(folder / ARRAYS)
            wanted = {name: (size, getattr(torch, of)) for name, (size, of) in shape.arrays(kind).items()}
            if {name: (tuple(array.shape), array.dtype) for name, array in arrays.items()} != wanted:
                raise InputError(f"{folder}: the arrays are not those of the shape; the table is damaged")
            packed = PackedTable(shape, wanted["exact"][1])
            packed.load_state_dict(arrays)
            packed.check_depths()
            rest = {name: value for name, value in about.items() if name not in shape.to_dict()}
            return cls(packed, read_tokenizer(folder), rest)
        except InputError:
            raise
        except (SafetensorError, OSError, ValueError, KeyError, AttributeError, TypeError, RuntimeError) as error:
            raise InputError(f"{folder}: not a packed table ({first_line(error)})") from None
