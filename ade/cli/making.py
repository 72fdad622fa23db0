"""The verbs that make models and tables: `ade train`, `ade distill` and `ade compress`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.table import Table

from ade.cli import display, options
from ade.cli.options import argument, option
from ade.data.records import texts_of
from ade.errors import InputError
from ade.progress import shown
from ade.settings import Architecture, CompressionSettings, DistillationSettings, TrainingSettings

TRAINING = options.MoreSettings((TrainingSettings, Architecture), ("device", "epochs"))
DISTILLATION = options.MoreSettings((DistillationSettings,), ("device", "anchors", "pairs"))

Problem = Literal["single-label", "multi-label", "regression"]
HIDDEN = ("identity", "validations", "dev")  # of training.json: nothing for a person
SHOWN = ("accuracy", "macro_f1", "micro_f1", "f1", "r2", "spearman")  # metrics on a test split


def train(
    data: options.Data,
    out: options.Out,
    start: Annotated[
        str | None, option("Encoder or model to start from; by default the one included.", "--from", metavar="NAME")
    ] = None,
    teacher: Annotated[
        str | None, option("Embedding table to distil instead, as the paper does.", metavar="NAME")
    ] = None,
    size: options.Size = None,
    preset: Annotated[Literal["strong", "paper"], option("Defaults of all settings.")] = "strong",
    distill_from: Annotated[str | None, option("Fine-tuned classifier to learn from.", metavar="NAME")] = None,
    unlabelled: Annotated[Path | None, option("Texts that this classifier labels.", metavar="FILE")] = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    problem: Annotated[Problem | None, option("Kind of labels; by default lists are multi-label.")] = None,
    epochs: Annotated[float | None, option("Train the layers, too, for N passes.", metavar="N")] = None,
    device: options.Device = "auto",
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    more: Annotated[list[str] | None, TRAINING.option()] = None,
) -> None:
    """Train a classifier, or a tagger on CoNLL files.

    In seconds, without torch: two linear fits on the included encoder. With --epochs its layers are trained, too, which
    pays where rows are many. If the data has a test split, the model is evaluated on it.
    """
    existing = options.existing_run(resume, overwrite)
    if unlabelled is not None and distill_from is None:
        raise InputError("--unlabelled needs a classifier that labels its texts: give --distill-from too")
    settings = TRAINING.parse(more)
    from ade.data.columns import Schema
    from ade.data.dataset import Dataset, remarks
    from ade.data.sources import load_splits
    from ade.fitting.convex import MAX_ROWS
    from ade.training.train import problem_type, train as train_model

    splits = load_splits(data, schema=Schema(text_column, label_column, problem_type(problem)))
    display.say_columns(data, splits["train"])
    for remark in remarks(splits["train"], problem) if isinstance(splits["train"], Dataset) else ():
        display.say(f"{data}: {remark}")
    if len(splits["train"]) > MAX_ROWS and teacher is None and epochs is None and "steps" not in settings:
        display.say(f"{data}: a sample of {MAX_ROWS:,} rows is fitted, stratified by label; --epochs learns from all")
    predictor = train_model(
        splits,
        teacher=teacher,
        size=size,
        start=start,
        out=out,
        preset=preset,
        distill_from=distill_from,
        unlabelled=[] if unlabelled is None else [text for text in texts_of(unlabelled) if text.strip()],
        existing=existing,
        epochs=epochs,
        device=device,
        **settings,
    )
    texts = texts_in(splits["train"])
    display.say_unknown_tokens(predictor.saved.tokenizer, texts, "another --teacher may know their language")
    _show_training(out, predictor, splits.get("test"), as_json)


def texts_in(rows: Any) -> Sequence[str]:
    """The texts of labelled rows, of a tagger the sentences."""
    return rows.texts if hasattr(rows, "texts") else [" ".join(words) for words in rows.sentences]


def _show_training(out: Path, predictor: Any, test: Any, as_json: bool) -> None:
    """Evaluate a trained model on the test split, if there is one, add the metrics to its card, and print all."""
    from ade.evaluation import evaluate
    from ade.folder import add_metadata, nbytes_of

    stored = json.loads((out / "training.json").read_text("utf8"))
    result = {"model": str(out), **{name: value for name, value in stored.items() if name not in HIDDEN}}
    if test is not None:
        result["test"] = evaluate(predictor, test).as_dict()
        add_metadata(out, test=result["test"])
    result["bytes"] = nbytes_of(out)
    next_commands = f"Next: ade predict {out} FILE\n      ade serve {out}"
    display.show(result, as_json, training_facts(result), next_commands)


def training_facts(result: Mapping[str, Any]) -> Table:
    """Where a trained model is, what it is expected to reach and how that was measured, and its size."""
    rows = [("model", result["model"])]
    estimate = result.get("estimate") or {}
    if estimate:
        name = estimate["metric"]
        value = display.format_metric(name, estimate["value"])
        if "low" in estimate:
            low, high = (display.format_metric(name, estimate[end]) for end in ("low", "high"))
            value += f", 90% interval {low} to {high}"
        rows.append((display.metric_name(name), f"{value} ({estimate['how']}, {estimate['rows']:,} rows)"))
    for name, value in result.get("test", {}).items():
        if name in SHOWN:
            rows.append((f"{display.metric_name(name)} on test", display.format_metric(name, value)))
    rows.append(("size", display.size(result["bytes"])))
    trained = "as in the encoder; --epochs 4 trains them"
    if "kept" in result:
        trained = f"as in the encoder: {result['steps']:,} steps of training were no better"
    elif result["steps"]:
        trained = f"trained for {result['steps']:,} steps"
    rows.append(("layers", trained))
    if result.get("lexicon"):
        entries = result["lexicon"]["entries"]
        rows.append(("n-grams", f"{entries:,}" if entries else "none: they did not lower the loss"))
    return display.facts(rows)


def distill(
    teacher: Annotated[str, option("Embeddings: folder, hub name or wordllama.", metavar="NAME")],
    out: options.Out,
    anchors: Annotated[int, option("Number of shared anchors.", metavar="K")] = 500,
    pairs: Annotated[int, option("Most pairs of a token.", metavar="N")] = 8,
    device: options.Device = "auto",
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    more: Annotated[list[str] | None, DISTILLATION.option()] = None,
) -> None:
    """Distil an embedding table into a codebook.

    Stages 1 and 2 of the paper: anchors shared by all tokens, and a few (anchor, weight) pairs per token.
    """
    settings = DistillationSettings(anchors=anchors, pairs=pairs, device=device, **DISTILLATION.parse(more))
    from ade.distillation import distill as distil
    from ade.files import MARKER, new_folder
    from ade.teachers import load_teacher

    with new_folder(out, {MARKER}, overwrite) as draft, shown() as report:
        loaded = load_teacher(teacher)
        saved = distil(loaded, settings, report)
        saved.write(draft)

    nbytes = {"bytes": saved.nbytes, "teacher_bytes": loaded.nbytes, "ratio": loaded.nbytes / saved.nbytes}
    result = {"codebook": str(out), **saved.config.metadata, **nbytes}
    book: Any = saved.table
    spread = f"5% {result['cosine_p5']:.3f}  95% {result['cosine_p95']:.3f}"
    sizes = f"{display.size(loaded.nbytes)} -> {display.size(saved.nbytes)}"
    rows = [
        ("codebook", result["codebook"]),
        ("teacher", f"{result['teacher']}  {book.vocabulary:,} x {book.dim}"),
        ("anchors", f"{len(book.anchors):,}, {result['dead_anchors'] or 'none'} unused"),
        ("pairs", f"{len(book.indices):,}, {len(book.indices) / book.vocabulary:.2f} a token"),
        ("cosine to the teacher", f"mean {result['cosine']:.4f}  {spread}"),
        ("size", f"{sizes}, {result['ratio']:.1f}x smaller"),
    ]
    display.show(result, as_json, display.facts(rows))


def compress(
    model: Annotated[str, argument("Hugging Face folder or hub name.", "MODEL")],
    out: options.Out,
    size: Annotated[str | None, option("Bytes of the packed table; by default a sixteenth.", metavar="SIZE")] = None,
    corpus: options.Corpus = None,
    tune: Annotated[list[Path] | None, option("Text to tune the table with; repeatable.", metavar="FILE")] = None,
    tune_steps: Annotated[int, option("Steps of --tune.", metavar="N")] = CompressionSettings().tune_steps,
    head: Annotated[bool, option("Pack an output table that is not tied, too.", "--head")] = False,
    max_loss: Annotated[str | None, option("Most loss on held-out text, at any size.", metavar="P%")] = None,
    device: options.Device = "auto",
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Pack the embedding table of any Hugging Face model.

    Everything else stays as it is. After 'import ade' the result loads like the original.
    """
    chosen = CompressionSettings(size or "", head, max_loss or "", tune_steps, device)
    from ade.compression.compress import compress as pack

    with shown() as report:
        result = pack(model, out, chosen, corpus or (), tune or (), overwrite, report)
    rows = []
    for name, pair in (("table", result.table), ("folder", result.folder)):
        before, after = pair["before"], pair["after"]
        rows.append((name, display.size(before), display.size(after), f"{before / after:.1f}x"))
    parts: list[Table | str] = [display.table((str(out), "before", "after", ""), rows)]
    if result.loss:
        losses = [(name, f"{loss:.2f}") for name, loss in result.loss.items()]
        parts.append(display.table(("held-out text", f"{result.measure}, %"), losses))
    else:
        parts.append("'--corpus FILE' says what your texts are like, and measures the loss on them")
    display.show({"model": str(out), **asdict(result)}, as_json, *parts)
