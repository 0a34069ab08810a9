"""What a host takes for the store's time, however long the store's answers are under way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import App, now
from holdfast.engine.store_clock import StoreClock
from holdfast.store import Claim, Command
from holdfast.store.memory import MemoryStore
from support.stories import drain, play, quick


class Host:
    """A host's clock, which shows something else than the store's, and is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wrong_by: float) -> None:
        self.at, self._wrong_by = 1000.0, wrong_by
        monkeypatch.setattr(time, "time", lambda: self.at + self._wrong_by)

    def hear(self, clock: StoreClock, asking: float, answering: float) -> None:
        """Ask; it takes so long until the store looks at its clock, and then until the answer is here."""
        clock.request_sent()
        self.at += asking
        said = self.at
        self.at += answering
        clock.answered(said)


@pytest.mark.parametrize(("asking", "answering"), [(0.0, 3.0), (3.0, 0.0), (2.0, 5.0), (0.0, 0.0)])
def test_clocks_that_agree_are_not_taken_apart_by_a_slow_answer(
    monkeypatch: pytest.MonkeyPatch, asking: float, answering: float
) -> None:
    host = Host(monkeypatch, 0.0)
    clock = StoreClock()
    for _ in range(3):
        host.hear(clock, asking, answering)
        assert clock.now() == pytest.approx(host.at)


@pytest.mark.parametrize("wrong_by", [150.0, -150.0, 0.5])
def test_a_wrong_clock_is_set_right_as_well_as_the_quickest_answer_can_tell(
    monkeypatch: pytest.MonkeyPatch, wrong_by: float
) -> None:
    host = Host(monkeypatch, wrong_by)
    clock = StoreClock()
    host.hear(clock, 3.0, 3.0)
    assert clock.now() == pytest.approx(host.at, abs=3.0)
    host.hear(clock, 0.01, 0.01)
    assert clock.now() == pytest.approx(host.at, abs=0.01)
    host.hear(clock, 3.0, 3.0)
    assert clock.now() == pytest.approx(host.at, abs=0.01), "a slow answer takes nothing back"
    host._wrong_by += 60.0  # somebody sets it
    host.hear(clock, 0.01, 0.01)
    assert clock.now() == pytest.approx(host.at, abs=0.01)


def test_the_time_in_a_job_is_not_behind_by_how_long_its_claim_took() -> None:
    answered: list[float] = []

    class Slow(MemoryStore):
        async def commit(self, batch: Sequence[Command]) -> list[Any]:
            answers = await super().commit(batch)
            if any(isinstance(command, Claim) for command in batch):
                await asyncio.sleep(0.05)
                answered.append(time.time())
            return answers

    app = App("shop", config=quick("memory:"))
    app._opened = Slow()

    @app.job
    async def work() -> float:
        return now()

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        assert await handle.aresult() >= answered[0]

    play(story())
    app.close()
