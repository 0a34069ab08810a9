"""Calls in doubt over HTTP: the filter of runs that ask, and the metric that counts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fuzzing import extended, some_runs
from support.postgres import fresh_url
from support.stories import play
from support.web import near, shop


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
def test_a_call_in_doubt_is_found_by_the_filter_and_counted_by_the_metric(store: str, tmp_path: Path) -> None:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path / 'jobs.db'}"}
    app = extended(shop(urls[store] if store in urls else fresh_url()))

    async def story() -> None:
        runs = await some_runs(app)
        async with near(app) as client:
            listed = {}
            for word in ("yes", "no"):
                items = (await client.get("/api/v1/runs", params={"asks": word})).json()["items"]
                listed[word] = {run["run_id"] for run in items}
            assert listed["yes"] == {runs["pay"]}
            assert listed["no"] == set(runs.values()), "no filter"
            assert "\nholdfast_runs_in_doubt 1\n" in (await client.get("/metrics")).text
            answer = {"step": "charge:1", "answer": "done", "result": "paid"}
            assert (await client.post(f"/api/v1/runs/{runs['pay']}/resolve", json=answer)).status_code == 200
            assert (await client.get("/api/v1/runs?asks=yes")).json()["items"] == []
            assert "\nholdfast_runs_in_doubt 0\n" in (await client.get("/metrics")).text
        await app.aclose()

    play(story())
