"""`ade.compress`: a Hugging Face model -> the same model with its embedding table in codes, in a folder of its own.

Load, count how often rows are used, code the table (and those that a model has beside it, as a row of every layer for
each token), tune it where there is text for it, put it into the model, measure on held-out text, and write the folder.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ade.coded_layer import PackedTable
from ade.compression import outputs
from ade.compression.checkpoint import load_model, read_json, source_folder, transformer_folder, write_folder
from ade.compression.coder import SourceTable, encode_tables
from ade.compression.frequencies import generated_texts, row_frequencies
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
GROWTH = 1.25  # bytes are multiplied by this until the loss is small enough
REPORT = "compression.json"
OUTPUT_TEXTS, INPUT_TEXTS = 100, 800  # for the metrics of a decoder's output and of an encoder's input
NOISE_TEXTS = 32  # that show which of several tables counts more
EXACT_SHARE = 0.05  # maximum share of the bytes for special tokens, whose rows stay exact
ENCODER = {"exponent": 0.5, "plain_share": 0.2}  # of the coder: rare words decide what a text is about
DECODER = {"exponent": 0.6, "plain_share": 0.03}  # scores of all rows are compared, and few directions decide them


@dataclass(frozen=True)
class CompressionReport:
    """Bytes before and after, and losses."""

    source: str
    table: Mapping[str, int]  # bytes: before, after
    weights: Mapping[str, int]
    folder: Mapping[str, int]
    measure: str  # what `loss` is
    loss: Mapping[str, float]  # percent on held-out text, by file; nothing where no text was given
    settings: Mapping[str, Any]

    def card(self) -> str:
        """Return the section of the model card."""
        before, after = (self.table[name] / 1e6 for name in ("before", "after"))
        lines = [
            "\n## Compressed table\n",
            f"`ade compress` has packed the embedding table of {self.source} from {before:.1f} MB to {after:.1f} MB;",
            "everything else is unchanged. `import ade` before loading it.",
        ]
        if self.loss:
            losses = ", ".join(f"{name} {loss:.2f}" for name, loss in self.loss.items())
            lines.append(f"\nLoss on held-out text ({self.measure}, in percent): {losses}.")
        return "\n".join([*lines, ""])


def compress(
    source: str | Path,
    out: str | Path,
    settings: CompressionSettings | None = None,
    corpus: Sequence[str | Path] = (),
    tune_on: Sequence[str | Path] = (),
    overwrite: bool = False,
    report: Report = silent,
) -> CompressionReport:
    """Write a model with its embedding table in codes to the folder `out`; returns bytes and losses.

    `corpus` are text files like those the model will read, one text a line (or CSV, JSON lines, Parquet): they say
    which rows are used, and some of their texts are held out to measure the loss. Without one, word frequencies of
    many languages say it. `tune_on` are text files to tune the coded table with, no labels needed.
    """
    settings, out = settings or CompressionSettings(), Path(out)
    if settings.max_loss and not corpus:
        raise InputError("--max-loss is measured on text: give --corpus FILE, too")
    limit = parse_percent(settings.max_loss) if settings.max_loss else math.inf

    with new_folder(out, (MARKER, REPORT), overwrite) as draft:
        folder = source_folder(source)
        if "quantization_config" in read_json(folder / transformer_folder(folder) / MARKER):
            raise InputError(f"{folder}: is already quantized; take the folder of the original model")
        texts, size = Texts.read(corpus, tune_on), 0
        while True:
            job = _Job(folder, texts, settings, report)
            before = sum(weight.nbytes for weight in job.weights.values())
            size = int(size * GROWTH) or settings.nbytes(sum(map(Tensor.numel, job.weights.values())))
            after, loss = job.pack(size)
            worst = max(loss.values(), default=0.0)
            if worst <= limit:
                break
            if size * GROWTH > before:
                raise InputError(f"a loss of {worst:.2f}% is left at {size:,} bytes; --max-loss must allow more")
        write_folder(job.model, folder, draft)

        result = CompressionReport(
            str(source),
            {"before": before, "after": after},
            {"before": _nbytes(folder, "*.safetensors"), "after": _nbytes(draft, "*.safetensors")},
            {"before": _nbytes(folder, "*"), "after": _nbytes(draft, "*")},
            outputs.measure_of(job.model),
            loss,
            asdict(settings),
        )
        (draft / REPORT).write_text(json.dumps(asdict(result), indent=2) + "\n", "utf8")
        with open(draft / "README.md", "a", encoding="utf8") as card:
            card.write(result.card())
    return result


def _nbytes(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.rglob(pattern) if file.is_file())


@dataclass(frozen=True)
class Texts:
    """The texts of files: where rows are counted, where the loss is measured, and what the table is tuned with."""

    counted: dict[str, list[str]]
    held_out: dict[str, list[str]]
    tuning: list[list[str]]

    @classmethod
    def read(cls, corpus: Sequence[str | Path], tune_on: Sequence[str | Path]) -> "Texts":
        """Read files; what the loss is measured on is not tuned on."""
        counted: dict[str, list[str]] = {}
        held_out: dict[str, list[str]] = {}
        for file in corpus:
            some, measured = (part.setdefault(Path(file).name, []) for part in (counted, held_out))
            for number, text in enumerate(_texts_of(file)):
                chosen = number % HELD_OUT_EVERY == 0 and len(measured) < MAX_HELD_OUT
                (measured if chosen else some).append(text)
            if not measured:
                raise InputError(f"{file}: holds no text to count rows in")
        known = {text for texts in held_out.values() for text in texts}
        tuning = [[text for text in _texts_of(file) if text not in known] for file in tune_on]
        if tune_on and not any(tuning):
            raise InputError("--tune: no text is left beside what is held out to measure the loss; give more")
        return cls(counted, held_out, tuning)


def _texts_of(file: str | Path) -> list[str]:
    return list(islice((text for text in texts_of(file) if text.strip()), MAX_TEXTS))


class _Job:
    """A model whose tables are packed; it is loaded again for every size that is tried."""

    def __init__(self, folder: Path, texts: Texts, settings: CompressionSettings, report: Report) -> None:
        self.texts = texts
        self.settings = settings
        self.report = report
        self.model, self.tokenizer = load_model(folder)
        self.tables = find_tables(self.model)
        self.dtype = self.model.dtype
        beside = tables_beside(self.model)
        self.lengths = {self.tables.input: self._module(self.tables.input).embedding_dim}  # of the rows that are coded
        if settings.head:
            if self.tables.head is None or self.tables.tied or not is_decoder(self.model):
                raise InputError("--head is for decoders with an output table of their own; this model has none")
            self.lengths[self.tables.head] = self._module(self.tables.head).in_features
        self.lengths |= beside
        self.weights = {name: self._module(name).weight.detach() for name in self.lengths}  # memory-mapped, as loaded

        self.model.to(resolve_device(settings.device))
        self.cast = self.model.device.type == "cpu" or bool(texts.tuning)
        if self.cast:
            cast_to_float(self.model, [self._module(name) for name in beside])

    def _module(self, name: str) -> Any:
        return self.model.get_submodule(name)

    def pack(self, size: int) -> tuple[int, dict[str, float]]:
        """Code the tables in `size` bytes, and tune that of the input; returns the bytes and the loss of each file."""
        before = outputs.outputs_of(self.model, self.tokenizer, self.texts.held_out, self.report)
        coded = encode_tables(self._sources(size), size, self.report)
        tables = dict(zip(self.weights, coded, strict=True))
        if self.texts.tuning:
            tables[self.tables.input] = self._tuned(tables[self.tables.input])

        replace_tables(self.model, tables)
        if self.cast:
            nn.Module.float(self.model)  # the packed tables, too
        after = outputs.outputs_of(self.model, self.tokenizer, self.texts.held_out, self.report)
        nn.Module.to(self.model, self.dtype)
        return sum(table.shape.nbytes for table in coded), outputs.losses(self.model, before, after)

    def _sources(self, size: int) -> list[SourceTable]:
        """Return the tables to code in `size` bytes together, and what their errors cost."""
        frequencies = self._frequencies()
        importance = dict.fromkeys(self.weights, 1.0)
        if len(self.weights) > 1:
            ids = self._example_ids(NOISE_TEXTS)
            readers = {name: self._readers(name) for name in self.weights}
            importance = outputs.importance(self.model, readers, self.lengths, ids)

        sources = []
        total = sum(map(Tensor.numel, self.weights.values()))
        for name, weight in self.weights.items():
            length = self.lengths[name]
            slices = weight.shape[1] // length
            special = special_token_rows(self.tokenizer, weight, size * weight.numel() // total)
            exact = [row * slices + number for row in special for number in range(slices)]
            frequency = frequencies[: len(weight)].repeat_interleave(slices)
            rows = weight.cpu().reshape(-1, length)
            metric = self._metric(name)
            kind = DECODER if is_decoder(self.model) else ENCODER
            sources.append(SourceTable(rows, frequency, exact, metric, importance[name], **kind))
        return sources

    def _readers(self, name: str) -> list[nn.Module]:
        """Return the modules that read a table."""
        return [self._module(each) for each in (name, *modules_sharing(self.model, name))]

    def _metric(self, name: str) -> Tensor | None:
        """Return which errors of a table's rows count."""
        body = body_of(self.model)
        if not is_decoder(self.model):
            ids = self._example_ids(INPUT_TEXTS)
            return outputs.input_metric(body, self._module(name), ids, self.lengths[name], self.report)
        if name == self.tables.output:
            return outputs.output_metric(body, self._example_ids(OUTPUT_TEXTS))
        return None

    def _frequencies(self) -> Tensor:
        """Return the mean of the expected frequencies of rows over files of texts, which count the same."""
        files = [texts for texts in self.texts.counted.values() if texts] or [[]]
        tokenizer = self.tokenizer.backend_tokenizer
        rows = max(map(len, self.weights.values()))
        return torch.stack([row_frequencies(tokenizer, rows, texts, self.report) for texts in files]).mean(0)

    def _example_ids(self, most: int) -> list[list[int]]:
        """Return the ids of texts like those to come: of the files, or else generated ones in many languages."""
        files = [*self.texts.counted.values()] if any(self.texts.counted.values()) else self.texts.tuning
        texts = evenly([text for texts in files for text in texts], most)
        texts = texts or generated_texts(self.tokenizer.backend_tokenizer, most)
        return [row for row in token_ids(self.tokenizer, texts) if len(row) > 1]

    def _tuned(self, packed: PackedTable) -> PackedTable:
        """Return the table of the input, tuned."""
        files = [[ids[:MAX_TOKENS] for ids in token_ids(self.tokenizer, texts)] for texts in self.texts.tuning]
        ids = balanced([[row for row in rows if len(row) > 1] for rows in files])
        name = self.tables.input
        layers = [layer for layer in self._readers(name) if isinstance(layer, nn.Embedding)]
        scored = is_decoder(self.model) and self.tables.output == name
        original = self.weights[name] if scored else None
        return tune(body_of(self.model), layers, packed, ids, original, self.settings.tune_steps, self.report)


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
