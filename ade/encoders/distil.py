"""`ade.distill_encoder`: a sentence encoder and texts in, an encoder of a few megabytes out.

A codebook of the teacher's embedding table, one attention layer and a linear map, trained so that the vector of a text
is where the teacher's is. The function behind the command `ade distill-encoder`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ade.backends import backend_for
from ade.configuration import ENCODER, Config
from ade.data.records import texts_of
from ade.data.sources import EMBEDDED, load_dataset
from ade.data.texts import GrowingTexts, Texts
from ade.data.tokens import Ragged, tokenize
from ade.encoders.rows import RowTable, row_table
from ade.encoders.targets import Lines, read_translations, target_vectors
from ade.encoders.teacher import SentenceTeacher
from ade.errors import InputError
from ade.folder import Saved
from ade.folder_budget import ModelParts, shares_of
from ade.model import TorchModel
from ade.progress import Report, shown
from ade.settings import Architecture, EncoderSettings, TrainingSettings, parse_size
from ade.teachers import Teacher, load_teacher
from ade.torch_backends import TorchBackend
from ade.trained_model import Encoder, unit
from ade.training.checkpoints import Existing, claimed
from ade.training.loop import fit_task
from ade.training.start import fitted_to_size, shape_of, untrained

MIN_TEXTS = 20
CODED_FROM = 100_000  # tokens of a teacher: finding pairs for so many would take very long
VALIDATION, MAX_VALIDATION = 0.05, 2000  # fraction and maximum number of texts in the validation split


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
) -> Encoder:
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
        prefix: what the teacher expects before each text, as "query: " for e5; the encoder itself needs none.
        text_column: name of the text column; found where it is None.
        out: output folder, with checkpoints while the encoder is trained; without it, call `save` on the encoder.
        existing: what to do with an earlier run in `out`: 'refuse', 'resume' or 'overwrite'.
        progress: as for `train`.
        more: fields of `EncoderSettings`.
    """
    known = {entry.name for entry in fields(EncoderSettings)}
    if unknown := sorted(more.keys() - known):
        raise InputError(f"no setting '{unknown[0]}'; there are {', '.join(sorted(known))}")
    settings = replace(settings or EncoderSettings(), **more)
    if table is None:
        if isinstance(teacher, SentenceTeacher):
            raise InputError("a teacher that is loaded has no embedding table to read: give table")
        table = teacher
    files, parallel = ([f] if isinstance(f, str | Path) else list(f) for f in (corpus, translations))
    with claimed(out, existing):
        data, lines = gather_texts(files, texts, parallel, text_column)
        if not isinstance(teacher, SentenceTeacher):
            teacher = SentenceTeacher.load(teacher, settings.device, prefix)
        if settings.dim > teacher.dim:
            raise InputError(f"vectors of the teacher have {teacher.dim} dimensions; {settings.dim} cannot be learned")
        with shown(progress) as report:
            source, training = load_teacher(table), training_of(settings)
            dim = settings.dim or teacher.dim
            start, tokens, bits, second = _start(source, data, settings, training, dim, report)
            vectors = target_vectors(teacher.vectors(data, report), lines, dim)
            names = ", ".join(Path(file).name for file in (*files, *parallel))
            metadata = {"teacher": teacher.name, "license": source.license, "data": names, "rows": len(data)}
            architecture = Architecture(layers=settings.layers, max_tokens=settings.max_tokens, layer_bits=bits)
            shape = shape_of(start, architecture, training.position_scale)
            config = Config(kind=ENCODER, output_size=dim, metadata=metadata, **shape)
            model = untrained(start, config, settings.seed)
            task = EncoderTask(tokens, vectors, settings.seed)
            saved = fit_task(task, model, training, out, existing, report, second)
            return Encoder(saved, backend_for(saved, settings.device))


def _start(
    source: Teacher, data: Texts, settings: EncoderSettings, training: TrainingSettings, dim: int, report: Report
) -> tuple[Saved, Ragged, int, RowTable | None]:
    """Return the table that training starts with, tokens of the texts, bits of the layers, and a second phase or none.

    The rows of a large table are trained with layers in 16 bits, before both are stored in fewer.
    """
    size = parse_size(settings.size)
    if len(source.table) < CODED_FROM:
        start = fitted_to_size(source, data, size, ModelParts(dim, settings.layers), report)
        tokens = tokenize(start.tokenizer, data, settings.max_tokens, report)
        return start, tokens, shares_of(start).layer_bits, None
    table = row_table(source, data, size, dim, settings.layers, training)
    tokens = tokenize(table.teacher.tokenizer, data, settings.max_tokens, report)
    return table.exact(np.unique(tokens.ids)), tokens, 16, table


class EncoderTask:
    """Texts and the unit vectors of a teacher; some of them are a validation split."""

    metric = "cosine"

    def __init__(self, tokens: Ragged, vectors: np.ndarray, seed: int) -> None:
        """`vectors` (n, D) float16, which may be memory-mapped, are those of the texts whose tokens are given."""
        order = np.random.default_rng(seed).permutation(len(tokens))
        count = min(max(1, int(VALIDATION * len(order))), MAX_VALIDATION)
        dev, training = np.sort(order[:count]), np.sort(order[count:])
        self.texts, self.dev_texts = tokens.take(training), tokens.take(dev)
        self.labels: Tensor | Ragged = torch.from_numpy(vectors)[torch.from_numpy(training)]
        self.dev_vectors = unit(vectors[dev].astype(np.float32))

    def validate(self, model: TorchModel) -> dict[str, Any]:
        """Return the mean cosine of the validation texts' vectors with those of the teacher."""
        return {"cosine": float((unit(TorchBackend(model).scores(self.dev_texts)) * self.dev_vectors).sum(1).mean())}

    def finish(self, trained: Saved, settings: TrainingSettings, report: Report) -> Saved:
        """Return the model as it is stored, with its cosine on the validation texts."""
        saved = trained.rounded()
        vectors = unit(backend_for(saved, settings.device).scores(self.dev_texts))
        return saved.with_metadata(dev={"cosine": float((vectors * self.dev_vectors).sum(1).mean())})

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Yield arrays that differ if the texts or the teacher differ, to hash."""
        assert isinstance(self.labels, Tensor)
        yield from (self.texts.ids, self.labels.numpy(), self.dev_texts.ids)


def training_of(settings: EncoderSettings) -> TrainingSettings:
    """The settings of the training loop."""
    rate = settings.learning_rate if settings.layers == 1 else settings.learning_rate / 3
    return TrainingSettings(
        epochs=settings.epochs, steps=settings.steps, batch_size=settings.batch_size, seed=settings.seed,
        learning_rate=rate, warmup_steps=200, weight_decay=0.0, dropout=0.0, token_dropout=0.0,
        position_scale=0.3, lexicon=False, fit_to_data=False, device=settings.device,
    )  # fmt: skip


def gather_texts(
    files: Sequence[str | Path],
    more: Iterable[str] = (),
    translations: Sequence[str | Path] = (),
    text_column: str | None = None,
) -> tuple[Texts, Lines]:
    """The different texts of files or of `wordnet`, and further ones, without empty ones; and which mean the same.

    They are in one array, which is memory-mapped if it is large.
    """
    data, known = GrowingTexts(), dict[int, int]()

    def add(text: str) -> int | None:
        encoded = text.strip().encode("utf8")
        if not encoded:
            return None
        number = known.setdefault(hash(encoded), len(known))
        if number == len(data):
            data.add(encoded)
        return number

    for file in files:
        embedded = str(file) == EMBEDDED and not Path(file).exists()
        splits = (load_dataset(EMBEDDED, split).texts for split in ("train", "test"))
        for text in chain(*splits) if embedded else texts_of(file, text_column):
            add(text)
    for text in more:
        add(text)
    lines = read_translations([Path(file) for file in translations], add)
    if len(data) < MIN_TEXTS:
        raise InputError(f"an encoder needs at least {MIN_TEXTS} different texts, found {len(data)}")
    return data.texts(), lines
