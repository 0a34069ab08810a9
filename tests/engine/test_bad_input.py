"""What users get wrong, and what happens then: a clear word at once, nothing stored, nobody else disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import (
    App,
    Backoff,
    Config,
    InvalidArguments,
    PayloadTooLarge,
    RunCanceled,
    RunFailed,
    StepFailed,
    UnknownEntry,
    wait_for,
)
from holdfast.client.app_worker import AppWorker
from holdfast.client.explain import explain
from holdfast.errors import StoreUnavailable
from holdfast.store import Append, Command, Store
from holdfast.store.sql import migrate
from holdfast.store.sqlite.store import SqliteStore
from support.shell import Shell
from support.stories import beating, drain, play, quick, until

LIMIT = 1000
BIG = "x" * LIMIT  # with its quotes two bytes over


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


# What JSON cannot hold exactly, and what is said about it.
UNFIT = [
    pytest.param(object(), "object is not JSON", id="object"),
    pytest.param({("a", 1): 1}, "Only dicts with str-like or number-like keys", id="keys"),
    pytest.param({"a": [1.0, float("nan")]}, "it holds nan", id="nan"),
    pytest.param(float("-inf"), "it holds -inf", id="infinity"),
    pytest.param({"a": "\ud800"}, r"it holds '\\ud800', which is not valid Unicode", id="surrogate"),
    pytest.param(nested(62), "it nests deeper than 60 levels", id="deep"),
    pytest.param(nested(100_000), "it contains itself, or nests too deep", id="very deep"),
    pytest.param(itself(), "it contains itself, or nests too deep", id="holds itself"),
]
BY_VALUE = pytest.mark.parametrize(("value", "said"), UNFIT)


@pytest.fixture
def small(url: str) -> Any:
    made = App("shop", config=quick(url, payload_bytes_max=LIMIT, result_bytes_max=LIMIT))
    yield made
    made.close()


async def ended(app: App, job: Any, *args: Any) -> Any:
    """Run a job to its end: its result, or the text of its failure. One attempt must do."""
    handle = await app.astart(job, *args)
    await drain(app)
    assert (await app.averify()) == {}
    claims = [event for event in await handle.aevents() if event.type == "job_running"]
    assert len(claims) <= 2, "a value that cannot be kept is no crash"
    try:
        return await handle.aresult(timeout=60)
    except RunFailed as failure:
        return str(failure)


# Names and arguments


def test_an_unknown_entry_is_refused_with_the_names_there_are_and_nothing_is_stored(app: App) -> None:
    with pytest.raises(UnknownEntry, match="no job is named 'work'; the known jobs are: none"):
        app.start("work")

    @app.job
    async def work() -> None:
        pass

    with pytest.raises(UnknownEntry, match="no job is named 'wrok'; the known jobs are: work"):
        app.start_many("wrok", [{}])
    assert app.list() == []


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "work: missing a required argument: 'sku'"),
        (("A1", 2, 3), {}, "work: too many positional arguments"),
        ((), {"sku": "A1", "colour": "red"}, "work: got an unexpected keyword argument 'colour'"),
        ((5,), {}, "work: sku: Expected `str`, got `int`"),
        (("A1", "two"), {}, "work: count: Expected `int`, got `str`"),
    ],
)
def test_wrong_arguments_are_refused_by_name_and_nothing_is_stored(app: App, args: Any, kwargs: Any, said: str) -> None:
    @app.job
    async def work(sku: str, count: int = 1) -> None:
        pass

    with pytest.raises(InvalidArguments, match=said):
        app.start(work, *args, **kwargs)
    assert app.list() == []


def test_one_wrong_among_many_starts_none(app: App) -> None:
    @app.job
    async def work(n: int) -> None:
        pass

    with pytest.raises(InvalidArguments, match="work: n: Expected `int`, got `str`"):
        app.start_many(work, [{"n": 1}, {"n": "two"}, {"n": 3}])
    assert app.list() == []


def test_wrong_arguments_of_a_step_fail_the_job_at_once_and_name_the_step(app: App) -> None:
    @app.step(retries=5)
    async def price(sku: str) -> int:
        raise AssertionError(f"called with {sku!r}")

    @app.job(retries=5)
    async def work() -> int:
        return await price(7)  # type: ignore[arg-type]

    assert "price: sku: Expected `str`, got `int`" in play(ended(app, work))


@pytest.mark.parametrize("key", [None, "", 5, "x" * 1001, "ü" * 501, "a\0b", "\ud800"])
def test_a_key_that_cannot_be_kept_is_refused_wherever_it_is_given(app: App, key: Any) -> None:
    @app.job
    async def work() -> None:
        await wait_for(key)

    async def story() -> None:
        handle = await app.astart(work)
        with pytest.raises(InvalidArguments, match="signal: "):
            await handle.asignal(key)
        await drain(app)
        with pytest.raises(RunFailed, match="wait_for: "):
            await handle.aresult()
        if key is not None:
            with pytest.raises(InvalidArguments, match="key: "):
                work.options(key=key)
        with pytest.raises(InvalidArguments, match=r"priority: must be an integer \(higher runs first\), got 'high'"):
            work.options(priority="high")
        assert len(await app.alist()) == 1

    play(story())


def test_the_longest_names_are_taken_by_every_store_and_longer_ones_by_none(app: App) -> None:
    """Of random characters, which a database cannot make shorter: what one store takes can be moved to the others."""
    source = random.Random(7)

    def name(count: int) -> str:
        return "".join(chr(source.randint(0x10000, 0x1FFFF)) for _ in range(count))  # 4 bytes each

    @app.job
    async def work() -> str:
        return str(await wait_for("go"))

    async def story() -> None:
        longest = {"key": name(250), "queue": name(250), "group": name(250), "attributes": {name(250): name(255)}}
        handle = await work.options(**longest).astart()
        assert await handle.asignal(name(250)) == "kept"
        found = await app.alist(queue=longest["queue"], group=longest["group"], attributes=longest["attributes"])
        assert [record.run_id for record in found] == [handle.id]
        wrong: list[dict[str, Any]] = [{option: name(251)} for option in ("key", "queue", "group")]
        wrong += [{option: "a\0"} for option in ("key", "queue", "group")]
        wrong += [{"attributes": one} for one in ({name(251): 1}, {"a\0": 1}, {"a": "b\0"}, {"a": name(256)})]
        for options in wrong:
            with pytest.raises(InvalidArguments):
                work.options(**options)

    play(story())


@pytest.mark.parametrize("reason", ["\ud800", object()])
def test_a_reason_that_cannot_be_kept_is_refused_and_nothing_is_changed(app: App, reason: Any) -> None:
    @app.job
    async def work() -> None:
        pass

    handle = work.start()
    with pytest.raises(InvalidArguments, match="the request: it cannot be stored as JSON"):
        app.cancel(handle.id, reason)
    assert handle.record().status == "queued"


# Values that cannot be kept


@BY_VALUE
def test_arguments_that_json_cannot_hold_are_refused_and_nothing_is_stored(app: App, value: Any, said: str) -> None:
    @app.job
    async def work(given: Any, **more: Any) -> None:
        pass

    with pytest.raises(InvalidArguments, match=f"work: given cannot be stored as JSON: {said}"):
        app.start(work, value)
    with pytest.raises(InvalidArguments, match=f"work: other cannot be stored as JSON: {said}"):
        app.start(work, 1, other=value)
    assert app.list() == []


@BY_VALUE
def test_a_steps_result_that_json_cannot_hold_fails_the_step_once_and_the_job_may_go_on(
    app: App, value: Any, said: str
) -> None:
    calls: list[int] = []

    @app.step(retries=5)
    async def give() -> Any:
        calls.append(1)
        return value

    @app.step
    async def take(given: Any) -> str:
        raise AssertionError(f"called with {given!r}")

    @app.job
    async def work() -> list[str]:
        with pytest.raises(StepFailed, match=f"InvalidResult: the result of give cannot be stored: {said}"):
            await give()
        with pytest.raises(InvalidArguments, match=f"take: given cannot be stored as JSON: {said}"):
            await take(value)
        return ["went on"]

    assert play(ended(app, work)) == ["went on"]
    assert calls == [1], "trying again is no use"


@BY_VALUE
def test_a_jobs_result_that_json_cannot_hold_fails_the_job_with_that_reason(app: App, value: Any, said: str) -> None:
    @app.job(retries=5)
    async def work() -> Any:
        return value

    story = ended(app, work)
    with pytest.raises(RunFailed, match=f"the result of work cannot be stored: {said}"):
        raise RunFailed(play(story))


@BY_VALUE
def test_a_signal_that_json_cannot_hold_is_refused_and_the_job_waits_on(app: App, value: Any, said: str) -> None:
    @app.job
    async def work() -> Any:
        return await wait_for("go")

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        with pytest.raises(
            InvalidArguments, match=f"the payload of the signal 'go': it cannot be stored as JSON: {said}"
        ):
            await handle.asignal("go", value)
        assert await app.store().inbox(handle.id) == []
        with pytest.raises(InvalidArguments, match=f"the result of charge: it cannot be stored as JSON: {said}"):
            await app.aresolve(handle.id, "charge", done=value)
        assert await handle.asignal("go", "now") == "delivered"
        await drain(app)
        assert await handle.aresult() == "now"

    play(story())


def test_a_signal_that_cannot_be_kept_disturbs_none_that_is_sent_beside_it(app: App) -> None:
    """Writes of one moment share a transaction: a bad one must not take the others with it."""

    @app.job
    async def work() -> Any:
        return await wait_for("go")

    async def story() -> None:
        runs = [await app.astart(work) for _ in range(3)]
        sent = [run.asignal("go", payload) for run, payload in zip(runs, [1, object(), 3], strict=True)]
        first, second, third = await asyncio.gather(*sent, return_exceptions=True)
        assert (first, third) == ("kept", "kept")
        assert isinstance(second, InvalidArguments)

    play(story())


def test_what_is_sent_is_kept_as_it_was_whatever_the_sender_does_with_it_later(app: App) -> None:
    @app.job
    async def work() -> Any:
        return await wait_for("go")

    async def story() -> None:
        handle = await app.astart(work)
        payload = {"list": [1]}
        await handle.asignal("go", payload)
        payload["list"].append(2)
        await drain(app)
        assert await handle.aresult() == {"list": [1]}

    play(story())


# Values that are too large

TOO_LARGE = "1,002 bytes of JSON; the limit is 1,000: store the data elsewhere and pass a reference to it, or raise"


def test_arguments_over_the_limit_are_refused_and_nothing_is_stored(small: App) -> None:
    @small.job
    async def work(text: str, more: str = "") -> int:
        return len(text + more)

    with pytest.raises(PayloadTooLarge, match=f"the arguments of work: {TOO_LARGE}") as refused:
        small.start(work, BIG)
    assert (refused.value.size, refused.value.limit) == (LIMIT + 2, LIMIT)
    with pytest.raises(PayloadTooLarge):
        small.start(work, BIG[: LIMIT // 2], BIG[: LIMIT // 2])
    with pytest.raises(PayloadTooLarge):
        small.start_many(work, [{"text": "a"}, {"text": BIG}])
    assert small.list() == []
    assert play(ended(small, work, BIG[:-2])) == LIMIT - 2, "what just fits is taken"


def test_a_steps_result_over_the_limit_fails_the_step_for_good_and_the_job_may_go_on(small: App) -> None:
    calls: list[int] = []

    @small.step(retries=5)
    async def give() -> str:
        calls.append(1)
        return BIG

    @small.tool
    async def act() -> str:
        return BIG

    @small.job
    async def work() -> str:
        with pytest.raises(StepFailed, match=f"PayloadTooLarge: the result of give: {TOO_LARGE}"):
            await give()
        with pytest.raises(StepFailed, match=f"PayloadTooLarge: the result of act: {TOO_LARGE}"):
            await act()
        return "went on"

    async def story() -> None:
        handle = await small.astart(work)
        await drain(small)
        assert await handle.aresult() == "went on"
        failed = [event.payload for event in await handle.aevents() if event.type == "node_finished"]
        assert [told["result_type"] for told in failed] == ["permanent_failure"] * 2
        assert all("1,002 bytes" in told["reason"] for told in failed)

    play(story())
    assert calls == [1]


def test_arguments_of_a_step_or_child_over_the_limit_fail_the_job_before_anything_is_called(small: App) -> None:
    @small.step
    async def take(text: str) -> None:
        raise AssertionError(f"called with {text}")

    @small.job
    async def child(text: str) -> None:
        raise AssertionError(f"started with {text}")

    @small.job(retries=5)
    async def work() -> None:
        with pytest.raises(PayloadTooLarge, match=f"the arguments of child: {TOO_LARGE}"):
            await child(BIG)
        await take(BIG)

    assert f"the arguments of take: {TOO_LARGE}" in play(ended(small, work))
    assert [record.entry_id for record in small.list()] == ["work"]


def test_a_jobs_result_over_the_limit_fails_the_job_with_that_reason(small: App) -> None:
    @small.job(retries=5)
    async def work() -> str:
        return BIG

    assert f"the result of work: {TOO_LARGE}" in play(ended(small, work))


def test_a_signal_over_the_limit_is_refused_and_the_job_waits_on(small: App) -> None:
    @small.job
    async def work() -> Any:
        return await wait_for("go")

    async def story() -> None:
        handle = await small.astart(work)
        with pytest.raises(PayloadTooLarge, match=f"the payload of the signal 'go': {TOO_LARGE}"):
            await handle.asignal("go", BIG)
        with pytest.raises(PayloadTooLarge, match=f"the result of charge: {TOO_LARGE}"):
            await small.aresolve(handle.id, "charge", done=BIG)
        assert await small.store().inbox(handle.id) == []
        await handle.asignal("go", "small")
        await drain(small)
        assert await handle.aresult() == "small"

    play(story())


def test_the_limit_is_a_mebibyte_unless_said() -> None:
    assert Config().payload_bytes_max == 1024 * 1024
    assert Config.read(None, {"HOLDFAST_PAYLOAD_BYTES_MAX": "5"}).payload_bytes_max == 5
    for wrong in (0, 9 * 1024 * 1024):
        with pytest.raises(ValueError, match=f"payload_bytes_max={wrong}: it must be from 1 to 8388608"):
            Config(payload_bytes_max=wrong)


def test_the_largest_limit_that_can_be_set_can_be_used(url: str) -> None:
    """A value at the limit and all that is written beside it fit into one event: of a child's end, twice."""
    app = App("shop", config=quick(url, payload_bytes_max=8 * 1024 * 1024))

    @app.job
    async def child(text: str) -> str:
        return text

    @app.job
    async def work() -> int:
        return len(await child("x" * (8 * 1024 * 1024 - 2)))

    assert play(ended(app, work)) == 8 * 1024 * 1024 - 2
    app.close()


# Code that does not end, or ends more than itself


@contextlib.asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[AppWorker]:
    """A worker beside the story."""
    worker = app.worker(**options)
    task = asyncio.create_task(worker.arun())
    try:
        yield worker
    finally:
        worker.stop()
        await task


@pytest.fixture
def hasty(url: str) -> Any:
    made = App("shop", config=quick(url, grace_seconds=0.05))
    yield made
    made.close()


def test_a_job_that_never_returns_keeps_its_lease_and_can_be_cancelled(
    hasty: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating(monkeypatch)

    @hasty.job
    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    async def story() -> None:
        handle = await hasty.astart(work)
        async with working(hasty):
            started = 0.0

            async def outlived_its_lease() -> bool:
                nonlocal started
                row = await hasty.store().get(handle.id)
                assert row is not None
                started = started or (row.lease.until if row.lease else 0.0)
                return row.lease is not None and row.lease.until > started + 0.3

            await until(outlived_its_lease)
            record = await handle.arecord()
            assert (record.status, record.stage) == ("running", "running")
            await handle.acancel("enough")
            with pytest.raises(RunCanceled, match="enough"):
                await handle.aresult(timeout=60)
        claims = [event for event in await handle.aevents() if event.type == "job_running"]
        assert len(claims) == 1, "nobody took it from its worker"

    play(story())


def test_plain_functions_that_never_return_are_ended_after_the_grace_time_and_the_worker_goes_on(hasty: App) -> None:
    """More of them than the worker has threads: each is given up, and another takes its place."""
    free = threading.Event()
    stuck: list[int] = []

    @hasty.job
    def hang(n: int) -> None:
        stuck.append(n)
        free.wait()

    @hasty.job
    def fine() -> str:
        return "fine"

    async def story() -> None:
        async with working(hasty, concurrency=1):
            for n in range(8):
                handle = await hasty.astart(hang, n)
                await until(lambda n=n: _true(len(stuck) > n))  # type: ignore[misc]
                await handle.acancel(f"number {n}")
                with pytest.raises(RunCanceled, match=f"number {n}"):
                    await handle.aresult(timeout=60)
            assert await (await hasty.astart(fine)).aresult(timeout=60) == "fine"
        assert await hasty.averify() == {}

    try:
        play(story())
    finally:
        free.set()


async def _true(so: bool) -> bool:
    return so


def test_plain_steps_that_never_return_time_out_and_the_worker_goes_on(hasty: App) -> None:
    free = threading.Event()

    @hasty.step(timeout=0.01)
    def hang(n: int) -> int:
        free.wait()
        return n

    @hasty.step
    def fine() -> str:
        return "fine"

    @hasty.job
    async def work() -> str:
        for n in range(8):
            with pytest.raises(StepFailed, match="step timeout"):
                await hang(n)  # type: ignore[misc]
        return str(await fine())  # type: ignore[misc]

    async def story() -> None:
        async with working(hasty, concurrency=1):
            assert await (await hasty.astart(work)).aresult(timeout=60) == "fine"

    try:
        play(story())
    finally:
        free.set()


def test_a_job_that_catches_its_cancel_and_asks_again_and_again_starves_nobody_and_is_ended(hasty: App) -> None:
    let_go = False

    @hasty.step
    async def ask() -> None:
        await asyncio.Event().wait()

    @hasty.job
    async def stubborn() -> None:
        while not let_go:
            try:
                await ask()
            except BaseException:  # noqa: BLE001, S112 - what no job may do
                continue

    @hasty.job
    async def fine() -> str:
        return "fine"

    async def story() -> None:
        nonlocal let_go
        async with working(hasty):
            handle = await hasty.astart(stubborn)
            await until(lambda: _has(handle, "node_started"))
            await handle.acancel("enough")
            with pytest.raises(RunCanceled, match="enough"):
                await handle.aresult(timeout=60)
            assert await (await hasty.astart(fine)).aresult(timeout=60) == "fine"
            let_go = True
        assert await hasty.averify() == {}

    play(story())


async def _has(handle: Any, kind: str) -> bool:
    return any(event.type == kind for event in await handle.aevents())


@pytest.mark.parametrize("then", ["return", "raise", "again"])
def test_a_job_that_catches_its_unwinding_waits_all_the_same(hasty: App, then: str) -> None:
    """What code does while it is let go is not its result: it runs again when the wait is over."""
    let_go = asyncio.Event()

    @hasty.job
    async def work() -> str:
        while True:
            try:
                return str(await wait_for("go"))
            except BaseException:  # noqa: BLE001 - what no job may do
                if then == "return":
                    return "never signalled"
                if then == "raise" or let_go.is_set():
                    raise ValueError("cannot clean up") from None

    async def story() -> None:
        handle = await hasty.astart(work)
        async with working(hasty):
            await until(lambda: _has(handle, "job_waiting"))
            assert (await handle.arecord()).status == "running"
            let_go.set()
            await handle.asignal("go", "signalled")
            assert await handle.aresult(timeout=60) == "signalled"
        assert await hasty.averify() == {}

    play(story())


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_code_that_exits_fails_its_job_and_not_its_worker(app: App, plain: bool) -> None:
    def leave() -> None:
        sys.exit(3)

    async def aleave() -> None:
        sys.exit(3)

    step = app.step(name="step")(leave if plain else aleave)
    job = app.job(name="job")(leave if plain else aleave)

    @app.job
    async def work() -> str:
        with pytest.raises(StepFailed, match="SystemExit: 3 raised inside a job: it would stop the worker"):
            await step()  # type: ignore[misc]
        return "went on"

    assert "SystemExit: 3 raised inside a job" in play(ended(app, job))
    assert play(ended(app, work)) == "went on"


def test_a_plain_step_that_raises_stop_iteration_has_failed(app: App) -> None:
    @app.step
    def first(items: list[int]) -> int:
        return next(iter(items))

    @app.job
    async def work() -> str:
        with pytest.raises(StepFailed, match="StopIteration raised inside a job"):
            await first([])  # type: ignore[misc]
        return "went on"

    assert play(ended(app, work)) == "went on"


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unreadable(), r"\(its text cannot be read: ValueError\)"),
        (ValueError("a \ud800"), r"a \\ud800"),
        (ValueError("x" * 100_000), "x{2000}$"),
    ],
    ids=["unreadable", "surrogate", "long"],
)
def test_an_error_whose_text_cannot_be_kept_is_still_a_failure_and_no_crash(
    app: App, error: Exception, said: str
) -> None:
    @app.step
    async def step() -> None:
        raise error

    @app.job
    async def careful() -> str:
        with pytest.raises(StepFailed, match=said):
            await step()
        return "went on"

    @app.job
    async def careless() -> None:
        raise error

    assert play(ended(app, careful)) == "went on"
    story = ended(app, careless)
    with pytest.raises(RunFailed, match=said):
        raise RunFailed(play(story))


class Refusing:
    """Refuses the first append of an attempt, once; everything else is the real store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refused = False

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        if not self.refused and any(isinstance(command, Append) for command in batch):
            self.refused = True
            raise StoreUnavailable("refused by the test")
        return await self._store.commit(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_an_attempt_whose_write_failed_writes_nothing_behind_it(hasty: App) -> None:
    """The end of a job must not be recorded when a step before it was not: a stream has no holes."""
    hasty._opened = Refusing(hasty.store())

    @hasty.step
    async def step() -> int:
        return 1

    @hasty.job
    async def work() -> int:
        return await step()

    async def story() -> None:
        handle = await hasty.astart(work)
        await drain(hasty)
        assert await handle.aresult(timeout=60) == 1
        kinds = [event.type for event in await handle.aevents()]
        assert "command_committed" in kinds, kinds
        assert kinds.count("job_running") == 2

    play(story())


# Code that kills its process


DEADLY = """
import os, signal
from holdfast import App, attempt

app = App("deadly")

def die() -> None:
    with open("witness", "a") as witness:
        witness.write("called\\n")
    {way}

@app.step
async def step() -> int:
    die()
    return 1

@app.tool
async def tool() -> int:
    die()
    return 1

@app.job
async def by_step() -> int:
    return await step()

@app.job
async def by_tool() -> int:
    return await tool()
"""
BY_DEATH = pytest.mark.parametrize(
    ("way", "code"),
    [("os._exit(9)", 9), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
    ids=["exit", "kill"],
)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    made.environment |= {"HOLDFAST_LEASE_SECONDS": "0.3", "HOLDFAST_MAX_ATTEMPTS": "3"}
    return made


def workers_die(shell: Shell, target: Path) -> list[int]:
    """Start one worker after another until one ends in order; how each ended."""
    codes = []
    while 0 not in codes:
        codes.append(shell.ran("worker", str(target), "--until-idle").returncode)
        assert len(codes) < 10, codes
    return codes


@BY_DEATH
def test_a_step_that_kills_its_process_runs_again_until_the_job_is_given_up_as_poison(
    shell: Shell, way: str, code: int
) -> None:
    target = shell.folder / "deadly.py"
    target.write_text(DEADLY.format(way=way))
    run = shell.run("start", str(target), "by_step")
    assert workers_die(shell, target) == [code, code, code, 0]
    assert (shell.folder / "witness").read_text() == "called\n" * 3
    failed = shell.json("events", run)[-1]
    assert (failed["type"], failed["payload"]["reason"]) == ("job_failed", "poison")
    assert shell.json("show", run)["error"]["message"] == "crashed 3 times; 3 are allowed"
    assert shell.run("verify") == "every history is valid"


@BY_DEATH
def test_a_tool_that_kills_its_process_is_not_called_again_but_asked_about(shell: Shell, way: str, code: int) -> None:
    target = shell.folder / "deadly.py"
    target.write_text(DEADLY.format(way=way))
    run = shell.run("start", str(target), "by_tool")
    assert workers_die(shell, target) == [code, 0]
    assert (shell.folder / "witness").read_text() == "called\n"
    asked = shell.run("explain", run)
    assert asked.startswith("The call tool:")
    shell.run("resolve", run, asked.split()[2], "--done", "7")
    assert workers_die(shell, target) == [0]
    assert shell.json("events", run)[-1]["payload"]["result"] == 7


def test_a_worker_with_a_plain_function_that_never_returns_can_still_be_stopped(shell: Shell) -> None:
    target = shell.folder / "stuck.py"
    target.write_text(
        "import threading\nfrom holdfast import App\napp = App('stuck')\n"
        "@app.job\ndef work() -> None:\n    print('stuck', flush=True)\n    threading.Event().wait()\n"
    )
    shell.environment["HOLDFAST_SHUTDOWN_SECONDS"] = "0.1"
    shell.environment["HOLDFAST_LEASE_SECONDS"] = "60"  # a lease that a busy machine loses would end the job otherwise
    run = shell.run("start", str(target), "work")
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", str(target)],
        env=shell.environment, cwd=shell.folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "stuck\n"
        worker.terminate()
        assert worker.wait(timeout=60) == 0
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
    last = shell.json("events", run)[-1]
    assert (last["type"], last["payload"]["reason"]) == ("job_requeued", "worker_shutdown")


# Two apps of one name, and a job that nobody has


def test_two_apps_of_one_name_are_one_plugin_and_each_worker_takes_what_it_has(tmp_path: Path) -> None:
    config = quick(f"sqlite:///{tmp_path / 'jobs.db'}")
    one, two = App("shop", config=config), App("shop", config=config)

    @one.job
    async def first() -> str:
        return "first"

    @two.job
    async def second() -> str:
        return "second"

    @one.job
    async def both() -> list[str]:
        return [await first(), await second()]

    runs = [first.start(), second.start(), both.start()]
    one.worker().run(until_idle=True)
    assert [run.record().status for run in runs] == ["succeeded", "queued", "running"], "one has no second"
    two.worker().run(until_idle=True)
    one.worker().run(until_idle=True)
    assert [run.result() for run in runs] == ["first", "second", ["first", "second"]]
    assert one.verify() == {}
    one.close()
    two.close()


def test_apps_of_one_name_in_two_processes_lose_no_entry_and_explain_says_who_is_missing(shell: Shell) -> None:
    for name in ("first", "second"):
        (shell.folder / f"{name}.py").write_text(
            f"from holdfast import App\napp = App('shop')\n@app.job\nasync def {name}() -> str:\n    return '{name}'\n"
        )
    runs = [shell.run("start", f"{name}.py", name) for name in ("first", "second")]
    shell.run("worker", "first.py", "--until-idle")
    assert [shell.json("show", run)["status"] for run in runs] == ["succeeded", "queued"]
    missing = shell.run("explain", runs[1], "--target", "first.py")
    assert missing.endswith("This app does not have the job shop.second. The run waits for a worker that has it.")
    assert shell.run("explain", runs[1]).endswith("It waits for a worker that has the job shop.second.")
    shell.run("worker", "second.py", "--until-idle")
    assert shell.json("show", runs[1])["status"] == "succeeded"


def test_a_queued_job_without_a_handler_waits_for_one_and_explain_says_so(app: App) -> None:
    @app.job
    async def work() -> str:
        return "done"

    async def story() -> None:
        handle = await app.astart(work)
        handler = app.entries.pop(("shop", "work"))
        await drain(app)
        assert (await handle.arecord()).status == "queued"
        row = await app.store().get(handle.id)
        assert row is not None
        told = explain(row, await app.store().now(), app.entries)
        assert "This app does not have the job shop.work. The run waits for a worker that has it." in told
        app.entries["shop", "work"] = handler
        await drain(app)
        assert await handle.aresult() == "done"

    play(story())


# Databases of other releases, and files that cannot be written


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    app = App("shop", url=f"sqlite:///{path}")
    assert app.list() == []
    app.close()
    assert apsw.Connection(str(path)).pragma("user_version") == len(migrate.migrations("sqlite"))


def newer(monkeypatch: pytest.MonkeyPatch, sql: str) -> int:
    """Have this process know one migration more."""
    known = migrate.migrations("sqlite")
    monkeypatch.setattr(migrate, "migrations", lambda _: [*known, (len(known) + 1, sql)])
    return len(known) + 1


def test_an_older_database_is_brought_up_with_its_jobs_and_then_refused_by_the_older_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    config = quick(f"sqlite:///{path}")
    old = App("shop", config=config)

    @old.job
    async def work() -> str:
        return "done"

    handle = work.start()
    old.close()
    with monkeypatch.context() as upgraded:
        number = newer(upgraded, "CREATE TABLE later (n INTEGER)")
        app = App("shop", config=config)
        app.entries.update(old.entries)
        app.worker().run(until_idle=True)
        assert app.get(handle.id).status == "succeeded"
        assert app.verify() == {}
        app.close()
        connection = apsw.Connection(str(path))
        assert connection.pragma("user_version") == number
        connection.close()
    with pytest.raises(StoreUnavailable, match=f"has schema {number}, .* knows {number - 1}: upgrade Holdfast"):
        old.get(handle.id)


def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"
    SqliteStore(path)
    with monkeypatch.context() as upgraded:
        number = newer(upgraded, "CREATE TABLE later (n INTEGER); INSERT INTO nowhere VALUES (1)")
        with pytest.raises(apsw.SQLError, match="nowhere"):
            SqliteStore(path)
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == number - 1
    assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'later'").fetchall() == [(0,)]
    SqliteStore(path)


READ_ONLY = """
import os, sys
import holdfast.store.sqlite.store
import holdfast.build_id
import holdfast.client.app_worker  # while this user can read them
from holdfast import App, StoreUnavailable
from holdfast.store.sql import migrate

app = App("shop", url="sqlite:///" + sys.argv[1])

@app.job
async def work() -> str:
    return "done"

known = migrate.migrations("sqlite")
migrate.migrations = lambda dialect: known  # read while this user can
if os.getuid() == 0:
    os.setuid(65534)  # permissions do not bind root
try:
    work.start()
except StoreUnavailable as error:
    print(error, flush=True)
sys.stdin.readline()
run = work.start()
app.worker().run(until_idle=True)
print(run.result(), flush=True)
"""


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_read_only_file_or_directory_is_named_with_what_to_do_and_used_when_it_can_be(what: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "jobs.db"
        app = App("shop", url=f"sqlite:///{path}")
        assert app.list() == []
        app.close()
        everything = [path.parent, *path.parent.iterdir()]
        for one in everything:
            one.chmod(0o777)
        (path if what == "file" else path.parent).chmod(0o555)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        user = subprocess.Popen(
            [sys.executable, "-c", READ_ONLY, str(path)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert user.stdin is not None
        assert user.stdout is not None
        said = user.stdout.readline()
        assert said.startswith(str(path)), said
        assert re.search("check the path and its rights|give this user the right to write", said), said
        (path if what == "file" else path.parent).chmod(0o777)
        told, _ = user.communicate("go on\n", timeout=60)
        assert told == "done\n"


def test_a_store_that_turns_read_only_under_a_worker_is_used_again_when_it_can_be(tmp_path: Path) -> None:
    app = App("shop", config=quick(f"sqlite:///{tmp_path / 'jobs.db'}", lease_seconds=1.5))
    held: list[asyncio.Future[None]] = []
    calls: list[int] = []

    @app.tool
    async def act() -> str:
        calls.append(1)
        return "acted"

    @app.job
    async def work() -> str:
        done = await act()
        if not held:
            held.append(asyncio.get_running_loop().create_future())
            await held[0]
        return done

    def read_only(store: Any, so: bool) -> None:
        store._writer.submit(store._write_connection.pragma, "query_only", so).result()

    async def story() -> None:
        store = app.store()
        handle = await app.astart(work)
        async with working(app):
            await until(lambda: _has(handle, "tool_invocation_finished"))
            assert len(held) == 1
            read_only(store, so=True)
            with pytest.raises(StoreUnavailable, match="read-only: give this user the right to write"):
                await app.astart(work)
            held[0].set_result(None)  # it ends now, and nobody can write that
            worker_lost = (await store.get(handle.id)).lease.until  # type: ignore[union-attr]

            async def lease_is_over() -> bool:
                return await store.now() > worker_lost

            await until(lease_is_over)
            assert (await handle.arecord()).status == "running"
            read_only(store, so=False)
            assert await handle.aresult(timeout=60) == "acted"
            assert await (await app.astart(work)).aresult(timeout=60) == "acted"
        assert await app.averify() == {}

    play(story())
    assert len(calls) == 2, "once for each job"
    app.close()


def test_a_wait_of_an_unknown_type_fails_at_once_and_not_as_poison(app: App) -> None:
    @app.job
    async def work() -> None:
        await wait_for("go", type="banana")

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        with pytest.raises(RunFailed, match="type must be one of signal, human, webhook, got 'banana'"):
            await handle.aresult(timeout=60)

    play(story())


def test_keys_by_which_holdfast_is_told_of_answers_are_not_for_signals(app: App) -> None:
    @app.tool(timeout=0.01)
    async def charge() -> str:
        await asyncio.sleep(60)
        return "receipt"

    @app.job
    async def work() -> str:
        return await charge()

    @app.job
    async def sly() -> None:
        await wait_for("holdfast:pause")

    async def story() -> None:
        handle, other = await app.astart(work), await app.astart(sly)
        await drain(app)
        asked = (await handle.aevents())[-1].payload
        with pytest.raises(InvalidArguments, match="are reserved"):
            await handle.asignal(asked["correlation_key"], "receipt")
        assert (await handle.aevents())[-1].payload == asked, "it still asks"
        with pytest.raises(RunFailed, match="are reserved"):
            await other.aresult(timeout=60)

    play(story())


def test_a_step_that_changes_its_arguments_is_tried_again_with_what_it_was_given(app: App) -> None:
    seen: list[list[int]] = []

    @app.step(backoff=Backoff(retries=2, first_seconds=0.001))
    async def consume(items):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - without hints nothing is converted
        seen.append(list(items))
        items.pop()
        raise ValueError("not yet")

    @app.job
    async def work() -> None:
        await consume([1, 2, 3])

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        started = [event.payload["args"] for event in await handle.aevents() if event.type == "node_started"]
        assert started == [{"items": [1, 2, 3]}] * 3

    play(story())
    assert seen == [[1, 2, 3]] * 3
