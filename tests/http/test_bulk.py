"""Many runs in one request: batches, and operations on all runs that match a filter, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import App, InvalidArguments
from holdfast.server import token
from holdfast.store import Limits
from support.postgres import fresh_url
from support.stories import drain, play
from support.web import near, shop

SECRET = "s" * 40


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path / 'jobs.db'}"}
    made = shop(fresh_url() if request.param == "postgres" else urls[request.param])
    yield made
    made.close()


def creation(entry: str = "ask", **more: Any) -> dict[str, Any]:
    return {"plugin_id": "shop", "entry_id": entry, **more}


async def batch(client: httpx.AsyncClient, *runs: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await client.post("/api/v1/runs/batch", json={"runs": list(runs)})
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def test_a_batch_reports_the_outcome_of_each_run(app: App) -> None:
    async def story() -> None:
        await app.aset_limits(Limits(queue="small", depth=1))
        async with near(app) as client:
            items = await batch(
                client,
                creation(idempotency_key="k", args={"question": "a"}),
                creation(idempotency_key="k", args={"question": "a"}),
                creation(idempotency_key="k", args={"question": "b"}),
                creation(queue="small"),
                creation(queue="small"),
            )
            assert [item["status"] for item in items] == [201, 200, 409, 201, 429]
            assert items[0]["run"]["run_id"] == items[1]["run"]["run_id"]
            assert items[2]["problem"]["code"] == "idempotency_conflict"
            assert items[4]["problem"]["params"]["queue"] == "small"
            assert {run.run_id for run in await app.alist()} == {items[0]["run"]["run_id"], items[3]["run"]["run_id"]}

    play(story())


def test_one_invalid_run_stops_the_whole_batch(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            wrong = [creation("gone"), creation("greet"), creation(priority=2**40)]
            for each, status in zip(wrong, (404, 422, 422), strict=True):
                refused = await client.post("/api/v1/runs/batch", json={"runs": [creation(), each]})
                assert refused.status_code == status, refused.text
            empty = await client.post("/api/v1/runs/batch", json={"runs": []})
            assert empty.status_code == 422
            assert await app.alist() == []

    play(story())


def test_a_filter_cancels_its_runs_page_by_page(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            await batch(client, *(creation(attributes={"batch": "x"}) for _ in range(5)), creation())
            path = "/api/v1/runs/cancel?attr.batch=x&limit=2"
            dry = (await client.post(path, json={"dry_run": True})).json()
            assert (len(dry["run_ids"]), dry["dry_run"]) == (2, True)
            assert [run.status for run in await app.alist()] == ["queued"] * 6, "a dry run changes nothing"
            canceled: list[str] = []
            page: dict[str, Any] = {"next": ""}
            while page["next"] is not None:
                cursor = f"&cursor={page['next']}" if page["next"] else ""
                page = (await client.post(path + cursor, json={"reason": "enough"})).json()
                assert (page["refused"], page["dry_run"]) == ([], False)
                canceled += page["run_ids"]
            assert len(set(canceled)) == 5
            assert {run.run_id for run in await app.alist(status="canceled")} == set(canceled)

    play(story())


def test_a_filter_retries_the_newest_failed_run_of_each_job_once(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            made = await batch(client, creation("fail"), creation("fail"), creation("greet", args={"name": "Ada"}))
            await drain(app)
            twice = made[0]["run"]["run_id"]
            await app.aretry(twice, actor="ana", reason="again")
            await drain(app)  # it has failed twice now: its first run is past
            answer = await client.post("/api/v1/runs/retry?entry_id=fail", json={"reason": "the bank is back"})
            assert answer.status_code == 200, answer.text
            assert set(answer.json()["run_ids"]) == {f"{twice}.2", made[1]["run"]["run_id"]}
            assert len(await app.alist(status="queued")) == 2

    play(story())


def test_a_filter_signals_its_runs(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            made = await batch(client, creation(attributes={"n": 1}), creation(attributes={"n": 2}))
            await drain(app)
            body = {"key": "answer", "payload": 7, "id": "once"}
            for _ in range(2):
                sent = await client.post("/api/v1/runs/signal?attr.n=1", json=body)
                assert sent.json()["run_ids"] == [made[0]["run"]["run_id"]]
            await drain(app)
            assert [run.status for run in await app.alist()] == ["running", "succeeded"]

    play(story())


def test_a_filter_removes_ended_runs_with_their_jobs_and_a_dry_run_none(app: App) -> None:
    @app.job
    async def parent() -> None:
        greet = app.entry("greet")
        await greet("a child")
        raise ValueError("too late")

    async def story() -> None:
        async with near(app) as client:
            greets = [creation("greet", args={"name": "Ada"})] * 3
            await batch(client, *greets, creation("fail"), creation())
            await app.astart("parent")
            await drain(app)
            before = {run.run_id for run in await app.alist()}
            path = "/api/v1/runs/purge?entry_id=greet"
            dry = (await client.post(path, json={"dry_run": True})).json()
            assert (len(dry["run_ids"]), dry["dry_run"]) == (4, True)
            assert {run.run_id for run in await app.alist()} == before, "a dry run removes nothing"
            page = (await client.post(f"{path}&limit=3", json={"actor": "ana"})).json()
            last = (await client.post(f"{path}&limit=3&cursor={page['next']}")).json()
            (refused,) = page["refused"] + last["refused"]
            assert refused["code"] == "invalid_transition"
            assert "its parent or its chain still needs it" in refused["detail"]
            gone = page["run_ids"] + last["run_ids"]
            assert set(dry["run_ids"]) == {*gone, refused["run_id"]}
            assert {run.run_id for run in await app.alist()} == before - set(gone)
            open_ones = await client.post("/api/v1/runs/purge?status=running")
            assert (open_ones.status_code, open_ones.json()["code"]) == (422, "invalid_arguments")
            rows = [row for row in await app.aaudit() if row.verb == "purge"]
            assert sorted(name for row in rows for name in row.detail["runs"]) == sorted(dry["run_ids"])
            assert {row.actor for row in rows} == {"ana", "http"}
        assert await app.averify() == {}

    play(story())


@pytest.mark.parametrize(
    ("query", "reason"),
    [("", "name at least one filter"), ("?status=succeeded", "cannot match"), ("?status=running&limit=1001", "limit")],
)
def test_a_filter_that_cannot_be_meant_is_refused(app: App, query: str, reason: str) -> None:
    async def story() -> None:
        async with near(app) as client:
            await batch(client, creation())
            refused = await client.post(f"/api/v1/runs/cancel{query}", json={})
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_arguments")
            assert reason in refused.json()["detail"]
            assert [run.status for run in await app.alist()] == ["queued"]

    play(story())


@pytest.mark.parametrize("where", [{"newest": True}, {"oldest_first": True}, {"newest": True, "oldest_first": True}])
def test_an_order_is_no_filter_and_touches_no_run(app: App, where: dict[str, Any]) -> None:
    app.start("ask")
    for verb in (app.cancel_runs, app.purge_runs):
        with pytest.raises(InvalidArguments, match="name at least one filter"):
            verb(**where)
    assert [run.status for run in app.list()] == ["queued"]


def test_a_token_of_a_group_reaches_its_own_runs_only(app: App) -> None:
    async def story() -> None:
        tokens = [token(SECRET, scope="operate", group="acme")]
        async with near(app) as free:
            await batch(free, creation(group="acme"), creation(group="other", idempotency_key="k"), creation())
        async with near(app, tokens=tokens) as client:
            client.headers["Authorization"] = f"Bearer {SECRET}"
            for query in ("", "?top=no", "?limit=5"):
                unmeant = await client.post(f"/api/v1/runs/cancel{query}", json={})
                assert unmeant.status_code == 422, "the group of the token is not a filter that the client chose"
            canceled = (await client.post("/api/v1/runs/cancel?entry_id=ask", json={})).json()["run_ids"]
            assert len(canceled) == 1
            (item,) = await batch(client, creation(idempotency_key="k"))
            assert (item["status"], item["problem"]["params"]["job"]) == (409, ""), "the other group's run is hidden"
            refused = await client.post("/api/v1/runs/batch", json={"runs": [creation(group="other")]})
            assert refused.status_code == 403
        assert len(await app.alist(status="queued")) == 2

    play(story())


def test_runs_are_listed_by_their_end_and_in_both_orders(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            made = [item["run"]["run_id"] for item in await batch(client, creation("fail"), creation("fail"))]
            await drain(app)
            await app.aretry(made[0], actor="ana", reason="again")
            pages: list[str] = []
            cursor: dict[str, str] = {}
            while True:
                page = (await client.get("/api/v1/runs", params={"order": "oldest", "limit": 1, **cursor})).json()
                pages += [run["run_id"] for run in page["items"]]
                if page["next"] is None:
                    break
                cursor = {"cursor": page["next"]}
            assert pages == [made[0], f"{made[0]}.2", made[1]]
            for wrong in ("x", made[0], "~", "~" + "a" * 256):
                refused = await client.get("/api/v1/runs", params={"cursor": wrong})
                assert refused.status_code == 422, wrong

    play(story())
