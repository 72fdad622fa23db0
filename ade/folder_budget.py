"""The bytes of a whole folder, tokenizer included, divided between its parts.

For a size in bytes, the vocabulary is pruned to the training texts, the tokenizer is packed, and what it leaves is
divided between the layers, the codebook and the lexicon. Counted is what prediction reads: weights, tokenizer and
`config.json`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from ade.budget import distill_to_size, least_size
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
MODEL_HEADER = 3_500  # bytes of the safetensors header of a model, beyond those of a codebook's, for each layer
LAYER_SHARE = 0.25  # of the folder: layers that would take more have 4 bits in place of 8
ENCODER_LAYER_SHARE = 0.6  # the same for an encoder, whose vectors need more of the layers
ENCODER_TEXTS = 100_000  # texts that the tokens of an encoder are counted in
LEXICON_SHARE = 0.3  # of the bytes for lexicon and codebook
LEXICON_ENTRY = 10  # bytes of an entry of a lexicon, about
MIN_LEXICON = 10_000  # bytes: with fewer there is no lexicon
BYTES_PER_TOKEN = 8  # of the codebook: with fewer, rare tokens are dropped
MIN_COUNTS = (1, 2, 3, 5, 10, 20, 50)  # a token must occur so often in the training texts to stay


@dataclass(frozen=True)
class ModelParts:
    """What the folder of a model has beside its tokenizer and its table."""

    outputs: int  # labels, or numbers of a vector
    layers: int = 1
    names: Sequence[str] = ()  # of the labels of a classifier; none for an encoder
    lexicon: bool = False  # whether it may have one


@dataclass(frozen=True)
class ByteShares:
    """How the bytes of a model folder are divided; a lexicon may turn out smaller."""

    tokenizer: int
    config: int
    layers: int
    codebook: int
    lexicon: int
    layer_bits: int

    def check(self, least: int) -> None:
        """Raise `InputError` where fewer than `least` bytes are left for the table."""
        if self.codebook < least:
            fixed = self.tokenizer + self.config + self.layers
            raise InputError(
                f"{fixed + self.codebook + self.lexicon:,} bytes are too few for these tokens; the folder needs at "
                f"least about {fixed + least:,}: {self.tokenizer:,} for the tokenizer, {self.layers:,} for the layers, "
                f"{least:,} for the table; prune the vocabulary, or allow more"
            )


def distill_for_model(
    teacher: Teacher,
    texts: Sequence[str],
    size: int,
    parts: ModelParts,
    settings: DistillationSettings | None = None,
    report: Report = silent,
) -> Saved:
    """Distil a teacher into a codebook for a model whose folder has at most `size` bytes.

    How the bytes are divided is in the metadata, as `bytes`: see `shares_of`.
    """
    small, ids, shares = fit_vocabulary(
        teacher, texts, size, parts, lambda small: max(BYTES_PER_TOKEN * len(small.table), least_size(small))
    )
    shares.check(least_size(small))
    counts = torch.from_numpy(np.bincount(ids.ids, minlength=len(small.table))) + 1  # tokens that texts lack count, too
    saved = distill_to_size(small, shares.codebook, settings or DistillationSettings(), counts, report)
    return saved.with_metadata(bytes=asdict(shares))


def shares_of(saved: Saved) -> ByteShares:
    """Return how the bytes of a folder were divided when its codebook was distilled for a size."""
    return ByteShares(**saved.config.metadata["bytes"])


def fit_vocabulary(
    teacher: Teacher, texts: Sequence[str], size: int, parts: ModelParts, enough_for: Callable[[Teacher], int]
) -> tuple[Teacher, Ragged, ByteShares]:
    """Return a teacher with the largest vocabulary that leaves `enough_for` its table, or the smallest where none does.

    Its tokens are those of the texts; of an encoder, which reads texts of any kind, tokens that the texts do not
    contain are dropped only where the bytes do not suffice for all. Returns the tokens of the texts, and how the bytes
    of the folder are divided, too.
    """
    texts = texts if parts.names else evenly(texts, ENCODER_TEXTS)
    for min_count in MIN_COUNTS if parts.names else (0, *MIN_COUNTS):
        small = teacher.take(*pruned(teacher.tokenizer, texts, min_count)) if min_count else teacher
        small = small.take(*compact(small.tokenizer, texts))
        ids, most_lexicon = Ragged.of(list(encoded(small.tokenizer, texts))), 0
        if parts.lexicon:
            keys, _ = keys_of(ids, len(small.table))
            most_lexicon = LEXICON_ENTRY * int((np.unique(keys, return_counts=True)[1] > 1).sum())
        enough, tokenizer = enough_for(small), len(packed_bytes(small.tokenizer))
        shares = divide(size, tokenizer, small.table.shape[1], parts, enough, most_lexicon)
        if shares.codebook >= enough:
            break
    return small, ids, shares


def divide(size: int, tokenizer: int, dim: int, parts: ModelParts, enough: int, most_lexicon: int = 0) -> ByteShares:
    """Divide the bytes of a model folder; those left for the codebook may be too few, or negative.

    `tokenizer` are the bytes of its file, `most_lexicon` those that a lexicon can make use of. The layers have 8 bits
    where they then have no more than their share and leave `enough` bytes, and 4 otherwise.
    """
    labels = json.dumps(dict(enumerate(parts.names)), indent=4) if parts.names else ""
    config = CONFIG_JSON + 3 * len(labels.encode("utf8")) + MODEL_HEADER * parts.layers  # labels: both ways, metrics
    most_layers = (LAYER_SHARE if parts.names else ENCODER_LAYER_SHARE) * size
    for bits in (8, 4):
        layers = layer_bytes(dim, parts.outputs, bits, parts.layers)
        left = size - tokenizer - config - layers
        if layers <= most_layers and left >= enough:
            break

    lexicon = min(int(LEXICON_SHARE * left), most_lexicon)
    lexicon = lexicon if lexicon >= MIN_LEXICON else 0
    return ByteShares(tokenizer, config, layers, left - lexicon, lexicon, bits)


def layer_bytes(dim: int, outputs: int, bits: int, layers: int = 1) -> int:
    """Bytes of the layers of a model: attention, pooler, head and LayerNorm; of further layers feed-forward blocks."""
    row = -(-dim * bits // 8) + 2 + 4  # a row of weights, its scale and its bias
    wide = -(-FEED_FORWARD * dim * bits // 8) + 2 + 4
    further = (4 * dim + FEED_FORWARD * dim) * row + dim * wide + 4 * 4 * dim
    return (4 * dim + 1 + outputs) * row + 2 * 4 * dim + (layers - 1) * further


def evenly(texts: Sequence[str], most: int) -> Sequence[str]:
    """Return at most `most` texts, from the first to the last: those of a language often stand together."""
    return texts[:: max(1, -(-len(texts) // most))]
