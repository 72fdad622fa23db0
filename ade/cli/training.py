"""The verbs that make something: `ade distill` and `ade train`. Heavy modules are imported inside them."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ade.cli import display
from ade.cli.options import (
    Json,
    LabelColumn,
    Overwrite,
    Problem,
    TextColumn,
    flags_of,
    lines_of,
    pick,
    problem_named,
    show,
    texts_of,
)
from ade.data.problems import SINGLE
from ade.errors import InputError
from ade.progress import Report
from ade.settings import (
    ARCHITECTURES,
    PRESETS,
    Architecture,
    DistillationSettings,
    TeachingSettings,
    TrainingSettings,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ade.teachers import Teacher

SPLITS = ("train", "dev", "test")


@flags_of(DistillationSettings)
def distill(
    teacher: Annotated[
        str, typer.Option(help="A folder, text vectors, a hub name, or 'wordllama'.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the codebook.", show_default=False)],
    corpus: Annotated[Path | None, typer.Option(help="Text file; its token counts weight the objective.")] = None,
    prune_vocabulary: Annotated[
        Path | None, typer.Option(help="Text file; tokens it never has are dropped, every text stays encodable.")
    ] = None,
    contextual: Annotated[
        bool, typer.Option("--contextual", help="Ask the whole encoder about its vocabulary, not its input table.")
    ] = False,
    as_json: Json = False,
    overwrite: Overwrite = False,
    **settings: Any,
) -> None:
    """Distil a pretrained embedding table into a codebook (stages 1 and 2)."""
    from ade.codebook import MARKER
    from ade.distillation import distill as distil
    from ade.files import new_folder

    chosen = DistillationSettings(**pick(DistillationSettings, settings))
    with new_folder(out, {MARKER}, overwrite) as draft, display.progress() as report:
        loaded, frequencies = _teacher(teacher, contextual, chosen.device, prune_vocabulary, corpus, report)
        codebook = distil(loaded, chosen, frequencies, report)
        codebook.write(draft)
    sizes = {
        "bytes": codebook.nbytes,
        "teacher_bytes": loaded.nbytes,
        "ratio": loaded.nbytes / codebook.nbytes,
    }
    show(
        {"codebook": str(out), **codebook.about, **sizes},
        as_json,
        lambda to: display.codebook(to, out, codebook, loaded.nbytes),
    )


def _teacher(
    source: str, contextual: bool, device: str, prune_vocabulary: Path | None, corpus: Path | None, report: Report
) -> "tuple[Teacher, Tensor | None]":
    """The table to distil, with the tokens that are wanted, and how often each occurs where a corpus says so."""
    from ade.distillation import count_tokens
    from ade.packing.prune_vocabulary import pruned
    from ade.teachers import contextual_teacher, load_teacher

    loaded = contextual_teacher(source, device, report) if contextual else load_teacher(source)
    if prune_vocabulary is not None:
        with lines_of(str(prune_vocabulary)) as lines:
            loaded = pruned(loaded, lines)
    if corpus is None:
        return loaded, None
    with lines_of(str(corpus)) as lines:
        return loaded, count_tokens(loaded.tokenizer, lines, len(loaded.table))


@flags_of(TrainingSettings, Architecture, TeachingSettings, optional=True)
def train(
    codebook: Annotated[Path, typer.Option(help="A codebook folder.", show_default=False)],
    data: Annotated[str, typer.Option(help="A file, a folder, a hub name, or 'wordnet'.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the model.", show_default=False)],
    preset: Annotated[Literal["strong", "paper"], typer.Option(help="Settings to start from.")] = "strong",
    distill_from: Annotated[
        str | None, typer.Option(help="A fine-tuned sequence classifier to learn from: a folder or a hub name.")
    ] = None,
    unlabelled: Annotated[
        Path | None, typer.Option(help="Text file, a text a line, for that classifier to name.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run in the output folder.")
    ] = False,
    overwrite: Overwrite = False,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    problem: Problem = None,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Train a classifier on a codebook (stage 3), or a tagger on CoNLL-style files; evaluate it on a test split."""
    from ade.codebook import Codebook
    from ade.model_card import record
    from ade.training.loop import train as fit
    from ade.training.schedule import held_back

    _check(settings, distill_from, unlabelled, resume, overwrite)
    book = Codebook.load(codebook)
    parts = _parts(data, text_column, label_column, problem_named(problem))
    chosen = replace(PRESETS[preset], **pick(TrainingSettings, settings))
    shape = replace(ARCHITECTURES[preset], **pick(Architecture, settings))
    existing: Literal["refuse", "resume", "overwrite"] = "resume" if resume else "overwrite" if overwrite else "refuse"
    first = int(os.environ.get("RANK", "0")) == 0  # of several processes one writes and speaks
    with display.progress() as report:
        if distill_from is not None:
            from ade.training.checkpoints import claimed
            from ade.training.soft_targets import LabelTeacher, taught

            if first:
                with claimed(out, existing):  # it can be had: found out before anything takes time
                    pass
            if parts["train"].problem != SINGLE or not hasattr(parts["train"], "texts"):
                raise InputError("--distill-from teaches models that give a text one label")
            if "dev" not in parts:
                parts["train"], parts["dev"] = held_back(parts["train"], chosen.seed)
            teacher = LabelTeacher.load(distill_from, parts["train"].names, chosen.device)
            teaching = TeachingSettings(**pick(TeachingSettings, settings))
            parts["train"] = taught(parts["train"], teacher, teaching, texts_of(unlabelled), report)
            del teacher  # its memory is wanted
        predictor = fit(book, parts["train"], parts.get("dev"), chosen, shape, out, existing, report)
    if not first:
        return
    about = json.loads((out / "training.json").read_text("utf8"))
    result = {"model": str(out), **{name: value for name, value in about.items() if name != "identity"}}
    if "test" in parts:
        result["test"] = judged(predictor, parts["test"]).as_dict()
        record(out, predictor.model.config, "test", result["test"])
    show(result, as_json, lambda to: display.trained(to, result, (out / "model.safetensors").stat().st_size))


def _check(
    settings: dict[str, Any], distill_from: str | None, unlabelled: Path | None, resume: bool, overwrite: bool
) -> None:
    """Refuse flags that do not go together."""
    if unlabelled is not None and distill_from is None:
        raise InputError("--unlabelled needs a teacher to name its texts: give --distill-from too")
    if distill_from is None and pick(TeachingSettings, settings):
        raise InputError("--variants and --trust steer a teacher: give --distill-from too")
    if resume and overwrite:
        raise InputError("--resume goes on with what is there, --overwrite throws it away: give one of them")
    if settings["steps"] == 0:
        raise InputError("--steps must be at least 1; leave it out to train for epochs")
    if settings["steps"] and settings["epochs"]:
        raise InputError("--epochs and --steps both say how long to train: give one of them")


def _parts(data: str, text_column: str, label_column: str, problem: str | None) -> dict[str, Any]:
    """The splits there are, their labels counted as those of the training rows."""
    from ade.data.conll import is_tagged, load_tagged
    from ade.data.loading import has_split, load_dataset

    if is_tagged(data):
        if problem is not None:
            raise InputError(f"{data}: words with a tag each; --problem is for texts")
        whole = Path(data).is_file()
        splits = [split for split in SPLITS if split == "train" or (not whole and is_tagged(data, split))]
        parts: dict[str, Any] = {split: load_tagged(data, split) for split in splits}
    else:
        parts = {}
        for split in SPLITS:  # the training rows first: where they cannot be had, nobody asks the hub for the others
            if split == "train" or has_split(data, split):
                parts[split] = load_dataset(data, split, text_column, label_column, problem)
    names = parts["train"].names
    return {split: part if split == "train" else part.relabelled(names) for split, part in parts.items()}


def judged(predictor: Any, data: Any) -> Any:
    """A classifier or a tagger, evaluated."""
    from ade.classifier import Tagger
    from ade.evaluation import evaluate, evaluate_tagger

    return evaluate_tagger(predictor, data) if isinstance(predictor, Tagger) else evaluate(predictor, data)
