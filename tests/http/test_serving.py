"""`holdfast serve` and `holdfast dev` as a user meets them, and the application mounted in others."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import App, Config, InvalidSetting
from holdfast.cli.reloader import sources
from holdfast.http.readiness import Readiness
from holdfast.server import asgi, token
from support.postgres import Server, fresh_schema
from support.scripts import ROOT
from support.shell import Shell
from support.stories import drain, play, quick, until
from support.web import jobs, near, served, serving, small_shop, wait_until

SHOP = ROOT / "examples" / "shop.py"
GREET = {"plugin_id": "shop", "entry_id": "greet", "args": {"name": "Ada"}}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[App]:
    with small_shop(tmp_path) as made:
        yield made


def test_serve_answers_says_where_and_stops_in_order(tmp_path: Path) -> None:
    with served(SHOP, f"sqlite:///{tmp_path / 'jobs.db'}") as server:
        answer = httpx.post(
            f"{server.url}/api/v1/runs",
            json={"plugin_id": "shop", "entry_id": "notify", "args": {"text": "x"}},
            timeout=60,
        )
        assert answer.status_code == 201
        assert "server" not in answer.headers
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


def test_a_signal_before_the_server_serves_stops_it(tmp_path: Path) -> None:
    """The supervisor of `holdfast dev` may end while its server starts."""
    target = tmp_path / "shop.py"
    target.write_text(
        "import signal, uvicorn\nfrom holdfast import App\napp = App('shop')\n"
        "serve = uvicorn.Server.run\n"
        "def signalled(server, sockets=None):\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    serve(server, sockets=sockets)\n"
        "uvicorn.Server.run = signalled\n"
    )
    command = [sys.executable, "-m", "holdfast", "serve", str(target), "--port", "0", "--open"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "dashboard at" in ended.stderr


def test_a_port_that_is_taken_and_a_target_that_is_none_are_one_line_each(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = shell.run("serve", str(SHOP), "--port", str(taken.getsockname()[1]), code=2)
    assert "choose another" in told
    assert "no file is named nothing.py" in shell.run("serve", "nothing.py", code=2)
    (tmp_path / "holdfast-tokens.json").write_text("{no tokens")
    assert "not a token file" in shell.run("serve", str(SHOP), "--port", "0", code=2)
    (tmp_path / "holdfast-tokens.json").unlink()
    assert "a store in memory belongs to one process" in shell.run("dev", str(SHOP), "--url", "memory:", code=2)


def test_dev_serves_works_and_starts_again_when_the_code_changes(tmp_path: Path) -> None:
    """A job is under way when the code changes: it goes on at once, with the new code, though its lease is a minute."""
    target = tmp_path / "shop.py"
    code = (
        "import asyncio\nfrom holdfast import App\napp = App('shop')\n"
        "@app.step\nasync def first() -> int:\n    return 1\n"
        "@app.step\nasync def second() -> str:\n    {second}\n"
        "@app.job\nasync def work() -> str:\n    await first()\n    return await second()\n"
    )
    target.write_text(code.format(second="await asyncio.sleep(3600)"))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api/v1"
    usual = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    settings = {"HOLDFAST_URL": f"sqlite:///{tmp_path / 'jobs.db'}", "HOLDFAST_LEASE_SECONDS": "60"}
    command = [sys.executable, "-m", "holdfast", "dev", str(target), "--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        dev = subprocess.Popen(command, env={**usual, **settings}, cwd=tmp_path, stderr=log)
    try:

        def answers(path: str) -> Any:
            try:
                return httpx.get(f"{url}{path}", timeout=10).json()
            except httpx.TransportError:
                return None

        wait_until(lambda: answers("/stats") is not None, dev)

        def ready() -> tuple[int, dict[str, Any]]:
            told = httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=10)
            return told.status_code, told.json()["gates"][-1]

        wait_until(lambda: ready()[0] == 200, dev)
        assert ready()[1]["gate"] == "worker", (
            "the worker of `dev` is part of what is ready, though a process of its own"
        )
        run = httpx.post(f"{url}/runs", json={"plugin_id": "shop", "entry_id": "work"}, timeout=60).json()["run_id"]
        wait_until(lambda: len((answers(f"/runs/{run}/events") or {"items": []})["items"]) >= 6, dev)
        target.write_text(code.format(second="return 'new'"))
        wait_until(lambda: (answers(f"/runs/{run}/result") or {}).get("result") == "new", dev)
        target.write_text("this is no Python")
        wait_until(lambda: "waiting for a change" in (tmp_path / "log").read_text(), dev)
        target.write_text(code.format(second="return 'newer'"))
        wait_until(lambda: answers("/stats") is not None, dev)
    finally:
        dev.send_signal(signal.SIGTERM)
        assert dev.wait(60) == 0
    told = (tmp_path / "log").read_text()
    assert re.search(r"shop\.py changed: restarting", told)


def test_only_sources_are_watched(tmp_path: Path) -> None:
    for name in ("a.py", "b/c.py", ".hidden/d.py", "node_modules/e.py", "b/f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert {Path(path).name for path in sources(tmp_path)} == {"a.py", "c.py"}


def test_it_is_mounted_under_a_prefix_and_needs_no_lifespan(small: App) -> None:
    async def story() -> None:
        site = Starlette(routes=[Mount("/deep/jobs", asgi(small))])
        transport = httpx.ASGITransport(site, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            made = await client.post("/deep/jobs/api/v1/runs", json=GREET)
            assert (made.status_code, made.headers["location"][:23]) == (201, "/deep/jobs/api/v1/runs/")
            assert (await client.get(made.headers["location"])).json() == made.json()
            assert (await client.get("/deep/jobs/healthz")).status_code == 200
            assert (await client.get("/deep/jobs/openapi.json")).json()["servers"] == [{"url": "/deep/jobs"}]
            assert (await client.get("/deep/jobs/api/v1/runs;/healthz")).status_code == 400
            assert (await small.alist())[0].run_id == made.json()["run_id"], "it shares the app's store"

    play(story())


def test_a_switch_by_prefix_is_all_that_django_needs(small: App) -> None:
    jobs_api = asgi(small)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith("/jobs/")
        await jobs_api({**scope, "root_path": scope.get("root_path", "") + "/jobs"}, receive, send)

    async def story() -> None:
        transport = httpx.ASGITransport(application, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            made = await client.post("/jobs/api/v1/runs", json=GREET)
            assert made.status_code == 201
            assert (await client.get(made.headers["location"])).status_code == 200

    play(story())


def test_a_servers_lifespan_is_taken_part_in(small: App) -> None:
    async def story() -> None:
        told = iter(["lifespan.startup", "lifespan.shutdown"])
        sent: list[str] = []

        async def receive() -> dict[str, Any]:
            return {"type": next(told)}

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await asgi(small)({"type": "lifespan"}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    play(story())


def test_tokens_are_given_in_code_by_file_or_by_settings(tmp_path: Path) -> None:
    async def story() -> None:
        app = jobs(App("shop", config=quick(f"sqlite:///{tmp_path / 'jobs.db'}", token="settings" * 4)))
        async with near(app) as client:
            assert (await client.get("/api/v1/runs")).status_code == 401
            told = await client.get("/api/v1/runs", headers={"Authorization": "Bearer " + "settings" * 4})
            assert told.status_code == 200
        with pytest.raises(TypeError, match="one of read, signal, submit, operate, admin"):
            token("x" * 32, scope="god")
        await app.aclose()

    play(story())


def test_a_server_that_is_going_is_not_ready_and_says_why(small: App) -> None:
    async def story() -> None:
        service = asgi(small)
        service.stop()
        transport = httpx.ASGITransport(service, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.get("/readyz")
            assert (answer.status_code, answer.json()["state"]) == (503, "busy")
            assert answer.json()["reason"] == "the server is stopping"
            assert answer.headers["retry-after"]
            assert (await client.get("/healthz")).status_code == 200

    play(story())


def test_while_the_store_is_away_the_server_is_not_ready_and_says_so_without_details() -> None:
    """A database server of its own is killed under it, and comes back."""
    database = Server()
    try:
        database.start()
        app = jobs(App("shop", config=quick(f"{database.url}?schema={fresh_schema()}")))
        with serving(asgi(app)) as url:
            assert httpx.post(f"{url}/api/v1/runs", json=GREET, timeout=60).status_code == 201
            database.stop()
            wait_until(lambda: httpx.get(f"{url}/readyz", timeout=30).status_code == 503)
            told = httpx.get(f"{url}/readyz", timeout=30)
            assert told.json()["reason"] == "the store does not answer"
            assert told.json()["gates"][1]["held"] == "retry_after"
            assert told.headers["retry-after"] == "2"
            refused = httpx.post(f"{url}/api/v1/runs", json=GREET, timeout=60)
            assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
            assert refused.headers["retry-after"]
            assert "postgres" not in refused.text
            assert "holdfast_store_up 0" in httpx.get(f"{url}/metrics", timeout=30).text
            database.start()
            wait_until(lambda: httpx.get(f"{url}/readyz", timeout=30).status_code == 200)
            assert httpx.get(f"{url}/api/v1/runs", timeout=30).status_code == 200
    finally:
        database.remove()


def test_readiness_asks_the_store_once_a_second_at_most(small: App) -> None:
    async def story() -> None:
        readiness = Readiness(small)
        assert readiness.look_seconds == 1.0
        readiness.look_seconds = 3600.0
        first = await readiness.look()
        assert await readiness.look() is first
        assert first.state == "ready"

    play(story())


def test_a_run_of_another_app_in_the_same_store_is_seen(small: App) -> None:
    async def story() -> None:
        async with near(App("other", config=small.config)) as client:
            run = await small.astart("greet", "Ada")
            await drain(small)

            async def ended() -> bool:
                answer = await client.get(f"/api/v1/runs/{run.id}")
                return bool(answer.json()["status"] == "succeeded")

            await until(ended)
            assert (await client.post("/api/v1/runs", json=GREET)).json()["code"] == "unknown_entry"

    play(story())


def test_a_setting_with_a_token_never_shows_it() -> None:
    with pytest.raises(InvalidSetting) as refused:
        Config(token="hunter2", concurrency=0)  # noqa: S106 - none
    assert "hunter2" not in str(refused.value) + repr(Config(token="hunter2"))  # noqa: S106 - none
