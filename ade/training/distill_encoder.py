"""`ade.distill_encoder`: a sentence encoder and texts in, an encoder of a few megabytes out.

A codebook of the teacher's embedding table, one attention layer and a linear map, trained so that the vector of a text
is where the teacher's is. The function behind the command `ade distill-encoder`.
"""

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from ade.codebook import Codebook
from ade.compression import encoder_table
from ade.compression.coded_table import CodedTable
from ade.data.batches import Encoded, encode
from ade.data.loading import EMBEDDED, load_dataset
from ade.data.reading import read_texts
from ade.data.spilling import SpilledArray
from ade.data.texts import Texts
from ade.errors import InputError
from ade.packing.whole_folder import Division
from ade.progress import Report
from ade.sentence_encoder import SentenceEncoder
from ade.settings import Architecture, EncoderSettings, TrainingSettings, parse_size
from ade.teachers import Teacher, load_teacher
from ade.training.checkpoints import Existing, RunFolder, claimed
from ade.training.codebooks import codebook_for_encoder, coded_for_encoder
from ade.training.encoder_task import EncoderTask
from ade.training.loop import chosen_values, fit_task
from ade.training.sentence_teacher import SentenceTeacher
from ade.training.target_space import target_vectors
from ade.training.train import shown
from ade.training.translations import Lines, read_translations
from ade.training.whole_rows import settings_for_books, train_rows

MIN_TEXTS = 20


def distill_encoder(
    teacher: str | Path | SentenceTeacher,
    corpus: Sequence[str | Path] | str | Path = (),
    settings: EncoderSettings | None = None,
    *,
    table: str | Path | None = None,
    texts: Iterable[str] = (),
    translations: Sequence[str | Path] | str | Path = (),
    prefix: str = "",
    text_column: str | None = None,
    out: str | Path | None = None,
    existing: Existing = "refuse",
    progress: bool | Report | None = None,
    **more: Any,
) -> SentenceEncoder:
    """Distil a sentence encoder into one of a few megabytes.

    Args:
        teacher: a sentence-transformers folder or hub name, or one that is loaded.
        corpus: files of texts (lines, CSV, JSON, Parquet): what the encoder will be used for, or text in general;
            'wordnet' is the embedded data set.
        settings: size, layers, width of the vectors, steps; its fields may also be given by name, as `size="4MB"`.
        table: whose embedding table and tokenizer to use, as `load_teacher` takes them; by default the teacher's.
        texts: texts in memory, beside those of the files.
        translations: files whose lines have two or more texts with the same meaning, separated by tabs: they are
            learned from too, all texts of a line get the mean of the teacher's vectors, and directions in which
            the teacher's vectors of translations differ count less.
        prefix: what the teacher wants before every text, as "query: " for e5; the encoder itself needs none.
        text_column: name of the text column; found where it is None.
        out: output folder, with checkpoints while the encoder is trained; without it, call `save` on the encoder.
        existing: what to do with an earlier run in `out`: 'refuse', 'resume' or 'overwrite'.
        progress: as for `train`.
        more: fields of `EncoderSettings`.
    """
    _check_processes()
    settings = _resolved(settings or EncoderSettings(), more)
    if table is None:
        if isinstance(teacher, SentenceTeacher):
            raise InputError("a teacher that is loaded has no embedding table to read: give table")
        table = teacher
    if out is not None:
        with claimed(Path(out), existing):  # refuses a folder that cannot be used, before anything takes time
            pass
    files, parallel = _files(corpus), _files(translations)
    data, lines = gather_texts(files, texts, parallel, text_column)
    if not isinstance(teacher, SentenceTeacher):
        teacher = SentenceTeacher.load(teacher, settings.device, prefix)
    if settings.dim > teacher.dim:
        raise InputError(
            f"the teacher's vectors have {teacher.dim} dimensions; {settings.dim} cannot be learned from them"
        )

    with shown(progress) as report:
        inputs = _Inputs(load_teacher(table), teacher, data, lines, settings, report)
        coded = len(inputs.source.table) >= encoder_table.CODED_FROM
        prepared = _prepared_coded(inputs, out, existing) if coded else _prepared(inputs)
        licence, names = prepared.codebook.about.get("license"), [Path(file).name for file in (*files, *parallel)]
        about = {"teacher": teacher.name, "license": licence, "data": ", ".join(names), "rows": len(data)}

        def task() -> EncoderTask:
            return EncoderTask(
                prepared.codebook, prepared.encoded, prepared.vectors, prepared.architecture, about, settings.seed
            )

        return fit_task(
            task, prepared.codebook, prepared.training, prepared.architecture, out, existing, report, prepared.start
        )


class _Inputs(NamedTuple):
    """What an encoder is made of."""

    source: Teacher  # of the table and the tokenizer
    teacher: SentenceTeacher
    data: Texts
    lines: Lines  # which texts mean the same
    settings: EncoderSettings
    report: Report

    @property
    def dim(self) -> int:
        return self.settings.dim or self.teacher.dim

    def vectors(self) -> np.ndarray:
        return target_vectors(self.teacher.vectors(self.data, self.report), self.lines, self.dim)

    def encoded(self, tokenizer: Tokenizer) -> Encoded:
        return encode(tokenizer, self.data, self.settings.max_tokens, self.report)

    def architecture(self, division: Division) -> Architecture:
        layers, longest = self.settings.layers, self.settings.max_tokens
        return Architecture(attend="tokens", layers=layers, max_tokens=longest, layer_bits=division.layer_bits)


class _Prepared(NamedTuple):
    """What the training of an encoder begins with."""

    codebook: Codebook | CodedTable
    encoded: Encoded  # the texts, tokenized
    vectors: np.ndarray  # of the texts, by the teacher
    training: TrainingSettings
    architecture: Architecture
    start: Mapping[str, Tensor]  # weights, by name; others are new


def _prepared(inputs: _Inputs) -> _Prepared:
    """A codebook in as many bytes as the size of the folder leaves; then the teacher's answers, which take longer."""
    size, layers = parse_size(inputs.settings.size), inputs.settings.layers
    book, division = codebook_for_encoder(inputs.data, size, inputs.source, inputs.dim, layers, inputs.report)
    encoded, training = inputs.encoded(book.tokenizer), training_of(inputs.settings)
    return _Prepared(book, encoded, inputs.vectors(), training, inputs.architecture(division), {})


def _prepared_coded(inputs: _Inputs, out: str | Path | None, existing: Existing) -> _Prepared:
    """The same for a table that is coded; its rows are trained whole before."""
    settings, size = inputs.settings, parse_size(inputs.settings.size)
    table = encoder_table.table_for_encoder(inputs.source, inputs.data, size, inputs.dim, settings.layers)
    training, architecture = training_of(settings_for_books(settings)), inputs.architecture(table.division)
    if out is not None and existing == "resume":  # not only after the rows are trained, which takes long
        try:
            RunFolder(Path(out), chosen_values(training, architecture)).check()
        except InputError as error:
            raise InputError(f"{error} (steps, epochs and rate of a coded table are a third of those given)") from None
    encoded, vectors = inputs.encoded(table.teacher.tokenizer), inputs.vectors()
    trained = train_rows(table, inputs.data, encoded, vectors, training_of(settings), architecture, inputs.report)
    coded = coded_for_encoder(table, trained.rows, inputs.report)
    return _Prepared(coded, encoded, vectors, training, architecture, trained.weights)


def _check_processes() -> None:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:  # they would write to one folder, and to one cache of the teacher's answers
        raise InputError(f"an encoder is distilled in one process, not in {processes}; run it without a launcher")


def _resolved(settings: EncoderSettings, more: Mapping[str, Any]) -> EncoderSettings:
    """The settings with those that are given by name."""
    known = {entry.name for entry in fields(EncoderSettings)}
    if unknown := sorted(set(more) - known):
        raise InputError(f"no setting '{unknown[0]}'; there are {', '.join(sorted(known))}")
    return replace(settings, **more)


def training_of(settings: EncoderSettings) -> TrainingSettings:
    """The settings of the training loop."""
    rate = settings.learning_rate if settings.layers == 1 else settings.learning_rate / 3
    return TrainingSettings(
        epochs=settings.epochs, steps=settings.steps, batch_size=settings.batch_size, seed=settings.seed,
        learning_rate=rate, warmup_steps=200, weight_decay=0.0, dropout=0.0, token_dropout=0.0,
        position_scale=0.3, lexicon=False, fit_to_data=False, device=settings.device,
    )  # fmt: skip


def _files(given: Sequence[str | Path] | str | Path) -> list[str | Path]:
    return [given] if isinstance(given, (str, Path)) else list(given)


def gather_texts(
    files: Sequence[str | Path],
    more: Iterable[str] = (),
    translations: Sequence[str | Path] = (),
    text_column: str | None = None,
) -> tuple[Texts, Lines]:
    """The different texts of files or of `wordnet`, and further ones, without empty ones; and which mean the same.

    They are in one array, which is memory-mapped if it is large.
    """
    data, offsets, known = SpilledArray(np.uint8), array("q", [0]), dict[int, int]()

    def add(text: str) -> int | None:
        encoded = text.strip().encode("utf8")
        if not encoded:
            return None
        number = known.setdefault(hash(encoded), len(known))
        if number == len(offsets) - 1:
            data.add(np.frombuffer(encoded, np.uint8))
            offsets.append(offsets[-1] + len(encoded))
        return number

    for file in files:
        if str(file) == EMBEDDED and not Path(file).exists():
            for text in (text for split in ("train", "test") for text in load_dataset(EMBEDDED, split).texts):
                add(text)
            continue
        with read_texts(file, text_column=text_column) as rows:
            for row in rows:
                add(str(row[rows.text]))
    for text in more:
        add(text)
    lines = read_translations([Path(file) for file in translations], add)
    if len(offsets) <= MIN_TEXTS:
        raise InputError(f"an encoder needs at least {MIN_TEXTS} different texts, found {len(offsets) - 1}")
    return Texts(data.array(), np.frombuffer(offsets, np.int64)), lines
