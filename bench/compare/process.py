"""A process of a peer: reads commands as lines of JSON, and answers each with one line.

    python -m compare.process <peer> <place as JSON> <tally> <number>

What the peer prints goes to standard error, so that it cannot disturb the answers.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from compare.peer import Peer, Place, Unsupported
from compare.tally import Tally

PAUSE_SECONDS = 0.03  # between two samples of a latency, so that the system is idle


class Commands:
    """What the runner may ask of a process."""

    def __init__(self, driver: Peer, tally: Tally) -> None:
        self._driver = driver
        self._tally = tally
        self._working: asyncio.Task[None] | None = None

    async def answer(self, command: str, **options: Any) -> Any:
        """Carry out one command."""
        if self._working is not None and self._working.done():
            self._working.result()
            raise RuntimeError("the worker has ended")
        own: Callable[..., Awaitable[Any]] | None = getattr(self, f"_{command}", None)
        return await (own or getattr(self._driver, command))(**options)

    async def _describe(self) -> dict[str, Any]:
        names = ("queued", "steps_by", "drain_slots", "waits_hold_slots", "left_sql")
        return {name: getattr(self._driver, name) for name in names}

    async def _work(self, concurrency: int) -> None:
        self._working = asyncio.create_task(self._driver.work(concurrency))

    async def _start_singly(self, job: str, count: int) -> float:
        began = time.perf_counter()
        await self._driver.start_singly(job, count)
        return time.perf_counter() - began

    async def _start_in_bulk(self, job: str, count: int) -> float:
        began = time.perf_counter()
        await self._driver.start_many(job, count)
        return time.perf_counter() - began

    async def _start_latencies(self, samples: int) -> list[float]:
        found = []
        for number in range(samples):
            await pause(number)
            self._tally.take_mark()
            sent = time.monotonic()
            await self._driver.start("clock")
            found.append(await self._marked() - sent)
        return found

    async def _result_latencies(self, samples: int) -> list[float]:
        found = []
        for number in range(samples):
            await pause(number)
            sent = time.monotonic()
            await self._driver.start_and_wait("clock")
            found.append(time.monotonic() - sent)
        return found

    async def _signal_latencies(self, samples: int) -> list[float]:
        if type(self._driver).signal is Peer.signal:
            raise Unsupported("has no signals")
        waiters = [await self._driver.start("waiter") for _ in range(samples)]
        while self._tally.waiting < samples:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.02)
        found = []
        for number, waiter in enumerate(waiters):
            await pause(number)
            self._tally.take_mark()
            sent = time.monotonic()
            await self._driver.signal(waiter)
            found.append(await self._marked() - sent)
        return found

    async def _marked(self) -> float:
        """Wait until code has run; look seldom, so that looking does not take a core from the worker."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            marked = self._tally.take_mark()
            if marked is not None:
                return marked


def pause(number: int) -> Coroutine[Any, Any, None]:
    """Wait between samples for a varying time, so that no polling loop falls into step."""
    return asyncio.sleep(PAUSE_SECONDS + number % 20 / 1000)


async def serve(driver: Peer, tally: Tally, answers: int) -> None:
    """Answer commands until the input ends."""
    commands = Commands(driver, tally)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        try:
            answer = {"value": await commands.answer(request.pop("command"), **request)}
        except Unsupported as missing:
            answer = {"unsupported": str(missing)}
        except Exception as error:  # noqa: BLE001 - a peer may raise anything; its cell says what
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(answers, (json.dumps(answer) + "\n").encode())


def main() -> None:
    """Be the process."""
    peer, place, counters, number = sys.argv[1:]
    answers = os.dup(1)
    os.dup2(2, 1)
    tally = Tally(Path(counters), int(number))
    parts = json.loads(place)
    module = importlib.import_module(f"compare.peers.{peer}")
    driver: Peer = module.Driver(Place(**{**parts, "ports": tuple(parts["ports"])}), tally)
    if driver.uvloop:
        uvloop = importlib.import_module("uvloop")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(driver, tally, answers))
    else:
        asyncio.run(serve(driver, tally, answers))


if __name__ == "__main__":
    main()
