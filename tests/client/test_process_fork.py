"""A process that has used an app, and forks: the child's plain calls work or say why not, and the parent goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.postgres import fresh_url

FORKS = """
import multiprocessing, os, sys, threading, time, traceback, warnings
from holdfast import App, StoreUnavailable

warnings.simplefilter("ignore")
app = App("shop", sys.argv[1])

@app.job
async def work(n: int) -> int:
    return n

def in_child(n):
    try:
        store = parents
        if app.url == "memory:":
            try:
                work.start(n)
            except StoreUnavailable as error:
                assert "belongs to the process that opened it" in str(error), error
                os._exit(0)
            os._exit(4)
        run = work.start(n)
        assert run.record().run_id == run.id
        assert {one.run_id for one in app.list()} >= {run.id, first.id}
        try:
            store.commit_blocking([])
        except StoreUnavailable as error:
            assert "before fork()" in str(error), error
        else:
            os._exit(3)
        if n % 2:
            app.close()
        else:
            app.worker().run(until_idle=True)  # a worker of the child's own
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)

first = work.start(0)
parents = app.store()
worker = app.worker()
working = threading.Thread(target=worker.run)
if sys.argv[2] == "working":
    working.start()
    while first.record().finished_at is None:
        time.sleep(0.01)
for n in range(1, 4):
    pid = os.fork()
    if not pid:
        in_child(n)
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, n
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(n + 10,))
    child.start()
    child.join()
    assert child.exitcode == 0, n
    assert app.get(first.id).run_id == first.id, "the parent's store works as before"
    work.start(100 + n)
if sys.argv[2] == "working":
    worker.stop()
    working.join()
app.worker().run(until_idle=True)
assert {one.status for one in app.list(limit=100)} == {"succeeded"}
assert len(app.list(limit=100)) == (4 if app.url == "memory:" else 10)
assert app.verify() == {}
app.close()
print("all is well")
"""


@pytest.mark.parametrize("parent", ["idle", "working"])
@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_plain_calls_work_in_a_forked_child_and_in_its_parent(backend: str, parent: str, tmp_path: Path) -> None:
    url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path / 'jobs.db'}"}.get(backend) or fresh_url()
    ran = subprocess.run(
        [sys.executable, "-c", FORKS, url, parent], capture_output=True, text=True, check=False, timeout=100
    )
    assert ran.stdout == "all is well\n", ran.stderr
    assert ran.returncode == 0


LOCKED = """
import os, sys, threading, apsw
from holdfast import App, StoreUnavailable

app = App("shop", f"sqlite:///{sys.argv[1]}")

@app.job
async def work() -> None:
    pass

work.start()
held = apsw.Connection(sys.argv[1])
held.execute("BEGIN IMMEDIATE")
starting = threading.Thread(target=work.start)
starting.start()
while not app.store()._writing.locked():
    pass
pid = os.fork()
if not pid:
    try:
        work.start()
    except StoreUnavailable as error:
        os._exit(0 if "a transaction was under way" in str(error) else 2)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
held.execute("ROLLBACK")
starting.join()
assert len(app.list()) == 2
app.close()
print("all is well")
"""


def test_a_fork_in_the_middle_of_a_transaction_says_so_in_the_child(tmp_path: Path) -> None:
    """SQLite takes the locks of the parent's connection for the child's own: the file must not be opened there."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOCKED, str(tmp_path / "jobs.db")],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert ran.stdout == "all is well\n", ran.stderr
    assert ran.returncode == 0
