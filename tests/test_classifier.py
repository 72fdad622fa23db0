"""A classifier: texts of any number and length, folders, pickles, damage."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, pipeline

from ade.backends import backend_for
from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.errors import InputError
from ade.folder import Saved
from ade.model import AdeForSequenceClassification, model_of
from ade.torch_backends import TorchBackend
from tests.conftest import ragged_codebook
from tests.models import coded_table, oracle, packed_codebook, random_model

TEXTS = ["w0 w1", "w3", "w2 w2 w1 w0", "", "w1 w0"]


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
    predictions = classifier.predict(texts)
    assert [each.label for each in predictions] == [classifier.labels[i] for i in many.argmax(1)]
    assert [each.probability for each in predictions] == many.max(1).tolist()
    assert len({each.label for each in predictions}) > 1
    assert classifier.predict(texts[1]).label == predictions[1].label
    assert classifier.predict([]) == []


@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_scores_are_those_of_the_method_in_plain_numpy(attend):
    model = Classifier(random_model(lexicon=True, attend=attend))
    plain = oracle(model.saved)
    for text, row, vector in zip(TEXTS, model.scores(TEXTS), model.encode(TEXTS), strict=True):
        ids = np.array(model.tokenizer.encode(text).ids or [0])
        np.testing.assert_allclose(row, plain.scores(ids), atol=1e-4)
        np.testing.assert_allclose(vector, plain.pooled(ids), atol=1e-4)


def test_a_table_stands_for_its_texts_and_not_for_the_names_of_its_columns(classifier):
    frame = pd.DataFrame({"n": range(5), "text": TEXTS})
    for given in (frame, frame.text):
        assert classifier.predict(given) == classifier.predict(TEXTS)
        assert list(classifier.stream(given)) == classifier.predict(TEXTS)
        np.testing.assert_array_equal(classifier.encode(given), classifier.encode(TEXTS))
        assert [each.text for each in classifier.explain(given)] == TEXTS
    with pytest.raises(InputError, match="which column holds the texts"):
        classifier.predict(frame.assign(text=0).rename(columns={"text": "m"}))
    with pytest.raises(InputError, match="column 'n' holds DataFrame"):
        classifier.predict(frame.rename(columns={"text": "m"})[["n", "m", "n"]])
    for given in (iter(TEXTS), {*TEXTS}):
        with pytest.raises(InputError, match="give a text or a list"):
            classifier.predict(given)


def test_very_long_texts(classifier):
    probabilities = classifier.predict_proba(["", "w1 " * 5000, "   ", "w1 " * 500_000])
    assert np.isfinite(probabilities).all()
    np.testing.assert_array_equal(probabilities[0], probabilities[2])


def test_a_stream_of_any_length_keeps_its_order(classifier):
    texts = [f"w{i % 4} w{i % 3}" for i in range(9000)]
    drawn = []
    stream = classifier.stream(drawn.append(text) or text for text in texts)
    first = next(stream)
    assert len(drawn) < 9000  # only a chunk is held in memory
    streamed = [first, *stream]
    assert [each.label for each in streamed] == [each.label for each in classifier.predict(texts)]
    assert streamed[8999].probability == pytest.approx(classifier.predict(texts[8999]).probability, abs=1e-6)


@pytest.mark.parametrize("table", [None, packed_codebook(), coded_table()])
def test_a_folder_and_a_pickle_give_the_same_scores(table, tmp_path):
    """Bit for bit; and a pickle has about the bytes of the folder."""
    layer_bits = 0 if table is None else 8
    model = Classifier(random_model(table, lexicon=True, layer_bits=layer_bits).rounded())
    model.save(tmp_path / "model")
    again = pickle.loads(pickle.dumps(model))
    for other in (Classifier.load(tmp_path / "model", threads=2), again, Classifier(Saved.read(tmp_path / "model"))):
        assert other.labels == model.labels
        np.testing.assert_array_equal(other.scores(TEXTS), model.scores(TEXTS))
        np.testing.assert_array_equal(other.encode(TEXTS), model.encode(TEXTS))
    again.save(tmp_path / "again")
    files = sorted(path.name for path in (tmp_path / "model").iterdir())
    for name in files:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    stored = sum((tmp_path / "model" / name).stat().st_size for name in files)
    assert len(pickle.dumps(model)) < stored + 1000
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
    for call in (
        classifier.predict,
        classifier.encode,
        classifier.explain,
        lambda given: list(classifier.stream(given)),
    ):
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
    assert isinstance(model.to_saved().table, Codebook)
    changed = Classifier(model.to_saved(), backend_for(model.to_saved(), "cpu"))
    np.testing.assert_allclose(changed.scores(TEXTS), classifier.scores(TEXTS) + 1, atol=1e-4)
