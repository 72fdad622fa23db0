"""The model that is served: one for all routes whatever happens to its folder, tested, and replaced while serving."""

import shutil
import signal
import threading

import httpx
import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

from ade.classifier import Classifier, Tagger
from ade.errors import InputError
from ade.model import AdeForSequenceClassification, AdeForTokenClassification
from ade.runtime.runtime import Runtime
from ade.service.access import Access
from ade.service.model import ServedModel
from tests.conftest import PATIENT, until
from tests.service.conftest import Watched, asked_in_one_batch, got, metrics_of, posted, running, serving_verb

TEXT = "the rocket and the bank"
KEY = "0123456789abcdef"
BEARER = {"authorization": f"Bearer {KEY}"}


@pytest.fixture
def copy(folder, tmp_path):
    """A model folder that may be changed."""
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.fixture(scope="module")
def other(codebook, tmp_path_factory):
    """Another model, with other labels."""
    out = tmp_path_factory.mktemp("other") / "other"
    Classifier(AdeForSequenceClassification.from_codebook(codebook, ("x", "y")), codebook.tokenizer).save(out)
    return out


def replace_folder(folder, by) -> None:
    shutil.rmtree(folder)
    shutil.copytree(by, folder)


@pytest.mark.parametrize("removed", [True, False])
def test_all_routes_answer_from_the_model_that_was_loaded(copy, other, removed):
    model = ServedModel.load(copy)
    shutil.rmtree(copy)
    if not removed:
        shutil.copytree(other, copy)
    with running(model) as address:
        (predicted,) = posted(address, TEXT).json()["predictions"]
        (explained,) = posted(address, TEXT, "/explain").json()["explanations"]
        (inspected,) = posted(address, TEXT, "/inspect").json()["readings"]
        embedded = httpx.post(f"{address}/v1/embeddings", json={"input": TEXT}, timeout=PATIENT)
        assert predicted["label"] == explained["label"] == inspected["label"]
        assert list(predicted["probabilities"]) == list(inspected["probabilities"]) == explained["labels"]
        assert inspected["probabilities"] == pytest.approx(predicted["probabilities"], abs=1e-4)
        assert got(address, "/about").json()["labels"] == explained["labels"]
        assert embedded.status_code == 200


def test_name_and_hash_are_those_of_the_files(folder, copy, other):
    model, same = ServedModel.load(folder), ServedModel.load(copy)
    assert (model.name, same.name) == (folder.name, "copy")
    assert model.sha256 == same.sha256 != ServedModel.load(other).sha256
    assert len(model.sha256) == 64
    config = copy / "config.json"
    config.write_text(config.read_text() + "\n")
    assert ServedModel.load(copy).sha256 != model.sha256
    with running(model) as address:
        health = got(address, "/health").json()
        assert (health["model"]["name"], health["model"]["sha256"]) == (folder.name, model.sha256)


def test_a_folder_that_changes_while_it_is_read_is_read_again(copy, other, monkeypatch):
    """Half of one model and half of another would be served."""
    from ade.service import model as module

    versions, calls = module._versions, []

    def changing(path):
        found = versions(path)
        calls.append(path)
        if len(calls) == 1:
            replace_folder(copy, other)  # after the files were listed, before they are read
        return found

    monkeypatch.setattr(module, "_versions", changing)
    assert ServedModel.load(copy).sha256 == ServedModel.load(other).sha256
    assert len(calls) >= 4


def test_a_model_that_cannot_predict_is_refused_when_it_is_loaded(copy, folder):
    """Finite weights that overflow pass every other check."""
    from safetensors.numpy import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    weights["classifier.weight"] = np.full_like(weights["classifier.weight"], 3e38)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with np.errstate(all="ignore"), pytest.raises(InputError, match=r"copy: the model's predictions for a test text"):
        ServedModel.load(copy)

    class Failing(Runtime):
        def predict_proba(self, texts):
            raise RuntimeError("no\nmore")

    from ade.service.model import self_test

    with pytest.raises(InputError, match=r"fails on a test text \(no\)"):
        self_test(ServedModel(Failing.load(folder)), folder)


def test_a_tokenizer_that_panics_on_a_text_fails_that_request_alone(folder):
    predictor = Watched.load(folder)
    predictor.tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    panics = "a" * 60 + "b"
    with running(predictor) as address:
        predictor.go.clear()
        texts = ["the coach", panics, "the team"]

        answers = asked_in_one_batch(predictor, address, texts)
        assert [answer.status_code for answer in answers] == [200, 200, 500, 200]
        assert sorted(texts) in [sorted(batch) for batch in predictor.asked]  # it was one batch
        assert posted(address, panics, "/explain").status_code == 500
        assert posted(address, TEXT, "/explain").status_code == 200
        assert posted(address, TEXT).status_code == 200


def test_a_reload_needs_a_key(folder):
    for access, headers in (
        (Access(), {}), (Access(), BEARER), (Access((KEY,)), {}), (Access((KEY,)), {"authorization": "Bearer other"}),
    ):  # fmt: skip
        with running(Runtime.load(folder), access=access, load=lambda: pytest.fail("it was loaded")) as address:
            answer = httpx.post(f"{address}/reload", headers=headers, timeout=PATIENT)
            assert answer.status_code == (401 if access.keys else 403)
    with running(Runtime.load(folder), access=Access((KEY,)), load=lambda: pytest.fail("it was loaded")) as address:
        answer = httpx.post(f"{address}/reload", auth=("any", KEY), timeout=PATIENT)  # as a browser would send it
        assert answer.status_code == 403


def test_requests_under_way_are_answered_by_the_model_they_came_to(folder, other):
    """A reload in the middle: what waits for the old model gets its labels, what comes later the new one's."""
    predictor = Watched.load(folder)
    access = Access((KEY,))
    with (
        running(predictor, access=access, load=lambda: ServedModel.load(other)) as address,
        httpx.Client(base_url=address, headers=BEARER, timeout=PATIENT) as client,
    ):
        predictor.go.clear()
        answers = []
        asking = [threading.Thread(target=lambda: answers.append(ask(address))) for _ in range(5)]
        for thread in asking:
            thread.start()
        assert predictor.busy.wait(PATIENT)
        metrics = "ade_waiting_texts 4.0"
        until(lambda: metrics in client.get("/metrics").text)
        assert client.post("/reload").json()["model"]["labels"] == ["x", "y"]
        assert ask(address) <= {"x", "y"}
        predictor.go.set()
        for thread in asking:
            thread.join(PATIENT)
        assert len(answers) == 5
        assert all(answer == set(predictor.names) for answer in answers)
        assert "ade_waiting_texts 0.0" in client.get("/metrics").text
        assert 'ade_reloads_total{result="success"} 1.0' in client.get("/metrics").text


def ask(address: str) -> set[str]:
    answer = httpx.post(f"{address}/predict", json={"texts": TEXT}, headers=BEARER, timeout=PATIENT)
    return set(answer.json()["predictions"][0]["probabilities"])


def test_a_model_that_cannot_be_loaded_leaves_the_one_before(folder, copy):
    access = Access((KEY,))
    with running(ServedModel.load(copy), access=access, load=lambda: ServedModel.load(copy)) as address:
        (copy / "config.json").write_text("{")
        answer = httpx.post(f"{address}/reload", headers=BEARER, timeout=PATIENT)
        assert answer.status_code == 409
        assert "copy: not a readable ADE model" in answer.json()["detail"]
        assert ask(address) == set(Runtime.load(folder).names)
    with running(Runtime.load(folder), access=access) as address:
        answer = httpx.post(f"{address}/reload", headers=BEARER, timeout=PATIENT)
        assert "cannot load another model" in answer.json()["detail"]


def test_hangup_loads_the_folder_again(copy, other):
    with serving_verb(copy, "--grace", "0") as (process, address):
        before = got(address, "/health").json()["model"]
        replace_folder(copy, other)
        assert got(address, "/health").json()["model"] == before
        process.send_signal(signal.SIGHUP)
        until(lambda: got(address, "/health").json()["model"]["labels"] == ["x", "y"])
        assert set(posted(address, TEXT).json()["predictions"][0]["probabilities"]) == {"x", "y"}

        (copy / "model.safetensors").unlink()
        process.send_signal(signal.SIGHUP)
        until(lambda: metrics_of(address).get("ade_reloads_total failure") == 1)
        assert posted(address, TEXT).status_code == 200
        process.terminate()
        _, errors = process.communicate(timeout=PATIENT)
    assert "the model was not loaded again" in errors


def test_a_tagger_is_served(codebook, tmp_path):
    model = AdeForTokenClassification.from_codebook(codebook, ("O", "B-thing"))
    Tagger(model, codebook.tokenizer).save(tmp_path / "tagger")
    served = ServedModel.load(tmp_path / "tagger")
    texts = ["the rocket", "", "a bank"]
    with running(served) as address:
        found = posted(address, ["the rocket", "", "a  bank"]).json()["predictions"]
        expected = served.predictor.predict(texts)
        assert found == [{"words": text.split(), "tags": tags} for text, tags in zip(texts, expected, strict=True)]
        assert got(address, "/health").json()["model"]["problem"] == "token_classification"
        for path in ("/explain", "/v1/embeddings"):
            assert posted(address, "a", path).status_code == 409
        assert posted(address, "a", "/inspect").status_code == 404
        body = {"texts": "a", "top_k": 1}
        assert httpx.post(f"{address}/predict", json=body, timeout=PATIENT).status_code == 422
