"""The limits of queues over HTTP, from a remote client, on the command line, and in what `explain` says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast import Limits, QueueFull
from holdfast.client.views import Creation
from support.postgres import fresh_url
from support.scripts import ROOT
from support.shell import Shell
from support.stories import play
from support.web import near, served, shop

SHOP = str(ROOT / "examples" / "shop.py")
GREET = {"plugin_id": "shop", "entry_id": "greet", "args": {"name": "Ada"}}


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_limits_over_http(backend: str, tmp_path: Path) -> None:
    app = shop(fresh_url() if backend == "postgres" else f"sqlite:///{tmp_path / 'jobs.db'}")

    async def story() -> None:
        async with near(app) as client:
            assert (await client.get("/api/v1/limits")).json() == {"items": [], "next": None}
            put = await client.put("/api/v1/limits/default", json={"concurrency": 2, "depth": 1, "weights": {"a": 2}})
            assert put.status_code == 200, put.text
            limits = Limits(queue="default", concurrency=2, depth=1, weights={"a": 2.0})
            assert msgspec.convert(put.json()["limits"], Limits) == limits
            assert (await client.post("/api/v1/runs", json={**GREET, "group": "a"})).status_code == 201
            full = await client.post("/api/v1/runs", json=GREET)
            assert (full.status_code, full.headers["retry-after"], full.json()["code"]) == (429, "1", "queue_full")
            paused = (await client.post("/api/v1/limits/default/pause")).json()
            assert (paused["limits"]["paused"], paused["queued"]) == (True, 1)
            (run,) = [record.run_id for record in await app.alist()]
            said = (await client.get(f"/api/v1/runs/{run}/explain")).json()["explanation"]
            assert "The queue 'default' is paused until an operator resumes it." in said
            assert (await client.post("/api/v1/limits/default/resume")).json()["limits"].get("paused", False) is False
            assert (await client.delete("/api/v1/limits/default")).json()["limits"] == {"queue": "default"}
            assert (await client.put("/api/v1/limits/default", json={"rate": 0})).status_code == 422
            assert (await client.put("/api/v1/limits/default", json={"speed": 1})).status_code in {400, 422}

    play(story())
    app.close()


def test_explain_names_the_limit_that_holds_a_run(tmp_path: Path) -> None:
    app = shop(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.set_limits(Limits(queue="default", rate=1, rate_seconds=3600))
    runs = [app.start("greet", "Ada").id for _ in range(2)]
    app.worker().run(until_idle=True)
    assert sorted(app.get(run).status for run in runs) == ["queued", "succeeded"]
    (held,) = [run for run in runs if app.get(run).status == "queued"]
    assert "The queue 'default' may start 1 jobs in 3600 s. The next start is " in app.explain(held).explanation
    app.close()


def test_limits_from_a_remote_client(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with served(SHOP, url) as server, holdfast.connect(server.url) as client:
        limits = Limits(queue="default", depth=1, rate=30, rate_seconds=60, weights={"acme": 3.0})
        assert client.set_limits(limits, actor="ana").limits == limits
        assert [(state.limits, state.changed_by) for state in client.limits()] == [(limits, "ana")]
        creation = Creation(plugin_id="shop", entry_id="checkout", args={"sku": "A1", "card": "4242"})
        client.create(creation)
        with pytest.raises(QueueFull) as full:
            client.create(creation)
        assert (full.value.queue, full.value.depth) == ("default", 1)
        assert client.pause_queue("default").limits.paused
        assert not client.resume_queue("default").limits.paused
        assert client.clear_limits("default").limits == Limits(queue="default")


def test_limits_on_the_command_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    assert shell.run("limits") == "no queue has limits"
    wanted = ("--concurrency", "5", "--rate", "30/min", "--depth", "1", "--weight", "a=3")
    told = shell.run("limits", "set", "default", *wanted)
    assert told == "default: 0 running of 5, 0 waiting of 1, 30/min (30 left), a weighs 3"
    shell.run("start", SHOP, "checkout", "sku=A1", "card=4242", "--group", "a")
    assert "takes no more" in shell.run("start", SHOP, "checkout", "sku=A1", "card=4242", code=4)
    assert shell.run("limits", "pause", "default").endswith("paused")
    assert "1 waiting of 1" in shell.run("limits")
    (state,) = shell.json("limits")
    assert (state["limits"]["paused"], state["changed_by"]) == (True, "cli")
    assert "paused" not in shell.run("limits", "resume", "default")
    shell.run("limits", "clear", "default")
    assert "not a rate" in shell.run("limits", "set", "default", "--rate", "fast", code=2)
