"""Every route, on both databases: what is asked for happens, and is answered as the contract says."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from holdfast import App, Limits, export, wait_for
from holdfast.client.overview.questions import Question
from holdfast.client.overview.story import StoryEvent
from holdfast.http.handlers import reads
from holdfast.machines import JOB, READY, RUN, RunRecord
from holdfast.store import Evidence, KeepEvidence
from holdfast.store.memory import MemoryStore
from holdfast.store.run_queries import Window, WindowCounts
from support.postgres import fresh_url
from support.stories import drain, play
from support.web import near, shop, small_shop

GREET = {"plugin_id": "shop", "entry_id": "greet", "args": {"name": "Ada"}}
NOBODY = "01890000-0000-7000-8000-000000000000"


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    made = shop(fresh_url() if request.param == "postgres" else f"sqlite:///{tmp_path / 'jobs.db'}")
    yield made
    made.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[App]:
    with small_shop(tmp_path) as made:
        yield made


async def create(client: httpx.AsyncClient, entry: str = "greet", **more: Any) -> dict[str, Any]:
    args = {"name": "Ada"} if entry == "greet" else {}
    made = await client.post("/api/v1/runs", json={"plugin_id": "shop", "entry_id": entry, "args": args, **more})
    assert made.status_code == 201, made.text
    record: dict[str, Any] = made.json()
    return record


def test_a_run_is_created_read_and_ends(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            made = await client.post("/api/v1/runs", json=GREET)
            assert made.status_code == 201
            run = made.json()
            assert made.headers["location"] == f"/api/v1/runs/{run['run_id']}"
            assert msgspec.convert(run, RunRecord) == await app.aget(run["run_id"]), "what is told is what is kept"
            pending = await client.get(f"/api/v1/runs/{run['run_id']}/result")
            assert (pending.status_code, pending.json()["result"]) == (202, None)
            await drain(app)
            read = (await client.get(made.headers["location"])).json()
            assert (read["status"], read["progress"]) == ("succeeded", 1.0)
            result = await client.get(f"/api/v1/runs/{run['run_id']}/result")
            assert (result.status_code, result.json()) == (
                200,
                {"run_id": run["run_id"], "status": "succeeded", "result": "hello Ada"},
            )
            explained = (await client.get(f"/api/v1/runs/{run['run_id']}/explain")).json()
            assert explained["explanation"] == "It has ended: completed."

    play(story())


def test_a_key_gives_the_same_run_with_200_and_other_arguments_409(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            first = await client.post("/api/v1/runs", json={**GREET, "idempotency_key": "k"})
            again = await client.post("/api/v1/runs", json={**GREET, "idempotency_key": "k"})
            assert (first.status_code, again.status_code) == (201, 200)
            assert first.json()["run_id"] == again.json()["run_id"]
            other = {**GREET, "args": {"name": "Bob"}, "idempotency_key": "k"}
            refused = await client.post("/api/v1/runs", json=other)
            assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_conflict")

    play(story())


def test_a_refused_transition_is_409_with_machine_current_and_target(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = (await create(client))["run_id"]
            refused = await client.post(f"/api/v1/runs/{run}/retry", json={"reason": "again"})
            assert refused.status_code == 409
            assert refused.headers["content-type"] == "application/problem+json"
            said = refused.json()
            assert (said["code"], said["machine"], said["current"]) == ("invalid_transition", "Job", "queued")
            assert said["target"]
            assert said["hint"]

    play(story())


def test_a_run_is_paused_resumed_cancelled_and_a_failed_one_retried(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = (await create(client))["run_id"]
            paused = await client.post(f"/api/v1/runs/{run}/pause")
            assert (paused.status_code, paused.json()["stage"]) == (200, "paused")
            assert (await client.post(f"/api/v1/runs/{run}/resume", json={"actor": "ana"})).json()["stage"] == "queued"
            ended = (await client.post(f"/api/v1/runs/{run}/cancel", json={"reason": "enough"})).json()
            assert (ended["status"], ended["cancel_reason"]) == ("canceled", "enough")
            failed = (await create(client, "fail"))["run_id"]
            await drain(app)
            again = await client.post(f"/api/v1/runs/{failed}/retry", json={"reason": "mended"})
            assert (again.status_code, again.json()["run_id"]) == (201, f"{failed}.2")
            assert again.headers["location"] == f"/api/v1/runs/{failed}.2"
            events = (await client.get(f"/api/v1/runs/{failed}/events")).json()["items"]
            assert events[-1]["payload"]["actor"] == "http", "who has done it is recorded"
            assert (await client.get(f"/api/v1/runs/{failed}.3")).status_code == 404

    play(story())


def test_the_story_of_a_run_is_told_page_by_page(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = (await create(client))["run_id"]
            await drain(app)
            told = (await client.get(f"/api/v1/runs/{run}/story")).json()
            assert told["next"] is None
            assert msgspec.convert(told["items"], list[StoryEvent]) == await app.astory(run)
            paged: list[Any] = []
            cursor: str | None = "0"
            while cursor is not None:
                page = (await client.get(f"/api/v1/runs/{run}/story", params={"cursor": cursor, "limit": 2})).json()
                assert len(page["items"]) <= 2
                paged, cursor = paged + page["items"], page["next"]
            assert paged == told["items"]
            end = await client.get(f"/api/v1/runs/{run}/story", params={"cursor": paged[-1]["seq"]})
            assert end.json() == {"items": [], "next": None}
            assert (await client.get(f"/api/v1/runs/{run}/story?limit=2001")).status_code == 422
            assert (await client.get(f"/api/v1/runs/{NOBODY}/story")).status_code == 404

    play(story())


def test_the_plan_of_a_run_is_a_graph_whose_calls_are_those_of_the_story(app: App) -> None:
    @app.step
    async def double(n: int) -> int:
        return 2 * n

    nodes = [
        {"id": "a", "kind": "call", "call": "double", "args": {"n": 1}},
        {"id": "m", "kind": "map", "call": "double", "over": [1, 2], "args": {"n": {"$ref": "item"}}},
        {"id": "b", "kind": "call", "call": "double", "args": {"n": {"$ref": "a"}}, "after": ["m"]},
    ]
    app.plan("graph", {"nodes": nodes})

    async def story() -> None:
        async with near(app) as client:
            run = await app.astart("graph")
            await drain(app)
            plan = (await client.get(f"/api/v1/runs/{run.id}/plan")).json()
            assert [(node["id"], node["kind"], sorted(node["needs"])) for node in plan["nodes"]] == [
                ("a", "call", []), ("m", "map", []), ("b", "call", ["a", "m"]),
            ]  # fmt: skip
            calls = {name for item in await app.astory(run.id) for name in item.changes.get("calls", {})}
            assert {node["call"] for node in plan["nodes"]} == {"double:a", "double:m", "double:b"}
            assert calls == {"double:a", "double:b", "double:m[0]", "double:m[1]"}
            other = (await create(client))["run_id"]
            missing = await client.get(f"/api/v1/runs/{other}/plan")
            assert (missing.status_code, missing.json()["code"]) == (404, "no_plan")
            assert await app.arun_plan(other) is None
            gone = await client.get(f"/api/v1/runs/{NOBODY}/plan")
            assert (gone.status_code, gone.json()["code"]) == (404, "unknown_job")

    play(story())


def test_the_series_of_the_last_minutes_is_what_the_app_counts(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            await create(client)
            await drain(app)
            read = (await client.get("/api/v1/series?minutes=3&queue=default")).json()
            assert (sum(read["starts"]), sum(read["ends"]), len(read["depth"]), read["complete"]) == (1, 1, 3, True)
            assert read["from"] < read["now"]
            assert (await client.get("/api/v1/series?minutes=0")).status_code == 422

    play(story())


def test_runs_that_match_a_filter_are_counted_in_bounded_parts(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with near(app) as client:
            for number in range(5):
                await create(client, attributes={"size": number % 2})
            await drain(app)
            assert (await client.get("/api/v1/counts?attr.size=0")).json() == {"runs": {"succeeded": 3}, "next": None}
            assert (await client.get("/api/v1/counts?attr.size=2&newest=yes")).json() == {"runs": {}, "next": None}
            monkeypatch.setattr("holdfast.client.app.COUNTED_MAX", 2)
            first = (await client.get("/api/v1/counts?status=succeeded")).json()
            assert first["runs"] == {"succeeded": 2}
            second = (await client.get(f"/api/v1/counts?status=succeeded&cursor={first['next']}")).json()
            third = (await client.get(f"/api/v1/counts?status=succeeded&cursor={second['next']}")).json()
            assert third == {"runs": {"succeeded": 1}, "next": None}
            assert (await client.get("/api/v1/counts?colour=red")).status_code == 422

    play(story())


class CountingWindows(MemoryStore):
    """A store that counts how often series are read."""

    windows = 0

    async def window_counts(self, window: Window) -> WindowCounts:
        self.windows += 1
        return await super().window_counts(window)


def test_many_pages_with_charts_cost_one_read_of_the_store() -> None:
    async def story() -> None:
        app, store = shop("memory:"), CountingWindows()
        app._opened = store
        async with near(app) as client:
            answers = await asyncio.gather(*(client.get("/api/v1/series?minutes=3") for _ in range(20)))
            assert {answer.status_code for answer in answers} == {200}
            assert len({answer.text for answer in answers}) == 1
            assert store.windows == 1
            await client.get("/api/v1/series?minutes=4")
            assert store.windows == 2

    play(story())


def test_the_texts_under_the_hashes_of_events_are_sent_as_they_are(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = (await create(client, attributes={"é": 2**53 + 1, "a": 1e-7}))["run_id"]
            await drain(app)
            chain = (await client.get(f"/api/v1/runs/{run}/chain")).json()["items"]
            previous = "0" * 64
            for event, link in zip(await app.aevents(run), chain, strict=True):
                assert (link["seq"], link["hash"], link["previous"]) == (event.seq, event.hash, previous)
                assert hashlib.sha256(link["sealed"].encode()).hexdigest() == link["hash"]
                sealed = json.loads(link["sealed"])
                assert (sealed[2], sealed[7], sealed[8]) == (event.seq, event.payload, previous)
                previous = link["hash"]
            assert (await client.get(f"/api/v1/runs/{NOBODY}/chain")).status_code == 404

    play(story())


def test_what_waits_for_a_person_is_listed_and_an_answer_that_does_not_fit_is_422(app: App) -> None:
    class Approval(msgspec.Struct):
        approved: bool

    @app.job
    async def approve() -> bool:
        return (await wait_for("approval", form=Approval)).approved

    async def story() -> None:
        async with near(app) as client:
            made = [await app.astart(approve) for _ in range(3)]
            await drain(app)
            listed = (await client.get("/api/v1/inbox")).json()
            assert msgspec.convert(listed["items"], list[Question]) == await app.ainbox()
            assert [one["run_id"] for one in listed["items"]] == [run.id for run in made]
            paged: list[Any] = []
            query = "limit=2&kind=answer"
            while query:
                page = (await client.get(f"/api/v1/inbox?{query}")).json()
                paged += page["items"]
                query = f"limit=2&kind=answer&cursor={page['next']}" if page["next"] is not None else ""
            assert paged == listed["items"]
            assert (await client.get("/api/v1/inbox?kind=doubt")).json() == {"items": [], "next": None}
            for wrong in ("kind=other", "cursor=x", "cursor=~x~", "limit=0"):
                assert (await client.get(f"/api/v1/inbox?{wrong}")).status_code == 422, wrong
            path = f"/api/v1/runs/{made[0].id}/signal"
            refused = await client.post(path, json={"key": "approval", "payload": {"approved": "no"}})
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_arguments")
            reason = 'answer.approved: must be true or false, got "no"'
            assert refused.json()["params"] == {"name": "the answer to 'approval'", "reason": reason}
            answer = {"key": "approval", "payload": {"approved": True}, "actor": "ana"}
            assert (await client.post(path, json=answer)).json() == {"outcome": "delivered"}
            assert (await made[0].aevents())[-1].payload["actor"] == "ana"
            assert len((await client.get("/api/v1/inbox")).json()["items"]) == 2

    play(story())


def test_a_signal_is_delivered_and_a_repeat_is_harmless(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = (await create(client, "ask"))["run_id"]
            await drain(app)
            body = {"key": "answer", "payload": 42, "id": "once"}
            assert (await client.post(f"/api/v1/runs/{run}/signal", json=body)).json() == {"outcome": "delivered"}
            assert (await client.post(f"/api/v1/runs/{run}/signal", json=body)).json() == {"outcome": "repeat"}
            await drain(app)
            assert (await client.get(f"/api/v1/runs/{run}/result")).json()["result"] == "? 42"
            late = await client.post(f"/api/v1/runs/{run}/signal", json={"key": "answer"})
            assert late.json() == {"outcome": "too_late"}
            refused = await client.post(f"/api/v1/runs/{run}/signal", json={"key": "holdfast:pause"})
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_arguments")

    play(story())


def test_a_question_that_nobody_asks_is_409(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = (await create(client))["run_id"]
            for answer in ("done", "not_done", "fail"):
                body = {"step": "charge:1", "answer": answer, "result": None}
                refused = await client.post(f"/api/v1/runs/{run}/resolve", json=body)
                assert (refused.status_code, refused.json()["code"]) == (409, "not_in_doubt")

    play(story())


def test_runs_are_listed_in_pages_and_filtered(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            made = [(await create(client))["run_id"] for _ in range(5)]
            await client.post(f"/api/v1/runs/{made[0]}/cancel")
            seen: list[str] = []
            cursor: dict[str, str] = {}
            while True:
                page = (await client.get("/api/v1/runs", params={"limit": 2, **cursor})).json()
                seen += [one["run_id"] for one in page["items"]]
                if page["next"] is None:
                    break
                cursor = {"cursor": page["next"]}
                assert page["next"] not in {run["run_id"] for run in page["items"]}, "clients cannot build it"
            assert seen == made[::-1], "newest first, none lost, none twice"
            only = (await client.get("/api/v1/runs?status=canceled&status=failed")).json()["items"]
            assert [one["run_id"] for one in only] == [made[0]]
            assert (await client.get("/api/v1/runs", params={"entry_id": "ask"})).json()["items"] == []

    play(story())


def test_events_are_listed_from_behind_a_cursor(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = (await create(client))["run_id"]
            await drain(app)
            seen: list[dict[str, Any]] = []
            cursor: str | None = "0"
            while cursor is not None:
                page = (await client.get(f"/api/v1/runs/{run}/events", params={"limit": 2, "cursor": cursor})).json()
                assert len(page["items"]) <= 2
                seen += page["items"]
                cursor = page["next"]
            assert seen == [msgspec.to_builtins(event) for event in await app.aevents(run)]
            assert (await client.get(f"/api/v1/runs/{run}/evidence")).json() == {"items": [], "next": None}
            assert (await client.get(f"/api/v1/runs/{run}/exports")).json() == {"items": [], "next": None}
            assert (await client.get(f"/api/v1/runs/{run}/exports/1/content")).status_code == 404

    play(story())


def test_what_a_run_produced_is_listed_and_read_and_never_shown_as_a_page(app: App) -> None:
    page = "<script>alert(1)</script>"

    @app.job
    async def produce() -> None:
        export(page, "page", media_type="text/html")
        export({"a": [1, 2]}, "table")
        export(b"\x00" * 300_000, "dump.bin")

    async def story() -> None:
        async with near(app) as client:
            attributes = {"tenant": "acme", "year": 26, "x": "7"}
            asked = {"plugin_id": app.name, "entry_id": "produce", "attributes": attributes}
            run = (await client.post("/api/v1/runs", json=asked)).json()
            assert run["attributes"] == asked["attributes"]
            await drain(app)
            first = (await client.get(f"/api/v1/runs/{run['run_id']}/exports?limit=2")).json()
            assert [(one["name"], one["provisional"]) for one in first["items"]] == [("page", False), ("table", False)]
            rest = (await client.get(f"/api/v1/runs/{run['run_id']}/exports?cursor={first['next']}")).json()
            assert [one["name"] for one in rest["items"]] == ["dump.bin"]
            assert rest["next"] is None
            answers = [await client.get(f"/api/v1/runs/{run['run_id']}/exports/{n}/content") for n in (1, 2, 3)]
            assert [answer.content for answer in answers] == [page.encode(), b'{"a":[1,2]}', b"\x00" * 300_000]
            for answer in answers:
                assert answer.headers["content-disposition"].startswith("attachment")
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert "html" not in answer.headers["content-type"]
            for query, found in (
                ("attr.tenant=acme", True), ("attr.tenant=acme&attr.year=26", True), ("attr.year=27", False),
                ("attr.x=7", False), ("attr.x=%227%22", True), ("status=succeeded&queue=default", True),
                ("queue=other", False), ("status=failed&status=succeeded&attr.tenant=acme", True),
            ):  # fmt: skip
                listed = (await client.get(f"/api/v1/runs?{query}")).json()["items"]
                assert [one["run_id"] for one in listed] == ([run["run_id"]] if found else []), query

    play(story())


def test_what_is_around_the_runs_is_told(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            await create(client)
            entries = (await client.get("/api/v1/entries")).json()["items"]
            assert [one["entry_id"] for one in entries] == ["ask", "fail", "greet"]
            assert entries[2]["parameters"]["properties"] == {"name": {"type": "string"}}
            assert (await client.get("/api/v1/workers")).json() == {"items": [], "next": None}
            assert (await client.get("/api/v1/stats")).json()["workers"] == 0
            for name, table in (("job", JOB), ("run", RUN), ("ready", READY)):
                assert (await client.get(f"/api/v1/machines/{name}")).json() == table.as_dict()
            assert len((await client.get("/api/v1/machines")).json()["items"]) == 3
            assert (await client.get("/api/v1/machines/engine")).status_code == 404
            for name in ("gates",):
                assert (await client.get(f"/api/v1/{name}")).json() == {"items": [], "next": None}
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            assert (await client.get("/readyz")).json() == {
                "state": "ready",
                "gates": [{"gate": "server", "state": "ready"}, {"gate": "store", "state": "ready"}],
            }
            assert (await client.get("/openapi.json")).json()["openapi"] == "3.1.0"
            told = (await client.get("/metrics")).text
            assert 'holdfast_http_requests_total{route="/api/v1/runs",method="POST",code="201"} 1' in told
            assert 'holdfast_ready_state{gate="server",state="ready"} 1' in told

    play(story())


def test_histories_are_verified_and_old_runs_purged(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = (await create(client))["run_id"]
            await drain(app)
            assert (await client.post("/api/v1/verify", json={"run_id": run})).json() == {"wrong": {}}
            kept = await client.post("/api/v1/purge", json={"older_than": "1h", "limit": 1000})
            assert kept.json() == {"removed": 0}
            refused = await client.post("/api/v1/purge", json={"older_than": "soon"})
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_arguments")
            gone = await client.post("/api/v1/purge", json={"older_than": 0, "statuses": ["succeeded"], "limit": 5})
            assert gone.json() == {"removed": 1}
            assert (await client.get(f"/api/v1/runs/{run}")).status_code == 404

    play(story())


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", f"/runs/{NOBODY}", None, 404, "unknown_job"),
        ("GET", f"/runs/{NOBODY}/events", None, 404, "unknown_job"),
        ("GET", f"/runs/{NOBODY}/stream", None, 404, "unknown_job"),
        ("GET", "/runs/x.y", None, 404, "unknown_job"),
        ("POST", f"/runs/{NOBODY}/cancel", {}, 404, "unknown_job"),
        ("POST", "/runs", {"plugin_id": "shop", "entry_id": "nothing"}, 404, "unknown_entry"),
        ("POST", "/runs", {"plugin_id": "shop", "entry_id": "greet"}, 422, "invalid_arguments"),
        ("POST", "/runs", {**GREET, "args": {"name": 5}}, 422, "invalid_arguments"),
        ("POST", "/runs", {**GREET, "deadline": "soon"}, 422, "invalid_arguments"),
        ("POST", "/runs", {**GREET, "delay": -1}, 422, "invalid_arguments"),
        ("POST", "/runs", {**GREET, "colour": "red"}, 422, "invalid_arguments"),
        ("POST", "/runs", {**GREET, "args": {"name": "x" * 1_100_000}}, 413, "payload_too_large"),
        ("POST", f"/runs/{NOBODY}/retry", {}, 422, "invalid_arguments"),
        ("GET", "/runs?limit=0", None, 422, "invalid_arguments"),
        ("GET", "/runs?limit=1001", None, 422, "invalid_arguments"),
        ("GET", "/runs?limit=1&limit=2", None, 422, "invalid_arguments"),
        ("GET", "/runs?status=asleep", None, 422, "invalid_arguments"),
        ("GET", "/runs?sort=name", None, 422, "invalid_arguments"),
        ("GET", "/nothing", None, 404, "not_found"),
        ("DELETE", "/runs", None, 405, "method_not_allowed"),
    ],
)
def test_what_is_wrong_is_refused_with_its_code_and_a_cure(
    small: App, method: str, path: str, body: Any, status: int, code: str
) -> None:
    async def story() -> None:
        async with near(small) as client:
            refused = await client.request(method, f"/api/v1{path}", **({"json": body} if body is not None else {}))
            assert (refused.status_code, refused.json()["code"]) == (status, code)
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json()["type"] == f"urn:holdfast:problem:{refused.json()['code']}"
            assert refused.json()["detail"] == refused.json()["message"]
            assert refused.json()["message"]
            assert refused.json()["hint"]
            assert "/entries" not in refused.json()["hint"] or code == "unknown_entry", "people read it, too"

    play(story())


def test_a_method_that_a_path_has_not_is_told_which_it_has(small: App) -> None:
    async def story() -> None:
        async with near(small) as client:
            refused = await client.put("/api/v1/runs")
            assert refused.status_code == 405
            assert refused.headers["allow"] == "POST, GET"
            assert (await client.head("/healthz")).status_code == 200

    play(story())


def test_a_page_of_exports_or_evidence_ends_at_its_size(small: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "PAGE_BYTES", 2500)

    @small.job
    async def publish() -> None:
        for number in range(5):
            export("x" * 1000, f"part {number}")

    async def pages(client: httpx.AsyncClient, path: str, **query: Any) -> list[int]:
        sizes, cursor = [], None
        while True:
            answer = (await client.get(path, params={**query, **({"cursor": cursor} if cursor else {})})).json()
            sizes.append(len(answer["items"]))
            cursor = answer["next"]
            if cursor is None:
                return sizes

    async def story() -> None:
        run = await small.astart(publish)
        await drain(small)
        late = [KeepEvidence(Evidence(run.id, f"charge:{number}", 1, 1, "x" * 1000)) for number in range(5)]
        await small.store().commit(late)
        async with near(small) as client:
            assert await pages(client, f"/api/v1/runs/{run.id}/exports") == [3, 2]
            assert await pages(client, f"/api/v1/runs/{run.id}/evidence") == [3, 2]
            assert await pages(client, f"/api/v1/runs/{run.id}/evidence", limit=2) == [2, 2, 1]

    play(story())


def test_queues_that_clients_make_up_are_no_time_series(small: App) -> None:
    async def story() -> None:
        await small.aset_limits(Limits(queue="mail", concurrency=1))
        for queue in ("default", "mail", "made-up-1", "made-up-2"):
            await small.entry("ask").options(queue=queue).astart()
        async with near(small) as client:
            text = (await client.get("/metrics")).text
        lines = sorted(line for line in text.splitlines() if line.startswith("holdfast_queue_jobs"))
        assert lines == [
            'holdfast_queue_jobs{queue="default",kind="queued"} 1',
            'holdfast_queue_jobs{queue="mail",kind="queued"} 1',
            'holdfast_queue_jobs{queue="other",kind="queued"} 2',
        ]

    play(story())
