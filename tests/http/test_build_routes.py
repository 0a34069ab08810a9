"""Builds and marked changes over HTTP: the move of runs, with its check, its key and its scope, and exact counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from holdfast import App, InvalidArguments, changed, wait_for
from holdfast.errors import UnknownBuild
from holdfast.server import asgi, token
from support.app_fixtures import url as url  # noqa: PLC0414 - a fixture
from support.stories import drain, play, quick, until
from support.web import near, serving

SECRET, READER = "s" * 40, "r" * 40
TOKENS = [token(SECRET, name="ana", scope="operate"), token(READER, scope="read")]


def shop(url: str, build: str, cents: int = 100) -> App:
    app = App("shop", config=quick(url), build=build)

    @app.step
    async def price(amount: int) -> int:
        return amount

    @app.job(pin=True)
    async def pay() -> int:
        due = await price(cents)
        changed("over-http")
        await wait_for("go")
        return due

    return app


@pytest.fixture
def old(url: str) -> Iterator[App]:
    app = shop(url, "1")
    yield app
    app.close()


@pytest.fixture
def new(url: str, old: App) -> Iterator[App]:
    app = shop(url, "2")
    if url == "memory:":
        app._opened = old.store()
    yield app
    app.close()


def test_runs_are_moved_once_with_the_name_of_the_token_and_only_with_its_scope(old: App, new: App) -> None:
    async def story() -> None:
        runs = await old.astart_many("pay", [{}] * 3)
        await drain(old)
        body = {"old": "1", "new": "2"}
        async with near(new, tokens=TOKENS) as client:
            client.headers["Authorization"] = f"Bearer {READER}"
            assert (await client.post("/api/v1/builds/move", json=body)).status_code == 403
            client.headers["Authorization"] = f"Bearer {SECRET}"
            key = {"Idempotency-Key": "move-1"}
            first = await client.post("/api/v1/builds/move", json=body, headers=key)
            assert (first.status_code, first.json()["entry_id"]) == (202, "move")
            run = first.json()["run_id"]

            async def has_ended() -> bool:
                return bool((await client.get(f"/api/v1/runs/{run}")).json()["status"] == "succeeded")

            await until(has_ended)
            result = (await client.get(f"/api/v1/runs/{run}/result")).json()["result"]
            assert result == {"moved": 3, "misfits": []}
            again = await client.post("/api/v1/builds/move", json=body, headers=key)
            assert (again.status_code, again.json()["run_id"]) == (202, run), "its repeat, though nothing is left"
        assert {(row.actor, row.subject) for row in await new.aaudit() if row.verb == "move"} == {
            ("token:ana", job) for job in runs
        }
        assert [(one.build, one.kept) for one in await new.abuilds() if one.kept] == [("2", 3)]
        assert await new.averify() == {}

    play(story())


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_server_checks_with_its_own_code_and_moves_none_if_one_does_not_fit(url: str, old: App) -> None:
    run = old.start("pay")
    old.worker().run(until_idle=True)
    other = shop(url, "3", cents=105)
    with serving(asgi(other)) as address, holdfast.connect(address) as remote:
        with pytest.raises(UnknownBuild, match="the known builds are: 1") as refused:
            remote.move_build("0.9", "3")
        assert refused.value.known == ["1"]
        with pytest.raises(InvalidArguments, match="the code that would check the runs is build 3, not 2"):
            remote.move_build("1", "2")
        with pytest.raises(InvalidArguments, match="must be another build"):
            remote.move_build("1", "1")
        moved = remote.move_build("1", "3")
        assert (moved.moved, [one.run_id for one in moved.misfits]) == (0, [run.id])
        assert "price(amount=105)" in moved.misfits[0].reasons[0]
        assert (moved.misfits[0].line or "").rpartition(":")[0] == __file__
        assert [(one.build, one.kept) for one in old.builds()] == [("1", 1)]
        assert remote.move_build("1", "2", check=False, actor="bob").moved == 1
    assert [(one.build, one.kept) for one in old.builds() if one.kept] == [("2", 1)]
    assert {row.actor for row in old.audit() if row.verb == "move"} == {"bob"}
    other.close()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_remote_client_counts_all_runs_of_a_change_in_pages(old: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.http.handlers.overview.CHANGED_MAX", 2)
    runs = old.start_many("pay", [{}] * 5)
    old.worker().run(until_idle=True)
    with serving(asgi(old)) as address, holdfast.connect(address) as remote:
        listed = remote.changes()
        [change] = [one for one in listed.changes if one.mark == "over-http"]
        assert (listed.runs, listed.complete, listed.next) == (5, True, None)
        assert (change.old, change.new, change.unknown, change.removable) == (0, 5, 0, True)
        part = remote.changes(limit=3)
        [change] = [one for one in part.changes if one.mark == "over-http"]
        assert (part.runs, part.complete, part.next) == (3, False, sorted(runs)[2])
        assert (change.new, change.removable) == (3, False)
        assert remote.changes(before=part.next).runs == 2
        with pytest.raises(InvalidArguments, match="cursor"):
            remote.changes(before="../x")
