"""Spark: a user-defined function that predicts a column of texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ade.data.problems import SINGLE
from ade.errors import InputError
from ade.runtime.runtime import Runtime

BATCH_ROWS = 4096


def predict_udf(model: str | Path, batch_size: int = BATCH_ROWS) -> Any:
    """A `predict_batch_udf` that gives label and probability of a text, as a struct of both.

    Args:
        model: the folder of a single-label classifier that every executor can read, or a name on the hub.
        batch_size: rows predicted at a time.
    """
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import DoubleType, StringType, StructField, StructType

    path = str(Path(model).resolve() if Path(model).exists() else model)

    def load() -> Callable[[np.ndarray], dict[str, np.ndarray]]:  # once in each worker
        predictor = Runtime.load(path, threads=1)
        if predictor.problem != SINGLE:
            raise InputError(f"{path}: not a single-label classifier")

        def predict(texts: np.ndarray) -> dict[str, np.ndarray]:
            shares = predictor.predict_proba(texts.tolist())  # (n, C)
            return {"label": np.array(predictor.names, object)[shares.argmax(1)], "probability": shares.max(1)}

        return predict

    result = StructType([StructField("label", StringType()), StructField("probability", DoubleType())])
    return predict_batch_udf(load, return_type=result, batch_size=batch_size)
