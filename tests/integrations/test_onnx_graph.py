"""The graph says what PyTorch says, in ONNX Runtime, whatever the shape: modes, packing, windows, lexicons."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from tokenizers import Tokenizer

from ade.classifier import Classifier
from ade.data.problems import MULTI, SINGLE
from ade.errors import InputError
from ade.integrations import onnx_export as exporting
from ade.integrations.onnx_export import FP32, INT8, export
from ade.integrations.onnx_graph import build_graph
from ade.integrations.onnx_lexicon import lexicon_logits
from ade.integrations.onnx_nodes import Graph
from ade.lexicon import Lexicon, LexiconShape, key_range, unpack
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
