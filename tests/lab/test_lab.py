"""Jobs in virtual time: sleeps, waits, deadlines and retries take no real time."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import socket
import subprocess
import sys
import threading
import time
import tomllib
import unittest
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import App, RunFailed, RunTimedOut, sleep, wait_for
from holdfast.errors import InvalidArguments
from holdfast.ready import RateGate
from holdfast.testing import HoldfastTestWarning, Lab, RealWork, RunStuck, World
from support import lab_shop as shop
from support.postgres import server

PLUGIN = "holdfast.testing.pytest_plugin"
stores = pytest.mark.parametrize("lab", ["memory", "sqlite", "postgres"], indirect=True)


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab on each store."""
    kind = getattr(request, "param", "memory")
    with Lab(server().url if kind == "postgres" else kind) as lab:
        yield lab


@stores
def test_a_job_of_forty_days_is_told_step_by_step(lab: Lab, world: World) -> None:
    lab.replace(shop.charge, world.tool(shop.receipt))
    begun = lab.now
    run = lab.start(shop.checkout, "A1", card="4242")
    lab.until_waiting(run, "shipped")
    assert timedelta(hours=1) <= lab.now - begun < timedelta(hours=1, seconds=5)
    lab.advance("2d")
    run.signal("shipped")
    assert lab.result(run) == "receipt for 200 cents"
    assert timedelta(days=32, hours=1) <= lab.now - begun < timedelta(days=32, hours=1, seconds=5)
    assert world.calls(shop.charge) == [{"card": "4242", "cents": 200}]
    assert world.at_most_once(shop.charge)


@stores
def test_plain_functions_and_children_take_no_virtual_time(lab: Lab) -> None:
    begun = lab.now
    assert lab.result(lab.start(shop.family, 5)) == [2, 3, 4, 5, 6]
    assert timedelta(days=10) <= lab.now - begun < timedelta(days=10, seconds=5)


@stores
def test_time_moves_only_when_the_test_asks_for_it(lab: Lab) -> None:
    begun = lab.now
    run = lab.start(shop.dated)
    assert lab.now == begun
    lab.advance("47h")
    assert run.record().status == "running" or run.record().finished_at is None
    lab.advance(timedelta(hours=1))
    assert run.record().status == "succeeded"
    assert lab.result(run) == (begun + timedelta(days=2)).date().isoformat()
    assert lab.now == begun + timedelta(days=2)


def test_the_first_time_can_be_chosen() -> None:
    with Lab(start_at=datetime(2028, 2, 27, 12, tzinfo=UTC)) as lab:
        assert lab.result(lab.start(shop.dated)) == "2028-02-29"
    with pytest.raises(InvalidArguments, match="time zone"):
        Lab(start_at=datetime(2028, 1, 1))  # noqa: DTZ001 - refused


def test_a_deadline_ends_a_run_in_virtual_time(lab: Lab) -> None:
    begun = lab.now
    with pytest.raises(RunTimedOut):
        lab.result(lab.start(shop.endless))
    assert lab.now - begun < timedelta(hours=1, minutes=1)


def test_retries_pause_in_virtual_time(lab: Lab, world: World) -> None:
    def declined(card: str, cents: int) -> str:
        raise ValueError(f"{card} has no {cents}")

    lab.replace(shop.charge, world.tool(declined))
    with pytest.raises(RunFailed, match="4242 has no 200"):
        lab.result(lab.start(shop.checkout, "A1", card="4242"))


def test_a_run_that_waits_for_the_test_is_named(lab: Lab, world: World) -> None:
    lab.replace(shop.charge, world.tool())
    run = lab.start(shop.endless)
    with pytest.raises(RunStuck, match="does not wait for 'shipped'"):
        lab.until_waiting(run, "shipped")
    begun = lab.now
    app = App("other", "memory:")

    @app.job
    async def forgotten() -> None:
        await wait_for("an answer")

    stuck = lab.start(forgotten)
    with pytest.raises(RunStuck, match="'an answer'"):
        lab.result(stuck)
    assert lab.now - begun < timedelta(days=1), "a run that is stuck does not move the time by years"


def test_a_sleep_and_a_child_are_not_what_until_waiting_looks_for(lab: Lab) -> None:
    app = App("sleeper", "memory:")

    @app.job
    async def child() -> None:
        await sleep("2d")

    @app.job
    async def job() -> None:
        await sleep("1d")
        await child()
        await wait_for("approval")

    begun, run = lab.now, lab.start(job)
    lab.until_waiting(run)
    assert lab.now - begun == timedelta(days=3)
    assert [event.type for event in lab.history(run)].count("job_waiting") == 3


def test_a_misspelt_key_is_told_with_the_right_one(lab: Lab, world: World) -> None:
    lab.replace(shop.charge, world.tool(shop.receipt))
    with pytest.raises(RunStuck, match="does not wait for 'shiped', it waited for 'shipped': It has failed"):
        lab.until_waiting(lab.start(shop.checkout, "A1", card="4242"), "shiped")


@pytest.mark.parametrize("act", ["result", "until_waiting", "crash_everywhere", "replays"])
def test_a_failure_points_at_the_line_of_the_test(lab: Lab, act: str) -> None:
    app = App("failing", "memory:")

    @app.job
    async def job() -> None:
        raise KeyError("typo")

    run = lab.start(job)
    target = job if act == "crash_everywhere" else run if act != "replays" else "not a run"
    with pytest.raises(Exception, match=r"typo|ended|lab\.start") as caught:
        getattr(lab, act)(target)
    assert caught.traceback.filter(caught)[-1].path == Path(__file__)


def test_a_run_that_ends_does_not_wait(lab: Lab) -> None:
    with pytest.raises(RunStuck, match="does not wait for 'x'"):
        lab.until_waiting(lab.start(shop.dated), "x")


def test_an_app_has_its_own_store_again_after_the_lab() -> None:
    app = App("own", "memory:")
    own = app.store()
    with Lab() as lab:
        lab.use(app)
        assert app.store() is not own
    assert app.store() is own


def test_a_thread_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> None:
    monkeypatch.setattr("holdfast.testing.virtual_loop.REAL_SECONDS", 0.05)
    app = App("slow", "memory:")
    ended: list[bool] = []

    @app.step
    def slow() -> None:
        while not ended:
            time.sleep(0.01)

    @app.job
    def job() -> None:
        slow()
        sleep("1d")

    run = lab.start(shop.dated)
    with pytest.raises(RealWork, match=r"a function in a thread.*test_lab\.py"):
        lab.result(lab.start(job))
    ended.append(True)
    assert lab.result(run)


def test_a_thread_is_named_although_the_loop_is_woken_now_and_then(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> None:
    """The watchdog of the worker asks the loop each second whether it answers."""
    monkeypatch.setattr("holdfast.testing.virtual_loop.REAL_SECONDS", 0.3)
    monkeypatch.setattr("holdfast.engine.watchdog.LOOK_SECONDS", 0.05)
    app = App("slow", "memory:")
    ended: list[bool] = []

    @app.job
    def job() -> None:
        while not ended:
            time.sleep(0.01)

    with pytest.raises(RealWork, match="a function in a thread"):
        lab.start(job)
    ended.append(True)


def test_code_that_blocks_the_loop_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.virtual_loop.REAL_SECONDS", 0.1)
    app = App("blocking", "memory:")
    ended = threading.Event()

    @app.step
    async def blocks() -> None:
        ended.wait(60)

    @app.job
    async def job() -> None:
        await blocks()

    with Lab() as lab:
        with pytest.raises(RealWork, match=r"the event loop has been blocked .* at .*test_lab\.py:\d+: use asyncio"):
            lab.start(job)
        with pytest.raises(RealWork, match="blocked"):
            app.list()
    ended.set()


def test_a_job_that_never_ends_is_named(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> None:
    monkeypatch.setattr("holdfast.testing.virtual_loop.SETTLE_SECONDS", 0.3)
    app = App("endless", "memory:")

    @app.job
    async def polls() -> None:
        for _ in itertools.count():
            await asyncio.sleep(60)

    with pytest.raises(RealWork, match="a job that never ends"):
        lab.result(lab.start(polls))


def test_gates_and_limits_use_the_virtual_time(lab: Lab) -> None:
    app = App("gated", "memory:")
    gate = RateGate(1, per=3600)

    @app.step(gate=gate)
    async def call(number: int) -> int:
        return number

    @app.job
    async def job() -> list[int]:
        return [await call(number) for number in range(3)]

    begun = lab.now
    assert lab.result(lab.start(job)) == [0, 1, 2]
    assert timedelta(hours=2) <= lab.now - begun < timedelta(hours=2, minutes=1)
    with Lab() as another:
        begun = another.now
        assert another.result(another.start(job)) == [0, 1, 2]
        assert another.now - begun < timedelta(hours=3, minutes=1), "the gate's time goes on, and does not jump"


def test_the_result_of_a_handle_lets_the_time_move(lab: Lab) -> None:
    assert lab.start(shop.plain, 1).result() == 3
    with pytest.raises(TimeoutError):
        lab.start(shop.plain, 1).result(timeout=60)


def test_a_call_with_options_is_replaced_as_well(lab: Lab) -> None:
    app = App("keyed", "memory:")

    @app.tool
    async def charge() -> str:
        return "REAL"

    once = charge.options(key="k")

    @app.job
    async def job() -> str:
        return await once()

    lab.replace(charge, lambda: "fake")
    assert lab.result(lab.start(job)) == "fake"


def test_a_run_of_another_lab_is_refused(lab: Lab) -> None:
    run = lab.start(shop.plain, 1)
    with Lab() as other, pytest.raises(InvalidArguments, match="not started in this lab"):
        other.result(run)


def test_a_world_knows_for_what_it_stands(lab: Lab, world: World) -> None:
    shared = world.tool()
    lab.replace(shop.charge, shared)
    lab.replace(shop.price, shared)
    with pytest.raises(InvalidArguments, match="no stand-in for 'chrage'; it has: charge, price"):
        world.at_most_once("chrage")
    assert world.count(shop.price) == 0


def test_a_silent_socket_is_named_and_does_not_hold_the_time(monkeypatch: pytest.MonkeyPatch, lab: Lab) -> None:
    monkeypatch.setattr("holdfast.testing.virtual_loop.REAL_SECONDS", 0.05)
    app = App("net", "memory:")

    @app.step
    async def call() -> str:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            reader, writer = await asyncio.open_connection(*silent.getsockname())
            try:
                await asyncio.wait_for(reader.read(1), 60)
            except TimeoutError:
                return "no answer"
            finally:
                writer.close()
                await writer.wait_closed()
        return "answer"

    @app.job
    async def job() -> str:
        return await call()

    with pytest.warns(HoldfastTestWarning, match="a socket"):
        assert lab.result(lab.start(job)) == "no answer"


def test_a_test_with_a_running_loop_uses_it_as_well(lab: Lab) -> None:
    async def story() -> str:
        return str(lab.result(lab.start(shop.dated)))

    assert asyncio.run(story()) == (lab.now).date().isoformat()


def test_only_steps_and_tools_are_replaced(lab: Lab) -> None:
    with pytest.raises(InvalidArguments, match="must be a step or tool"):
        lab.replace(shop.checkout, lambda: None)  # type: ignore[arg-type]


class TestWithUnittest(unittest.TestCase):
    """The lab as a context manager."""

    def test_it(self) -> None:
        lab = self.enterContext(Lab())
        assert lab.result(lab.start(shop.plain, 1)) == 3


def run_pytest(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN, "test_it.py", *options]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # so that it is there once
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def test_the_plugin_needs_no_set_up(tmp_path: Path) -> None:
    code = """
import pytest
from holdfast import App, sleep
app = App("shop", "memory:")

@app.tool
def charge(cents: int) -> str: ...

@app.job
async def job() -> str:
    await sleep("3d")
    return await charge(cents=5)

@pytest.mark.holdfast(store="sqlite")
def test_job(lab, world):
    lab.replace(charge, world.tool(lambda cents: f"paid {cents}"))
    assert lab.result(lab.start(job)) == "paid 5"
    assert world.count(charge) == 1
"""
    ran = run_pytest(tmp_path, code)
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"holdfast": PLUGIN}


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "testing.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    ran = run_pytest(tmp_path, code, "--holdfast-record")
    assert "7 passed" in ran.stdout, ran.stdout + ran.stderr
    changed = code.replace("await price(order)", "200").replace("charge(card, cents)", "charge(card, cents + 1)")
    ran = run_pytest(tmp_path, changed, "-k", "old_runs")
    assert "test_it-test_old_runs_go_on-1.json: checkout no longer fits this history" in ran.stdout
    assert "charge(card='4242', cents=201)" in ran.stdout
    for path in (tmp_path / "histories").iterdir():
        path.unlink()
    assert "run pytest with --holdfast-record" in run_pytest(tmp_path, code, "-k", "old_runs").stdout
