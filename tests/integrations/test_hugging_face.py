"""At home in transformers: Trainer, pipelines, tokenizers, model cards, the hub; runs with the oldest release, too."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)

from ade.configuration import CODEBOOK, ENCODER, TAGGER, Config
from ade.data.problems import MULTI, REGRESSION, SINGLE
from ade.folder import Saved, add_metadata, nbytes_of
from ade.model_card import card, licence
from ade.packing.format import Packing
from ade.trained_model import Classifier, Tagger
from tests.conftest import WORDS, topic_texts, untrained
from tests.models import coded_table, oracle, packed_codebook, random_model

NAMES = tuple(sorted(WORDS))
TEXTS = ["w0 w1 w3", "w3 w2"]


def trainer_for(model, rows: list, collate, folder, **more) -> Trainer:
    chosen = {"per_device_train_batch_size": 16, "learning_rate": 1e-2, **more}
    arguments = TrainingArguments(
        output_dir=str(folder), report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no",
        save_strategy="no", dataloader_pin_memory=False, **chosen,
    )  # fmt: skip
    return Trainer(model, arguments, collate, rows)


def learns(trainer: Trainer, rows: list) -> bool:
    before = trainer.evaluate(rows)["eval_loss"]
    trainer.train()
    return trainer.evaluate(rows)["eval_loss"] < 0.7 * before


@pytest.fixture
def folder(codebook, tmp_path):
    """An untrained model, packed as one that is trained for a size."""
    packed = replace(codebook, table=replace(codebook.table, packing=Packing()))
    untrained(packed, NAMES, heads=2, layer_bits=8).save(tmp_path / "fresh")
    return tmp_path / "fresh"


@pytest.mark.parametrize("problem", [SINGLE, MULTI, REGRESSION])
def test_trainer_learns_and_saves_a_model_folder(problem, folder, tmp_path):
    labels = 1 if problem == REGRESSION else 3
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=labels, problem_type=problem)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts, topics = topic_texts(320, 0)
    answers = [NAMES.index(topic) for topic in topics]
    given = {
        SINGLE: answers,
        MULTI: np.eye(3, dtype=np.float32)[answers].tolist(),
        REGRESSION: [float(answer) for answer in answers],
    }[problem]
    rows = [{**tokenizer(text), "label": label} for text, label in zip(texts, given, strict=True)]
    trainer = trainer_for(model, rows, DataCollatorWithPadding(tokenizer), tmp_path / "run", max_steps=40)
    assert learns(trainer, rows[:64])

    trainer.save_model(str(tmp_path / "tuned"))
    classifier = Classifier.load(tmp_path / "tuned")
    assert (classifier.problem, len(classifier.labels)) == (problem, labels)
    batch = tokenizer(texts[:8], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model.eval()(batch["input_ids"], batch["attention_mask"]).logits
    assert np.allclose(classifier.scores(texts[:8]), logits.numpy(), atol=1e-4)


def test_accumulated_gradients_are_those_of_one_batch(folder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [{**tokenizer(text), "label": NAMES.index(topic)} for text, topic in zip(*topic_texts(32, 0), strict=True)]
    heads = []
    for size, times in ((32, 1), (4, 8)):
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        more = {"per_device_train_batch_size": size, "gradient_accumulation_steps": times, "max_steps": 1}
        more |= {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0}
        trainer_for(model, rows, DataCollatorWithPadding(tokenizer), tmp_path / str(size), **more).train()
        heads.append(model.head.weight.detach().clone())
    torch.testing.assert_close(heads[0], heads[1], rtol=1e-3, atol=1e-5)


def test_trainer_learns_tags(folder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForTokenClassification.from_pretrained(folder, id2label=dict(enumerate(NAMES)))
    known = {word: NAMES.index(topic) for topic, words in WORDS.items() for word in words}
    texts = topic_texts(200, 0)[0]
    rows = [{**tokenizer(text), "labels": [known.get(word, -100) for word in text.split()]} for text in texts]
    trainer = trainer_for(model, rows, DataCollatorForTokenClassification(tokenizer), tmp_path / "run", max_steps=30)
    assert learns(trainer, rows)
    trainer.save_model(str(tmp_path / "tuned"))
    predicted = Tagger.load(tmp_path / "tuned").predict(texts[:50])
    right = [tag == NAMES[known[word]] for text, tags in zip(texts, predicted, strict=False)
             for word, tag in zip(text.split(), tags, strict=True) if word in known]  # fmt: skip
    assert np.mean(right) > 0.8


def test_pipelines(tmp_path):
    saved = random_model(lexicon=True)
    saved.save(tmp_path / "model")
    answers = pipeline("text-classification", str(tmp_path / "model"))(TEXTS, batch_size=2)
    expected = Classifier(saved).predict(TEXTS)
    assert [each["label"] for each in answers] == [each.label for each in expected]
    assert [each["score"] for each in answers] == pytest.approx([each.probability for each in expected], abs=1e-5)
    vectors = pipeline("feature-extraction", str(tmp_path / "model"))("w0 w1 w2")
    assert np.array(vectors).shape == (1, 3, 16)

    tagger = random_model(kind=TAGGER)
    tagger.save(tmp_path / "tagger")
    found = pipeline("token-classification", str(tmp_path / "tagger"))("w0 w1 w2")
    assert [each["entity"] for each in found] == Tagger(tagger).predict(["w0 w1 w2"])[0]


def test_a_packed_tokenizer_is_packed_again_when_it_is_saved(tmp_path):
    random_model(packed_codebook()).save(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert (tokenizer.pad_token, tokenizer.model_max_length) == ("[PAD]", 512)
    for name in ("again", "and-again"):
        tokenizer.save_pretrained(tmp_path / name)
        names = {path.name for path in (tmp_path / name).iterdir()}
        assert names == {"tokenizer.packed.xz", "tokenizer_config.json"}
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / name)
        assert tokenizer(TEXTS)["input_ids"] == [[2, 3, 5], [5, 4]]
    packed = [(tmp_path / name / "tokenizer.packed.xz").read_bytes() for name in ("again", "and-again")]
    assert packed[0] == packed[1]


def test_a_token_s_vector_is_the_mean_over_its_anchors(tmp_path):
    saved = random_model(attend="anchors")
    saved.save(tmp_path / "model")
    ids = torch.tensor([[3, 1, 5, 2]])
    vectors = AutoModel.from_pretrained(tmp_path / "model")(ids).last_hidden_state[0].detach().numpy()
    states, word = oracle(saved).states(ids[0].numpy())
    expected = np.stack([states[word == token].mean(0) for token in range(4)])
    np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-5)


# -- model cards ---------------------------------------------------------------------------------------------------


def test_the_card_of_a_folder_says_what_the_model_is(tmp_path, capsys):
    metadata = {"teacher": "wordllama", "license": "MIT License", "data": "topics/of three", "rows": 600}
    random_model(lexicon=True, metadata={**metadata, "lexicon": {"entries": 1234}}).save(tmp_path / "model")
    metrics = {"accuracy": 0.91, "macro_f1": 0.9, "n": 1000}
    add_metadata(tmp_path / "model", test=metrics)
    found = ModelCard.load(tmp_path / "model" / "README.md")
    assert (found.data.license, found.data.pipeline_tag) == ("mit", "text-classification")
    assert "datasets" not in found.data.to_dict()  # not a name the hub would know
    nbytes = f"{nbytes_of(tmp_path / 'model'):,} bytes"
    wanted = ("wordllama, licence: MIT License", nbytes, "label 2", "| test | 0.91 | 0.9 | 1000 |", "600 rows")
    for text in (*wanted, "scores of 1,234 n-grams", 'ade.load("FOLDER").predict('):
        assert text in found.text
    assert Saved.read(tmp_path / "model").config.metadata["test"] == metrics
    code = found.text.split("```python\n")[1].split("```")[0]
    exec(code.replace("FOLDER", str(tmp_path / "model")), {})  # what a reader of the card would run
    assert capsys.readouterr().out.count("Prediction(") == 2


@pytest.mark.parametrize(
    ("config", "tag", "text"),
    [
        ({"labels": ("a", "b")}, "text-classification", "Predicts: one of 2 labels for a text\n- Labels: a, b"),
        ({"labels": ("a", "b"), "problem": MULTI}, "text-classification", "Predicts: any of 2 labels"),
        ({"labels": ("value",)}, "text-classification", "Predicts: a number for a text\n- Size"),
        ({"kind": TAGGER, "labels": ("a", "b")}, "token-classification", "Predicts: one of 2 labels for a word"),
        ({"kind": ENCODER, "output_size": 7}, "sentence-similarity", "a unit vector of 7 dimensions"),
        ({"kind": CODEBOOK}, None, "# An ADE codebook"),
    ],
)
@pytest.mark.parametrize(("table", "size"), [(packed_codebook(), "15 anchors of"), (coded_table(), "18 coded rows of")])
def test_a_card_needs_settings_and_a_table_alone(config, tag, text, table, size):
    found = ModelCard(card(Config(**config), table, 1234))
    assert (found.data.library_name, found.data.get("pipeline_tag")) == ("ade", tag)
    assert text in found.text
    assert f"Size: 1,234 bytes, {size} width 16" in found.text
    assert not {"base_model", "datasets", "license"} & set(found.data.to_dict())


def test_names_of_the_hub_are_linked():
    config = Config(labels=("a", "b"), metadata={"teacher": "org/model", "data": "org/data", "license": "mit"})
    data = ModelCard(card(config, packed_codebook(), 1234)).data
    assert (data.base_model, data.datasets) == ("org/model", "org/data")


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("MIT License", {"license": "mit"}),
        ("apache-2.0", {"license": "apache-2.0"}),
        ("Apache License 2.0", {"license": "apache-2.0"}),
        ("Some Own Terms", {"license": "other", "license_name": "some-own-terms"}),
        ("", {}),
        (None, {}),
    ],
)
def test_licences_are_spelled_as_on_the_hub(stated, expected):
    assert licence(stated) == expected


# -- the hub -------------------------------------------------------------------------------------------------------


def test_a_name_that_is_nowhere_is_one_error(monkeypatch, ade):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, out, err = ade("predict", "nobody/nothing-at-all")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "neither a model folder nor a reachable hub name" in err
