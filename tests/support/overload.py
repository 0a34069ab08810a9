"""More jobs than anybody can do, for a while: what is taken, what is refused, and what becomes of the first."""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple

from holdfast import Limits, QueueFull, RunHandle
from holdfast.machines import Event
from support.limited import app_of, most_at_once, worker

DEPTH = 200
AT_ONCE = 4
JOB_SECONDS = 0.01
TIMES = 5  # what the workers can do at best


class Told(NamedTuple):
    """What an overload has shown."""

    seconds: float
    accepted: int
    refused: int
    latency_seconds: float  # of the slowest that was accepted, from its submission to its start
    throughput: float  # jobs a second
    memory: float  # of the worker, after it, of that before
    deepest: int  # most jobs that waited at once, by the events
    ahead: (
        int  # most jobs that were started while one waited: what is declared of its latency, on a machine that stalls
    )

    def __str__(self) -> str:
        return (
            f"overload for {self.seconds:.0f} s: {self.accepted} accepted and done, {self.refused} refused;"
            f" {self.throughput:.0f} jobs/s, at most {self.deepest} waited (depth {DEPTH}), started after"
            f" {self.latency_seconds:.2f} s at most (depth/throughput {DEPTH / self.throughput:.2f} s), behind"
            f" {self.ahead} others at most;"
            f" memory {self.memory:.2f} times that before"
        )

    def as_declared(self) -> bool:
        """Whether it is as the documents say."""
        return (
            self.refused > self.accepted > DEPTH
            and self.deepest <= DEPTH
            and self.ahead <= DEPTH + AT_ONCE
            and self.memory < 1.5
        )

    def in_time(self) -> bool:
        """Whether nobody waited much longer than it takes to get through the depth."""
        return self.latency_seconds <= 2 * DEPTH / self.throughput


async def overload(url: str, seconds: float) -> Told:
    """Submit five times what the worker can do."""
    app = app_of(url)
    await app.aset_limits(Limits(queue="deep", depth=DEPTH, concurrency=AT_ONCE))
    process = worker(url, "w")
    accepted: list[RunHandle] = []
    refused = 0
    try:
        for handle in [await app.astart("deep", JOB_SECONDS) for _ in range(DEPTH // 2)]:
            await handle.aresult(timeout=60)  # warm, before it is measured
        before = _resident_bytes(process.pid)
        begun = time.monotonic()
        while (past := time.monotonic() - begun) < seconds or (past < 60 and not refused > len(accepted) > DEPTH):
            due = int(past * TIMES * AT_ONCE / JOB_SECONDS) - len(accepted) - refused
            asked = (app.astart("deep", JOB_SECONDS) for _ in range(min(due, 1000)))
            for one in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(one, QueueFull):
                    assert (one.queue, one.depth) == ("deep", DEPTH)
                    assert 1.0 <= one.retry_after_seconds <= 60.0
                    refused += 1
                elif isinstance(one, BaseException):
                    raise one
                else:
                    accepted.append(one)
            await asyncio.sleep(0.005)
        for handle in accepted:
            await handle.aresult(timeout=60)
        memory = _resident_bytes(process.pid) / before
        streams = [await app.store().events(handle.id) for handle in accepted]
    finally:
        process.terminate()
        process.wait()
        await app.aclose()
    length = max(stream[-1].at for stream in streams) - min(stream[0].at for stream in streams)
    latency = max(stream[1].at - stream[0].at for stream in streams)
    return Told(
        past, len(accepted), refused, latency, len(accepted) / length, memory,
        most_at_once([(stream[0].at, stream[1].at) for stream in streams]), _ahead(streams),
    )  # fmt: skip


def _ahead(streams: list[list[Event]]) -> int:
    starts = sorted(stream[1].at for stream in streams)
    return max(bisect_left(starts, stream[1].at) - bisect_left(starts, stream[0].at) for stream in streams)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
