import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, BertConfig

from ade.classifier import Classifier, predict_logits
from ade.data.batches import encode
from ade.errors import InputError
from tests.conftest import ragged_codebook
from tests.test_paper import small_model


@pytest.fixture
def classifier():
    return Classifier(small_model(), ragged_codebook([1, 3, 2, 4, 1, 5]).tokenizer)


def test_one_text_or_many_in_order(classifier):
    texts = ["w0 w1", "w3", "w2 w2 w1 w0", "w1 w0"] * 30
    many = classifier.predict_proba(texts)
    assert many.shape == (120, 3)
    np.testing.assert_allclose(many.sum(1), 1, rtol=1e-6)
    for i in (0, 1, 2, 77):
        np.testing.assert_allclose(classifier.predict_proba(texts[i]), many[i], rtol=1e-5, atol=1e-6)
    labels = classifier.predict(texts)
    assert labels == [classifier.names[i] for i in many.argmax(1)]
    assert classifier.predict(texts[1]) == labels[1]
    assert len(set(labels)) > 1


def test_empty_and_very_long_texts(classifier):
    chances = classifier.predict_proba(["", "w1 " * 5000, "   ", "w1 " * 512])
    assert np.isfinite(chances).all()
    np.testing.assert_array_equal(chances[0], chances[2])
    np.testing.assert_allclose(chances[1], chances[3], rtol=1e-5)  # cut to the model's 512 tokens
    assert classifier.predict([]) == []


def test_a_stream_of_any_length_keeps_its_order(classifier):
    texts = [f"w{i % 4} w{i % 3}" for i in range(9000)]
    streamed = list(classifier.stream(iter(texts)))
    assert [label for label, _ in streamed] == classifier.predict(texts)
    assert streamed[8999][1] == pytest.approx(classifier.predict_proba(texts[8999]).max(), abs=1e-6)


def test_logits_are_the_models(classifier):
    texts = ["w0 w1 w2", "w3", "w2 w2"]
    found = predict_logits(classifier.model, encode(classifier.tokenizer, texts, 512))
    for text, row in zip(texts, found, strict=True):
        ids = torch.tensor([classifier.tokenizer.encode(text).ids])
        np.testing.assert_allclose(classifier.model(ids).logits.detach().numpy()[0], row, rtol=1e-5, atol=1e-5)


def test_save_and_load(classifier, tmp_path):
    classifier.save(tmp_path / "model")
    loaded = Classifier.load(tmp_path / "model", "cpu")
    assert loaded.names == ("a", "b", "c")
    texts = ["w0 w1", "w3 w3 w1", ""]
    np.testing.assert_array_equal(loaded.predict_proba(texts), classifier.predict_proba(texts))
    with pytest.raises(InputError, match="--overwrite"):
        classifier.save(tmp_path / "model")


def test_another_kind_of_model_is_refused(classifier, tmp_path):
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    bert = AutoModelForSequenceClassification.from_config(BertConfig(vocab_size=20, **small))
    bert.save_pretrained(tmp_path)
    classifier.tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="ADE model"):
        Classifier.load(tmp_path)


def test_bad_folders(classifier, tmp_path):
    with pytest.raises(InputError, match="not a model folder"):
        Classifier.load(tmp_path / "nothing")
    classifier.save(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="not a readable ADE model"):
        Classifier.load(tmp_path / "model")
    weights.write_bytes(whole)
    tensors = load_file(weights)
    save_file({name: tensor for name, tensor in tensors.items() if "classifier" not in name}, weights)
    with pytest.raises(InputError, match="weights are not those its config describes"):
        Classifier.load(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    weights.write_bytes(whole)
    with pytest.raises(InputError, match=r"not a readable tokenizer\.json"):
        Classifier.load(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        Classifier.load(tmp_path / "model")


@pytest.mark.parametrize("wrong", [None, float("nan"), "w1 \ud800"])
def test_what_is_no_text_is_refused_by_its_place(classifier, wrong):
    with pytest.raises(InputError, match="text 1 "):
        classifier.predict(["w0", wrong])
    texts = ["w0"] * 4500 + [wrong]
    for call in (classifier.predict, classifier.predict_proba, lambda given: list(classifier.stream(given))):
        with pytest.raises(InputError, match="text 4500 "):
            call(texts)
    with pytest.raises(InputError, match="not None"):
        classifier.predict(None)
