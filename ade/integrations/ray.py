"""Ray Data: predict tables of any number of rows on the cores of one machine or of many, with or without torch.

`predict_dataset` adds columns to a `ray.data.Dataset`, which Ray reads and writes. A worker loads the model once and
predicts batches; Ray starts a killed worker again and repeats the batches it had not finished.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ade.configuration import CLASSIFIER, check_kind
from ade.data.columns import find_text_column
from ade.data.problems import MULTI, REGRESSION
from ade.decision import decide, probabilities_of
from ade.errors import InputError
from ade.files import kind_of
from ade.trained_model import Classifier

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data import Dataset

PREDICTION, PROBABILITY = "prediction", "probability"  # the columns that are added
BATCH_ROWS = 4096  # predicted per call


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

        texts, classifier = table[self.text].to_pylist(), self.classifier
        wrong = [text for text in texts if not isinstance(text, str)]
        if wrong:
            count = f"{len(wrong):,} rows without a text in a batch of {len(texts):,}"
            raise InputError(f"column '{self.text}' has {count}, as {str(wrong[0])[:40]}")

        scores = classifier.scores(texts)  # (n, C)
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
