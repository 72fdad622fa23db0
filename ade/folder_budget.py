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

from ade.budget import distill_to_size, least_size, zipf
from ade.configuration import FEED_FORWARD
from ade.data.tokens import Ragged
from ade.errors import InputError
from ade.folder import Saved
from ade.lexicon import keys_of
from ade.packing.compact_tokenizer import compact
from ade.packing.prune_vocabulary import encoded, pruned
from ade.packing.tokenizer_file import packed_bytes
from ade.progress import Report, silent
from ade.settings import DistillationSettings
from ade.teachers import Teacher

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
class ByteShares:
    """How the bytes of a model folder are divided; a lexicon may turn out smaller."""

    tokenizer: int
    config: int
    layers: int
    codebook: int
    lexicon: int
    layer_bits: int


def distill_folder(
    teacher: Teacher,
    size: int,
    settings: DistillationSettings,
    frequencies: Tensor | None = None,
    report: Report = silent,
) -> Saved:
    """Distil a teacher into a codebook whose folder has at most `size` bytes, tokenizer included.

    The tokens are numbered in another order than the teacher's; arguments as for `distill_to_size`.
    """
    tokenizer, rows = compact(teacher.tokenizer)
    small = teacher.take(tokenizer, rows)
    if frequencies is None:
        frequencies = 1e9 * zipf(len(teacher.table))  # counts so large that adding 1 to each changes nothing
    frequencies = frequencies[torch.from_numpy(rows)]
    taken = len(packed_bytes(tokenizer)) + CONFIG_JSON
    if size - taken < (least := least_size(small)):
        raise InputError(
            f"{size:,} bytes are too few for {len(small.table):,} tokens: they need at least about "
            f"{taken + least:,}, {taken - CONFIG_JSON:,} of them for the tokenizer; prune the vocabulary, or allow more"
        )
    return distill_to_size(small, size - taken, replace(settings, size=str(size)), frequencies, report)


def distill_for_model(
    teacher: Teacher,
    texts: Sequence[str],
    size: int,
    names: Sequence[str],
    settings: DistillationSettings | None = None,
    lexicon: bool = True,
    report: Report = silent,
) -> Saved:
    """Distil a teacher into a codebook for a classifier whose folder has at most `size` bytes.

    Tokens that the training texts do not contain are dropped. `names` are those of the labels; `lexicon` is whether the
    model may have one. How the bytes are divided is in the metadata, as `bytes`: see `shares_of`.
    """
    for min_count in MIN_COUNTS:
        small = smaller(teacher, texts, min_count)
        ids = Ragged.of(list(encoded(small.tokenizer, texts)))
        keys, _ = keys_of(ids, len(small.table))
        repeated = int((np.unique(keys, return_counts=True)[1] > 1).sum())  # tokens and bigrams seen more than once
        most_lexicon = LEXICON_ENTRY * repeated if lexicon else 0
        shares = divide(size, len(packed_bytes(small.tokenizer)), small.table.shape[1], names, most_lexicon)
        if shares.codebook >= max(BYTES_PER_TOKEN * len(small.table), least_size(small)):
            break
    return _distilled(small, size, shares, ids, settings, report)


def distill_for_encoder(
    teacher: Teacher,
    texts: Sequence[str],
    size: int,
    outputs: int,
    layers: int = 1,
    settings: DistillationSettings | None = None,
    report: Report = silent,
) -> Saved:
    """Distil a teacher into a codebook for an encoder whose folder has at most `size` bytes.

    An encoder reads texts of any kind, so tokens that the texts do not contain are dropped only where the bytes do not
    suffice for all. Arguments as for `distill_for_model`; `outputs` is the width of the vectors.
    """
    known = evenly(texts, MOST_TEXTS)
    for min_count in (0, *MIN_COUNTS):
        small = smaller(teacher, known, min_count)
        enough = max(BYTES_PER_TOKEN * len(small.table), least_size(small))
        tokenizer = len(packed_bytes(small.tokenizer))
        shares = divide_encoder(size, tokenizer, small.table.shape[1], outputs, layers, enough)
        if shares.codebook >= enough:
            break
    return _distilled(small, size, shares, encoded(small.tokenizer, known), settings, report)


def shares_of(saved: Saved) -> ByteShares:
    """Return how the bytes of a folder were divided when its codebook was distilled for a size."""
    return ByteShares(**saved.config.metadata["bytes"])


def divide(size: int, tokenizer: int, dim: int, names: Sequence[str], most_lexicon: int) -> ByteShares:
    """Divide the bytes of a model folder; those left for the codebook may be too few, or negative.

    `tokenizer` are the bytes of its file, `names` those of the labels, `most_lexicon` the bytes that a lexicon can make
    use of: 0 for a model without one.
    """
    labels = json.dumps(dict(enumerate(names)), indent=4)
    config = CONFIG_JSON + 3 * len(labels.encode("utf8")) + MODEL_HEADER  # id2label, label2id, metrics by label
    layer_bits = 8 if layer_bytes(dim, len(names), 8) <= LAYER_SHARE * size else 4
    layers = layer_bytes(dim, len(names), layer_bits)

    left = size - tokenizer - config - layers
    lexicon = min(int(LEXICON_SHARE * left), most_lexicon)
    if lexicon < MIN_LEXICON:
        lexicon = 0
    return ByteShares(tokenizer, config, layers, left - lexicon, lexicon, layer_bits)


def divide_encoder(size: int, tokenizer: int, dim: int, outputs: int, layers: int, codebook: int) -> ByteShares:
    """Divide the bytes of an encoder's folder; those left for the codebook may be too few, or negative.

    The layers have 8 bits where that leaves `codebook` bytes for the codebook, and 4 otherwise.
    """
    config = CONFIG_JSON + MODEL_HEADER * layers

    def divided(bits: int) -> ByteShares:
        nbytes = layer_bytes(dim, outputs, bits, layers)
        return ByteShares(tokenizer, config, nbytes, size - tokenizer - config - nbytes, 0, bits)

    shares = divided(8)
    return shares if shares.layers <= ENCODER_LAYER_SHARE * size and shares.codebook >= codebook else divided(4)


def layer_bytes(dim: int, outputs: int, bits: int, layers: int = 1) -> int:
    """Bytes of the layers of a model: attention, pooler, head and LayerNorm; of further layers feed-forward blocks."""
    row = -(-dim * bits // 8) + 2 + 4  # a row of weights, its scale and its bias
    wide = -(-FEED_FORWARD * dim * bits // 8) + 2 + 4
    further = (4 * dim + FEED_FORWARD * dim) * row + dim * wide + 4 * 4 * dim
    return (4 * dim + 1 + outputs) * row + 2 * 4 * dim + (layers - 1) * further


def evenly(texts: Sequence[str], most: int) -> Sequence[str]:
    """Return at most `most` texts, from the first to the last: those of a language often stand together."""
    return texts[:: max(1, -(-len(texts) // most))]


def smaller(teacher: Teacher, texts: Sequence[str], min_count: int) -> Teacher:
    """The teacher with a pruned vocabulary, where `min_count` is not 0, and a compact tokenizer."""
    if min_count:
        teacher = teacher.take(*pruned(teacher.tokenizer, texts, min_count))
    return teacher.take(*compact(teacher.tokenizer, texts))


def _distilled(
    teacher: Teacher,
    size: int,
    shares: ByteShares,
    ids: Iterable[np.ndarray],
    settings: DistillationSettings | None,
    report: Report,
) -> Saved:
    """Distil a pruned teacher into the bytes of a codebook; `ids` are the tokens of the training texts."""
    if shares.codebook < (least := least_size(teacher)):
        needed = shares.tokenizer + shares.config + shares.layers + least
        raise InputError(
            f"{size:,} bytes are too few for this table and these texts; a model needs at least about {needed:,}: "
            f"{shares.tokenizer:,} for the tokenizer, {shares.layers:,} for the layers, {least:,} for the codebook"
        )
    frequencies = torch.from_numpy(np.bincount(np.concatenate(list(ids)), minlength=len(teacher.table)))
    saved = distill_to_size(teacher, shares.codebook, settings or DistillationSettings(), frequencies, report)
    return saved.with_metadata(bytes=asdict(shares))
