"""The stored form of a lexicon: its class scores packed as a codebook's rows, and how many entries fit a size."""

from dataclasses import asdict

import numpy as np
import torch

from ade.data.problems import MULTI, REGRESSION
from ade.lexicon import Lexicon, LexiconShape, pack_idf, pack_keys
from ade.packing.format import Packing, Shape, pack
from ade.progress import silent
from ade.pursuit import Rows, fit_anchors, pursue_all
from ade.settings import DistillationSettings


def centred(scores: np.ndarray, problem: str) -> np.ndarray:
    """Scores (..., C) without their mean over the classes, which the softmax ignores; unchanged without a softmax."""
    return scores if problem in (MULTI, REGRESSION) else scores - scores.mean(-1, keepdims=True)


def pack_lexicon(
    lexicon: Lexicon, weight: float, counts: np.ndarray, problem: str
) -> tuple[LexiconShape, dict[str, np.ndarray]]:
    """The stored form of a lexicon, its scores multiplied by `weight`; `counts` says in how many texts each entry is.

    Scores are stored as a codebook stores a table: each entry's as a few (index, weight) pairs over shared anchors.
    """
    scores, bias = centred(weight * lexicon.scores, problem), centred(weight * lexicon.bias, problem)
    table = torch.from_numpy(np.ascontiguousarray(scores))
    norm = table.norm(dim=1)
    importance = torch.from_numpy(counts).float() * norm.square()
    rows = Rows(table, importance / importance.mean().clamp(min=1e-12), torch.device("cpu"))
    settings = _packing_settings(*scores.shape)
    anchors = fit_anchors(rows, settings, torch.Generator().manual_seed(0), silent)
    index, share, _ = pursue_all(rows, anchors, settings)

    # Pairs much smaller than the entry's largest are not worth their bits; the largest one always stays.
    size = share.abs()
    keep = size >= 0.1 * size.amax(1, keepdim=True)
    keep[torch.arange(len(keep)), size.argmax(1)] = True
    pair_weights = (share * norm.unsqueeze(1))[keep]
    pack_shape, packed = pack(
        anchors.numpy(), index[keep].numpy(), pair_weights.numpy(), keep.sum(1).numpy(), Packing(shared=len(anchors))
    )

    shape = LexiconShape(len(lexicon), lexicon.vocabulary, asdict(pack_shape))
    arrays = {f"scores.{name}": array for name, array in packed.items()}
    arrays |= pack_keys(lexicon.keys, shape) | pack_idf(lexicon.idf) | {"bias": bias.astype(np.float32)}
    return shape, arrays


def entries_within(max_bytes: int | None, entries: int, vocabulary: int, labels: int) -> int:
    """The largest number of entries, at most `entries`, that take no more than `max_bytes`."""
    if max_bytes is None or most_bytes(entries, vocabulary, labels) <= max_bytes:
        return entries
    low, high = 0, entries
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if most_bytes(middle, vocabulary, labels) <= max_bytes else (low, middle)
    return low


def most_bytes(entries: int, vocabulary: int, labels: int) -> int:
    """The bytes of a stored lexicon whose entries have all the pairs they may have."""
    settings, packing = _packing_settings(entries, labels), Packing()
    scores = Shape(
        vocabulary=entries,
        dim=labels,
        anchors=settings.anchors,
        whole_8=0,
        whole_4=0,
        pairs=entries * settings.pairs,
        most=settings.pairs,
        weight_bits=packing.weight_bits,
        anchor_bits=packing.anchor_bits,
    )
    shape = LexiconShape(entries, vocabulary, asdict(scores))
    others = (int(np.prod(size)) * np.dtype(kind).itemsize for kind, size in shape.arrays().values())
    return scores.nbytes + sum(others)


def _packing_settings(entries: int, labels: int) -> DistillationSettings:
    """Anchors and pairs that suit scores (entries, labels): more for more labels."""
    anchors = min(2 if labels <= 2 else min(16 * labels, 256), entries)
    pairs = 1 if labels <= 2 else 2 if labels <= 8 else 3 if labels <= 32 else 4
    return DistillationSettings(anchors=anchors, pairs=min(pairs, anchors), rounds=6)
