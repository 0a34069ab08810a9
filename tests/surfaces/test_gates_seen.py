"""Gates and grants, as they are seen and given from outside: command line, HTTP, metrics."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import App, spend
from holdfast.ready import ConcurrencyGate
from holdfast.surfaces.cli import main
from support.stories import drain, play, quick, until
from support.web import near


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def test_gates_are_listed_and_explain_names_the_one_that_holds_a_run(url: str) -> None:
    app = App("shop", config=quick(url, lease_seconds=0.6))
    gate = ConcurrencyGate(1, name="model")

    @app.tool(gate=gate)
    async def ask() -> None: ...

    @app.job
    async def work() -> None:
        await ask()

    async def story() -> None:
        share = gate.try_acquire()
        assert share is not None
        handle = await work.astart()
        worker = app.worker(name="w1")
        working = asyncio.create_task(worker.arun())

        async def shown() -> bool:
            return any(handle.id in one.gate.jobs for one in await app.agates())

        await until(shown)
        assert "It waits for the gate model" in (await app.aexplain(handle.id)).explanation
        run = CliRunner().invoke
        listed = await asyncio.to_thread(run, main, ["gates", "--url", url])
        assert listed.exit_code == 0, listed.output
        assert [line.split()[0] for line in listed.output.splitlines()] == ["GATE", "worker", "model"]
        told = json.loads((await asyncio.to_thread(run, main, ["gates", "--url", url, "--json"])).output)
        assert [one["gate"]["name"] for one in told] == ["worker", "model"]
        async with near(app) as client:
            items = (await client.get("/api/v1/gates")).json()["items"]
            assert [(one["worker"], one["gate"]["name"]) for one in items] == [("w1", "worker"), ("w1", "model")]
            metrics = (await client.get("/metrics")).text
            assert 'holdfast_ready_state{gate="model",worker="w1",state="pending"} 1' in metrics
            assert 'holdfast_wake_total{gate="worker",worker="w1",source="io_ready"}' in metrics
            assert 'holdfast_ready_seconds_total{gate="worker",worker="w1",state="ready"}' in metrics
            assert 'holdfast_ready_violations_total{gate="worker",worker="w1"} 0' in metrics
        share.release()
        await handle.aresult()
        worker.stop()
        await working

    play(story())
    app.close()


def test_a_run_is_granted_more_from_the_command_line_and_over_http(url: str) -> None:
    app = App("shop", config=quick(url))

    @app.step
    async def ask(number: int) -> int:
        spend(tokens=10)
        return number

    @app.job
    async def work() -> int:
        return sum([await ask(number) for number in range(3)])

    async def story() -> None:
        handle = await work.options(budget={"tokens": 5}).astart()
        await drain(app)
        run = CliRunner().invoke
        for wrong in ("tokens", "tokens=many", "tokens=-1"):
            refused = await asyncio.to_thread(run, main, ["grant", handle.id, wrong, "--url", url])
            assert refused.exit_code == 2, refused.output
        granted = await asyncio.to_thread(run, main, ["grant", handle.id, "tokens=5", "--url", url])
        assert (granted.exit_code, granted.output) == (0, "delivered\n")
        await drain(app)
        async with near(app) as client:
            asked = {"amounts": {"tokens": 100}, "id": "once"}
            answers = [await client.post(f"/api/v1/runs/{handle.id}/grant", json=asked) for _ in range(2)]
            assert [answer.json()["outcome"] for answer in answers] == ["delivered", "repeat"]
            assert (await client.post(f"/api/v1/runs/{handle.id}/grant", json={"amounts": {}})).status_code == 422
        await drain(app)
        assert await handle.aresult() == 3

    play(story())
    app.close()
