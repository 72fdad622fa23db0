"""The teacher of `--distill-from` on Ray: a fine-tuned encoder labels millions of texts on many cores or GPUs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ade.integrations.ray_data import (
    BATCH_ROWS,
    PROBABILITY,
    connected,
    mapped,
    reported_errors,
    texts_of,
    use_small_blocks,
)
from ade.progress import Report, silent
from ade.training.soft_targets import LabelTeacher

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data import Dataset


class TeacherWorker:
    """An encoder that adds its class probabilities to Arrow tables: what a worker of `label_dataset` runs."""

    def __init__(self, source: str, names: Sequence[str], device: str, text: str) -> None:
        self.teacher, self.text = LabelTeacher.load(source, names, device), text
        self.teacher.cache = None  # of all texts together, not of every batch

    def __call__(self, table: "pa.Table") -> "pa.Table":
        """The table with a list of probabilities per text."""
        found = self.teacher.probabilities(texts_of(table, self.text))  # (n, C)
        return table.append_column(PROBABILITY, [list(found)])


def label_dataset(
    dataset: "Dataset", source: str | Path, names: Sequence[str], text_column: str = "text", workers: int | None = None
) -> "Dataset":
    """A Ray dataset with a column `probability`: the teacher's for each of `names`, in their order.

    Args:
        dataset: a table with a column of texts; write the result with `write_parquet`.
        source: a fine-tuned sequence classifier, folder or hub name, that every machine can read.
        names: the classes of the data.
        text_column: name of the text column.
        workers: processes that predict, with a GPU each where the cluster has as many.
    """
    import ray

    found = Path(source).resolve() if Path(source).exists() else source
    gpus = 1 if ray.cluster_resources().get("GPU", 0) >= (workers or 1) else 0
    arguments = (str(found), tuple(names), "cuda" if gpus else "cpu", text_column)
    return mapped(dataset, TeacherWorker, arguments, workers, gpus)


class RayTeacher(LabelTeacher):
    """A teacher whose probabilities are computed by Ray; cached as those of any other teacher."""

    source: str
    names: tuple[str, ...]
    address: str
    workers: int | None

    @classmethod
    def on(cls, address: str, source: str | Path, names: Sequence[str], workers: int | None = None) -> "RayTeacher":
        """The classifier at `source`, run by the Ray cluster at `address`."""
        teacher = cls.load(source, names, "cpu")
        assert isinstance(teacher, cls)
        teacher.source, teacher.names, teacher.address, teacher.workers = str(source), tuple(names), address, workers
        return teacher

    def _predict(self, texts: Sequence[str], report: Report = silent) -> np.ndarray:
        import pyarrow as pa
        import ray.data

        found = np.empty((len(texts), len(self.names)), np.float32)  # (n, C)
        rows, done = np.arange(len(texts)), 0
        with connected(self.address, self.workers), reported_errors(self.source):
            use_small_blocks()
            tables = [
                pa.table({"row": rows[start : start + BATCH_ROWS], "text": texts[start : start + BATCH_ROWS]})
                for start in range(0, len(texts), BATCH_ROWS)
            ]
            labelled = label_dataset(ray.data.from_arrow(tables), self.source, self.names, workers=self.workers)
            for batch in labelled.select_columns(["row", PROBABILITY]).iter_batches(batch_size=None):
                found[batch["row"]] = np.stack(batch[PROBABILITY])
                done += len(batch["row"])
                report("teacher", done, len(texts), {})
        return found
