"""What is exported says in ONNX Runtime what the model says, in as many bytes; what does not is not written."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import numpy_helper
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

import ade as package
from ade.backends import backend_for
from ade.codebook import Codebook
from ade.compression.checkpoint import write_folder
from ade.configuration import ENCODER, TAGGER
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.data.tokens import Ragged
from ade.errors import InputError
from ade.folder import Saved
from ade.integrations.onnx import ONNX, POOLED, Q4, Scores, export, session_of
from ade.lexicon import Lexicon, key_end
from ade.packing.format import Packing
from ade.settings import STRONG, Architecture
from ade.trained_model import Classifier, Encoder, unit
from ade.training.loop import fit_model
from tests.compression.conftest import (  # noqa: F401 - fixtures
    ROWS,
    corpus,
    decoder,
    encoder,
    pack,
    save_tokenizer,
    tables,
    texts,
    tiny_model,
)
from tests.conftest import ragged_codebook
from tests.models import codebook_folder, coded_table, off, oracle, packed_codebook, random_lexicon, random_model

WEB = Path(__file__).parents[2] / "examples" / "web"
TEXTS = ["the team and the coach", "bank share price", "", "rocket", "of the comet in orbit " * 40]


def graph_of(saved: Saved) -> bytes:
    model = Scores(saved).eval()
    model.store_in_bytes(saved)
    return model.graph()


def feed_of(rows: list) -> dict[str, np.ndarray]:
    """Token ids, padded with random ones, and their mask."""
    lengths = np.array([[len(row)] for row in rows])
    mask = np.arange(lengths.max()) < lengths
    ids = np.random.default_rng(0).integers(0, 3, mask.shape)
    ids[mask] = np.concatenate(rows)
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64)}


def scores_of(graph: bytes, texts: Ragged) -> np.ndarray:
    return session_of(graph).run(None, feed_of(list(texts)))[0]


def some_texts(vocabulary: int, lengths=(1, 5, 9, 2, 30, 7)) -> Ragged:
    draw = np.random.default_rng(1)
    return Ragged.of([draw.integers(0, vocabulary, length) for length in lengths])


def arrays_of(graph: bytes) -> dict[str, np.ndarray]:
    return {array.name: numpy_helper.to_array(array) for array in onnx.load_from_string(graph).graph.initializer}


def written(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- the graph -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"positions": "none", "heads": 2},
        {"sat": False, "pooling": "mean", "problem": REGRESSION, "mean": 3.0, "deviation": 2.0, "labels": 1},
        {"layers": 3, "max_tokens": 7},
        {"pooling": "mean", "problem": MULTI, "max_tokens": 7},
        {"kind": ENCODER, "layers": 2, "labels": 24},
        {"table": coded_table(), "max_tokens": 7},
        {"table": coded_table(), "layer_bits": 4},
        *({"table": packed_codebook(own), "layer_bits": bits} for own, bits in ((0, 8), (3, 4), (1, 16))),
        {
            "table": Codebook(np.eye(8), range(8), np.ones(8), np.ones(8), Packing(shared=1, fine=3))
        },  # rows of their own
    ],
)
@pytest.mark.parametrize("lexicon", [False, True])
def test_the_graph_computes_what_the_method_says(config, lexicon):
    if lexicon and config.get("kind") == ENCODER:
        return
    saved = random_model(lexicon=lexicon, **config).rounded()
    texts = some_texts(saved.table.vocabulary)
    expected = np.array([oracle(saved).scores(ids) for ids in texts])
    if saved.config.kind == ENCODER:
        expected = unit(expected)
    assert off(scores_of(graph_of(saved), texts), expected) < 2e-5


def test_padding_and_other_texts_change_nothing():
    saved, draw = random_model(lexicon=True, max_tokens=8), np.random.default_rng(0)
    session, text = session_of(graph_of(saved)), np.array([3, 4, 3, 4, 9, 1])
    for _ in range(5):
        ids, mask = draw.integers(0, 18, (2, 20)), np.ones((2, 20), np.int64)
        ids[0, :6], mask[0, 6:] = text, 0
        scores = session.run(["logits"], {"input_ids": ids, "attention_mask": mask})[0]
        assert off(scores[0], oracle(saved).scores(text)) < 1e-5


@pytest.mark.parametrize(("vocabulary", "entries", "labels"), [(30_000, 3000, 2), (300_000, 20, 1), (300, 4000, 30)])
def test_entries_of_a_large_vocabulary_are_found(vocabulary, entries, labels):
    """Keys beyond 32 bits, few and many; every second text is made of entries, many of them again and again."""
    draw = np.random.default_rng(3)
    keys = np.unique(np.append(draw.integers(0, key_end(vocabulary), entries), [0, key_end(vocabulary) - 1]))
    idf, scores = draw.uniform(1, 9, len(keys)), draw.standard_normal((len(keys), labels))
    bias = draw.standard_normal(labels).astype(np.float32)
    lexicon = Lexicon(vocabulary, keys, idf.astype(np.float32), scores.astype(np.float32), bias).rounded()
    table = ragged_codebook([1] * vocabulary, dim=8).table
    saved = random_model(table, labels, sat=False, problem=MULTI)
    saved = replace(saved, lexicon=lexicon)
    chosen = draw.choice(keys, 80)
    tokens = np.stack([chosen // vocabulary - 1, chosen % vocabulary], 1).ravel()
    texts = Ragged.of([*np.array_split(tokens[tokens >= 0], 6), *[draw.integers(0, vocabulary, 30)] * 2])
    assert np.abs(lexicon.added(texts) - lexicon.bias)[:6].max() > 0.1
    assert off(scores_of(graph_of(saved), texts), backend_for(saved).scores(texts)) < 2e-5


def test_probabilities_of_several_labels_are_sigmoids():
    session = session_of(graph_of(random_model(problem=MULTI)))
    scores, probabilities = session.run(["logits", "probabilities"], feed_of([[3, 4], [5]]))
    assert np.allclose(probabilities, 1 / (1 + np.exp(-scores)), atol=1e-6)


def test_numbers_are_in_whole_bytes_and_no_table_is_unpacked():
    book = ragged_codebook([4, 6, 8] * 700, anchors=300, dim=64).table
    packed = replace(book, packing=Packing(shared=300))
    saved = random_model(packed, layer_bits=8, lexicon=True)
    saved = replace(saved, lexicon=random_lexicon(2100, 3)).rounded()
    graph, arrays = graph_of(saved), arrays_of(graph_of(saved))
    assert len(graph) < 2 * saved.nbytes + 40_000  # of nodes
    wide = {name: array for name, array in arrays.items() if array.dtype in (np.float32, np.int64)}
    assert max(array.size for array in wide.values()) < 1000
    assert max(len(array) for array in arrays.values() if array.ndim == 2) == len(saved.lexicon)  # its scores
    assert {array.dtype.name for array in arrays.values() if array.size > 2000} == {"uint8", "int8", "int16"}
    assert len(graph_of(replace(saved, table=book))) > len(graph) + 3 * packed.weights.size  # float32 stays float32


def test_old_runtimes_read_it():
    graph = onnx.load_from_string(graph_of(random_model(lexicon=True)))
    assert (graph.ir_version, graph.opset_import[0].version) == (8, 17)
    shapes = {each.name: [d.dim_param for d in each.type.tensor_type.shape.dim] for each in graph.graph.input}
    assert shapes == {"input_ids": ["batch", "length"], "attention_mask": ["batch", "length"]}
    assert {domain.domain for domain in graph.opset_import} == {""}


# -- the folder ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(codebook, topics):
    settings = replace(STRONG, steps=60, batch_size=16, learning_rate=5e-3, device="cpu")
    saved = fit_model(codebook, topics, settings=settings, architecture=Architecture(max_tokens=50))
    assert saved.lexicon is not None
    return Classifier(saved)


def test_a_foreign_runtime_needs_the_folder_alone(classifier, topics, tmp_path):
    """Read back with tokenizers, JSON and onnxruntime: the labels are the classifier's, on texts of every kind."""
    (file,) = export(classifier, tmp_path / "onnx")
    assert written(tmp_path) == ["onnx"]
    assert written(tmp_path / "onnx") == ["config.json", ONNX, "tokenizer.json"]
    config = json.loads((tmp_path / "onnx" / "config.json").read_text("utf8"))
    assert (config["max_tokens"], config["max_length"], config["problem"]) == (50, 1 << 15, SINGLE)
    assert 0 < file.error < 1e-5
    assert file.bytes == (tmp_path / "onnx" / ONNX).stat().st_size

    tokenizer = Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    texts = [*TEXTS, *topics.texts]
    rows = [encoding.ids or [0] for encoding in tokenizer.encode_batch(texts)]
    assert max(map(len, rows)) == 200  # four times what attention reads
    session = session_of((tmp_path / "onnx" / ONNX).read_bytes())
    probabilities = session.run(["probabilities"], feed_of(rows))[0]
    assert off(probabilities, classifier.predict_proba(texts)) < 1e-5
    predicted = np.array(config["labels"])[probabilities.argmax(1)]
    assert predicted.tolist() == [prediction.label for prediction in classifier.predict(texts)]


def test_a_folder_and_a_classifier_give_the_same_file(classifier, tmp_path):
    classifier.save(tmp_path / "model")
    for name, source in (("one", classifier), ("other", tmp_path / "model")):
        export(source, tmp_path / name)
    assert (tmp_path / "one" / ONNX).read_bytes() == (tmp_path / "other" / ONNX).read_bytes()


def test_an_encoder_has_vectors(tmp_path):
    encoder = Encoder(random_model(kind=ENCODER, labels=24, layers=2))  # noqa: F811
    export(encoder, tmp_path / "onnx")
    assert json.loads((tmp_path / "onnx" / "config.json").read_text())["dim"] == 24
    tokenizer = Tokenizer.from_file(str(tmp_path / "onnx" / "tokenizer.json"))
    session = session_of((tmp_path / "onnx" / ONNX).read_bytes())
    words = ["w1 w2 w3", "w15", "w3 w3"]
    vectors = session.run(["embeddings"], feed_of([tokenizer.encode(text).ids for text in words]))[0]
    assert off(vectors, encoder.encode(words)) < 1e-5


@pytest.mark.parametrize("changed", ["nan", "lexicon", "max_tokens"])
def test_another_graph_is_refused_and_nothing_is_left(changed, classifier, tmp_path, monkeypatch):
    export(classifier, tmp_path / "earlier")
    kept, original = (tmp_path / "earlier" / ONNX).read_bytes(), Scores.store_in_bytes

    def wrong(model, saved):
        original(model, saved)
        if changed == "lexicon":
            model.model.lexicon = None
        elif changed == "max_tokens":
            model.model.settings = replace(saved.config, max_tokens=10_000)
        else:
            model.model.head.matrix.numbers[0, 0] = np.nan

    monkeypatch.setattr(Scores, "store_in_bytes", wrong)
    with pytest.raises(InputError, match=rf"{ONNX}: .* off the model, at most 0.0001 .* nothing was written") as caught:
        export(classifier, tmp_path / "new")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=ONNX):
        export(classifier, tmp_path / "earlier", overwrite=True)
    assert written(tmp_path) == ["earlier"]
    assert (tmp_path / "earlier" / ONNX).read_bytes() == kept


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (random_model(attend="anchors"), "attention over tokens; this model attends over anchors"),
        (random_model(kind=TAGGER), "classifiers and encoders; this is a tagger"),
        (codebook_folder(packed_codebook()), "a codebook"),
    ],
)
def test_what_is_not_exported_is_refused_in_one_line(saved, message, tmp_path):
    saved.save(tmp_path / "model")
    with pytest.raises(InputError, match=message) as caught:
        export(tmp_path / "model", tmp_path / "onnx")
    assert "\n" not in str(caught.value)
    assert written(tmp_path) == ["model"]


def test_special_tokens_are_told(tmp_path):
    saved = random_model()
    tokenizer = Tokenizer.from_str(saved.tokenizer.to_str())
    special = [("w1", 3), ("w2", 4)]
    tokenizer.post_processor = TemplateProcessing(single="w1 w2 $A w2", special_tokens=special)
    export(Classifier(replace(saved, tokenizer=tokenizer)), tmp_path / "onnx")
    config = json.loads((tmp_path / "onnx" / "config.json").read_text())
    assert (config["before"], config["after"]) == ([3, 4], [4])


def test_the_documented_python_runs(classifier, tmp_path):
    export(classifier, tmp_path / "onnx")
    page = (WEB.parent.parent / "docs" / "export.md").read_text("utf8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1].replace("a wading bird with long legs", TEXTS[1])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert (done.stdout, done.stderr) == ("money\n", "")


def test_the_verb(classifier, ade, tmp_path):
    classifier.save(tmp_path / "model")
    status, out, err = ade("export", tmp_path / "model", "--out", tmp_path / "onnx")
    assert (status, err, [line.split()[0] for line in out.splitlines()]) == (0, "", ["file", ONNX])
    status, out, err = ade("export", tmp_path / "model", "--out", tmp_path / "onnx")
    assert (status, out, "pass --overwrite" in err) == (2, "", True)
    status, out, _ = ade("export", tmp_path / "model", "--out", tmp_path / "onnx", "--overwrite", "--json")
    assert (status, [each["file"] for each in json.loads(out)["files"]]) == (0, [ONNX])


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not (WEB / "node_modules").is_dir(), reason="'npm install' was not run in examples/web")
@pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])
def test_the_node_script_says_what_python_says(problem, tmp_path):
    """onnxruntime-web and a tokenizer in JavaScript, on a vocabulary of 32,000: the same ids, the same numbers."""
    from ade.teachers import load_teacher

    tokenizer = load_teacher("wordllama").tokenizer
    count, draw = tokenizer.get_vocab_size(), np.random.default_rng(2)
    pairs = draw.integers(0, 300, 3 * count), draw.standard_normal(3 * count)
    book = Codebook(draw.standard_normal((300, 32)), *pairs, np.full(count, 3), Packing(shared=300))
    labels = 1 if problem == REGRESSION else 4
    saved = replace(random_model(book, labels, max_tokens=40, problem=problem, layer_bits=8), tokenizer=tokenizer)
    words = tokenizer.encode("a wading bird with long legs, money and water").ids
    keys = np.unique([*words, *(count * (first + 1) + second for first, second in pairwise(words))])
    scores = draw.standard_normal((len(keys), labels)).astype(np.float32)
    idf, bias = np.ones(len(keys), np.float32), np.ones(labels, np.float32)
    lexicon = Lexicon(count, keys, idf, scores, bias).rounded()
    classifier = Classifier(replace(saved, lexicon=lexicon).rounded())
    export(classifier, tmp_path / "onnx")
    texts = ["a wading bird with long legs", "", "naïve café 日本語 🙂", "money and water " * 60, "<s> two\ttabs"]
    command = ["node", str(WEB / "classify.mjs"), str(tmp_path / "onnx"), "--json", *texts]
    answers = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for answer, text, prediction in zip(answers, texts, classifier.predict(texts), strict=True):
        if problem == REGRESSION:
            assert answer["decided"] == pytest.approx(prediction.label, abs=1e-4)
            continue
        several = problem == MULTI  # sorted by probability there
        assert (sorted(answer["decided"]) if several else answer["decided"]) == prediction.label
        probability = {each["label"]: each["probability"] for each in answer["labels"]}
        found = np.array([probability[name] for name in saved.config.labels])
        assert off(found, classifier.predict_proba(text)) < 1e-4
    broken = subprocess.run(
        ["node", str(WEB / "classify.mjs"), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (broken.returncode, broken.stderr.count("\n")) == (2, 1)


# -- compressed encoders -------------------------------------------------------------------------------------------


@pytest.fixture
def packed_encoder(encoder, corpus, tmp_path):  # noqa: F811
    package.compress(encoder, tmp_path / "packed", package.CompressionSettings(size="24kB"), [corpus])
    return tmp_path / "packed"


def states_of(path: Path, ids: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    feed = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
    return session_of(path.read_bytes()).run(["last_hidden_state"], feed)[0]


def ragged(rows: int, length: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    mask = torch.arange(length) < torch.randint(1, length + 1, (rows, 1), generator=generator)
    return torch.randint(3, vocabulary, (rows, length), generator=generator) * mask, mask.long()


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta-labels", "mpnet-mlm", "distilbert-mlm"])
def test_ragged_batches_of_several_architectures(kind, pack, tmp_path):  # noqa: F811
    model = tiny_model(kind, tmp_path / "source")
    save_tokenizer(tmp_path / "source", decoder=False)
    write_folder(pack(model), tmp_path / "source", tmp_path / "packed")
    export(tmp_path / "packed", tmp_path / "onnx")
    for rows, length in ((1, 1), (4, 17), (9, 60)):
        ids, mask = ragged(rows, length, ROWS)
        with torch.no_grad():
            expected = model.base_model.eval()(input_ids=ids, attention_mask=mask).last_hidden_state.numpy()
        assert off(states_of(tmp_path / "onnx" / ONNX, ids, mask), expected) < 1e-4


def test_codes_stay_codes_and_linear_layers_go_into_4_bits(packed_encoder, tmp_path):
    full, small = export(packed_encoder, tmp_path / "onnx")
    assert written(tmp_path / "onnx") == ["config.json", ONNX, Q4, "tokenizer.json", "tokenizer_config.json"]
    config = json.loads((tmp_path / "onnx" / "config.json").read_text())
    assert config["model_type"] == "bert"
    assert "quantization_config" not in config

    arrays = arrays_of((tmp_path / "onnx" / ONNX).read_bytes())
    assert {array.dtype.name for name, array in arrays.items() if ".codes_" in name} == {"uint8"}
    assert 404 not in {size for array in arrays.values() for size in array.shape}  # nothing has a number for every row
    table = sum(array.nbytes for name, array in arrays.items() if "word_embeddings" in name)
    assert table <= json.loads((packed_encoder / "compression.json").read_text())["table"]["after"]

    nodes = [node.op_type for node in onnx.load(tmp_path / "onnx" / Q4).graph.node]
    assert nodes.count("MatMulNBits") == 6  # attention and feed-forward
    assert small.bytes < full.bytes
    assert full.error < 1e-5 < small.error < 0.3
    ids, mask = ragged(6, 12, 404)
    ours, theirs = (states_of(tmp_path / "onnx" / name, ids, mask) for name in (Q4, ONNX))
    cosine = (ours * theirs).sum(2) / np.linalg.norm(ours, axis=2) / np.linalg.norm(theirs, axis=2)
    assert cosine[mask.numpy() > 0].min() > 0.9


def test_float16_weights_stay_float16_in_the_file(encoder, corpus, tmp_path):  # noqa: F811
    transformers.AutoModel.from_pretrained(encoder, dtype=torch.float16).save_pretrained(tmp_path / "half")
    save_tokenizer(tmp_path / "half", decoder=False)
    package.compress(tmp_path / "half", tmp_path / "packed", package.CompressionSettings(size="24kB"), [corpus])
    export(tmp_path / "packed", tmp_path / "onnx")
    arrays = arrays_of((tmp_path / "onnx" / ONNX).read_bytes())
    matrices = {array.dtype.name for name, array in arrays.items() if name.endswith(".numbers")}
    assert matrices == {"float16"}


def test_decoders_are_refused(decoder, corpus, tmp_path):  # noqa: F811
    package.compress(decoder, tmp_path / "packed", package.CompressionSettings(size="24kB"), [corpus])
    with pytest.raises(InputError, match="not an encoder"):
        export(tmp_path / "packed", tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


@pytest.mark.parametrize(("mode", "unit"), [("mean", True), ("cls", False), ("max", True)])
def test_a_sentence_transformers_folder_has_its_vectors_as_an_output(mode, unit, encoder, corpus, tmp_path):  # noqa: F811
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    parts = [Transformer(str(encoder)), Pooling(32, pooling_mode=mode), *([Normalize()] if unit else [])]
    SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "source"))
    package.compress(tmp_path / "source", tmp_path / "packed", package.CompressionSettings(size="24kB"), [corpus])
    export(tmp_path / "packed", tmp_path / "onnx")
    session = session_of((tmp_path / "onnx" / ONNX).read_bytes())
    loaded = SentenceTransformer(str(tmp_path / "packed"), device="cpu")
    batch = loaded.tokenizer(texts(6), padding=True, return_tensors="np")
    feed = {name: batch[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    assert off(session.run([POOLED], feed)[0], loaded.encode(texts(6))) < 1e-4
