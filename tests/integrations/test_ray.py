"""Ray Data: the same predictions as one process, whatever happens to a worker."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from ade.data.dataset import Dataset
from ade.errors import InputError
from ade.integrations import ray as integration
from ade.integrations.ray import TablePredictor, predict_dataset
from ade.settings import STRONG
from ade.trained_model import Classifier
from ade.training.loop import fit_model
from tests.conftest import sentence_encoder, topic_texts

QUICK = replace(STRONG, steps=40, batch_size=16, learning_rate=0.01, device="cpu")
TEXTS, LABELS = topic_texts(500, 5)


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray", reason="ray is not installed: pip install 'ade-embeddings[ray]'")
    with pytest.MonkeyPatch.context() as patch:  # workers import what the driver does, from wherever it runs
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        import ray

        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def model(codebook, topics, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("ray") / "model"
    fit_model(codebook, topics, settings=QUICK, out=out)
    return out


def test_columns_of_every_kind_of_problem(codebook, topics, model):
    """What a worker does, without any cluster."""
    table = pa.table({"text": TEXTS[:5], "id": range(5)})
    classifier = Classifier.load(model)
    found = TablePredictor(str(model), "text", True)(table)
    shares = [f"probability_{name}" for name in classifier.labels]
    assert found.column_names == ["text", "id", "prediction", "probability", *shares]
    assert found["prediction"].to_pylist() == [each.label for each in classifier.predict(TEXTS[:5])]
    assert np.allclose(np.stack([found[name].to_numpy() for name in shares], 1), classifier.predict_proba(TEXTS[:5]))
    assert TablePredictor(str(model), threshold=1.0)(table)["prediction"].to_pylist() == [None] * 5
    assert TablePredictor(str(model))(table.slice(0, 0)).schema == found.schema.remove(6).remove(5).remove(4)

    several = Dataset(topics.texts, np.eye(3, dtype=bool)[topics.labels], topics.names)
    numbers = Dataset(topics.texts, topics.labels.astype(np.float32), ("value",))
    for data, kind in ((several, pa.list_(pa.string())), (numbers, pa.float64())):
        folder = model.parent / data.problem
        fit_model(codebook, data, settings=QUICK, out=folder, existing="overwrite")
        found = TablePredictor(str(folder))(table)
        assert found["prediction"].type == kind
        predicted = [each.label for each in Classifier.load(folder).predict(TEXTS[:5])]
        assert found["prediction"].to_pylist() == (predicted if data is several else pytest.approx(predicted))
        assert ("probability" in found.column_names) == (data is several)


@pytest.mark.parametrize(
    ("column", "message"),
    [(pa.array([1, 2]), "has 2 rows without a text .* as 1"), (pa.array(["a", None]), "has 1 rows without a")],
)
def test_a_column_without_texts_is_refused(model, column, message):
    with pytest.raises(InputError, match=message):
        TablePredictor(str(model))(pa.table({"text": column}))


def test_a_killed_worker_loses_nothing(cluster, model, tmp_path, monkeypatch):
    marker = str(tmp_path / "killed")

    class Mortal(TablePredictor):  # pickled by its value, as it is no part of a module
        def __call__(self, table):
            found = super().__call__(table)
            if not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return found

    import ray.data

    monkeypatch.setattr(integration, "TablePredictor", Mortal)
    monkeypatch.setattr(integration, "BATCH_ROWS", 50)
    rows = ray.data.from_arrow(
        [pa.table({"id": range(i, i + 50), "text": TEXTS[i : i + 50]}) for i in range(0, 200, 50)]
    )
    found = predict_dataset(rows, model, workers=1).to_pandas().sort_values("id")
    assert os.path.exists(marker)
    assert found["id"].tolist() == list(range(200))
    assert found["prediction"].tolist() == [each.label for each in Classifier.load(model).predict(TEXTS[:200])]


def test_an_encoder_is_refused_before_any_worker_starts(tmp_path):
    sentence_encoder().save(tmp_path / "encoder")
    with pytest.raises(InputError, match="'ade encode' writes its vectors"):
        predict_dataset(None, tmp_path / "encoder")
