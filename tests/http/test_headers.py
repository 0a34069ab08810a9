"""Headers that the API reads and sends: keys, traces, request ids, entity tags, and waiting for a result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App, export
from support.postgres import fresh_url
from support.stories import drain, play
from support.web import near, shop

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
GREET = {"plugin_id": "shop", "entry_id": "greet", "args": {"name": "Ada"}}


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path / 'jobs.db'}"}
    made = shop(fresh_url() if request.param == "postgres" else urls[request.param])

    @made.job
    async def paint() -> None:
        await export({"a": 1}, name="größe 1.json")
        await export(b"x" * 200_000, name="large.bin")

    yield made
    made.close()


def test_the_key_in_the_header_is_the_key_of_the_run(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            keyed = {"Idempotency-Key": '"order-1"'}
            first = await client.post("/api/v1/runs", json=GREET, headers=keyed)
            again = await client.post("/api/v1/runs", json=GREET, headers=keyed)
            assert (first.status_code, again.status_code) == (201, 200)
            assert first.json()["run_id"] == again.json()["run_id"]
            assert first.json()["idempotency_key"] == "order-1"
            other = await client.post("/api/v1/runs", json={**GREET, "args": {"name": "Bob"}}, headers=keyed)
            assert other.json()["code"] == "idempotency_conflict"
            named = await client.post("/api/v1/runs", json={**GREET, "idempotency_key": "body"}, headers=keyed)
            assert named.json()["idempotency_key"] == "body", "the body is more specific"
            bad = await client.post("/api/v1/runs", json=GREET, headers={"Idempotency-Key": "a b"})
            assert (bad.status_code, bad.json()["code"]) == (422, "invalid_arguments")

    play(story())


def test_a_signal_with_a_key_is_kept_once_and_its_key_is_no_id(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = (await client.post("/api/v1/runs", json={"plugin_id": "shop", "entry_id": "ask"})).json()["run_id"]
            body, keyed = {"key": "later", "payload": 1}, {"Idempotency-Key": "once"}
            sent = [await client.post(f"/api/v1/runs/{run}/signal", json=body, headers=keyed) for _ in range(2)]
            assert [answer.json()["outcome"] for answer in sent] == ["kept", "kept"], "the same answer"
            assert len(await app.store().inbox(run)) == 1
            other = await client.post(f"/api/v1/runs/{run}/signal", json={**body, "id": "once"})
            assert other.json()["outcome"] == "kept", "clients choose ids, and each token has keys of its own"

    play(story())


@pytest.mark.parametrize(
    ("header", "trace_id"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"cc-{TRACE}-00f067aa0ba902b7-01-more", TRACE),
        (f"ff-{TRACE}-00f067aa0ba902b7-01", None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        ("00-short-00f067aa0ba902b7-01", None),
    ],
)
def test_a_run_belongs_to_the_trace_of_its_request(app: App, header: str, trace_id: str | None) -> None:
    async def story() -> None:
        async with near(app) as client:
            made = await client.post("/api/v1/runs", json=GREET, headers={"traceparent": header})
            assert made.json()["trace_id"] == trace_id
            assert (await app.aget(made.json()["run_id"])).trace_id == trace_id

    play(story())


def test_every_response_has_a_request_id(app: App, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with near(app) as client:
            sent = await client.get("/api/v1/stats", headers={"X-Request-Id": "abc-1"})
            assert sent.headers["x-request-id"] == "abc-1"
            made = [await client.get(path, headers={"X-Request-Id": "a\tb"}) for path in ("/healthz", "/none", "/..")]
            ids = [answer.headers["x-request-id"] for answer in made]
            assert len(set(ids)) == 3
            assert all("\t" not in each for each in ids)

            async def broken() -> None:
                raise RuntimeError("not told")

            app.astats = broken  # type: ignore[method-assign,assignment]  # - an error that no handler expects
            failed = await client.get("/api/v1/stats", headers={"X-Request-Id": "abc-2"})
            assert (failed.status_code, failed.json()["id"]) == (500, "abc-2")

    with caplog.at_level(logging.ERROR, "holdfast.http"):
        play(story())
    assert "abc-2" in caplog.text


def test_a_result_is_waited_for(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = (await client.post("/api/v1/runs", json=GREET)).json()["run_id"]
            path = f"/api/v1/runs/{run}/result"
            early = await client.get(path, params={"wait": 0.01})
            assert (early.status_code, early.headers["retry-after"]) == (202, "1")
            waiting = asyncio.create_task(client.get(path, params={"wait": 60}))
            await drain(app)
            answer = await waiting
            assert (answer.status_code, answer.json()["result"]) == (200, "hello Ada")
            assert (await client.get(path, params={"wait": 61})).status_code == 422

    play(story())


def test_an_export_is_sent_with_its_length_its_name_and_a_tag(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            run = await app.astart("paint")
            await drain(app)
            for number, name in ((1, "gr%C3%B6%C3%9Fe%201.json"), (2, "large.bin")):
                path = f"/api/v1/runs/{run.id}/exports/{number}/content"
                sent = await client.get(path)
                assert int(sent.headers["content-length"]) == len(sent.content) > 0
                assert sent.headers["content-disposition"].endswith(f"filename*=UTF-8''{name}")
                head = await client.head(path)
                assert head.headers["content-length"] == sent.headers["content-length"]
                again = await client.get(path, headers={"If-None-Match": sent.headers["etag"]})
                assert (again.status_code, again.content) == (304, b"")
                other = await client.get(path, headers={"If-None-Match": '"other"'})
                assert other.status_code == 200

    play(story())


def test_limits_that_another_has_changed_are_not_overwritten(app: App) -> None:
    async def story() -> None:
        async with near(app) as client:
            path = "/api/v1/limits/mail"
            read = await client.get(path)
            assert read.json()["limits"] == {"queue": "mail"}
            tag = {"If-Match": read.headers["etag"]}
            first = await client.put(path, json={"concurrency": 1}, headers=tag)
            assert first.status_code == 200, first.text
            late = await client.put(path, json={"concurrency": 9}, headers=tag)
            assert (late.status_code, late.json()["code"]) == (412, "limits_changed")
            assert (await client.delete(path, headers=tag)).status_code == 412
            assert (await client.get(path, headers={"If-None-Match": first.headers["etag"]})).status_code == 304
            assert (await app.alimits())[0].limits.concurrency == 1
            assert (await client.delete(path, headers={"If-Match": first.headers["etag"]})).status_code == 200
            assert await app.alimits() == []

    play(story())
