"""What users get wrong, and what happens then: a clear word at once, nothing stored, nobody else disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from holdfast import (
    App,
    Config,
    InvalidArguments,
    PayloadTooLarge,
    RunCanceled,
    RunFailed,
    StepFailed,
    UnknownEntry,
    wait_for,
)
from holdfast.client.app import AppWorker
from holdfast.errors import StoreUnavailable
from holdfast.store import Append, Command, Store
from support.stories import drain, play, quick, until

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
    pytest.param({"a": "\ud800"}, r"it holds '\\ud800', which is no Unicode text", id="surrogate"),
    pytest.param(nested(62), "it nests deeper than 60 levels", id="deep"),
    pytest.param(nested(100_000), "it holds itself, or nests too deep", id="very deep"),
    pytest.param(itself(), "it holds itself, or nests too deep", id="holds itself"),
]
BY_VALUE = pytest.mark.parametrize(("value", "said"), UNFIT)


@pytest.fixture
def small(url: str) -> Any:
    made = App("shop", config=quick(url, payload_bytes_max=LIMIT))
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
        return await handle.aresult(timeout=5)
    except RunFailed as failure:
        return str(failure)


# Names and arguments


def test_an_unknown_entry_is_refused_with_the_names_there_are_and_nothing_is_stored(app: App) -> None:
    with pytest.raises(UnknownEntry, match="there is no job 'work'; there are: none"):
        app.start("work")

    @app.job
    async def work() -> None:
        pass

    with pytest.raises(UnknownEntry, match="there is no job 'wrok'; there are: work"):
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


# Values that cannot be kept


@BY_VALUE
def test_arguments_that_json_cannot_hold_are_refused_and_nothing_is_stored(app: App, value: Any, said: str) -> None:
    @app.job
    async def work(given: Any, **more: Any) -> None:
        pass

    with pytest.raises(InvalidArguments, match=f"work: given cannot be kept as JSON: {said}"):
        app.start(work, value)
    with pytest.raises(InvalidArguments, match=f"work: other cannot be kept as JSON: {said}"):
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
        with pytest.raises(StepFailed, match=f"InvalidResult: the result of give cannot be kept: {said}"):
            await give()
        with pytest.raises(InvalidArguments, match=f"take: given cannot be kept as JSON: {said}"):
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
    with pytest.raises(RunFailed, match=f"the result of work cannot be kept: {said}"):
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
            InvalidArguments, match=f"the payload of the signal 'go': it cannot be kept as JSON: {said}"
        ):
            await handle.asignal("go", value)
        assert await app.store().inbox(handle.id) == []
        with pytest.raises(InvalidArguments, match=f"the result of charge: it cannot be kept as JSON: {said}"):
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

TOO_LARGE = "1,002 bytes of JSON, and 1,000 are allowed: keep the data elsewhere and pass a reference to it, or raise"


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
        with pytest.raises(ValueError, match="payload_bytes_max must be from 1 to 8,388,608"):
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
    made = App("shop", config=quick(url, lease_seconds=0.3, grace_seconds=0.05))
    yield made
    made.close()


def test_a_job_that_never_returns_keeps_its_lease_and_can_be_cancelled(hasty: App) -> None:
    @hasty.job
    async def work() -> None:
        await asyncio.Event().wait()

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
                await handle.aresult(timeout=10)
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
                    await handle.aresult(timeout=10)
            assert await (await hasty.astart(fine)).aresult(timeout=10) == "fine"
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
            assert await (await hasty.astart(work)).aresult(timeout=20) == "fine"

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
                await handle.aresult(timeout=10)
            assert await (await hasty.astart(fine)).aresult(timeout=10) == "fine"
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
            assert await handle.aresult(timeout=10) == "signalled"
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
        assert await handle.aresult(timeout=10) == 1
        kinds = [event.type for event in await handle.aevents()]
        assert "command_committed" in kinds, kinds
        assert kinds.count("job_running") == 2

    play(story())
