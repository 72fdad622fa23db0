"""What is exported says what PyTorch says, in ONNX Runtime, whatever the shape; what does not is not written."""

import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.errors import InputError
from ade.integrations import onnx_export as exporting
from ade.integrations.onnx_export import FP32, INT8, export
from ade.model import AdeForSequenceClassification
from ade.settings import STRONG, Architecture
from ade.training.loop import fit_model
from tests.integrations.test_onnx_graph import (
    MODES,
    TEXTS,
    large_lexicon,
    session_of,
    with_lexicon,
    written,
)
from tests.packing.test_budget import packed_codebook
from tests.runtime.test_projection import shaken

WEB = Path(__file__).parents[2] / "examples" / "web"


@pytest.fixture(scope="module", params=MODES)
def classifier(request, codebook, topics):
    settings = STRONG.__class__(steps=60, batch_size=16, learning_rate=5e-3, device="cpu")
    shape = Architecture(attend=request.param, max_tokens=50)
    made = fit_model(codebook, topics, settings=settings, architecture=shape)
    assert made.model.lexicon is not None
    return made


# -- the folder ----------------------------------------------------------------------------------------------------


def test_a_foreign_runtime_needs_the_folder_alone(classifier, topics, tmp_path):
    """Read back with tokenizers, JSON and onnxruntime: the labels are the classifier's, on texts of every kind."""
    checked = export(classifier, tmp_path / "onnx")
    assert written(tmp_path) == ["onnx"]
    assert written(tmp_path / "onnx") == ["config.json", INT8, FP32, "tokenizer.json"]
    config = json.loads((tmp_path / "onnx" / "config.json").read_text("utf8"))
    assert config["labels"] == ["money", "space", "sport"]
    assert (config["max_tokens"], config["max_length"], config["problem"]) == (50, 64 * 50, SINGLE)
    assert config["files"] == [each.as_dict() for each in checked]
    tokenizer = Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    texts = [*TEXTS, *topics.texts[:100]]
    rows = [encoding.ids or [0] for encoding in tokenizer.encode_batch(texts)]
    assert max(map(len, rows)) == 200  # four windows
    mask = np.arange(200) < np.array([[len(row)] for row in rows])
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate(rows)
    expected = classifier.predict_proba(texts)
    for each, limit in zip(checked, (1e-3, 0.05), strict=True):
        session = session_of(str(tmp_path / "onnx" / each.file))
        found = session.run(["probabilities"], {"input_ids": ids, "attention_mask": mask.astype(np.int64)})[0]
        assert np.abs(found - expected).max() < limit
        same = np.array(config["labels"])[found.argmax(1)] == classifier.predict(texts)
        assert same.all() if each.file == FP32 else same.mean() > 0.97
        assert each.bytes == (tmp_path / "onnx" / each.file).stat().st_size
    assert checked[0].difference < 1e-4 < checked[1].difference < 0.05 * checked[1].spread


def test_a_packed_model_loses_nothing_more(tmp_path):
    book = packed_codebook(3)
    checked = export(Classifier(shaken(book, 3), book.tokenizer), tmp_path / "onnx")  # not packed yet, rounded so far
    for each in checked:
        assert each.difference < 1e-4 * each.spread
        assert each.same == 1


@pytest.mark.parametrize("file", [FP32, INT8])
def test_a_corrupted_graph_is_refused_and_nothing_is_left(file, classifier, tmp_path, monkeypatch):
    export(classifier, tmp_path / "earlier")
    kept = (tmp_path / "earlier" / FP32).read_bytes()
    original = exporting.build_graph

    def corrupted(config, state, problem):
        """One number of the classifier's weights is changed after the graph has been built."""
        data = original(config, state, problem)
        if bool(config.get("packed")) != (file == INT8):
            return data
        model = onnx.load_from_string(data)
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor).copy()
            if array.shape == state["classifier.weight"].shape:
                array[0, 0] += 100
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        return model.SerializeToString()

    monkeypatch.setattr(exporting, "build_graph", corrupted)
    with pytest.raises(InputError, match=rf"{file}: .* off PyTorch, at most .* nothing was written") as caught:
        export(classifier, tmp_path / "new")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=file):
        export(classifier, tmp_path / "earlier", overwrite=True)
    assert written(tmp_path) == ["earlier"]
    assert (tmp_path / "earlier" / FP32).read_bytes() == kept


def test_what_is_not_a_number_is_refused(codebook, tmp_path):
    model = shaken(codebook, 3)
    with torch.no_grad():
        model.classifier.bias[1] = torch.nan
    with pytest.raises(InputError, match="nan off PyTorch"):
        export(Classifier(model, codebook.tokenizer), tmp_path / "onnx")
    assert written(tmp_path) == []


def test_a_model_that_8_bits_cannot_hold_is_refused(codebook, tmp_path):
    """Two huge numbers in each anchor take the scale; the rest, which is all the classifier hears, is rounded away."""
    model = shaken(codebook, 3, attend="tokens", sat=False)
    with torch.no_grad():
        model.ade.embedding.anchors[:, :2] = torch.tensor([1e4, -1e4])
        model.ade.norm.weight.mul_(1e3)[:2] = 0
    with pytest.raises(InputError, match=r"model.int8.onnx: .* 8 bits are too few"):
        export(Classifier(model, codebook.tokenizer), tmp_path / "onnx")
    assert written(tmp_path) == []


def test_decisions_that_are_not_clear_do_not_count():
    expected = np.array([[0.0, 10.0], [5.0, 5.01], [9.0, 1.0]])
    other = np.array([[0.1, 9.9], [5.02, 5.0], [1.0, 9.0]])
    assert exporting._agreement(other, expected, 10.0, SINGLE) == 0.5
    assert exporting._agreement(other - 5, expected - 5, 10.0, "multi_label_classification") == 0.5
    assert exporting._agreement(other, expected, 10.0, "regression") == 1
    assert exporting._agreement(np.ones((2, 1)), np.ones((2, 1)), 0.0, SINGLE) == 1


def test_special_tokens_are_told(codebook, tmp_path):
    tokenizer = Tokenizer.from_str(codebook.tokenizer.to_str())
    names = tokenizer.get_vocab()
    special = [("goal", names["goal"]), ("orbit", names["orbit"])]
    tokenizer.post_processor = TemplateProcessing(single="goal orbit $A orbit", special_tokens=special)
    export(Classifier(shaken(codebook, 3), tokenizer), tmp_path / "onnx")
    config = json.loads((tmp_path / "onnx" / "config.json").read_text())
    assert (config["before"], config["after"]) == ([names["goal"], names["orbit"]], [names["orbit"]])


def test_a_folder_with_something_else_is_left_alone(classifier, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="already holds something else"):
        export(classifier, tmp_path, overwrite=True)
    assert written(tmp_path) == ["mine.txt"]


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(package, classifier, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=r"pip install 'ade-embeddings\[onnx\]'"):
        export(classifier, tmp_path / "onnx")
    assert written(tmp_path) == []


def test_the_documented_python_runs(classifier, tmp_path):
    export(classifier, tmp_path / "onnx")
    page = (WEB.parent.parent / "docs" / "export.md").read_text("utf8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1].replace("a wading bird with long legs", TEXTS[1])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert (done.stdout, done.stderr) == ("money\n", "")


# -- the verb ------------------------------------------------------------------------------------------------------


def test_the_verb(classifier, ade, tmp_path):
    classifier.save(tmp_path / "model")
    status, out, err = ade("export", tmp_path / "model", "--out", tmp_path / "onnx")
    assert (status, err) == (0, "")
    assert " ".join(out.splitlines()[0].split()) == "file size largest difference of the spread same labels"
    assert [line.split()[0] for line in out.splitlines()[1:]] == [FP32, INT8]
    status, out, err = ade("export", tmp_path / "model", "--out", tmp_path / "onnx")
    assert (status, out) == (2, "")
    assert "pass --overwrite" in err
    status, out, _ = ade("export", tmp_path / "model", "--out", tmp_path / "onnx", "--overwrite", "--json", "--seed", 3)
    assert status == 0
    files = json.loads(out)["files"]
    assert [each["file"] for each in files] == [FP32, INT8]
    assert all(each["same"] >= 0.95 for each in files)
    status, _, err = ade("export", tmp_path / "nothing", "--out", tmp_path / "other")
    assert status == 2
    assert err.count("\n") == 1
    assert written(tmp_path) == ["model", "onnx"]


# -- JavaScript ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not (WEB / "node_modules").is_dir(), reason="'npm install' was not run in examples/web")
def test_the_node_script_says_what_python_says(tmp_path):
    """onnxruntime-web and a tokenizer in JavaScript, on a vocabulary of 32,000: the same ids, the same numbers."""
    from ade.teachers import load_teacher

    tokenizer = load_teacher("wordllama").tokenizer
    count, generator = tokenizer.get_vocab_size(), torch.Generator().manual_seed(2)
    pairs = torch.randint(0, 300, (3 * count,), generator=generator), torch.randn(3 * count, generator=generator)
    table = torch.randn(300, 32, generator=generator)
    book = Codebook.from_pairs(table, *pairs, torch.full((count,), 3), tokenizer)
    model = shaken(book, 4, max_tokens=40)
    words = tokenizer.encode("a wading bird with long legs, money and water").ids
    pairs = [count * (first + 1) + second for first, second in pairwise(words)]
    classifier = Classifier(with_lexicon(model, large_lexicon(count, 4, 3000, (*words, *pairs))), tokenizer)
    export(classifier, tmp_path / "onnx")
    texts = ["a wading bird with long legs", "", "naïve café 日本語 🙂", "money and water " * 60, "<s> two\ttabs"]
    expected = classifier.predict_proba(texts)
    for flags, limit in ((["--fp32"], 1e-3), ([], 0.1)):
        command = ["node", str(WEB / "classify.mjs"), str(tmp_path / "onnx"), "--json", *flags, *texts]
        answers = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for answer, row in zip(answers, expected, strict=True):
            found = {each["label"]: each["probability"] for each in answer["labels"]}
            assert np.abs(np.array([found[name] for name in classifier.names]) - row).max() < limit
            assert answer["decided"] == answer["labels"][0]["label"]
        if flags:
            assert [answer["decided"] for answer in answers] == classifier.predict(texts)
    broken = subprocess.run(
        ["node", str(WEB / "classify.mjs"), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert broken.returncode == 2
    assert broken.stderr.count("\n") == 1


@pytest.mark.parametrize("problem", [MULTI, REGRESSION])
def test_several_labels_and_numbers_leave_as_they_are(problem, codebook, tmp_path):
    names = ["value"] if problem == REGRESSION else ["a", "b", "c"]
    model = AdeForSequenceClassification.from_codebook(codebook, names, Architecture(heads=2), problem_type=problem)
    made = Classifier(model, codebook.tokenizer)
    export(made, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["problem"] == problem
    session = session_of(str(tmp_path / "out" / FP32))
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    for text in TEXTS[:2]:
        ids = np.array([tokenizer.encode(text).ids], dtype=np.int64)
        found = dict(
            zip(
                [output.name for output in session.get_outputs()],
                session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)}),
                strict=True,
            )
        )
        if problem == REGRESSION:
            assert set(found) == {"logits"}
            assert found["logits"].item() == pytest.approx(made.predict(text), rel=1e-4)
        else:
            assert np.allclose(found["probabilities"][0], made.predict_proba(text), atol=1e-5)
