"""Large results outside the process that made them: over HTTP, in a backup, after a move, after kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import holdfast
from holdfast import App
from holdfast.client.maintenance.move_store import move
from holdfast.server import asgi
from support.postgres import fresh_url
from support.stories import drain, play, quick
from support.web import serving

SIZE = 700_000  # of the result: three pieces
TEXT = "é" * (SIZE // 2)

# A worker that dies between the blob and the event that names it, once. The result is another one each time.
DYING = """
import os, signal, sys
from pathlib import Path
from holdfast import App, Config
from holdfast.engine import job_attempt

url, kind, folder = sys.argv[1:]
app = App("shop", config=Config(url=url, payload_bytes_max=1000, lease_seconds=2.0, idle_seconds=5.0))
tries = Path(folder) / "tries"
put = job_attempt.put_blob

async def put_and_die(attempt, blob, pieces):
    await put(attempt, blob, pieces)
    if tries.read_text() == "x":
        os.kill(os.getpid(), signal.SIGKILL)

job_attempt.put_blob = put_and_die

def made():
    with tries.open("a") as file:
        file.write("x")
    return [len(tries.read_text())] * 300_000

@app.step
async def read() -> list[int]:
    return made()

@app.job
async def of_step() -> int:
    return sum(await read())

@app.job
async def of_job() -> list[int]:
    return made()

if app.list() == []:
    app.start(kind)
app.worker().run(until_idle=True)
(run,) = app.list()
print(run.status, sum(result) if isinstance(result := app.outcome(run.run_id), list) else result)
print(app.verify())
"""


def served_app(url: str) -> App:
    app = App("shop", config=quick(url, payload_bytes_max=1000))

    @app.job
    async def give() -> str:
        return TEXT

    return app


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_large_result_is_the_result_over_http_and_for_the_remote_client(store: str, tmp_path: Path) -> None:
    app = served_app(fresh_url() if store == "postgres" else f"sqlite:///{tmp_path / 'jobs.db'}")

    async def made() -> str:
        run = await app.astart("give")
        await drain(app)
        return run.id

    run = play(made())
    app.close()
    with serving(asgi(app)) as url:
        answer = httpx.get(f"{url}/api/v1/runs/{run}/result")
        assert answer.json() == {"run_id": run, "status": "succeeded", "result": TEXT}
        assert int(answer.headers["content-length"]) == len(answer.content)
        with holdfast.connect(url) as remote:
            assert remote.outcome(run) == TEXT
            (end,) = [event for event in remote.events(run) if event.type == "job_completed"]
            assert (end.payload["result"], end.payload["result_blob"]["size"]) == (None, len(TEXT.encode()) + 2)


def test_a_large_result_is_in_a_backup_and_moves_to_postgresql(tmp_path: Path) -> None:
    url, target = f"sqlite:///{tmp_path / 'jobs.db'}", fresh_url()
    app = served_app(url)

    async def made() -> str:
        run = await app.astart("give")
        await drain(app)
        return run.id

    run = play(made())
    app.close()
    copy = tmp_path / "copy.db"
    shell = [sys.executable, "-m", "holdfast", "backup", str(copy), "--url", url]
    subprocess.run(shell, check=True, capture_output=True)
    moved = move(url, target)
    assert moved.broken == []
    for place in (f"sqlite:///{copy}", target):
        app = served_app(place)
        assert app.outcome(run) == TEXT
        assert app.verify(run) == {}
        app.close()


@pytest.mark.parametrize("kind", ["of_step", "of_job"])
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_worker_killed_between_the_blob_and_its_event_leaves_nothing_that_counts(
    store: str, kind: str, tmp_path: Path
) -> None:
    url = fresh_url() if store == "postgres" else f"sqlite:///{tmp_path / 'jobs.db'}"
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    command = [sys.executable, str(script), url, kind, str(tmp_path)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=os.environ)
    assert again.stdout.split("\n")[:2] == ["succeeded 600000", "{}"], "all of the second try, nothing of the first"
