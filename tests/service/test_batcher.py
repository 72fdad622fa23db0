"""The batcher by itself: requests in turn, texts in order, one failure alone, nobody waiting for nothing."""

import asyncio
import threading
import time

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from ade.service import batcher
from ade.service.batcher import Batcher, BatchLimits, QueueFull
from tests.conftest import PATIENT


def limits(items=4, cost=1000, queued=1000, wait=0.0):
    return BatchLimits(items, cost, queued, wait)


def one(text):
    return 1


def batched(requests, chosen=limits(), cost=one):
    """What every request got, and the batches that were made."""
    batches = []

    def work(texts):
        batches.append(texts)
        if "bad" in texts:
            raise ValueError("bad")
        return [text.upper() for text in texts]

    async def ask():
        predict = Batcher(work, chosen, cost)
        found = await asyncio.gather(*(predict(request) for request in requests), return_exceptions=True)
        assert (predict.queued, predict.queued_items) == (0, 0)
        return found

    return asyncio.run(ask()), batches


class Held:
    """Work that waits until it may go on, and knows its batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, texts):
        self.batches.append(texts)
        self.begun.set()
        assert self.go.wait(PATIENT)
        return texts


def test_requests_are_served_in_turn_and_answered_in_order():
    found, batches = batched([["a"], ["b", "c"], ["d", "e"], list("fghijk"), ["o"]], limits(cost=8))
    assert found == [["A"], ["B", "C"], ["D", "E"], list("FGHIJK"), ["O"]]
    assert [sorted(batch) for batch in batches] == [list("abdf"), list("cego"), list("hijk")]
    found, batches = batched([["a"], ["b"], ["c"]], limits(items=1))
    assert batches == [["a"], ["b"], ["c"]]
    assert batched([[]]) == ([[]], [])


def test_a_short_request_is_one_turn():
    """Texts that cost less than an eighth of a batch stay together: a request waits for one batch, not for several."""
    requests = [["a", "b"], list("cdefgh"), ["i", "j"]]
    _, batches = batched(requests, limits(cost=16))
    assert batches == [["a", "b", "c", "d"], ["i", "j", "e", "f"], ["g", "h"]]


def test_a_short_request_waits_for_no_long_one():
    """However many greedy requests are queued before it, a word is in the next batch, whatever the texts cost."""
    greedy = [[f"{i}:{j}" for j in range(50)] for i in range(40)]
    _, batches = batched([*greedy, ["word"]], limits(4, 100, 10**6), lambda text: 100 if ":" in text else 1)
    assert batches[0] == ["word"]  # an item of a whole batch's cost goes alone
    turns = [batch[0].split(":")[0] for batch in batches[1:]]
    assert turns[:40] == [str(i) for i in range(40)]  # then each of the others in turn
    assert turns[40:80] == turns[:40]


def test_a_word_that_comes_late_is_next():
    """While the first of many batches is predicted, a word arrives: it is in the second."""
    work = Held()

    async def ask():
        predict = Batcher(work, limits(8, 100, 10**6), len)
        greedy = [asyncio.create_task(predict(["x" * 90] * 20)) for _ in range(40)]
        await asyncio.to_thread(work.begun.wait, PATIENT)
        word = asyncio.create_task(predict(["word"]))
        await asyncio.sleep(0)
        work.go.set()
        await word
        assert not any(task.done() for task in greedy)
        await asyncio.gather(*greedy)

    asyncio.run(asyncio.wait_for(ask(), PATIENT))
    assert work.batches[1][0] == "word"
    assert sum(map(len, work.batches[1])) <= 100


def test_a_word_is_served_between_the_steps_of_a_long_text():
    """Not after the text, and a text of another request that is long as well waits."""
    done, begun, go = [], threading.Event(), threading.Event()

    def work(texts):
        done.append(texts)
        if "bad" in texts:
            raise ValueError("bad")
        return texts

    def steps(texts):
        for i in range(3):
            begun.set()
            assert go.wait(PATIENT)
            done.append(i)
            yield None
        if "fails" in texts:
            raise ValueError("fails")
        yield work(texts)

    async def ask(long):
        predict = Batcher(work, limits(8, 100, 10**6), len, steps=steps)
        first = asyncio.create_task(predict([long]))
        await asyncio.to_thread(begun.wait, PATIENT)
        others = [asyncio.create_task(predict([text])) for text in ("x" * 90, "word", "bad")]
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    found = asyncio.run(asyncio.wait_for(ask("long"), PATIENT))
    assert found[:3] == [["long"], ["x" * 90], ["word"]]
    assert isinstance(found[3], ValueError)
    assert done.index(["word"]) < done.index(1) < done.index(["long"]) < done.index(["x" * 90])

    done.clear()
    begun.clear()
    go.clear()
    found = asyncio.run(asyncio.wait_for(ask("fails"), PATIENT))  # what fails in steps is tried once more
    assert found[:3] == [["fails"], ["x" * 90], ["word"]]


def test_many_words_do_not_starve_a_long_text():
    """Time is shared by cost: after as many words as it has tokens, the long text has its turn."""
    words = [["w"]] * 500
    _, batches = batched([["long"], *words], limits(1, 1000, 10**6), lambda text: 100 if text == "long" else 1)
    assert batches.index(["long"]) > 0

    async def ask():
        order = []
        predict = Batcher(echo(order), limits(1, 1000, 10**6), lambda text: 20 if text == "long" else 1)

        async def ask_again():  # a new word as soon as the last is answered, for ever
            while True:
                await predict(["w"])

        asking = asyncio.create_task(ask_again())
        await predict(["long"])
        asking.cancel()
        return order

    order = asyncio.run(asyncio.wait_for(ask(), PATIENT))
    assert order.count(["w"]) <= 25


def test_one_bad_request_spoils_no_other():
    found, batches = batched([["a"], ["bad"], ["b", "c"]])
    assert found[0] == ["A"]
    assert isinstance(found[1], ValueError)
    assert found[2] == ["B", "C"]
    assert sorted(batches[0]) == ["a", "b", "bad", "c"]
    found, batches = batched([["bad", "b", "c", "d", "e", "f"], ["g"]])
    assert isinstance(found[0], ValueError)
    assert found[1] == ["G"]
    assert not any("f" in batch for batch in batches)  # what is left of a request that has failed is not predicted


def test_what_is_not_an_exception_fails_its_request_alone():
    """A panic in Rust is a BaseException, which would end the loop that predicts."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    panics = "a" * 60 + "b"

    async def ask():
        predict = Batcher(lambda texts: [tokenizer.encode(text).ids for text in texts], limits(), one)
        first = await asyncio.gather(predict(["x"]), predict([panics]), predict(["y"]), return_exceptions=True)
        return first, await predict(["z"])

    (x, failure, y), z = asyncio.run(ask())
    assert x == y == z == [[0]]
    assert isinstance(failure, RuntimeError)
    assert type(failure.__cause__).__name__ == "PanicException"


def test_a_full_queue_takes_no_more():
    found, _ = batched([["a", "b"], ["c", "d"], ["e"]], limits(queued=4))
    assert found[:2] == [["A", "B"], ["C", "D"]]
    assert isinstance(found[2], QueueFull)
    found, _ = batched([["long text"], ["a"]], limits(queued=4), len)  # alone, a request always fits
    assert found[0] == ["LONG TEXT"]
    assert isinstance(found[1], QueueFull)


def test_part_of_the_queue_is_kept_for_short_requests():
    found, _ = batched([["x" * 60], ["y" * 60], ["w"] * 4, ["z" * 11]], limits(4, 10, 128), len)
    assert [isinstance(each, QueueFull) for each in found] == [False, True, False, False]
    found, _ = batched([["x" * 110], ["z" * 11], ["w"] * 4], limits(4, 10, 128), len)
    assert [isinstance(each, QueueFull) for each in found] == [False, True, False]


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
        predict = Batcher(echo(batches), limits(8, wait=FOR_EVER), one)
        for _ in range(20):
            await predict(["alone"])
        await asyncio.gather(predict(["a"]), predict(["b"]))
        first = asyncio.create_task(predict(["c"]))
        while predict._enough_queued is None:  # until it waits for a second
            await asyncio.sleep(0)
        await asyncio.gather(first, predict(["d"]))  # which comes: no need to wait longer
        predict._limits = limits(8, wait=0.05)
        began = time.monotonic()
        await predict(["e"])  # nobody comes
        waited = time.monotonic() - began
        predict._limits = limits(8, wait=FOR_EVER)
        await predict(["f"])  # and nobody is expected any more
        return waited

    waited = asyncio.run(asyncio.wait_for(ask(), PATIENT))
    assert batches[20:] == [["a", "b"], ["c", "d"], ["e"], ["f"]]
    assert waited > 0.04  # timers are a little coarse; how much longer it took is the machine's affair


def test_after_a_lull_nobody_else_is_expected(monkeypatch):
    monkeypatch.setattr(batcher, "FORGET_AFTER", -1.0)  # every batch was long ago
    batches = []

    async def ask():
        predict = Batcher(echo(batches), limits(8, wait=FOR_EVER), one)
        await asyncio.gather(predict(["a"]), predict(["b"]))
        await predict(["c"])

    asyncio.run(asyncio.wait_for(ask(), PATIENT))
    assert batches == [["a", "b"], ["c"]]


def test_what_is_cancelled_is_not_worked_on():
    work = Held()

    async def ask():
        predict = Batcher(work, limits(4), one)
        first = asyncio.create_task(predict(["first"]))
        await asyncio.to_thread(work.begun.wait, PATIENT)
        tasks = [asyncio.create_task(predict([f"{i}"] * 6)) for i in range(5)]
        await asyncio.sleep(0)
        for task in tasks[:4]:
            task.cancel()
        await asyncio.sleep(0)
        work.go.set()
        assert await first == ["first"]
        assert await tasks[4] == ["4"] * 6
        return predict.queued

    assert asyncio.run(ask()) == 0
    assert work.batches == [["first"], ["4"] * 4, ["4"] * 2]
