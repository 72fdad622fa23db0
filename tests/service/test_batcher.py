"""The batcher by itself: texts in order, cut to size, one failure alone, nobody waiting for nothing."""

import asyncio
import threading
import time

from ade.service import batcher
from ade.service.batcher import Batcher, QueueFull
from tests.conftest import PATIENT


def batched(requests, max_texts=4, max_queued=100):
    """What every request got, and the batches that were made."""
    batches = []

    def work(texts):
        batches.append(texts)
        if "bad" in texts:
            raise ValueError("bad")
        return [text.upper() for text in texts]

    async def ask():
        predict = Batcher(work, max_texts, max_queued)
        return await asyncio.gather(*(predict(request) for request in requests), return_exceptions=True)

    return asyncio.run(ask()), batches


def test_requests_are_packed_and_cut_in_order():
    found, batches = batched([["a"], ["b", "c"], ["d", "e"], list("fghijklmn"), ["o"]])
    assert found == [["A"], ["B", "C"], ["D", "E"], list("FGHIJKLMN"), ["O"]]
    assert batches == [["a", "b", "c"], ["d", "e"], list("fghi"), list("jklm"), ["n", "o"]]
    found, batches = batched([["a"], ["b"], ["c"]], max_texts=1)
    assert batches == [["a"], ["b"], ["c"]]


def test_one_bad_request_spoils_no_other():
    found, batches = batched([["a"], ["bad"], ["b", "c"]])
    assert found[0] == ["A"]
    assert isinstance(found[1], ValueError)
    assert found[2] == ["B", "C"]
    assert batches[0] == ["a", "bad", "b", "c"]
    found, _ = batched([["a", "b", "c", "d", "bad"]])
    assert isinstance(found[0], ValueError)


def test_a_full_queue_takes_no_more():
    found, _ = batched([["a", "b"], ["c", "d"], ["e"]], max_queued=4)
    assert found[:2] == [["A", "B"], ["C", "D"]]
    assert isinstance(found[2], QueueFull)


FOR_EVER = 10 * PATIENT  # whoever waits that long makes the test fail


def echo(batches):
    def work(texts):
        batches.append(texts)
        return texts

    return work


def test_it_waits_for_others_only_where_there_were_others(monkeypatch):
    """Alone, no wait at all; after a batch of two, the first of the next two waits for the second, not for ever."""
    monkeypatch.setattr(batcher, "FORGET_AFTER", FOR_EVER)  # what was last remains known, however slow we are
    batches = []

    async def ask():
        predict = Batcher(echo(batches), 8, 100, FOR_EVER)
        for _ in range(20):
            await predict(["alone"])
        await asyncio.gather(predict(["a"]), predict(["b"]))
        first = asyncio.create_task(predict(["c"]))
        while predict._enough_queued is None:  # until it waits for a second
            await asyncio.sleep(0)
        await asyncio.gather(first, predict(["d"]))  # which comes: no need to wait longer
        predict._max_wait = 0.05
        began = time.monotonic()
        await predict(["e"])  # nobody comes
        waited = time.monotonic() - began
        predict._max_wait = FOR_EVER
        await predict(["f"])  # and nobody is expected any more
        return waited

    waited = asyncio.run(asyncio.wait_for(ask(), PATIENT))
    assert batches[20:] == [["a", "b"], ["c", "d"], ["e"], ["f"]]
    assert waited > 0.04  # timers are a little coarse; how much longer it took is the machine's affair


def test_after_a_lull_nobody_else_is_expected(monkeypatch):
    monkeypatch.setattr(batcher, "FORGET_AFTER", -1.0)  # every batch was long ago
    batches = []

    async def ask():
        predict = Batcher(echo(batches), 8, 100, FOR_EVER)
        await asyncio.gather(predict(["a"]), predict(["b"]))
        await predict(["c"])

    asyncio.run(asyncio.wait_for(ask(), PATIENT))
    assert batches == [["a", "b"], ["c"]]


def test_what_is_cancelled_is_not_worked_on():
    batches, begun, go = [], threading.Event(), threading.Event()

    def work(texts):
        batches.append(texts)
        begun.set()
        assert go.wait(PATIENT)
        return texts

    async def ask():
        predict = Batcher(work, 4, 100)
        first = asyncio.create_task(predict(["first"]))
        await asyncio.to_thread(begun.wait, PATIENT)
        tasks = [asyncio.create_task(predict([f"{i}"] * 6)) for i in range(5)]
        await asyncio.sleep(0)
        for task in tasks[:4]:
            task.cancel()
        await asyncio.sleep(0)
        go.set()
        assert await first == ["first"]
        assert await tasks[4] == ["4"] * 6
        return predict.queued

    assert asyncio.run(ask()) == 0
    assert batches == [["first"], ["4"] * 4, ["4"] * 2]
