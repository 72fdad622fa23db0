"""`compress`: a Hugging Face model -> the same model with its embedding table packed, in a folder of its own.

Load, count how often rows are used, code the table, tune it where there is text for it, put it into the model, measure
on text that was held back, and write the folder.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from ade.compression.alone import compress_table, is_table
from ade.compression.coder import CoderSettings, encode_table
from ade.compression.folder import save_compressed
from ade.compression.lengthening import lengthen
from ade.compression.metric import input_metric, output_states
from ade.compression.own_text import NAME, own_texts
from ade.compression.quantizer import replace_tables
from ade.compression.replacement import find_tables
from ade.compression.report import (
    HELD_BACK,
    MADE_UP,
    SAMPLED,
    TEXTS,
    CompressionReport,
    losses,
    measure_of,
    outputs_of,
    sampled_texts,
    token_ids,
)
from ade.compression.source import body_of, is_decoder, load_model, source_folder
from ade.compression.table import PackedTable, type_name
from ade.compression.tuning import TuningSettings, tune
from ade.compression.use import best_known, use_of_files, word_lists
from ade.data.reading import read_texts
from ade.devices import resolve_device
from ade.errors import InputError
from ade.files import new_folder
from ade.packing.whole_folder import evenly
from ade.progress import Report, silent
from ade.settings import CompressionSettings, parse_percent

EVERY = 20  # so many texts of a corpus one is held back, up to TEXTS
MOST = 200_000  # texts of a file that are read
GROWTH = 1.25  # bytes are multiplied by this until the loss is small enough
MARKERS = ("config.json", "compression.json")
OUTPUT_TEXTS, INPUT_TEXTS = 100, 800  # for the metrics of a decoder's output and of an encoder's input
WHOLE = 0.05  # most of the bytes that go to special tokens, whose rows stay whole
ENCODER = {"exponent": 0.5, "plain": 0.2}  # of the coder: rare words decide what a text is about
DECODER = {"exponent": 0.6, "plain": 0.03}  # scores of all rows are compared, and few directions decide them
Item = TypeVar("Item")


@dataclass(frozen=True)
class Corpus:
    """Text to count rows in, and text to measure on, by file or language."""

    counted: dict[str, list[str]]
    held_back: dict[str, list[str]]

    def add(self, name: str, texts: Sequence[str]) -> None:
        """Add the texts of a file; some are held back."""
        counted, kept = (part.setdefault(name, []) for part in (self.counted, self.held_back))
        for number, text in enumerate(texts):
            (kept if number % EVERY == 0 and len(kept) < TEXTS else counted).append(text)

    @property
    def texts(self) -> list[str]:
        """The texts to count rows in, of all files."""
        return [text for texts in self.counted.values() for text in texts]


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
    """Write a model, or a table alone, with its embedding table packed to the folder `out`; returns bytes and losses.

    `corpus` are text files like those the model will read, one text a line (or CSV, JSON lines, Parquet): they say
    which rows are used, and some of their texts are held back to measure the loss. Without one, word frequencies of
    many languages do. `tune_on` are text files to tune the packed table with, no labels needed. With
    `settings.own_texts` a decoder writes text for both itself, some of it beginning with words of `languages`.
    """
    settings, out = settings or CompressionSettings(), Path(out)
    if is_table(source):
        if tune_on or settings.max_loss or settings.own_texts:
            raise InputError(f"{source}: a table without a model; --tune, --own-texts and --max-loss need one")
        files = list(_read_corpus(corpus).counted.values())
        return compress_table(source, out, settings, files, languages, overwrite, report)
    with new_folder(out, MARKERS, overwrite) as draft, source_folder(source) as folder:
        texts = _read_corpus(corpus)
        held_back = {text for some in texts.held_back.values() for text in some}
        tuning = [[text for text in _some(file) if text not in held_back] for file in tune_on]
        if tune_on and not any(tuning):
            raise InputError("--tune: no text is left beside what is held back to measure the loss; give more")
        job = _Job(folder, settings, texts, tuning, languages, report)
        model, table, found = job.run()
        save_compressed(model, folder, draft)
        sizes = [{"before": _bytes(folder, kind), "after": _bytes(draft, kind)} for kind in ("*.safetensors", "*")]
        measured_on, about = HELD_BACK if texts.held_back else MADE_UP, {"settings": asdict(settings)}
        result = CompressionReport(str(source), table, sizes[0], sizes[1], measure_of(model), found, measured_on, about)
        (draft / "compression.json").write_text(json.dumps(result.to_dict(), indent=2) + "\n", "utf8")
        card = draft / "README.md"
        card.write_text((card.read_text("utf8") if card.exists() else "") + result.card(), "utf8")
    return result


@dataclass
class _Job:
    """A model on its way to being compressed."""

    folder: Path
    settings: CompressionSettings
    corpus: Corpus
    tuning: list[list[str]]  # texts of each file
    languages: Sequence[str]
    report: Report

    def run(self) -> tuple[Any, dict[str, int], dict[str, float]]:
        """Code, tune and measure; with `max_loss`, again with more bytes until the loss is small enough.

        Returns the model, the bytes of its tables before and after, and the losses.
        """
        use, before, size = None, None, 0
        while True:
            model, tokenizer = load_model(self.folder)
            model.to(resolve_device(self.settings.device))
            weights, dtype = self._weights(model), model.dtype
            if model.device.type == "cpu" or self.tuning or self.settings.own_texts:
                nn.Module.float(model)  # half precision is several times as slow on a CPU, and gradients vanish in it
            rows, dim = next(iter(weights.values())).shape
            size = int(size * GROWTH) if size else self.settings.nbytes(rows, dim)
            if use is None or before is None:
                self._write_own(model, tokenizer)
                backend = tokenizer.backend_tokenizer
                use = use_of_files(backend, rows, self.corpus.counted.values(), self.languages, self.report)
                held_back = self.corpus.held_back or sampled_texts(best_known(backend, self.languages, SAMPLED))
                before = outputs_of(model, tokenizer, held_back, self.report)

            sizes = {"before": sum(weight.numel() * weight.element_size() for weight in weights.values())}
            packed = {name: self._pack(model, tokenizer, name, weight, use, size) for name, weight in weights.items()}
            replace_tables(model, packed, tie_head=self.settings.head != "input")
            sizes["after"] = sum(table.shape.nbytes(type_name(table.exact.dtype)) for table in packed.values())
            found = losses(model, before, outputs_of(model, tokenizer, held_back, self.report))
            worst = max(found.values(), default=0.0)
            if not self.settings.max_loss or worst <= parse_percent(self.settings.max_loss):
                nn.Module.to(model, dtype)
                return model, sizes, found
            if size * GROWTH > sizes["before"]:
                raise InputError(f"a loss of {worst:.2f}% is left at {size:,} bytes; --max-loss must allow more")

    def _write_own(self, model: Any, tokenizer: Any) -> None:
        """Let a decoder write text, where that is asked for: to count rows in, to tune with, and to measure on."""
        if not self.settings.own_texts:
            return
        words, chosen = word_lists(self.languages) if self.languages else {}, self.settings
        written = own_texts(model, tokenizer, chosen.own_texts, words, chosen.seed, self.report)
        self.corpus.add(NAME, list(dict.fromkeys(written)))
        held_back = {text for some in self.corpus.held_back.values() for text in some}
        self.tuning.append([text for text in self.corpus.counted[NAME] if text not in held_back])

    def _weights(self, model: Any) -> dict[str, Tensor]:
        """Return the tables to pack, by the names of their modules."""
        tables = find_tables(model)
        names = [tables.input]
        if self.settings.head == "both":
            if tables.head is None or tables.tied:
                raise InputError("--head both is for models with an output table of their own; this one has none")
            names.append(tables.head)
        return {name: model.get_submodule(name).weight.detach() for name in names}

    def _pack(self, model: Any, tokenizer: Any, name: str, weight: Tensor, use: Tensor, size: int) -> PackedTable:
        """Code a table, and tune it where there is text for it."""
        tables = find_tables(model)
        scored = is_decoder(model) and (name == tables.head or (tables.tied and self.settings.head != "input"))
        states = output_states(body_of(model), self._some_ids(tokenizer, OUTPUT_TEXTS)) if scored else None
        metric = states.T @ states if states is not None else self._input_metric(model, tokenizer, name)
        special = special_token_rows(tokenizer, weight, size)
        settings = CoderSettings(size, self.settings.seed, **(DECODER if is_decoder(model) else ENCODER))
        packed = encode_table(weight.cpu(), use, special, settings, metric, self.report)
        if states is not None:
            lengthen(packed, states, weight.cpu())
        if not self.tuning or name != tables.input:
            return packed
        chosen = self.settings
        steps = TuningSettings(steps=chosen.tune_steps, learning_rate=chosen.tune_rate, seed=chosen.seed)
        files = [token_ids(tokenizer, texts) for texts in self.tuning]
        ids = alike([[row[: steps.max_tokens] for row in rows if len(row) > 1] for rows in files])
        layers = [model.get_submodule(layer) for layer in (tables.input, *tables.shared) if layer != tables.head]
        return tune(body_of(model), layers, packed, ids, weight if scored else None, steps, self.report)

    def _input_metric(self, model: Any, tokenizer: Any, layer: str) -> Tensor | None:
        """Return which directions of an input row's error count (d, d), by an encoder's hidden states."""
        if is_decoder(model):
            return None
        ids = self._some_ids(tokenizer, INPUT_TEXTS)
        return input_metric(body_of(model), model.get_submodule(layer), ids, self.settings.seed, self.report)

    def _some_ids(self, tokenizer: Any, most: int) -> list[list[int]]:
        """Return the ids of texts like those to come: of the corpus, or made of the words of many languages."""
        texts = evenly(self.corpus.texts or [text for some in self.tuning for text in some], most)
        if not texts:
            made = sampled_texts(best_known(tokenizer.backend_tokenizer, self.languages, 4 * SAMPLED), seed=1)
            texts = [text for some in made.values() for text in some[: -(-most // len(made))]]
        return [row for row in token_ids(tokenizer, texts) if len(row) > 1]


def alike(files: Sequence[Sequence[Item]]) -> list[Item]:
    """Return what files have, each as often as the longest: those with less, again and again."""
    longest = max((len(some) for some in files), default=0)
    return [item for some in files if some for item in islice(cycle(some), longest)]


def special_token_rows(tokenizer: Any, weight: Tensor, size: int) -> list[int]:
    """Return the rows of special tokens: those with a role, then others while a small share of `size` bytes is left."""
    added = [number for number, token in sorted(tokenizer.added_tokens_decoder.items()) if token.special]
    rows = [number for number in dict.fromkeys([*tokenizer.all_special_ids, *added]) if number < len(weight)]
    fitting = int(WHOLE * size / (weight.shape[1] * weight.element_size()))
    return rows[: max(fitting, len(tokenizer.all_special_ids))]


def _bytes(folder: Path, kind: str) -> int:
    return sum(file.stat().st_size for file in folder.rglob(kind) if file.is_file())


def _read_corpus(files: Sequence[str | Path]) -> Corpus:
    found = Corpus({}, {})
    for file in files:
        found.add(Path(file).name, _some(file))
    return found


def _some(file: str | Path) -> list[str]:
    """Return the first texts of a file, up to MOST, that are not empty."""
    with read_texts(file) as rows:
        texts = (str(row[rows.text]) for row in rows)
        return list(islice((text for text in texts if text.strip()), MOST))
