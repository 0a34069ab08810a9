"""Secrets that come over HTTP: encrypted on arrival, never shown, and no way to have those of others used (S14)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import App, InvalidArguments, Secret
from support.codec import HmacCodec
from support.shell import Shell
from support.stories import drain, play, quick
from support.web import near, served

TARGET = """
from holdfast import App, Secret
from support.codec import HmacCodec

app = App("shop", codec=HmacCodec(b"k" * 32))
app.env_secrets = {"SHOP_KEY"}

@app.job
async def pay(key: Secret[str], spare: Secret[str] | None = None) -> int:
    return len(key.reveal())
"""


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    made = App("shop", config=quick(f"sqlite:///{tmp_path / 'jobs.db'}"), codec=HmacCodec(b"k" * 32))

    @made.job
    async def pay(key: Secret[str]) -> Secret[str]:
        return Secret(key.reveal() + "!")

    @made.job
    async def plain(key: str) -> None: ...

    yield made
    made.close()


def test_a_secret_that_comes_over_http_is_encrypted_on_arrival_and_never_shown(app: App) -> None:
    token = f"sk-live-{secrets.token_hex(16)}"

    async def story() -> None:
        async with near(app) as web:

            async def create(**args: Any) -> Any:
                return await web.post("/api/v1/runs", json={"plugin_id": "shop", "entry_id": "pay", "args": args})

            made = await create(key=token)
            assert made.status_code == 201, made.text
            run = made.json()["run_id"]
            await drain(app)
            parts = ["", "/events", "/exports", "/explain"]
            answers = [await web.get(f"/api/v1/runs/{run}{part}") for part in parts]
            events = answers[1].text
            assert all(token not in answer.text for answer in [made, *answers])
            assert '"box"' in events
            assert '"job_completed"' in events
            box = (await app.aevents(run))[0].payload["args"]["key"]
            for hostile in (box, {"$secret": {"env": "HOME"}}, 7):
                refused = await create(key=hostile)
                assert refused.status_code in {400, 422}, refused.text
                assert "HOME" not in refused.text.replace("variable 'HOME'", "")
            app.codec = None
            refused = await create(key=token)
            assert refused.status_code in {400, 422}
            assert token not in refused.text
            assert "this app has no codec" in refused.text

    play(story())


def test_a_remote_client_sends_the_value_and_the_command_line_a_name(tmp_path: Path) -> None:
    token = f"sk-live-{secrets.token_hex(16)}"
    target = tmp_path / "shop.py"
    target.write_text(TARGET)
    shell = Shell(tmp_path)
    tests = str(Path(__file__).parents[1])
    shell.environment |= {"PYTHONPATH": tests, "SHOP_KEY": "four"}
    url = shell.environment.pop("HOLDFAST_URL")
    with served(target, url, PYTHONPATH=tests) as server:

        async def story() -> list[str]:
            remote = holdfast.connect(server.url)
            try:
                runs = [await remote.astart("pay", key=Secret(token)), await remote.astart("pay", key=token)]
                runs.append(await remote.astart("pay", key=Secret.env("SHOP_KEY")))
                with pytest.raises(InvalidArguments, match="the variable 'HOME' may not be named by clients"):
                    await remote.astart("pay", key=Secret.env("HOME"))
            finally:
                await remote.aclose()
            return [run.id for run in runs]

        runs = asyncio.run(story())
        far = ["start", "shop", "pay", "--server", server.url]
        runs.append(shell.run(*far, "key=env:SHOP_KEY", "spare=env:SHOP_KEY"))
        for wrong in (["key=plain"], ["key=env:SHOP_KEY", "spare=plain"]):
            assert "is a secret: name an environment variable, such as" in shell.run(*far, *wrong, code=2)
        shell.run("worker", str(target), "--until-idle", "--url", url)
        results = [shell.json("show", run, "--url", url)["status"] for run in runs]
        assert results == ["succeeded"] * 4
        kept = b"".join(path.read_bytes() for path in tmp_path.glob("jobs.db*"))
        assert token.encode() not in kept
