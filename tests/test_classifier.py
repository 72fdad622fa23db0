from dataclasses import replace

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, pipeline

from ade.classifier import Classifier, predict_logits
from ade.data.batches import encode
from ade.errors import InputError
from ade.integrations.onnx_export import export
from ade.model import AdeForSequenceClassification
from ade.packing.format import Packing
from ade.runtime.runtime import Runtime
from ade.settings import Architecture
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
    assert np.isfinite(classifier.predict_proba(["w1 " * 500_000])).all()
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


def words(*vocabulary: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.mark.parametrize("attend", ["tokens", "anchors", "gated"])
def test_a_text_without_tokens_has_one_answer_everywhere(attend, tmp_path):
    """That of one token, id 0; padding is another token, so that taking it for the text would be seen."""
    classifier = Classifier(small_model(attend), words("w0", "w1", "w2", "w3", "w4", "[PAD]"))
    classifier.save(tmp_path / "model")
    export(classifier, tmp_path / "onnx")
    model, tokenizer = classifier.model, AutoTokenizer.from_pretrained(tmp_path / "model")
    expected = model(torch.tensor([[0]])).logits[0].detach().numpy()
    other = model(torch.tensor([[5]])).logits[0].detach().numpy()
    assert np.abs(expected - other).max() > 0.01

    for predictor in (classifier, Classifier.load(tmp_path / "model", "cpu"), Runtime.load(tmp_path / "model")):
        for texts in ([""], ["", "w1 w2"], [" \n", "w3"]):
            np.testing.assert_allclose(predictor.predict_scores(texts)[0], expected, atol=1e-4)

    alone, padded = tokenizer([""], return_tensors="pt"), tokenizer(["", "w1 w2"], padding=True, return_tensors="pt")
    assert (alone["input_ids"].shape, padded["attention_mask"][0].tolist()) == ((1, 0), [0, 0])
    session = InferenceSession(tmp_path / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    for batch in (alone, padded):
        np.testing.assert_allclose(model(**batch).logits[0].detach().numpy(), expected, atol=1e-5)
        fed = {name: batch[name].long().numpy() for name in ("input_ids", "attention_mask")}
        np.testing.assert_allclose(session.run(["logits"], fed)[0][0], expected, atol=1e-4)

    ask = pipeline("text-classification", str(tmp_path / "model"), top_k=None, function_to_apply="none")
    for said in (ask("")[0] if isinstance(ask("")[0], list) else ask(""), ask(["", "w1 w2"], batch_size=2)[0]):
        found = {each["label"]: each["score"] for each in said}
        np.testing.assert_allclose([found[name] for name in classifier.names], expected, atol=1e-5)


@pytest.mark.parametrize(
    "vocabulary",
    [("w0", "w1", "w2", "w3", "w4", "w5"), ("w", "w1", "w2", "w3", "w4", "w5"), ("w0", "##w", "w2", "w3", "w4", "w5")],
)
def test_a_tokenizer_without_padding_gets_some_and_reads_as_before(vocabulary, tmp_path):
    classifier = Classifier(small_model(), words(*vocabulary))
    classifier.save(tmp_path / "model")
    texts = ["w0 w1", "w2 w3 w4", "w w5 ww w1w", "# w0w"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.pad_token in vocabulary
    assert tokenizer(texts)["input_ids"] == [encoding.ids for encoding in words(*vocabulary).encode_batch(texts)]
    said = pipeline("text-classification", str(tmp_path / "model"))(texts, batch_size=2)
    assert [each["label"] for each in said] == classifier.predict(texts)
    assert Runtime.load(tmp_path / "model").predict(texts) == classifier.predict(texts)


@pytest.mark.parametrize("part", ["classifier.weight", "ade.embedding.anchors", "ade.embedding.weights"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_neither_written_nor_read(part, value, classifier, tmp_path):
    classifier.save(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    tensors[part].view(-1)[-1] = value
    save_file(tensors, path, {"format": "pt"})
    for kind in (Classifier, Runtime):
        with pytest.raises(InputError, match=rf"model: '{part}' holds numbers that are not finite"):
            kind.load(tmp_path / "model")
    with torch.no_grad():
        classifier.model.get_parameter(part).view(-1)[0] = value
    with pytest.raises(InputError, match="not finite"):
        classifier.save(tmp_path / "broken")
    assert not (tmp_path / "broken").exists()


def test_weights_of_few_bits_that_are_not_finite(tmp_path):
    """Packing makes whole numbers of everything, and keeps scales as the bits of float16."""
    book = replace(ragged_codebook([1, 3, 2, 4, 1, 5]), packing=Packing())
    model = AdeForSequenceClassification.from_codebook(book, "abc", Architecture(heads=2))
    Classifier(model, book.tokenizer).save(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    tensors["classifier.scales"].view(torch.float16)[0] = float("nan")
    save_file(tensors, path, {"format": "pt"})
    for kind in (Classifier, Runtime):
        with pytest.raises(InputError, match="not finite"):
            kind.load(tmp_path / "model")
    with torch.no_grad():
        model.classifier.weight[0, 0] = float("nan")
    with pytest.raises(InputError, match="not finite"):
        Classifier(model, book.tokenizer).save(tmp_path / "broken")


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
