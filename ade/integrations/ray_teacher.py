"""The teacher of `--distill-from` on Ray: a fine-tuned encoder labels millions of texts on many cores or GPUs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ade.integrations.ray import (
    BATCH_ROWS,
    PROBABILITY,
    connected,
    mapped,
    place,
    reported_errors,
    texts_of,
    use_small_blocks,
)
from ade.progress import Report, silent
from ade.training.soft_targets import LabelTeacher

if TYPE_CHECKING:
    import pyarrow as pa


class RayTeacher(LabelTeacher):
    """A teacher whose probabilities Ray computes; they are cached as those of any other teacher."""

    source: str
    names: tuple[str, ...]
    address: str
    workers: int | None

    @classmethod
    def on(cls, address: str, source: str | Path, names: Sequence[str], workers: int | None = None) -> "RayTeacher":
        """Return a fine-tuned sequence classifier, which every machine can read, for the classes `names`.

        It runs on the Ray cluster at `address`, each worker with a GPU where the cluster has as many.
        """
        teacher = cls.load(source, names, "cpu")
        assert isinstance(teacher, cls)
        teacher.source, teacher.names, teacher.address, teacher.workers = place(source), tuple(names), address, workers
        return teacher

    def _predict(self, texts: Sequence[str], report: Report = silent) -> np.ndarray:
        import pyarrow as pa

        rows = pa.table({"row": np.arange(len(texts)), "text": texts})
        tables = [rows.slice(start, BATCH_ROWS) for start in range(0, len(texts), BATCH_ROWS)]
        probabilities, done = np.empty((len(texts), len(self.names)), np.float32), 0  # (n, C)
        with connected(self.address, self.workers), reported_errors(self.source):
            import ray.data

            use_small_blocks()
            gpus = 1 if ray.cluster_resources().get("GPU", 0) >= (self.workers or 1) else 0
            arguments = (self.source, self.names, "cuda" if gpus else "cpu")
            labelled = mapped(ray.data.from_arrow(tables), TeacherWorker, arguments, self.workers, gpus)
            for batch in labelled.select_columns(["row", PROBABILITY]).iter_batches(batch_size=None):
                probabilities[batch["row"]] = np.stack(batch[PROBABILITY])
                done += len(batch["row"])
                report("teacher", done, len(texts), {})
        return probabilities


class TeacherWorker:
    """A teacher that adds its class probabilities to Arrow tables: what a worker of `RayTeacher` runs."""

    def __init__(self, source: str, names: Sequence[str], device: str) -> None:
        self.teacher = LabelTeacher.load(source, names, device)
        self.teacher.cache = None  # of all texts together, not of every batch

    def __call__(self, table: "pa.Table") -> "pa.Table":
        """Return the table with a list of probabilities for each text."""
        return table.append_column(PROBABILITY, [list(self.teacher.probabilities(texts_of(table, "text")))])
