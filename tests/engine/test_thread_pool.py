"""Threads for plain functions: wake-ups are shared, and no function waits for another one that blocks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from functools import partial
from typing import Any

import pytest

from holdfast.engine.thread_pool import LoopInbox, ThreadPool
from support.job_loops import Bench
from support.stories import play


def test_functions_that_wait_for_each_other_run_at_the_same_time() -> None:
    async def story() -> None:
        pool = ThreadPool(8, asyncio.get_running_loop())
        meeting = threading.Barrier(8)
        met = await asyncio.gather(*(pool.call(lambda: meeting.wait(60)) for _ in range(8)))
        assert sorted(met) == list(range(8)), "each waits for all others, so eight threads were woken"
        again = await asyncio.gather(*(pool.call(lambda: meeting.wait(60)) for _ in range(8)))
        assert sorted(again) == list(range(8)), "the idle threads were woken, too"
        pool.shutdown()

    play(story())


def test_a_waiting_function_runs_when_a_thread_becomes_free() -> None:
    async def story() -> None:
        pool = ThreadPool(1, asyncio.get_running_loop())
        begun, gate = threading.Event(), threading.Event()

        def block() -> bool:
            begun.set()
            return gate.wait(60)

        first = asyncio.ensure_future(pool.call(block))
        others = [asyncio.ensure_future(pool.call(partial(int, number))) for number in range(100)]
        await asyncio.to_thread(begun.wait, 60)
        assert pool.at_work == 101
        gate.set()
        assert await asyncio.gather(first, *others) == [True, *range(100)]
        pool.shutdown()

    play(story())


def test_a_call_that_was_given_up_is_not_made_or_keeps_no_place() -> None:
    made: list[str] = []

    async def story() -> None:
        pool = ThreadPool(1, asyncio.get_running_loop())
        begun, gate = threading.Event(), threading.Event()

        def block() -> None:
            begun.set()
            gate.wait(60)
            made.append("blocked")

        running = asyncio.ensure_future(pool.call(block))
        waiting = asyncio.ensure_future(pool.call(lambda: made.append("waiting")))
        await asyncio.to_thread(begun.wait, 60)
        waiting.cancel()
        running.cancel()
        ends = await asyncio.gather(running, waiting, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
        assert await pool.call(lambda: "next") == "next", "the abandoned thread has lost its place"
        gate.set()
        pool.shutdown()

    play(story())
    assert "waiting" not in made


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ValueError("no"), ValueError),
        (SystemExit(3), RuntimeError),
        (StopIteration(), RuntimeError),
        (concurrent.futures.CancelledError(), asyncio.CancelledError),
    ],
)
def test_the_caller_gets_each_error_and_the_thread_goes_on(raised: BaseException, kind: type[BaseException]) -> None:
    def fail() -> Any:
        raise raised

    async def story() -> None:
        pool = ThreadPool(1, asyncio.get_running_loop())
        with pytest.raises(kind):
            await pool.call(fail)
        assert await pool.call(lambda: 1) == 1
        pool.shutdown()

    play(story())


def test_reports_of_threads_wake_the_loop_once_and_keep_their_order() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        inbox, wakes = LoopInbox(loop), 0
        seen: list[int] = []

        def count_wakes(callback: Any, *args: Any, context: Any = None) -> Any:
            nonlocal wakes
            wakes += 1
            return type(loop).call_soon_threadsafe(loop, callback, *args, context=context)

        loop.call_soon_threadsafe = count_wakes  # type: ignore[method-assign,assignment]  # - it counts, and passes all on

        def report() -> None:
            inbox.put(seen.append, 0)
            inbox.put(lambda: 1 / 0)
            for number in range(1, 100):
                inbox.put(seen.append, number)

        thread = threading.Thread(target=report)
        thread.start()
        thread.join()  # the loop cannot read meanwhile
        assert wakes == 1
        await asyncio.sleep(0)
        assert seen == list(range(100)), "one that fails holds up no other"
        inbox.put(seen.append, 100)
        await asyncio.sleep(0)
        assert (seen[-1], wakes) == (100, 2)

    play(story())


def test_callbacks_and_durable_calls_of_a_thread_keep_their_order() -> None:
    async def story() -> None:
        bench, order = Bench(), list[str]()
        bench.threads.inbox.put(order.append, "of another thread")  # it has woken the loop already
        bench.loop.call_soon_threadsafe(order.append, "callback")
        bench.threads.inbox.put(order.append, "call")
        await asyncio.sleep(0)
        assert order == ["of another thread", "callback", "call"]

    play(story())


def test_a_report_to_a_closed_loop_is_refused() -> None:
    loop = asyncio.new_event_loop()
    inbox = LoopInbox(loop)
    inbox.put(list)
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        inbox.put(list)
