"""A small flat index: the vectors of a file's texts in memory, and which are nearest to a query.

For up to some million texts on one machine; the vectors are kept in the cache, in 16 bits, so that a second search of
the same file with the same encoder answers at once.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ade.data.reading import read_texts
from ade.data.tokenize import CHUNK
from ade.encoder import Encoder
from ade.errors import InputError
from ade.files import cache_folder, model_folder, new_file
from ade.progress import Report, silent

SCORED = 65_536  # vectors compared at a time


class Hit(NamedTuple):
    """A text that was found: its number in the file, its cosine with the query, the text."""

    row: int
    score: float
    text: str


class Index:
    """Texts with their unit vectors (n, D)."""

    def __init__(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        self.texts, self.vectors = texts, vectors

    def search(self, query: np.ndarray, count: int = 10) -> list[Hit]:
        """Return the texts whose vectors are nearest to that of a query (D,), the nearest first."""
        scores = np.concatenate(
            [
                self.vectors[start : start + SCORED].astype(np.float32) @ query
                for start in range(0, len(self.vectors), SCORED)
            ]
        )
        count = min(count, len(scores))
        best = np.argpartition(-scores, count - 1)[:count]
        best = best[np.lexsort((best, -scores[best]))]
        return [Hit(int(row), float(scores[row]), self.texts[row]) for row in best]


def index_file(
    encoder: Encoder, folder: str | Path, file: str | Path, text_column: str | None = None, report: Report = silent
) -> Index:
    """Index the texts of a file by an encoder that was loaded from `folder`; kept vectors are used again."""
    with read_texts(file, text_column=text_column) as rows:
        texts = [str(row[rows.text]) for row in rows]
    if not texts:
        raise InputError(f"{file}: holds no texts to search")
    kept = cache_folder() / "search" / f"{_key(model_folder(folder), texts)}.npy"
    with suppress(OSError, ValueError):
        vectors = np.load(kept, mmap_mode="r", allow_pickle=False)
        if vectors.shape == (len(texts), encoder.dim):
            return Index(texts, vectors)

    vectors = np.empty((len(texts), encoder.dim), np.float16)
    for start in range(0, len(texts), CHUNK):
        vectors[start : start + CHUNK] = encoder.encode(texts[start : start + CHUNK])
        report("encode", min(start + CHUNK, len(texts)), len(texts), {})
    with suppress(OSError, InputError):  # a search does not fail because the cache cannot be written
        kept.parent.mkdir(parents=True, exist_ok=True)
        with new_file(kept) as draft, open(draft, "wb") as opened:
            np.save(opened, vectors)
    return Index(texts, vectors)


def _key(folder: Path, texts: Sequence[str]) -> str:
    """A hash of the encoder and the texts."""
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes())
    for text in texts:
        digest.update(hashlib.sha256(text.encode("utf8")).digest())
    return digest.hexdigest()[:32]
