"""What `result` says about a run that failed, or has not ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import App, RunFailed, wait_for


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("key", "failed: KeyError: 'sku'"),
        ("assert", "failed: AssertionError"),
        ("group", "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): ValueError: torn"),
    ],
)
def test_a_failure_has_the_type_and_the_message_of_its_error(app: App, how: str, message: str) -> None:
    async def tear() -> None:
        raise ValueError("torn")

    prices: dict[str, int] = {}

    @app.job
    async def work(how: str) -> Any:
        if how == "key":
            return prices["sku"]
        if how == "assert":
            raise AssertionError
        async with asyncio.TaskGroup() as group:
            group.create_task(tear())
        return None

    run = work.start(how)
    app.worker().run(until_idle=True)
    with pytest.raises(RunFailed) as failed:
        run.result(timeout=10)
    assert str(failed.value).endswith(message)


def test_a_result_that_is_not_there_in_time_says_where_the_run_is(app: App) -> None:
    @app.job
    async def work() -> Any:
        return await wait_for("go")

    run = work.start()
    with pytest.raises(TimeoutError, match=rf"run {run.id} has not ended within 0.01 s: it is queued; it continues"):
        run.result(timeout=0.01)
    app.worker().run(until_idle=True)
    with pytest.raises(TimeoutError, match="it is running, parked"):
        run.result(timeout=0.01)
