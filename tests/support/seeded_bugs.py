"""Example jobs, each with one bug that people make. `tests/lab/test_seeded_bugs.py` lets the kit find them.

Each function declares the job in an app, and returns it. Its docstring says what is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from random import choice
from typing import Any, NamedTuple
from urllib.request import urlopen

from holdfast import App, StepFailed, continue_as, sleep, wait_for
from holdfast.testing import Lab, World


class Bug(NamedTuple):
    """A job with a bug.

    Attributes:
        declare: declares the job, and returns it.
        find: what the kit does to find it.
        message: what a user reads then, as a pattern.
    """

    declare: Callable[[App, World, Lab], Any]
    find: str
    message: str


BUGS: list[Bug] = []


def found_by(find: str, message: str) -> Callable[[Callable[[App, World, Lab], Any]], Callable[[App, World, Lab], Any]]:
    """Add a bug to the table."""

    def added(declare: Callable[[App, World, Lab], Any]) -> Callable[[App, World, Lab], Any]:
        BUGS.append(Bug(declare, find, message))
        return declare

    return added


# Effects outside of tools


@found_by("crashes", r"tool acts in the job's own code, which runs again after a crash: make it a tool")
def a_charge_outside_a_tool(app: App, world: World, _: Lab) -> Any:
    """The job charges in its own code."""
    charge = world.tool()

    @app.step
    async def note() -> None: ...

    @app.job
    async def job() -> None:
        charge(cents=5)
        await note()

    return job


@found_by("replays", r"seeded_bugs\.py:\d+: urlopen\(\) in the code of a job runs again after a crash: make it a tool")
def a_request_in_the_code(app: App, _: World, __: Lab) -> Any:
    """The job calls a server in its own code."""

    @app.job
    async def job(url: str = "") -> None:
        if url:
            urlopen(url)  # noqa: S310, ASYNC210 - the bug

    return job


@found_by("once", r"mail acted 2 times for one call, with to='a@b\.c': it is a step, which runs again after a crash")
def a_step_that_should_be_a_tool(app: App, world: World, lab: Lab) -> Any:
    """A mail is sent by a step."""

    @app.step
    async def mail(to: str) -> None: ...

    @app.job
    async def job() -> None:
        await mail("a@b.c")

    lab.replace(mail, world.tool())
    return job


@found_by("once", r"charge acted 2 times for one call, with cents=5: it has on_doubt='retry'")
def a_charge_that_is_repeated_in_doubt(app: App, world: World, lab: Lab) -> Any:
    """A charge has on_doubt="retry"."""

    @app.tool(on_doubt="retry")
    async def charge(cents: int) -> None: ...

    @app.job
    async def job() -> None:
        await charge(5)

    lab.replace(charge, world.tool())
    return job


# Doubt that is caught


@found_by("crashes", r"at commit \d+: charge acted 2 times, and without a crash 1 times")
def a_retry_that_swallows_doubt(app: App, _: World, __: Lab) -> Any:
    """The job charges again when the first charge failed, although it may have acted."""

    @app.tool(on_doubt="fail")
    async def charge(cents: int, note: str = "") -> str:
        return f"receipt {cents}{note and ''}"

    @app.job
    async def job() -> str:
        try:
            return await charge(5)
        except StepFailed:
            return await charge(5, "again")

    return job


@found_by("crashes", r"charge acted 0 times, and without a crash 1 times, and still the job ended as if nothing had")
def an_error_that_is_swallowed(app: App, _: World, __: Lab) -> Any:
    """The job ignores every error of a charge."""

    @app.tool(on_doubt="fail")
    async def charge(cents: int) -> None: ...

    @app.job
    async def job() -> str:
        with contextlib.suppress(Exception):
            await charge(5)
        return "paid"

    return job


@found_by("crashes", r"refund acted 1 times, and without a crash 0 times; it ended with \('succeeded', 'refunded'\)")
def a_refund_of_what_may_not_have_happened(app: App, _: World, __: Lab) -> Any:
    """The job refunds a charge whose end is unknown."""

    @app.tool(on_doubt="fail")
    async def charge(cents: int) -> str:
        return f"paid {cents}"

    @app.tool
    async def refund(cents: int) -> None: ...

    @app.job
    async def job() -> str:
        try:
            return await charge(5)
        except StepFailed:
            await refund(5)
            return "refunded"

    return job


# Code that does not repeat itself


@found_by("replays", r"time\.time\(\) in the code of a job differs in a replay: use `now\(\)` of holdfast, or a step")
def a_clock_in_the_code(app: App, _: World, __: Lab) -> Any:
    """The job takes another branch at another time."""

    @app.step
    async def note(text: str) -> str:
        return text

    @app.job
    async def job() -> str:
        return await note("late" if time.time() > 4e9 else "early")

    return job


@found_by("replays", r"datetime\.now\(\) in the code of a job differs in a replay: use `now\(\)`")
def a_date_in_the_code(app: App, _: World, __: Lab) -> Any:
    """The job asks for the day itself."""

    @app.step
    async def note(text: str) -> str:
        return text

    @app.job
    async def job() -> str:
        return await note("weekend" if datetime.now().weekday() > 9 else "day")  # noqa: DTZ005 - the bug

    return job


@found_by("replays", r"job is not the same at .*seeded_bugs\.py:\d+: .*note\(text=")
def an_id_in_the_code(app: App, _: World, __: Lab) -> Any:
    """The job makes an id itself."""

    @app.step
    async def note(text: str) -> str:
        return text

    @app.job
    async def job() -> str:
        return await note(str(uuid.uuid4()))

    return job


@found_by(
    "replays", r"choice\(\) in the code of a job differs in a replay: use `random\(\)` or `uuid4\(\)` of holdfast"
)
def a_choice_in_the_code(app: App, _: World, __: Lab) -> Any:
    """The job chooses at random, by a name that was imported."""

    @app.step
    async def note(text: str) -> str:
        return text

    @app.job
    async def job() -> str:
        return await note(choice(["a", "a"]))

    return job


@found_by("replays", r"seeded_bugs\.py:\d+: the order of a set differs between two processes: loop over sorted\(…\)")
def a_set_as_loop(app: App, _: World, __: Lab) -> Any:
    """The job loops over a set."""

    @app.step
    async def note(text: str) -> None: ...

    @app.job
    async def job() -> None:
        names = {"a", "b"} | {"c"}
        for name in list(names):
            await note(name)

    return job


@found_by("replays", r"the order of a set differs between two processes")
def the_set_of_asyncio_wait(app: App, _: World, __: Lab) -> Any:
    """The job loops over what asyncio.wait returns, which is a set."""

    @app.step
    async def ask(number: int) -> int:
        return number

    @app.job
    async def job() -> None:
        done, _rest = await asyncio.wait([asyncio.ensure_future(ask(number)) for number in range(3)])
        for task in done:
            await ask(task.result() + 10)

    return job


@found_by("crashes", r"the code does not repeat itself, even without a crash: .* calls note\(number=1\) at seeded_bugs")
def a_counter_outside(app: App, _: World, __: Lab) -> Any:
    """The job counts with a variable of the process."""
    numbers = itertools.count()

    @app.step
    async def note(number: int) -> None: ...

    @app.job
    async def job() -> None:
        await note(next(numbers))
        await sleep("1d")

    return job


@found_by("crashes", r"something else after the crash: The code .*calls send\(numbers=\[1, 1.* at seeded_bugs")
def a_list_that_grows(app: App, _: World, __: Lab) -> Any:
    """The job adds to a list of the process, and sends it."""
    done: list[int] = []

    @app.tool
    async def send(numbers: list[int]) -> None: ...

    @app.job
    async def job() -> None:
        done.append(1)
        await send(done)

    return job


@found_by("replays", r"basket is not a variable of the job: fill changes it, and another process would not see that")
def a_basket_that_a_step_fills(app: App, _: World, __: Lab) -> Any:
    """A step leaves its result in a variable of the process, which a replay does not fill."""
    basket: list[str] = []

    @app.step
    async def fill() -> None:
        basket.append("bread")

    @app.step
    async def pay(count: int) -> None: ...

    @app.job
    async def job() -> None:
        await fill()
        await pay(len(basket))

    return job


@found_by("crashes", r"it ended with \('succeeded', 200\), and without a crash with \('succeeded', 100\)")
def a_step_that_depends_on_a_global(app: App, _: World, __: Lab) -> Any:
    """A step returns another price when it is called more often."""
    calls = itertools.count()

    @app.step
    async def price() -> int:
        return 100 if next(calls) < 2 else 200

    @app.job
    async def job() -> int:
        return await price()

    return job


@found_by("crashes", r"the code asked for something else after the crash")
def a_counter_in_a_chain(app: App, _: World, __: Lab) -> Any:
    """A run that continues as another one counts with a variable of the process."""
    numbers = itertools.count()

    @app.tool
    async def note(number: int) -> None: ...

    @app.job
    async def job(link: int = 0) -> None:
        if link < 1:
            continue_as(link + 1)
        await note(next(numbers))

    return job


# Time and waits


@found_by("result", r"a function in a thread has been under way for .* at .*seeded_bugs\.py:\d+: replace the step or")
def a_step_that_sleeps(app: App, world: World, _: Lab) -> Any:
    """A plain step waits in real time."""

    @app.step
    def pull() -> None:
        while not world.acts:  # until the test is over
            time.sleep(0.01)

    @app.job
    def job() -> None:
        pull()

    return job


@found_by("result", r"cannot go on by itself: It waits for the signal 'shiped', without a time limit")
def a_wait_for_the_wrong_key(app: App, _: World, __: Lab) -> Any:
    """The job waits for a key that is never sent."""

    @app.job
    async def job() -> None:
        await wait_for("shiped")

    return job


@found_by("result", r"the run's deadline passed")
def a_deadline_shorter_than_a_sleep(app: App, _: World, __: Lab) -> Any:
    """The job sleeps for longer than it may take."""

    @app.job(deadline="1h")
    async def job() -> None:
        await sleep("2d")

    return job


@found_by("result", r"mail\(…\) was called and not awaited, so it did not run: write `await` before the call")
def a_forgotten_await(app: App, _: World, __: Lab) -> Any:
    """The job calls a tool and does not wait for it."""

    @app.tool
    async def mail(to: str) -> None: ...

    @app.job
    async def job() -> str:
        mail("a@b.c")  # type: ignore[unused-coroutine]  # - the bug
        return "sent"

    return job


@found_by("replays", r"random\.shuffle\(\) in the code of a job differs in a replay")
def a_shuffle_in_a_helper(app: App, _: World, __: Lab) -> Any:
    """The job calls a function of the same module that shuffles."""

    @app.step
    async def note(names: list[str]) -> None: ...

    @app.job
    async def job() -> None:
        await note(shuffled(["a"]))

    return job


def shuffled(names: list[str]) -> list[str]:
    """Return names in another order."""
    random.shuffle(names)
    return names
