"""`ade.train`: labelled texts in, a trained model out; the function behind the command `ade train`."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
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
from ade.fitting.convex import encoder_of, fit_convex
from ade.fitting.lexicon_fit import LEXICON_BYTES
from ade.folder import Saved
from ade.progress import Report, shown
from ade.settings import PRESETS, Architecture, TrainingSettings, parse_size
from ade.trained_model import model_from
from ade.training.checkpoints import Existing, RunFolder, claimed, identity_of, result_of
from ade.training.schedule import check_labels, class_weights, validation_split

if TYPE_CHECKING:
    from ade.teachers import Teacher
    from ade.training.soft_targets import LabelTeacher


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
    before_training: Callable[[Saved], None] | None = None,
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
        before_training: called with what the model starts from before it is trained.
        settings: fields of `TrainingSettings` and `Architecture`, as `steps` or `learning_rate`.

    Returns:
        A `Classifier`, or a `Tagger`.
    """
    training, architecture = resolve_settings(preset, settings)
    if unlabelled and distill_from is None:
        raise InputError("unlabelled texts need a classifier that labels them: give distill_from too")
    if start is not None and teacher is not None:
        raise InputError("--from is used as it is, --teacher is distilled into a codebook: give one of them")
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
        begin = None if teacher is not None else _start(start, rows, preset, settings)
        run = _Run(rows, dev, training, architecture, out, existing, report, before_training)
        by_fits = begin is not None and distill_from is None and _fits_convex(begin, rows)
        if (not by_fits or training.epochs or training.steps or size is not None) and find_spec("torch") is None:
            raise InputError("training the layers, and --size, need torch: pip install 'ade-embeddings[train]'")
        if begin is not None and by_fits:
            return model_from(run.from_encoder(begin, size), "cpu" if training.device == "auto" else training.device)
        saved = run.from_table(begin, teacher, size, distill_from, unlabelled)
        return model_from(saved, training.device)


def _start(
    start: Saved | str | Path | None, rows: AnyDataset, preset: str, settings: Mapping[str, Any]
) -> Saved | None:
    """Return what a model starts from, by default the encoder of the package.

    None for a teacher's table: taggers, the paper's preset and layers of another kind begin with that.
    """
    shape = [
        name for name in ("attend", "sat", "layers", "positions", "pooling", "heads") if settings.get(name) is not None
    ]
    if start is None and (preset != "strong" or shape or not isinstance(rows, Dataset)):
        return None
    return start if isinstance(start, Saved) else Saved.read(ENGLISH if start is None else start)


def _fits_convex(start: Saved, rows: AnyDataset) -> bool:
    """Whether the convex fits come first: for texts, on an encoder or on a classifier of other labels."""
    goes_on = start.config.kind == CLASSIFIER and start.config.labels == tuple(rows.names)
    return isinstance(rows, Dataset) and start.config.kind in (ENCODER, CLASSIFIER) and not goes_on


@dataclass(frozen=True)
class _Run:
    """Rows, settings and the output folder of one call of `train`."""

    rows: AnyDataset
    dev: AnyDataset | None
    settings: TrainingSettings
    architecture: Architecture
    out: str | Path | None
    existing: Existing
    report: Report
    before_training: Callable[[Saved], None] | None

    def from_encoder(self, start: Saved, size: str | int | None) -> Saved:
        """Return the model of the convex fits, its layers trained further where that is asked for."""
        if size is not None:
            from ade.training.start import start_for_size

            assert isinstance(self.rows, Dataset)
            settings, nbytes = self.settings, parse_size(str(size))
            start, shares = start_for_size(self.rows, nbytes, start, None, settings.lexicon, self.report)
            start = replace(start, config=replace(start.config, layer_bits=shares.layer_bits))
            settings = replace(settings, lexicon=shares.lexicon > 0, lexicon_size=str(shares.lexicon or ""))
            return replace(self, settings=settings).from_encoder(start, None)

        rows, dev, settings = self.rows, self.dev, self.settings
        assert isinstance(rows, Dataset)
        assert isinstance(dev, Dataset | None)
        if self.before_training is not None:
            self.before_training(start)
        if not settings.epochs and not settings.steps:
            return self._written(start, rows, dev)

        from ade.training.loop import fit_model

        seen, left_out = (rows, dev) if dev is not None else validation_split(rows, settings.seed)
        first = self._fit(start, seen, left_out)
        return fit_model(
            first, seen, left_out, settings, self.architecture, self.out, self.existing, self.report,
            instead=lambda: self._fit(start, rows, dev),
        )  # fmt: skip

    def _fit(self, start: Saved, rows: Dataset, dev: Dataset | None) -> Saved:
        settings = self.settings
        most_bytes = parse_size(settings.lexicon_size) if settings.lexicon_size else LEXICON_BYTES
        return fit_convex(
            encoder_of(start), rows, dev, class_weights=class_weights(rows, settings),
            lexicon_bytes=most_bytes if settings.lexicon else 0, seed=settings.seed, report=self.report,
        )  # fmt: skip

    def _written(self, start: Saved, rows: Dataset, dev: Dataset | None) -> Saved:
        """Return the model of the convex fits, in the output folder if there is one."""
        if self.out is None:
            return self._fit(start, rows, dev)
        with claimed(Path(self.out), self.existing):
            texts = (np.frombuffer(text.encode("utf8"), np.uint8) for text in rows.texts)
            identity = identity_of(asdict(self.settings), chain(texts, [rows.labels]), start)
            folder = RunFolder(Path(self.out), identity)
            folder.begin(self.existing)
            if folder.finished:
                return Saved.read(folder.folder)
            saved = self._fit(start, rows, dev)
            folder.finish(saved, result_of(saved))
            return saved

    def from_table(
        self,
        start: Saved | None,
        teacher: "Teacher | str | Path | None",
        size: str | int | None,
        distill_from: "LabelTeacher | str | Path | None",
        unlabelled: Sequence[str],
    ) -> Saved:
        """Return a model whose layers are all trained: on a codebook, an encoder's table or a teacher's."""
        from ade.training.loop import fit_model
        from ade.training.start import start_for_size, start_from

        settings, architecture, rows, dev = self.settings, self.architecture, self.rows, self.dev
        if size is None:
            begin = start_from(start, teacher, report=self.report)
        else:
            assert isinstance(rows, Dataset)
            size = parse_size(str(size))
            begin, shares = start_for_size(rows, size, start, teacher, settings.lexicon, self.report)
            settings = replace(settings, lexicon=shares.lexicon > 0, lexicon_size=str(shares.lexicon or ""))
            architecture = replace(architecture, layer_bits=shares.layer_bits)
        if distill_from is not None:
            rows, dev = _add_soft_targets(rows, dev, distill_from, unlabelled, settings, self.report)
        if self.before_training is not None:
            self.before_training(begin)
        return fit_model(begin, rows, dev, settings, architecture, self.out, self.existing, self.report)


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
