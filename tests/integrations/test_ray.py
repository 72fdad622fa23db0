"""Ray Data: the same predictions as one process, from every kind of file, whatever happens to a worker."""

import csv
import json
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
from ade.integrations.ray import (
    TablePredictor,
    connected,
    predict_dataset,
    predict_files,
    read_files,
    reported_errors,
)
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
        with connected("local", 1):
            yield


@pytest.fixture(scope="module")
def model(codebook, topics, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("ray") / "model"
    fit_model(codebook, topics, settings=QUICK, out=out)
    return out


def table_of(folder: Path) -> pa.Table:
    """The rows of the Parquet files of a folder."""
    return pa.concat_tables([pyarrow.parquet.read_table(path) for path in sorted(folder.glob("*.parquet"))])


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
    [(pa.array([1, 2]), "holds values of the type int64, not texts"), (pa.array(["a", None]), "has 1 rows without a")],
)
def test_a_column_without_texts_is_refused(model, column, message):
    with pytest.raises(InputError, match=message):
        TablePredictor(str(model))(pa.table({"text": column}))


def write_files(folder: Path, kind: str) -> Path:
    """All texts, in two files."""
    source = folder / kind
    source.mkdir()
    for part in range(2):
        texts, first = TEXTS[part * 250 : part * 250 + 250], part * 250
        path = source / f"{part}.{kind}"
        if kind == "parquet":
            ids = range(first, first + 250)
            pyarrow.parquet.write_table(pa.table({"id": ids, "review": texts}), path, row_group_size=50)
        elif kind == "csv":
            with open(path, "w", newline="") as file:
                rows = [(f"{first + i:03d}", text) for i, text in enumerate(texts)]
                csv.writer(file, delimiter=";").writerows([("id", "review"), *rows])
        elif kind == "jsonl":
            rows = [{"id": first + i, "review": text} for i, text in enumerate(texts)]
            path.write_text("\n".join(map(json.dumps, rows)))
        else:
            path.write_text("\n".join(texts) + "\n")
    return source


def test_files_are_predicted_as_one_process_does(cluster, model, tmp_path, monkeypatch):
    monkeypatch.setattr(integration, "BATCH_ROWS", 64)
    source = write_files(tmp_path, "csv")
    predict_files(model, source, tmp_path / "out", workers=1)
    found = table_of(tmp_path / "out").sort_by("id")
    expected = Classifier.load(model).predict(TEXTS)
    assert found["id"].to_pylist() == [f"{i:03d}" for i in range(500)]  # all of them once; a 001 is not the number 1
    assert found["review"].to_pylist() == TEXTS
    assert found["prediction"].to_pylist() == [each.label for each in expected]
    assert np.allclose(found["probability"].to_numpy(), [each.probability for each in expected])
    with pytest.raises(InputError, match="already holds an earlier result"):
        predict_files(model, source, tmp_path / "out")


def test_rows_of_other_files_are_read_all_of_them_once(cluster, tmp_path):
    for kind in ("parquet", "jsonl"):
        found = read_files(write_files(tmp_path, kind)).to_pandas().sort_values("id")
        assert (found["id"].tolist(), found["review"].tolist()) == (list(range(500)), TEXTS)
    found = read_files(write_files(tmp_path, "txt")).to_pandas()
    assert (list(found), sorted(found["text"])) == (["text"], sorted(TEXTS))
    (tmp_path / "a.csv").write_text("text,n\na,1\nb\n")
    with (
        pytest.raises(InputError, match=r"a\.csv, row 2 \(line 3\): .* 1 field, the header 2"),
        reported_errors("a.csv"),
    ):
        read_files(tmp_path / "a.csv").to_pandas()


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


def test_an_error_of_a_worker_is_one_line_and_nothing_is_written(cluster, model, tmp_path):
    pyarrow.parquet.write_table(pa.table({"text": ["a", None]}), tmp_path / "a.parquet")
    with pytest.raises(InputError) as raised:
        predict_files(model, tmp_path / "a.parquet", tmp_path / "out")
    assert str(raised.value) == f"{tmp_path / 'a.parquet'}: column 'text' has 1 rows without a text in a batch of 2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet"]


def test_an_encoder_is_refused_before_any_worker_starts(tmp_path):
    sentence_encoder().save(tmp_path / "encoder")
    with pytest.raises(InputError, match="'ade encode' writes its vectors"):
        predict_dataset(None, tmp_path / "encoder")
