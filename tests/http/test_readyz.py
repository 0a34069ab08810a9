"""`/readyz` over a real server: the state of the process, with the workers that run in it and the door it has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import App, Limits
from holdfast.client.app_worker import AppWorker
from holdfast.server import asgi
from support.postgres import fresh_url
from support.stories import quick
from support.web import serving, wait_until


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    urls = {"memory": lambda: "memory:", "sqlite": lambda: f"sqlite:///{tmp_path / 'jobs.db'}", "postgres": fresh_url}
    made = App("shop", config=quick(urls[request.param]()))
    yield made
    made.close()


class Asked:
    """A server, and what it says."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, gate: str = "process") -> httpx.Response:
        return httpx.get(f"{self.url}/readyz", params={"gate": gate}, timeout=30)

    def until(self, status: int, **said: Any) -> dict[str, Any]:
        """Ask until it answers so; what the part that is asked for last says."""
        found: dict[str, Any] = {}

        def is_so() -> bool:
            answer = self()
            found.update({part["gate"]: part for part in answer.json()["gates"]}, answer=answer)
            part = found.get("worker", {})
            return answer.status_code == status and all(part.get(name) == value for name, value in said.items())

        wait_until(is_so)
        return found


@contextmanager
def asked_of(app: App) -> Iterator[Asked]:
    service = asgi(app)
    service.readiness.look_seconds, service.readiness.patience_seconds = 0.0, 60.0
    with serving(service) as url:
        yield Asked(url)


@contextmanager
def working(app: App, concurrency: int = 1) -> Iterator[AppWorker]:
    worker = app.worker(concurrency=concurrency)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()


def test_a_process_is_as_ready_as_its_worker_and_an_idle_worker_is_ready(app: App) -> None:
    go = threading.Event()

    @app.job
    def work() -> None:
        go.wait(60)

    with asked_of(app) as ask:
        assert [part["gate"] for part in ask().json()["gates"]] == ["server", "store"], "nobody works here yet"
        with working(app) as worker:
            idle = ask.until(200, state="pending")
            assert idle["answer"].json()["state"] == "ready"
            assert "held" not in idle["worker"]
            run = work.start()
            full = ask.until(503, held="busy")
            assert full["answer"].json()["state"] == "busy"
            assert full["answer"].headers["retry-after"] == "2"
            assert "all slots of the worker" in full["answer"].json()["reason"]
            assert ask("server").status_code == 200, "requests are answered all the same"
            go.set()
            run.result(timeout=60)
            ask.until(200, state="pending")
            go.clear()
            run = work.start()
            ask.until(503, held="busy")
            stopping = threading.Thread(target=worker.stop)
            stopping.start()
            stopping.join()
            go.set()
        assert ask.until(200)["answer"].json()["gates"][-1]["gate"] == "store", "the worker has ended"


def test_a_rate_that_is_used_up_is_told_once_and_says_when_to_come_back(app: App) -> None:
    @app.job
    async def work() -> None: ...

    app.set_limits(Limits(queue="default", rate=1, rate_seconds=1000, burst=1))
    with asked_of(app) as ask, working(app):
        ask.until(200, state="pending")
        app.start_many(work, [{}, {}])
        told = ask.until(503, held="budget_exhausted")["answer"]
        assert told.json()["state"] == "budget_exhausted"
        assert 900 < int(told.headers["retry-after"]) <= 1000
        assert "default" not in told.text, "the answer is for everybody"
        again = ask()
        assert (again.status_code, again.json()["state"]) == (503, "busy"), "an exhausted budget is reported once"
        app.pause_queue("default")
        app.clear_limits("default")
        assert ask.until(503, held="busy")["answer"].json()["state"] == "busy"
        app.resume_queue("default")
        ask.until(200, state="pending")


def test_a_server_whose_queues_are_all_as_deep_as_they_may_be_is_not_ready(app: App) -> None:
    @app.job
    async def work() -> None: ...

    app.set_limits(Limits(queue="default", depth=1))
    with asked_of(app) as ask:
        assert ask().json()["gates"][-1] == {"gate": "door", "state": "ready"}
        work.start()
        told = ask()
        assert (told.status_code, told.json()["state"], told.json()["gates"][-1]["gate"]) == (503, "busy", "door")
        assert told.headers["retry-after"] == "1"
        assert ask("server").status_code == 503
        body = {"plugin_id": "shop", "entry_id": "work"}
        assert httpx.post(f"{ask.url}/api/v1/runs", json=body, timeout=30).status_code == 429

        @app.job(queue="other")
        async def more() -> None: ...

        assert ask().status_code == 200, "there are jobs that it takes"
        metrics = httpx.get(f"{ask.url}/metrics", timeout=30).text
        assert 'holdfast_ready_state{gate="process",state="ready"} 1' in metrics
        assert 'holdfast_ready_polls_total{gate="process",state="busy"} 2' in metrics
        assert 'holdfast_ready_violations_total{gate="server"} 0' in metrics


def test_a_depth_that_is_not_counted_for_those_who_look_closes_the_door_too() -> None:
    app = App("shop", config=quick("memory:"))

    @app.job
    async def work() -> None: ...

    app.start_many(work, [{}] * 10_049)
    app.set_limits(Limits(queue="default", depth=10_050))
    with asked_of(app) as ask:
        assert ask().status_code == 200
        work.start()
        assert ask().status_code == 503
    app.close()
