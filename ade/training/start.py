"""What a model starts from: a codebook or an encoder that is given, or a teacher's table, distilled once and kept.

A kept codebook is found by the content of its teacher (table and tokenizer), the settings of the distillation and, for
a model of a given size, the training texts.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ade.codebook import Codebook
from ade.configuration import CLASSIFIER, CODEBOOK, TAGGER, Config, default_heads
from ade.data.dataset import Dataset
from ade.data.tags import TaggedDataset
from ade.distillation import distill
from ade.errors import InputError
from ade.files import cache_folder
from ade.folder import Saved, new_model
from ade.folder_budget import ByteShares, ModelParts, distill_for_model, shares_of
from ade.progress import Report, silent
from ade.settings import Architecture, DistillationSettings, TrainingSettings
from ade.teachers import DEFAULT_TEACHER, Teacher, load_teacher
from ade.training.schedule import class_weights

FORMAT = 4  # of kept codebooks; a higher number makes them again
SHAPE = ("attend", "sat", "layers", "positions", "pooling")  # settings that an encoder has chosen already


def distilled(
    teacher: Teacher | str | Path | None = None,
    settings: DistillationSettings | None = None,
    report: Report = silent,
) -> Saved:
    """Return the codebook of a teacher, by default of the embedded table."""
    loaded = _loaded(teacher)
    if settings is None:
        usual = DistillationSettings()
        anchors = min(usual.anchors, len(loaded.table))  # a small table has no more anchors than tokens
        settings = replace(usual, anchors=anchors, pairs=min(usual.pairs, anchors))
    chosen = {name: value for name, value in asdict(settings).items() if name != "device"}
    return kept(_key(loaded, chosen), lambda: distill(loaded, settings, report=report))


def fitted_to_size(
    teacher: Teacher, texts: Sequence[str], size: int, parts: ModelParts, report: Report = silent
) -> Saved:
    """Return the codebook for a model whose folder has at most `size` bytes: see `shares_of`."""
    key = _key(teacher, {"size": size, **asdict(parts)}, texts)
    return kept(key, lambda: distill_for_model(teacher, texts, size, parts, report=report))


def start_for_size(
    rows: Dataset,
    size: int,
    start: Saved | None = None,
    teacher: Teacher | str | Path | None = None,
    lexicon: bool = True,
    layers: int = 1,
    report: Report = silent,
) -> tuple[Saved, ByteShares]:
    """Return what a model on these rows starts from whose folder has at most `size` bytes, and how they are divided.

    That is the table of `start`, or of a teacher, fitted to the size; an encoder keeps its layers.
    """
    source = _loaded(teacher) if start is None else Teacher.of(start)
    trained = start is not None and start.config.kind != CODEBOOK
    layers = start.config.layers if start is not None and trained else layers
    parts = ModelParts(len(rows.names), layers, rows.names, lexicon)
    fitted = fitted_to_size(source, rows.texts, size, parts, report)
    shares = shares_of(fitted)
    if start is None or not trained:
        return fitted, shares

    # The layers' input is normalised, so that the length of a row does not matter.
    assert isinstance(fitted.table, Codebook)
    config = replace(start.config, layer_bits=shares.layer_bits)
    return replace(start, config=config, tokenizer=fitted.tokenizer, table=fitted.table.normalised()), shares


def untrained(start: Saved, config: Config, seed: int) -> Saved:
    """Return an untrained model on the table that it starts from; layers of an encoder are taken over."""
    if start.config.kind == CODEBOOK and isinstance(start.table, Codebook):
        start = replace(start, table=start.table.normalised())
    return new_model(start, config, seed)


def config_for(
    start: Saved, data: Dataset | TaggedDataset, architecture: Architecture, settings: TrainingSettings
) -> Config:
    """Return the configuration of a model on labelled data."""
    known = {name: start.config.metadata.get(name) for name in ("teacher", "license", "cosine")}
    known |= {"data": data.name, "rows": len(data)}
    config = Config(
        kind=TAGGER,
        labels=tuple(data.names),
        dropout=settings.dropout,
        token_dropout=settings.token_dropout,
        class_weights=class_weights(data, settings),
        metadata={name: value for name, value in known.items() if value},
        **shape_of(start, architecture, settings.position_scale),
    )
    if isinstance(data, TaggedDataset):
        return config
    return replace(config, kind=CLASSIFIER, label_type=data.label_type, problem=data.problem)


def shape_of(start: Saved, architecture: Architecture, position_scale: float) -> dict[str, Any]:
    """Return the fields of a model's configuration that its layers follow from; an encoder's are taken over."""
    trained = start.config.kind != CODEBOOK
    source = start.config if trained else architecture
    shape = {name: getattr(source, name) for name in SHAPE}
    shape["heads"] = source.heads or default_heads(start.table.dim)
    shape["position_scale"] = start.config.position_scale if trained else position_scale
    bits = architecture.layer_bits if start.packed else 0
    return {**shape, "max_tokens": architecture.max_tokens, "layer_bits": bits}


def kept(key: str, make: Callable[[], Saved]) -> Saved:
    """Return what the cache keeps under a key, or a new one, which is written there."""
    folder = cache_folder() / "codebooks" / key
    if folder.is_dir():
        with suppress(InputError):  # a damaged one is made again
            return Saved.read(folder)
    made = make()
    with suppress(OSError, InputError):  # a run does not fail because the cache cannot be written
        made.save(folder, overwrite=True)
    return made.rounded()


def _loaded(teacher: Teacher | str | Path | None) -> Teacher:
    return teacher if isinstance(teacher, Teacher) else load_teacher(DEFAULT_TEACHER if teacher is None else teacher)


def _key(teacher: Teacher, chosen: Mapping[str, Any], texts: Iterable[str] = ()) -> str:
    """A hash of the teacher's content, of the settings and of texts."""
    described = json.dumps([FORMAT, teacher.name, teacher.license, dict(chosen)], sort_keys=True)
    digest = hashlib.sha256(described.encode())
    digest.update(teacher.tokenizer.to_str().encode())
    for start in range(0, len(teacher.table), 8192):
        digest.update(teacher.table[start : start + 8192].float().contiguous().numpy().tobytes())
    for text in texts:
        digest.update(hashlib.sha256(text.encode("utf8")).digest())
    return digest.hexdigest()[:32]
