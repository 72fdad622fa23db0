"""`ade.train`: labelled texts in, a trained model out; the function behind the command `ade train`."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ade.configuration import CLASSIFIER, ENCODER
from ade.data.columns import Schema
from ade.data.dataset import Dataset
from ade.data.problems import PROBLEMS, SINGLE
from ade.data.sources import AnyDataset, load_splits
from ade.errors import InputError
from ade.files import ENGLISH
from ade.fitting.convex import fit_convex
from ade.folder import Saved, encoder_of
from ade.progress import Report, shown
from ade.settings import PRESETS, Architecture, TrainingSettings, parse_size
from ade.trained_model import model_from
from ade.training.checkpoints import Existing, RunFolder, claimed, identity_of
from ade.training.schedule import check_labels, class_weights, lexicon_bytes, validation_split

if TYPE_CHECKING:
    from ade.teachers import Teacher
    from ade.training.soft_targets import LabelTeacher

OWN_LAYERS = ("attend", "sat", "layers", "positions", "pooling", "heads")  # each asks for layers of another kind


def train(
    data: Any,
    labels: Any = None,
    *,
    start: Saved | str | Path | None = None,
    teacher: "Teacher | str | Path | None" = None,
    size: str | int | None = None,
    out: str | Path | None = None,
    validation: Any = None,
    text_column: str | None = None,
    label_column: str | None = None,
    problem: str | None = None,
    preset: str = "strong",
    distill_from: "LabelTeacher | str | Path | None" = None,
    unlabelled: Sequence[str] = (),
    existing: Existing = "refuse",
    progress: bool | Report | None = None,
    **settings: Any,
) -> Any:
    """Train a classifier, or a tagger where the data is words with tags.

    Two convex fits on an encoder, whose layers stay as they are, make a classifier in seconds, without torch. With
    `epochs` or `steps` the layers are then trained further, which is kept where it is better.

    Args:
        data: a file, a folder with a file per split, or a hub name; a list of texts with `labels`; a DataFrame, a
            `datasets.Dataset`, a dictionary of columns, a list of dictionaries or of (text, label) pairs; a `Dataset`.
        labels: one for each text, where `data` is a list of texts: names, numbers or truth values, or lists of them.
        start: an encoder, a classifier or a codebook, or its folder or hub name; by default the encoder of the package.
        teacher: pretrained embeddings to distil instead, as `load_teacher` takes them: the paper's way. The codebook is
            kept in the cache, so that this happens once.
        size: maximum bytes of the model folder, tokenizer included, as 2_000_000 or '2MB'.
        out: output folder, with checkpoints while the model is trained; without it, call `save` on the model.
        validation: rows that settings and weights are chosen by, as `data`; by default a split of the data called `dev`
            or `validation`, else cross-validation or a part of the training rows.
        text_column: name of the text column; found where it is None.
        label_column: name of the label column; found where it is None.
        problem: 'single-label', 'multi-label' or 'regression'; by default lists are multi-label, decimals a regression.
        preset: 'strong' or 'paper', the defaults of the settings.
        distill_from: a fine-tuned sequence classifier, folder or hub name, to learn soft targets from; or one that is
            loaded with the classes of the data.
        unlabelled: texts that this classifier labels.
        existing: what to do with an earlier run in `out`: 'refuse', 'resume' or 'overwrite'.
        progress: True for progress bars, False for none; by default bars in terminals and notebooks, and elsewhere a
            line every few seconds. Or a function that is called with the progress.
        settings: fields of `TrainingSettings` and `Architecture`, as `steps` or `learning_rate`.

    Returns:
        A `Classifier`, or a `Tagger`.
    """
    training, architecture = resolve_settings(preset, settings)
    if unlabelled and distill_from is None:
        raise InputError("unlabelled texts need a classifier that labels them: give distill_from too")
    if start is not None and teacher is not None:
        raise InputError("--from names a model to start from, --teacher a table to distil: give one of them")
    schema = Schema(text_column, label_column, problem_type(problem))
    splits = load_splits(data, labels, schema, validation)
    rows, dev = splits["train"], splits.get("dev")
    check_labels(rows)
    if size is not None:
        _check_size(settings, rows)
    with claimed(out, existing):  # refuses a folder that cannot be used, before anything takes time
        pass

    # The paper's preset, layers of another kind and taggers begin with the table of a teacher.
    layers_chosen = any(settings.get(name) is not None for name in OWN_LAYERS)
    if start is None and teacher is None and preset == "strong" and isinstance(rows, Dataset) and not layers_chosen:
        start = ENGLISH
    begin = Saved.read(start) if isinstance(start, str | Path) else start
    by_fits = begin is not None and distill_from is None and _fits_convex(begin, rows)
    needs_torch = not by_fits or training.epochs or training.steps or size is not None
    if needs_torch and find_spec("torch") is None:
        raise InputError("training the layers, and --size, need torch: pip install 'ade-embeddings[train]'")

    with shown(progress) as report:
        if size is not None:
            from ade.training.start import start_for_size

            assert isinstance(rows, Dataset)
            begin, shares = start_for_size(
                rows, parse_size(str(size)), begin, teacher, training.lexicon, architecture.layers, report
            )
            training = replace(training, lexicon=shares.lexicon > 0, lexicon_size=str(shares.lexicon or ""))
            architecture = replace(architecture, layer_bits=shares.layer_bits)
        elif begin is None:
            from ade.training.start import distilled

            begin = distilled(teacher, report=report)

        if by_fits:
            assert isinstance(rows, Dataset)
            assert isinstance(dev, Dataset | None)
            saved = _fit(begin, rows, dev, training, architecture, out, existing, report)
            return model_from(saved, "cpu" if training.device == "auto" else training.device)

        from ade.training.loop import fit_model

        if distill_from is not None:
            rows, dev = _add_soft_targets(rows, dev, distill_from, unlabelled, training, report)
        return model_from(fit_model(begin, rows, dev, training, architecture, out, existing, report), training.device)


def _fits_convex(start: Saved, rows: AnyDataset) -> bool:
    """Whether the convex fits come first: for texts, on an encoder or on a classifier of other labels."""
    goes_on = start.config.kind == CLASSIFIER and start.config.labels == tuple(rows.names)
    return isinstance(rows, Dataset) and start.config.kind in (ENCODER, CLASSIFIER) and not goes_on


def _fit(
    start: Saved,
    rows: Dataset,
    dev: Dataset | None,
    settings: TrainingSettings,
    architecture: Architecture,
    out: str | Path | None,
    existing: Existing,
    report: Report,
) -> Saved:
    """Return the model of the convex fits, its layers trained further where that is asked for."""

    def fitted(rows: Dataset, dev: Dataset | None) -> Saved:
        return fit_convex(
            encoder_of(start), rows, dev, class_weights=class_weights(rows, settings),
            lexicon_bytes=lexicon_bytes(settings), seed=settings.seed, report=report,
        )  # fmt: skip

    if settings.epochs or settings.steps:
        from ade.training.loop import fit_model

        seen, left_out = (rows, dev) if dev is not None else validation_split(rows, settings.seed)
        first = fitted(seen, left_out)
        instead = partial(fitted, rows, dev)
        return fit_model(first, seen, left_out, settings, architecture, out, existing, report, instead)

    if out is None:
        return fitted(rows, dev)
    with claimed(out, existing):
        texts = (np.frombuffer(text.encode("utf8"), np.uint8) for text in rows.texts)
        folder = RunFolder(Path(out), identity_of(settings, start, chain(texts, [rows.labels])), existing)
        if folder.finished:
            return Saved.read(out)
        saved = fitted(rows, dev)
        folder.finish(saved)
        return saved


def _check_size(settings: Mapping[str, Any], rows: AnyDataset) -> None:
    """Refuse what does not go with a size of the folder."""
    if not isinstance(rows, Dataset):
        raise InputError("--size works for classifiers of texts, not for taggers")
    chosen = [name for name in ("layer_bits", "lexicon_size") if settings.get(name)]
    if chosen:
        raise InputError(f"--size chooses {chosen[0]} itself: leave one of them out")


def problem_type(problem: str | None) -> str | None:
    """Return the `problem_type` of a transformers config for 'single-label', 'multi-label' or 'regression'."""
    if problem is None or problem in PROBLEMS.values():
        return problem
    if problem not in PROBLEMS:
        raise InputError(f"problem must be one of {', '.join(PROBLEMS)}, not '{problem}'")
    return PROBLEMS[problem]


def resolve_settings(preset: str, given: Mapping[str, Any]) -> tuple[TrainingSettings, Architecture]:
    """Return the settings of a preset with those that are given; None stands for the preset's."""
    if preset not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}, not '{preset}'")
    given = {name: value for name, value in given.items() if value is not None}
    kinds = {entry.name: kind for kind in (TrainingSettings, Architecture) for entry in fields(kind)}
    for name in given.keys() - kinds:
        close = difflib.get_close_matches(name, kinds, 1)
        raise InputError(f"there is no setting '{name}'" + (f"; do you mean {close[0]}?" if close else ""))
    if given.get("steps") and given.get("epochs"):
        raise InputError("epochs and steps both say how long to train: give one of them")

    training = {name: value for name, value in given.items() if kinds[name] is TrainingSettings}
    architecture = {name: value for name, value in given.items() if kinds[name] is Architecture}
    return replace(PRESETS[preset], **training), Architecture(**architecture)


def _add_soft_targets(
    rows: AnyDataset,
    dev: AnyDataset | None,
    source: "LabelTeacher | str | Path",
    unlabelled: Sequence[str],
    settings: TrainingSettings,
    report: Report,
) -> tuple[Dataset, AnyDataset]:
    """Return the training rows with soft targets from a classifier, and the dev rows, split off before."""
    from ade.training.soft_targets import LabelTeacher, with_soft_targets

    if rows.problem != SINGLE or not isinstance(rows, Dataset):
        raise InputError("--distill-from needs a single-label dataset of texts")
    if dev is None:
        rows, dev = validation_split(rows, settings.seed)
    if not isinstance(source, LabelTeacher):
        source = LabelTeacher.load(source, rows.names, settings.device)
    return with_soft_targets(rows, source, unlabelled, report), dev
