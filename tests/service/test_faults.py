"""Failures, clients that leave and too much work: each stays with its own request."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ade.service.model import Query
from ade.settings import ServiceSettings
from tests.conftest import PATIENT, until
from tests.service.conftest import (
    HEAD,
    SECRET,
    SMALL,
    asked_in_one_batch,
    connected,
    got,
    metrics_of,
    posted,
    predicted,
    running,
)


def test_a_failure_stays_with_its_own_request_and_tells_nothing(watched, caplog):
    texts = ["the coach", "boom", "the team", "boom and more", "a rocket"]
    with running(watched) as address, caplog.at_level(logging.ERROR, "ade.service"):
        answers = asked_in_one_batch(watched, address, texts)
        assert metrics_of(address)["ade_request_seconds_count /predict,500"] == 2
    assert [answer.status_code for answer in answers] == [200, 200, 500, 200, 500, 200]
    assert sorted(texts) in [sorted(batch) for batch in watched.asked]  # it was one batch
    assert answers[2].json() == {"detail": "the service failed on this request; its log says why"}
    assert caplog.text.count(f"RuntimeError: {SECRET}") == 2


def test_a_client_that_leaves_before_it_has_said_it_all_is_counted(address):
    with connected(address) as connection:
        connection.sendall(HEAD % (100, b"") + b'{"te')
    until(lambda: metrics_of(address).get("ade_request_seconds_count /predict,499") == 1)


def test_too_many_are_turned_away_and_may_come_again(watched):
    cost = 4 * watched.cost(Query("a"))
    with (
        ThreadPoolExecutor(9) as aside,
        running(watched, ServiceSettings(batch_tokens=cost, queue_tokens=2 * cost)) as address,
    ):
        watched.go.clear()
        first = aside.submit(predicted, address, ["a"] * 4)
        assert watched.busy.wait(PATIENT)
        asked = [aside.submit(predicted, address, ["a"] * 4) for _ in range(8)]
        until(lambda: sum(each.done() for each in asked) == 6)  # two more fit the queue
        refused = [each.result() for each in asked if each.done()]
        assert {answer.status_code for answer in refused} == {503}
        assert refused[0].headers["retry-after"] == "1"
        assert "waiting" in refused[0].json()["detail"]
        watched.go.set()
        answers = [each.result(PATIENT).status_code for each in (first, *asked)]
        assert (answers.count(200), answers.count(503)) == (3, 6)
        assert predicted(address, ["a"] * 4).status_code == 200


def test_health_is_answered_however_many_requests_there_are(watched):
    body = json.dumps({"texts": "a rocket"}).encode()
    with running(watched, replace(SMALL, max_requests=10)) as address:
        busy = [connected(address) for _ in range(30)]
        for connection in busy:
            connection.sendall(HEAD % (len(body), b"") + body[:-3])
        refused = [connection for connection in busy[10:] if connection.recv(100).startswith(b"HTTP/1.1 503")]
        assert len(refused) == 20
        assert got(address, "/health").status_code == 200
        answer = predicted(address, "rocket")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json() == {"detail": "too many requests at once; try again"}
        for connection in busy[:10]:  # those within the limit are served
            connection.sendall(body[-3:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        for connection in busy:
            connection.close()
        until(lambda: predicted(address, "rocket").status_code == 200)


@pytest.mark.parametrize("path", ["/predict", "/explain", "/inspect"])
def test_a_request_that_waits_too_long_is_told_to_come_again(watched, path):
    """The model is held at work by another request; what is given up is not worked on."""
    body = {"texts": "rocket"} if path == "/predict" else {"text": "rocket"}
    with ThreadPoolExecutor(1) as aside, running(watched, replace(SMALL, timeout=0.3)) as address:
        watched.go.clear()
        first = aside.submit(posted, address, path, **body)
        assert watched.busy.wait(PATIENT)
        answer = posted(address, path, **body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json() == {"detail": "not answered within 0.3 seconds; try again"}
        until(lambda: metrics_of(address)["ade_waiting_tokens"] == 0)
        watched.go.set()
        first.result(PATIENT)
        until(lambda: posted(address, path, **body).status_code == 200)
        assert watched.asked[0] == ["rocket"]
