"""The command line: parse, call, print. Results go to stdout, progress and errors to stderr.

Heavy modules are imported inside the verbs, so that help and bad arguments answer at once.
"""

import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from ade.predictor import Predictor

from ade import display
from ade.cli_benchmarks import benchmark, reproduce
from ade.cli_delivery import serve
from ade.cli_inspect import inspect_verb
from ade.errors import InputError
from ade.options import (
    Device,
    Json,
    LabelColumn,
    Model,
    Overwrite,
    Seed,
    TextColumn,
    flags_of,
    pick,
    show,
)
from ade.settings import (
    PRESETS,
    SHAPES,
    Architecture,
    DistillationSettings,
    TeachingSettings,
    TrainingSettings,
)

app = typer.Typer(
    name="ade",
    help="Adaptive Dictionary Embeddings: distil a table, train a small classifier, look inside.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
STOPPED = 130  # exit status after Ctrl-C


def main() -> None:
    """Run the command line; every foreseeable failure is one line on stderr and exit status 2."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.filterwarnings("ignore")
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        status = _fail(str(error))
    except OSError as error:
        status = _fail(f"{error.filename or 'error'}: {error.strerror or error}")
    except KeyboardInterrupt:
        status = STOPPED
    except Exception as error:
        if not hasattr(error, "format_message"):  # not one of the parser's own
            raise
        status = _fail(f"{error.format_message()} (see 'ade --help')")
    if status == STOPPED:
        _fail("stopped (a training run goes on with --resume)")
    sys.exit(status or 0)


def _fail(message: str) -> int:
    print("ade: " + " ".join(message.split()), file=sys.stderr)
    return 2


@app.command()
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
    from ade.distillation import count_tokens
    from ade.distillation import distill as distil
    from ade.folders import check_free
    from ade.teachers import load_teacher

    check_free(out, {MARKER}, overwrite)
    chosen = DistillationSettings(**pick(DistillationSettings, settings))
    if contextual:
        from ade.encoders import contextual_teacher

        with display.progress() as report:
            loaded = contextual_teacher(teacher, chosen.device, report)
    else:
        loaded = load_teacher(teacher)
    if prune_vocabulary is not None:
        from ade.vocabulary import pruned

        with _lines(str(prune_vocabulary)) as lines:
            loaded = pruned(loaded, lines)
    frequencies = None
    if corpus is not None:
        with _lines(str(corpus)) as lines:
            frequencies = count_tokens(loaded.tokenizer, lines, len(loaded.table))
    with display.progress() as report:
        codebook = distil(loaded, chosen, frequencies, report)
    codebook.save(out, overwrite)
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


@app.command()
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
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Train a classifier on a codebook (stage 3); evaluate it where the data has a test split."""
    from ade.codebook import Codebook
    from ade.data import has_split, load_dataset
    from ade.evaluation import evaluate as evaluated
    from ade.training import held_back
    from ade.training import train as fit

    if unlabelled is not None and distill_from is None:
        raise InputError("--unlabelled needs a teacher to name its texts: give --distill-from too")
    if distill_from is None and pick(TeachingSettings, settings):
        raise InputError("--variants and --trust steer a teacher: give --distill-from too")
    if resume and overwrite:
        raise InputError("--resume goes on with what is there, --overwrite throws it away: give one of them")
    if settings["steps"] and settings["epochs"]:
        raise InputError("--epochs and --steps both say how long to train: give one of them")
    book = Codebook.load(codebook)
    parts = {
        split: load_dataset(data, split, text_column, label_column)
        for split in ("train", "dev", "test")
        if split == "train" or has_split(data, split)
    }
    parts = {
        split: part if split == "train" else part.relabelled(parts["train"].names) for split, part in parts.items()
    }
    chosen = replace(PRESETS[preset], **pick(TrainingSettings, settings))
    shape = replace(SHAPES[preset], **pick(Architecture, settings))
    existing: Literal["refuse", "resume", "overwrite"] = "resume" if resume else "overwrite" if overwrite else "refuse"
    with display.progress() as report:
        if distill_from is not None:
            from ade.checkpoints import check_run_folder
            from ade.teaching import LabelTeacher, taught

            check_run_folder(out, existing)  # before anything takes time
            if "dev" not in parts:
                parts["train"], parts["dev"] = held_back(parts["train"], chosen.seed)
            teacher = LabelTeacher.load(distill_from, parts["train"].names, chosen.device)
            teaching = TeachingSettings(**pick(TeachingSettings, settings))
            parts["train"] = taught(parts["train"], teacher, teaching, _texts_of(unlabelled), report)
            del teacher  # its memory is wanted
        classifier = fit(book, parts["train"], parts.get("dev"), chosen, shape, out, existing, report)
    if int(os.environ.get("RANK", "0")) > 0:  # of several processes the first one speaks
        return
    about = json.loads((out / "training.json").read_text("utf8"))
    result = {"model": str(out), "dev_accuracy": about["dev_accuracy"], "steps": about["steps"]}
    if "test" in parts:
        result["test"] = evaluated(classifier, parts["test"]).as_dict()
    show(result, as_json, lambda to: display.trained(to, result, (out / "model.safetensors").stat().st_size))


@app.command()
def evaluate(
    model: Model,
    data: Annotated[str, typer.Option(help="A file, a folder, a hub name, or 'wordnet'.", show_default=False)],
    split: Annotated[str, typer.Option(help="Which part of the data.")] = "test",
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Accuracy, macro F1, precision, recall and the confusion matrix on labelled texts."""
    from ade.data import load_dataset
    from ade.evaluation import evaluate as evaluated
    from ade.inference import Classifier

    result = evaluated(Classifier.load(model, device), load_dataset(data, split, text_column, label_column))
    show(result.as_dict(), as_json, lambda to: display.evaluation(to, result))


@app.command()
def predict(
    model: Model,
    file: Annotated[str, typer.Argument(help="A file with a text a line; - is standard input.")] = "-",
    device: Annotated[str, typer.Option(help="cpu (numpy alone, starts at once) or cuda.")] = "cpu",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Label and probability of each line, in order; files of any length."""
    with _lines(file) as lines:
        classifier = _predictor(model, device)
        predictions = classifier.stream(lines)
        if as_json:
            found = [{"label": label, "probability": probability} for label, probability in predictions]
            print(json.dumps({"predictions": found}))
            return
        try:
            for label, probability in predictions:
                sys.stdout.write(f"{label}\t{probability:.4f}\n")
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of our output has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _predictor(model: Path, device: str) -> "Predictor":
    """The light runtime, which needs no torch; or the model itself on another device."""
    if device == "cpu":
        from ade.runtime import Runtime

        return Runtime.load(model)
    from ade.inference import Classifier

    return Classifier.load(model, device)


def _texts_of(file: Path | None) -> list[str]:
    if file is None:
        return []
    with _lines(str(file)) as lines:
        return [line for line in lines if line.strip()]


@contextmanager
def _lines(file: str) -> Iterator[Iterator[str]]:
    try:
        if file == "-":
            if isinstance(sys.stdin, io.TextIOWrapper):
                sys.stdin.reconfigure(encoding="utf8", errors="strict", newline="\n")
            yield (line.rstrip("\r\n") for line in sys.stdin)
        else:
            with open(file, encoding="utf8", newline="\n") as opened:
                yield (line.rstrip("\r\n") for line in opened)
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text ({error.reason})") from None


@app.command()
def params(
    dim: Annotated[int, typer.Option(help="Width of the model.", min=1)] = 768,
    labels: Annotated[int, typer.Option(help="Classes.", min=1)] = 4,
    anchors: Annotated[int, typer.Option(help="K, the number of anchors.", min=1)] = 100,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """The paper's parameter table, component by component, counted on a real model."""
    from ade.model import count_parameters

    counts = count_parameters(dim, labels, anchors)
    show(counts, as_json, lambda to: display.parameters(to, counts))


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Folder for what the job makes.")] = Path("runs/demo"),
    epochs: Annotated[float, typer.Option(help="Passes over the training rows.")] = 4.0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """The main job on embedded defaults: WordNet glosses, wordllama, and what one would use instead."""
    from ade.demo import run_demo

    with display.progress() as report:
        demo = run_demo(out, seed, epochs, report)
    show(demo.as_dict(), as_json, lambda to: display.demo(to, demo))


app.command(name="inspect")(inspect_verb)
app.command()(serve)
app.command()(reproduce)
app.add_typer(benchmark, name="benchmark")


if __name__ == "__main__":
    main()
