"""The codebook a model is trained on: given, or distilled from a teacher once and kept in the cache.

A cached codebook is found by the content of its teacher (table and tokenizer), the settings of the distillation and,
for a model of a given size, the training texts.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from ade.codebook import Codebook
from ade.compression.coded_table import SHAPE, TOKENIZER_BYTES, CodedTable
from ade.compression.encoder_table import EncoderTable
from ade.data.dataset import Dataset
from ade.data.problems import ENCODER
from ade.distillation import distill
from ade.errors import InputError
from ade.files import cache_folder, kind_of
from ade.packing.whole_folder import Division, distill_for_encoder, distill_for_model
from ade.progress import Report, silent
from ade.settings import DistillationSettings
from ade.teachers import DEFAULT_TEACHER, Teacher, load_teacher

Kept = TypeVar("Kept", Codebook, CodedTable)
FORMAT = 2  # of cached codebooks; a higher number makes them anew


def codebook_for(
    codebook: Codebook | CodedTable | str | Path | None = None,
    teacher: Teacher | str | Path | None = None,
    settings: DistillationSettings | None = None,
    report: Report = silent,
) -> Codebook | CodedTable:
    """A codebook or coded table as it is, or of a folder; without one, that of a teacher, by default the embedded."""
    if codebook is not None:
        if teacher is not None:
            raise InputError("--codebook is used as it is, --teacher is distilled into one: give one of them")
        if isinstance(codebook, Codebook | CodedTable):
            return codebook
        if Path(codebook).is_dir() and kind_of(codebook) == ENCODER:
            raise InputError(f"{codebook}: an encoder, not a codebook; 'ade train --from' trains a classifier on it")
        return _coded(Path(codebook)) if (Path(codebook) / SHAPE).is_file() else Codebook.load(codebook)

    loaded = _loaded(teacher)
    settings = settings or _default_settings(len(loaded.table))
    chosen = {name: value for name, value in asdict(settings).items() if name != "device"}
    return _cached(_key(loaded, chosen), lambda: distill(loaded, settings, report=report))


def codebook_for_size(
    rows: Dataset,
    size: int,
    teacher: Teacher | str | Path | None = None,
    lexicon: bool = True,
    report: Report = silent,
) -> tuple[Codebook, Division]:
    """The codebook for a model on these rows whose folder has at most `size` bytes, and how they are divided."""
    loaded = _loaded(teacher)
    key = _key(loaded, {"size": size, "names": rows.names, "lexicon": lexicon}, rows.texts)
    book = _cached(key, lambda: distill_for_model(loaded, rows.texts, size, rows.names, None, lexicon, report)[0])
    return book, Division(**book.about["division"])


def codebook_for_encoder(
    texts: Sequence[str], size: int, teacher: Teacher, outputs: int, layers: int, report: Report = silent
) -> tuple[Codebook, Division]:
    """The codebook for an encoder whose folder has at most `size` bytes, and how they are divided."""
    key = _key(teacher, {"encoder": size, "outputs": outputs, "layers": layers}, texts)
    book = _cached(key, lambda: distill_for_encoder(teacher, texts, size, outputs, layers, None, report)[0])
    return book, Division(**book.about["division"])


def coded_for_encoder(table: EncoderTable, rows: Tensor, report: Report = silent) -> CodedTable:
    """The coded table of an encoder, of these rows."""
    use = hashlib.sha256(table.use.double().numpy().tobytes()).hexdigest()
    chosen = {"coded": table.division.as_dict(), "use": use, "special": list(table.special)}
    folder = cache_folder() / "tables" / _key(replace(table.teacher, table=rows), chosen)
    made = _read(folder, CodedTable.load)
    if made is None:
        made = table.coded(rows, report)
        _write(made, folder)
    return made


def rows_folder(teacher: Teacher, texts: Iterable[str], vectors: np.ndarray, chosen: Mapping[str, Any]) -> Path:
    """The folder for the run that trains a teacher's rows to give texts their vectors, with what was chosen for it."""
    answers = hashlib.sha256(np.ascontiguousarray(vectors).data).hexdigest()
    return cache_folder() / "rows" / _key(teacher, {"rows": dict(chosen), "vectors": answers}, texts)


def _coded(folder: Path) -> CodedTable:
    """The table in codes of a folder, as `ade distill --codes` makes it: its rows are of equal length."""
    table = CodedTable.load(folder)
    if TOKENIZER_BYTES not in table.about:
        raise InputError(f"{folder}: packed by 'ade compress', to be read; 'ade distill --codes' makes one to train on")
    return table


def _default_settings(tokens: int) -> DistillationSettings:
    """The default settings; a small table has no more anchors than tokens."""
    usual = DistillationSettings()
    anchors = min(usual.anchors, tokens)
    return replace(usual, anchors=anchors, pairs=min(usual.pairs, anchors))


def _loaded(teacher: Teacher | str | Path | None) -> Teacher:
    return teacher if isinstance(teacher, Teacher) else load_teacher(DEFAULT_TEACHER if teacher is None else teacher)


def _cached(key: str, make: Callable[[], Codebook]) -> Codebook:
    """The codebook of the cache, or a new one, which is written there."""
    folder = cache_folder() / "codebooks" / key
    kept = _read(folder, Codebook.load)
    if kept is not None:
        return kept
    made = make()
    _write(made, folder)
    return made.rounded()  # as it will be read from the cache


def _read(folder: Path, load: Callable[[Path], Kept]) -> Kept | None:
    """What a folder of the cache has; None where there is none, or where it is damaged."""
    if folder.is_dir():
        with suppress(InputError):
            return load(folder)
    return None


def _write(made: Codebook | CodedTable, folder: Path) -> None:
    with suppress(OSError, InputError):  # a run does not fail because the cache cannot be written
        made.save(folder, overwrite=True)


def _key(teacher: Teacher, chosen: dict[str, Any], texts: Iterable[str] = ()) -> str:
    """A hash of the teacher's content, of the settings and of texts."""
    digest = hashlib.sha256(json.dumps([FORMAT, teacher.name, teacher.license, chosen], sort_keys=True).encode())
    digest.update(teacher.tokenizer.to_str().encode())
    for start in range(0, len(teacher.table), 8192):
        digest.update(teacher.table[start : start + 8192].float().contiguous().numpy().tobytes())
    for text in texts:
        digest.update(hashlib.sha256(text.encode("utf8")).digest())
    return digest.hexdigest()[:32]
