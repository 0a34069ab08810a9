"""Gates and grants, as they are seen and given from outside: command line, HTTP, metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import App, spend
from holdfast.engine.readiness import WorkGate
from holdfast.engine.worker import Worker
from holdfast.ready import ConcurrencyGate, WakeSource
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


class Deaf(WorkGate):
    """The seeded bug: that there is something to claim is not announced."""

    def heard(self, source: WakeSource = WakeSource.IO_READY) -> None:
        del source
        self.fresh = True


class Forgetful(ConcurrencyGate):
    """Another: that there is room again is not announced, the first time."""

    forgot = False

    def release(self, receipt: object, error: BaseException | None) -> bool:
        announced = super().release(receipt, error) and self.forgot
        self.forgot = True
        return announced


def test_a_broken_contract_is_an_error_in_the_log_stored_and_counted_and_the_worker_goes_on(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("shop", config=quick(url, lease_seconds=0.6))
    gate = Forgetful(1, name="model")
    go = asyncio.Event()

    @app.tool(gate=gate)
    async def ask(*, wait: bool) -> None:
        if wait:
            await go.wait()

    @app.job
    async def work(*, wait: bool = False) -> str:
        await ask(wait=wait)
        return "done"

    async def story() -> None:
        worker = Worker(
            app.store(), app.entries, app.config, children=app.submission, name="w1", gates=app.shared_gates
        )
        worker.gate = Deaf(4)
        working = asyncio.create_task(worker.run())
        first = await work.astart(wait=True)
        await until(lambda: _is(first.id in worker.running and gate.why() is not None))
        second = await work.astart()
        await until(lambda: _is(gate.counts().waiting == 1))
        go.set()
        await first.aresult()
        third = await work.astart()
        for handle in (second, third):
            assert await handle.aresult() == "done", "what was held in silence goes on, and so does the worker"

        async def reported() -> bool:
            return all(one.gate.violations and one.gate.violation for one in await app.agates()) and bool(gates())

        def gates() -> list[str]:
            return [record.gate for record in caplog.records if record.levelname == "ERROR" and hasattr(record, "gate")]

        await until(reported)
        assert {"worker", "model"} <= set(gates()), "each with the name of the gate, as a field"
        async with near(app) as client:
            items = {one["gate"]["name"]: one["gate"] for one in (await client.get("/api/v1/gates")).json()["items"]}
            assert "wake" in items["model"]["violation"]
            metrics = (await client.get("/metrics")).text
            for name in ("worker", "model"):
                found = re.search(rf'holdfast_ready_violations_total{{gate="{name}",worker="w1"}} (\d+)', metrics)
                assert found is not None
                assert int(found[1]) >= 1
        listed = await asyncio.to_thread(CliRunner().invoke, main, ["gates", "--url", url])
        assert listed.output.count("BROKE ITS CONTRACT") == 2
        worker.stop()
        await working

    with caplog.at_level(logging.ERROR, "holdfast.ready"):
        play(story())
    app.close()


async def _is(value: object) -> bool:
    return bool(value)


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
