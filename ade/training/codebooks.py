"""The codebook a model is trained on: given, or distilled from a teacher once and kept in the cache.

A cached codebook is found by the content of its teacher (table and tokenizer) and the settings of the distillation.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ade.codebook import Codebook
from ade.distillation import distill
from ade.errors import InputError
from ade.files import cache_folder
from ade.progress import Report, silent
from ade.settings import DistillationSettings
from ade.teachers import DEFAULT_TEACHER, Teacher, load_teacher

FORMAT = 1  # of cached codebooks; a higher number makes them anew


def codebook_for(
    codebook: Codebook | str | Path | None = None,
    teacher: Teacher | str | Path | None = None,
    settings: DistillationSettings | None = None,
    report: Report = silent,
) -> Codebook:
    """A codebook as it is, or of a folder; without one, that of a teacher, by default of the embedded one."""
    if codebook is not None:
        if teacher is not None:
            raise InputError("--codebook is used as it is, --teacher is distilled into one: give one of them")
        return codebook if isinstance(codebook, Codebook) else Codebook.load(codebook)

    loaded = teacher if isinstance(teacher, Teacher) else load_teacher(DEFAULT_TEACHER if teacher is None else teacher)
    settings = settings or DistillationSettings()
    folder = cache_folder() / "codebooks" / _key(loaded, settings)
    if folder.is_dir():
        with suppress(InputError):  # a damaged one is made anew
            return Codebook.load(folder)

    made = distill(loaded, settings, report=report)
    with suppress(OSError, InputError):  # a run does not fail because the cache cannot be written
        made.save(folder, overwrite=True)
    return made


def _key(teacher: Teacher, settings: DistillationSettings) -> str:
    """A hash of the teacher's content and of all settings but the device."""
    chosen = {name: value for name, value in asdict(settings).items() if name != "device"}
    digest = hashlib.sha256(json.dumps([FORMAT, teacher.name, teacher.license, chosen], sort_keys=True).encode())
    digest.update(teacher.tokenizer.to_str().encode())
    for start in range(0, len(teacher.table), 8192):
        digest.update(teacher.table[start : start + 8192].float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
