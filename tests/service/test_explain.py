"""POST /explain over a real socket: the same answers as in Python, its limits, and clients that leave."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest

from ade.classifier import Classifier
from ade.inspector.reading import Inspector
from ade.runtime.runtime import Runtime
from ade.service.inspections import MAX_WAITING
from ade.settings import Architecture, TrainingSettings
from ade.training.loop import fit_model
from tests.conftest import PATIENT, until
from tests.service.conftest import SMALL, connected, got, metrics_of, posted, running

TEXT = "the rocket and the bank"


@pytest.fixture(scope="module")
def folder(codebook, topics, tmp_path_factory):
    out = tmp_path_factory.mktemp("explain") / "model"
    chosen = TrainingSettings(steps=60, batch_size=16, learning_rate=5e-3, device="cpu")
    fit_model(codebook, topics, settings=chosen, architecture=Architecture(attend="gated"), out=out)
    return out


def test_the_same_as_in_python(folder):
    runtime = Runtime.load(folder)
    with running(runtime, replace(SMALL, inspect_texts=2)) as address:
        found = posted(address, [TEXT, ""], "/explain")
        assert found.status_code == 200
        assert found.json() == {"explanations": [each.as_dict() for each in runtime.explain([TEXT, ""])]}
        (one,) = posted(address, TEXT, "/explain").json()["explanations"]
        label = one["labels"].index(one["label"])
        total = sum(word["pooled"][label] for word in one["words"])
        total += sum(ngram["contributions"][label] for ngram in one["ngrams"])
        assert total + one["bias"][label] + one["lexicon_bias"][label] == pytest.approx(one["scores"][label], abs=1e-4)
        assert one["label"] == posted(address, TEXT).json()["predictions"][0]["label"]


def test_its_limits_are_those_of_inspections(folder):
    with running(Runtime.load(folder)) as address:
        assert "2 texts; at most 1" in posted(address, [TEXT, TEXT], "/explain").json()["detail"]
        assert posted(address, "a" * 2000, "/explain").status_code == 200
        assert posted(address, "a" * 2001, "/explain").status_code == 422
        assert posted(address, [], "/explain").status_code == 422
        assert httpx.post(f"{address}/explain", content=b"{}", timeout=PATIENT).status_code == 415
        assert got(address, "/explain").status_code == 405
        assert metrics_of(address)["ade_requests_total /explain,422"] == 3


class Held(Runtime):
    """A runtime whose explanations wait, and that remembers the texts it was asked about."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.asked, self.busy, self.go = [], threading.Event(), threading.Event()

    def explain(self, texts, first=0):
        self.asked.extend(texts)
        self.busy.set()
        assert self.go.wait(PATIENT)
        return super().explain(texts, first)


HEAD = b"POST /explain HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def test_those_who_leave_make_room_and_cost_nothing(folder):
    """As on the page: a key is pressed, the request before is abandoned; none of them is worked on."""
    predictor = Held.load(folder)
    with ThreadPoolExecutor(2) as aside, running(predictor) as address:
        try:
            first = aside.submit(posted, address, "first", "/explain")
            assert predictor.busy.wait(PATIENT)
            for i in range(3 * MAX_WAITING):
                body = json.dumps({"texts": f"leaves {i}"}).encode()
                with connected(address) as connection:
                    connection.sendall(HEAD % len(body) + body)
                until(lambda i=i: metrics_of(address).get("ade_requests_total /explain,499") == i + 1)
            last = aside.submit(posted, address, "last", "/explain")
        finally:
            predictor.go.set()
        assert [answer.result(PATIENT).status_code for answer in (first, last)] == [200, 200]
        assert predictor.asked == ["first", "last"]


def test_too_many_are_turned_away_and_may_come_again(folder):
    predictor = Held.load(folder)
    with ThreadPoolExecutor(MAX_WAITING + 1) as aside, running(predictor) as address:
        try:
            asked = [aside.submit(posted, address, TEXT, "/explain") for _ in range(MAX_WAITING + 1)]
            until(lambda: any(each.done() for each in asked))
            (refused,) = [each.result() for each in asked if each.done()]
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
        finally:
            predictor.go.set()
        assert sorted(each.result(PATIENT).status_code for each in asked) == [200] * MAX_WAITING + [503]
        assert posted(address, TEXT, "/explain").status_code == 200


def test_the_model_is_loaded_ahead_when_the_page_is_opened(folder):
    made = []

    def make() -> Inspector:
        made.append(Inspector(Classifier.load(folder, "cpu")))
        return made[0]

    with running(Runtime.load(folder), SMALL, make) as address:
        assert posted(address, TEXT, "/explain").status_code == 200
        assert got(address, "/health").status_code == 200
        assert made == []  # not before it is needed
        assert got(address).status_code == 200
        until(lambda: len(made) == 1 and "_about" in vars(made[0]))  # though nobody has asked for it
        got(address)
        assert got(address, "/about").json() == made[0].about()
        assert len(made) == 1
