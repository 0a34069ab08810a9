"""Changes of code with timers and threads of asyncio: no work gets the end of work of another kind.

Each change has its verdict written down. The engine must agree: the run ends, no timeout fires early, and no recorded
call is made again, neither in the first replay of the changed code nor in the next one.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from holdfast.engine.replay_report import Verdict
from holdfast.machines import Event
from holdfast.store import Append, Claim, Reclaim, ReleaseLeases, Submit
from holdfast.store.memory import MemoryStore
from support.written_code import Shop

BEFORE = """\
import asyncio, random, time
from holdfast import App, wait_for
app = App("shop", config=config)

@app.step
async def note(what: str) -> str:
    made.append(what)
    return what

@app.step
async def audit(what: str) -> str:
    made.append(what)
    return what

@app.step
async def report(what: str) -> str:
    made.append(what)
    return what

@app.step
async def never() -> None:
    made.append("never")
    await asyncio.Event().wait()

@app.job
async def work() -> str:
    await asyncio.sleep(0.01)
    await asyncio.to_thread(int)
    try:
        async with asyncio.timeout(0.05):
            await never()
    except TimeoutError:
        late = await report("too late")
    async with asyncio.timeout(60):
        await note("in time")
    await asyncio.sleep(0.02)
    await note("before the wait")
    await wait_for("go")
    await note("after the wait")
    await wait_for("on")
    return late
"""
RESULT = "too late"
FITS, UNUSED = Verdict.FITS, Verdict.UNUSED
FIRST, LIMIT = "    await asyncio.sleep(0.01)\n", "        async with asyncio.timeout(0.05):\n"
THREAD = "    await asyncio.to_thread(int)\n"
NEW = 'async with asyncio.timeout(60):\n        await audit("new")\n'


class Change(NamedTuple):
    """A change of the code, and what the check must say."""

    verdict: Verdict
    edits: tuple[tuple[str, str], ...]


def change(*edits: tuple[str, str], verdict: Verdict = FITS) -> Change:
    return Change(verdict, edits)


CHANGES = {
    "nothing": change(),
    "a timer added before": change((FIRST, f"    await asyncio.sleep(0.03)\n{FIRST}")),
    "an equal timer added before": change((FIRST, FIRST + FIRST)),
    "a timer removed before": change((FIRST, "")),
    "a thread added before": change((FIRST, f"{THREAD}{FIRST}")),
    "a thread removed before": change((THREAD, "")),
    "threads and timers removed": change((FIRST, ""), (THREAD, "")),
    "a timeout added first": change((FIRST, f"    {NEW}{FIRST}")),
    "a timeout added before the one that has ended": change((THREAD, f"{THREAD}    {NEW}")),
    "a timeout added after the one that has ended": change(("    await asyncio.sleep(0.02)\n", f"    {NEW}")),
    "a timeout around timers": change(
        (FIRST, "    async with asyncio.timeout(60):\n        await asyncio.sleep(0.01)\n")
    ),
    "a timeout around a call after removed ones": change(
        (FIRST, ""),
        (THREAD, ""),
        (
            '    await note("before the wait")\n',
            '    async with asyncio.timeout(60):\n        await note("before the wait")\n',
        ),
    ),
    "a timer in place of a thread": change((THREAD, "    await asyncio.sleep(0.03)\n")),
    "a thread in place of a timer": change((FIRST, THREAD)),
    "a timeout in place of a timer": change((FIRST, f"    {NEW}")),
    "kinds swapped": change((FIRST + THREAD, THREAD + FIRST)),
    "at once": change(
        (FIRST + THREAD, "    await asyncio.gather(asyncio.to_thread(int), asyncio.sleep(0.01), asyncio.sleep(0.02))\n")
    ),
    "a timer beside the rest": change((FIRST, f"    beside = asyncio.create_task(asyncio.sleep(0.2))\n{FIRST}")),
    "the delay of a timer changed a lot": change((FIRST, "    await asyncio.sleep(0.1)\n")),
    "the delay of a timer changed slightly": change((FIRST, "    await asyncio.sleep(0.011)\n")),
    "the delay of a timer computed": change((FIRST, "    await asyncio.sleep(random.random() / 100)\n")),
    "the delay of a timeout changed a lot": change((LIMIT, "        async with asyncio.timeout(3600):\n")),
    "the delay of a timeout changed slightly": change((LIMIT, "        async with asyncio.timeout(0.051):\n")),
    "a deadline in place of a delay": change(
        (FIRST, f"    deadline = asyncio.get_running_loop().time() + 3600\n{FIRST}"),
        (LIMIT, "        async with asyncio.timeout_at(deadline):\n"),
    ),
    "wait_for in place of a timeout": change(
        (f"{LIMIT}            await never()\n", "        await asyncio.wait_for(never(), 0.05)\n")
    ),
    "code moved to a function": change(
        (f"{LIMIT}            await never()\n", "        await limited()\n"),
        (
            "@app.job",
            "async def limited() -> None:\n    async with asyncio.timeout(0.05):\n        await never()\n\n@app.job",
        ),
    ),
    "slow code": change(
        (LIMIT, "        limit = asyncio.timeout(0.05)\n        time.sleep(0.06)\n        async with limit:\n"),
        (FIRST, f"    time.sleep(0.02)\n{FIRST}"),
    ),
    "the timeout that has ended removed with its call": change(
        (f"{LIMIT}            await never()\n", "        raise TimeoutError\n")
    ),
    "a call after the timeout removed": change(
        ('        late = await report("too late")\n', '        late = "too late"\n'), verdict=UNUSED
    ),
}


def begun(code: str = BEFORE) -> tuple[Shop, str]:
    """Return a shop whose run waits for the first signal."""
    shop = Shop(code)
    run = shop.app.start("work")
    shop.work()
    assert run.record().stage == "parked"
    return shop, run.id


def edited(edits: tuple[tuple[str, str], ...], code: str = BEFORE) -> str:
    for before, after in edits:
        assert before in code, f"{before!r} is not in the code"
        code = code.replace(before, after, 1)
    return code


def labels(events: list[Event]) -> list[str]:
    return [label for event in events for label in event.payload.get("native_labels") or ()]


def test_events_name_the_native_work_that_the_code_saw() -> None:
    shop, run = begun()
    events = shop.app.events(run)
    assert labels(events) == ["sleep:10", "thread", "timer:50", "sleep:20"]
    assert [number for event in events for number in event.payload.get("natives") or ()] == [1, 2, 3, 5]


@pytest.mark.parametrize("name", CHANGES)
def test_no_work_gets_the_end_of_other_work(name: str) -> None:
    verdict, edits = CHANGES[name]
    old, run = begun()
    code = edited(edits)
    new = Shop(code, old.store)
    found = new.check(run)
    assert (found.verdict, new.made) == (verdict, []), found
    new.app.signal(run, "go")
    new.work()
    assert new.app.get(run).stage == "parked", new.app.get(run).error
    cut_again = {"never"} if "new" in new.made else set()  # a new call ends the replay, and no cut-off is forced
    assert set(new.made) <= {"new", "after the wait"} | cut_again, "a recorded call is not made again"
    again = Shop(code, old.store)
    assert again.check(run).verdict is verdict, "its history has the work of both codes"
    again.app.signal(run, "on")
    again.work()
    assert (again.app.get(run).status, again.made) == ("succeeded", []), again.app.get(run).error
    assert again.result(run) == RESULT


def test_a_roll_back_finds_the_work_of_the_first_code() -> None:
    old, run = begun()
    new = Shop(edited(CHANGES["a thread added before"].edits), old.store)
    new.app.signal(run, "go")
    new.work()
    back = Shop(BEFORE, old.store)
    assert back.check(run).verdict is FITS
    back.app.signal(run, "on")
    back.work()
    assert (back.app.get(run).status, back.made) == ("succeeded", [])


COMPUTED = {
    "a random delay": ((FIRST, "    await asyncio.sleep(random.random() / 100)\n"),),
    "the rest of a deadline": (
        (FIRST, f"    deadline = asyncio.get_running_loop().time() + 0.2\n{FIRST}"),
        (THREAD, "    await asyncio.to_thread(time.sleep, random.random() / 20)\n"),
        (LIMIT, "        async with asyncio.timeout_at(deadline):\n"),
    ),
    "a random limit": ((LIMIT, "        async with asyncio.timeout(0.03 + random.random() / 100):\n"),),
    "a random limit in whole milliseconds": (
        (LIMIT, "        async with asyncio.timeout(random.randint(10, 50) / 1000):\n"),
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_delays_that_differ_in_each_attempt_fit(name: str) -> None:
    """The code has not changed. Its delays are not recorded, and need not be."""
    code = edited(COMPUTED[name])
    old, run = begun(code)
    new = Shop(code, old.store)
    assert new.check(run).verdict is FITS
    for signal, calls in (("go", ["after the wait"]), ("on", [])):
        new = Shop(code, old.store)
        new.app.signal(run, signal)
        new.work()
        assert new.made == calls
    assert new.result(run) == RESULT


def test_histories_without_labels_are_replayed_by_number() -> None:
    """Earlier releases wrote the numbers alone."""
    old, run = begun()
    store, events = MemoryStore(), old.app.events(run)[2:]
    claim = Claim(worker="w", entries=frozenset({("shop", "work")}), queues=None, limit=1, lease_seconds=60)
    written = tuple(
        (event.type, {field: value for field, value in event.payload.items() if field != "native_labels"})
        for event in events
        if event.type != "job_waiting"
    )
    block = old.app.block
    answers = block(store.commit([Submit(job=run, plugin="shop", entry="work", args={}), claim]))
    answers += block(store.commit([Append(run, 1, written), ReleaseLeases("w"), Reclaim()]))
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    new = Shop(BEFORE, store)
    assert labels(new.app.events(run)) == []
    assert new.check(run).verdict is FITS
    for signal in ("go", "on"):
        new.app.signal(run, signal)
    new.work()
    assert new.made == ["after the wait"]
    assert new.result(run) == RESULT
    assert labels(new.app.events(run)) == [], "no work has ended since"
