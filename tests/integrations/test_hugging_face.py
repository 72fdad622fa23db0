"""At home in transformers: Trainer, pipelines, model cards; runs against the oldest release we support, too."""

import base64
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard, metadata_load
from transformers import (
    AutoConfig,
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

from ade import model_card as cards
from ade.classifier import Classifier
from ade.configuration import AdeConfig
from ade.distillation import distill
from ade.errors import InputError
from ade.model import AdeForSequenceClassification, AdeForTokenClassification
from ade.packing.format import Packing
from ade.runtime.runtime import Runtime
from ade.settings import STRONG, Architecture, DistillationSettings
from ade.teachers import load_teacher
from ade.training.loop import fit_model
from tests.conftest import WORDS, ragged_codebook, topic_texts
from tests.test_paper import lively, small_model

NAMES = tuple(sorted(WORDS))


def plain_arguments(folder, **more) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder), report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no",
        save_strategy="no", dataloader_pin_memory=False, **more,
    )  # fmt: skip


def arguments(folder, **more) -> TrainingArguments:
    return plain_arguments(folder, per_device_train_batch_size=16, learning_rate=1e-2, **more)


def loss_of(trainer: Trainer, rows: list) -> float:
    return trainer.evaluate(rows)["eval_loss"]


@pytest.fixture
def folder(codebook, tmp_path):
    """A fresh model folder, as `from_pretrained` takes it."""
    model = AdeForSequenceClassification.from_codebook(codebook, NAMES, Architecture(heads=2))
    Classifier(model, codebook.tokenizer).save(tmp_path / "fresh")
    return tmp_path / "fresh"


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification", "regression"])
def test_trainer_learns_and_saves(problem, folder, tmp_path):
    labels = 1 if problem == "regression" else 3
    # Another head than the folder's: transformers makes a fresh one.
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=labels, problem_type=problem, ignore_mismatched_sizes=True
    )
    assert isinstance(model, AdeForSequenceClassification)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts, topics = topic_texts(320, 0)
    answers = [NAMES.index(topic) for topic in topics]
    shown = {
        "single_label_classification": answers,
        "multi_label_classification": np.eye(3, dtype=np.float32)[answers].tolist(),
        "regression": [float(answer) for answer in answers],
    }[problem]
    rows = [{**tokenizer(text), "label": label} for text, label in zip(texts, shown, strict=True)]
    trainer = Trainer(model, arguments(tmp_path / "run", max_steps=40), DataCollatorWithPadding(tokenizer), rows)
    before = loss_of(trainer, rows[:64])
    trainer.train()
    assert loss_of(trainer, rows[:64]) < 0.7 * before
    trainer.save_model(str(tmp_path / "tuned"))
    tokenizer.save_pretrained(tmp_path / "tuned")
    runtime = Runtime.load(tmp_path / "tuned")
    assert runtime.problem == problem
    batch = tokenizer(texts[:8], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model.eval()(batch["input_ids"], batch["attention_mask"]).logits
    assert np.allclose(runtime.predict_scores(texts[:8]), logits.numpy(), atol=1e-4)


def test_trainer_accumulates_as_it_should(folder, tmp_path):
    """The same rows in one batch or in eight make the same step."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts, topics = topic_texts(32, 0)
    rows = [{**tokenizer(text), "label": NAMES.index(topic)} for text, topic in zip(texts, topics, strict=True)]
    after, collate = [], DataCollatorWithPadding(tokenizer)
    for size, times in ((32, 1), (4, 8)):
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        model.config.dropout = 0.0
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        more = {"per_device_train_batch_size": size, "gradient_accumulation_steps": times, "max_steps": 1}
        made = {**more, "optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0, "warmup_steps": 0}
        trainer = Trainer(model, plain_arguments(tmp_path / str(size), **made), collate, rows)
        trainer.train()
        after.append(model.classifier.weight.detach().clone())
    torch.testing.assert_close(after[0], after[1], rtol=1e-3, atol=1e-5)


def test_another_head_on_a_packed_folder_starts_with_nothing(codebook, tmp_path):
    book = replace(codebook, packing=Packing())
    model = AdeForSequenceClassification.from_codebook(book, NAMES, Architecture(heads=2)).packed()
    model.save_pretrained(tmp_path)
    same = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(same.classifier.weight, model.classifier.weight)
    other = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=5, ignore_mismatched_sizes=True)
    assert torch.equal(other(torch.tensor([[3, 1, 5]])).logits, torch.zeros(1, 5))


def test_trainer_learns_tags(codebook, tmp_path):
    model = AdeForTokenClassification.from_codebook(codebook, NAMES, Architecture(heads=2))
    model.save_pretrained(tmp_path / "fresh")
    Classifier(
        AdeForSequenceClassification.from_codebook(codebook, NAMES, Architecture(heads=2)), codebook.tokenizer
    ).save(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "fresh")
    known = {word: NAMES.index(topic) for topic, words in WORDS.items() for word in words}
    rows = []
    for text in topic_texts(200, 0)[0]:
        rows.append({**tokenizer(text), "labels": [known.get(word, -100) for word in text.split()]})
    collate = DataCollatorForTokenClassification(tokenizer)
    trainer = Trainer(model, arguments(tmp_path / "run", max_steps=30), collate, rows)
    before = loss_of(trainer, rows)
    trainer.train()
    assert loss_of(trainer, rows) < 0.7 * before


def test_pipelines(tmp_path):
    classifier = Classifier(small_model(), ragged_codebook([1, 3, 2, 4, 1, 5]).tokenizer)
    classifier.save(tmp_path / "model")
    said = pipeline("text-classification", str(tmp_path / "model"))(["w0 w1", "w3"], batch_size=2)
    assert [each["label"] for each in said] == classifier.predict(["w0 w1", "w3"])
    assert [each["score"] for each in said] == pytest.approx(
        classifier.predict_proba(["w0 w1", "w3"]).max(1).tolist(), abs=1e-5
    )
    vectors = pipeline("feature-extraction", str(tmp_path / "model"))("w0 w1 w2")
    assert np.array(vectors).shape == (1, 3, 8)


PACKED_USE = """
import sys
from {first}
from {second}
print(AutoTokenizer.from_pretrained({folder!r})("w0 w1 w3")["input_ids"])
print(pipeline("text-classification", {folder!r})(["w0 w1 w3", "w3"], batch_size=2)[0]["label"])
"""


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_packed_tokenizer_is_one_for_transformers(ours_first, tmp_path):
    book = replace(ragged_codebook([1, 3, 2, 4, 1, 5]), packing=Packing())
    model = lively(AdeForSequenceClassification.from_codebook(book, "abc", Architecture(heads=2)))
    classifier, folder = Classifier(model, book.tokenizer), tmp_path / "model"
    classifier.save(folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors", "tokenizer.packed.xz", "tokenizer_config.json"}

    # In a fresh process, whichever of the two packages is imported first.
    ours, theirs = "ade import errors", "transformers import AutoTokenizer, pipeline"
    first, second = (ours, theirs) if ours_first else (theirs, ours)
    program = PACKED_USE.format(first=first, second=second, folder=str(folder))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[2, 3, 5]", classifier.predict("w0 w1 w3")]

    # Saved again, it is packed again; the padding token and the length limit stay.
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.pad_token, tokenizer.model_max_length) == ("[PAD]", 512)
    tokenizer.save_pretrained(tmp_path / "again")
    assert {path.name for path in (tmp_path / "again").iterdir()} == {"tokenizer.packed.xz", "tokenizer_config.json"}
    assert (tmp_path / "again" / "tokenizer.packed.xz").read_bytes() == (folder / "tokenizer.packed.xz").read_bytes()
    for kind in (Classifier, Runtime):
        assert kind.load(folder).predict("w0 w1 w3") == classifier.predict("w0 w1 w3")


@pytest.mark.parametrize("attend", ["tokens", "gated", "anchors"])
@pytest.mark.parametrize("packed", [False, True])
def test_auto_model_gives_a_vector_a_token(attend, packed, tmp_path):
    book = ragged_codebook([1, 3, 2, 4, 1, 5])
    if packed:
        book = replace(book, packing=Packing())
    made = AdeForSequenceClassification.from_codebook(book, "abc", Architecture(attend=attend, heads=2))
    model = lively(made).eval().packed()
    model.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path).eval()
    ids, mask = torch.tensor([[3, 1, 5, 2], [4, 0, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
    vectors = base(ids, mask).last_hidden_state
    assert vectors.shape == (2, 4, 8)
    if attend != "anchors":
        assert torch.equal(vectors, model.ade.states(ids, mask.bool())[0])
        return
    states, there = model.ade.states(ids, mask.bool())
    counts = torch.tensor([1, 3, 2, 4, 1, 5])[ids]
    ends = counts[0].cumsum(0)
    for i in range(4):  # a token is the mean of its own anchors
        own = states[0, ends[i] - counts[0, i] : ends[i]]
        torch.testing.assert_close(vectors[0, i], own.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(vectors[1, 0], states[1][there[1]].mean(0), rtol=1e-5, atol=1e-6)


def test_a_folder_says_what_it_is(topics, tmp_path):
    book = distill(load_teacher("wordllama"), DistillationSettings(anchors=16, pairs=2, rounds=1))
    data = replace(topics, name="topics/of three")
    settings = replace(STRONG, steps=20, device="cpu")
    classifier = fit_model(book, data, settings=settings, out=tmp_path / "model")
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {
        path.name for path in (tmp_path / "model").iterdir()
    }
    figures = {"accuracy": 0.91, "macro_f1": 0.9, "n": 100}
    cards.record(tmp_path / "model", classifier.model.config, "test", figures)
    card = ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.license == "mit"
    assert card.data.pipeline_tag == "text-classification"
    assert {result.metric_type: result.metric_value for result in card.data.eval_results} == {
        "accuracy": 0.91,
        "f1": 0.9,
    }
    assert metadata_load(tmp_path / "model" / "README.md")["model-index"][0]["name"] == "ade-topics-of-three"
    assert "datasets" not in card.data.to_dict()  # not a name the hub would know
    nbytes = (tmp_path / "model" / "model.safetensors").stat().st_size
    for said in ("wordllama", f"{nbytes:,} bytes", "sport", "| test | 0.91", "ade.Classifier.load"):
        assert said in card.text
    assert AutoConfig.from_pretrained(tmp_path / "model").about["test"] == figures
    assert Classifier.load(tmp_path / "model").predict(["goal"]) == classifier.predict(["goal"])


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("MIT License", {"license": "mit"}),
        ("apache-2.0", {"license": "apache-2.0"}),
        ("Apache License 2.0", {"license": "apache-2.0"}),
        ("Apache Software License", {"license": "apache-2.0"}),
        ("gemma", {"license": "gemma"}),
        ("Some Own Terms", {"license": "other", "license_name": "some-own-terms"}),
        ("", {}),
        (None, {}),
    ],
)
def test_licences_are_spelled_as_on_the_hub(stated, expected):
    assert cards.licence(stated) == expected


@pytest.mark.parametrize("about", [{}, {"teacher": "org/model", "data": "org/data", "license": "mit", "rows": 5}])
def test_a_card_needs_nothing_but_a_config(about):
    config = AdeConfig(id2label={0: "a", 1: "b"}, about=about, architectures=["AdeForSequenceClassification"])
    found = ModelCard(cards.card(config, 1234))
    assert found.data.library_name == "ade"
    assert getattr(found.data, "base_model", None) == about.get("teacher")
    assert found.data.to_dict().get("datasets") == ([about["data"]] if about else None)


def test_a_name_that_is_nowhere_is_one_error(monkeypatch, tmp_path, ade):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for load in (Classifier.load, Runtime.load):
        with pytest.raises(InputError, match="neither a model folder nor a reachable hub name"):
            load("nobody/nothing-at-all")
    status, out, err = ade("predict", "nobody/nothing-at-all")
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as an upload of small files needs; keeps what it is sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        kept, (host, port) = self.server.kept, self.server.server_address
        if self.path == "/api/repos/create":
            answer = {"url": f"http://{host}:{port}/you/name"}
        elif self.path == "/api/validate-yaml":  # the card, before it is taken
            answer = {"errors": [], "warnings": []}
        elif "/preupload/" in self.path:
            names = [each["path"] for each in json.loads(body)["files"]]
            answer = {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
        else:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    kept[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            answer = {"commitUrl": f"http://{host}:{port}/you/name/commit/1", "commitOid": "1", "pullRequestUrl": None}
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_what_is_pushed_is_a_whole_folder(tmp_path):
    """In a fresh process, as the hub's address is read when its library is loaded."""
    classifier = Classifier(small_model(), ragged_codebook([1, 3, 2, 4, 1, 5]).tokenizer)
    classifier.save(tmp_path / "model")
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.kept = {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        push = f"import ade; print(ade.Classifier.load({str(tmp_path / 'model')!r}).push_to_hub('you/name', token='t'))"
        host, port = server.server_address
        more = {"HF_ENDPOINT": f"http://{host}:{port}", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run(
            [sys.executable, "-c", push], capture_output=True, text=True, env={**os.environ, **more}, check=False
        )
        server.shutdown()
    assert done.returncode == 0, done.stderr[-2000:]
    assert "you/name" in done.stdout
    assert set(server.kept) == {path.name for path in (tmp_path / "model").iterdir()}
    (tmp_path / "pulled").mkdir()
    for name, content in server.kept.items():
        (tmp_path / "pulled" / name).write_bytes(content)
    texts = ["w0 w1", "w3 w2"]
    assert np.array_equal(Runtime.load(tmp_path / "pulled").predict_proba(texts), classifier.predict_proba(texts))


def test_a_hub_out_of_reach_is_one_error(monkeypatch):
    classifier = Classifier(small_model(), ragged_codebook([1, 3, 2, 4, 1, 5]).tokenizer)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match="you/name: cannot be uploaded"):
        classifier.push_to_hub("you/name", token="t")


def test_a_config_with_nothing_new_reads_as_before(tmp_path):
    small_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("about", "class_weights", "problem_type"):
        config.pop(name, None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert (loaded.config.about, loaded.config.class_weights) == ({}, None)
