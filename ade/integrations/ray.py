"""Ray Data: predict tables of any number of rows on the cores of one machine or of many, with or without torch.

`predict_dataset` adds columns to a `ray.data.Dataset`, `predict_files` writes a folder of Parquet files. A worker loads
the model once and predicts batches; Ray starts a killed worker again and repeats the batches it had not finished.
"""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ade.configuration import CLASSIFIER, check_kind
from ade.data.columns import find_text_column
from ade.data.problems import MULTI, REGRESSION
from ade.data.records import Format, format_of, records
from ade.decision import decide, probabilities_of
from ade.errors import InputError, first_line
from ade.files import kind_of, new_folder
from ade.runtime.threads import cores
from ade.trained_model import Classifier

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data import Dataset

LOCAL = "local"  # the address of a cluster of this machine alone, started for the call
PREDICTION, PROBABILITY = "prediction", "probability"  # the columns that are added
DONE = "_SUCCESS"  # written last, as Hadoop and Spark do; readers of Parquet skip it
OWN_ERROR = re.compile(r"^ade\.(?:errors\.InputError|data\.formats\.QuotingError): (.*)$", re.MULTILINE)
BATCH_ROWS = 4096  # predicted per call
BLOCK_BYTES = 16 << 20  # of a block that goes to a worker: what is lost, and repeated, when one is killed


@contextmanager
def connected(address: str = LOCAL, workers: int | None = None) -> Iterator[None]:
    """Context manager: a Ray cluster, by its address or started on this machine; one that is connected is used as is.

    Args:
        address: `local`, `auto` for the cluster of this machine, or the address of one, as 10.0.0.1:6379.
        workers: processes that a local cluster has room for; by default one for each core.
    """
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # before ray is imported
    import ray

    if ray.is_initialized():
        yield
        return

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == LOCAL:  # one more: reading and writing need a place, too
            ray.init(LOCAL, num_cpus=(workers or cores()) + 1, include_dashboard=False, **quiet)
        else:
            ray.init(address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(f"no Ray cluster at '{address}' ({first_line(error)})") from None
    try:
        yield
    finally:
        ray.shutdown()


def predict_dataset(
    dataset: "Dataset",
    model: str | Path,
    text_column: str | None = None,
    workers: int | None = None,
    probabilities: bool = False,
    threshold: float | None = None,
) -> "Dataset":
    """Return a Ray dataset with a column `prediction` and, but for regression, `probability` added.

    Args:
        dataset: a table with a column of texts.
        model: a model folder that every machine can read, or a name on the hub.
        text_column: name of the text column; found where it is None.
        workers: processes that predict; by default as many as the cluster has room for.
        probabilities: also add a column `probability_NAME` for every label.
        threshold: as in `Classifier.predict`.
    """
    import ray
    from ray.data import ActorPoolStrategy

    check_kind(model, kind_of(model), CLASSIFIER)
    schema = dataset.schema()
    names = list(schema.names) if schema is not None else []
    text = find_text_column("the dataset", names, text_column)
    taken = [name for name in names if name.startswith(PREDICTION) or name == PROBABILITY]
    if taken:
        raise InputError(f"the input has a column '{taken[0]}' already, where the prediction would go; rename it")

    place = str(Path(model).resolve() if Path(model).exists() else model)  # of a folder, wherever a worker runs
    room = max(1, int(ray.cluster_resources().get("CPU", 1)) - 1)  # one stays for reading and writing
    return dataset.map_batches(
        TablePredictor,
        fn_constructor_args=(place, text, probabilities, threshold),
        compute=ActorPoolStrategy(size=workers) if workers else ActorPoolStrategy(min_size=1, max_size=room),
        num_cpus=1,
        batch_size=BATCH_ROWS,
        batch_format="pyarrow",
    )


class TablePredictor:
    """A model that adds its predictions to Arrow tables: what a worker of `predict_dataset` runs."""

    def __init__(
        self, model: str, text: str = "text", probabilities: bool = False, threshold: float | None = None
    ) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers share the cores
        self.classifier = Classifier.load(model, threads=1)
        self.text, self.probabilities, self.threshold = text, probabilities, threshold

    def __call__(self, table: "pa.Table") -> "pa.Table":
        """Return the table with the predictions of its texts; labels in the type they were given in for training."""
        import pyarrow as pa

        classifier = self.classifier
        scores = classifier.scores(_texts_of(table, self.text))  # (n, C)
        predictions = decide(scores, classifier.saved.config, self.threshold)
        labels = [prediction.label for prediction in predictions]
        if classifier.problem == REGRESSION:
            return table.append_column(PREDICTION, pa.array(labels, pa.float64()))

        types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
        label, probability = types[classifier.saved.config.label_type], pa.float32()
        if classifier.problem == MULTI:
            label, probability = pa.list_(label), pa.list_(probability)
        table = table.append_column(PREDICTION, pa.array(labels, label))
        own = [prediction.probability for prediction in predictions]
        table = table.append_column(PROBABILITY, pa.array(own, probability))
        if self.probabilities:
            columns = probabilities_of(scores, classifier.problem).T  # (C, n)
            for name, column in zip(classifier.saved.config.labels, columns, strict=True):
                table = table.append_column(f"{PROBABILITY}_{name}", [np.ascontiguousarray(column)])
        return table


def _texts_of(table: "pa.Table", column: str) -> list[str]:
    """Return the texts of a column, which must hold nothing else."""
    import pyarrow as pa

    texts = table[column]
    if pa.types.is_dictionary(texts.type):
        texts = texts.cast(texts.type.value_type)
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        raise InputError(f"column '{column}' holds values of the type {texts.type}, not texts")
    if texts.null_count:
        raise InputError(f"column '{column}' has {texts.null_count:,} rows without a text in a batch of {len(texts):,}")
    return texts.to_pylist()


def read_files(source: str | Path, format: Format | None = None) -> "Dataset":
    """Return the rows of a file, or of a folder of them: Parquet is read by Ray, all else as `records` reads it.

    Paths that every machine can read; of Parquet also an address that Arrow knows, as s3://bucket/folder.
    """
    import ray.data

    context = ray.data.DataContext.get_current()
    context.target_max_block_size = BLOCK_BYTES
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised, too

    files = _files_of(source)
    if (format or format_of(Path(files[0]))) == "parquet":
        return ray.data.read_parquet(files)
    paths = ray.data.from_items(files, override_num_blocks=len(files))
    return paths.map_batches(_tables_of, fn_kwargs={"format": format}, batch_size=1)


def _files_of(source: str | Path) -> list[str]:
    if "://" in str(source):
        return [str(source)]
    path = Path(source).resolve()
    if path.is_file():
        return [str(path)]
    files = sorted(str(each) for each in path.iterdir() if each.name[0] not in "._") if path.is_dir() else []
    if not files:
        raise InputError(f"{source}: no file, and no folder with files in it")
    return files


def _tables_of(paths: dict[str, np.ndarray], format: Format | None) -> "Iterator[pa.Table]":
    """The rows of files, some thousand per table; their types are those of the first ones."""
    import pyarrow as pa

    for path in paths["item"]:
        schema = None
        with records(str(path), format) as rows:
            for chunk in rows.chunks(BATCH_ROWS):
                table = pa.Table.from_pylist(chunk, schema)
                schema = table.schema
                yield table


def predict_files(
    model: str | Path,
    source: str | Path,
    out: str | Path,
    format: Format | None = None,
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Predict the rows of files into a folder of Parquet files, which appears when all is written.

    The rows come in any order. `options` are those of `predict_dataset`.
    """
    with new_folder(Path(out), {DONE}, overwrite) as draft, reported_errors(source):
        predict_dataset(read_files(source, format), model, **options).write_parquet(str(draft))
        (draft / DONE).touch()


@contextmanager
def reported_errors(source: object) -> Iterator[None]:
    """Context manager: turn an error of a worker into an `InputError` of one line."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        own = OWN_ERROR.findall(str(error))  # of the errors that led to this one their text alone comes back
        raise InputError(f"{source}: {own[-1] if own else first_line(error)}") from None
