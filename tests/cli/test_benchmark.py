"""`ade benchmark`: it runs on its own texts and on a file, and says all it measured."""

import json


def test_a_model_is_measured_on_a_file(ade, trained, topic_folder):
    status, out, errors = ade("benchmark", trained, topic_folder / "test.csv", "--texts", 30, "--single", 5, "--json")
    found = json.loads(out)
    assert (status, errors) == (0, "")
    assert found["texts"] == 30
    assert [each["name"] for each in found["results"]] == ["cold", "warm", "tokenizer alone"]
    for each in found["results"]:
        assert each["texts_per_second"] > 0
        assert 0 < each["p50_ms"] <= each["p95_ms"]


def test_without_a_file_there_are_texts(ade, trained, monkeypatch):
    status, out, errors = ade("benchmark", trained, "--texts", 20, "--single", 3)
    assert (status, errors) == (0, "")
    assert "20 texts (wordnet)" in out
    assert max(map(len, out.splitlines())) <= 80
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # as where the data set is not installed
    status, out, errors = ade("benchmark", trained, "--texts", 20, "--single", 3, "--json")
    assert (status, json.loads(out)["source"]) == (0, "sentences")
    assert "is not installed" in errors


def test_no_texts_are_one_line(ade, trained, tmp_path):
    (tmp_path / "empty.txt").touch()
    assert ade("benchmark", trained, tmp_path / "empty.txt") == (
        2,
        "",
        f"ade: {tmp_path / 'empty.txt'}: has no texts\n",
    )
