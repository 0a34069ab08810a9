"""Crashes at every commit of a job, and the bugs of example jobs that they find."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import App, StepFailed, continue_as, now, sleep, wait_for
from holdfast.errors import InvalidArguments
from holdfast.testing import CrashFailure, HoldfastTestWarning, Lab, World
from holdfast.testing.faulty_store import MODES
from support import lab_shop as shop


def test_a_sound_job_survives_a_crash_at_every_commit(lab: Lab, world: World) -> None:
    lab.replace(shop.charge, world.tool(shop.receipt))
    report = lab.crash_everywhere(shop.checkout, "A1", card="4242", signals={"shipped": None})
    assert len(report.commits) >= 5
    assert len(report.cases) == len(MODES) * len(report.commits)
    assert {case.outcome for case in report.cases} == {"same", "asks"}
    assert report.compared
    assert world.at_most_once(shop.charge)
    table = str(report).splitlines()
    assert table[0].split()[-6:] == ["crash", "before", "crash", "after", "error", "overtaken"]
    assert any("charge begins" in line for line in table)
    assert any("asks" in line for line in table)


def test_plain_jobs_with_children_survive(lab: Lab) -> None:
    report = lab.crash_everywhere(shop.family, 1)
    assert {case.outcome for case in report.cases} <= {"same", "not reached"}


def test_signals_reach_the_waits_of_children(lab: Lab, world: World) -> None:
    app = App("parents", "memory:")

    @app.job
    async def parent() -> list[str]:
        return [await shop.checkout(order, "4242") for order in ("A1", "A2")]

    lab.replace(shop.charge, world.tool(shop.receipt))
    lab.use(shop.app)
    report = lab.crash_everywhere(parent, signals={"shipped": None})
    assert {case.outcome for case in report.cases} == {"same", "asks"}
    assert len([text for text in report.commits if "charge begins" in text]) == 2


def test_one_case_runs_alone(lab: Lab, world: World) -> None:
    lab.replace(shop.charge, world.tool(shop.receipt))
    report = lab.crash_everywhere(shop.checkout, "A1", card="4242", signals={"shipped": None}, only=(1, "crash before"))
    assert [(case.commit, case.mode) for case in report.cases] == [(1, "crash before")]
    with pytest.raises(InvalidArguments, match="number of a commit"):
        lab.crash_everywhere(shop.checkout, "A1", card="4242", only=(1, "sometimes"))
    with pytest.raises(InvalidArguments, match="there is no commit 99"):
        lab.crash_everywhere(shop.checkout, "A1", card="4242", signals={"shipped": None}, only=(99, "error"))
    with pytest.raises(InvalidArguments, match="did not wait for shiped"):
        lab.crash_everywhere(shop.plain, 1, signals={"shiped": None})


def test_a_clean_run_that_fails_is_not_the_norm(lab: Lab) -> None:
    app = App("failing", "memory:")

    @app.job
    async def job() -> None:
        raise KeyError("typo")

    with pytest.raises(CrashFailure, match="the clean run failed: KeyError"):
        lab.crash_everywhere(job)
    assert lab.crash_everywhere(job, may_fail=True).compared


def test_a_retry_that_swallows_doubt_is_found_and_a_job_that_fails_in_doubt_is_not(lab: Lab) -> None:
    app = App("buggy", "memory:")

    @app.tool(on_doubt="fail")
    async def charge(cents: int, note: str = "") -> str:
        return f"receipt {cents}{note and ''}"

    @app.job
    async def careless() -> str:
        try:
            return await charge(5)
        except StepFailed:
            return await charge(5, "again")

    @app.job
    async def careful() -> str:
        return await charge(5)

    assert "charge acted 2 times, and without a crash 1 times" in _failure(lab, careless)
    assert "fails" in {case.outcome for case in lab.crash_everywhere(careful).cases}


def test_a_tool_that_fails_visibly_may_be_tried_again(lab: Lab, world: World) -> None:
    app = App("flaky", "memory:")
    tries = itertools.count()

    @app.tool(retries=3)
    async def charge() -> str:
        raise AssertionError("it is replaced")

    @app.job
    async def job() -> str:
        return await charge()

    def flaky() -> str:
        if next(tries) % 2 == 0:
            raise ValueError("busy")
        return "receipt"

    lab.replace(charge, world.tool(flaky))
    lab.crash_everywhere(job)
    assert world.at_most_once(charge)


def test_a_job_goes_on_after_an_error_long_before_its_deadline(lab: Lab) -> None:
    """The leases of a lab are long, but those of a job are not."""
    app = App("hurried", "memory:")

    @app.step
    async def look() -> str:
        return "seen"

    @app.job(deadline="1h")
    async def job() -> str:
        return await look()

    assert {case.outcome for case in lab.crash_everywhere(job).cases} == {"same"}


def test_the_last_of_continued_runs_counts(lab: Lab) -> None:
    app = App("chain", "memory:")
    numbers = itertools.count()

    @app.tool
    async def note(number: int) -> None: ...

    @app.job
    async def job(link: int = 0) -> int:
        if link < 2:
            continue_as(link + 1)
        await note(next(numbers))
        return link

    assert "asked for something else" in _failure(lab, job)


def test_cases_run_on_the_store_and_at_the_time_of_the_lab() -> None:
    app = App("timed", "memory:")
    years: set[int] = set()

    @app.job
    async def job() -> None:
        years.add(datetime.fromtimestamp(now(), UTC).year)

    with Lab("sqlite", start_at=datetime(2031, 5, 1, tzinfo=UTC)) as lab:
        lab.crash_everywhere(job)
    assert years == {2031}


def test_a_signal_that_the_test_forgot_is_named(lab: Lab) -> None:
    app = App("forgetful", "memory:")

    @app.job
    async def waits() -> None:
        await wait_for("shipped")

    with pytest.raises(InvalidArguments, match="'shipped'"):
        lab.crash_everywhere(waits)


def _failure(lab: Lab, job: Any, *args: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HoldfastTestWarning)  # results that differ are named, too
        with pytest.raises(CrashFailure) as caught:
            lab.crash_everywhere(job, *args)
    return str(caught.value)


def test_a_tool_that_acts_twice_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine as if it had forgotten that a tool was begun."""
    app = App("broken", "memory:")

    @app.tool(on_doubt="retry")
    async def charge() -> str:
        return "receipt"

    @app.job
    async def job() -> str:
        return await charge()

    class Asking(str):
        """It is taken for "ask" by the kit, and for "retry" by the engine."""

        __slots__ = ()

        def __ne__(self, other: object) -> bool:
            return other == "retry" or super().__ne__(other)

        __hash__ = str.__hash__

    monkeypatch.setattr(charge, "on_doubt", Asking("retry"))
    text = _failure(lab, job)
    assert "charge acted 2 times for one call" in text


# Each function declares a job with one bug, and returns it.


def a_global(app: App) -> Any:
    numbers = itertools.count()

    @app.tool
    async def note(number: int) -> int:
        return number

    @app.job
    async def job() -> int:
        return await note(next(numbers))

    return job


def a_cache(app: App) -> Any:
    cache: dict[int, int] = {}

    @app.tool
    async def look_up(size: int) -> int:
        return size

    @app.tool
    async def store(size: int) -> int:
        return size

    @app.job
    async def job() -> int:
        cache[len(cache)] = 1
        return await (look_up(1) if len(cache) % 2 else store(1))

    return job


def a_list_that_grows(app: App) -> Any:
    done: list[int] = []

    @app.tool
    async def send(numbers: list[int]) -> int:
        return len(numbers) * 0

    @app.job
    async def job() -> int:
        done.append(1)
        return await send(done)

    return job


def a_step_that_depends_on_a_global(app: App) -> Any:
    calls = itertools.count()

    @app.step
    async def price() -> int:
        return 100 if next(calls) < 3 else 200

    @app.tool
    async def charge(cents: int) -> None: ...

    @app.job
    async def job() -> int:
        cents = await price()
        await charge(cents)
        return cents

    return job


@pytest.mark.parametrize("bug", [a_global, a_cache, a_list_that_grows, a_step_that_depends_on_a_global])
def test_code_that_asks_for_something_else_after_a_crash_is_found(lab: Lab, bug: Callable[[App], Any]) -> None:
    text = _failure(lab, bug(App("buggy", "memory:")))
    assert "FAILED" in text
    assert "history of that run:" in text
    assert "to run it alone: lab.crash_everywhere(job, only=(" in text
    assert any(
        what in text
        for what in ("does not go on", "asked for something else", "ended with", "times, and without a crash")
    )


def test_code_that_does_not_even_repeat_itself_without_a_crash_is_found(lab: Lab) -> None:
    app = App("buggy", "memory:")
    numbers = itertools.count()

    @app.step
    async def note(number: int) -> int:
        return number

    @app.job
    async def job() -> None:
        await note(next(numbers))
        await sleep("1d")

    with pytest.raises(CrashFailure, match=r"even without a crash: .* calls note\(number=1\) at test_crashes.py"):
        lab.crash_everywhere(job)


def test_a_charge_in_the_code_of_a_job_is_named(lab: Lab, world: World) -> None:
    app = App("buggy", "memory:")
    charge = world.tool()

    @app.step
    async def note() -> None: ...

    @app.job
    async def job() -> None:
        charge(cents=5)
        await note()

    with pytest.warns(HoldfastTestWarning, match="make it a tool"):
        lab.crash_everywhere(job)
    assert not world.at_most_once("tool")


def test_a_step_that_should_be_a_tool_is_found(lab: Lab, world: World) -> None:
    app = App("buggy", "memory:")

    @app.step
    async def mail(to: str) -> None: ...

    @app.job
    async def job() -> None:
        await mail("a@b.c")

    lab.replace(mail, world.tool())
    lab.crash_everywhere(job)
    assert not world.at_most_once(mail), "a step is repeated after a crash"


def test_a_tool_that_is_repeated_in_doubt_is_found(lab: Lab, world: World) -> None:
    app = App("buggy", "memory:")

    @app.tool(on_doubt="retry")
    async def charge(cents: int) -> None: ...

    @app.job
    async def job() -> None:
        await charge(5)

    lab.replace(charge, world.tool())
    lab.crash_everywhere(job)
    assert not world.at_most_once(charge)
