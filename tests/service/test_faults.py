"""Failures, clients that leave and too much work: each stays with its own request."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ade.runtime.runtime import Runtime
from ade.service import batcher
from ade.settings import ServiceSettings
from tests.conftest import PATIENT, until
from tests.service.conftest import (
    HEAD,
    SECRET,
    Watched,
    asked_in_one_batch,
    connected,
    got,
    metrics_of,
    posted,
    running,
)


def test_a_failure_stays_with_its_own_request_and_tells_nothing(folder, caplog):
    predictor = Watched.load(folder)
    with running(predictor) as address:
        predictor.go.clear()  # while the first is worked on, the others gather
        texts = ["the coach", "boom", "the team", "boom and more", "a rocket"]

        with caplog.at_level(logging.ERROR, "ade.service"):
            answers = asked_in_one_batch(predictor, address, texts)
        assert [answer.status_code for answer in answers] == [200, 200, 500, 200, 500, 200]
        assert sorted(texts) in [sorted(batch) for batch in predictor.asked]  # it was one batch
        for answer in answers:
            assert SECRET not in answer.text
            assert "Traceback" not in answer.text
            assert "RuntimeError" not in answer.text
        assert answers[2].json() == {"detail": "the service failed on this request; its log says why"}
        assert caplog.text.count(f"RuntimeError: {SECRET}") == 2  # the trace of each is written down once
        assert metrics_of(address)["ade_requests_total /predict,500"] == 2
    predictor._threaded = None  # and a model that is broken altogether
    with running(predictor) as address:
        assert posted(address, ["a", "b"]).status_code == 500
        assert got(address, "/health").status_code == 200


def test_predictions_that_are_not_finite_are_an_error(folder):
    predictor = Runtime.load(folder)
    predictor.projection._positions[:] = np.nan
    with running(predictor) as address:
        assert posted(address, "rocket").status_code == 500


def test_clients_that_leave_cost_nothing(folder, monkeypatch):
    monkeypatch.setattr(batcher, "CHECK_CLIENT_AFTER", -1.0)  # everybody is asked whether they are still there
    predictor = Watched.load(folder)
    with ThreadPoolExecutor(2) as aside, running(predictor) as address:
        predictor.go.clear()
        first = aside.submit(posted, address, "first")
        assert predictor.busy.wait(PATIENT)
        bodies = [json.dumps({"texts": f"leaves {i}"}).encode() for i in range(10)]
        whole, half = ([connected(address) for _ in bodies] for _ in range(2))
        for connections, cut in ((whole, 0), (half, 3)):
            for connection, body in zip(connections, bodies, strict=True):
                connection.sendall(HEAD % (len(body), b"") + body[: len(body) - cut])
        until(lambda: metrics_of(address)["ade_waiting_texts"] == 10)
        for connection in (*whole, *half):
            connection.close()
        until(lambda: metrics_of(address).get("ade_requests_total /predict,499") == 10)  # those who had not said it all
        stays = aside.submit(posted, address, "stays")
        until(lambda: metrics_of(address)["ade_waiting_texts"] == 11)
        predictor.go.set()
        assert [answer.result(PATIENT).status_code for answer in (first, stays)] == [200, 200]
        assert predictor.asked == [["first"], ["stays"]]
        seen = metrics_of(address)
    assert seen["ade_requests_total /predict,499"] == 20
    assert seen["ade_waiting_texts"] == 0


def test_too_many_are_turned_away_and_may_come_again(folder):
    predictor = Watched.load(folder)
    chosen = ServiceSettings(max_texts=4, batch=4, queue=8)
    with ThreadPoolExecutor(9) as aside, running(predictor, chosen) as address:
        predictor.go.clear()
        first = aside.submit(posted, address, ["a"] * 4)
        assert predictor.busy.wait(PATIENT)
        asked = [aside.submit(posted, address, ["a"] * 4) for _ in range(8)]
        until(lambda: sum(each.done() for each in asked) == 6)  # two more fit the queue
        refused = [each.result() for each in asked if each.done()]
        assert {answer.status_code for answer in refused} == {503}
        assert refused[0].headers["retry-after"] == "1"
        assert "waiting" in refused[0].json()["detail"]
        predictor.go.set()
        answers = [each.result(PATIENT).status_code for each in (first, *asked)]
        assert (answers.count(200), answers.count(503)) == (3, 6)
        assert posted(address, ["a"] * 4).status_code == 200
