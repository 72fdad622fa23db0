"""The verbs that make a codebook or a model: `ade distill`, `ade train` and the demo, `ade run`."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ade.cli import display
from ade.cli.notices import say_unknown_tokens
from ade.cli.options import (
    Address,
    DataArgument,
    DataOption,
    Engine,
    Json,
    LabelColumn,
    Overwrite,
    Problem,
    Seed,
    TextColumn,
    Workers,
    flags_of,
    lines_of,
    one_source,
    pick,
    read_texts,
    say_columns,
    show,
)
from ade.cli.sizes import folder_sizes
from ade.errors import InputError
from ade.progress import Report
from ade.settings import Architecture, DistillationSettings, TeachingSettings, TrainingSettings

if TYPE_CHECKING:
    from torch import Tensor

    from ade.codebook import Codebook
    from ade.compression.coded_table import CodedTable
    from ade.teachers import Teacher


@flags_of(DistillationSettings, common=("size", "anchors", "pairs", "seed", "device"))
def distill(
    teacher: Annotated[
        str,
        typer.Option(
            help="Pretrained embeddings: a folder, a text file of vectors, a hub name, or 'wordllama'.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output folder.", show_default=False)],
    corpus: Annotated[
        Path | None, typer.Option(help="Text file; its token counts weight the rows of the table.")
    ] = None,
    prune_vocabulary: Annotated[
        Path | None,
        typer.Option(help="Text file; drop tokens that it does not contain. Every text can still be tokenized."),
    ] = None,
    contextual: Annotated[
        bool, typer.Option("--contextual", help="Use the encoder's output for each token, not its input embeddings.")
    ] = False,
    codes: Annotated[
        bool,
        typer.Option("--codes", help="Codes in place of pairs: nearer to the teacher, but without anchors to see."),
    ] = False,
    as_json: Json = False,
    overwrite: Overwrite = False,
    **settings: Any,
) -> None:
    """Distil an embedding table into a codebook.

    Stages 1 and 2 of the paper: anchors shared by all tokens, and a few (anchor, weight) pairs per token. With --codes
    a table in the codes of 'ade compress' instead, which 'ade train --codebook' takes as well.
    """
    from ade.codebook import MARKER
    from ade.compression.coded_table import SHAPE
    from ade.distillation import distill as distil
    from ade.files import new_folder

    distillation = DistillationSettings(**pick(DistillationSettings, settings))
    if codes:
        _distill_codes(teacher, out, distillation, contextual, prune_vocabulary, corpus, as_json, overwrite)
        return
    with new_folder(out, {MARKER, SHAPE}, overwrite) as draft, display.progress() as report:
        loaded, counts = _load_teacher(teacher, contextual, distillation.device, prune_vocabulary, corpus, report)
        codebook = distil(loaded, distillation, counts, report)
        codebook.write(draft)

    sizes = {
        "bytes": codebook.nbytes,
        "teacher_bytes": loaded.nbytes,
        "ratio": loaded.nbytes / codebook.nbytes,
    }
    show(
        {"codebook": str(out), **codebook.about, **sizes},
        as_json,
        lambda to: display.print_codebook(to, out, codebook, loaded.nbytes),
    )


def _distill_codes(
    teacher: str, out: Path, settings: DistillationSettings, contextual: bool,
    prune_vocabulary: Path | None, corpus: Path | None, as_json: bool, overwrite: bool,
) -> None:  # fmt: skip
    """Distil a teacher into a table in codes, and say how near it is."""
    from ade.codebook import MARKER
    from ade.compression.coded_table import SHAPE
    from ade.compression.distill_codes import distill_codes
    from ade.files import new_folder
    from ade.settings import parse_size

    if not settings.size:
        raise InputError("--codes needs --size, as 4MB")
    with new_folder(out, {MARKER, SHAPE}, overwrite) as draft, display.progress() as report:
        loaded, counts = _load_teacher(teacher, contextual, settings.device, prune_vocabulary, corpus, report)
        table = distill_codes(loaded, parse_size(settings.size), counts, settings.seed, report)
        table.write(draft)
        nbytes = sum(file.stat().st_size for file in draft.iterdir())

    result = {"codebook": str(out), **table.about, "bytes": nbytes, "teacher_bytes": loaded.nbytes}
    result["ratio"] = loaded.nbytes / nbytes
    show(result, as_json, lambda to: display.print_codes(to, result, table.vocabulary))


def _load_teacher(
    source: str, contextual: bool, device: str, prune_vocabulary: Path | None, corpus: Path | None, report: Report
) -> "tuple[Teacher, Tensor | None]":
    """The embedding table to distil, its vocabulary pruned if asked, and the token counts of the corpus if given."""
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


@flags_of(TrainingSettings, Architecture, TeachingSettings, optional=True, common=("epochs", "seed", "device"))
def train(
    file: DataArgument = None,
    data: DataOption = None,
    out: Annotated[Path, typer.Option(help="Output folder.", show_default=False)] = ...,  # type: ignore[assignment]
    teacher: Annotated[
        str | None,
        typer.Option(
            help="Pretrained embeddings to distil, as in 'ade distill'; distilled once and kept in the cache. "
            "By default wordllama, unless --codebook is given.",
            show_default=False,
        ),
    ] = None,
    codebook: Annotated[
        Path | None, typer.Option(help="Codebook folder, made by 'ade distill'.", show_default=False)
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Size of the model folder, tokenizer included, as 2MB or 800kB.", show_default=False),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Encoder to start from, made by 'ade distill-encoder': a folder, a hub name.",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[Literal["strong", "paper"], typer.Option(help="Default values of the settings.")] = "strong",
    distill_from: Annotated[
        str | None,
        typer.Option(help="Fine-tuned sequence classifier to learn soft targets from: a folder, a hub name."),
    ] = None,
    unlabelled: Annotated[
        Path | None, typer.Option(help="Text file with one text per line, labelled by that classifier.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in the output folder.")] = False,
    overwrite: Overwrite = False,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    problem: Problem = None,
    engine: Engine = None,
    address: Address = "local",
    workers: Workers = None,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Train a classifier or a tagger.

    Stage 3 of the paper, on the codebook of a teacher. CoNLL files make a tagger. If the dataset has a test split, the
    model is evaluated on it.
    """
    source = one_source(file, data)
    _check_options(settings, distill_from, unlabelled, engine, resume, overwrite)
    from ade.data.sources import load_splits
    from ade.data.tables import Schema
    from ade.training.train import problem_type
    from ade.training.train import train as train_model

    splits = load_splits(source, schema=Schema(text_column, label_column, problem_type(problem)))
    main_process = int(os.environ.get("RANK", "0")) == 0  # of several processes one writes and prints
    if main_process:
        say_columns(source, splits["train"])

    def say_what_is_unknown(book: "Codebook | CodedTable") -> None:
        if main_process:
            say_unknown_tokens(book.tokenizer, _texts_of(splits["train"]))

    label_teacher: Any = distill_from
    if engine is not None:
        from ade.integrations.ray_teacher import RayTeacher

        label_teacher = RayTeacher.on(address, str(distill_from), splits["train"].names, workers)
    predictor = train_model(
        splits,
        teacher=teacher,
        codebook=codebook,
        size=size,
        start=start,
        out=out,
        preset=preset,
        distill_from=label_teacher,
        unlabelled=read_texts(unlabelled),
        existing="resume" if resume else "overwrite" if overwrite else "refuse",
        before_training=say_what_is_unknown,
        **settings,
    )
    if main_process:
        _show_result(out, predictor, splits.get("test"), as_json)


def _texts_of(rows: Any) -> Sequence[str]:
    """The texts of a dataset; sentences of words are joined."""
    return rows.texts if hasattr(rows, "texts") else [" ".join(words) for words in rows.sentences]


def _show_result(out: Path, predictor: Any, test: Any, as_json: bool) -> None:
    """Evaluate a trained model on the test split, if there is one, add the metrics to its card, and print all."""
    from ade.evaluation import evaluate
    from ade.model_card import record

    stored = json.loads((out / "training.json").read_text("utf8"))
    result = {"model": str(out), **{name: value for name, value in stored.items() if name != "identity"}}
    if test is not None:
        result["test"] = evaluate(predictor, test).as_dict()
        record(out, predictor.model.config, "test", result["test"])
    result |= folder_sizes(out)
    show(result, as_json, lambda to: display.print_training(to, result))


def _check_options(
    settings: dict[str, Any],
    distill_from: str | None,
    unlabelled: Path | None,
    engine: str | None,
    resume: bool,
    overwrite: bool,
) -> None:
    """Refuse options that exclude or need each other."""
    if unlabelled is not None and distill_from is None:
        raise InputError("--unlabelled needs a teacher that labels its texts: give --distill-from too")
    if distill_from is None and pick(TeachingSettings, settings):
        raise InputError("--variants and --trust are options of a teacher: give --distill-from too")
    if distill_from is None and engine is not None:
        raise InputError("--engine ray runs the teacher of --distill-from: give one")
    if resume and overwrite:
        raise InputError("--resume continues the run in the folder, --overwrite deletes it: give one of them")
    if settings["steps"] == 0:
        raise InputError("--steps must be at least 1; leave it out to train for epochs")
    if settings["steps"] and settings["epochs"]:
        raise InputError("--epochs and --steps both say how long to train: give one of them")


def run(
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("runs/demo"),
    epochs: Annotated[float, typer.Option(help="Number of training epochs.")] = 2.5,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run the demo on data that is included.

    Distils wordllama, trains on WordNet glosses, and compares with TF-IDF and a linear SVM.
    """
    from ade.cli.demo import run_demo

    with display.progress() as report:
        demo = run_demo(out, seed, epochs, report)
    show(demo.as_dict(), as_json, lambda to: display.print_demo(to, demo))
