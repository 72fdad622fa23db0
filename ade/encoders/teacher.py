"""A sentence-transformers model as the teacher of an encoder: one unit vector a text, cached as it is computed.

The teacher's own pooling, normalisation and prompt are used, because its library runs it. Vectors go to a file in the
cache, so an interrupted run continues where it stopped, and one with other settings need not compute them again.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ade.data.texts import Texts
from ade.devices import quickest_dtype, resolve_device
from ade.errors import InputError, first_line
from ade.files import cache_folder, new_file
from ade.progress import Report, quiet, silent
from ade.trained_model import unit

SAVED_EVERY, SAVED_EVERY_ON_GPU = 4096, 65_536  # texts
BATCH = {"cpu": 32, "cuda": 1024}  # texts of similar length that the teacher reads per batch
VECTORS, DONE = "vectors.npy", "done.json"


class SentenceTeacher:
    """A model that gives each text a vector."""

    def __init__(self, name: str, identity: str, dim: int, encode: Callable[[Sequence[str]], np.ndarray]) -> None:
        """Wrap a function from texts to vectors (n, D); `identity` is a hash that tells it from other teachers."""
        self.name, self.identity, self.dim, self.encode = name, identity, dim, encode
        self.saved_every = SAVED_EVERY

    @classmethod
    def load(cls, source: str | Path, device: str = "auto", prefix: str = "") -> "SentenceTeacher":
        """Load a sentence-transformers folder or hub name; `prefix` is put before every text, as e5 expects it."""
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise InputError(
                "a teacher of sentences needs sentence-transformers: pip install 'ade-embeddings[sentence]'"
            ) from None
        try:
            with quiet(), torch.random.fork_rng():
                torch.manual_seed(0)  # weights that the folder lacks, as an unused pooler's, are the same each time
                model = SentenceTransformer(str(source), device=str(resolve_device(device)), trust_remote_code=False)
                model.to(quickest_dtype(model.device))
        except Exception as error:  # of any library: the folder is damaged or of another kind
            raise InputError(f"{source}: not a readable sentence encoder ({first_line(error)})") from None
        options: dict[str, Any] = {"batch_size": BATCH.get(model.device.type, BATCH["cpu"]), "convert_to_tensor": True}
        options |= {"prompt": prefix} if prefix else {}

        def encode(texts: Sequence[str]) -> np.ndarray:
            return model.encode(list(texts), show_progress_bar=False, **options).float().cpu().numpy()

        digest = hashlib.sha256(prefix.encode("utf8"))
        for name, tensor in model.state_dict().items():
            digest.update(name.encode("utf8"))
            digest.update(tensor.detach().float().cpu().numpy().data)
        made = cls(Path(source).resolve().name, digest.hexdigest(), len(encode(["a text"])[0]), encode)
        made.saved_every = SAVED_EVERY_ON_GPU if model.device.type == "cuda" else SAVED_EVERY
        return made

    def vectors(self, texts: Texts, report: Report = silent) -> np.ndarray:
        """Return the unit vectors of texts, (n, D) float16, memory-mapped; cached ones are not computed again."""
        folder, shape = cache_folder() / "vectors" / self._key(texts), (len(texts), self.dim)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            done, vectors = _cached(folder, shape)
            if vectors is None:
                vectors = np.lib.format.open_memmap(folder / VECTORS, "w+", np.float16, shape)
        except OSError as error:
            raise InputError(f"{folder}: cannot keep the teacher's vectors ({error.strerror}); set ADE_CACHE") from None

        for start in range(done, len(texts), self.saved_every):
            report("teacher", start, len(texts), {})
            computed = np.asarray(self.encode(texts[start : start + self.saved_every]), np.float32)
            if not np.isfinite(computed).all():
                raise InputError(f"{self.name}: gives vectors that are not finite")
            vectors[start : start + len(computed)] = unit(computed)
            vectors.flush()
            with new_file(folder / DONE) as draft:
                draft.write_text(json.dumps({"texts": start + len(computed)}), "utf8")
            report("teacher", start + len(computed), len(texts), {})
        return vectors

    def _key(self, texts: Texts) -> str:
        """A hash of the teacher and the texts: the name of their folder in the cache."""
        digest = hashlib.sha256(f"{self.identity} {self.dim} {len(texts)}".encode())
        digest.update(np.ascontiguousarray(texts.offsets).data)
        for start in range(0, len(texts.data), 1 << 24):
            digest.update(np.ascontiguousarray(texts.data[start : start + (1 << 24)]).data)
        return digest.hexdigest()[:32]


def _cached(folder: Path, shape: tuple[int, int]) -> tuple[int, np.memmap | None]:
    """The number of cached vectors and their file; 0 and None where there is none, or a damaged one."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        done = int(json.loads((folder / DONE).read_text("utf8"))["texts"])
        vectors = np.lib.format.open_memmap(folder / VECTORS, "r+")
        if vectors.shape == shape and vectors.dtype == np.float16:
            return done, vectors
    return 0, None
