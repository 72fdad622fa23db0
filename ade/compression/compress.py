"""`ade.compress`: a Hugging Face model -> the same model with its embedding table in codes, in a folder of its own.

Load, count how often rows are used, code the table (and those that a model has beside it, as a row of every layer for
each token), tune it where there is text for it, put it into the model, measure on held-out text, and write the folder.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ade.coded_layer import PackedTable
from ade.compression import outputs
from ade.compression.checkpoint import load_model, read_json, source_folder, transformer_folder, write_folder
from ade.compression.coder import CoderSettings, SourceTable, encode_tables
from ade.compression.frequencies import best_known, generated_texts, row_frequencies
from ade.compression.outputs import body_of, is_decoder, token_ids
from ade.compression.quantizer import replace_tables
from ade.compression.replacement import find_tables, modules_sharing, tables_beside
from ade.compression.tuning import MAX_TOKENS, tune
from ade.data.records import texts_of
from ade.devices import resolve_device
from ade.errors import InputError
from ade.files import MARKER, new_folder
from ade.folder_budget import evenly
from ade.progress import Report, silent
from ade.settings import CompressionSettings, parse_percent

MAX_TEXTS = 200_000  # of a file, which are read
HELD_OUT_EVERY, MAX_HELD_OUT = 20, 50  # texts of a corpus: every 20th is measured on, up to 50 of a file
LANGUAGES = 8  # whose words are generated text where there is no corpus
GROWTH = 1.25  # bytes are multiplied by this until the loss is small enough
REPORT = "compression.json"
OUTPUT_TEXTS, INPUT_TEXTS = 100, 800  # for the metrics of a decoder's output and of an encoder's input
NOISE_TEXTS = 32  # that show which of several tables counts more
EXACT_SHARE = 0.05  # maximum share of the bytes for special tokens, whose rows stay exact
ENCODER = {"exponent": 0.5, "plain_share": 0.2}  # of the coder: rare words decide what a text is about
DECODER = {"exponent": 0.6, "plain_share": 0.03}  # scores of all rows are compared, and few directions decide them
HELD_OUT, GENERATED = "held-out text", "generated text"  # what a loss is measured on
ROUGH = "Generated text is words drawn by their frequencies, on which models often lose less than on real text."


@dataclass(frozen=True)
class CompressionReport:
    """Bytes and losses, before and after."""

    source: str
    table: Mapping[str, int]  # bytes: before, after
    weights: Mapping[str, int]
    folder: Mapping[str, int]
    measure: str  # what `loss` is
    loss: Mapping[str, float]  # percent, by file or language
    measured_on: str = HELD_OUT
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mean_loss(self) -> float:
        """Mean loss over files or languages, in percent; NaN where there was no text."""
        return sum(self.loss.values()) / len(self.loss) if self.loss else math.nan

    def card(self) -> str:
        """Return the section of the model card."""
        lines = [
            "\n## Compressed table\n",
            f"The embedding table of {self.source}, packed by `ade compress`; everything else is unchanged. "
            "`import ade` before loading it.\n",
            "| | before | after | |\n| --- | ---: | ---: | ---: |",
        ]
        for name, size in (("table", self.table), ("weights", self.weights), ("folder", self.folder)):
            before, after = size["before"], size["after"]
            lines.append(f"| {name} | {before / 1e6:.1f} MB | {after / 1e6:.1f} MB | {before / after:.1f}x |")
        lines.append(f"\n| {self.measured_on} | {self.measure}, percent |\n| --- | ---: |")
        lines += [f"| {name} | {loss:.2f} |" for name, loss in self.loss.items()]
        lines += [f"\n{ROUGH}"] if self.measured_on == GENERATED else []
        return "\n".join([*lines, ""])


def compress(
    source: str | Path,
    out: str | Path,
    settings: CompressionSettings | None = None,
    corpus: Sequence[str | Path] = (),
    tune_on: Sequence[str | Path] = (),
    languages: Sequence[str] = (),
    overwrite: bool = False,
    report: Report = silent,
) -> CompressionReport:
    """Write a model with its embedding table in codes to the folder `out`; returns bytes and losses.

    `corpus` are text files like those the model will read, one text a line (or CSV, JSON lines, Parquet): they say
    which rows are used, and some of their texts are held out to measure the loss. Without one, word frequencies of
    many languages do. `tune_on` are text files to tune the coded table with, no labels needed.
    """
    settings, out = settings or CompressionSettings(), Path(out)
    with new_folder(out, (MARKER, REPORT), overwrite) as draft:
        folder = source_folder(source)
        if "quantization_config" in read_json(folder / transformer_folder(folder) / MARKER):
            raise InputError(f"{folder}: is already quantized; take the folder of the original model")
        job = _Job(folder, settings, languages, report)
        job.read(corpus, tune_on)
        model, table, loss = job.run()
        write_folder(model, folder, draft)

        sizes = {
            name: {"before": _nbytes(folder, pattern), "after": _nbytes(draft, pattern)}
            for name, pattern in (("weights", "*.safetensors"), ("folder", "*"))
        }
        result = CompressionReport(
            str(source), table, measure=outputs.measure_of(model), loss=loss, **sizes,
            measured_on=HELD_OUT if job.held_out else GENERATED, metadata={"settings": asdict(settings)},
        )  # fmt: skip
        (draft / REPORT).write_text(json.dumps(asdict(result), indent=2) + "\n", "utf8")
        with open(draft / "README.md", "a", encoding="utf8") as card:
            card.write(result.card())
    return result


def _nbytes(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.rglob(pattern) if file.is_file())


@dataclass
class _Job:
    """A model on its way to being compressed, and texts by file."""

    folder: Path
    settings: CompressionSettings
    languages: Sequence[str]
    report: Report
    counted: dict[str, list[str]] = field(default_factory=dict)  # where rows are counted
    held_out: dict[str, list[str]] = field(default_factory=dict)  # where the loss is measured
    tuning: list[list[str]] = field(default_factory=list)

    def read(self, corpus: Sequence[str | Path], tune_on: Sequence[str | Path]) -> None:
        """Read the texts of files; what the loss is measured on is not tuned on."""
        for file in corpus:
            counted, held_out = (part.setdefault(Path(file).name, []) for part in (self.counted, self.held_out))
            for number, text in enumerate(_texts_of(file)):
                measured = number % HELD_OUT_EVERY == 0 and len(held_out) < MAX_HELD_OUT
                (held_out if measured else counted).append(text)
        known = {text for texts in self.held_out.values() for text in texts}
        self.tuning = [[text for text in _texts_of(file) if text not in known] for file in tune_on]
        if tune_on and not any(self.tuning):
            raise InputError("--tune: no text is left beside what is held out to measure the loss; give more")

    def run(self) -> tuple[Any, dict[str, int], dict[str, float]]:
        """Code, tune and measure; with `max_loss`, again with more bytes until the loss is small enough.

        Returns the model, the bytes of its tables before and after, and the losses.
        """
        size, frequencies, texts, before = 0, None, self.held_out, None
        while True:
            model, tokenizer = load_model(self.folder)
            dtype = model.dtype
            beside = tables_beside(model)
            dims = {**self._main_tables(model), **beside}  # length of the rows that are coded, by module
            weights = {name: model.get_submodule(name).weight.detach() for name in dims}  # memory-mapped, as loaded
            model.to(resolve_device(self.settings.device))
            cast = model.device.type == "cpu" or bool(self.tuning)
            if cast:
                cast_to_float(model, [model.get_submodule(name) for name in beside])
            size = int(size * GROWTH) if size else self.settings.nbytes(sum(map(Tensor.numel, weights.values())))
            if frequencies is None or before is None:
                frequencies = self._frequencies(tokenizer, max(map(len, weights.values())))
                texts = texts or generated_texts(best_known(tokenizer.backend_tokenizer, self.languages, LANGUAGES))
                before = outputs.outputs_of(model, tokenizer, texts, self.report)

            tables = self._coded(model, tokenizer, weights, dims, frequencies, size)
            replace_tables(model, tables, tie_head=self.settings.head != "input")
            if cast:
                nn.Module.float(model)  # the packed tables, too
            loss = outputs.losses(model, before, outputs.outputs_of(model, tokenizer, texts, self.report))
            worst = max(loss.values(), default=0.0)
            nbytes = sum(weight.nbytes for weight in weights.values())
            if not self.settings.max_loss or worst <= parse_percent(self.settings.max_loss):
                nn.Module.to(model, dtype)
                after = sum(table.shape.nbytes for table in tables.values())
                return model, {"before": nbytes, "after": after}, loss
            if size * GROWTH > nbytes:
                raise InputError(f"a loss of {worst:.2f}% is left at {size:,} bytes; --max-loss must allow more")

    def _main_tables(self, model: Any) -> dict[str, int]:
        """Return the modules of input and output whose tables are coded, and the lengths of their rows."""
        tables = find_tables(model)
        dims = {tables.input: model.get_submodule(tables.input).embedding_dim}
        if self.settings.head == "both":
            if tables.head is None or tables.tied:
                raise InputError("--head both is for models with an output table of their own; this one has none")
            dims[tables.head] = model.get_submodule(tables.head).in_features
        return dims

    def _frequencies(self, tokenizer: Any, rows: int) -> Tensor:
        """Return the mean of the expected frequencies of rows over files of texts, which count the same."""
        files = [texts for texts in self.counted.values() if texts] or [[]]
        backend = tokenizer.backend_tokenizer
        return torch.stack([row_frequencies(backend, rows, f, self.languages, self.report) for f in files]).mean(0)

    def _coded(
        self,
        model: Any,
        tokenizer: Any,
        weights: Mapping[str, Tensor],
        dims: Mapping[str, int],
        frequencies: Tensor,
        size: int,
    ) -> dict[str, PackedTable]:
        """Code the tables in `size` bytes, and tune that of the input where there is text for it."""
        tables, body, seed = find_tables(model), body_of(model), self.settings.seed
        decoder = is_decoder(model)
        tied = tables.tied and self.settings.head != "input"

        readers = {}  # the modules that read each table
        for name in weights:
            shared = (other for other in modules_sharing(model, name) if other != tables.head or tied)
            readers[name] = [model.get_submodule(each) for each in (name, *shared)]
        importance = dict.fromkeys(weights, 1.0)
        if len(weights) > 1:
            importance = outputs.importance(model, readers, dims, self._example_ids(tokenizer, NOISE_TEXTS), seed)

        sources = []
        total = sum(map(Tensor.numel, weights.values()))
        for name, weight in weights.items():
            dim = dims[name]
            slices = weight.shape[1] // dim
            metric = None
            if decoder and (name == tables.head or (tied and name == tables.input)):
                metric = outputs.output_metric(body, self._example_ids(tokenizer, OUTPUT_TEXTS))
            elif not decoder:
                ids, layer = self._example_ids(tokenizer, INPUT_TEXTS), model.get_submodule(name)
                metric = outputs.input_metric(body, layer, ids, dim, seed, self.report)
            special = special_token_rows(tokenizer, weight, size * weight.numel() // total)
            exact = [row * slices + number for row in special for number in range(slices)]
            frequency = frequencies[: len(weight)].repeat_interleave(slices)
            sources.append(SourceTable(weight.cpu().reshape(-1, dim), frequency, exact, metric, importance[name]))
        settings = CoderSettings(size, seed, **(DECODER if decoder else ENCODER))
        packed = dict(zip(weights, encode_tables(sources, settings, self.report), strict=True))

        if self.tuning:
            files = [[ids[:MAX_TOKENS] for ids in token_ids(tokenizer, texts)] for texts in self.tuning]
            ids = balanced([[row for row in rows if len(row) > 1] for rows in files])
            layers = [layer for layer in readers[tables.input] if isinstance(layer, nn.Embedding)]
            original = weights[tables.input] if decoder and tied else None
            table, steps = packed[tables.input], self.settings.tune_steps
            packed[tables.input] = tune(body, layers, table, ids, original, steps, seed, self.report)
        return packed

    def _example_ids(self, tokenizer: Any, most: int) -> list[list[int]]:
        """Return the ids of texts like those to come: of the corpus, or of generated ones in many languages."""
        counted = [text for texts in self.counted.values() for text in texts]
        texts = evenly(counted or [text for texts in self.tuning for text in texts], most)
        if not texts:
            lists = best_known(tokenizer.backend_tokenizer, self.languages, 4 * LANGUAGES)
            generated = generated_texts(lists, seed=1)
            texts = [text for some in generated.values() for text in some[: -(-most // len(generated))]]
        return [row for row in token_ids(tokenizer, texts) if len(row) > 1]


def _texts_of(file: str | Path) -> list[str]:
    return list(islice((text for text in texts_of(file) if text.strip()), MAX_TEXTS))


def cast_to_float(model: Any, embeddings: Sequence[nn.Module]) -> None:
    """Cast a model to float32: half precision is several times as slow on a CPU, and gradients vanish in it.

    The tables of these embeddings stay as they are stored, and their rows are cast as they are read: a table of every
    layer's inputs may be larger than memory.
    """
    weights = [module._parameters.pop("weight") for module in embeddings]
    nn.Module.float(model)
    for module, weight in zip(embeddings, weights, strict=True):
        module._parameters["weight"] = weight
        module.register_forward_hook(lambda module, inputs, rows: rows.float())


def balanced(files: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the texts of all files, those of shorter files repeated until each has as many as the longest."""
    length = max((len(texts) for texts in files), default=0)
    return [text for texts in files if texts for text in islice(cycle(texts), length)]


def special_token_rows(tokenizer: Any, weight: Tensor, size: int) -> list[int]:
    """Return the rows of special tokens: those with a role, then others while a small share of `size` bytes is left."""
    added = [number for number, token in sorted(tokenizer.added_tokens_decoder.items()) if token.special]
    rows = [number for number in dict.fromkeys([*tokenizer.all_special_ids, *added]) if number < len(weight)]
    fitting = int(EXACT_SHARE * size / (weight.shape[1] * weight.element_size()))
    return rows[: max(fitting, len(tokenizer.all_special_ids))]
