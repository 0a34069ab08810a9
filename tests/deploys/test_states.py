"""Code that has not changed fits a run in any state: waiting, retrying, parked, paused, in doubt, continued."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import (
    App,
    Backoff,
    Plan,
    StepFailed,
    WaitTimeout,
    continue_as,
    gather,
    random,
    sleep,
    spend,
    uuid4,
    wait_for,
)
from holdfast.deploys.run_check import check_run


def declare_failures(app: App, calls: dict[str, Any]) -> list[Any]:
    """Jobs whose calls, waits or own code have failed."""
    price, flaky = calls["price"], calls["flaky"]

    @app.job
    async def retried_by_hand() -> None:
        await price(1)
        await flaky(2)
        await wait_for("go")

    @app.job(retries=2, backoff=Backoff(first_seconds=600))
    async def retried_itself() -> None:
        await price(1)
        raise ValueError("own")

    @app.job
    async def waits_for_a_retry() -> None:
        await price(1)
        await calls["later"](1)

    @app.job
    async def timed_out() -> None:
        try:
            await wait_for("ok", timeout=0.01)
        except WaitTimeout:
            await price(1)
        await wait_for("go", timeout="1h")

    @app.job
    async def child(n: int) -> None:
        if n == 0:
            raise ValueError("no")
        await wait_for("go")

    @app.job
    async def parent() -> None:
        try:
            await child(0)
        except StepFailed:
            await gather(child(1), child(2))

    return [retried_by_hand, retried_itself, waits_for_a_retry, timed_out, parent]


def declare_others(app: App, calls: dict[str, Any]) -> list[Any]:
    """Jobs that come to rest in other ways."""
    price = calls["price"]

    @app.job
    async def raced() -> None:
        wait, call = asyncio.create_task(wait_for("x")), asyncio.create_task(price(1))
        await asyncio.wait([wait, call], return_when=asyncio.FIRST_COMPLETED)
        wait.cancel()
        await asyncio.wait([wait])
        await wait_for("go")

    @app.job
    async def over_budget() -> None:
        await price(1)
        spend(tokens=10)
        await price(2)

    @app.job
    async def in_doubt() -> None:
        await calls["slow"](1)

    @app.job
    def plain() -> None:
        price(1)
        plain_sleep: Any = sleep  # a plain job does not await
        plain_sleep("1h")

    @app.job
    async def continued(n: int = 0) -> None:
        await price(n)
        if n < 2:
            continue_as(n + 1)
        await wait_for("go")

    @app.job
    async def values() -> None:
        await price(len(uuid4()))
        await price(int(1000 * random()))
        await asyncio.to_thread(int)
        await wait_for("go", form=int)

    return [raced, over_budget, in_doubt, plain, continued, values]


def test_unchanged_code_fits_a_run_in_any_state(app: App) -> None:
    fails = [True]

    @app.step
    async def price(n: int) -> int:
        return n

    @app.step
    async def flaky(n: int) -> int:
        if fails:
            raise ValueError("not yet")
        return n

    @app.step(retries=3, backoff=Backoff(first_seconds=600))
    async def later(n: int) -> int:
        raise ValueError(str(n))

    @app.tool(timeout=0.01)
    async def slow(n: int) -> int:
        await asyncio.sleep(5)
        return n

    calls = {"price": price, "flaky": flaky, "later": later, "slow": slow}
    jobs = {job.name: job for job in [*declare_failures(app, calls), *declare_others(app, calls)]}
    one = {"id": "one", "kind": "call", "call": "price", "args": {"n": 1}}
    jobs["planned"] = app.plan("planned", Plan.from_dict({"nodes": [one, {"id": "go", "kind": "wait"}]}))
    jobs["over_budget"] = jobs["over_budget"].options(budget={"tokens": 5})
    runs = {name: job.start().id for name, job in jobs.items()}
    app.worker().run(until_idle=True)
    fails.clear()
    app.retry(runs["retried_by_hand"], actor="ana", reason="again")
    app.worker().run(until_idle=True)
    runs["successor"] = app.current(runs["continued"])
    runs["paused"] = jobs["values"].start().id
    app.pause(runs["paused"])
    stages = {name: app.get(run).stage for name, run in runs.items()}
    for name, run in runs.items():
        found = app.block(check_run(app, app.events(run)))
        assert (found.verdict, found.reasons, found.unused, found.unreached) == ("fits", [], [], 0), name
    assert {"in_doubt", "paused", "retrying", "parked"} <= set(stages.values())
