"""Replays of every prefix of a history, and the bugs of example jobs that they find."""

from __future__ import annotations

import os
import random
import time
import uuid
import warnings
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import App, now
from holdfast.authoring.functions import JobFunction
from holdfast.testing import HoldfastTestWarning, Lab, ReplayFailure, World
from support import lab_shop as shop

app = App("buggy", "memory:")


@app.step
async def note(value: str) -> str:
    """Note something."""
    return value


def test_a_sound_job_repeats_itself(lab: Lab, world: World) -> None:
    lab.replace(shop.charge, world.tool(shop.receipt))
    run = lab.start(shop.checkout, "A1", card="4242")
    lab.until_waiting(run, "shipped")
    run.signal("shipped")
    lab.result(run)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HoldfastTestWarning)
        report = lab.replays(run)
    assert report.prefixes == len(lab.history(run)) > 8
    assert report.warnings == []
    assert world.count(shop.charge) == 1, "a replay calls nothing"


@app.job
async def an_id() -> str:
    return await note(str(uuid.uuid4()))


@app.job
async def a_clock() -> str:
    if time.time() > 3_000_000_000 or time.time() % 1 > 2:
        return "late"
    return await note(str(int(time.time() / 10_000_000)))


@app.job
async def a_die() -> str:
    return await note(str(random.random()))


@app.job
async def a_nanosecond() -> str:
    return await note(str(time.time_ns()))


@pytest.mark.parametrize("body", [an_id, a_clock, a_die, a_nanosecond])
def test_code_that_does_not_repeat_itself_is_found_with_its_line(lab: Lab, body: JobFunction[..., Any]) -> None:
    run = lab.start(body)
    lab.result(run)
    with pytest.warns(HoldfastTestWarning, match="differs in a replay"), pytest.raises(ReplayFailure) as caught:
        lab.replays(run)
    assert "test_replays.py:" in str(caught.value)


@app.job
async def a_date() -> str:
    day = datetime.now(tz=UTC).date()
    return await note("weekend" if day.weekday() > 9 else "day")


@app.job
async def a_set() -> list[str]:
    return [await note(name) for name in {"a", "b", "c"}]  # noqa: PLC0208 - the bug


@app.job
async def a_named_set() -> None:
    names = set("abc")
    for name in names:
        await note(name)


@app.job
async def a_choice() -> str:
    return await note(random.choice(["a", "a"]))


@pytest.mark.parametrize(
    ("body", "cure"),
    [(a_date, "now"), (a_set, "sorted"), (a_named_set, "sorted"), (a_choice, "random")],
)
def test_lines_that_probably_differ_are_named(lab: Lab, body: JobFunction[..., Any], cure: str) -> None:
    run = lab.start(body)
    lab.result(run)
    with pytest.warns(HoldfastTestWarning, match=cure):
        report = lab.replays(run)
    assert [text for text in report.warnings if "test_replays.py:" in text]


@app.job
async def holdfasts_own() -> str:
    return await note(str(now()))


def test_the_clock_of_holdfast_is_recorded(lab: Lab) -> None:
    run = lab.start(holdfasts_own)
    lab.result(run)
    assert lab.replays(run).warnings == []


TOTAL = 0
SEEN: dict[str, int] = {}
PRICES = {"A1": 5}


@app.step
async def count() -> None:
    """Count in variables of the process."""
    global TOTAL  # noqa: PLW0603 - the bug
    TOTAL += 1
    SEEN["count"] = TOTAL
    os.remove("/nowhere/at-all") if TOTAL < 0 else None  # noqa: PTH107 - a function of a module changes no variable


@app.job
async def a_total() -> int:
    await count()
    return TOTAL + len(SEEN)


@app.job
async def constants() -> str:
    seen = {"b", "a"}
    names = [name for name in sorted(seen) if name in seen]
    return await note(f"{os.sep}{PRICES['A1']}{names}{sum(len(name) for name in seen)}")


def test_variables_that_a_step_changes_are_named_and_constants_are_not(lab: Lab) -> None:
    run = lab.start(a_total)
    lab.result(run)
    with pytest.warns(HoldfastTestWarning, match="(TOTAL|SEEN) is not a variable of the job: count changes it"):
        report = lab.replays(run)
    assert [text.partition("py:")[2].partition(": ")[2].partition(" ")[0] for text in report.warnings] == [
        "TOTAL",
        "SEEN",
    ]
    run = lab.start(constants)
    lab.result(run)
    assert lab.replays(run).warnings == []
