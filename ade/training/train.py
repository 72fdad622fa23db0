"""`ade.train`: labelled texts in, a trained model out; the function behind the command `ade train`."""

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ade.codebook import Codebook
from ade.compression.coded_table import CodedTable
from ade.data.dataset import Dataset
from ade.data.problems import PROBLEMS, SINGLE
from ade.data.sources import AnyDataset, as_dataset, load_splits
from ade.data.tables import Schema
from ade.errors import InputError
from ade.progress import Report
from ade.settings import ARCHITECTURES, PRESETS, Architecture, TeachingSettings, TrainingSettings, parse_size
from ade.training.checkpoints import Existing, claimed
from ade.training.codebooks import codebook_for, codebook_for_size
from ade.training.loop import fit_model
from ade.training.schedule import held_back
from ade.training.start import start_from

if TYPE_CHECKING:
    from ade.teachers import Teacher
    from ade.training.soft_targets import LabelTeacher

Settings = tuple[TrainingSettings, Architecture, TeachingSettings]


def train(
    data: Any,
    labels: Any = None,
    *,
    teacher: "Teacher | str | Path | None" = None,
    codebook: Codebook | CodedTable | str | Path | None = None,
    size: str | int | None = None,
    start: str | Path | None = None,
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
    before_training: Callable[[Codebook | CodedTable], None] | None = None,
    **settings: Any,
) -> Any:
    """Train a classifier, or a tagger where the data is words with tags.

    Args:
        data: a file, a folder with a file per split, or a hub name; a list of texts with `labels`; a DataFrame, a
            `datasets.Dataset`, a dictionary of columns, a list of dictionaries or of (text, label) pairs; a `Dataset`.
        labels: one for each text, where `data` is a list of texts: names, numbers or truth values, or lists of them.
        teacher: pretrained embeddings to distil, as `load_teacher` takes them; by default those that are embedded. The
            codebook is kept in the cache, so that this happens once.
        codebook: a `Codebook` or its folder, or that of a table in codes, instead of a teacher.
        size: bytes of the model folder, tokenizer included, as 2_000_000 or '2MB'; by default nothing is rounded.
        start: an encoder made by `distill_encoder`, its folder or hub name: its codebook and layers are trained
            further, in place of a teacher or a codebook.
        out: output folder, with checkpoints while the model is trained; without it, call `save` on the model.
        validation: rows that the best weights are chosen by, as `data`; by default a split of the data called `dev` or
            `validation`, else a part of the training rows.
        text_column: name of the text column; found where it is None.
        label_column: name of the label column; found where it is None.
        problem: 'single-label', 'multi-label' or 'regression'; by default lists are multi-label, all else single-label.
        preset: 'strong' or 'paper', the defaults of the settings.
        distill_from: a fine-tuned sequence classifier, folder or hub name, to learn soft targets from; or one that is
            loaded with the classes of the data.
        unlabelled: texts that this classifier labels.
        existing: what to do with an earlier run in `out`: 'refuse', 'resume' or 'overwrite'.
        progress: True for progress bars, False for none; by default bars in terminals and notebooks, and elsewhere a
            line every few seconds. Or a function that is called with the progress.
        before_training: called with the codebook before the model is trained on it.
        settings: fields of `TrainingSettings`, `Architecture` and `TeachingSettings`, as `steps` or `learning_rate`.

    Returns:
        A `Classifier`, or a `Tagger`.
    """
    training, architecture, teaching = resolve_settings(preset, settings)
    if unlabelled and distill_from is None:
        raise InputError("unlabelled texts need a classifier that labels them: give distill_from too")
    schema = Schema(text_column, label_column, problem_type(problem))
    splits = load_splits(data, labels, schema)
    if validation is not None:
        splits["dev"] = as_dataset(validation, None, schema, "dev").relabelled(splits["train"].names)
    rows, dev = splits["train"], splits.get("dev")
    if size is not None:
        _check_size(settings, codebook, rows)
    if start is not None and not (teacher is codebook is size is None):
        raise InputError("--from takes codebook and layers of an encoder: leave out --teacher, --codebook and --size")

    with shown(progress) as report:
        main_process = int(os.environ.get("RANK", "0")) == 0  # of several processes one writes
        if out is not None and main_process:
            with claimed(Path(out), existing):  # refuses a folder that cannot be used, before anything takes time
                pass
        weights = None
        book: Codebook | CodedTable
        if start is not None:
            started = start_from(start)
            training, architecture = started.fitted(training, architecture)
            book, weights = started.codebook, started.weights
        elif size is None:
            book = codebook_for(codebook, teacher, report=report)
            architecture = _fitting(book, architecture, settings.get("attend"))
        else:
            book, division = codebook_for_size(rows, parse_size(str(size)), teacher, training.lexicon, report)
            training = replace(training, lexicon=division.lexicon > 0, lexicon_size=str(division.lexicon or ""))
            architecture = replace(architecture, layer_bits=division.layer_bits)
        if distill_from is not None:
            rows, dev = _add_soft_targets(rows, dev, distill_from, unlabelled, training, teaching, report)
        if before_training is not None:
            report = _calling_first(lambda: before_training(book), report)
        return fit_model(book, rows, dev, training, architecture, out, existing, report, weights)


def _calling_first(call: Callable[[], None], report: Report) -> Report:
    """A report that calls a function before the first progress: after the rows and the folder were found valid."""
    waiting = [call]

    def reported(stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        while waiting:
            waiting.pop()()
        report(stage, done, total, metrics)

    return reported


def _check_size(settings: Mapping[str, Any], codebook: Any, rows: AnyDataset) -> None:
    """Refuse what does not go with a size of the folder."""
    if codebook is not None:
        raise InputError("--size needs a teacher to distil, the size of a --codebook is given: leave one of them out")
    if not isinstance(rows, Dataset):
        raise InputError("--size works for classifiers of texts, not for taggers")
    chosen = [name for name in ("layer_bits", "lexicon_size") if settings.get(name)]
    if chosen:
        raise InputError(f"--size chooses {chosen[0]} itself: leave one of them out")
    if (settings.get("layers") or 1) > 1:
        raise InputError("--size is for models of one attention layer: leave out --layers")


def _fitting(book: Codebook | CodedTable, architecture: Architecture, asked: str | None) -> Architecture:
    """The architecture on a codebook; on a table in codes, which has no anchors to gate, attention is over tokens."""
    if isinstance(book, Codebook):
        return architecture
    if asked not in (None, "tokens"):
        raise InputError(f"--attend {asked} needs anchors, and the table of this --codebook is coded: leave it out")
    return replace(architecture, attend="tokens")


def problem_type(problem: str | None) -> str | None:
    """The `problem_type` of a transformers config for 'single-label', 'multi-label' or 'regression'."""
    if problem is None or problem in PROBLEMS.values():
        return problem
    if problem not in PROBLEMS:
        raise InputError(f"problem must be one of {', '.join(PROBLEMS)}, not '{problem}'")
    return PROBLEMS[problem]


def resolve_settings(preset: str, given: Mapping[str, Any]) -> Settings:
    """The settings of a preset with those that are given; None stands for the preset's."""
    if preset not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}, not '{preset}'")
    given = {name: value for name, value in given.items() if value is not None}
    kinds = (TrainingSettings, Architecture, TeachingSettings)
    known = {entry.name for kind in kinds for entry in fields(kind)}
    for name in given.keys() - known:
        close = difflib.get_close_matches(name, known, 1)
        raise InputError(f"there is no setting '{name}'" + (f"; do you mean {close[0]}?" if close else ""))
    if given.get("steps") and given.get("epochs"):
        raise InputError("epochs and steps both say how long to train: give one of them")

    def chosen(defaults: Any) -> Any:
        return replace(defaults, **{entry.name: given[entry.name] for entry in fields(defaults) if entry.name in given})

    return chosen(PRESETS[preset]), chosen(ARCHITECTURES[preset]), chosen(TeachingSettings())


def shown(progress: bool | Report | None) -> AbstractContextManager[Report]:
    """Context manager: progress as a caller of the library wants it shown."""
    if callable(progress):
        return nullcontext(progress)
    from ade.cli.display import progress as display_progress  # the bars of the command line

    return display_progress(progress)


def _add_soft_targets(
    rows: AnyDataset,
    dev: AnyDataset | None,
    source: "LabelTeacher | str | Path",
    unlabelled: Sequence[str],
    training: TrainingSettings,
    teaching: TeachingSettings,
    report: Report,
) -> tuple[AnyDataset, AnyDataset]:
    """Give the training rows soft targets from a classifier, loaded or by its name; a dev split is held back before."""
    from ade.training.soft_targets import LabelTeacher, taught

    if rows.problem != SINGLE or not isinstance(rows, Dataset):
        raise InputError("--distill-from needs a single-label dataset of texts")
    if dev is None:
        rows, dev = held_back(rows, training.seed)
    if not isinstance(source, LabelTeacher):
        source = LabelTeacher.load(source, rows.names, training.device)
    return taught(rows, source, teaching, list(unlabelled), report), dev
