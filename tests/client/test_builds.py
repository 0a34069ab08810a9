"""Builds: pinned runs, what needs a build, the move of runs, and workers that end when their build is drained."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, InvalidArguments, InvalidSetting, continue_as, wait_for
from holdfast.errors import UnknownBuild
from holdfast.store import Keep
from support.shell import Shell
from support.stories import drain, play, quick, until


class Shop:
    """One store, and an app for each build of the code, whose job is pinned."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.apps: list[App] = []

    def app(self, build: str | None, *, amount: int = 100) -> App:
        app = App("shop", config=quick(self.url), build=build)
        if self.apps and self.url == "memory:":
            app._opened = self.apps[0]._store()
        self.apps.append(app)

        @app.step
        async def price(cents: int) -> str:
            return f"{build}: {cents}"

        @app.job(pin=True)
        async def pay() -> str:
            paid = await price(amount)
            await wait_for("go")
            return f"{paid} by {build}"

        @app.job
        async def other() -> str:
            return f"by {build}"

        return app


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    made = Shop(url)
    yield made
    for app in made.apps:
        app.close()


def states(app: App, listed: Any) -> dict[str, Any]:
    del app
    return {one.build: (one.workers, one.kept, one.drained) for one in listed}


def test_a_pinned_run_is_continued_only_by_the_build_that_began_it(shop: Shop) -> None:
    async def story() -> None:
        old, new = shop.app("1"), shop.app("2")
        handle = await old.astart("pay")
        await drain(old)
        later = await new.astart("pay")
        await handle.asignal("go")
        await drain(new)
        assert (await handle.arecord()).finished_at is None
        text = (await new.aexplain(handle.id)).explanation
        assert "kept for workers of build 1, and none is alive" in text
        assert states(new, await new.abuilds()) == {"1": (0, 1, False), "2": (0, 1, False)}
        [one, _] = await new.abuilds()
        assert (one.oldest, one.reason) == (handle.id, "1 run is kept for it, and no worker of it is alive")
        assert (one.running, one.waiting) == (0, 1)
        await drain(old)
        assert await handle.aresult() == "1: 100 by 1"
        await later.asignal("go")
        await drain(new)
        assert await later.aresult() == "2: 100 by 2"
        assert await new.abuilds() == []
        assert await new.averify() == {}

    play(story())


def test_a_pinned_run_is_not_released_as_if_it_was_handed_over(shop: Shop) -> None:
    async def story() -> None:
        old = shop.app("1")
        handle = await old.astart("pay")
        await drain(old)
        (row,) = await old._store().commit([Keep(handle.id, "1", None, unclaimed=True)])
        assert row.kept_for == "1"

    play(story())


def test_runs_are_moved_only_if_all_fit_the_new_code(shop: Shop) -> None:
    async def story() -> None:
        old, new, broken = shop.app("1"), shop.app("2"), shop.app("3", amount=105)
        runs = [await old.astart("pay") for _ in range(3)]
        await drain(old)
        refused = await broken.amove_build("1", "3")
        assert (refused.moved, {one.run_id for one in refused.misfits}) == (0, {run.id for run in runs})
        assert "price(cents=105)" in refused.misfits[0].reasons[0]
        assert "test_builds.py:" in (refused.misfits[0].line or "")
        assert states(new, await new.abuilds()) == {"1": (0, 3, False)}
        assert (await new.amove_build("1", "2", actor="ana")).moved == 3
        assert [row.detail for row in await new.aaudit() if row.verb == "move"] == [{"from": "1", "to": "2"}] * 3
        for run in runs:
            await run.asignal("go")
        await drain(old)
        assert {(await run.arecord()).finished_at for run in runs} == {None}
        await drain(new)
        assert [await run.aresult() for run in runs] == ["1: 100 by 2"] * 3
        assert await new.averify() == {}

    play(story())


def test_a_move_from_an_unknown_build_or_to_the_same_one_is_refused(shop: Shop) -> None:
    async def story() -> None:
        old, new = shop.app("1"), shop.app("2")
        run = await old.astart("pay")
        with pytest.raises(UnknownBuild, match="has the build '1'; the known builds are: none"):
            await new.amove_build("1", "2")
        await drain(old)
        with pytest.raises(UnknownBuild, match=r"has the build '1\.0'; the known builds are: 1") as refused:
            await new.amove_build("1.0", "2", check=False)
        assert (refused.value.name, refused.value.known) == ("1.0", ["1"])
        with pytest.raises(InvalidArguments, match="must be another build than the old one"):
            await new.amove_build("1", "1")
        with pytest.raises(InvalidArguments, match="a build must be printable text"):
            await new.amove_build("1", "2\n")
        assert [row.verb for row in await new.aaudit() if row.verb == "move"] == []
        assert (await new.amove_build("1", "2")).moved == 1
        assert (await new.aexplain(run.id)).explanation

    play(story())


def test_a_draining_worker_takes_only_what_is_kept_for_its_build_and_ends_by_itself(shop: Shop) -> None:
    async def story() -> None:
        old, new = shop.app("1"), shop.app("2")
        handle = await old.astart("pay")
        await drain(old)
        fresh = [await old.astart("other"), await old.astart("pay")]
        working = asyncio.create_task(old.worker().arun(until_drained=True))
        await handle.asignal("go")
        assert await handle.aresult(timeout=30) == "1: 100 by 1"
        async with asyncio.timeout(30):
            await working
        assert {(await run.arecord()).status for run in fresh} == {"queued"}
        assert await new.abuilds() == []
        await drain(new)
        assert await fresh[0].aresult() == "by 2"

    play(story())


def test_children_of_a_pinned_run_are_kept_for_its_build_and_drained_with_it(shop: Shop) -> None:
    """Also if new code does not have them, and if they continue as other runs. Their worker takes only what is kept."""

    def declare(app: App) -> Any:
        @app.job
        async def child(left: int) -> str:
            if left:
                continue_as(left - 1)
            return f"child by {app.build}"

        @app.job(queue="elsewhere")
        async def apart() -> str:
            return f"apart by {app.build}"

        @app.job(pin=True)
        async def order() -> list[str]:
            await wait_for("go")
            return [await child(1), await apart()]

        return order

    async def story() -> None:
        old, new = shop.app("1"), shop.app("2")
        handle = await old.astart(declare(old))
        await drain(old)

        @new.job(queue="elsewhere")
        async def apart() -> str:
            return "apart by 2"

        await handle.asignal("go")
        working = asyncio.create_task(old.worker(queues=["default"]).arun(until_drained=True))

        async def waits_apart() -> bool:
            for member in (await new.afamily(handle.id)).children:
                row = await new.store().get(member.run_id)
                assert row is not None
                assert row.entry == "apart" or row.kept_for == "1", "its worker would wait for it without end"
            return "child job apart" in (await new.aexplain(handle.id)).explanation

        await until(waits_apart)
        [*_, last] = (await new.afamily(handle.id)).children
        assert "Only draining workers of build 1 have it" in (await new.aexplain(last.run_id)).explanation
        await drain(new)
        assert await handle.aresult(timeout=30) == ["child by 1", "apart by 2"]
        async with asyncio.timeout(30):
            await working
        assert await new.averify() == {}

    play(story())


def test_a_run_that_only_draining_workers_have_says_so(shop: Shop) -> None:
    async def story() -> None:
        old = shop.app("1")
        await old.astart("pay")
        await drain(old)  # it is kept
        fresh = await old.astart("other")
        draining = old.worker()
        working = asyncio.create_task(draining.arun(until_drained=True))
        await until(lambda: _listed(old))
        text = (await old.aexplain(fresh.id)).explanation
        assert "Only draining workers of build 1 have it. They take no new runs" in text
        draining.stop()
        await working

    async def _listed(app: App) -> bool:
        return bool(await app.aworkers())

    play(story())


def test_a_retried_run_is_kept_for_its_build_only_while_a_worker_of_it_is_alive(shop: Shop) -> None:
    def declare(app: App) -> Any:
        @app.job(pin=True, retries=0)
        async def boom() -> str:
            if app.build == "1":
                raise ValueError("not now")
            return f"by {app.build}"

        return boom

    async def story() -> None:
        old, new = shop.app("1"), shop.app("2")
        declare(new)
        handle = await old.astart(declare(old))
        await drain(old)
        idle = old.worker(queues=["default"])
        working = asyncio.create_task(idle.arun())
        await until(lambda: _listed(old))
        again = await new.aretry(handle.id, actor="ana", reason="while it is alive")
        await until(lambda: _failed(new, again.run_id))
        idle.stop()
        await working
        last = await new.aretry(handle.id, actor="ana", reason="with the new code")
        await drain(new)
        assert await new.aoutcome(last.run_id) == "by 2"
        released = [row.detail.get("released") for row in await new.aaudit() if row.verb == "retry"]
        assert sorted(map(str, released)) == ["1", "None"]

    async def _listed(app: App) -> bool:
        return bool(await app.aworkers())

    async def _failed(app: App, run: str) -> bool:
        return (await app.aget(run)).status == "failed"

    play(story())


def test_a_build_is_shown_with_its_live_workers_until_they_end(shop: Shop) -> None:
    async def story() -> None:
        old = shop.app("1")
        worker = old.worker()
        working = asyncio.create_task(worker.arun())

        async def is_listed() -> bool:
            return states(old, await old.abuilds()) == {"1": (1, 0, False)}

        await until(is_listed)
        [one] = await old.abuilds()
        assert (one.current, one.drained, one.reason) == (True, False, "current, idle")
        worker.stop()
        await working
        assert await old.abuilds() == []

    play(story())


def test_the_current_build_is_the_one_of_the_newest_worker_that_takes_new_runs(shop: Shop) -> None:
    """An idle build is drained only if another one has taken its place. Then its workers can be stopped."""

    async def story() -> None:
        apps = [shop.app("1"), shop.app("2"), shop.app("1")]
        kept = await apps[0].astart("pay")
        await drain(apps[0])
        workers = [app.worker() for app in apps]
        working = []

        async def reasons() -> dict[str, Any]:
            return {one.build: (one.workers, one.current, one.reason) for one in await apps[0].abuilds()}

        async def start(number: int, expected: dict[str, Any], **options: bool) -> None:
            working.append(asyncio.create_task(workers[number].arun(**options)))

            async def are_listed() -> bool:
                return await reasons() == expected

            await until(are_listed)

        needed = "1 run is kept for it"
        await start(0, {"1": (1, True, f"current; {needed}")})
        await start(1, {"1": (1, False, needed), "2": (1, True, "current, idle")})
        await start(2, {"1": (2, False, needed), "2": (1, True, "current, idle")}, until_drained=True)
        await kept.asignal("go")
        await kept.aresult(timeout=30)
        async with asyncio.timeout(30):
            await working[2]
        assert await reasons() == {"1": (1, False, None), "2": (1, True, "current, idle")}
        workers[1].stop()
        await working[1]
        assert await reasons() == {"1": (1, True, "current, idle")}
        workers[0].stop()
        await working[0]

    play(story())


def test_the_runs_of_a_build_are_counted_exactly(shop: Shop) -> None:
    """Also more than a page, and more than a listing of runs returns."""
    many = 1203

    async def story() -> None:
        old = shop.app("1")
        runs = await old.astart_many("pay", [{} for _ in range(many)])
        await drain(old)
        [one] = await old.abuilds()
        assert (one.build, one.waiting, one.kept, one.oldest) == ("1", many, many, runs[0])
        assert one.reason == f"{many} runs are kept for it, and no worker of it is alive"
        assert (await old.amove_build("1", "2", check=False)).moved == many
        [one, two] = await old.abuilds()
        assert (one.build, one.waiting, one.kept) == ("1", many, 0)
        assert (two.build, two.waiting, two.kept) == ("2", 0, many)

    play(story())


def test_a_pinned_job_and_a_draining_worker_need_a_build(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.build_id.found_build", lambda _: None)

    async def story() -> None:
        app = shop.app(None)
        with pytest.raises(InvalidSetting, match=r"shop\.pay has pin=True: set HOLDFAST_BUILD"):
            await app.worker().arun(until_idle=True)
        with pytest.raises(InvalidSetting, match="until_drained needs a build"):
            await app.worker().arun(until_drained=True)

    play(story())


CODE = """
from holdfast import App, wait_for
app = App("shop")

@app.step
async def price(cents: int) -> int:
    return cents

@app.job(pin=True)
async def pay() -> int:
    cents = await price(CENTS)
    await wait_for("go")
    return cents
"""


def test_the_command_line_lists_moves_and_drains_builds(tmp_path: Path) -> None:
    shell = Shell(tmp_path)

    def deploy(build: str, cents: str = "100") -> None:
        (shell.folder / "shop.py").write_text(CODE.replace("CENTS", cents))
        shell.environment["HOLDFAST_BUILD"] = build

    deploy("1")
    run = shell.run("start", "shop.py", "pay")
    shell.run("worker", "shop.py", "--until-idle")
    [one] = shell.json("builds")
    assert (one["build"], one["kept"], one["oldest"], one["drained"]) == ("1", 1, run, False)
    assert "1 run is kept for it, and no worker of it is alive" in shell.run("builds")
    deploy("2", "105")
    assert "does not fit: it now calls price(cents=105)" in shell.run("builds", "move", "1", "2", "shop.py", code=1)
    assert "is build 2, not 3" in shell.run("builds", "move", "1", "3", "shop.py", code=2)
    assert "name the code" in shell.run("builds", "move", "1", "2", code=2)
    assert "the known builds are: 1" in shell.run("builds", "move", "0.9", "2", "--unchecked", code=3)
    assert "must be another build" in shell.run("builds", "move", "1", "1", "--unchecked", code=2)
    deploy("2")
    assert shell.run("builds", "move", "1", "2", "shop.py") == "moved 1 run to 2"
    shell.run("signal", run, "go")
    assert "not both" in shell.run("worker", "shop.py", "--until-idle", "--until-drained", code=2)
    shell.run("worker", "shop.py", "--until-drained", "--processes", "2")
    assert shell.json("show", run)["status"] == "succeeded"
    assert shell.run("builds") == "no builds"
