"""The command line: parse, call, print. Results go to stdout, progress and errors to stderr.

Heavy modules are imported inside the verbs, so that help and bad arguments answer at once.
"""

import inspect
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from ade import display
from ade.errors import InputError
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
Model = Annotated[Path, typer.Argument(help="A model folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Seed = Annotated[int, typer.Option(help="What every random choice follows from.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in the output folder.")]
TextColumn = Annotated[str, typer.Option(help="Column that holds the texts.")]
STOPPED = 130  # exit status after Ctrl-C
LabelColumn = Annotated[str, typer.Option(help="Column that holds the labels.")]


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


def flags_of(*classes: type, optional: bool = False) -> Callable[[Any], Any]:
    """Give a verb one flag for each field of these settings classes, in place of its `**settings`.

    With `optional`, a flag that is not given arrives as None: a preset decides.
    """

    def decorate(verb: Any) -> Any:
        signature = inspect.signature(verb)
        parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        for entry in (entry for settings in classes for entry in fields(settings)):
            kind: Any = entry.type | None if optional else entry.type  # type: ignore[operator]
            flag = Annotated[kind, typer.Option(help=_sentence(entry.metadata["help"]))]
            default = None if optional else entry.default
            parameters.append(
                inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=flag)
            )
        verb.__signature__ = signature.replace(parameters=parameters)
        return verb

    return decorate


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _pick(settings: type, given: Mapping[str, Any]) -> dict[str, Any]:
    return {entry.name: given[entry.name] for entry in fields(settings) if given.get(entry.name) is not None}


def _show(value: Mapping[str, Any], as_json: bool, draw: Callable[[Console], None]) -> None:
    if as_json:
        print(json.dumps(value))
    else:
        draw(display.console())


@app.command()
@flags_of(DistillationSettings)
def distill(
    teacher: Annotated[
        str, typer.Option(help="A folder, text vectors, a hub name, or 'wordllama'.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the codebook.", show_default=False)],
    corpus: Annotated[Path | None, typer.Option(help="Text file; its token counts weight the objective.")] = None,
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
    loaded = load_teacher(teacher)
    frequencies = None
    if corpus is not None:
        with _lines(str(corpus)) as lines:
            frequencies = count_tokens(loaded.tokenizer, lines, len(loaded.table))
    with display.progress() as report:
        codebook = distil(loaded, DistillationSettings(**_pick(DistillationSettings, settings)), frequencies, report)
    codebook.save(out, overwrite)
    sizes = {
        "bytes": codebook.nbytes,
        "teacher_bytes": loaded.nbytes,
        "ratio": loaded.nbytes / codebook.nbytes,
    }
    _show(
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
    chosen = replace(PRESETS[preset], **_pick(TrainingSettings, settings))
    shape = replace(SHAPES[preset], **_pick(Architecture, settings))
    existing: Literal["refuse", "resume", "overwrite"] = "resume" if resume else "overwrite" if overwrite else "refuse"
    with display.progress() as report:
        if distill_from is not None:
            from ade.checkpoints import check_run_folder
            from ade.teaching import LabelTeacher, taught

            check_run_folder(out, existing)  # before anything takes time
            if "dev" not in parts:
                parts["train"], parts["dev"] = held_back(parts["train"], chosen.seed)
            teacher = LabelTeacher.load(distill_from, parts["train"].names, chosen.device)
            teaching = TeachingSettings(**_pick(TeachingSettings, settings))
            parts["train"] = taught(parts["train"], teacher, teaching, _texts_of(unlabelled), report)
        classifier = fit(book, parts["train"], parts.get("dev"), chosen, shape, out, existing, report)
    if int(os.environ.get("RANK", "0")) > 0:  # of several processes the first one speaks
        return
    about = json.loads((out / "training.json").read_text("utf8"))
    result = {"model": str(out), "dev_accuracy": about["dev_accuracy"], "steps": about["steps"]}
    if "test" in parts:
        result["test"] = evaluated(classifier, parts["test"]).as_dict()
    _show(result, as_json, lambda to: display.trained(to, result, (out / "model.safetensors").stat().st_size))


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
    _show(result.as_dict(), as_json, lambda to: display.evaluation(to, result))


@app.command()
def predict(
    model: Model,
    file: Annotated[str, typer.Argument(help="A file with a text a line; - is standard input.")] = "-",
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Label and probability of each line, in order; files of any length."""
    from ade.inference import Classifier

    classifier = Classifier.load(model, device)
    with _lines(file) as lines:
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
                sys.stdin.reconfigure(encoding="utf8", errors="strict")
            yield (line.rstrip("\r\n") for line in sys.stdin)
        else:
            with open(file, encoding="utf8") as opened:
                yield (line.rstrip("\r\n") for line in opened)
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text ({error.reason})") from None


@app.command(name="inspect")
def inspect_verb(
    source: Annotated[Path, typer.Argument(help="A model or codebook folder.", show_default=False)],
    words: Annotated[list[str], typer.Argument(help="Words to look up.", show_default=False)],
    nearest: Annotated[int, typer.Option(help="Words shown for each anchor.", min=1)] = 6,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """The anchors of words, their weights, and each anchor's nearest words."""
    from ade.codebook import MARKER, Codebook
    from ade.inference import Classifier
    from ade.inspection import codebook_of, inspect_words

    book = Codebook.load(source) if (source / MARKER).exists() else codebook_of(Classifier.load(source, "cpu"))
    found = inspect_words(book, words, nearest)
    _show({"words": [token.as_dict() for token in found]}, as_json, lambda to: display.words(to, found))


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
    _show(counts, as_json, lambda to: display.parameters(to, counts))


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
    _show(demo.as_dict(), as_json, lambda to: display.demo(to, demo))


@app.command()
def reproduce(
    table: Annotated[str | None, typer.Option(help="One table; all of them without it.")] = None,
    data_dir: Annotated[Path, typer.Option(help="Folder with ag_news and dbpedia_14.")] = Path("../shared/data"),
    teachers_dir: Annotated[Path, typer.Option(help="Folder with deberta-v3-xsmall and minilm-l6.")] = Path("teachers"),
    work_dir: Annotated[Path, typer.Option(help="Folder for codebooks made on the way.")] = Path("runs/reproduce"),
    results: Annotated[
        Path | None, typer.Option(help="Folder of result files.", show_default="benchmarks/results")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at once.", min=1)] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="The whole harness on a few hundred rows.")] = False,
    device: Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run the benchmark tables that are not recorded yet; from a checkout of the repository."""
    from ade.distillation import resolve_device

    sys.path.insert(0, str(Path(__file__).parent.parent))
    try:
        from benchmarks.accuracy import Places
        from benchmarks.records import RESULTS
        from benchmarks.reproduce import plan
        from benchmarks.reproduce import reproduce as make
    except ImportError as error:
        raise InputError(f"the benchmarks need a checkout and its extra: pip install -e '.[bench]' ({error})") from None
    places = Places(data_dir, teachers_dir, work_dir, resolve_device(device).type)
    folder = results or (work_dir / "quick" if quick else RESULTS)
    todo, seconds = plan(table, places.device, quick, folder)
    print(f"ade: {len(todo)} runs to make, about {max(1, round(seconds / jobs / 60))} minutes", file=sys.stderr)
    with display.progress() as report:
        failed = make(todo, places, folder, jobs, report)
    result = {"runs": len(todo), "failed": failed, "results": str(folder)}
    _show(result, as_json, lambda to: display.reproduced(to, result))


if __name__ == "__main__":
    main()
