"""Verify and purge of a whole store are runs of built-in jobs, which the server executes, on every store."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import App, connect
from holdfast.client import builtin_jobs
from holdfast.client.run_handle import RunHandle
from holdfast.errors import InvalidSetting, RunCanceled, StoreUnavailable
from holdfast.http.maintenance import Maintenance
from holdfast.machines import RunRecord
from holdfast.server import asgi, token
from support.app_fixtures import url as url  # noqa: PLC0414 - a fixture
from support.postgres import fresh_url
from support.stories import drain, quick, until
from support.web import jobs, near, served, serving, shop, wait_until

ACME, GLOBEX, ALL = ("a" * 40, "g" * 40, "o" * 40)
TOKENS = [
    token(ACME, name="acme", group="acme"),
    token(GLOBEX, name="globex", group="globex"),
    token(ALL, name="all"),
]


@pytest.fixture
def app(url: str) -> Iterator[App]:
    made = shop(url)
    yield made
    made.close()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a step take three jobs at most."""
    monkeypatch.setattr(builtin_jobs, "CHECK_JOBS", 3)
    monkeypatch.setattr(builtin_jobs, "PAGE", 2)
    monkeypatch.setattr(builtin_jobs, "BATCH", 3)


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def ended(client: httpx.AsyncClient, run: str, **options: Any) -> dict[str, Any]:
    """Wait for the end of a run, and return its result."""
    while True:
        answer = await client.get(f"/api/v1/runs/{run}/result?wait=60", **options)
        if answer.status_code != 202:
            assert answer.status_code == 200, answer.text
            return dict(answer.json())


async def accepted(client: httpx.AsyncClient, path: str, body: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Start a built-in run, and return its record."""
    answer = await client.post(f"/api/v1{path}", json=body, **options)
    assert answer.status_code == 202, answer.text
    record = dict(answer.json())
    assert answer.headers["location"] == f"/api/v1/runs/{record['run_id']}"
    return record


@pytest.mark.usefixtures("small_parts")
def test_a_verify_of_everything_is_a_run_with_steps_progress_and_a_report(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            await app.astart_many("greet", [{"name": str(number)} for number in range(7)])
            await drain(app)
            run = await accepted(client, "/verify", {})
            assert (run["plugin_id"], run["entry_id"]) == ("holdfast", "verify")
            report = await ended(client, run["run_id"])
            assert report["result"] == {"checked": 8, "damaged": 0, "wrong": {}}, "its own history is checked too"
            record = (await client.get(f"/api/v1/runs/{run['run_id']}")).json()
            assert (record["progress"], record["step"], record["step_total"]) == (1.0, 8, 8)
            events = await app.aevents(run["run_id"])
            checks = [event for event in events if event.type == "node_finished"]
            assert len(checks) == 1 + 3, "a count, then three jobs or fewer with each step"
            assert [entry["plugin_id"] for entry in (await client.get("/api/v1/entries")).json()["items"]] == [
                "shop"
            ] * 3
            assert await app.averify(run["run_id"]) == {}

    asyncio.run(story())


@pytest.mark.usefixtures("small_parts")
def test_a_purge_of_everything_is_a_run_that_removes_in_batches(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            await app.astart_many("greet", [{"name": str(number)} for number in range(7)])
            await drain(app)
            kept = await accepted(client, "/purge", {"older_than": "1h"})
            assert (await ended(client, kept["run_id"]))["result"] == {"removed": 0}
            some = await accepted(client, "/purge", {"older_than": 0, "limit": 5000, "statuses": ["failed"]})
            assert (await ended(client, some["run_id"]))["result"] == {"removed": 0}
            everything = await accepted(client, "/purge", {"older_than": 0})
            assert (await ended(client, everything["run_id"]))["result"] == {"removed": 9}
            left = (await client.get("/api/v1/runs")).json()["items"]
            assert [record["run_id"] for record in left] == [everything["run_id"]]
            rows = [row for row in await app.aaudit() if row.verb == "purge"]
            assert [(row.actor, row.detail["removed"]) for row in rows] == [("http", 3)] * 3

    asyncio.run(story())


@pytest.mark.usefixtures("small_parts")
def test_a_purge_that_was_cut_off_after_a_batch_removes_no_more_than_its_limit(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = builtin_jobs.BuiltinJobs.remove
    cut: list[int] = []

    async def removed(self: builtin_jobs.BuiltinJobs, command: Any) -> int:
        count = await remove(self, command)
        if not cut:  # the jobs are gone, and the step does not know it
            cut.append(count)
            raise StoreUnavailable("the connection was lost")
        return count

    monkeypatch.setattr(builtin_jobs.BuiltinJobs, "remove", removed)
    monkeypatch.setattr("holdfast.http.handlers.operations.BATCH", 3)

    async def story() -> None:
        async with near(app) as client:
            await app.astart_many("greet", [{"name": str(number)} for number in range(7)])
            await drain(app)
            run = await accepted(client, "/purge", {"older_than": 0, "limit": 4})
            assert (await ended(client, run["run_id"]))["result"] == {"removed": 4}
            assert len(await app.alist(entry_id="greet")) == 3
            assert cut == [3]

    asyncio.run(story())


def test_a_damaged_history_is_in_the_report(tmp_path: Path) -> None:
    app = shop(f"sqlite:///{tmp_path / 'jobs.db'}")
    run = app.start("greet", "ada").id
    app.worker().run(until_idle=True)
    app.close()
    with sqlite3.connect(tmp_path / "jobs.db") as database:
        database.execute("""UPDATE events SET payload = '{"result":"no"}' WHERE type = 'job_completed'""")
    database.close()
    with serving(asgi(app)) as server, connect(server) as client:
        seen: list[RunRecord] = []
        wrong = client.verify(on_progress=seen.append)  # type: ignore[call-arg]  # - of a remote client alone
        assert list(wrong) == [run]
        assert "breaks P8" in wrong[run][0]
        assert seen[-1].status == "succeeded"
        assert seen[-1].message == "2 histories checked, 1 damaged"
    app.close()


def test_a_token_of_a_group_verifies_and_purges_its_own_runs_and_sees_no_others(app: App) -> None:
    async def story() -> None:
        async with near(app, tokens=TOKENS) as client:
            for group in ("acme", "acme", "globex"):
                await app.entry("greet").options(group=group).astart("ada")
            await app.entry("ask").options(group="acme").astart()
            await drain(app)
            run = await accepted(client, "/verify", {}, headers=bearer(ACME))
            assert (await ended(client, run["run_id"], headers=bearer(ACME)))["result"]["checked"] == 4
            path = f"/api/v1/runs/{run['run_id']}"
            assert (await client.get(path, headers=bearer(GLOBEX))).status_code == 404
            assert (await client.post(f"{path}/cancel", headers=bearer(GLOBEX))).status_code == 404
            for limit in (2, None):
                purge = await accepted(client, "/purge", {"older_than": 0, "limit": limit}, headers=bearer(ACME))
                assert (await ended(client, purge["run_id"], headers=bearer(ACME)))["result"] == {"removed": 2}
            left = await app.alist(group="acme")
            assert [record.entry_id for record in left] == ["purge", "ask"], "the open run and the purge itself"
            assert [record.entry_id for record in await app.alist(group="globex")] == ["greet"]

    asyncio.run(story())


def test_a_key_starts_one_run_and_is_of_one_group(app: App) -> None:
    async def story() -> None:
        async with near(app, tokens=TOKENS) as client:
            key = {"Idempotency-Key": "night"}
            first = await accepted(client, "/verify", {}, headers={**bearer(ACME), **key})
            again = await accepted(client, "/verify", {}, headers={**bearer(ACME), **key})
            assert first["run_id"] == again["run_id"]
            other = await client.post("/api/v1/verify", json={}, headers={**bearer(GLOBEX), **key})
            assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
            assert first["run_id"] not in other.text

    asyncio.run(story())


class Held:
    """Steps of a verify that wait, so that a test can look at a run in the middle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.turns, self.go = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
        check = builtin_jobs._check

        async def held(*args: Any) -> dict[str, Any]:
            part = await check(*args)
            self.reached.release()
            await asyncio.get_running_loop().run_in_executor(None, self.turn)
            return part

        monkeypatch.setattr(builtin_jobs, "_check", held)

    def turn(self) -> None:
        """Wait until this step, or every step, may go on."""
        while not self.go.is_set() and not self.turns.acquire(timeout=0.01):
            pass

    async def wait(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.reached.acquire)


def test_a_verify_is_canceled_like_any_run_and_the_server_answers_meanwhile(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)

    async def story() -> None:
        async with near(app) as client:
            await app.astart("greet", "ada")
            run = (await accepted(client, "/verify", {}))["run_id"]
            await held.wait()
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get(f"/api/v1/runs/{run}")).json()["status"] == "running"
            answer = await client.post(f"/api/v1/runs/{run}/cancel", json={"reason": "later"})
            assert answer.json()["cancel_reason"] == "later"  # its status is canceled already if the worker is faster
            assert (await ended(client, run))["status"] == "canceled"

    try:
        asyncio.run(story())
    finally:
        held.go.set()


def test_two_built_in_runs_work_at_the_same_time(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)

    async def story() -> None:
        async with near(app) as client:
            await app.astart("greet", "ada")
            await drain(app)
            verifies = (await accepted(client, "/verify", {}))["run_id"]
            await held.wait()
            purges = (await accepted(client, "/purge", {"older_than": 0}))["run_id"]
            assert (await ended(client, purges))["result"] == {"removed": 1}, "it does not wait for the other one"
            held.go.set()
            assert (await ended(client, verifies))["result"]["wrong"] == {}

    try:
        asyncio.run(story())
    finally:
        held.go.set()


def test_a_paused_run_keeps_no_thread_and_goes_on_when_it_is_resumed(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin_jobs, "CHECK_JOBS", 1)
    held = Held(monkeypatch)

    async def story() -> None:
        async with near(app) as client:
            await app.astart_many("greet", [{"name": str(number)} for number in range(60)])
            run = (await accepted(client, "/verify", {}))["run_id"]
            await held.wait()
            await client.post(f"/api/v1/runs/{run}/pause")
            held.turns.release()

            async def is_parked() -> bool:
                if held.reached.acquire(blocking=False):  # one more step has begun before the worker saw the request
                    held.turns.release()
                return (await app.aget(run)).stage == "parked"

            await until(is_parked)
            service: Any = client._transport.app  # type: ignore[attr-defined]  # - of httpx's ASGI transport
            await asyncio.get_running_loop().run_in_executor(None, service.maintenance.join)
            held.go.set()
            await client.post(f"/api/v1/runs/{run}/resume")
            assert (await ended(client, run))["result"]["checked"] == 61

    try:
        asyncio.run(story())
    finally:
        held.go.set()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_verify_goes_on_where_it_was_after_its_server_was_killed(store: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if store == "sqlite" else fresh_url()
    target = tmp_path / "shop.py"
    target.write_text(
        "import asyncio, os\n"
        "from pathlib import Path\n"
        "from holdfast import App\n"
        "from holdfast.client import builtin_jobs\n"
        "from support.web import jobs\n"
        "app = jobs(App('shop'))\n"
        "builtin_jobs.CHECK_JOBS = 2\n"
        "check, hold = builtin_jobs._check, os.environ['HOLD']\n"
        "async def held(store, before, group):\n"
        "    part = await check(store, before, group)\n"
        "    with open(os.environ['LEDGER'], 'a') as ledger:\n"
        "        ledger.write(f'{before}\\n')\n"
        "    while len(Path(os.environ['LEDGER']).read_text().splitlines()) == 2 and hold:\n"
        "        await asyncio.sleep(0.01)\n"
        "    return part\n"
        "builtin_jobs._check = held\n"
    )
    ledger = tmp_path / "ledger"
    ledger.touch()
    paths = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[1])]
    environment = {"LEDGER": str(ledger), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    app = jobs(App("shop", config=quick(url)))
    app.start_many("greet", [{"name": str(number)} for number in range(5)])
    with served(target, url, HOLD="yes", **environment) as first:
        record = httpx.post(f"{first.url}/api/v1/verify", json={}).json()
        wait_until(lambda: len(ledger.read_text().splitlines()) == 2, first.process)
        wait_until(lambda: len(finished(app, record["run_id"])) == 2, first.process)  # the count, and the first part
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    with served(target, url, HOLD="", **environment):
        result = RunHandle(app, record["run_id"]).result(60)
    assert result == {"checked": 6, "damaged": 0, "wrong": {}}
    starts = ledger.read_text().splitlines()
    assert starts[:3] == ["None", starts[1], starts[1]], "only the step that was cut off runs again"
    assert len(starts) == 5
    assert app.verify() == {}
    app.close()


def finished(app: App, run: str) -> list[str]:
    """The steps of a run whose results are on disk."""
    return [str(event.payload["node"]) for event in app.events(run) if event.type == "node_finished"]


def test_the_name_of_built_in_jobs_is_reserved_and_no_client_starts_them_by_name(app: App) -> None:
    with pytest.raises(InvalidSetting, match="give the app another one"):
        App("holdfast", "memory:")

    async def story() -> None:
        async with near(app) as client:
            body = {"plugin_id": "holdfast", "entry_id": "purge", "args": {}}
            refused = await client.post("/api/v1/runs", json=body)
            assert (refused.status_code, refused.json()["code"]) == (404, "unknown_entry")

    asyncio.run(story())


def test_a_built_in_run_is_not_forked_because_that_would_need_less_than_its_own_scope(app: App) -> None:
    tokens = [token(ALL, name="all"), token(ACME, name="ci", scope="submit")]

    async def story() -> None:
        async with near(app, tokens=tokens) as client:
            body = {"older_than": 0, "limit": 5000}
            run = (await accepted(client, "/purge", body, headers=bearer(ALL)))["run_id"]
            await ended(client, run, headers=bearer(ALL))
            fork = {"from_step": "ended_before"}
            refused = await client.post(f"/api/v1/runs/{run}/fork", json=fork, headers=bearer(ACME))
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_arguments")
            assert "a run of holdfast.purge cannot be forked" in refused.json()["detail"]
            assert [record.run_id for record in await app.alist()] == [run]

    asyncio.run(story())


def test_a_canceled_verify_raises_in_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    app = shop(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.start("greet", "ada")
    try:
        with serving(asgi(app)) as server, connect(server) as client:

            def cancel(record: Any) -> None:
                if record.status == "running":
                    app.cancel(record.run_id)

            try:
                with pytest.raises(RunCanceled):
                    client.verify(on_progress=cancel)  # type: ignore[call-arg]  # - of a remote client alone
            finally:
                held.go.set()  # before the server ends: it waits for a step that has begun
    finally:
        app.close()


def test_a_small_purge_is_answered_at_once(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            await app.astart_many("greet", [{"name": str(number)} for number in range(3)])
            await drain(app)
            answer = await client.post("/api/v1/purge", json={"older_than": 0, "limit": 2})
            assert (answer.status_code, answer.json()) == (200, {"removed": 2})

    asyncio.run(story())


def test_a_built_in_run_that_waits_names_the_server_and_not_a_worker(app: App) -> None:
    run = asyncio.run(Maintenance(app).jobs.start_verify(None, None, None)).record.run_id
    assert "start one with `holdfast serve`" in app.explain(run).explanation


def test_paused_runs_do_not_hide_an_older_one_that_needs_the_server(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin_jobs, "OPEN_PAGE", 2)

    async def story() -> None:
        builtin = builtin_jobs.BuiltinJobs(app)
        first, *later = [(await builtin.start_verify(group, None, None)).record.run_id for group in [None] + ["a"] * 5]
        for run in later:
            await app.apause(run)
        assert await builtin.need_worker()
        await app.apause(first)
        assert not await builtin.need_worker()
        await app.aresume(later[0])
        assert await builtin.need_worker()

    asyncio.run(story())


def test_a_server_that_has_nothing_to_do_has_no_thread(app: App) -> None:
    maintenance = Maintenance(app)

    async def story() -> None:
        app.store()
        maintenance.look()
        assert maintenance._looking is not None
        await maintenance._looking

    asyncio.run(story())
    assert maintenance._thread is None
