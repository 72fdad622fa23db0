"""The batcher by itself: clients in turn, texts in order, one failure alone, nothing predicted for nobody."""

import asyncio
import threading

import pytest

from ade.service import batcher
from ade.service.batcher import Batcher, QueueFull
from ade.settings import ServiceSettings
from tests.conftest import PATIENT


@pytest.fixture(autouse=True)
def in_a_thread(monkeypatch):
    """So that work that is held does not hold the event loop."""
    monkeypatch.setattr(batcher, "INLINE_SECONDS", -1.0)


def limits(batch=4, queue=10**6):
    return ServiceSettings(batch_tokens=batch, queue_tokens=queue)


def one(text):
    return 1


class Work:
    """What is predicted, in batches; it can be held."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()

    def __call__(self, texts):
        self.batches.append(texts)
        self.begun.set()
        assert self.go.wait(PATIENT)
        if "bad" in texts:
            raise ValueError("bad")
        return [text.upper() for text in texts]


def batched(requests, settings=limits(), cost=one):
    """What every client's request got, and the batches that were made."""
    work = Work()

    async def ask():
        predict = Batcher(work, cost, settings)
        asked = (predict(request, client) for client, request in enumerate(requests))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert predict.tokens == 0
        return answers

    return asyncio.run(asyncio.wait_for(ask(), PATIENT)), work.batches


def test_clients_take_turns_and_texts_are_answered_in_order():
    answers, batches = batched([["a"], ["b", "c"], ["d", "e"], list("fghijk")])
    assert answers == [["A"], ["B", "C"], ["D", "E"], list("FGHIJK")]
    assert [sorted(batch) for batch in batches] == [list("abdf"), list("cegh"), list("ijk")]


def test_the_share_is_of_a_client_however_many_requests_it_has():
    work = Work()

    async def ask():
        predict = Batcher(work, one, limits(2))
        greedy = [predict([f"greedy {i}"], "greedy") for i in range(10)]
        await asyncio.gather(*greedy, predict(["a", "b", "c"], "other"))

    asyncio.run(asyncio.wait_for(ask(), PATIENT))
    assert [sorted(batch) for batch in work.batches[:3]] == [[each, f"greedy {i}"] for i, each in enumerate("abc")]


def test_a_word_among_greedy_clients_is_in_the_next_batch():
    """While the first of many batches is predicted, a word arrives."""
    work = Work()
    work.go.clear()

    async def ask():
        predict = Batcher(work, len, limits(100))
        greedy = [asyncio.create_task(predict(["x" * 90] * 20, i)) for i in range(40)]
        await asyncio.to_thread(work.begun.wait, PATIENT)
        word = asyncio.create_task(predict(["word"], "another"))
        await asyncio.sleep(0)
        work.go.set()
        await word
        assert not any(task.done() for task in greedy)
        await asyncio.gather(*greedy)

    asyncio.run(asyncio.wait_for(ask(), PATIENT))
    assert work.batches[1][0] == "word"
    assert max(sum(map(len, batch)) for batch in work.batches) <= 100


def test_words_do_not_starve_a_long_text():
    """Time is shared by cost: after some words the long text has its turn."""
    work = Work()

    async def ask():
        predict = Batcher(work, lambda text: 20 if text == "long" else 1, limits(1))

        async def ask_again():  # a new word as soon as the last is answered
            while True:
                await predict(["w"], "quick")

        asking = asyncio.create_task(ask_again())
        await predict(["long"], "slow")
        asking.cancel()

    asyncio.run(asyncio.wait_for(ask(), PATIENT))
    assert 0 < work.batches.count(["w"]) <= 50


def test_one_bad_request_spoils_no_other():
    answers, batches = batched([["a"], ["bad"], ["b", "c"]])
    assert (answers[0], answers[2]) == (["A"], ["B", "C"])
    assert isinstance(answers[1].__cause__, ValueError)
    assert sorted(batches[0]) == ["a", "b", "bad", "c"]
    answers, batches = batched([["bad", "b", "c", "d", "e", "f", "g", "h"], ["i"]])
    assert isinstance(answers[0], RuntimeError)
    assert answers[1] == ["I"]
    assert not any("h" in batch for batch in batches)  # what is left of a request that has failed is not predicted


def test_a_full_queue_takes_no_more_but_keeps_room_for_short_requests():
    answers, _ = batched([["a", "b"], ["c", "d"], ["e"]], limits(queue=4))
    assert answers[:2] == [["A", "B"], ["C", "D"]]
    assert isinstance(answers[2], QueueFull)
    answers, _ = batched([["long text"], ["a"]], limits(queue=4), len)  # alone, a request always fits
    assert answers[0] == ["LONG TEXT"]
    assert isinstance(answers[1], QueueFull)
    answers, _ = batched([["x" * 60], ["y" * 60], ["w"] * 4, ["z" * 11]], limits(10, 128), len)
    assert [isinstance(each, QueueFull) for each in answers] == [False, True, False, False]


def test_short_work_stays_in_the_event_loop(monkeypatch):
    """After a batch that took no time; the first, of which nothing is known, is predicted in a thread."""
    monkeypatch.setattr(batcher, "INLINE_SECONDS", PATIENT / 2)
    monkeypatch.setattr(batcher, "FIRST_SECONDS", PATIENT)
    threads = []

    def work(texts):
        threads.append(threading.current_thread())
        return texts

    async def ask():
        predict = Batcher(work, one, limits())
        for _ in range(3):
            await predict(["a"])

    asyncio.run(ask())
    assert [thread is threading.main_thread() for thread in threads] == [False, True, True]
