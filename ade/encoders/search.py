"""The texts of a file nearest to a query, by the vectors of all, in memory: for up to some million texts.

The vectors are kept in the cache in 16 bits, so that a second search of the same file with the same encoder answers at
once.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ade.data.records import texts_of
from ade.data.tokens import CHUNK
from ade.errors import InputError
from ade.files import cache_folder, model_folder, new_file
from ade.progress import Report, silent
from ade.trained_model import Encoder

BLOCK = 65_536  # vectors compared per product


class Hit(NamedTuple):
    """A text that was found: its number in the file, its cosine with the query, the text."""

    row: int
    score: float
    text: str


class Index(NamedTuple):
    """Texts with their unit vectors (n, D)."""

    texts: Sequence[str]
    vectors: np.ndarray

    def search(self, query: np.ndarray, count: int = 10) -> list[Hit]:
        """Return the texts whose vectors are nearest to that of a query (D,), the nearest first."""
        blocks = (self.vectors[start : start + BLOCK] for start in range(0, len(self.vectors), BLOCK))
        scores = np.concatenate([block.astype(np.float32) @ query for block in blocks])
        count = min(count, len(scores))
        best = np.argpartition(-scores, count - 1)[:count]
        best = best[np.lexsort((best, -scores[best]))]
        return [Hit(int(row), float(scores[row]), self.texts[row]) for row in best]


def index_file(
    encoder: Encoder, folder: str | Path, file: str | Path, text_column: str | None = None, report: Report = silent
) -> Index:
    """Index the texts of a file by an encoder that was loaded from `folder`; cached vectors are used again."""
    texts = list(texts_of(file, text_column))
    if not texts:
        raise InputError(f"{file}: holds no texts to search")
    digest = hashlib.sha256((model_folder(folder) / "model.safetensors").read_bytes())
    for text in texts:
        digest.update(hashlib.sha256(text.encode("utf8")).digest())
    cached = cache_folder() / "search" / f"{digest.hexdigest()[:32]}.npy"
    with suppress(OSError, ValueError):
        vectors = np.load(cached, mmap_mode="r", allow_pickle=False)
        if vectors.shape == (len(texts), encoder.dim):
            return Index(texts, vectors)

    vectors = np.empty((len(texts), encoder.dim), np.float16)
    for start in range(0, len(texts), CHUNK):
        vectors[start : start + CHUNK] = encoder.encode(texts[start : start + CHUNK])
        report("encode", min(start + CHUNK, len(texts)), len(texts), {})
    with suppress(OSError, InputError):  # a search does not fail because the cache cannot be written
        cached.parent.mkdir(parents=True, exist_ok=True)
        with new_file(cached) as draft, open(draft, "wb") as opened:
            np.save(opened, vectors)
    return Index(texts, vectors)
