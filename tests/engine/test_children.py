"""Children in corners: nobody waits for ever for a child whose end he will not hear of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import App, Limits, RunFailed, Secret, gather, sleep, wait_for
from holdfast.store import Cancel, Command, Reclaim, ReleaseLeases, Store, Submit
from support.faults import closing, store_of
from support.stories import drain, play, quick


def test_a_retried_parent_starts_the_children_anew_that_were_cancelled_with_it(app: App) -> None:
    mended: list[bool] = []
    started: list[int] = []

    @app.step
    async def begin() -> None:
        started.append(1)

    @app.job
    async def child() -> str:
        await begin()
        await wait_for("go")
        return "child's result"

    @app.job
    async def parent() -> str:
        under_way = asyncio.create_task(child())
        while not started:
            await sleep(0.02)
        if not mended:
            raise ConnectionError("down")
        return await under_way

    async def story() -> None:
        handle = await app.astart(parent)
        await drain(app)
        assert (await handle.arecord()).status == "failed"
        mended.append(True)
        again = await app.aretry(handle.id, actor="ana", reason="mended")
        await drain(app)
        (waiting,) = [run for run in await app.alist() if run.entry_id == "child" and run.finished_at is None]
        await app.asignal(waiting.run_id, "go")
        await drain(app)
        assert (await app.aget(again.run_id)).status == "succeeded"
        assert await app.averify() == {}

    play(story())
    assert len(started) == 2


def test_a_child_with_a_key_that_another_has_used_is_refused_and_not_waited_for(app: App) -> None:
    @app.job
    async def child() -> str:
        return "once"

    @app.job
    async def parent() -> str:
        return await child.options(key="once")()

    async def story() -> None:
        first = await app.astart(parent)
        await drain(app)
        assert await first.aresult(timeout=60) == "once"
        second = await app.astart(parent)
        await drain(app)
        with pytest.raises(RunFailed, match=r"the key 'once' belongs to job .*, which this call has not started"):
            await second.aresult(timeout=60)

    play(story())


def test_a_child_is_of_its_parents_group_unless_it_says_another(app: App) -> None:
    """So whoever may see the runs of a group sees what they have started; and a group that runs one at once does."""

    @app.job
    async def grandchild() -> str:
        return "done"

    @app.job
    async def child() -> str:
        return await grandchild()

    @app.job
    async def parent() -> list[str]:
        return [await child(), await grandchild.options(group="bolt")()]

    async def story() -> None:
        await app.aset_limits(Limits(queue="default", group_concurrency=1), actor="ana")
        handle = await app.astart(parent.options(group="acme"))
        plain = await app.astart(child)
        await drain(app)
        assert await handle.aresult(timeout=60) == ["done", "done"]
        assert await plain.aresult(timeout=60) == "done"
        assert sorted(run.entry_id for run in await app.alist(group="acme")) == ["child", "grandchild", "parent"]
        assert [run.entry_id for run in await app.alist(group="bolt")] == ["grandchild"]
        assert len(await app.alist()) == 6
        assert await app.averify() == {}

    play(story())


def test_many_children_run_their_parent_a_few_times(app: App) -> None:
    count = 200

    @app.job
    async def child(n: int) -> int:
        await asyncio.sleep(0.3 * n / count)  # their ends are spread over many transactions
        return n

    @app.job
    async def parent() -> int:
        return sum(await gather(*[child(n) for n in range(count)]))

    async def story() -> None:
        handle = await app.astart(parent)
        await drain(app)
        assert await handle.aresult(timeout=60) == sum(range(count))
        stream = await app.store().events(handle.id)
        assert sum(event.type == "job_running" for event in stream) <= 15
        assert await app.averify() == {}

    play(story())


def test_the_failure_of_one_of_many_children_does_not_wait_for_the_others(app: App) -> None:
    @app.job
    async def child(n: int) -> int:
        if n == 1:
            raise ValueError("broken")
        await wait_for("go" if n else "never")
        return n

    @app.job
    async def parent() -> None:
        await asyncio.gather(*[child(n) for n in range(20)])

    async def story() -> None:
        handle = await app.astart(parent)
        await drain(app)
        with pytest.raises(RunFailed, match="broken"):
            await handle.aresult(timeout=60)
        assert {run.status for run in await app.alist()} == {"failed", "canceled"}

    play(story())


class HeldBack:
    """A store to which the start of a child comes late: something else happens to its parent before."""

    def __init__(self, store: Store, meanwhile: Callable[[str], Awaitable[None]]) -> None:
        self._store = store
        self._meanwhile = meanwhile
        self.late: list[str] = []

    async def commit(self, batch: Sequence[Command]) -> list[Any]:
        for command in batch:
            if isinstance(command, Submit) and command.parent is not None and not self.late:
                self.late.append(command.job)
                await self._meanwhile(command.parent)
        return await self._store.commit(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "reclaimed"])
@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_the_late_start_of_a_child_whose_parent_was_taken_away_writes_nothing(
    backend: str, cancelled: bool, tmp_path: Path
) -> None:
    acted: list[str] = []

    async def story(inner: Store) -> None:
        async def take_away(parent: str) -> None:
            row = await inner.get(parent)
            assert row is not None
            assert row.lease is not None
            await inner.commit([ReleaseLeases(row.lease.worker), Reclaim()])
            if cancelled:
                await inner.commit([Cancel(parent, "not needed")])

        store = HeldBack(inner, take_away)
        app = App("shop", config=quick("memory:"))
        app._opened = store

        @app.tool
        async def act() -> None:
            acted.append("act")

        @app.job
        async def child() -> str:
            await act()
            return "done"

        @app.job
        async def parent() -> str:
            return await child()

        handle = await app.astart(parent)
        await drain(app)
        (late,) = store.late
        if cancelled:
            assert (await handle.arecord()).status == "canceled"
            assert await inner.get(late) is None
            assert [run.entry_id for run in await app.alist()] == ["parent"]
        else:
            assert await handle.aresult(timeout=60) == "done"
            assert len(await app.alist()) == 2, "the attempt that holds the parent has started the child, once"
        assert await app.averify() == {}

    inner = store_of(backend, tmp_path / "jobs.db")
    play(closing(inner, story(inner)))
    assert acted == ([] if cancelled else ["act"])


def test_a_failed_child_is_named_by_its_run_and_arguments(app: App) -> None:
    @app.job
    async def child(page: int, key: Secret[str]) -> None:
        raise ValueError(f"page {page} is torn, by {key!r}")

    @app.job
    async def parent() -> None:
        await child(3, Secret.env("HOME"))

    async def story() -> None:
        handle = await app.astart(parent)
        await drain(app)
        (failed,) = [run for run in await app.alist() if run.entry_id == "child"]
        with pytest.raises(RunFailed) as raised:
            await handle.aresult()
        assert f"(child(page=3, key='[secret]'), run {failed.run_id})" in str(raised.value)

    play(story())


def test_children_that_start_children_without_end_are_stopped(url: str) -> None:
    app = App("shop", config=msgspec.structs.replace(quick(url), child_depth_max=3))

    @app.job
    async def again(level: int) -> int:
        return await again(level + 1)

    async def story() -> None:
        handle = await app.astart(again, 0)
        await drain(app)
        with pytest.raises(
            RunFailed, match=r"RecursionError: jobs have started children 3 deep: end the recursion, or"
        ):
            await handle.aresult()
        assert len(await app.alist()) == 4, "the first run, and three below it"

    with contextlib.closing(app):
        play(story())


def test_a_child_that_is_cut_off_while_it_is_started_does_not_keep_the_job(app: App) -> None:
    """The job is suspended at its next wait, whatever moment of the start the cut falls on."""

    @app.step
    async def nap(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    @app.job
    async def child() -> None:
        await wait_for("never")

    @app.job
    async def parent(turns: int) -> str:
        calling = asyncio.create_task(child())
        await nap(turns)
        calling.cancel()
        return str(await wait_for("go"))

    async def story() -> None:
        handles = [await parent.astart(turns) for turns in range(24)]
        await drain(app)
        for handle in handles:
            assert (await handle.arecord()).stage == "parked"
            await handle.asignal("go", payload="gone")
        await drain(app)
        assert [await handle.aresult() for handle in handles] == ["gone"] * len(handles)

    play(story())


def test_children_that_branches_call_at_any_moment_are_all_started(app: App) -> None:
    """Those that are called together are started together, also while others are just being started."""

    @app.step
    async def nap(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    @app.job
    async def child(number: int) -> int:
        return number

    @app.job
    async def parent(turns: int) -> list[int]:
        async def branch() -> int:
            await nap(turns)
            return await child(turns)

        return list(await asyncio.gather(child(-1), branch()))

    async def story() -> None:
        for turns in range(16):  # one after the other: each has the loop to itself
            handle = await parent.astart(turns)
            await drain(app)
            assert await handle.aresult() == [-1, turns]

    play(story())
