"""`ade.train`: labelled texts in, a trained model out; the function behind the command `ade train`."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ade.data.columns import Schema
from ade.data.dataset import Dataset
from ade.data.problems import PROBLEMS, SINGLE
from ade.data.sources import AnyDataset, load_splits
from ade.errors import InputError
from ade.folder import Saved
from ade.progress import Report, shown
from ade.settings import PRESETS, Architecture, TrainingSettings, parse_size
from ade.trained_model import model_from
from ade.training.checkpoints import Existing, claimed
from ade.training.loop import fit_model
from ade.training.schedule import check_labels, validation_split
from ade.training.start import start_for_size, start_from

if TYPE_CHECKING:
    from ade.teachers import Teacher
    from ade.training.soft_targets import LabelTeacher


def train(
    data: Any,
    labels: Any = None,
    *,
    teacher: "Teacher | str | Path | None" = None,
    start: Saved | str | Path | None = None,
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
    before_training: Callable[[Saved], None] | None = None,
    **settings: Any,
) -> Any:
    """Train a classifier, or a tagger where the data is words with tags.

    Args:
        data: a file, a folder with a file per split, or a hub name; a list of texts with `labels`; a DataFrame, a
            `datasets.Dataset`, a dictionary of columns, a list of dictionaries or of (text, label) pairs; a `Dataset`.
        labels: one for each text, where `data` is a list of texts: names, numbers or truth values, or lists of them.
        teacher: pretrained embeddings to distil, as `load_teacher` takes them; by default those that are embedded. The
            codebook is kept in the cache, so that this happens once.
        start: a codebook or an encoder, as `distill` and `distill_encoder` make them, or its folder or hub name,
            instead of a teacher; the layers of an encoder are trained further.
        size: bytes of the model folder, tokenizer included, as 2_000_000 or '2MB'; by default nothing is rounded.
        out: output folder, with checkpoints while the model is trained; without it, call `save` on the model.
        validation: rows that the best weights are chosen by, as `data`; by default a split of the data called `dev` or
            `validation`, else a part of the training rows.
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
        before_training: called with what the model starts from before it is trained.
        settings: fields of `TrainingSettings` and `Architecture`, as `steps` or `learning_rate`.

    Returns:
        A `Classifier`, or a `Tagger`.
    """
    training, architecture = resolve_settings(preset, settings)
    if unlabelled and distill_from is None:
        raise InputError("unlabelled texts need a classifier that labels them: give distill_from too")
    schema = Schema(text_column, label_column, problem_type(problem))
    splits = load_splits(data, labels, schema, validation)
    rows, dev = splits["train"], splits.get("dev")
    check_labels(rows)
    if size is not None:
        _check_size(settings, rows)

    with shown(progress) as report:
        if out is not None:
            with claimed(Path(out), existing):  # refuses a folder that cannot be used, before anything takes time
                pass
        if size is None:
            begin = start_from(start, teacher, report=report)
        else:
            begin, shares = start_for_size(rows, parse_size(str(size)), start, teacher, training.lexicon, report)
            training = replace(training, lexicon=shares.lexicon > 0, lexicon_size=str(shares.lexicon or ""))
            architecture = replace(architecture, layer_bits=shares.layer_bits)
        if distill_from is not None:
            rows, dev = _add_soft_targets(rows, dev, distill_from, unlabelled, training, report)
        if before_training is not None:
            before_training(begin)
        return model_from(fit_model(begin, rows, dev, training, architecture, out, existing, report), training.device)


def _check_size(settings: Mapping[str, Any], rows: AnyDataset) -> None:
    """Refuse what does not go with a size of the folder."""
    if not isinstance(rows, Dataset):
        raise InputError("--size works for classifiers of texts, not for taggers")
    chosen = [name for name in ("layer_bits", "lexicon_size") if settings.get(name)]
    if chosen:
        raise InputError(f"--size chooses {chosen[0]} itself: leave one of them out")
    if (settings.get("layers") or 1) > 1:
        raise InputError("--size is for models of one attention layer: leave out --layers")


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
) -> tuple[AnyDataset, AnyDataset]:
    """Give the training rows soft targets from a classifier, loaded or by its name; split the dev rows off before."""
    from ade.training.soft_targets import LabelTeacher, with_soft_targets

    if rows.problem != SINGLE or not isinstance(rows, Dataset):
        raise InputError("--distill-from needs a single-label dataset of texts")
    if dev is None:
        rows, dev = validation_split(rows, settings.seed)
    if not isinstance(source, LabelTeacher):
        source = LabelTeacher.load(source, rows.names, settings.device)
    return with_soft_targets(rows, source, unlabelled, report=report), dev
