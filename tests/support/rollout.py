"""Rolling deploys under load: real workers of two builds replace each other, forward and back, and are killed."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from holdfast import App, Config, QuestionClosed
from holdfast.machines import TERMINAL_RUN_STATUSES, JobEvent
from support.scripts import load
from support.stories import until

__all__ = ["TARGET", "Rollout", "Tally", "roll_out"]

TARGET = Path(__file__).parents[1] / "processes" / "rolling_shop.py"
JOBS = ("marked", "pinned", "misfitting")
WORKERS = 2  # of each build
HANGS_SECONDS = 90  # without the end of any run, after the last deploy


class Tally(NamedTuple):
    """What the deploys showed."""

    rounds: int
    kills: int
    runs: int
    tools: int
    handed_over: int
    asked: int
    old_side: int
    new_side: int


class Rollout:
    """A store, the workers of the current build, and the runs that were started."""

    def __init__(self, folder: Path, url: str, seed: int) -> None:
        self.witness = folder / "witness"
        self.url = url
        self.rng = random.Random(seed)
        self.app = App("rolling", config=Config(url=url))
        self.app.entries.update(load(TARGET).app.entries)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.runs: list[str] = []
        self.unsent: list[str] = []  # runs that wait for their signal
        self.crossing: list[str] = []  # runs that get it after the last deploy, and so meet the code of another build
        self.started = 0  # workers
        self.kills = 0
        self.asked = 0

    def start_worker(self, build: str, *options: str) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        environment |= {"WITNESS": str(self.witness), "HOLDFAST_BUILD": build, "HOLDFAST_LEASE_SECONDS": "5"}
        self.started += 1
        name = f"w{self.started}"
        words = ["worker", str(TARGET), "--url", self.url, "--log-level", "error", "--name", name, *options]
        return subprocess.Popen([sys.executable, "-m", "holdfast", *words], env=environment)

    async def load(self, count: int) -> None:
        """Start runs of every job, and send some of the signals that runs wait for."""
        for job in JOBS:
            orders = [{"order": len(self.runs) + number} for number in range(count)]
            started = await self.app.astart_many(job, orders)
            self.runs += started
            self.unsent += started
        self.rng.shuffle(self.unsent)
        now, self.unsent = self.unsent[: 2 * count], self.unsent[2 * count :]
        for run in now:
            await self.app.asignal(run, "go", id="go")

    async def load_crossing(self) -> None:
        """Start a run of each unpinned job, and wait until it waits: it has begun on the current build.

        Which other runs meet which build depends on the machine.
        """
        for job in ("marked", "misfitting"):
            run = (await self.app.astart(job, order=len(self.runs))).id
            self.runs.append(run)
            self.crossing.append(run)
            await until(functools.partial(self.waits_for_its_signal, run))

    async def waits_for_its_signal(self, run: str) -> bool:
        await self.answer()  # a run of the load may ask, and no worker waits for that
        return "waits for the signal 'go'" in (await self.app.aexplain(run)).explanation

    async def deploy(self, build: str) -> None:
        """Start workers of a build, and stop or kill those of the other. One of the new ones may die, too."""
        first = self.started + 1
        old, self.workers = self.workers, [self.start_worker(build) for _ in range(WORKERS)]
        names = {f"w{number}" for number in range(first, self.started + 1)}

        async def have_begun() -> bool:
            return names <= {card.name for card in await self.app.store().workers()}

        await until(have_begun)
        await asyncio.sleep(self.rng.uniform(0.0, 0.3))  # the moment at which the old ones end
        for worker in old:
            self.end(worker, self.rng.choice([signal.SIGTERM, signal.SIGKILL]))
        if self.rng.random() < 1 / 2:
            self.end(self.workers.pop(), signal.SIGKILL)
            self.workers.append(self.start_worker(build))
        for worker in old:
            await asyncio.to_thread(worker.wait, 60)

    def end(self, worker: subprocess.Popen[bytes], number: signal.Signals) -> None:
        worker.send_signal(number)
        if number == signal.SIGKILL:
            self.kills += 1
            worker.wait()

    async def answer(self) -> None:
        """Answer every run that asks which code goes on."""
        for question in await self.app.ainbox(kind="deploy"):
            try:
                answer = self.rng.choice(["accept", "build"])
                await self.app.aanswer(question.run_id, answer, node=question.node, actor="ana")
                self.asked += 1
            except QuestionClosed:
                continue  # it was cancelled or answered meanwhile

    async def finish(self) -> None:
        """Send what runs wait for, let every build drain, and wait until every run has ended."""
        for run in self.unsent + self.crossing:
            await self.app.asignal(run, "go", id="go")
        self.workers += [self.start_worker(build, "--until-drained") for build in ("1", "2")]
        left, end = self.runs, time.monotonic() + HANGS_SECONDS
        while left and time.monotonic() < end:
            await self.answer()
            active = [run for run in left if (await self.app.aget(run)).status not in TERMINAL_RUN_STATUSES]
            if len(active) < len(left):
                left, end = active, time.monotonic() + HANGS_SECONDS
            for place, build in ((-2, "1"), (-1, "2")):  # a build that was drained for a moment may be asked for again
                if left and self.workers[place].poll() is not None:
                    self.workers[place] = self.start_worker(build, "--until-drained")
            await asyncio.sleep(0.1)
        texts = [(await self.app.aexplain(run)).explanation for run in left[:3]]
        assert not left, f"{len(left)} runs have not ended, such as {left[0]}: {texts}"

    async def tally(self, rounds: int) -> Tally:
        """Look at everything: every run has succeeded, no tool has acted twice, every history is valid."""
        statuses = Counter([(await self.app.aget(run)).status for run in self.runs])
        assert set(statuses) == {"succeeded"}, statuses
        acts = Counter(self.witness.read_text().splitlines())
        twice = {line: count for line, count in acts.items() if count > 1}
        assert not twice, twice
        assert await self.app.averify() == {}
        assert await self.app.store().kept_builds() == []
        marks = Counter(side for sides in (await self.app.store().marks(self.runs)).values() for side in sides.values())
        handed = 0
        for run in self.runs:
            events = await self.app.aevents(run)
            handed += sum(one.type == JobEvent.REQUEUED and one.payload.get("reason") == "deploy" for one in events)
        return Tally(
            rounds, self.kills, len(self.runs), sum(acts.values()), handed, self.asked, marks[False], marks[True]
        )

    async def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        await self.app.aclose()


async def roll_out(folder: Path, url: str, rounds: int, count: int, seed: int) -> Tally:
    """Deploy build 2 and build 1 in turn, so many times, under load."""
    rollout = Rollout(folder, url, seed)
    try:
        await rollout.deploy("1")
        for number in range(rounds):
            await rollout.load(count)
            await rollout.load_crossing()
            await asyncio.sleep(rollout.rng.uniform(0.0, 0.5))  # the moment of the deploy
            await rollout.deploy("2" if number % 2 == 0 else "1")
            await rollout.answer()
        await rollout.finish()
        return await rollout.tally(rounds)
    finally:
        await rollout.close()
