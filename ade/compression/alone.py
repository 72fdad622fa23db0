"""Tables without a model: word vectors, or an embedding table beside its tokenizer, packed into a folder of their own.

The folder has the arrays (`table.safetensors`), their shape (`table.json`) and the tokenizer; docs/compress.md has a
reader in numpy.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from ade.compression.coded_table import ARRAYS, SHAPE, CodedTable
from ade.compression.coder import CoderSettings, encode_table
from ade.compression.report import TABLE, CompressionReport
from ade.compression.table import PackedTable
from ade.compression.use import use_of_files
from ade.files import new_folder
from ade.progress import Report, silent
from ade.settings import CompressionSettings
from ade.teachers import TEXT_VECTORS, load_teacher

PROBES, NEIGHBOURS = 500, 10  # rows whose neighbours are compared, and how many of each


def is_table(source: str | Path) -> bool:
    """Whether a source is a table without a model: text vectors, or `embeddings.safetensors` / `.npy`."""
    path = Path(source)
    if path.is_dir():
        return not (path / "config.json").exists() and any(path.glob("embeddings.*"))
    return path.is_file() and path.name.endswith(TEXT_VECTORS)


def compress_table(
    source: str | Path,
    out: Path,
    settings: CompressionSettings,
    files: Sequence[Sequence[str]] = (),
    languages: Sequence[str] = (),
    overwrite: bool = False,
    report: Report = silent,
) -> CompressionReport:
    """Pack a table into the folder `out`; the loss is the share of the rows' nearest neighbours that change."""
    with new_folder(out, {SHAPE}, overwrite) as draft:
        teacher = load_teacher(source)
        table, (rows, dim) = teacher.table, teacher.table.shape
        use = use_of_files(teacher.tokenizer, rows, files, languages, report)
        coder = CoderSettings(settings.nbytes(rows, dim), settings.seed)
        packed = encode_table(table, use, (), coder, report=report)

        CodedTable(packed, teacher.tokenizer).write(draft)
        sizes = {"before": table.numel() * table.element_size(), "after": (draft / ARRAYS).stat().st_size}
        folder = {"before": sizes["before"], "after": sum(file.stat().st_size for file in draft.iterdir())}
        lost = {"rows, by use": 100 * _neighbours_lost(table, packed, use, settings.seed)}
        return CompressionReport(str(source), sizes, sizes, folder, f"of {NEIGHBOURS} neighbours lost", lost, TABLE)


def load_table(folder: str | Path) -> tuple[PackedTable, Tokenizer]:
    """Load what `compress_table` wrote; raises InputError for a folder that is not such a table."""
    found = CodedTable.load(folder)
    return found.table, found.tokenizer


def _neighbours_lost(table: Tensor, packed: PackedTable, use: Tensor, seed: int) -> float:
    """Return the share of the nearest neighbours, by cosine, of rows drawn by use that are others after packing."""
    generator = torch.Generator().manual_seed(seed)
    count = min(PROBES, len(table))
    probes = torch.multinomial(use.double().clamp(min=1e-12), count, generator=generator)
    most = min(NEIGHBOURS, len(table) - 1)
    before = _nearest([part.float() for part in table.split(8192)], table[probes].float(), probes, most)
    rows = torch.arange(len(table)).split(8192)
    after = _nearest([packed(part) for part in rows], packed(probes), probes, most)
    kept = sum(len(set(left) & set(right)) for left, right in zip(before.tolist(), after.tolist(), strict=True))
    return 1 - kept / max(1, count * most)


def _nearest(parts: Sequence[Tensor], probes: Tensor, own: Tensor, most: int) -> Tensor:
    """Return the rows most similar to the probes, the probes themselves left out: (n, most)."""
    scores = torch.cat([F.normalize(probes) @ F.normalize(part).T for part in parts], 1)
    scores[torch.arange(len(probes)), own] = -2
    return scores.topk(most, 1).indices
