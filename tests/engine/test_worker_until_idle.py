"""A worker that runs until idle: it returns when the last job has ended."""

from __future__ import annotations

import asyncio

from holdfast import App, Config


def test_the_lease_of_a_job_that_has_ended_is_not_waited_for(url: str) -> None:
    async def story() -> None:
        app = App("shop", config=Config(url=url, lease_seconds=3600, idle_seconds=7200))

        @app.job
        async def order() -> None:
            pass

        await app.astart_many(order, [{} for _ in range(100)])
        async with asyncio.timeout(60):
            await app.worker(concurrency=10).arun(until_idle=True)
        assert (await app.astats()).runs == {"succeeded": 100}
        await app.aclose()

    asyncio.run(story())
