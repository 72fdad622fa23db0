"""The bytes of a whole folder, tokenizer included, divided between its parts.

For a size in bytes, the vocabulary is pruned to the training texts, the tokenizer is packed, and what it leaves is
divided between the layers, the codebook and the lexicon. Counted is what prediction reads: weights, tokenizer and
`config.json`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ade.codebook import Codebook
from ade.config_values import FEED_FORWARD
from ade.data.tokenizer_file import packed_bytes
from ade.errors import InputError
from ade.lexicon import keys_of
from ade.packing.budget import distill_to_size, least_size, zipf
from ade.packing.compact_tokenizer import compact
from ade.packing.prune_vocabulary import encoded, pruned
from ade.progress import Report, silent
from ade.settings import DistillationSettings
from ade.teachers import Teacher

CODEBOOK_JSON = 2_000  # bytes of codebook.json
CONFIG_JSON = 4_000  # bytes of config.json without the names of labels
MODEL_HEADER = 3_500  # bytes of the safetensors header of a model, beyond those of a codebook's
LAYER_SHARE = 0.25  # of the folder: layers that would take more have 4 bits in place of 8
ENCODER_LAYER_SHARE = 0.6  # the same for an encoder, whose vectors need more of the layers
MOST_TEXTS = 100_000  # texts that tokens are counted in
LEXICON_SHARE = 0.3  # of the bytes for lexicon and codebook
LEXICON_ENTRY = 10  # bytes of an entry of a lexicon, about
MIN_LEXICON = 10_000  # bytes: with fewer there is no lexicon
BYTES_PER_TOKEN = 8  # of the codebook: with fewer, rare tokens are dropped
MIN_COUNTS = (1, 2, 3, 5, 10, 20, 50)  # a token must occur so often in the training texts to stay


@dataclass(frozen=True)
class Division:
    """How the bytes of a model folder are divided; a lexicon may turn out smaller."""

    tokenizer: int
    config: int
    layers: int
    codebook: int
    lexicon: int
    layer_bits: int

    def as_dict(self) -> dict[str, int]:
        """The fields as a dictionary, for JSON."""
        return asdict(self)


def divide(size: int, tokenizer: int, dim: int, names: Sequence[str], most_lexicon: int) -> Division:
    """Divide the bytes of a model folder; those left for the codebook may be too few, or negative.

    Args:
        size: bytes of the folder.
        tokenizer: bytes of the tokenizer file.
        dim: width of the model.
        names: of the labels.
        most_lexicon: bytes that a lexicon can make use of; 0 for a model without one.
    """
    labels = json.dumps(dict(enumerate(names)), indent=4)
    config = CONFIG_JSON + 3 * len(labels.encode("utf8")) + MODEL_HEADER  # id2label, label2id, metrics by label
    layer_bits = 8 if layer_bytes(dim, len(names), 8) <= LAYER_SHARE * size else 4
    layers = layer_bytes(dim, len(names), layer_bits)

    left = size - tokenizer - config - layers
    lexicon = min(int(LEXICON_SHARE * left), most_lexicon)
    if lexicon < MIN_LEXICON:
        lexicon = 0
    return Division(tokenizer, config, layers, left - lexicon, lexicon, layer_bits)


def layer_bytes(dim: int, labels: int, bits: int) -> int:
    """Bytes of the layers of a classifier: attention, pooler, classification layer and LayerNorm."""
    outputs = 4 * dim + 1 + labels  # rows of all weights, each with a scale in float16 and a bias in float32
    return outputs * (-(-dim * bits // 8) + 2 + 4) + 2 * 4 * dim


def distill_folder(
    teacher: Teacher,
    size: int,
    settings: DistillationSettings,
    frequencies: Tensor | None = None,
    report: Report = silent,
) -> Codebook:
    """Distil a teacher into a codebook whose folder has at most `size` bytes, tokenizer included.

    The tokens are numbered in another order than the teacher's; arguments as for `distill_to_size`.
    """
    small, rows = compact(teacher)
    if frequencies is None:
        frequencies = 1e9 * zipf(len(teacher.table))  # counts so large that adding 1 to each changes nothing
    frequencies = frequencies[torch.from_numpy(rows)]
    tokenizer = len(packed_bytes(small.tokenizer))
    left = size - tokenizer - CODEBOOK_JSON
    if left < (least := least_size(small)):
        raise InputError(
            f"{size:,} bytes are too few for {len(small.table):,} tokens: they need at least about "
            f"{size - left + least:,}, {tokenizer:,} of them for the tokenizer; prune the vocabulary, or allow more"
        )
    codebook = distill_to_size(small, left, replace(settings, size=str(size)), frequencies, report)
    return replace(codebook, about={**codebook.about, "tokenizer_bytes": tokenizer})


def distill_for_model(
    teacher: Teacher,
    texts: Sequence[str],
    size: int,
    names: Sequence[str],
    settings: DistillationSettings | None = None,
    lexicon: bool = True,
    report: Report = silent,
) -> tuple[Codebook, Division]:
    """Distil a teacher into a codebook for a classifier whose folder has at most `size` bytes.

    Train the classifier with the returned division: `Architecture(layer_bits=division.layer_bits)` and
    `TrainingSettings(lexicon_size=str(division.lexicon))`, or `lexicon=False` where that is 0.

    Args:
        teacher: the table of embeddings and its tokenizer.
        texts: of the training rows; tokens that they do not contain are dropped.
        size: bytes of the model folder: weights, tokenizer and configuration.
        names: of the labels.
        settings: of these, rounds, random seed and device are used.
        lexicon: whether the model may have a lexicon.
        report: told about progress.
    """
    for min_count in MIN_COUNTS:
        small, _ = compact(pruned(teacher, texts, min_count), texts)
        ids = list(encoded(small.tokenizer, texts))
        most_lexicon = LEXICON_ENTRY * _repeated(ids, len(small.table)) if lexicon else 0
        division = divide(size, len(packed_bytes(small.tokenizer)), small.table.shape[1], names, most_lexicon)
        if division.codebook >= max(BYTES_PER_TOKEN * len(small.table), least_size(small)):
            break

    return _distilled(small, size, division, ids, settings, report), division


def distill_for_encoder(
    teacher: Teacher,
    texts: Sequence[str],
    size: int,
    outputs: int,
    layers: int = 1,
    settings: DistillationSettings | None = None,
    report: Report = silent,
) -> tuple[Codebook, Division]:
    """Distil a teacher into a codebook for an encoder whose folder has at most `size` bytes.

    An encoder reads texts of any kind, so tokens that the texts do not contain are dropped only where the bytes do not
    suffice for all. Arguments as for `distill_for_model`; `outputs` is the width of the vectors.
    """
    known = evenly(texts, MOST_TEXTS)
    for min_count in (0, *MIN_COUNTS):
        small, _ = compact(pruned(teacher, known, min_count) if min_count else teacher, known)
        enough = max(BYTES_PER_TOKEN * len(small.table), least_size(small))
        tokenizer = len(packed_bytes(small.tokenizer))
        division = divide_encoder(size, tokenizer, small.table.shape[1], outputs, layers, enough)
        if division.codebook >= enough:
            break

    return _distilled(small, size, division, encoded(small.tokenizer, known), settings, report), division


def evenly(texts: Sequence[str], most: int) -> Sequence[str]:
    """Texts from the first to the last, at most so many: those of a language often stand together."""
    return texts[:: max(1, -(-len(texts) // most))]


def _distilled(
    teacher: Teacher,
    size: int,
    division: Division,
    ids: Iterable[np.ndarray],
    settings: DistillationSettings | None,
    report: Report,
) -> Codebook:
    """Distil a pruned teacher into the bytes of a codebook; `ids` are the tokens of the training texts."""
    if division.codebook < (least := least_size(teacher)):
        needed = division.tokenizer + division.config + division.layers + least
        raise InputError(
            f"{size:,} bytes are too few for this teacher and these texts; a model needs at least about {needed:,}: "
            f"{division.tokenizer:,} for the tokenizer, {division.layers:,} for the layers, {least:,} for the codebook"
        )
    frequencies = torch.from_numpy(np.bincount(np.concatenate(list(ids)), minlength=len(teacher.table)))
    codebook = distill_to_size(teacher, division.codebook, settings or DistillationSettings(), frequencies, report)
    about = {**codebook.about, "tokenizer_bytes": division.tokenizer, "division": division.as_dict()}
    return replace(codebook, about=about)


def divide_encoder(size: int, tokenizer: int, dim: int, outputs: int, layers: int, codebook: int) -> Division:
    """Divide the bytes of an encoder's folder; those left for the codebook may be too few, or negative.

    The layers have 8 bits where that leaves `codebook` bytes for the codebook, and 4 otherwise.
    """
    config = CONFIG_JSON + MODEL_HEADER * layers

    def divided(bits: int) -> Division:
        nbytes = encoder_layer_bytes(dim, outputs, layers, bits)
        return Division(tokenizer, config, nbytes, size - tokenizer - config - nbytes, 0, bits)

    found = divided(8)
    return found if found.layers <= ENCODER_LAYER_SHARE * size and found.codebook >= codebook else divided(4)


def encoder_layer_bytes(dim: int, outputs: int, layers: int, bits: int) -> int:
    """Bytes of the layers of an encoder: those of a classifier, and of each further layer its feed-forward block."""
    row = -(-dim * bits // 8) + 2 + 4  # a row of weights, its scale and its bias
    wide = -(-FEED_FORWARD * dim * bits // 8) + 2 + 4
    further = (4 * dim + FEED_FORWARD * dim) * row + dim * wide + 4 * 4 * dim
    return layer_bytes(dim, outputs, bits) + (layers - 1) * further


def _repeated(ids: Sequence[np.ndarray], vocabulary: int) -> int:
    """The number of tokens and bigrams that occur more than once in texts."""
    offsets = np.cumsum([0, *map(len, ids)])
    keys, _ = keys_of(np.concatenate(ids), offsets, vocabulary)
    return int((np.unique(keys, return_counts=True)[1] > 1).sum())
