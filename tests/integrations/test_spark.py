"""Spark: the column that the user-defined function adds is what one process predicts."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from ade.runtime.runtime import Runtime
from ade.settings import STRONG
from ade.training.loop import fit_model
from tests.conftest import PATIENT, topic_texts

CODE = """
import sys
from pyspark.sql import SparkSession
from ade.integrations.spark import predict_udf

model, source, out = sys.argv[1:]
options = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
builder = SparkSession.builder.master("local[2]")
for name, value in options.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = spark.read.parquet(source).repartition(4)
rows.withColumn("found", predict_udf(model)("text")).select("id", "found.*").write.parquet(out)
spark.stop()
"""


def test_the_column_is_what_one_process_predicts(codebook, topics, tmp_path):
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs a Java runtime")
    import pyarrow as pa
    import pyarrow.parquet

    settings = replace(STRONG, steps=40, batch_size=16, learning_rate=0.01, device="cpu")
    fit_model(codebook, topics, settings=settings, out=tmp_path / "model")
    texts, _ = topic_texts(300, 6)
    pyarrow.parquet.write_table(pa.table({"id": range(300), "text": texts}), tmp_path / "a.parquet")
    words = [tmp_path / "model", tmp_path / "a.parquet", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, words)],
        capture_output=True, text=True, check=False, timeout=PATIENT, cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]

    found = pyarrow.parquet.read_table(tmp_path / "out").sort_by("id")
    runtime = Runtime.load(tmp_path / "model")
    assert found["id"].to_pylist() == list(range(300))
    assert found["label"].to_pylist() == runtime.predict(texts)
    assert np.allclose(found["probability"].to_numpy(), runtime.predict_proba(texts).max(1))
