"""Bugs in example jobs: the kit finds each of them, with a message that says what to do."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

from holdfast import App, now, sleep, uuid4
from holdfast.errors import HoldfastError
from holdfast.testing import Lab, World
from support.seeded_bugs import BUGS, Bug


def looked_for(lab: Lab, world: World, job: Any, find: str) -> list[str]:
    """Use the kit on a job, and return what it says."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            if find == "crashes":
                lab.crash_everywhere(job)
            elif find == "once":
                lab.crash_everywhere(job)
                name = world.acts[0].tool
                assert world.at_most_once(name), repr(world.at_most_once(name))
            else:
                run = lab.start(job)
                lab.result(run)
                if find == "replays":
                    lab.replays(run)
        except (AssertionError, HoldfastError) as error:
            return [str(error), *(str(one.message) for one in warned)]
    return [str(one.message) for one in warned]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.declare.__name__)
def test_the_kit_finds_a_bug_and_says_what_to_do(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.virtual_loop.REAL_SECONDS", 0.3)
    world = World()
    with Lab() as lab:
        messages = looked_for(lab, world, bug.declare(App("buggy", "memory:"), world, lab), bug.find)
        world.note("end", {})
    assert any(re.search(bug.message, message, re.DOTALL) for message in messages), messages


def test_there_are_at_least_twenty_bugs() -> None:
    assert len({bug.declare.__name__ for bug in BUGS}) == len(BUGS) >= 20


@pytest.mark.parametrize("find", ["crashes", "replays", "once", "result"])
def test_the_kit_says_nothing_about_a_sound_job(find: str, lab: Lab, world: World) -> None:
    app = App("sound", "memory:")
    prices = {"A1": 200}

    @app.step
    async def price(order: str) -> int:
        return prices[order]

    @app.tool
    async def charge(order: str, cents: int) -> str:
        raise AssertionError(f"{order} was charged {cents} for real")

    @app.job
    async def job() -> list[str]:
        begun, name = now(), uuid4()
        await sleep("30d")
        assert now() > begun
        assert name
        orders = {"A1"}
        return [await charge(order, await price(order)) for order in sorted(orders)]

    lab.replace(charge, world.tool(lambda order, cents: f"{cents} for {order}"))
    assert looked_for(lab, world, job, find) == []
