"""Texts gathered into batches, by itself: in order, cut to size, one failure alone, nobody waiting for nothing."""

import asyncio
import time

from ade.service.batcher import Full, Gatherer


def gathered(requests, most=4, room=100, wait=0.0, pause=0.0):
    """What every request got, and the batches that were made."""
    batches = []

    def work(texts):
        batches.append(texts)
        time.sleep(pause)
        if "bad" in texts:
            raise ValueError("bad")
        return [text.upper() for text in texts]

    async def ask():
        gather = Gatherer(work, most, room, wait)
        return await asyncio.gather(*(gather(request) for request in requests), return_exceptions=True)

    return asyncio.run(ask()), batches


def test_requests_are_packed_and_cut_in_order():
    found, batches = gathered([["a"], ["b", "c"], ["d", "e"], list("fghijklmn"), ["o"]])
    assert found == [["A"], ["B", "C"], ["D", "E"], list("FGHIJKLMN"), ["O"]]
    assert batches == [["a", "b", "c"], ["d", "e"], list("fghi"), list("jklm"), ["n", "o"]]
    found, batches = gathered([["a"], ["b"], ["c"]], most=1)
    assert batches == [["a"], ["b"], ["c"]]


def test_one_bad_request_spoils_no_other():
    found, batches = gathered([["a"], ["bad"], ["b", "c"]])
    assert found[0] == ["A"]
    assert isinstance(found[1], ValueError)
    assert found[2] == ["B", "C"]
    assert batches[0] == ["a", "bad", "b", "c"]
    found, _ = gathered([["a", "b", "c", "d", "bad"]])
    assert isinstance(found[0], ValueError)


def test_a_full_queue_takes_no_more():
    found, _ = gathered([["a", "b"], ["c", "d"], ["e"]], room=4)
    assert found[:2] == [["A", "B"], ["C", "D"]]
    assert isinstance(found[2], Full)


def test_it_waits_for_others_only_where_there_were_others():
    """Alone, no wait at all; after a batch of two, the first of the next two waits for the second, not for ever."""
    batches = []

    def work(texts):
        batches.append(texts)
        return texts

    async def timed(gather, *texts):
        began = time.monotonic()
        await gather(list(texts))
        return time.monotonic() - began

    async def later(gather, text, seconds):
        await asyncio.sleep(seconds)
        return await timed(gather, text)

    async def ask():
        gather = Gatherer(work, 8, 100, 0.5)
        alone = [await timed(gather, "alone") for _ in range(20)]
        await asyncio.gather(gather(["a"]), gather(["b"]))
        pair = await asyncio.gather(timed(gather, "c"), later(gather, "d", 0.02))
        last = await timed(gather, "e")
        again = await timed(gather, "f")
        return alone, pair, last, again

    alone, pair, last, again = asyncio.run(ask())
    assert max(alone) < 0.4
    assert batches[20:] == [["a", "b"], ["c", "d"], ["e"], ["f"]]
    assert 0.01 < pair[0] < 0.4  # the second came: no need to wait longer
    assert 0.45 < last < 2  # nobody came
    assert again < 0.4  # and nobody is expected any more


def test_what_is_cancelled_is_not_worked_on():
    batches = []

    def work(texts):
        batches.append(texts)
        time.sleep(0.2)
        return texts

    async def ask():
        gather = Gatherer(work, 4, 100)
        first = asyncio.create_task(gather(["first"]))
        await asyncio.sleep(0.05)
        tasks = [asyncio.create_task(gather([f"{i}"] * 6)) for i in range(5)]
        await asyncio.sleep(0)
        for task in tasks[:4]:
            task.cancel()
        assert await first == ["first"]
        assert await tasks[4] == ["4"] * 6
        return gather.waiting

    assert asyncio.run(ask()) == 0
    assert batches == [["first"], ["4"] * 4, ["4"] * 2]
