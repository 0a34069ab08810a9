"""Queues with limits under worker processes that are killed, and what their histories tell of it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from holdfast import App, Config, Limits
from holdfast.machines import Event, JobEvent
from holdfast.machines.job_table import TARGETS
from holdfast.store import QueueState, Reclaim, ReleaseLeases
from support.scripts import load

TARGET = Path(__file__).parent.parent / "processes" / "limited_shop.py"
CONCURRENCY, RATE, BURST = 5, 100.0, 20
JOB_SECONDS = 0.05


class Tally(NamedTuple):
    """What a round has shown: at most, on average and over time, of what was allowed."""

    kills: int
    seconds: float
    samples: int
    seen_most: int
    most_at_once: int
    used: float  # of the concurrency, while work waited
    started: int
    over_rate: float  # by how many starts any stretch of time had more than the rate and the burst allow
    rate: float  # starts in a second, while work waited
    left: int  # leases that count after every worker was killed

    def holds(self) -> bool:
        """Whether the limits held, and nothing leaked."""
        at_once = max(self.seen_most, self.most_at_once)
        return at_once == CONCURRENCY and self.over_rate <= 0.01 and self.left == 0  # of a token: the times are floats

    def is_exact(self) -> bool:
        """Whether the limits held and were used, as far as a machine that does nothing else can."""
        return self.holds() and self.used >= 0.9 and self.rate >= 0.9 * RATE

    def __str__(self) -> str:
        return (
            f"{self.kills} kills in {self.seconds:.1f} s: {self.most_at_once} at once by the events ({self.seen_most}"
            f" in {self.samples} samples) of {CONCURRENCY}, {self.used:.2f} of them used; {self.started} started,"
            f" {self.rate:.1f} a second of {RATE:g}, {self.over_rate:+.2f} over the bucket at most; {self.left} leaked"
        )


def worker(url: str, name: str, *options: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-m", "holdfast", "worker", str(TARGET), "--name", name, "--concurrency", "20", *options]
    return subprocess.Popen(command, env={**environment, "HOLDFAST_URL": url})


def app_of(url: str) -> App:
    app = App("shop", config=Config(url=url))
    app.entries.update(load(TARGET).app.entries)
    return app


async def torture(url: str, seconds: float, seed: int, pause_seconds: float = 1.2) -> Tally:
    """Let four processes work on both queues, kill one now and then, and look at everything at the end."""
    rng, app = random.Random(seed), app_of(url)
    await app.aset_limits(Limits(queue="few", concurrency=CONCURRENCY))
    await app.aset_limits(Limits(queue="slow", rate=RATE, burst=BURST))
    few = await app.astart_many(
        "few", [{"seconds": JOB_SECONDS} for _ in range(int(seconds * CONCURRENCY / JOB_SECONDS) + 200)]
    )
    slow = await app.astart_many("slow", [{} for _ in range(int(seconds * RATE) + 1000)])
    workers = {f"w{number}": worker(url, f"w{number}") for number in range(4)}
    kills, samples, dead = 0, [], list[str]()
    try:
        await _until_all_work(app)
        begun = await app.store().now()
        killed_at = begun
        while (now := await app.store().now()) < begun + seconds or kills < 3:
            samples.append(next(state.running for state in await app.alimits() if state.limits.queue == "few"))
            if now > killed_at + pause_seconds * rng.uniform(0.5, 1.5):
                name = rng.choice(sorted(workers))
                await _kill(app, workers, [name])
                dead.append(name)
                await app.store().commit([*map(ReleaseLeases, dead), Reclaim()])  # their last write may have come since
                kills, killed_at = kills + 1, now
                workers[f"x{kills}"] = worker(url, f"x{kills}")
            await asyncio.sleep(0.01)
        ended = await app.store().now()
        left = await _kill_all(app, workers, dead)
        streams = [await app.store().events(run) for run in few]
        times = sorted(_starts([await app.store().events(run) for run in slow]))
        spans = [span for stream in streams for span in _spans(stream, ended)]
        used = sum(max(0.0, min(end, ended) - max(start, begun)) for start, end in spans)
        within = sum(begun <= at <= ended for at in times)
        assert await app.averify() == {}
    finally:
        for one in workers.values():
            one.kill()
            one.wait()
        await app.aclose()
    length = ended - begun
    return Tally(
        kills, length, len(samples), max(samples), most_at_once(spans), used / length / CONCURRENCY, len(times),
        _over(times), within / length, left,
    )  # fmt: skip


async def _until_all_work(app: App) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        states: list[QueueState] = await app.alimits()
        spent = all(state.tokens is None or state.tokens < 5 for state in states)
        slowly = (await app.astats()).runs.get("succeeded", 0) > 10 * BURST  # on a machine that never spends them
        if len(await app.aworkers()) == 4 and (spent or slowly):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the workers have not begun")


async def _kill(app: App, workers: dict[str, subprocess.Popen[bytes]], names: list[str]) -> None:
    for name in names:
        workers[name].send_signal(signal.SIGKILL)
    for name in names:
        workers.pop(name).wait()
        await app.store().commit([ReleaseLeases(name), Reclaim()])


async def _kill_all(app: App, workers: dict[str, subprocess.Popen[bytes]], dead: list[str]) -> int:
    """Kill everybody; how many leases count then. A commit that the dead have sent may still arrive, for a moment."""
    names = [*sorted(workers), *dead]
    await _kill(app, workers, sorted(workers))
    left = 1
    for _ in range(1500):
        await app.store().commit([*map(ReleaseLeases, names), Reclaim()])
        left = sum(state.running for state in await app.alimits())
        if not left:
            break
        await asyncio.sleep(0.02)
    return left


def _starts(streams: list[list[Event]]) -> list[float]:
    return [event.at for stream in streams for event in stream if event.type == JobEvent.RUNNING]


def _spans(stream: list[Event], ended: float) -> list[tuple[float, float]]:
    """From when to when a job had a lease."""
    moves = [event for event in stream if event.type in TARGETS]
    ends = [event.at for event in moves[1:]] + [ended]
    return [
        (event.at, max(end, event.at)) for event, end in zip(moves, ends, strict=True) if event.type == JobEvent.RUNNING
    ]


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """How many there were at once; what ends at a time is not there with what begins then."""
    steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    now = most = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def _over(times: list[float]) -> float:
    """By how much the fullest stretch of time has more starts than the bucket has tokens for."""
    worst, lowest = float("-inf"), float("inf")
    for number, at in enumerate(times):
        lowest = min(lowest, number - RATE * at)
        worst = max(worst, number + 1 - RATE * at - lowest)
    return worst - BURST
