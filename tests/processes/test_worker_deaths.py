"""Real worker processes on a SQLite file: a killed one is noticed at once (L10), and one whose file is gone stops.

The lease is an hour in all of them, so that its end brings nothing about.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import App, Config
from support.scripts import load
from support.stories import TooLate, in_time, play, until

SHOP = """
import asyncio, os, sys
from pathlib import Path
from holdfast import App, attempt

app = App("shop")
folder = Path(os.environ["FOLDER"])
FREE = 99  # this job waits in no worker

@app.step
async def work(number: int) -> int:
    (folder / f"begun-{number}-{os.environ['WHO']}").touch()
    if os.environ["WHO"] == "forks" and os.fork() == 0:
        await asyncio.sleep(60)
        os._exit(0)
    while os.environ["WHO"] != "last" and number != FREE and not (folder / "go").exists():
        await asyncio.sleep(0.01)
    return attempt()

@app.tool
async def act(number: int) -> None:
    with open(folder / "acted", "a") as file:
        file.write(f"{number}\\n")

@app.job
async def job(number: int) -> int:
    found = await work(number)
    await act(number)
    return found
"""


class Workers:
    """Worker processes on one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "jobs.db"
        self.target = folder / "shop.py"
        self.target.write_text(SHOP)
        self.processes: list[subprocess.Popen[str]] = []

    def environment(self, who: str) -> dict[str, str]:
        added = {"HOLDFAST_URL": f"sqlite:///{self.database}", "HOLDFAST_LEASE_SECONDS": "3600"}
        return {**os.environ, **added, "WHO": who, "FOLDER": str(self.folder), "HOLDFAST_SHUTDOWN_SECONDS": "0.1"}

    def start(self, who: str, *options: str, name: str | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "holdfast", "worker", str(self.target), *options]
        command += ["--name", name or who] if "--processes" not in options else []
        process = subprocess.Popen(
            command, env=self.environment(who), stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.processes.append(process)
        return process

    def app(self) -> App:
        os.environ |= {"WHO": "client", "FOLDER": str(self.folder)}
        app = App("shop", config=Config(url=f"sqlite:///{self.database}"))
        app.entries.update(load(self.target).app.entries)
        return app

    async def begun(self, number: int, who: str) -> None:
        await until(lambda: is_there(self.folder / f"begun-{number}-{who}"))

    def lock(self, name: str) -> Path:
        return self.folder / "jobs.db-workers" / f"{name}.lock"

    def end(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
            process.communicate()


async def is_there(path: Path) -> bool:
    return path.exists()


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setenv("WHO", "client")
    monkeypatch.setenv("FOLDER", str(tmp_path))
    made = Workers(tmp_path)
    yield made
    made.end()


async def reclaimed_at(app: App, run: str) -> float:
    """When a run's job was taken from its dead worker, by the clock of the store, which is this host's."""
    events = await app.aevents(run)
    (at,) = [event.at for event in events if event.type == "job_requeued"]
    assert [event.payload["reason"] for event in events if event.type == "job_requeued"] == ["lease_expired"]
    return at


@pytest.mark.parametrize("who", ["first", "forks"])
def test_a_killed_worker_is_noticed_within_a_second_by_another_one_however_long_its_lease(
    who: str, workers: Workers
) -> None:
    """Also if the worker had forked, and the child, which has inherited everything, lives on."""
    numbers = iter(range(10))

    async def story() -> None:
        number = next(numbers)
        first = workers.start(who, name=f"{who}-{number}")
        handle = await app.astart("job", number)
        await workers.begun(number, who)
        last = workers.start("last", name=f"last-{number}")
        await until(lambda: is_there(workers.lock(f"last-{number}")))
        killed = time.time()
        first.kill()
        assert await handle.aresult(timeout=60) == 2
        took = await reclaimed_at(app, handle.id) - killed
        last.terminate()
        assert await asyncio.to_thread(last.wait, 60) == 0
        if took >= 1.0:
            raise TooLate(took)

    app = workers.app()
    play(in_time(story))
    app.close()


@pytest.mark.parametrize("name", ["another", "first", "a name of / any kind"])
def test_a_killed_worker_is_noticed_by_the_one_that_is_started_next(name: str, workers: Workers) -> None:
    """Also if that one has the same name."""

    async def story() -> None:
        app = workers.app()
        first = workers.start("first", name=name if name != "another" else None)
        handle = await app.astart("job", 1)
        await workers.begun(1, "first")
        first.kill()
        first.wait()
        began = time.time()
        last = workers.start("last", name=name)
        assert await handle.aresult(timeout=60) == 2
        assert await reclaimed_at(app, handle.id) - began < 60, "an hour before the end of the lease"
        last.terminate()
        assert await asyncio.to_thread(last.wait, 60) == 0
        assert not (workers.folder / "jobs.db-workers").exists(), "who leaves in order leaves nothing"
        await app.aclose()

    play(story())


def test_a_worker_whose_lock_file_was_deleted_or_replaced_is_not_dead(workers: Workers) -> None:
    async def story() -> None:
        app = workers.app()
        first = workers.start("first")
        handle = await app.astart("job", 1)
        await workers.begun(1, "first")
        lock = workers.lock("first")
        copy = Path(shutil.copy(lock, workers.folder / "copy"))
        lock.unlink()
        assert await app.store().dead_workers() == [], "a missing file is no proof of a death"
        await until(lambda: is_there(lock))
        copied = copy.stat().st_ino
        copy.replace(lock)
        assert await app.store().dead_workers() == [], "nor is a copy of one"
        await until(lambda: has_another_inode(lock, copied))
        assert await app.store().dead_workers() == []
        workers.start("last")
        await until(lambda: is_there(workers.lock("last")))
        other = await app.astart("job", 99)  # whichever worker takes it: by its end, leases were looked after
        assert await other.aresult(timeout=60) == 1
        (workers.folder / "go").touch()
        assert await handle.aresult(timeout=60) == 1, "the job was not taken from its worker"
        first.kill()
        first.wait()
        await until(lambda: is_gone(lock))
        await app.aclose()

    async def has_another_inode(path: Path, inode: int) -> bool:
        return path.stat().st_ino != inode

    async def is_gone(path: Path) -> bool:
        return not path.exists()

    play(story())


def test_a_stopped_worker_is_not_dead(workers: Workers) -> None:
    app = workers.app()
    store = app.store()  # opened before, as the worker may be stopped while it holds the lock
    first = workers.start("first")
    play(until(lambda: is_there(workers.lock("first"))))
    first.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(first.pid, os.WUNTRACED)[1])
    assert asyncio.run(store.dead_workers()) == []
    first.kill()
    first.wait()
    assert asyncio.run(store.dead_workers()) == ["first"]
    app.close()


def delete_everything(workers: Workers) -> None:
    for path in workers.folder.glob("jobs.db*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def move_away(workers: Workers) -> None:
    workers.database.rename(workers.folder / "away.db")


def restore_a_backup(workers: Workers) -> None:
    for end in ("-wal", "-shm"):
        workers.database.with_name(f"jobs.db{end}").unlink()
    workers.database.with_name("backup.db").replace(workers.database)


@pytest.mark.parametrize("replace", [delete_everything, move_away, restore_a_backup])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_whose_file_was_deleted_or_replaced_ends_before_it_acts_again(
    processes: int, replace: Callable[[Workers], None], workers: Workers
) -> None:
    async def story() -> None:
        app = workers.app()
        await app.astart("job", 0)
        await app.aclose()
        shutil.copy(workers.database, workers.folder / "backup.db")
        options = ["--processes", str(processes)] if processes > 1 else []
        worker = workers.start("first", *options)
        await workers.begun(0, "first")
        await until(lambda: are_there(processes))  # else one of them may open the other file, which is no mistake
        replace(workers)
        (workers.folder / "go").touch()
        assert await asyncio.to_thread(worker.wait, 60) == 5
        assert worker.stderr is not None
        assert "while this process had it open, so nothing more is written" in worker.stderr.read()
        assert not (workers.folder / "acted").exists(), (
            "a tool acted although its declaration is in a file that is gone"
        )

    async def are_there(count: int) -> bool:
        return len(list((workers.folder / "jobs.db-workers").glob("*.lock"))) == count

    play(story())
