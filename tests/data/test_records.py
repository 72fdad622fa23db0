import json

import pytest

from ade.data import records
from ade.data.loading import load_dataset
from ade.data.problems import REGRESSION


def _labels(path):
    found = load_dataset(path)
    return [found.names[i] for i in found.labels]


@pytest.mark.parametrize("form", ["{}\n{}\n", "[{}, {}]"])
def test_labels_stay_as_they_are_written(form, tmp_path):
    for one, other in (
        ("2020-01-01", "2020-01-02"),
        ("2020-01-01T00:00:00", "12:30"),
        ("01", "1"),
    ):
        rows = [json.dumps({"text": "a", "label": label}) for label in (one, other)]
        (tmp_path / "a.json").write_text(form.format(*rows))
        assert _labels(tmp_path / "a.json") == [one, other]
    for one, other in (("1", "2"), ("1.0", "1e3"), ("true", "false"), ("-1", "123456789012345678901234567890")):
        rows = [f'{{"text": "a", "label": {label}}}' for label in (one, other)]
        (tmp_path / "a.json").write_text(form.format(*rows))
        assert _labels(tmp_path / "a.json") == [one, other]
    (tmp_path / "a.json").write_text(form.format('{"text": 5, "label": [1, true]}', '{"text": true, "label": ["b"]}'))
    found = load_dataset(tmp_path / "a.json")
    assert list(found.texts) == ["5", "true"]
    assert set(found.names) == {"1", "true", "b"}


def test_numbers_are_numbers_where_they_are_asked_for(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 1.5}\n{"text": "b", "label": "2e1"}\n')
    assert load_dataset(tmp_path / "a.jsonl", problem=REGRESSION).labels.tolist() == [1.5, 20]


@pytest.mark.parametrize("form", ["{}\n{}\n", "[{}, {}]", "[\n  {},\n  {}\n]\n"])
def test_objects_of_megabytes(form, tmp_path):
    text = "long \u00e9 " * 400_000
    rows = [json.dumps({"text": text + str(i), "label": "xy"[i]}, ensure_ascii=bool(i)) for i in range(2)]
    (tmp_path / "a.json").write_text(form.format(*rows), "utf8")
    found = load_dataset(tmp_path / "a.json")
    assert [text[-3:] for text in found.texts] == ["\u00e9 0", "\u00e9 1"]
    assert [len(text) for text in found.texts] == [2_800_001] * 2


@pytest.mark.parametrize("block", [1, 2, 7, 64])
def test_an_array_is_read_block_by_block(block, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "READ_CHARS", block)
    rows = [{"text": f'te "xt" {i} \n', "label": "xy"[i % 2], "n": [i, {"a": None}], "b": -1.5e9} for i in range(30)]
    for indent in (None, 2):
        (tmp_path / "a.json").write_text("\n [ " + json.dumps(rows, indent=indent)[1:])
        found = load_dataset(tmp_path / "a.json")
        assert list(found.texts) == [row["text"] for row in rows]
        assert found.labels.tolist() == [0, 1] * 15
