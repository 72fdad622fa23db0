"""A trained model: texts of any number and length, folders, pickles; every kind, on every device, without torch."""

import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

import ade
from ade.backends import TableBackend
from ade.configuration import CLASSIFIER, ENCODER, TAGGER
from ade.errors import InputError
from ade.folder import Saved
from ade.model import AdeForSequenceClassification, model_of
from ade.torch_backends import TorchBackend
from ade.trained_model import Classifier, Encoder, Tagger, model_from, unit
from tests.conftest import ragged_codebook, sentence_encoder
from tests.models import coded_table, oracle, packed_codebook, random_model

TEXTS = ["w0 w1", "w3", "w2 w2 w1 w0", "", "w1 w0"]
KINDS = {CLASSIFIER: Classifier, TAGGER: Tagger, ENCODER: Encoder}


@pytest.fixture(scope="module")
def classifier():
    return Classifier(random_model(lexicon=True))


def test_one_text_or_many_in_order(classifier):
    texts = TEXTS * 30
    many = classifier.predict_proba(texts)
    assert many.shape == (150, 3)
    np.testing.assert_allclose(many.sum(1), 1, rtol=1e-6)
    for i in (0, 1, 3, 77):
        np.testing.assert_allclose(classifier.predict_proba(texts[i]), many[i], rtol=1e-5, atol=1e-6)
    plain = oracle(classifier.saved)
    for text, row, vector in zip(TEXTS, classifier.scores(texts), classifier.encode(texts), strict=False):
        ids = np.array(classifier.tokenizer.encode(text).ids or [0])
        np.testing.assert_allclose(row, plain.scores(ids), atol=1e-4)
        np.testing.assert_allclose(vector, plain.pooled(ids), atol=1e-4)
    predictions = classifier.predict(texts)
    assert [each.label for each in predictions] == [classifier.labels[i] for i in many.argmax(1)]
    assert [each.probability for each in predictions] == many.max(1).tolist()
    assert len({each.label for each in predictions}) > 1
    assert classifier.predict(texts[1]).label == predictions[1].label
    assert classifier.predict([]) == []


def test_a_table_stands_for_its_texts_and_not_for_the_names_of_its_columns(classifier):
    frame = pd.DataFrame({"n": range(5), "text": TEXTS})
    for given in (frame, frame.text):
        assert classifier.predict(given) == classifier.predict(TEXTS)
        np.testing.assert_array_equal(classifier.encode(given), classifier.encode(TEXTS))
    with pytest.raises(InputError, match="which column holds the texts"):
        classifier.predict(frame.assign(text=0).rename(columns={"text": "m"}))
    with pytest.raises(InputError, match="column 'text' holds DataFrame"):
        classifier.predict(frame[["text", "n", "text"]])
    for given in (iter(TEXTS), {*TEXTS}):
        with pytest.raises(InputError, match="give a text or a list"):
            classifier.predict(given)


def test_very_long_texts(classifier):
    probabilities = classifier.predict_proba(["", "w1 " * 5000, "   ", "w1 " * 500_000])
    assert np.isfinite(probabilities).all()
    np.testing.assert_array_equal(probabilities[0], probabilities[2])


@pytest.mark.parametrize("table", [None, packed_codebook(), coded_table()])
def test_a_folder_and_a_pickle_give_the_same_scores(table, tmp_path):
    """Bit for bit."""
    layer_bits = 0 if table is None else 8
    model = Classifier(random_model(table, lexicon=True, layer_bits=layer_bits).rounded())
    model.save(tmp_path / "model")
    pickled = pickle.dumps(model)
    assert len(pickled) < 1.1 * sum(path.stat().st_size for path in (tmp_path / "model").iterdir())
    again = pickle.loads(pickled)
    for other in (Classifier.load(tmp_path / "model", threads=2), again, Classifier(Saved.read(tmp_path / "model"))):
        assert other.labels == model.labels
        np.testing.assert_array_equal(other.scores(TEXTS), model.scores(TEXTS))
        np.testing.assert_array_equal(other.encode(TEXTS), model.encode(TEXTS))
    again.save(tmp_path / "again")
    files = sorted(path.name for path in (tmp_path / "model").iterdir())
    for name in files:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    with pytest.raises(InputError, match="--overwrite"):
        model.save(tmp_path / "model")


def words(*vocabulary: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def six_tokens(tokenizer: Tokenizer, **config) -> Classifier:
    table = ragged_codebook([1, 3, 2, 4, 1, 5]).table
    saved = random_model(table, heads=2, **config)
    return Classifier(replace(saved, tokenizer=tokenizer))


@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_a_text_without_tokens_has_one_answer_everywhere(attend, tmp_path):
    """That of one token, id 0; padding is another token, so that taking it for the text would be seen."""
    classifier = six_tokens(words("w0", "w1", "w2", "w3", "w4", "[PAD]"), attend=attend)
    classifier.save(tmp_path / "model")
    model, tokenizer = model_of(classifier.saved).eval(), AutoTokenizer.from_pretrained(tmp_path / "model")
    expected, other = (model(torch.tensor([[i]])).logits[0].detach().numpy() for i in (0, 5))
    assert np.abs(expected - other).max() > 0.01
    for texts in ([""], ["", "w1 w2"], [" \n", "w3"]):
        np.testing.assert_allclose(classifier.scores(texts)[0], expected, atol=1e-4)
        by_torch = Classifier(classifier.saved, TorchBackend(model))
        np.testing.assert_allclose(by_torch.scores(texts)[0], expected, atol=1e-4)

    alone, padded = tokenizer([""], return_tensors="pt"), tokenizer(["", "w1 w2"], padding=True, return_tensors="pt")
    assert (alone["input_ids"].shape, padded["attention_mask"][0].tolist()) == ((1, 0), [0, 0])
    for batch in (alone, padded):
        np.testing.assert_allclose(model(**batch).logits[0].detach().numpy(), expected, atol=1e-5)
    ask = pipeline("text-classification", str(tmp_path / "model"), top_k=None, function_to_apply="none")
    for answer in (ask([""])[0], ask(["", "w1 w2"], batch_size=2)[0]):
        scores = {each["label"]: each["score"] for each in answer}
        np.testing.assert_allclose([scores[name] for name in classifier.labels], expected, atol=1e-5)


@pytest.mark.parametrize(
    "vocabulary",
    [("w0", "w1", "w2", "w3", "w4", "w5"), ("w", "w1", "w2", "w3", "w4", "w5"), ("w0", "##w", "w2", "w3", "w4", "w5")],
)
def test_a_tokenizer_without_padding_gets_some_and_reads_as_before(vocabulary, tmp_path):
    classifier = six_tokens(words(*vocabulary))
    classifier.save(tmp_path / "model")
    texts = ["w0 w1", "w2 w3 w4", "w w5 ww w1w", "# w0w"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.pad_token in vocabulary
    assert tokenizer(texts)["input_ids"] == [encoding.ids for encoding in words(*vocabulary).encode_batch(texts)]
    answers = pipeline("text-classification", str(tmp_path / "model"))(texts, batch_size=2)
    labels = [each.label for each in classifier.predict(texts)]
    assert [each["label"] for each in answers] == labels
    assert [each.label for each in Classifier.load(tmp_path / "model").predict(texts)] == labels


@pytest.mark.parametrize("wrong", [None, float("nan"), "w1 \ud800"])
def test_what_is_no_text_is_refused_by_its_place(classifier, wrong):
    with pytest.raises(InputError, match="text 1 "):
        classifier.predict(["w0", wrong])
    texts = ["w0"] * 4500 + [wrong]
    for call in (classifier.predict, classifier.encode):
        with pytest.raises(InputError, match="text 4500 "):
            call(texts)
    with pytest.raises(InputError, match="not None"):
        classifier.predict(None)


def test_a_model_of_transformers_is_ready_to_use_and_back(classifier, tmp_path):
    """Loaded by transformers, changed there, and used by Classifier: what was read is never changed behind its back."""
    classifier.save(tmp_path / "model")
    model = AdeForSequenceClassification.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        model.head.bias += 1
    np.testing.assert_allclose(Classifier(model.to_saved()).scores(TEXTS), classifier.scores(TEXTS) + 1, atol=1e-4)


# -- taggers -------------------------------------------------------------------------------------------------------


def test_a_tagger_tags_as_transformers_does_whatever_stands_beside_a_sentence(tmp_path):
    tagger = Tagger(random_model(labels=9, kind=TAGGER))
    tagger.save(tmp_path / "model")
    some = ["w0 w1 w2 w3", "w3", "", "w2 w2"]
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "model").eval()
    batch = AutoTokenizer.from_pretrained(tmp_path / "model")(some, padding=True, return_tensors="pt")
    best = model(batch["input_ids"], batch["attention_mask"]).logits.argmax(2).tolist()
    expected = [[tagger.labels[i] for i in row[: len(text.split())]] for row, text in zip(best, some, strict=True)]
    assert len({tag for tags in expected for tag in tags}) > 1
    assert tagger.predict(some) == expected
    assert [tagger.predict([one])[0] for one in some] == expected


def test_long_sentences_are_truncated_and_the_rest_is_outside():
    saved = random_model(kind=TAGGER, max_tokens=4)
    layers = {**saved.layers, "head.bias": np.array([99.0, 0, 0], np.float32)}
    config = replace(saved.config, labels=("B-x", "I-x", "O"))
    tagger = Tagger(replace(saved, config=config, layers=layers))
    assert tagger.predict([["w0"] * 6]) == [["B-x"] * 4 + ["O"] * 2]
    assert tagger.predict([]) == []
    with pytest.raises(InputError, match="list of sentences"):
        tagger.predict("w0 w1")


# -- encoders ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders") / "one"
    sentence_encoder().save(folder)
    return Encoder.load(folder, threads=2)


@pytest.mark.parametrize("layers", [1, 3])
def test_vectors_are_those_of_torch_and_of_length_one(layers):
    encoder = sentence_encoder(layers)
    vectors = encoder.encode(TEXTS * 8)  # enough for several threads
    assert encoder.dim == vectors.shape[1] == 24
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 0.05
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(encoder)).encode(TEXTS * 8), vectors)
    by_torch = Encoder(encoder.saved, TorchBackend(model_of(encoder.saved)))
    np.testing.assert_allclose(by_torch.encode(TEXTS), vectors[: len(TEXTS)], atol=2e-6)


def test_labels_without_rows_are_those_whose_description_is_nearest(encoder):
    described = {"first": "w1 w2 w3", "second": "w4 w5", "third": "w6"}
    by_label = encoder.classifier(described)
    nearest = encoder.encode(TEXTS) @ encoder.encode(list(described.values())).T  # (n, C)
    assert [each.label for each in by_label.predict(TEXTS)] == [list(described)[i] for i in nearest.argmax(1)]
    with pytest.raises(InputError, match="at least two labels, not 1"):
        encoder.classifier(["w1"])


def test_the_line_of_a_model_says_what_it_is():
    saved = random_model(labels=3)
    size = f"{saved.nbytes / 1e6:.1f} MB"
    assert repr(Classifier(saved)) == f"Classifier(3 labels, {size})"
    trained = saved.with_metadata(rows=12_345, data="reviews")
    assert repr(Classifier(trained)) == f"Classifier(3 labels, {size}, trained on 12,345 rows of reviews)"


def test_vectors_can_be_truncated(encoder):
    whole, short = encoder.encode(TEXTS), encoder.encode(TEXTS, dim=5)
    assert np.allclose(short, whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True), atol=1e-6)
    for dim in (0, 25):
        with pytest.raises(InputError, match="24 dimensions"):
            encoder.encode(TEXTS, dim=dim)
    assert encoder.encode([]).shape == (0, 24)
    assert np.array_equal(unit(np.zeros((2, 3))), np.zeros((2, 3)))


# -- load ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_loaded_as_what_it_is_and_as_nothing_else(kind, tmp_path):
    saved = random_model(kind=kind)
    saved.save(tmp_path / "model")
    loaded = ade.load(str(tmp_path / "model"), threads=2)
    assert type(loaded) is type(model_from(saved)) is KINDS[kind]
    assert isinstance(loaded.backend, TableBackend)
    for other, of_kind in KINDS.items():
        if other != kind:
            with pytest.raises(InputError, match=r"model: an? .* is needed here"):
                of_kind.load(tmp_path / "model")


def test_a_codebook_and_what_is_no_folder_are_refused(codebook, tmp_path):
    codebook.save(tmp_path / "book")
    with pytest.raises(InputError, match=r"a codebook without a model; .*--from"):
        ade.load(tmp_path / "book")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="not a model folder"):
        ade.load(tmp_path / "empty")
    with pytest.raises(InputError, match="neither a model folder nor a reachable hub name"):
        ade.load("nobody/has-such-a-model", local_files_only=True)


def test_devices(tmp_path):
    random_model().save(tmp_path / "model")
    scores = ade.load(tmp_path / "model").scores(["w1 w2"])
    assert ade.load(tmp_path / "model", device="auto").scores(["w1 w2"]) == pytest.approx(scores, abs=0.05)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no GPU is available"):
            ade.load(tmp_path / "model", device="cuda")
    with pytest.raises(InputError, match="unknown device 'toaster'"):
        ade.load(tmp_path / "model", device="toaster")


@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_prediction_needs_no_torch(attend, tmp_path):
    """Over anchors only where it is missing: with it they are faster."""
    saved = random_model(attend=attend, lexicon=True)
    saved.save(tmp_path / "model")
    program = (
        f"import sys, importlib.util; hide = {attend == 'anchors'}\n"
        "if hide: sys.modules['torch'] = None; find = importlib.util.find_spec; "
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        f"import ade; print(ade.load({str(tmp_path / 'model')!r}).scores(['w1 w2 w3'])[0].tolist())\n"
        "print([name for name in ('torch', 'transformers', 'pyarrow', 'pandas') if sys.modules.get(name)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    scores, imported = done.stdout.splitlines()
    assert eval(scores) == pytest.approx(model_from(saved).scores(["w1 w2 w3"])[0].tolist(), abs=1e-4)
    assert imported == "[]"
