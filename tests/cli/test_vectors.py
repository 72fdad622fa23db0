"""`ade distill-encoder`, `ade encode` and `ade search`, as a shell would run them."""

import json
import subprocess
import sys

import numpy as np
import pytest

from ade.configuration import ENCODER
from ade.trained_model import Encoder, encode
from tests.conftest import topic_texts, untrained

TEXTS = topic_texts(40, 3)[0]


@pytest.fixture(scope="module")
def folder(codebook, tmp_path_factory):
    """An encoder that has learned nothing: texts with the same words are still near to one another."""
    out = tmp_path_factory.mktemp("encoder") / "encoder"
    Encoder(untrained(codebook, (), kind=ENCODER, heads=4, output_size=8, position_scale=0.1)).save(out)
    return out


@pytest.fixture
def lines(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS), "utf8")
    return file


def test_numpy_files_hold_the_vectors(ade, folder, lines, tmp_path, monkeypatch):
    monkeypatch.setattr("ade.cli.vectors.CHUNK", 7)  # several parts
    out = tmp_path / "vectors.npy"
    assert ade("encode", lines, "--encoder", folder, "--out", out)[0] == 0
    found = np.load(out, allow_pickle=False)
    assert found.dtype == np.float32
    assert np.allclose(found, Encoder.load(folder).encode(TEXTS), atol=1e-6)
    status, _, error = ade("encode", lines, "--encoder", folder, "--out", out)
    assert status == 2
    assert "--overwrite" in error
    assert ade("encode", lines, "--encoder", folder, "--out", out, "--dim", 3, "--overwrite")[0] == 0
    assert np.load(out).shape == (40, 3)


def test_json_lines_keep_the_columns(ade, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("ade.cli.vectors.CHUNK", 3)
    source = tmp_path / "rows.csv"
    source.write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(TEXTS[:5])), "utf8")
    vectors = Encoder.load(folder).encode(TEXTS[:5])

    assert ade("encode", source, "--encoder", folder, "--out", tmp_path / "v.jsonl")[0] == 0
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text("utf8").splitlines()]
    assert [row["id"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert np.allclose([row["vector"] for row in rows], vectors, atol=1e-6)


def test_standard_input_to_standard_output(folder):
    command = [sys.executable, "-m", "ade", "encode", "--encoder", str(folder)]
    done = subprocess.run(command, input="\n".join(TEXTS[:3]), capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["text"] for row in rows] == TEXTS[:3]
    assert np.allclose([row["vector"] for row in rows], Encoder.load(folder).encode(TEXTS[:3]), atol=1e-6)


def test_what_cannot_be_written_is_refused_at_once(ade, folder, lines, tmp_path):
    for words, message in (
        (("--out", tmp_path / "v.txt"), "end the name in .npy, .jsonl"),
        (("--out", tmp_path / "no" / "v.npy"), "not a file in a folder that exists"),
        (("--dim", "9"), "8 dimensions; 9 cannot be kept"),
    ):
        status, _, error = ade("encode", lines, "--encoder", folder, *words)
        assert status == 2
        assert message in error
        assert len(error.strip().splitlines()) == 1
    assert not list(tmp_path.glob("*v.*"))


def test_search_finds_the_text_itself_first(ade, folder, lines, tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    for _ in range(2):  # computed, then from the cache
        status, out, _ = ade("search", lines, TEXTS[7], "--encoder", folder, "--top", 3, "--json")
        assert status == 0
        hits = json.loads(out)["results"][TEXTS[7]]
        assert len(hits) == 3
        assert hits[0]["text"] == TEXTS[7]
        assert hits[0]["score"] == pytest.approx(1, abs=1e-2)
        assert hits[0]["score"] >= hits[1]["score"] >= hits[2]["score"]
    (kept,) = (tmp_path / "cache" / "search").iterdir()
    assert np.load(kept).shape == (40, 8)

    status, out, _ = ade("search", lines, "goal match", "rocket", "--encoder", folder)
    assert status == 0
    assert "goal match" in out
    assert max(map(len, out.splitlines())) <= 100


def test_without_a_name_the_included_encoder_is_taken(ade, tmp_path):
    (tmp_path / "texts.txt").write_text("a wading bird with long legs\nthe shares fell sharply on monday\n")
    status, out, _ = ade("search", tmp_path / "texts.txt", "stock market", "heron", "--json")
    first = [hits[0]["row"] for hits in json.loads(out)["results"].values()]
    assert (status, first) == (0, [1, 0])
    vectors = [json.loads(line)["vector"] for line in ade("encode", tmp_path / "texts.txt")[1].splitlines()]
    np.testing.assert_allclose(
        vectors, encode(["a wading bird with long legs", "the shares fell sharply on monday"]), atol=1e-6
    )


def test_labels_need_no_rows(ade, tmp_path):
    (tmp_path / "texts.txt").write_text("the team won the match\nshares fell sharply\n" * 3)
    (tmp_path / "labels.tsv").write_text("S\tsport, games and teams\nB\tbusiness, markets and money\n")
    for labels, expected in (("sport,business", ["sport", "business"] * 3), (tmp_path / "labels.tsv", ["S", "B"] * 3)):
        status, out, _ = ade("predict", "--labels", labels, tmp_path / "texts.txt")
        assert (status, [line.split("\t")[0] for line in out.splitlines()]) == (0, expected)
    status, _, error = ade("predict", "--labels", "sport", tmp_path / "texts.txt")
    assert (status, "at least two labels" in error) == (2, True)
    ade("predict", "--labels", "sport,business", tmp_path / "texts.txt", "--output", tmp_path / "rows.csv")
    assert ade("train", tmp_path / "rows.csv", "--out", tmp_path / "model")[0] == 0


def test_other_verbs_say_what_to_do_instead(ade, folder, trained, lines, topic_folder, teacher_folder, tmp_path):
    data, out, instead = topic_folder / "train.csv", tmp_path / "out", "'ade train --from' trains a classifier on it"
    (tmp_path / "empty").mkdir()
    for words, message in (
        (("distill-encoder", "--teacher", teacher_folder, "--corpus", lines, "--out", out), "not a readable sentence"),
        (("predict", folder, lines), "'ade encode' writes its vectors"),
        (("predict", folder, lines, "--explain"), instead),
        (("evaluate", folder, data), instead),
        (("inspect", folder, "bank", "--text", "the bank"), instead),
        (("inspect", folder, "--html", out), instead),
        (("compress", folder, "--out", out), "an ADE model, whose table is small already"),
        (("train", data, "--teacher", folder, "--out", out), "'ade train --from' starts from it"),
        (("train", data, "--from", folder, "--distill-from", folder, "--out", out), "a classifier of texts"),
        (("distill", "--teacher", folder, "--out", out), "an ADE model has no embedding table to distil"),
        (("encode", lines, "--encoder", trained), "an encoder is needed here, as 'ade distill-encoder' makes it"),
        (
            ("search", lines, "bank", "--encoder", trained),
            "an encoder is needed here, as 'ade distill-encoder' makes it",
        ),
        (("encode", lines, "--encoder", tmp_path / "empty"), "not a model folder"),
        (("encode", lines, "--encoder", f"{tmp_path}/nowhere/"), "no such folder"),
    ):
        status, printed, error = ade(*words)
        assert (status, printed, error.count("\n")) == (2, "", 1), error
        assert message in error, (words, error)
        assert not out.exists()
