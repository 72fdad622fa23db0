"""What is exported says what PyTorch says, in ONNX Runtime, whatever the shape; what does not is not written."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.errors import InputError
from ade.integrations import onnx_export as exporting
from ade.integrations.onnx_export import FP32, INT8, export
from ade.integrations.onnx_graph import build_graph
from ade.integrations.onnx_lexicon import lexicon_logits
from ade.integrations.onnx_nodes import Graph
from ade.lexicon import Lexicon, LexiconShape, key_range, unpack
from ade.model import AdeForSequenceClassification
from ade.packing.format import Packing
from ade.packing.lexicon_packing import pack_lexicon
from ade.packing.unpack import unpacked
from ade.settings import STRONG, Architecture
from ade.training.loop import fit_model
from tests.conftest import ragged_codebook
from tests.packing.test_budget import packed_codebook
from tests.runtime.test_projection import off, shaken
from tests.test_lexicon import VOCABULARY, some_lexicon
from tests.training.test_problems import numbers, several

MODES = ["tokens", "anchors", "gated"]
TEXTS = ["the team and the coach", "bank share price", "", "rocket", "of the comet in orbit " * 40]
WEB = Path(__file__).parents[2] / "examples" / "web"


def session_of(data: bytes | str) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def logits_of(session: onnxruntime.InferenceSession, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return session.run(["logits"], {"input_ids": ids, "attention_mask": mask.astype(np.int64)})[0]


def graph_session(model) -> onnxruntime.InferenceSession:
    return session_of(build_graph(model.config.to_dict(), model.arrays(), SINGLE))


def compare(model, ids: np.ndarray, mask: np.ndarray) -> float:
    with torch.inference_mode():
        expected = model(torch.from_numpy(ids), torch.from_numpy(mask)).logits.numpy()
    return off(logits_of(graph_session(model), ids, mask), expected)


def with_lexicon(model, lexicon: Lexicon):
    """The same model, a lexicon packed and attached to it."""
    model.attach_lexicon(*pack_lexicon(lexicon, 1.0, np.full(len(lexicon), 3), SINGLE))
    return model.packed()


@cache
def small_lexicon() -> tuple[LexiconShape, dict[str, np.ndarray]]:
    return pack_lexicon(some_lexicon(4), 1.0, np.full(len(some_lexicon(4)), 3), SINGLE)


def large_lexicon(vocabulary: int, labels: int, entries: int, with_keys: tuple[int, ...] = ()) -> Lexicon:
    """Random tokens and pairs; the largest key there can be, and those given, are among them."""
    draw = np.random.default_rng(3)
    pairs = draw.integers(vocabulary, key_range(vocabulary), entries)
    tokens = draw.integers(0, vocabulary, entries // 4)
    keys = np.unique(np.concatenate([tokens, pairs, [key_range(vocabulary) - 1, *with_keys]]))
    idf, bias = draw.uniform(1, 9, len(keys)).astype(np.float32), draw.standard_normal(labels).astype(np.float32)
    return Lexicon(vocabulary, keys, idf, draw.standard_normal((len(keys), labels)).astype(np.float32), bias)


def written(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module", params=MODES)
def classifier(request, codebook, topics):
    settings = STRONG.__class__(steps=60, batch_size=16, learning_rate=5e-3, device="cpu")
    shape = Architecture(attend=request.param, max_tokens=50)
    made = fit_model(codebook, topics, settings=settings, architecture=shape)
    assert made.model.lexicon is not None
    return made


# -- the graph -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attend", MODES)
@given(
    counts=st.lists(st.integers(1, 6), min_size=3, max_size=30),
    lengths=st.lists(st.integers(1, 25), min_size=1, max_size=8),
    holes=st.booleans(),
    positions=st.sampled_from(["grouped", "each", "none"]),
    bits=st.sampled_from([0, 4, 8]),
    seed=st.integers(0, 99),
)
def test_the_graph_equals_the_model(attend, counts, lengths, holes, positions, bits, seed):
    book = replace(ragged_codebook(counts, dim=20), packing=Packing(bits) if bits else None)
    model = shaken(book, 5, attend=attend, positions=positions).packed()
    draw = np.random.default_rng(seed)
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    if holes:
        mask &= draw.random(mask.shape) < 0.7
        mask[np.arange(len(mask)), draw.integers(0, mask.shape[1], len(mask))] = True
    assert compare(model, draw.integers(0, len(counts), mask.shape), mask) < 1e-4


@pytest.mark.parametrize("attend", MODES)
@pytest.mark.parametrize(("sat", "pooling"), [(True, "mean"), (False, "attention"), (False, "mean")])
def test_the_graph_equals_the_ablations(attend, sat, pooling):
    model = shaken(ragged_codebook([1, 2, 3, 4, 5] * 4, dim=15), 3, attend=attend, sat=sat, pooling=pooling, heads=3)
    mask = np.arange(9) < np.array([[3], [1], [9], [4]])
    assert compare(model, np.random.default_rng(0).integers(0, 20, mask.shape), mask) < 1e-4


@pytest.mark.parametrize("attend", MODES)
@pytest.mark.parametrize(("whole", "layers", "anchors"), [(0, 8, 8), (1, 8, 8), (3, 4, 8), (3, 16, 16)])
def test_packed_models_are_read_as_they_are_stored(attend, whole, layers, anchors):
    """Rows kept whole in 8 and 4 bits, layers in 4, 8 and 16, anchors in 8 and 16; the wide file is as near."""
    book = packed_codebook(whole)
    book = replace(book, packing=replace(book.packing, anchor_bits=anchors))
    model = shaken(book, 3, attend=attend, layer_bits=layers).packed()
    mask = np.arange(12) < np.array([[5], [1], [12], [7]])
    ids = np.arange(20 + whole, dtype=np.int64).repeat(3)[-mask.size :].reshape(mask.shape)
    assert compare(model, ids, mask) < 1e-4
    wide = session_of(build_graph(*unpacked(model.config.to_dict(), model.arrays()), SINGLE))
    assert off(logits_of(wide, ids, mask), logits_of(graph_session(model), ids, mask)) < 1e-4


@pytest.mark.parametrize("attend", MODES)
def test_padding_changes_nothing(attend):
    model = shaken(ragged_codebook([1, 5, 3, 2] * 5, dim=16), 3, attend=attend)
    narrow = exporting._quantised(model)
    draw = np.random.default_rng(1)
    for session in (graph_session(model), graph_session(narrow)):
        text = draw.integers(0, 20, (1, 6))
        alone = logits_of(session, text, np.ones((1, 6)))
        for _ in range(5):
            padded = np.hstack([np.vstack([text, draw.integers(0, 20, (2, 6))]), draw.integers(0, 20, (3, 9))])
            mask = np.arange(15) < np.array([[6], [15], [2]])
            assert np.allclose(logits_of(session, padded, mask)[:1], alone, atol=1e-5)


def test_the_codebook_stays_a_codebook():
    """No table of all tokens in the file; indices and counts in as few bytes as they need, or in bits."""
    book = ragged_codebook([4, 6, 8] * 700, anchors=300, dim=64)
    model = shaken(book, 3, attend="gated")
    wide, narrow = (
        onnx.load_from_string(build_graph(each.config.to_dict(), each.arrays(), SINGLE))
        for each in (model, exporting._quantised(model))
    )
    for graph in (wide, narrow):
        for tensor in graph.graph.initializer:
            assert numpy_helper.to_array(tensor).size < 2100 * 64
            assert len(tensor.dims) < 2 or tensor.dims[0] <= 300
    kinds = {tuple(t.dims): numpy_helper.to_array(t).dtype for t in wide.graph.initializer}
    assert kinds[2100,] == np.uint8
    assert {numpy_helper.to_array(t).dtype for t in wide.graph.initializer if list(t.dims) == [12_600]} == {
        np.dtype(np.int16),
        np.dtype(np.float32),
    }
    assert narrow.ByteSize() < 0.45 * wide.ByteSize()
    assert narrow.ByteSize() < sum(a.nbytes for a in exporting._quantised(model).arrays().values()) + 20_000


@pytest.mark.parametrize(("problem", "made"), [("multi_label_classification", "sigmoid"), (SINGLE, "softmax")])
def test_probabilities_are_the_problem_s(problem, made):
    model = shaken(ragged_codebook([2, 3] * 5, dim=16), 3)
    session = session_of(build_graph(model.config.to_dict(), model.arrays(), problem))
    logits, found = session.run(None, {name: np.ones((2, 3), np.int64) for name in ("input_ids", "attention_mask")})
    scores = torch.from_numpy(logits)
    assert np.allclose(found, scores.sigmoid() if made == "sigmoid" else scores.softmax(1), atol=1e-6)


def test_a_number_has_no_probability():
    model = shaken(ragged_codebook([2, 3] * 5, dim=16), 1)
    session = session_of(build_graph(model.config.to_dict(), model.arrays(), "regression"))
    assert [output.name for output in session.get_outputs()] == ["logits"]


def test_old_runtimes_read_it():
    model = shaken(ragged_codebook([2, 3] * 5, dim=16), 3)
    graph = onnx.load_from_string(build_graph(model.config.to_dict(), model.arrays(), SINGLE))
    assert (graph.ir_version, graph.opset_import[0].version) == (8, 17)
    shapes = {each.name: [d.dim_param for d in each.type.tensor_type.shape.dim] for each in graph.graph.input}
    assert shapes == {"input_ids": ["batch", "length"], "attention_mask": ["batch", "length"]}


# -- lexicon and windows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attend", MODES)
@given(
    lengths=st.lists(st.integers(0, 25), min_size=1, max_size=6),
    holes=st.booleans(),
    bits=st.sampled_from([0, 4]),
    lexicon=st.booleans(),
    seed=st.integers(0, 99),
)
def test_long_texts_and_lexicons_equal_the_model(attend, lengths, holes, bits, lexicon, seed):
    """Windows of 7 tokens, some without any; entries that occur again; padding that would be an entry."""
    book = replace(ragged_codebook([1, 5, 3, 2] * 3 + [4], dim=16), packing=Packing(bits) if bits else None)
    model = shaken(book, 4, attend=attend, max_tokens=7).packed()
    if lexicon:
        model.attach_lexicon(*small_lexicon())
    draw = np.random.default_rng(seed)
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    if holes:
        mask &= draw.random(mask.shape) < 0.5
    ids = draw.integers(0, VOCABULARY, mask.shape)
    assert compare(model, ids, mask) < 1e-4


def test_a_packed_model_with_a_lexicon_is_unpacked_beside_it():
    model = shaken(packed_codebook(3), 4, max_tokens=7).packed()
    model.attach_lexicon(*small_lexicon())
    ids, mask = np.random.default_rng(0).integers(0, VOCABULARY, (5, 20)), np.ones((5, 20), bool)
    wide = session_of(build_graph(*unpacked(model.config.to_dict(), model.arrays()), SINGLE))
    assert off(logits_of(wide, ids, mask), logits_of(graph_session(model), ids, mask)) < 1e-4
    assert compare(model, ids, mask) < 1e-4


@pytest.mark.parametrize("attend", MODES)
def test_texts_of_one_window_are_not_touched_by_windows(attend):
    """To the last bit what a graph says that never has two windows."""
    model = shaken(ragged_codebook([1, 5, 3, 2] * 5, dim=16), 3, attend=attend, max_tokens=10)
    config, arrays = model.config.to_dict(), model.arrays()
    one, other = (session_of(build_graph({**config, "max_tokens": size}, arrays, SINGLE)) for size in (10, 10_000))
    draw = np.random.default_rng(0)
    for shape in ((1, 1), (5, 7), (30, 10)):
        ids, mask = draw.integers(0, 20, shape), np.arange(shape[1]) < draw.integers(1, shape[1] + 1, (shape[0], 1))
        assert np.array_equal(logits_of(one, ids, mask), logits_of(other, ids, mask))
    ids, mask = draw.integers(0, 20, (2, 11)), np.ones((2, 11))
    assert not np.allclose(logits_of(one, ids, mask), logits_of(other, ids, mask))


def test_padding_adds_no_entry():
    """A text scores alike alone and beside longer ones, whatever ids the padding has."""
    model = with_lexicon(shaken(ragged_codebook([2, 3] * 6 + [1], dim=16), 3, max_tokens=8), some_lexicon(3))
    session, draw = graph_session(model), np.random.default_rng(0)
    text = draw.integers(0, VOCABULARY, (1, 6))
    alone = logits_of(session, text, np.ones((1, 6)))
    for _ in range(5):
        ids = draw.integers(0, VOCABULARY, (3, 20))
        ids[:1, :6] = text
        mask = np.arange(20) < np.array([[6], [20], [0]])
        assert np.allclose(logits_of(session, ids, mask)[:1], alone, atol=1e-5)


@pytest.mark.parametrize(("vocabulary", "entries", "labels"), [(30_000, 3000, 2), (30_000, 20, 1), (300, 4000, 30)])
def test_entries_of_a_large_vocabulary_are_found(vocabulary, entries, labels):
    """Keys of up to 30 bits, few and many: what numpy adds for the tokens of random entries, and nothing for others."""
    lexicon = large_lexicon(vocabulary, labels, entries)
    shape, arrays = pack_lexicon(lexicon, 1.0, np.full(len(lexicon), 3), MULTI)
    g, draw = Graph(), np.random.default_rng(0)
    mask = g.cast("attention_mask", "BOOL")
    g.Identity(lexicon_logits(g, shape, arrays, "input_ids", mask), name="logits")
    session = session_of(g.model({"logits": ["batch", labels]}))

    stored = unpack(shape, arrays)
    ids = exporting._entries_as_tokens(draw.choice(stored.keys, 600), vocabulary)[:600].reshape(20, 30)
    ids[10:] = draw.integers(0, vocabulary, (10, 30))
    expected = stored.logits(ids.ravel(), np.arange(0, 601, 30))
    assert np.abs(expected[:10] - stored.bias).max() > 0.1
    assert off(logits_of(session, ids, np.ones(ids.shape)), expected) < 1e-4


def test_the_lexicon_stays_packed_in_both_files():
    lexicon = large_lexicon(2100, 3, 20_000)
    model = shaken(ragged_codebook([4, 6, 8] * 700, anchors=300, dim=64), 3)

    def sizes() -> list[int]:
        narrow = exporting._quantised(model)
        made = (unpacked(model.config.to_dict(), model.arrays()), (narrow.config.to_dict(), narrow.arrays()))
        return [len(build_graph(*each, SINGLE)) for each in made]

    before, model = sizes(), with_lexicon(model, lexicon)
    after = sizes()
    stored = sum(array.nbytes for name, array in model.arrays().items() if name.startswith("lexicon."))
    assert stored < 12 * len(lexicon)
    for small, large in zip(before, after, strict=True):
        assert large - small < stored + 20_000


@pytest.mark.parametrize("rows", [several, numbers])
def test_several_labels_and_numbers_with_a_lexicon(rows, codebook, tmp_path):
    """Trained, exported, read back: both files score new texts, long ones among them, as the classifier does."""
    settings = replace(STRONG, steps=60, batch_size=16, learning_rate=5e-3, device="cpu")
    made = fit_model(codebook, rows(400, 0), settings=settings, architecture=Architecture(heads=2, max_tokens=20))
    assert made.model.lexicon is not None
    if rows is numbers:
        assert made.model.config.scale not in (None, [0, 1])
    export(made, tmp_path / "onnx")
    tokenizer = Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    texts = [*TEXTS, *rows(50, 1).texts]
    encoded = [encoding.ids or [0] for encoding in tokenizer.encode_batch(texts)]
    mask = np.arange(200) < np.array([[len(row)] for row in encoded])
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate(encoded)
    expected = made.scores(np.concatenate(encoded).astype(np.int32), np.cumsum([0, *map(len, encoded)]))
    spread = np.ptp(expected)
    for file, limit in ((FP32, 1e-4 * max(1, np.abs(expected).max())), (INT8, 0.05 * spread)):
        session = session_of(str(tmp_path / "onnx" / file))
        assert np.abs(logits_of(session, ids, mask) - expected).max() < limit


def test_what_is_compared_has_entries_and_windows():
    model = with_lexicon(shaken(ragged_codebook([2] * 300, dim=16), 3, max_tokens=30), large_lexicon(300, 3, 500))
    batches = list(exporting._random_batches(model, 0))
    assert [ids.shape for ids, _ in batches if ids.shape[1] > 30] == [(4, 70)]
    pairs = set(model.lexicon.unpacked().keys)
    found = [300 * (a + 1) + b in pairs for ids, _ in batches for row in ids for a, b in pairwise(row)]
    assert np.mean(found) > 0.1


@pytest.mark.parametrize("changed", [{"lexicon": None}, {"max_tokens": 10_000}])
def test_a_graph_without_lexicon_or_windows_is_refused(changed, tmp_path, monkeypatch):
    book = ragged_codebook([2, 3] * 6 + [1], dim=16)
    model = with_lexicon(shaken(book, 3, max_tokens=8), some_lexicon(3))
    export(Classifier(model, book.tokenizer), tmp_path / "right")
    original = exporting.build_graph
    monkeypatch.setattr(exporting, "build_graph", lambda config, *more: original({**config, **changed}, *more))
    with pytest.raises(InputError, match=r"model.onnx: .* off PyTorch"):
        export(Classifier(model, book.tokenizer), tmp_path / "wrong")
    assert written(tmp_path) == ["right"]


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
