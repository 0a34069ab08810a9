"""Gates and grants, as they are seen and given from outside: command line, HTTP, metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

import holdfast
from holdfast import App, InvalidArguments, spend
from holdfast.cli.main import main
from holdfast.cli.target import load
from holdfast.engine.worker import Worker
from holdfast.engine.worker_gate import WorkGate
from holdfast.ready import ConcurrencyGate, WakeSource
from holdfast.server import asgi
from support.stories import beating, drain, play, quick, until
from support.web import near, serving


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def test_gates_are_listed_and_explain_names_the_one_that_holds_a_run(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    beating(monkeypatch)
    app = App("shop", config=quick(url))
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
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    beating(monkeypatch)
    monkeypatch.setattr(Worker, "_until", lambda *_: 0.2)  # how long it sleeps at most: nobody tells it anything
    app = App("shop", config=quick(url))
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


SHOP = """
from holdfast import App, spend
app = App("shop")

@app.step
async def ask(number: int) -> int:
    spend(tokens=10)
    return number

@app.job
async def work() -> int:
    return sum([await ask(number) for number in range(3)])
"""


def test_a_budget_is_given_over_http_from_the_command_line_and_by_a_remote_client(url: str, tmp_path: Path) -> None:
    target = tmp_path / "shop.py"
    target.write_text(SHOP)
    app = load(str(target), url)
    kept = {"tokens": 15_000_000, "usd": 500_000}
    body = {"plugin_id": "shop", "entry_id": "work", "budget": {"tokens": 15, "usd": 0.5}}
    with serving(asgi(app)) as server, holdfast.connect(server) as remote:
        made = httpx.post(f"{server}/api/v1/runs", json=body, timeout=60)
        assert made.status_code == 201
        for wrong in ({}, {"tokens": -1}, {"tokens": "many"}, {"a b": 1}, 7, {"tokens": 1e300}, {"tokens": True}):
            refused = httpx.post(f"{server}/api/v1/runs", json={**body, "budget": wrong}, timeout=60)
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_arguments"), wrong
        far = remote.entry("work").options(budget={"tokens": 15, "usd": 0.5}).start()
        with pytest.raises(InvalidArguments, match="tokens"):
            remote.entry("work").options(budget={"tokens": -1}).start()
        run = CliRunner().invoke
        given = ["--budget", "tokens=15", "--budget", "usd=0.5"]
        typed = run(main, ["start", str(target), "work", "--url", url, *given])
        assert typed.exit_code == 0, typed.output
        for words in (["tokens"], ["tokens=many"], ["tokens=nan"], ["tokens=1", "--budget", "tokens=2"]):
            refused_here = run(main, ["start", str(target), "work", "--url", url, "--budget", *words])
            assert refused_here.exit_code == 2, refused_here.output
        app.worker().run(until_idle=True)
        for name in (made.json()["run_id"], far.id, typed.output.strip()):
            assert app.events(name)[0].payload["budget"] == kept
            assert "tokens 20 of 15" in app.explain(name).explanation
        assert len(app.list()) == 3, "nothing was made of what was refused"
    app.close()
