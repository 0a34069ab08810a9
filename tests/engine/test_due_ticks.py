"""Many ticks that are due at once leave the time of a worker to the jobs that wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import App
from holdfast.clock import ManualClock
from holdfast.engine import worker as worker_module
from holdfast.schedules.definition import define
from holdfast.schedules.schedule import JobTemplate
from holdfast.store import Command
from holdfast.store.memory import MemoryStore
from holdfast.store.schedule_commands import Advanced, Declaration, DeclareSchedules
from support.stories import play, quick

TICKS = 250
BACKLOG = 60


class Observed(MemoryStore):
    """A store that notes how many runs of the backlog had begun when ticks were fired."""

    def __init__(self, clock: ManualClock, begun: list[int]) -> None:
        super().__init__(clock)
        self._begun = begun
        self.fired_after: list[tuple[int, int]] = []

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        answers = await super().commit(batch)
        for answer in answers:
            if isinstance(answer, Advanced) and answer.schedules:
                self.fired_after.append((len(answer.schedules), len(self._begun)))
        return answers


async def story(late_seconds: float) -> list[tuple[int, int]]:
    clock = ManualClock()
    app = App("shop", config=quick("memory:", concurrency=5))
    begun: list[int] = []
    store = app._opened = Observed(clock, begun)

    @app.job
    async def work(number: int) -> None:
        begun.append(number)

    @app.job
    async def ticked() -> None: ...

    template = JobTemplate(plugin="shop", entry="ticked", priority=-1)
    times = define(every="1d", catch_up="all")
    declarations = [Declaration(name=f"s{n}", definition=times, template=template) for n in range(TICKS)]
    await store.commit([DeclareSchedules("many", None, tuple(declarations))])
    clock.move((await store.next_due() or 0.0) - clock.now() + late_seconds)
    await app.astart_many("work", [{"number": number} for number in range(BACKLOG)])
    await app.worker().arun(until_idle=True)
    ended = [record for record in await app.alist(limit=1000) if record.status == "succeeded"]
    assert len(ended) == TICKS + BACKLOG
    assert sum(count for count, _ in store.fired_after) == TICKS
    await app.aclose()
    return store.fired_after


def test_ticks_rest_while_jobs_wait_and_go_on_when_none_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "REST_FACTOR", 1e9)
    first, second, *_ = play(story(0.0))
    assert first[0] == 100, "one transaction fires no more"
    assert first[1] < BACKLOG
    assert second == (100, BACKLOG), "all jobs that waited have begun before more ticks are fired"


def test_ticks_that_would_be_too_late_do_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "REST_FACTOR", 1e9)
    fired = play(story(worker_module.REST_LATE_SECONDS + 1))
    assert fired[-1][1] < BACKLOG, "the last tick is fired while jobs wait"
