"""Server-sent events: nothing is missed, nothing is kept for those who do not read, and 500 cost what one costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from holdfast import App
from holdfast.http.tokens import TokenFile
from holdfast.machines import Event, RunRecord
from holdfast.server import Limits, asgi
from holdfast.store.memory import MemoryStore
from support.peers import Peer, told
from support.scripts import load
from support.stories import drain, play, until
from support.web import near, served, shop, small_shop

TARGET = Path(__file__).parents[1] / "support" / "streaming_shop.py"
MIB = 1024 * 1024


@pytest.fixture
def small(tmp_path: Path) -> Iterator[App]:
    with small_shop(tmp_path) as made:
        yield made


def test_a_stream_tells_every_event_once_and_ends_with_the_terminal_record(small: App) -> None:
    async def story() -> None:
        service = asgi(small)
        run = await small.astart("ask")
        peer = Peer(service, f"/api/v1/runs/{run.id}/stream")
        await peer.has('"stage":"queued"')
        await drain(small)
        await small.asignal(run.id, "answer", "yes")
        await drain(small)
        await peer.task
        messages = told(peer.text)
        events = [data for event, _, data in messages if event == "event"]
        assert events == [msgspec.to_builtins(event) for event in await small.aevents(run.id)]
        assert [place for event, place, _ in messages if event == "event"] == [f"e{one['seq']}" for one in events]
        assert messages[-1][0] == "run"
        assert messages[-1][2] == msgspec.to_builtins(await run.arecord())
        assert messages[-1][2]["status"] == "succeeded"

    play(story())


def test_a_stream_is_resumed_from_the_last_event_id(small: App) -> None:
    async def story() -> None:
        service = asgi(small)
        run = await small.astart("greet", "Ada")
        await drain(small)
        whole = Peer(service, f"/api/v1/runs/{run.id}/stream")
        await whole.task
        places = [place for _, place, _ in told(whole.text)]
        assert places == ["e1", "e2", "e3", "r3"]
        for place in ("e2", "r2"):
            rest = Peer(service, f"/api/v1/runs/{run.id}/stream", headers={"last-event-id": place})
            await rest.task
            assert [place for _, place, _ in told(rest.text)] == ["e3", "r3"]
        later = Peer(service, f"/api/v1/runs/{run.id}/stream?after=3")
        await later.task
        assert [place for _, place, _ in told(later.text)] == ["r3"]
        only = Peer(service, f"/api/v1/runs/{run.id}/stream?events=no")
        await only.task
        assert [event for event, _, _ in told(only.text)] == ["run"]
        odd = Peer(service, f"/api/v1/runs/{run.id}/stream", headers={"last-event-id": "e1; DROP TABLE events"})
        await odd.task
        assert len(told(odd.text)) == 4, "an id that is none of ours means the beginning"

    play(story())


def test_who_comes_back_after_the_end_is_told_to_stop(small: App) -> None:
    async def story() -> None:
        run = await small.astart("greet", "Ada")
        await drain(small)
        async with near(small) as client:
            path = f"/api/v1/runs/{run.id}/stream"
            last = told((await client.get(path)).text)[-1][1]
            assert last == "r3"
            again = await client.get(path, headers={"Last-Event-ID": last})
            assert (again.status_code, again.content) == (204, b"")
            assert "content-length" not in again.headers
            for earlier in ("e3", "r2", "r", "x"):  # none of these says that it has the final record
                assert (await client.get(path, headers={"Last-Event-ID": earlier})).status_code == 200

    play(story())


def test_an_old_run_of_a_job_has_a_stream_that_ends(small: App) -> None:
    async def story() -> None:
        run = await small.astart("fail")
        await drain(small)
        await small.aretry(run.id, actor="ana", reason="again")
        peer = Peer(asgi(small), f"/api/v1/runs/{run.id}/stream")
        await peer.task
        assert told(peer.text)[-1][2]["status"] == "failed"

    play(story())


def test_a_large_payload_is_not_put_into_a_stream(tmp_path: Path) -> None:
    async def story() -> None:
        app = load(TARGET).app
        app.url = f"sqlite:///{tmp_path / 'jobs.db'}"
        run = await app.astart("large", 100_000)
        await drain(app)
        peer = Peer(asgi(app), f"/api/v1/runs/{run.id}/stream")
        await peer.task
        assert [data["payload"] for _, place, data in told(peer.text) if place == "e3"] == [{"truncated": True}]
        assert len(peer.text) < 10_000
        await app.aclose()

    play(story())


def test_a_long_history_is_read_from_the_store_and_not_from_the_ring(tmp_path: Path) -> None:
    async def story() -> None:
        app = load(TARGET).app
        app.url = f"sqlite:///{tmp_path / 'jobs.db'}"
        run = await app.astart("steps", 300)
        await app.asignal(run.id, "go")
        await drain(app)
        peer = Peer(asgi(app), f"/api/v1/runs/{run.id}/stream")
        await peer.task
        places = [place for event, place, _ in told(peer.text) if event == "event"]
        assert places == [f"e{number}" for number in range(1, len(await app.aevents(run.id)) + 1)]
        assert len(places) > 900
        await app.aclose()

    play(story())


class Counting(MemoryStore):
    """A store that counts what is read of it: records of runs, and events."""

    def __init__(self) -> None:
        super().__init__()
        self.records_read: Counter[str] = Counter()
        self.events_read = 0

    async def record(self, job: str, number: int) -> RunRecord | None:
        self.records_read[job] += 1
        return await super().record(job, number)

    async def events(self, job: str, after: int = 0, limit: int | None = None) -> list[Event]:
        found = await super().events(job, after, limit)
        self.events_read += len(found)
        return found


def test_an_idle_stream_is_not_read_again_when_other_runs_change() -> None:
    async def story() -> None:
        app = shop("memory:")
        app._opened = store = Counting()
        service = asgi(app)
        runs = [await app.astart("ask") for _ in range(5)]
        peers = [Peer(service, f"/api/v1/runs/{run.id}/stream") for run in runs]
        for peer in peers:
            await peer.has('"stage":"queued"')
        await app.acancel(runs[0].id)  # the first look wakes all
        await peers[0].task
        before = store.records_read.copy()
        for _ in range(20):
            await app.astart("ask")
        await app.acancel(runs[1].id)
        await peers[1].task
        assert [store.records_read[run.id] - before[run.id] for run in runs[2:]] == [0, 0, 0]
        for peer in peers[2:]:
            peer.leave.set()
            await peer.task

    play(story())


def test_a_page_and_a_stream_read_only_the_events_that_they_send() -> None:
    async def story() -> None:
        app = load(TARGET).app
        app._opened = store = Counting()
        run = await app.astart("steps", 100)
        await app.asignal(run.id, "go")
        await drain(app)
        newest = len(await app.aevents(run.id))
        store.events_read = 0
        async with near(app) as client:
            answer = await client.get(f"/api/v1/runs/{run.id}/events?limit=1")
            assert [one["seq"] for one in answer.json()["items"]] == [1]
            assert store.events_read <= 2
        store.events_read = 0
        resumed = Peer(asgi(app), f"/api/v1/runs/{run.id}/stream", headers={"last-event-id": f"e{newest - 2}"})
        await resumed.task
        assert [place for _, place, _ in told(resumed.text)] == [f"e{newest - 1}", f"e{newest}", f"r{newest}"]
        assert store.events_read <= 2
        await app.aclose()

    play(story())


def test_a_silent_stream_says_that_it_is_alive_and_ends_when_its_time_is_up(small: App) -> None:
    async def story() -> None:
        run = await small.astart("greet", "Ada")
        path = f"/api/v1/runs/{run.id}/stream"
        lasting = Peer(asgi(small, limits=Limits(heartbeat_seconds=0.01)), path)
        await until(lambda: _is(lasting.text.count(": alive\n\n") > 3))
        await lasting.has("event: run")
        lasting.leave.set()
        await lasting.task
        brief = Peer(asgi(small, limits=Limits(stream_seconds=0.2)), path)
        await brief.task
        assert told(lasting.text)[-1][2]["status"] == "queued"
        assert [data["status"] for event, _, data in told(brief.text) if event == "run"] in ([], ["queued"])

    play(story())


async def _is(so: bool) -> bool:
    return so


def test_a_client_that_does_not_read_is_dropped_and_others_are_not(small: App) -> None:
    async def story() -> None:
        service = asgi(small, limits=Limits(stream_stall_seconds=0.05, heartbeat_seconds=0.01))
        run = await small.astart("greet", "Ada")
        good = Peer(service, f"/api/v1/runs/{run.id}/stream")
        bad = Peer(service, f"/api/v1/runs/{run.id}/stream", reads=3)
        await bad.task
        assert bad.aborted
        assert service.hub.dropped == 1
        assert len(service.hub.seats) == 1
        await drain(small)
        await good.task
        assert told(good.text)[-1][2]["status"] == "succeeded"
        assert not good.aborted

    play(story())


def test_one_watcher_serves_all_clients_of_a_run_and_goes_with_the_last(small: App) -> None:
    async def story() -> None:
        service = asgi(small)
        run = await small.astart("greet", "Ada")
        peers = [Peer(service, f"/api/v1/runs/{run.id}/stream") for _ in range(20)]
        for peer in peers:
            await peer.has("event: run")
        assert len(service.hub._channels) == 1
        for peer in peers:
            peer.leave.set()
        await asyncio.gather(*(peer.task for peer in peers))
        assert (service.hub._channels, service.hub.seats) == ({}, set())

    play(story())


def test_there_is_an_end_to_how_many_streams_there_are(small: App) -> None:
    async def story() -> None:
        run = await small.astart("greet", "Ada")
        async with near(small, limits=Limits(streams=0)) as client:
            refused = await client.get(f"/api/v1/runs/{run.id}/stream")
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
            assert refused.headers["retry-after"]

    play(story())


def test_the_stream_of_all_runs_tells_their_changes_and_is_resumed(small: App) -> None:
    async def story() -> None:
        service = asgi(small)
        peer = Peer(service, "/api/v1/stream")
        await peer.has(": alive")
        feed = next(iter(service.hub._feeds.values()))

        async def looked() -> bool:
            return feed._known is not None

        await until(looked)
        first, second = await small.astart("greet", "Ada"), await small.astart("greet", "Bob")
        await peer.has(second.id)
        await drain(small)
        await peer.has("succeeded")
        messages = told(peer.text)
        assert {data["run_id"] for _, _, data in messages} == {first.id, second.id}
        behind = Peer(service, "/api/v1/stream", headers={"last-event-id": messages[0][1]})
        await behind.has(messages[-1][1])
        assert [place for _, place, _ in told(behind.text)] == [place for _, place, _ in messages[1:]]
        service.stop()
        await asyncio.gather(peer.task, behind.task)
        assert service.hub._feeds == {}

    play(story())


def test_a_client_of_all_runs_that_has_missed_changes_is_told_to_read_again(
    small: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.http.run_feed.RING", 2)

    async def story() -> None:
        service = asgi(small)
        peer = Peer(service, "/api/v1/stream")
        await peer.has(": alive")
        feed = next(iter(service.hub._feeds.values()))

        async def looked() -> bool:
            return feed._known is not None

        await until(looked)
        for _ in range(2):
            await peer.has((await small.astart("greet", "Ada")).id)
        (_, place, _), *_ = told(peer.text)
        back = Peer(service, "/api/v1/stream", headers={"last-event-id": place})
        await back.has(told(peer.text)[-1][1])
        for _ in range(2):
            await peer.has((await small.astart("greet", "Bob")).id)
        assert "reset" not in peer.text + back.text, "they have missed nothing"
        for unknown in (place, "00000000-1", "nonsense"):
            lost = Peer(service, "/api/v1/stream", headers={"last-event-id": unknown})
            await lost.has("event: reset")
            ((event, position, data),) = told(lost.text)
            assert (event, data) == ("reset", {})
            again = Peer(service, "/api/v1/stream", headers={"last-event-id": position})
            await again.has(": alive")
            assert "reset" not in again.text
        service.stop()

    play(story())


def test_a_silent_stream_ends_soon_after_its_token_was_revoked(small: App, tmp_path: Path) -> None:
    async def story() -> None:
        file = TokenFile(tmp_path / "tokens")
        token = file.create("page", "read")
        service = asgi(small, tokens=str(tmp_path / "tokens"), limits=Limits(heartbeat_seconds=600.0))
        peer = Peer(service, "/api/v1/stream", headers={"authorization": f"Bearer {token}"})
        await peer.has("alive")
        file.revoke("page")
        await peer.task
        assert peer.text.count("alive") == 1, "it did not wait for a heartbeat"

    play(story())


async def follow(port: int, run: str, events: str) -> bytes:
    """Follow a run over a socket to its end; keep only the last messages."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = f"GET /api/v1/runs/{run}/stream?events={events} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    writer.write(request.encode())
    last = b""
    while part := await reader.read(65536):
        last = (last + part)[-8192:]
    writer.close()
    return last


@pytest.mark.parametrize("entry", ["steps", "updates"])
def test_500_clients_of_one_run_all_end_with_its_terminal_record(tmp_path: Path, entry: str) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def story(port: int, resident: Any) -> tuple[int, int]:
        app = load(TARGET).app
        app.url = url
        run = await app.astart(entry, 1000)
        before = resident()
        followers = [asyncio.create_task(follow(port, run.id, "yes" if number < 10 else "no")) for number in range(500)]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

            async def all_there() -> bool:
                return "holdfast_http_streams 500\n" in (await client.get("/metrics")).text

            await until(all_there)
        await app.asignal(run.id, "go")
        await drain(app)
        ends = await asyncio.gather(*followers)
        record = msgspec.json.encode(await run.arecord())
        assert b'"status":"succeeded"' in record
        assert all(record in end for end in ends), "everybody ends with the terminal record"
        await app.aclose()
        return before, resident()

    with served(TARGET, url) as server:
        before, after = play(story(server.port, server.resident_bytes))
        assert after - before < 100 * MIB


def test_a_server_that_is_told_to_stop_ends_its_streams_and_leaves_with_0(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = load(TARGET).app
    app.url = url
    run = app.start("steps", 1)
    with (
        served(TARGET, url) as server,
        httpx.stream("GET", f"{server.url}/api/v1/runs/{run.id}/stream", timeout=60) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == ": alive"
        server.process.terminate()
        assert "event: run" in list(lines)
        assert server.process.wait(60) == 0
    app.close()
