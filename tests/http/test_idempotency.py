"""A request with an `Idempotency-Key` is executed once, on every store, and its repeat gets the same answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from holdfast import App, wait_for
from holdfast.client import bulk
from holdfast.http.openapi import document
from holdfast.http.routes import routes
from holdfast.server import token
from holdfast.store.request_keys import Once, request_key
from support.app_fixtures import url as url  # noqa: PLC0414 - a fixture
from support.fuzzing import extended, some_runs
from support.postgres import fresh_url
from support.stories import drain
from support.web import near, shop

SECRETS = {"ana": "a" * 40, "bob": "b" * 40}


@pytest.fixture
def app(url: str) -> Iterator[App]:
    made = shop(url)
    yield made
    made.close()


def keyed(key: str = "k") -> dict[str, str]:
    return {"Idempotency-Key": key}


async def failed(app: App, count: int = 1) -> list[str]:
    runs = await app.astart_many("fail", [{}] * count)
    await drain(app)
    return runs


async def twice(client: httpx.AsyncClient, path: str, body: Any = None, key: str = "k") -> httpx.Response:
    """Send a request twice, and check that the answers are the same."""
    first = await client.post(f"/api/v1{path}", json=body, headers=keyed(key))
    again = await client.post(f"/api/v1{path}", json=body, headers=keyed(key))
    assert first.is_success, first.text
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers.get("location") == first.headers.get("location")
    return first


def test_a_repeat_of_each_verb_about_a_run_does_nothing_and_answers_the_same(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            (run,) = await failed(app)
            made = await twice(client, f"/runs/{run}/retry", {"reason": "again"}, "retry")
            assert made.json()["run_id"] == f"{run}.2"
            await twice(client, f"/runs/{run}/pause", None, "pause")
            await twice(client, f"/runs/{run}/resume", {"actor": "ana"}, "resume")
            await client.post(f"/api/v1/runs/{run}/pause")
            late = await client.post(f"/api/v1/runs/{run}/resume", json={"actor": "ana"}, headers=keyed("resume"))
            assert late.json()["stage"] == "paused", "the second resume is a repeat, and the run is shown as it is now"
            await twice(client, f"/runs/{run}/grant", {"amounts": {"usd": 1}}, "grant")
            await twice(client, f"/runs/{run}/signal", {"key": "a", "payload": 1}, "signal")
            await twice(client, f"/runs/{run}/cancel", {"reason": "enough"}, "cancel")
            await twice(client, "/limits/mail/pause", None, "queue")
            await twice(client, "/limits/mail/resume", None, "queue-2")
            verbs = [row.verb for row in reversed(await app.aaudit())]
            assert verbs == ["retry", "pause", "resume", "pause", "grant", "cancel", "pause_queue", "resume_queue"]

    asyncio.run(story())


def test_a_repeated_filter_acts_on_the_runs_of_the_first_request_alone(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            runs = await failed(app, 5)
            page = (await twice(client, "/runs/retry?entry_id=fail&limit=2", {"reason": "again"}, "retry")).json()
            assert page["run_ids"] == runs[:2:-1]
            assert len(await app.alist(status="queued")) == 2
            gone = (await twice(client, "/runs/purge?status=failed&limit=2", {}, "purge")).json()
            assert gone["run_ids"] == [runs[2], runs[1]]
            dry = [await client.post("/api/v1/runs/purge?status=failed", json={"dry_run": True}) for _ in range(2)]
            assert dry[0].json() == dry[1].json()
            left = await app.alist(newest=True)
            assert [run.run_id for run in left] == [f"{runs[4]}.2", f"{runs[3]}.2", runs[0]]
            await twice(client, "/runs/cancel?status=queued&limit=1", {}, "cancel")
            assert len(await app.alist(status="canceled")) == 1
            await twice(client, "/purge", {"older_than": 0, "limit": 1}, "small")
            assert len(await app.alist(newest=True)) == 2

    asyncio.run(story())


def test_a_filter_that_was_cut_off_in_the_middle_goes_on_with_the_same_runs(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "AT_ONCE", 1)

    async def story() -> None:
        async with near(app) as client:
            runs = await failed(app, 4)
            store, commit = app.store(), app.store().commit
            calls = 0

            async def cut(batch: Any) -> list[Any]:
                nonlocal calls
                calls += isinstance(batch[0], Once)
                if calls == 3:  # the page, the first run, and now the second
                    calls = 10
                    raise asyncio.CancelledError
                return await commit(batch)

            with monkeypatch.context() as patched:
                patched.setattr(store, "commit", cut)
                with pytest.raises(asyncio.CancelledError):
                    await client.post("/api/v1/runs/purge?entry_id=fail&limit=2", json={}, headers=keyed())
            assert len(await app.alist()) == 3, "one is removed"
            again = await client.post("/api/v1/runs/purge?entry_id=fail&limit=2", json={}, headers=keyed())
            assert again.json()["run_ids"] == [runs[3], runs[2]]
            assert [run.run_id for run in await app.alist()] == [runs[1], runs[0]]

    asyncio.run(story())


def test_a_batch_with_a_key_creates_its_runs_once(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = {"plugin_id": "shop", "entry_id": "ask"}
            body = {"runs": [run, run, {**run, "idempotency_key": "own"}]}
            sent = [await client.post("/api/v1/runs/batch", json=body, headers=keyed()) for _ in range(2)]
            first, again = [[item["run"]["run_id"] for item in answer.json()["items"]] for answer in sent]
            assert first == again
            assert len(await app.alist()) == 3
            other = await client.post("/api/v1/runs/batch", json={"runs": [run]}, headers=keyed())
            assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")

    asyncio.run(story())


def test_a_key_of_another_request_is_refused_and_nothing_is_done(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            one, two = await failed(app, 2)
            await client.post(f"/api/v1/runs/{one}/retry", json={"reason": "again"}, headers=keyed())
            for path, body in (
                (f"/runs/{one}/retry", {"reason": "other"}),
                (f"/runs/{two}/retry", {"reason": "again"}),
                (f"/runs/{one}/cancel", None),
                ("/runs/retry?entry_id=fail", {"reason": "again"}),
                ("/limits/mail/pause", None),
            ):
                refused = await client.post(f"/api/v1{path}", json=body, headers=keyed())
                assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused"), path
                assert refused.json()["params"] == {"key": "k"}
            assert (await app.aget(two)).status == "failed"
            assert await app.alimits() == []

    asyncio.run(story())


def test_a_refused_request_may_be_sent_again_with_its_key(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = (await app.astart("fail")).id
            refused = await client.post(f"/api/v1/runs/{run}/retry", json={"reason": "again"}, headers=keyed())
            assert refused.status_code == 409
            await drain(app)
            made = await client.post(f"/api/v1/runs/{run}/retry", json={"reason": "again"}, headers=keyed())
            assert made.status_code == 201

    asyncio.run(story())


def test_a_refused_batch_leaves_no_key(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            for body, status in ({"name": 1}, 422), ({"name": "ana"}, 200):
                run = {"plugin_id": "shop", "entry_id": "greet", "args": body}
                answer = await client.post("/api/v1/runs/batch", json={"runs": [run]}, headers=keyed())
                assert answer.status_code == status, answer.text
            assert len(await app.alist()) == 1

    asyncio.run(story())


def test_an_answer_that_did_not_fit_its_form_leaves_no_key(app: App) -> None:
    class Approval(msgspec.Struct):
        approved: bool

    @app.job
    async def approve() -> bool:
        return (await wait_for("approval", form=Approval)).approved

    async def story() -> None:
        async with near(app) as client:
            run = await app.astart(approve)
            await drain(app)
            wrong = {"key": "approval", "payload": {"approved": "no"}}
            refused = await client.post(f"/api/v1/runs/{run.id}/signal", json=wrong, headers=keyed())
            assert refused.json()["code"] == "invalid_arguments"
            (asked,) = (await client.get("/api/v1/inbox", params={"run_id": run.id})).json()["items"]
            answer = {"key": "approval", "payload": {"approved": True}, "node": asked["node"]}
            given = await twice(client, f"/runs/{run.id}/signal", answer)
            assert given.json() == {"outcome": "delivered"}
            late = await client.post(f"/api/v1/runs/{run.id}/signal", json=answer)
            assert (late.status_code, late.json()["code"]) == (409, "question_closed")
            assert late.json()["params"]["answered_by"] is not None
            await drain(app)
            assert await run.aresult() is True

    asyncio.run(story())


def test_a_signal_is_not_a_repeat_of_another_tokens_signal_with_the_same_key(app: App) -> None:
    async def story() -> None:
        async with near(app, tokens=[token(secret, name=name) for name, secret in SECRETS.items()]) as client:
            run = await app.astart("ask")
            for name, secret in SECRETS.items():
                heads = {**keyed(), "Authorization": f"Bearer {secret}"}
                body = {"key": name, "payload": 1}
                answer = await client.post(f"/api/v1/runs/{run.id}/signal", json=body, headers=heads)
                assert answer.json() == {"outcome": "kept"}, name

    asyncio.run(story())


def test_each_token_has_its_own_keys(app: App) -> None:
    async def story() -> None:
        async with near(app, tokens=[token(secret, name=name) for name, secret in SECRETS.items()]) as client:
            run = (await app.astart("ask")).id
            for name, secret in SECRETS.items():
                heads = {**keyed(), "Authorization": f"Bearer {secret}"}
                answer = await client.post(f"/api/v1/runs/{run}/pause", json={"actor": name}, headers=heads)
                assert answer.status_code == 200, answer.text
            assert request_key.get() is None

    asyncio.run(story())


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_key_at_two_servers_at_the_same_time_is_executed_once(store: str, tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'jobs.db'}" if store == "sqlite" else fresh_url()
    apps = [shop(where), shop(where)]

    async def story() -> None:
        runs = await failed(apps[0], 10)
        async with near(apps[0]) as one, near(apps[1]) as two:
            for run in runs:
                posts = [
                    client.post(f"/api/v1/runs/{run}/retry", json={"reason": "again"}, headers=keyed(run))
                    for client in (one, two, one, two)
                ]
                answers = await asyncio.gather(*posts)
                assert [answer.status_code for answer in answers] == [201] * 4, [answer.text for answer in answers]
                assert {answer.json()["run_id"] for answer in answers} == {f"{run}.2"}
        assert len([row for row in await apps[0].aaudit() if row.verb == "retry"]) == 10

    try:
        asyncio.run(story())
    finally:
        for app in apps:
            app.close()


def test_every_post_documents_the_key() -> None:
    paths = document(routes())["paths"]
    for route in routes():
        names = [one["name"] for one in paths[route.path][route.method.lower()]["parameters"]]
        assert ("Idempotency-Key" in names) is (route.method == "POST"), route.path


def test_an_answer_about_a_call_in_doubt_and_a_fork_are_taken_once(app: App) -> None:
    async def story() -> None:
        runs = await some_runs(extended(app))
        async with near(app) as client:
            answer = {"step": "charge:1", "answer": "done", "result": "paid"}
            await twice(client, f"/runs/{runs['pay']}/resolve", answer, "resolve")
            plain = await client.post(f"/api/v1/runs/{runs['pay']}/resolve", json=answer)
            assert plain.json()["code"] == "not_in_doubt", "without the key it is another request"
            await twice(client, f"/runs/{runs['publish']}/fork", {"from_step": "price"}, "fork")
            assert len(await app.alist(entry_id="publish")) == 2

    asyncio.run(story())
