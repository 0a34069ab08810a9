"""Changes of code under a waiting run: the verdict of the check, written down beforehand, and what the engine does.

The check and the engine must agree. A run that fits goes on, and no recorded call is made again. A run that would stop
stops, and nothing new is called. The second half does the same with random jobs, random edits and histories of any
length.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from holdfast import App, StepFailed, gather, now
from holdfast import changed as is_changed
from holdfast.deploys.check_report import run_line
from holdfast.deploys.run_check import RunCheck, check_run
from holdfast.engine.replay_report import Verdict
from holdfast.machines import Event
from holdfast.store import Append, Claim, Reclaim, ReleaseLeases, Submit
from holdfast.store.memory import MemoryStore
from support.stories import quick
from support.written_code import Shop

BEFORE = """\
import asyncio
from holdfast import App, continue_as, gather, sleep, wait_for
app = App("shop", config=config)

@app.step
async def price(sku: str) -> int:
    made.append(f"price {sku}")
    return 100

@app.step
async def stock(sku: str) -> int:
    made.append(f"stock {sku}")
    return 3

@app.step
async def audit(what: str = "all") -> str:
    made.append(f"audit {what}")
    return what

@app.step
async def note(what: str) -> str:
    made.append(f"note {what}")
    return what

@app.tool
async def charge(cents: int) -> str:
    made.append(f"charge {cents}")
    return f"receipt {cents}"

@app.job
async def child(sku: str) -> str:
    made.append(f"child {sku}")
    return sku

@app.job
async def work(sku: str, count: int = 2) -> str:
    cents = await price(sku)
    for number in range(count):
        await stock(f"{sku}-{number}")
    first, second = await gather(audit("a"), audit("b"))
    await sleep(0.001)
    kid = await child(sku)
    receipt = await charge(cents)
    answer = await wait_for("go")
    last = await note("last")
    return f"{cents} {first} {kid} {receipt} {answer} {last}"
"""

FITS, UNUSED, STOPS = Verdict.FITS, Verdict.UNUSED, Verdict.STOPS
UNDECODABLE, GONE = Verdict.UNDECODABLE, Verdict.GONE


class Change(NamedTuple):
    """A change of the code, and what the check must say. The line with HERE is the one that it must name."""

    verdict: Verdict
    edits: tuple[tuple[str, str], ...]


def change(verdict: Verdict, *edits: tuple[str, str]) -> Change:
    return Change(verdict, edits)


CHANGES = {
    "nothing": change(FITS),
    "a comment": change(FITS, ("    cents = await", "    # the price comes first\n    cents = await")),
    "another local name": change(FITS, ("cents", "pence"), ("(pence: int)", "(cents: int)")),
    "an argument by name": change(FITS, ("await price(sku)", "await price(sku=sku)")),
    "the same text, made otherwise": change(FITS, ("await price(sku)", "await price(sku.upper())")),
    "a new step first": change(FITS, ("    cents = await", '    await note("new")\n    cents = await')),
    "a new step in the loop": change(
        FITS, ("        await stock", "        await note(str(number))\n        await stock")
    ),
    "a new step before the wait": change(FITS, ("    answer =", '    await note("new")\n    answer =')),
    "a new step at the end": change(FITS, ("    return f", '    await note("new")\n    return f')),
    "a new tool in the middle": change(
        FITS,
        ("    kid =", "    await bill()\n    kid ="),
        ("@app.job\nasync def child", "@app.tool\nasync def bill() -> None: ...\n\n@app.job\nasync def child"),
    ),
    "a new child": change(FITS, ("    answer =", '    await child("other")\n    answer =')),
    "another call of a name after its recorded ones": change(
        FITS, ("    receipt =", '    await price("other")\n    receipt =')
    ),
    "another call of a name before its recorded one": change(
        STOPS, ("    cents = await", '    await price("other")  # HERE\n    cents = await')
    ),
    "a step removed": change(UNUSED, ("await price(sku)\n", "100\n")),
    "the loop removed": change(UNUSED, ('        await stock(f"{sku}-{number}")', "        pass")),
    "the branches removed": change(UNUSED, ('await gather(audit("a"), audit("b"))', '"a", "b"')),
    "the sleep removed": change(FITS, ("    await sleep(0.001)\n", "")),
    "the child removed": change(UNUSED, ("await child(sku)", "sku")),
    "the tool removed": change(UNUSED, ("await charge(cents)", '"receipt"')),
    "the wait removed": change(FITS, ('await wait_for("go")', '"yes"')),
    "the wait for another key": change(FITS, ('wait_for("go")', 'wait_for("ok")')),
    "the wait twice": change(
        FITS, ('    answer = await wait_for("go")', '    await wait_for("ok")\n    answer = await wait_for("go")')
    ),
    "a declared step removed with its calls": change(
        UNUSED,
        ('        await stock(f"{sku}-{number}")', "        pass"),
        ("@app.step\nasync def stock", "async def stock"),
    ),
    "another argument": change(STOPS, ("await price(sku)", 'await price(sku + "!")  # HERE')),
    "another argument in the loop": change(
        STOPS, ('await stock(f"{sku}-{number}")', 'await stock(f"{sku}:{number}")  # HERE')
    ),
    "another argument of the tool": change(STOPS, ("await charge(cents)", "await charge(cents + 1)  # HERE")),
    "another argument of the child": change(STOPS, ("await child(sku)", 'await child(sku + "!")  # HERE')),
    "another argument in a branch": change(STOPS, ('audit("a"), audit("b"))', 'audit("a"), audit("c"))  # HERE')),
    "a key for a call": change(STOPS, ("await price(sku)", 'await price.options(key="k")(sku)  # HERE')),
    "a key for another name": change(FITS, ("    answer =", '    await note.options(key="k")("a")\n    answer =')),
    "a step renamed": change(UNUSED, ("price", "cost")),
    "a step renamed with an alias": change(
        FITS, ("price", "cost"), ("@app.step\nasync def cost", '@app.step(aliases=["price"])\nasync def cost')
    ),
    "a tool renamed": change(STOPS, ("charge", "bill"), ("await bill(cents)", "await bill(cents)  # HERE")),
    "a tool renamed with an alias": change(
        FITS, ("charge", "bill"), ("@app.tool\nasync def bill", '@app.tool(aliases=["charge"])\nasync def bill')
    ),
    "a renamed step with another argument": change(
        STOPS,
        ("price", "cost"),
        ("@app.step\nasync def cost", '@app.step(aliases=["price"])\nasync def cost'),
        ("await cost(sku)", 'await cost(sku + "!")  # HERE'),
    ),
    "a child renamed": change(STOPS, ("child", "kidjob"), ("await kidjob(sku)", "await kidjob(sku)  # HERE")),
    "a child renamed with an alias": change(
        FITS, ("child", "kidjob"), ("@app.job\nasync def kidjob", '@app.job(aliases=["child"])\nasync def kidjob')
    ),
    "the job renamed": change(GONE, ("async def work", "async def order")),
    "the job renamed with an alias": change(
        FITS, ("@app.job\nasync def work", '@app.job(aliases=["work"])\nasync def order')
    ),
    "two calls in the other order": change(
        FITS,
        (
            "    kid = await child(sku)\n    receipt = await charge(cents)\n",
            "    receipt = await charge(cents)\n    kid = await child(sku)\n",
        ),
    ),
    "the first call last": change(
        FITS,
        ("    cents = await price(sku)\n", "    cents = 100\n"),
        ("    answer =", "    await price(sku)\n    answer ="),
    ),
    "calls at once that were one after the other": change(
        FITS,
        (
            "    kid = await child(sku)\n    receipt = await charge(cents)\n",
            "    kid, receipt = await gather(child(sku), charge(cents))\n",
        ),
    ),
    "calls one after the other that were at once": change(
        FITS,
        ('first, second = await gather(audit("a"), audit("b"))', 'first, second = await audit("a"), await audit("b")'),
    ),
    "more rounds of the loop": change(FITS, ("range(count)", "range(count + 1)")),
    "fewer rounds of the loop": change(UNUSED, ("range(count)", "range(count - 1)")),
    "other rounds of the loop": change(
        STOPS, ("range(count)", "range(1, count + 1)"), ('{number}")', '{number}")  # HERE')
    ),
    "another default": change(FITS, ("count: int = 2", "count: int = 3")),
    "a smaller default": change(UNUSED, ("count: int = 2", "count: int = 1")),
    "a new parameter with a default": change(FITS, ("count: int = 2", "count: int = 2, more: bool = False")),
    "a new required parameter": change(UNDECODABLE, ("sku: str, count", "sku: str, more: bool, count")),
    "a parameter renamed": change(
        UNDECODABLE,
        (
            "async def work(sku: str, count: int = 2) -> str:",
            "async def work(item: str, count: int = 2) -> str:\n    sku = item",
        ),
    ),
    "another type of a parameter": change(UNDECODABLE, ("work(sku: str", "work(sku: int")),
    "a wider type of a parameter": change(FITS, ("work(sku: str", "work(sku: str | int")),
    "another type of a result": change(
        UNDECODABLE,
        ("async def price(sku: str) -> int:", "async def price(sku: str) -> str:"),
        ("await price(sku)\n", "await price(sku)  # HERE\n"),
    ),
    "a wider type of a result": change(
        FITS, ("async def stock(sku: str) -> int:", "async def stock(sku: str) -> float:")
    ),
    "another type of an argument": change(
        UNDECODABLE,
        ("async def price(sku: str)", "async def price(sku: int)"),
        ("await price(sku)\n", "await price(sku)  # HERE\n"),
    ),
    "a new option of a step": change(
        FITS, ("@app.step\nasync def price", "@app.step(retries=3, timeout=5)\nasync def price")
    ),
    "a new parameter of a step": change(
        FITS, ("async def price(sku: str)", "async def price(sku: str, currency: str = 'eur')")
    ),
    "a new branch that is taken": change(
        FITS, ("    receipt =", '    if cents > 50:\n        await note("much")\n    receipt =')
    ),
    "a new branch that leaves a call out": change(
        UNUSED, ("    receipt = await charge(cents)", '    receipt = await charge(cents) if cents > 500 else "none"')
    ),
    "an error before the wait": change(STOPS, ("    answer =", '    raise ValueError("no")  # HERE\n    answer =')),
    "a name that does not exist": change(STOPS, ("    answer =", "    missing()  # HERE\n    answer =")),
    "an end before the wait": change(FITS, ("    answer =", '    return "early"\n    answer =')),
    "an end before the wait with another type": change(
        UNDECODABLE,
        ("@app.job\nasync def work", "@app.job  # HERE\nasync def work"),
        ("    answer =", "    return 5\n    answer ="),
    ),
    "an end before the wait with what JSON cannot hold": change(
        UNDECODABLE, ("    answer =", "    return object()\n    answer =")
    ),
    "an end at once": change(UNUSED, ("    cents = await", '    return "at once"\n    cents = await')),
    "a step that is now a tool": change(FITS, ("@app.step\nasync def price", "@app.tool\nasync def price")),
    "a tool that is now a step": change(FITS, ("@app.tool\nasync def charge", "@app.step\nasync def charge")),
    "a plain step": change(FITS, ("async def price", "def price")),
    "a plain job": change(
        FITS,
        ("async def work", "def work"),
        ("await ", ""),
        ('gather(audit("a"), audit("b"))', 'audit("a"), audit("b")'),
    ),
    "code moved to a function": change(
        FITS,
        ("await charge(cents)\n", "await pay(cents)\n"),
        (
            "@app.job\nasync def work",
            "async def pay(cents):\n    return await charge(cents)\n\n@app.job\nasync def work",
        ),
    ),
    "code moved to a task": change(FITS, ("await charge(cents)\n", "await asyncio.create_task(charge(cents))\n")),
    "a caught error": change(
        FITS,
        (
            "    receipt = await charge(cents)",
            "    try:\n        receipt = await charge(cents)\n    except Exception:\n        receipt = 'none'",
        ),
    ),
    "a timeout around a recorded call": change(
        FITS,
        (
            "    receipt = await charge(cents)",
            "    async with asyncio.timeout(60):\n        receipt = await charge(cents)",
        ),
    ),
    "a timeout around the wait": change(
        FITS,
        (
            '    answer = await wait_for("go")',
            '    async with asyncio.timeout(60):\n        answer = await wait_for("go")',
        ),
    ),
    "a step removed before a timeout around a recorded call": change(
        UNUSED,
        ("await price(sku)\n", "100\n"),
        (
            "    receipt = await charge(cents)",
            "    async with asyncio.timeout(60):\n        receipt = await charge(cents)",
        ),
    ),
    "a step removed before a timeout around a new call": change(
        FITS,
        ("await price(sku)\n", "100\n"),
        ("    answer =", '    async with asyncio.timeout(60):\n        await note("new")\n    answer ='),
    ),
    "a step removed before a timeout around the wait": change(
        UNUSED,
        ("await price(sku)\n", "100\n"),
        (
            '    answer = await wait_for("go")',
            '    async with asyncio.timeout(60):\n        answer = await wait_for("go")',
        ),
    ),
    "another argument in a timeout": change(
        STOPS,
        (
            "    receipt = await charge(cents)",
            """\
    try:
        async with asyncio.timeout(3600):
            receipt = await charge(cents + 1)  # HERE
    except TimeoutError:
        receipt = await note("too late")""",
        ),
    ),
    "another argument in wait_for": change(
        STOPS,
        (
            "    receipt = await charge(cents)",
            """\
    try:
        receipt = await asyncio.wait_for(charge(cents + 1), 0.01)  # HERE
    except TimeoutError:
        receipt = await note("too late")""",
        ),
    ),
    "another argument in a timeout beside a thread": change(
        STOPS,
        (
            "    receipt = await charge(cents)",
            """\
    working = asyncio.create_task(asyncio.to_thread(__import__("time").sleep, 0.1))
    try:
        async with asyncio.timeout(0.01):
            receipt = await charge(cents + 1)  # HERE
    except TimeoutError:
        receipt = await note("too late")
    await working""",
        ),
    ),
    "another argument in a group with a timeout": change(
        STOPS,
        (
            "    receipt = await charge(cents)",
            """\
    try:
        async with asyncio.timeout(0.01), asyncio.TaskGroup() as group:
            paying = group.create_task(charge(cents + 1))  # HERE
            group.create_task(asyncio.sleep(60))
        receipt = paying.result()
    except BaseException:
        receipt = await note("too late")""",
        ),
    ),
    "another argument where errors are caught and cleaned up after": change(
        STOPS,
        (
            "    receipt = await charge(cents)",
            """\
    try:
        async with asyncio.timeout(0.01):
            receipt = await charge(cents + 1)  # HERE
    except BaseException:
        receipt = await note("caught")
    finally:
        await note("cleaned up")""",
        ),
    ),
    "a call that is cancelled before it begins": change(
        UNUSED,
        (
            "    receipt = await charge(cents)",
            """\
    paying = asyncio.create_task(charge(cents + 1))
    await asyncio.sleep(0)
    paying.cancel()
    receipt = "none\"""",
        ),
    ),
    "a timer of asyncio": change(FITS, ("    receipt =", "    await asyncio.sleep(0.001)\n    receipt =")),
    "a forgotten await": change(STOPS, ("    answer =", '    note("new")\n    answer =')),
    "a wait for nothing": change(STOPS, ("    answer =", "    await asyncio.Event().wait()\n    answer =")),
    "a subprocess in job code": change(
        STOPS, ("    answer =", '    await asyncio.create_subprocess_exec("true")  # HERE\n    answer =')
    ),
    "another run after the wait": change(
        FITS, ("    last =", "    if count == 2:\n        continue_as(sku=sku, count=1)\n    last =")
    ),
}


def test_there_are_fifty_changes_and_more() -> None:
    assert len(CHANGES) >= 50


def changed(edits: tuple[tuple[str, str], ...]) -> str:
    code = BEFORE
    for before, after in edits:
        assert before in code, f"{before!r} is not in the code"
        code = code.replace(before, after)
    return code


def marked(code: str) -> str | None:
    lines = [number for number, line in enumerate(code.splitlines(), 1) if "# HERE" in line]
    return f"shop.py:{lines[0]}" if lines else None


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_change_has_its_verdict_and_the_engine_does_the_same(name: str) -> None:
    verdict, edits = CHANGES[name]
    old = Shop(BEFORE)
    run = old.app.start("work", "A1")
    old.work()
    assert run.record().stage == "parked"
    store = old.app.store()
    assert isinstance(store, MemoryStore)
    code = changed(edits)
    new = Shop(code, store)
    found: RunCheck = new.app.block(check_run(new.app, new.app.events(run.id)))
    assert (found.verdict, new.made) == (verdict, []), found.reasons
    line = marked(code)
    if line is not None:
        assert found.line == line
    attempts = sum(event.type == "job_running" for event in new.app.events(run.id))
    for key in ("go", "ok"):
        new.app.signal(run.id, key, "yes")
    new.work()
    if new.app.current(run.id) != run.id:
        new.app.signal(run.id, "go", "yes")
        new.work()
    status = new.app.get(new.app.current(run.id)).status
    if verdict is GONE:
        assert sum(event.type == "job_running" for event in new.app.events(run.id)) == attempts
    elif verdict.is_failure:
        assert status == "failed" or stopped(new.app.events(run.id))
        assert new.made == [] or name == "a forgotten await", "which is found when the job waits, or at its end"
    else:
        assert status == "succeeded", new.app.get(run.id).error
        again = set(old.made) & set(new.made)
        assert not again or name == "another run after the wait", "a recorded call is not made again"


def test_an_unused_result_stops_a_later_new_call_of_its_name() -> None:
    """The check cannot see that far: it says which results are unused."""
    old = Shop(BEFORE)
    run = old.app.start("work", "A1")
    old.work()
    store = old.app.store()
    assert isinstance(store, MemoryStore)
    new = Shop(changed((("await price(sku)\n", "100\n"), ('note("last")', 'price("last")'))), store)
    found: RunCheck = new.app.block(check_run(new.app, new.app.events(run.id)))
    assert (found.verdict, [node.partition(":")[0] for node in found.unused]) == (UNUSED, ["price"])
    new.app.signal(run.id, "go", "yes")
    new.work()
    assert stopped(new.app.events(run.id))


@pytest.mark.parametrize(
    ("edit", "signals"),
    [
        (('wait_for("go")', 'wait_for("ok")'), ["wait:go"]),
        (('await wait_for("go")', '"yes"'), []),
        (("    answer =", '    await note("new")\n    answer ='), []),
        (('    answer = await wait_for("go")', '    return "early"'), ["wait:go"]),
        (("cents = await", "cents = await"), []),
    ],
    ids=["another key", "a new call instead", "a new call before", "an end", "nothing"],
)
def test_a_signal_that_the_code_does_not_use_is_named(edit: tuple[str, str], signals: list[str]) -> None:
    """It has ended a wait. Code that waits for another key does not get it, and neither does its sender know."""
    old = Shop(BEFORE)
    run = old.app.start("work", "A1")
    old.work()
    old.app.signal(run.id, "go", "yes")
    store = old.app.store()
    assert isinstance(store, MemoryStore)
    new = Shop(changed((edit,)), store)
    found: RunCheck = new.app.block(check_run(new.app, new.app.events(run.id)))
    assert (found.verdict, found.signals, found.unused) == (UNUSED if signals else FITS, signals, [])
    assert not signals or "does not use the signal of wait:go" in run_line(found)


@pytest.mark.parametrize("before", ["    answer =", "    cents = await"], ids=["after the history", "in the history"])
@pytest.mark.parametrize("poll", ["asyncio.sleep(1)", "asyncio.to_thread(int)"], ids=["timer", "thread"])
def test_code_that_polls_something_outside_does_not_keep_the_check_from_its_end(before: str, poll: str) -> None:
    old = Shop(BEFORE)
    run = old.app.start("work", "A1")
    old.work()
    polling = f"    while True:\n        await {poll}\n{before}"
    new = Shop(changed(((before, polling),)))
    found: RunCheck = new.app.block(check_run(new.app, old.app.events(run.id)))
    assert found.verdict is (FITS if before == "    answer =" else UNUSED), found


def test_code_that_fails_before_a_call_that_was_begun_would_stop() -> None:
    """Its worker has died in the call, and the code made it then."""
    old = Shop(BEFORE)
    run = old.app.start("work", "A1")
    old.work()
    events = old.app.events(run.id)
    begun = next(number for number, event in enumerate(events, 1) if event.type == "node_started")
    code = changed((("    cents = await", '    raise ValueError("no")  # HERE\n    cents = await'),))
    new = Shop(code)
    found: RunCheck = new.app.block(check_run(new.app, events[:begun]))
    assert (found.verdict, found.line) == (STOPS, marked(code)), found
    assert new.app.block(check_run(new.app, events[: begun - 1])).verdict is FITS, "it may have been about to fail"


def test_plain_code_that_is_slow_to_make_a_call_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread may not have begun yet, on a busy machine. Time alone does not make it fit."""
    monkeypatch.setattr("holdfast.engine.replay_check.QUIET_SECONDS", 0.05)
    old = Shop(BEFORE)
    run = old.app.start("work", "A1")
    old.work()
    plain = (
        ("async def work", "def work"),
        ("await ", ""),
        ('gather(audit("a"), audit("b"))', 'audit("a"), audit("b")'),
    )
    slow = ("    cents = price(sku)", '    __import__("time").sleep(0.2)\n    cents = price(sku + "!")')
    new = Shop(changed((*plain, slow)))
    found: RunCheck = new.app.block(check_run(new.app, old.app.events(run.id)))
    assert found.verdict is STOPS, found


@pytest.mark.parametrize("mistake", ["missing()", "cents.missing", 'await charge("many")', "len(5)"])
def test_a_mistake_after_a_signal_that_has_come_is_found(mistake: str) -> None:
    """The run is queued, and fails as soon as a worker takes it."""
    old = Shop(BEFORE)
    run = old.app.start("work", "A1")
    old.work()
    old.app.signal(run.id, "go", "yes")
    store = old.app.store()
    assert isinstance(store, MemoryStore)
    wait = '    answer = await wait_for("go")\n'
    new = Shop(changed(((wait, f"{wait}    {mistake}\n"),)), store)
    found: RunCheck = new.app.block(check_run(new.app, new.app.events(run.id)))
    assert found.verdict.is_failure, found
    new.work()
    assert new.app.get(run.id).status == "failed"


def test_a_result_of_another_type_is_a_misfit_once_the_run_is_about_to_end_or_has_ended() -> None:
    """The history has everything up to the end: `return` alone has changed."""
    old = Shop(BEFORE)
    run, done = old.app.start("work", "A1"), old.app.start("work", "B2")
    old.app.signal(done.id, "go", "yes")
    old.work()
    old.app.signal(run.id, "go", "yes")
    store = old.app.store()
    assert isinstance(store, MemoryStore)
    new = Shop(
        changed((('    last = await note("last")\n', ""), ('    return f"{cents}', '    return 5  # f"{cents}'))), store
    )
    for job in (run, done):
        found: RunCheck = new.app.block(check_run(new.app, new.app.events(job.id)))
        assert found.verdict is UNDECODABLE
        assert found.reasons == [
            "it now ends with InvalidResult: the result of work cannot be stored: Expected `str`, got `int`"
        ]
        assert found.line == "shop.py:35", "its decorator"
    new.work()
    record = new.app.get(run.id)
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.code == "InvalidResult"


def stopped(events: list[Event]) -> bool:
    """Whether the engine has refused the code: the run has failed so, or waits for a decision."""
    last = next(event for event in reversed(events) if event.type in {"job_failed", "job_waiting", "job_completed"})
    return last.payload.get("code") == "NonDeterminism" or last.payload.get("wait_type") == "deploy"


# Random jobs and random edits

Program = list[Any]
NAMES = "abc"


NATIVE = ("timer", "timer", "thread", "timeout", "nap", "cut")


def drawn(rng: random.Random, size: int, depth: int = 0) -> Program:
    return [_drawn_one(rng, depth) for _ in range(size)]


def _drawn_one(rng: random.Random, depth: int) -> Any:
    kind = rng.choice([*["call"] * 5, "at_once", "value", "task", "mark", *NATIVE])
    if kind == "call":
        return kind, rng.choice(NAMES), rng.randrange(3)
    if kind in {"at_once", "task", "timeout", "mark"} and depth < 2:
        return kind, drawn(rng, rng.randrange(1, 4), depth + 1)
    return kind if kind in {"timer", "thread", "nap", "cut"} else "value", rng.randrange(1, 3)


def edited(rng: random.Random, program: Program) -> Program:
    """Change a program in one place."""
    program = list(program)
    where = rng.randrange(len(program)) if program else 0
    kinds = ["insert", "insert", "delete", "swap", "repeat", "argument", "inside", "join", "mark", "timeout"]
    match rng.choice(kinds):
        case "delete" if program:
            del program[where]
        case "swap" if len(program) > 1:
            other = rng.randrange(len(program))
            program[where], program[other] = program[other], program[where]
        case "repeat" if program:
            program.insert(where, program[where])
        case "argument" if program and program[where][0] == "call":
            program[where] = ("call", program[where][1], rng.randrange(4))
        case "inside" if program and isinstance(program[where][1], list):
            program[where] = (program[where][0], edited(rng, program[where][1]))
        case "join" if len(program) > 1:
            program[:2] = [("at_once", program[:2])]
        case "mark" if program:
            program[where] = ("mark", [program[where]])
        case "timeout" if program:
            program[where] = ("timeout", [program[where]])
        case _:
            program.insert(where, _drawn_one(rng, 0))
    return program


def declared(program: Program, store: MemoryStore | None = None) -> App:
    """Return an app with a job that follows a program. Step b fails, tool c may be called again, step d never ends."""
    app = App("random", config=quick("memory:"))
    if store is not None:
        app._opened = store

    @app.step(name="a")
    async def a(n: int) -> int:
        return n

    @app.step(name="b")
    async def b(n: int) -> int:
        raise ValueError(str(n))

    @app.tool(name="c", on_doubt="retry")
    async def c(n: int) -> int:
        return n

    @app.step(name="d")
    async def d(n: int) -> int:
        await asyncio.Event().wait()
        return n

    calls: dict[str, Any] = {"a": a, "b": b, "c": c, "d": d}

    @app.job
    async def work() -> str:
        await follow(calls, program)
        return "done"

    return app


async def follow(calls: dict[str, Any], parts: Program) -> None:
    for part in parts:
        await follow_one(calls, part)


async def follow_one(calls: dict[str, Any], part: Any) -> None:
    match part:
        case "call", name, n:
            with contextlib.suppress(StepFailed):
                await calls[name](n)
        case "at_once", parts:
            await gather(*(follow_one(calls, one) for one in parts))
        case "task", parts:
            await asyncio.create_task(follow(calls, parts))
        case "timeout", parts:
            async with asyncio.timeout(60):
                await follow(calls, parts)
        case "nap" | "cut" as kind, n:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.001 * n):
                    await (asyncio.sleep(60) if kind == "nap" else calls["d"](n))
        case "mark", parts:
            if is_changed("2026-11-fee"):
                await follow(calls, parts)
        case "thread", _:
            await asyncio.to_thread(int)
        case "value", _:
            now()
        case _:
            await asyncio.sleep(0.001 * part[1])


def histories(rng: random.Random, program: Program) -> Iterator[tuple[MemoryStore, str]]:
    """Yield stores with the history of a program, cut at random places: its worker has died there."""
    app = declared(program)
    run = app.start("work")
    app.worker().run(until_idle=True)
    whole = [event for event in app.events(run.id)[2:] if event.type not in {"job_completed", "job_failed"}]
    for end in {len(whole), rng.randrange(len(whole) + 1)}:
        store = MemoryStore()
        claim = Claim(worker="w", entries=frozenset({("random", "work")}), queues=None, limit=1, lease_seconds=60)
        written = tuple((event.type, event.payload) for event in whole[:end])
        answers = app.block(store.commit([Submit(job=run.id, plugin="random", entry="work", args={}), claim]))
        answers += app.block(store.commit([Append(run.id, 1, written), ReleaseLeases("w"), Reclaim()]))
        assert not [answer for answer in answers if isinstance(answer, Exception)]
        yield store, run.id
    app.close()


@pytest.mark.parametrize("seed", range(60))
def test_the_check_and_the_engine_agree_on_random_jobs_and_edits(seed: int) -> None:
    rng = random.Random(seed)
    program = drawn(rng, rng.randrange(1, 6))
    for store, run in histories(rng, program):
        other = program
        for _ in range(rng.randrange(4)):
            other = edited(rng, other)
        app = declared(other, store)
        before = app.events(run)
        found = app.block(check_run(app, before))
        app.worker().run(until_idle=True)
        after = app.events(run)[len(before) :]
        outcomes = [event for event in after if event.type == "node_finished"]
        refused_at_once = stopped(app.events(run)) and not outcomes
        shown = f"{program}\n{other}\n{[(event.type, event.payload.get('node')) for event in before]}\n{found}"
        assert found.verdict.is_failure == refused_at_once, shown
        assert app.get(run).status == "succeeded" or stopped(app.events(run)), f"no timeout of 60 s ends:\n{shown}"
        if other == program:
            assert found.verdict is FITS, shown
        app.close()
