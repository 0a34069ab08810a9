"""Code that does not fit a history: the job asks which code goes on, and goes to its old build if a worker has it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Draft, InvalidArguments, QuestionClosed, RunFailed, RunHandle, UnknownJob, wait_for
from holdfast.client.overview.builds import release_stranded
from holdfast.client.verify import check_replay
from holdfast.engine.replay_report import Verdict
from holdfast.machines import JobEvent
from holdfast.store import Reclaim, ReleaseLeases, RemoveWorker
from support.stories import drain, play, quick, until

SOURCE = Path(__file__).read_text().splitlines()


class Shop:
    """One store, and an app for each build of the code. Version 2 pays another amount than version 1."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.paid: list[str] = []
        self.apps: list[App] = []

    def app(self, build: str | None, cents: int, *, plain: bool = False, pin: bool = False) -> App:
        app = App("shop", config=quick(self.url), build=build)
        if self.apps and self.url == "memory:":
            app._opened = self.apps[0]._store()
        self.apps.append(app)

        @app.tool
        async def charge(amount: int) -> str:
            self.paid.append(f"{build}: {amount}")
            return f"paid {amount}"

        if plain:
            in_thread: Any = charge

            @app.job(name="pay", pin=pin)
            def pay_in_thread() -> str:
                paid = in_thread(cents)
                wait_for("go")
                return str(paid)

            return app

        @app.job(pin=pin)
        async def pay() -> str:
            paid = await charge(cents)
            await wait_for("go")
            return paid

        return app


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    made = Shop(url)
    yield made
    for app in made.apps:
        app.close()


async def misfit(shop: Shop, *, plain: bool = False) -> tuple[App, RunHandle]:
    """A run that build 1 began and that asks about build 2; the app of build 2."""
    old, new = shop.app("1", 100, plain=plain), shop.app("2", 105, plain=plain)
    handle = await old.astart("pay")
    await drain(old)
    await handle.asignal("go")
    await drain(new)
    return new, RunHandle(new, handle.id)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_a_misfit_waits_as_a_row_and_names_the_call_the_line_and_both_builds(shop: Shop, plain: bool) -> None:
    async def story() -> None:
        new, handle = await misfit(shop, plain=plain)
        record = await handle.arecord()
        assert (record.status, record.stage) == ("running", "parked")
        last = (await handle.aevents())[-1]
        assert (last.type, last.payload["wait_type"]) == (JobEvent.WAITING, "deploy")
        text = (await new.aexplain(handle.id)).explanation
        for part in ("charge(amount=105)", "charge(amount=100)", "test_misfit.py:", "build 1", "build 2", "accept"):
            assert part in text
        [question] = await new.ainbox(kind="deploy")
        assert question.deploy is not None
        assert (question.run_id, question.title) == (handle.id, "charge")
        assert (question.deploy.began, question.deploy.build) == ("1", "2")
        line = SOURCE[int((question.deploy.line or ":0").partition(":")[2]) - 1]
        assert "(cents)" in line
        await drain(new)
        assert (await handle.aevents())[-1] == last, "nothing tries again"
        assert await new.averify() == {}

    play(story())
    assert shop.paid == ["1: 100"]


def test_no_timeout_around_a_call_that_does_not_fit_is_seen_by_the_code(shop: Shop) -> None:
    """Neither one that is near nor one that is far: the run asks at once."""

    def declare(app: App, cents: int) -> Any:
        @app.tool
        async def refund(amount: int) -> str:
            shop.paid.append(f"refund {amount}")
            return "refunded"

        @app.tool
        async def apologize() -> str:
            shop.paid.append("apologize")
            return "sorry"

        @app.job
        async def settle(seconds: float) -> str:
            try:
                async with asyncio.timeout(seconds):
                    done = await refund(cents)
            except TimeoutError:
                done = await apologize()
            await wait_for("go")
            return done

        return settle

    async def story() -> None:
        old, new = shop.app("1", 100), shop.app("2", 105)
        declare(new, 5)
        settle = declare(old, 4)
        runs = [await old.astart(settle, seconds) for seconds in (0.5, 3600.0)]
        await drain(old)
        for run in runs:
            await run.asignal("go")
        await drain(new)
        assert {one.run_id for one in await new.ainbox(kind="deploy")} == {run.id for run in runs}

    play(story())
    assert shop.paid == ["refund 4", "refund 4"]


def test_a_tool_that_was_renamed_without_an_alias_is_not_called_again(shop: Shop) -> None:
    def declare(app: App, name: str) -> Any:
        @app.tool(name=name)
        async def refund(amount: int) -> str:
            shop.paid.append(f"{name} {amount}")
            return f"{name} {amount}"

        @app.job
        async def settle() -> str:
            done = await refund(4)
            await wait_for("go")
            return done

        return settle

    async def story() -> None:
        old, new = shop.app("1", 100), shop.app("2", 100)
        declare(new, "pay_back")
        run = await old.astart(declare(old, "refund"))
        await drain(old)
        await run.asignal("go")
        await drain(new)
        text = (await new.aexplain(run.id)).explanation
        assert "calls pay_back(amount=4)" in text
        assert "the history has refund(amount=4)" in text
        assert "If refund was renamed, give pay_back the alias 'refund'" in text
        await new.aanswer(run.id, "accept")
        await drain(new)
        assert await new.aoutcome(run.id) == "pay_back 4"

    play(story())
    assert shop.paid == ["refund 4", "pay_back 4"]


@pytest.mark.parametrize(("answer", "planned"), [("accept", False), ("build", True)], ids=["plan", "planner"])
def test_code_that_becomes_a_plan_does_not_call_its_tools_and_children_again(
    shop: Shop, answer: str, planned: bool
) -> None:
    """The nodes of a plan have other identities than the calls of code."""

    def declare(app: App, *, as_plan: bool) -> None:
        charge = app.calls_by_name()["charge"]

        @app.job
        async def pack() -> str:
            shop.paid.append("packed")
            return "packed"

        if not as_plan:

            @app.job(name="order")
            async def order() -> str:
                await charge(1)
                await pack()
                await wait_for("shipped")
                return "code"

        elif planned:

            @app.planner(name="order")
            async def plans() -> Draft:
                draft = Draft("order")
                add_nodes(draft)
                return draft

        else:
            add_nodes(app.plan("order"))

    def add_nodes(draft: Draft) -> None:
        paid = draft.call("charge", amount=1)
        draft.job("pack", after=paid)

    async def story() -> None:
        old, new = shop.app("1", 100), shop.app("2", 100)
        declare(old, as_plan=False)
        declare(new, as_plan=True)
        handle = await old.astart("order")
        await drain(old)
        await handle.asignal("shipped")
        report = await check_replay(new, await handle.aevents())
        reason = "it now calls charge in a new plan, but the history has charge(amount=1)"
        assert (report.verdict, report.reasons) == (Verdict.STOPS, [reason])
        await drain(new)
        asked = (await new.aexplain(handle.id)).explanation
        assert "build 2 calls charge in a new plan, but the history has charge(amount=1), which build 1" in asked
        await new.aanswer(handle.id, answer)
        await drain(old if answer == "build" else new)
        if answer == "build":
            assert await handle.aresult() == "code"
            return
        asked = (await new.aexplain(handle.id)).explanation
        assert "build 2 calls job.pack in a new plan" in asked
        await new.aanswer(handle.id, answer)
        await drain(new)
        assert await RunHandle(new, handle.id).aresult() == {"pack": "packed"}
        assert await new.averify() == {}

    play(story())
    again = ["2: 1", "packed"] if answer == "accept" else []
    assert shop.paid == ["1: 1", "packed", *again]


def test_accepted_calls_are_left_unused_in_every_later_replay(shop: Shop) -> None:
    async def story() -> None:
        new, handle = await misfit(shop)
        record = await new.aanswer(handle.id, "accept", actor="ana")
        assert record.run_id == handle.id
        await drain(new)
        assert await handle.aresult() == "paid 105"
        report = await check_replay(new, await handle.aevents())
        assert (report.fits, report.reasons) == (True, [])
        assert await new.averify() == {}
        assert [row.verb for row in await new.aaudit() if row.subject == handle.id] == ["answer"]

    play(story())
    assert shop.paid == ["1: 100", "2: 105"]


def test_a_run_goes_on_with_the_build_that_it_began_on_and_no_other_takes_it(shop: Shop) -> None:
    async def story() -> None:
        new, handle = await misfit(shop)
        await new.aanswer(handle.id, "build")
        await drain(new)
        assert (await handle.arecord()).finished_at is None
        assert "kept for workers of build 1" in (await new.aexplain(handle.id)).explanation
        await drain(shop.apps[0])
        assert await handle.aresult() == "paid 100"
        assert await new.averify() == {}

    play(story())
    assert shop.paid == ["1: 100"]


def test_a_fork_reuses_what_was_before_the_call_and_the_run_is_cancelled_with_it(shop: Shop) -> None:
    async def story() -> None:
        new, handle = await misfit(shop)
        record = await new.aanswer(handle.id, "fork", actor="ana")
        assert record.run_id != handle.id
        ended = await handle.arecord()
        assert (ended.status, record.run_id in str(ended.cancel_reason)) == ("canceled", True)
        await drain(new)
        assert await RunHandle(new, record.run_id).aresult() == "paid 105", "it got the signal that had come"
        assert await new.averify() == {}

    play(story())


def test_a_fork_gets_signals_that_were_used_after_the_call_and_that_were_not_used(shop: Shop) -> None:
    """Waits that ended before the call are reused, and their signals are not given again."""

    def declare(app: App, cents: int) -> Any:
        @app.tool
        async def refund(amount: int) -> int:
            return amount

        @app.job
        async def settle() -> list[Any]:
            first = await wait_for("a#1")
            amount = await refund(cents)
            return [first, amount, await wait_for("a#1"), await wait_for("b"), await wait_for("c")]

        return settle

    async def story() -> None:
        old, new = shop.app("1", 100), shop.app("2", 105)
        declare(new, 5)
        handle = await old.astart(declare(old, 4))
        await drain(old)
        for key, payload in (("a#1", 1), ("a#1", 2), ("b", 3), ("c", 4)):
            if key == "c":  # the others have ended waits by now
                await drain(old)
            await handle.asignal(key, payload)
        await drain(new)
        fork = await new.aanswer(handle.id, "fork")
        await drain(new)
        assert await RunHandle(new, fork.run_id).aresult() == [1, 5, 2, 3, 4]
        assert await new.averify() == {}

    play(story())


def test_a_parent_waits_for_the_fork_of_its_child(shop: Shop) -> None:
    def declare(app: App) -> Any:
        pay = app.entries["shop", "pay"]

        @app.job
        async def order() -> str:
            return f"ordered, {await pay()}"

        return order

    async def story() -> None:
        old, new = shop.app("1", 100), shop.app("2", 105)
        declare(new)
        handle = await old.astart(declare(old))
        await drain(old)
        [child] = (await old.afamily(handle.id)).children
        await drain(new)
        await new.asignal(child.run_id, "go")
        await drain(new)
        fork = await new.aanswer(child.run_id, "fork")
        family = await new.afamily(handle.id)
        assert [(one.run_id, one.status) for one in family.children] == [
            (child.run_id, "canceled"),
            (fork.run_id, "queued"),
        ]
        assert f"child job pay, run {fork.run_id}" in (await new.aexplain(handle.id)).explanation
        await drain(new)
        assert await RunHandle(new, handle.id).aresult() == "ordered, paid 105"
        assert await new.averify() == {}

    play(story())
    assert shop.paid == ["1: 100", "2: 105"]


def test_a_run_fails_on_demand_without_a_worker(shop: Shop) -> None:
    async def story() -> None:
        new, handle = await misfit(shop)
        await new.aanswer(handle.id, "fail")
        with pytest.raises(RunFailed, match=r"charge\(amount=105\)"):
            await handle.aresult()
        error = (await handle.arecord()).error
        assert error is not None
        assert error.code == "NonDeterminism"
        assert await new.averify() == {}

    play(story())


def test_of_answers_given_at_once_one_counts(shop: Shop) -> None:
    async def story() -> None:
        new, handle = await misfit(shop)
        [question] = await new.ainbox()
        answers = ["accept", "fork", "fail", "build"]
        ends = await asyncio.gather(
            *(new.aanswer(handle.id, one, node=question.node) for one in answers), return_exceptions=True
        )
        assert sum(isinstance(end, QuestionClosed) for end in ends) == 3
        with pytest.raises(QuestionClosed):
            await new.aanswer(handle.id, "accept")
        runs = await new.alist()
        assert len(runs) == 1 + isinstance(ends[1], type(runs[0])), "a fork exists only if it was the answer"

    play(story())


def test_a_wrong_answer_and_one_that_nothing_asks_for_are_refused(shop: Shop) -> None:
    async def story() -> None:
        new, handle = await misfit(shop)
        with pytest.raises(InvalidArguments, match="accept, build, fork, fail"):
            await new.aanswer(handle.id, "perhaps")
        with pytest.raises(QuestionClosed):
            await new.aanswer(handle.id, "accept", node="another:1")
        with pytest.raises(UnknownJob):
            await new.aanswer("missing", "accept")
        other = await new.astart("pay")
        with pytest.raises(QuestionClosed):
            await new.aanswer(other.id, "accept")
        assert [one.run_id for one in await new.ainbox()] == [handle.id]

    play(story())


def test_a_run_without_known_builds_asks_and_cannot_go_back(shop: Shop) -> None:
    async def story() -> None:
        app, same = shop.app("1", 100), shop.app("1", 105)
        handle = await app.astart("pay")
        await drain(app)
        await handle.asignal("go")
        await drain(same)
        with pytest.raises(InvalidArguments, match="no other build is known"):
            await same.aanswer(handle.id, "build")
        await same.aanswer(handle.id, "accept")
        await drain(same)
        assert await handle.aresult() == "paid 105"

    play(story())


def test_a_live_worker_of_the_old_build_gets_the_job_without_a_question(shop: Shop) -> None:
    async def story() -> None:
        old, new = shop.app("1", 100), shop.app("2", 105)
        handle = await old.astart("pay")
        await drain(old)
        busy = old.worker(queues=["default"], concurrency=1)
        hold = asyncio.Event()

        @old.step
        async def held() -> None:
            await hold.wait()

        @old.job
        async def holder() -> None:
            await held()

        holding = await old.astart(holder)
        working = asyncio.create_task(busy.arun())
        await until(lambda: _runs(old, holding.id))
        await handle.asignal("go")
        await drain(new)
        kinds = [(e.type, e.payload.get("reason")) for e in await handle.aevents()]
        assert kinds[-1] == ("job_requeued", "deploy")
        record = await handle.arecord()
        assert (record.stage, record.build) == ("handed_over", "2")
        assert await new.ainbox() == []
        hold.set()
        assert await handle.aresult(timeout=30) == "paid 100"
        busy.stop()
        await working
        assert (await new._store().get(handle.id)).kept_for is None  # type: ignore[union-attr]
        assert await new.averify() == {}

    async def _runs(app: App, run: str) -> bool:
        return (await app.aget(run)).stage == "running"

    play(story())
    assert shop.paid == ["1: 100"]


def test_a_job_that_was_handed_over_is_released_when_the_last_worker_of_the_build_is_gone(shop: Shop) -> None:
    async def story() -> None:
        old, new = shop.app("1", 100), shop.app("2", 105)
        handle = await old.astart("pay")
        await drain(old)
        gone = old.worker(concurrency=1)
        hold = asyncio.Event()

        @old.step
        async def held() -> None:
            await hold.wait()

        @old.job
        async def holder() -> None:
            await held()

        holding = await old.astart(holder)
        working = asyncio.create_task(gone.arun())
        await until(lambda: _runs(old, holding.id))
        await handle.asignal("go")
        await drain(new)
        assert (await handle.arecord()).stage == "handed_over"
        assert await release_stranded(new._store()) == 0, "its worker is alive"
        gone.stop(at_once=True)
        await working
        await drain(new)  # a worker that starts looks for such jobs
        assert [one.kind for one in await new.ainbox()] == ["deploy"], "nobody has the old build: it asks"

    async def _runs(app: App, run: str) -> bool:
        return (await app.aget(run)).stage == "running"

    play(story())
    assert shop.paid == ["1: 100"]


def test_threads_of_the_code_may_repeat_their_tools_in_another_order(app: App) -> None:
    """Nothing orders the calls of threads that a job has started itself. A late one is not a changed one."""
    attempts: list[int] = []
    over, asked = threading.Event(), threading.Event()

    @app.tool(on_doubt="retry")
    def act(what: str) -> str:
        if len(attempts) == 1:
            over.wait(60)  # until its worker has died
        return what

    def call(what: str) -> str:
        if what == "a" and len(attempts) == 2:
            asked.wait(60)
            time.sleep(0.05)  # the engine has seen the other call, and that this one is missing
        asked.set()
        return str(act(what))

    @app.job
    def work() -> list[str]:
        attempts.append(1)
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(contextvars.copy_context().run, call, what) for what in "ab"]
            return [each.result() for each in calls]

    async def story() -> None:
        run = await app.astart(work)
        worker = app.worker(name="first")
        working = asyncio.create_task(worker.arun())
        await until(lambda: _has_begun(app, run.id))
        working.cancel()
        await asyncio.wait([working])
        await app.store().commit([ReleaseLeases("first"), Reclaim()])
        over.set()
        await drain(app)
        record = await app.aget(run.id)
        assert (record.status, await app.aoutcome(run.id)) == ("succeeded", ["a", "b"])

    play(story())


async def _has_begun(app: App, run: str) -> bool:
    return [event.type for event in await app.aevents(run)].count("tool_invocation_started") == 2


@pytest.mark.parametrize("answer", ["accept", "build", "fork", "fail"])
def test_code_that_ends_without_a_tool_in_doubt_asks(shop: Shop, answer: str) -> None:
    """The tool was begun under a worker that died. It may have acted: its run must not end as if it had not."""

    async def story() -> None:
        acted = shop.paid
        ends = asyncio.Event()
        old, new = (App("shop", config=quick(shop.url), build=build) for build in "12")
        if shop.url == "memory:":
            new._opened = old.store()
        shop.apps += [old, new]

        @old.tool
        async def charge(cents: int) -> str:
            acted.append(f"charged {cents}")
            await ends.wait()
            return "receipt"

        @old.job(name="pay")
        async def pays() -> str:
            return await charge(5)

        @new.job(name="pay")
        async def pays_no_more() -> str:
            return "free"

        handle = await old.astart(pays)
        working = asyncio.create_task(old.worker(name="first").arun())
        await until(lambda: _acted(acted))
        working.cancel()
        await asyncio.wait([working])
        await old.store().commit([ReleaseLeases("first"), RemoveWorker("first"), Reclaim()])
        events = await old.aevents(handle.id)
        report = await check_replay(new, events)
        assert report.verdict is Verdict.STOPS
        assert "the code ends, but its history has charge(cents=5)" in report.reasons[0]
        await drain(new)
        [question] = await new.ainbox()
        assert question.kind == "deploy"
        assert question.question == (
            "The code of build 2 ends, but the history has charge(cents=5), which build 1 recorded: "
            "it was begun, and whether it has acted is not known."
        )
        record = await new.aanswer(handle.id, answer)
        await drain(new)
        record = await new.aget(record.run_id)
        expected = {"accept": "succeeded", "build": "running", "fork": "succeeded", "fail": "failed"}
        assert record.status == expected[answer]
        assert acted == ["charged 5"]
        assert await new.averify() == {}

    play(story())


async def _acted(acted: list[str]) -> bool:
    return bool(acted)


def test_two_builds_that_do_not_fit_each_other_ask_instead_of_passing_the_job_on(shop: Shop) -> None:
    """Each has recorded a call that the other does not make so."""

    def declare(build: str, number: int) -> App:
        app = App("shop", config=quick(shop.url), build=build)
        if shop.apps and shop.url == "memory:":
            app._opened = shop.apps[0]._store()
        shop.apps.append(app)

        @app.tool
        async def x(n: int) -> int:
            return n

        @app.tool
        async def y(n: int) -> int:
            return n

        @app.job
        async def work() -> None:
            if build == "1":
                await x(number)
            await wait_for("first")
            await y(number)
            await wait_for("second")
            await x(number)

        return app

    async def story() -> None:
        old, new = declare("1", 1), declare("2", 2)
        handle = await old.astart("work")
        await drain(old)
        await old.asignal(handle.id, "first")
        await drain(new)
        await old.asignal(handle.id, "second")
        working = [asyncio.create_task(app.worker().arun()) for app in (old, new)]
        await until(lambda: _asks(old))
        for task in working:
            task.cancel()
        await asyncio.wait(working)
        assert len(await old.aevents(handle.id)) < 40
        assert await old.averify() == {}

    play(story())


async def _asks(app: App) -> bool:
    return bool(await app.ainbox())
