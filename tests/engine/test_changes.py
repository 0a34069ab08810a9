"""`changed(mark)`: which side of a change a run is on, decided once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import App, InvalidArguments, NotInsideJob, RunHandle, changed, continue_as, gather, sleep, wait_for
from holdfast.client.verify import check_replay
from support.stories import drain, play

MARK = "2026-11-fee"


def marks_of(events: list[Any]) -> list[Any]:
    """The recorded answers, in order."""
    return [e.payload["value"] for e in events if str(e.payload.get("node") or "") == f"changed:{MARK}"]


class Version:
    """The code as it is deployed: 1 is without the mark."""

    def __init__(self) -> None:
        self.number = 1
        self.called: list[str] = []

    def changed(self) -> bool:
        return self.number > 1 and changed(MARK)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_a_run_that_has_passed_the_place_stays_on_the_old_side_and_a_later_one_is_on_the_new(
    app: App, plain: bool
) -> None:
    code = Version()

    @app.step
    async def act(what: str) -> str:
        code.called.append(what)
        return what

    @app.job
    async def branchy(name: str) -> str:
        await act(f"{name} price")
        side = "old"
        if code.changed():
            side = await act(f"{name} fee")
        await wait_for("go")
        again = code.changed()
        return f"{side} {again}"

    in_thread: Any = act  # which a plain job does not await

    @app.job
    def straight(name: str) -> str:
        in_thread(f"{name} price")
        side = "old"
        if code.changed():
            side = in_thread(f"{name} fee")
        wait_for("go")
        again = code.changed()
        return f"{side} {again}"

    job = straight if plain else branchy

    async def story() -> None:
        before = await app.astart(job, "a")
        await drain(app)
        code.number = 2
        after = await app.astart(job, "b")
        await drain(app)
        assert marks_of(await before.aevents()) == [], "nothing has replayed it yet"
        assert marks_of(await after.aevents()) == [True]
        for handle in (before, after):
            await handle.asignal("go")
        await drain(app)
        assert (await before.aresult(), await after.aresult()) == ("old False", "b fee True")
        assert (marks_of(await before.aevents()), marks_of(await after.aevents())) == ([False], [True])
        for handle, side in ((before, False), (after, True)):
            report = await check_replay(app, await handle.aevents())
            assert (report.fits, report.marks) == (True, {MARK: side})
        assert await app.averify() == {}

    play(story())
    assert code.called == ["a price", "b price", "b fee"]


def test_a_call_that_was_only_begun_is_past_the_place(app: App) -> None:
    """A tool of the old side may have acted: the new side must not act in its place."""
    code = Version()
    begun = asyncio.Event()

    @app.tool
    async def charge() -> str:
        code.called.append("charge")
        begun.set()
        await asyncio.sleep(60)
        return "charged"

    @app.tool
    async def charge_fee() -> str:
        code.called.append("charge_fee")
        return "fee"

    @app.job
    async def pay() -> str:
        return await (charge_fee() if code.changed() else charge())

    async def story() -> None:
        handle = await app.astart(pay)
        worker = app.worker()
        running = asyncio.create_task(worker.arun())
        await begun.wait()
        worker.stop(at_once=True)
        await running
        code.number = 2
        report = await check_replay(app, await handle.aevents())
        assert report.marks == {MARK: False}
        await drain(app)
        assert (await handle.arecord()).stage == "in_doubt"
        [question] = await app.ainbox()
        await app.aresolve(handle.id, question.key, done="receipt")
        await drain(app)
        assert await handle.aresult() == "receipt"

    play(story())
    assert code.called == ["charge"]


def test_a_wait_that_has_only_begun_is_past_the_place(app: App) -> None:
    code = Version()

    @app.job
    async def work() -> str:
        if code.changed():
            return "new"
        await sleep("1h")
        return "old"

    @app.job
    async def by_signal() -> str:
        if code.changed():
            return "new"
        await wait_for("go")
        return "old"

    async def story() -> None:
        handles = [await app.astart(work), await app.astart(by_signal)]
        await drain(app)
        code.number = 2
        reports = [await check_replay(app, await handle.aevents()) for handle in handles]
        assert [report.marks for report in reports] == [{MARK: False}] * 2
        await handles[1].asignal("go")
        await drain(app)
        assert await handles[1].aresult() == "old"

    play(story())


def test_a_loop_has_one_answer_wherever_the_run_was(app: App) -> None:
    code = Version()

    @app.job
    async def work() -> list[bool]:
        sides = []
        for place in range(4):
            sides.append(code.changed())
            await wait_for(f"go {place}")
        return sides

    async def story() -> None:
        handle = await app.astart(work)
        for place in range(4):
            code.number = 1 + (place >= 2)
            await drain(app)
            await handle.asignal(f"go {place}")
        await drain(app)
        assert await handle.aresult() == [False] * 4
        assert marks_of(await handle.aevents()) == [False]

    play(story())


def test_each_branch_of_a_run_gets_the_same_answer(app: App) -> None:
    code = Version()

    @app.step
    async def act(what: str) -> str:
        code.called.append(what)
        return what

    @app.job
    async def work() -> Any:
        async def branch(name: str) -> bool:
            await act(name)
            side = code.changed()
            await wait_for(name)
            return side == code.changed() and side

        return await gather(branch("a"), branch("b"))

    async def story() -> None:
        old = await app.astart(work)
        await drain(app)
        await old.asignal("b")
        code.number = 2
        new = await app.astart(work)
        await drain(app)
        for handle in (old, new):
            for key in ("a", "b"):
                await handle.asignal(key)
        await drain(app)
        assert (await old.aresult(), await new.aresult()) == ([False, False], [True, True])
        assert (marks_of(await old.aevents()), marks_of(await new.aevents())) == ([False], [True])

    play(story())


def test_a_removed_call_before_the_place_does_not_make_a_new_run_old(app: App) -> None:
    """The history keeps the outcome of a call that the code no longer makes. The code passes it when it rests."""
    code = Version()

    @app.step
    async def removed() -> None:
        """Do nothing."""

    @app.step
    async def act(what: str) -> str:
        return what

    @app.job
    async def work() -> bool:
        if code.number == 1:
            await removed()
        await wait_for("go")
        await act("later")
        return code.changed()

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        code.number = 2
        await handle.asignal("go")
        await drain(app)
        assert await handle.aresult() is True

    play(story())


def test_a_child_and_a_continuation_have_their_own_answer(app: App) -> None:
    code = Version()

    @app.job
    async def child() -> bool:
        return code.changed()

    @app.job
    async def parent(*, again: bool = True) -> Any:
        own = code.changed()
        await wait_for("go")
        if again:
            assert not own
            assert await child()
            continue_as(again=False)
        return [own, await child()]

    async def story() -> None:
        handle = await app.astart(parent)
        await drain(app)
        code.number = 2
        await handle.asignal("go")
        await drain(app)
        await app.asignal(await app.acurrent(handle.id), "go")
        await drain(app)
        assert await handle.aresult() == [True, True]

    play(story())


def test_a_retried_run_keeps_its_side_and_a_fork_before_the_place_gets_its_own(app: App) -> None:
    code = Version()

    @app.step
    async def price() -> int:
        return 1

    @app.step
    async def broken() -> str:
        if code.number == 1:
            raise ValueError("no")
        return "mended"

    @app.job
    async def work() -> Any:
        await price()
        side = code.changed()
        return [side, await broken()]

    async def story() -> None:
        handle = await app.astart(work)
        await drain(app)
        code.number = 2
        again = await app.aretry(handle.id, actor="ana", reason="mended")
        fork = await app.afork(handle.id, from_step="broken")
        await drain(app)
        assert await RunHandle(app, again.run_id).aresult() == [False, "mended"], "the old side has called broken"
        assert await fork.aresult() == [True, "mended"], "nothing of this run was past the place"
        assert await app.averify() == {}

    play(story())


@pytest.mark.parametrize("mark", ["", "x" * 101, "a\nb", 7, None])
def test_a_mark_that_is_not_a_short_text_is_refused(app: App, mark: Any) -> None:
    refused: list[str] = []

    @app.job
    async def work() -> None:
        try:
            changed(mark)
        except InvalidArguments as error:
            refused.append(error.reason)

    async def story() -> None:
        await app.astart(work)
        await drain(app)

    play(story())
    assert len(refused) == 1
    assert "1 to 100 characters" in refused[0]


def test_a_mark_outside_a_job_and_in_a_step_is_refused(app: App) -> None:
    errors: list[str] = []

    @app.step
    async def step() -> None:
        try:
            changed(MARK)
        except NotInsideJob as error:
            errors.append(str(error))

    @app.job
    async def work() -> None:
        await step()

    async def story() -> None:
        await app.astart(work)
        await drain(app)

    play(story())
    with pytest.raises(NotInsideJob):
        changed(MARK)
    assert len(errors) == 1
