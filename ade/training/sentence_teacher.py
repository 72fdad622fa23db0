"""A sentence-transformers model as the teacher of an encoder: one unit vector a text, cached as it is computed.

The teacher's own pooling, normalisation and prompt are used, because its library runs it. Answers go to a file in the
cache, so a run that was interrupted goes on where it stopped, and one with other settings need not ask again.
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
from ade.encoder import unit
from ade.errors import InputError, first_line
from ade.files import cache_folder, new_file
from ade.progress import Report, quiet, silent

ANSWERED, ANSWERED_ON_GPU = 4096, 65_536  # texts answered between two notes of how far it got
BATCH = {"cpu": 32, "cuda": 1024}  # texts of similar length that the teacher reads at a time
VECTORS, DONE = "vectors.npy", "done.json"


class SentenceTeacher:
    """A model that gives each text a vector."""

    def __init__(self, name: str, identity: str, dim: int, encode: Callable[[Sequence[str]], np.ndarray]) -> None:
        """Wrap a function from texts to vectors (n, D); `identity` is a hash that tells it from other teachers."""
        self.name, self.identity, self.dim, self.encode = name, identity, dim, encode
        self.answered_at_once = ANSWERED

    @classmethod
    def load(cls, source: str | Path, device: str = "auto", prefix: str = "") -> "SentenceTeacher":
        """Load a sentence-transformers folder or hub name; `prefix` is put before every text, as e5 wants it."""
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

        def encode(texts: Sequence[str]) -> np.ndarray:
            prompt = {"prompt": prefix} if prefix else {}
            found = model.encode(
                list(texts),
                batch_size=BATCH.get(model.device.type, BATCH["cpu"]),
                show_progress_bar=False,
                convert_to_tensor=True,
                **prompt,
            )
            return found.float().cpu().numpy()

        digest = hashlib.sha256(prefix.encode("utf8"))
        for name, tensor in model.state_dict().items():
            digest.update(name.encode("utf8"))
            digest.update(tensor.detach().float().cpu().numpy().data)
        dim = len(encode(["a text"])[0])
        made = cls(Path(source).resolve().name, digest.hexdigest(), dim, encode)
        made.answered_at_once = ANSWERED_ON_GPU if model.device.type == "cuda" else ANSWERED
        return made

    def vectors(self, texts: Texts, report: Report = silent) -> np.ndarray:
        """Return the unit vectors of texts, (n, D) float16, memory-mapped; what the cache has is not computed again."""
        folder = cache_folder() / "vectors" / self._key(texts)
        done = _done(folder)
        if done >= len(texts) > 0 and (kept := _opened(folder, "r", (len(texts), self.dim))) is not None:
            return kept
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = _opened(folder, "r+", (len(texts), self.dim)) if done else None
            if found is None:
                done, shape = 0, (len(texts), self.dim)
                found = np.lib.format.open_memmap(folder / VECTORS, "w+", np.float16, shape)
        except OSError as error:
            raise InputError(f"{folder}: cannot keep the teacher's answers ({error.strerror}); set ADE_CACHE") from None

        report("teacher", done, len(texts), {})
        for start in range(done, len(texts), self.answered_at_once):
            answers = np.asarray(self.encode(texts[start : start + self.answered_at_once]), np.float32)
            if not np.isfinite(answers).all():
                raise InputError(f"{self.name}: gives vectors that are not finite")
            found[start : start + len(answers)] = unit(answers)
            found.flush()
            _note(folder, start + len(answers))
            report("teacher", start + len(answers), len(texts), {})
        return found

    def _key(self, texts: Texts) -> str:
        """A hash of the teacher and the texts: the name of their folder in the cache."""
        digest = hashlib.sha256(f"{self.identity} {self.dim} {len(texts)}".encode())
        digest.update(np.ascontiguousarray(texts.offsets).data)
        for start in range(0, len(texts.data), 1 << 24):
            digest.update(np.ascontiguousarray(texts.data[start : start + (1 << 24)]).data)
        return digest.hexdigest()[:32]


def _opened(folder: Path, mode: Any, shape: tuple[int, int]) -> np.memmap | None:
    """The answers of a folder; None where they are damaged or of another shape."""
    try:
        found = np.lib.format.open_memmap(folder / VECTORS, mode)
    except (OSError, ValueError):
        return None
    return found if found.shape == shape and found.dtype == np.float16 else None


def _done(folder: Path) -> int:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((folder / DONE).read_text("utf8"))["texts"])
    return 0


def _note(folder: Path, done: int) -> None:
    with new_file(folder / DONE) as draft:
        draft.write_text(json.dumps({"texts": done}), "utf8")
