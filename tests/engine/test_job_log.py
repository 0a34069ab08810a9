"""Workers log failures, retries, calls in doubt, and jobs taken back, each with run, job and reason."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast import App, Backoff
from holdfast.store import Claim, Reclaim, ReleaseLeases
from support.app_fixtures import app, url
from support.stories import drain, play, quick

__all__ = ["app", "url"]


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The event and the message of each line about a job."""
    return [(record.event, record.getMessage()) for record in caplog.records if hasattr(record, "event")]


def test_each_failure_and_retry_is_one_line_with_run_job_and_reason(app: App, caplog: pytest.LogCaptureFixture) -> None:
    tries: list[int] = []

    @app.step(backoff=Backoff(retries=1, first_seconds=0.001))
    async def price() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no network")
        return 7

    @app.job(retries=1, backoff=Backoff(retries=1, first_seconds=0.001))
    async def checkout() -> None:
        await price()
        raise KeyError("sku")

    with caplog.at_level(logging.INFO, "holdfast"):
        run = app.start(checkout)
        play(drain(app))
    events = lines(caplog)
    node = next(event.payload["node"] for event in run.events() if event.type == "node_started")
    assert [event for event, _ in events] == ["step_retry", "retry", "failed"]
    assert events[0][1].startswith(
        f"run {run.id} (shop.checkout): {node} failed and is retried in 0.0 s: OSError: no network"
    )
    assert events[1][1].startswith(f"run {run.id} (shop.checkout) failed and is retried in 0.0 s: KeyError: 'sku'")
    assert events[2][1] == f"run {run.id} (shop.checkout) failed: KeyError: 'sku'"
    fields = vars(next(record for record in caplog.records if getattr(record, "event", "") == "failed"))
    assert (fields["run_id"], fields["job"], fields["reason"]) == (run.id, "shop.checkout", "KeyError: 'sku'")
    assert fields["levelname"] == "ERROR"


def test_a_message_of_job_code_is_one_line_that_a_terminal_does_not_obey(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    async def rude() -> None:
        raise ValueError("first\nERROR second \x1b]52;c;YQ==\x07 \u202e")

    with caplog.at_level(logging.INFO, "holdfast"):
        app.start(rude)
        play(drain(app))
    ((_, message),) = lines(caplog)
    assert message.endswith("failed: ValueError: first ERROR second \\x1b]52;c;YQ==\\x07 \\u202e")


def test_a_job_that_succeeds_is_no_line(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job
    async def fine() -> int:
        return 1

    with caplog.at_level(logging.DEBUG, "holdfast"):
        app.start(fine)
        play(drain(app))
    assert lines(caplog) == []


@pytest.mark.parametrize("policy", ["ask", "retry", "fail"])
def test_a_call_in_doubt_is_one_line_that_says_what_follows(
    app: App, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    begun = asyncio.Event()

    @app.tool(on_doubt=policy)
    async def charge() -> int:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return 1

    @app.job
    async def checkout() -> None:
        await charge()

    async def story() -> None:
        await app.astart(checkout)
        worker = app.worker(name="first")
        running = asyncio.create_task(worker.arun())
        await begun.wait()
        running.cancel()  # as a worker that dies: nothing is handed back
        await asyncio.wait([running])
        await app.store().commit([ReleaseLeases("first"), Reclaim()])
        await drain(app)

    with caplog.at_level(logging.WARNING, "holdfast"):
        play(story())
    (run,) = app.list()
    doubts = [message for event, message in lines(caplog) if event == "doubt"]
    follows = {
        "ask": f"answer with `holdfast resolve {run.run_id} charge:",
        "retry": "it is called again",
        "fail": "the call fails",
    }
    assert len(doubts) == 1, doubts
    assert doubts[0].startswith(f"run {run.run_id} (shop.checkout): charge:")
    assert follows[policy] in doubts[0]


def test_a_job_taken_back_and_one_given_up_as_poison_are_one_line_each(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("shop", config=quick(url, max_attempts=2))

    @app.job
    async def crash() -> None: ...

    async def story() -> Any:
        run = await app.astart(crash)
        store = app.store()
        for name in ("first", "second"):
            claim = Claim(worker=name, entries=frozenset(app.entries), queues=None, limit=10, lease_seconds=60)
            await store.commit([claim])
            await store.commit([ReleaseLeases(name)])
            await drain_reclaim(app)
        return run

    async def drain_reclaim(app: App) -> None:
        """A worker for another queue takes back what the dead one held, and runs nothing itself."""
        async with asyncio.timeout(60):
            await app.worker(queues=["other"]).arun(until_idle=True)

    with caplog.at_level(logging.WARNING, "holdfast"):
        run = play(story())
    assert lines(caplog) == [
        ("reclaim", f"run {run.id} (shop.crash) was taken back from its worker: the lease of attempt 1 ended"),
        ("poison", f"run {run.id} (shop.crash) failed: crashed 2 times; 2 are allowed"),
    ]
    app.close()
