"""A process that has a SQLite file open, and forks: the file stays whole, and both processes know where they stand."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

START = """
import asyncio, fcntl, multiprocessing, os, sqlite3, subprocess, sys, threading, warnings
import apsw
from holdfast import App
from holdfast.errors import StoreReplaced, StoreUnavailable
from holdfast.store import Submit
from holdfast.store.sqlite.store import SqliteStore

warnings.simplefilter("ignore")
path = sys.argv[1]

def submit(name):
    return Submit(job=name, plugin="shop", entry="checkout", args={})

def forked(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def open_in_child():
    own = SqliteStore(path)
    own.commit_blocking([submit("child")])
    asyncio.run(own.close())

def refused_in_child():
    try:
        open_in_child()
    except StoreUnavailable as error:
        assert "a transaction was under way" in str(error), error
    else:
        raise AssertionError("not refused")

LOOK = '''import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])
connection.close()'''

def look_from_outside():
    return int(subprocess.run([sys.executable, "-c", LOOK, path], capture_output=True, text=True, check=True).stdout)
"""


def run(code: str, path: Path) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", START + code, str(path)], capture_output=True, text=True, check=False, timeout=100
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def jobs(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {name for (name,) in connection.execute("SELECT id FROM jobs")}
    finally:
        connection.close()


def test_a_file_that_was_replaced_around_a_fork_is_noticed_by_the_parent(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    code = """
store = SqliteStore(path)
store.commit_blocking([submit("a")])
assert forked(lambda: [os.rename(path, path + ".old"), sqlite3.connect(path).execute("CREATE TABLE other (x)")]) == 0
for work in (lambda: store.commit_blocking([submit("b")]), lambda: asyncio.run(store.get("a"))):
    try:
        work()
    except StoreReplaced as error:
        assert error.file == path, error
    else:
        raise AssertionError("not noticed")
asyncio.run(store.close())
"""
    run(code, path)
    connection = sqlite3.connect(path)
    assert [name for (name,) in connection.execute("SELECT name FROM sqlite_master")] == ["other"]
    connection.close()


def test_a_log_that_was_deleted_around_a_fork_is_noticed_by_the_parent(tmp_path: Path) -> None:
    code = """
store = SqliteStore(path)
store.commit_blocking([submit("a")])
assert forked(lambda: os.unlink(path + "-wal")) == 0
try:
    store.commit_blocking([submit("b")])
except StoreReplaced as error:
    assert error.file == path + "-wal", error
else:
    raise AssertionError("not noticed")
"""
    run(code, tmp_path / "jobs.db")


def test_no_program_deletes_the_log_while_the_connections_are_closed_for_a_fork(tmp_path: Path) -> None:
    """Between the fork and the next call the parent has no connection, and holds the log by its own locks."""
    path = tmp_path / "jobs.db"
    code = """
store = SqliteStore(path)
for number in range(5):
    store.commit_blocking([submit(f"job-{number}")])
    log = os.stat(path + "-wal").st_ino
    assert forked(lambda: None) == 0
    assert look_from_outside() == number + 1
    assert os.stat(path + "-wal").st_ino == log
    os.close(os.open(path, os.O_RDONLY))  # which drops all POSIX locks that this process has on it
asyncio.run(store.close())
assert not os.path.exists(path + "-wal")
"""
    run(code, path)
    assert jobs(path) == {f"job-{number}" for number in range(5)}


def test_where_the_system_has_no_such_locks_a_log_that_others_have_removed_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    code = """
fcntl.F_OFD_SETLK = 9999
store = SqliteStore(path)
store.commit_blocking([submit("a")])
assert forked(lambda: None) == 0
assert look_from_outside() == 1
assert not os.path.exists(path + "-wal"), "the other program was the last one to close the file"
store.commit_blocking([submit("b")])
assert asyncio.run(store.get("a")) is not None
assert look_from_outside() == 2
os.unlink(path + "-wal")
try:
    store.commit_blocking([submit("c")])
except StoreReplaced:
    pass
else:
    raise AssertionError("not noticed")
"""
    run(code, path)


def test_a_store_that_is_closed_right_after_a_fork_leaves_everything_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    code = """
store = SqliteStore(path)
store.commit_blocking([submit("a")])
assert forked(open_in_child) == 0
asyncio.run(store.close())
"""
    run(code, path)
    assert not Path(f"{path}-wal").exists()
    assert jobs(path) == {"a", "child"}


def test_a_fork_inside_a_transaction_of_the_users_own_says_so_in_the_child(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    code = """
store = SqliteStore(path)
store.commit_blocking([submit("a")])
own = apsw.Connection(path)
assert forked(open_in_child) == 0, "a connection that does nothing is no harm"
own.execute("BEGIN").execute("SELECT count(*) FROM jobs").fetchall()
assert forked(refused_in_child) == 0
own.execute("COMMIT")
store.commit_blocking([submit("b")])
"""
    run(code, path)
    assert jobs(path) == {"a", "b", "child"}


def test_a_fork_inside_a_commit_says_so_in_the_child_and_the_parent_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    code = """
store = SqliteStore(path)
ended = []
store._write_connection.set_commit_hook(lambda: bool(ended.append(forked(refused_in_child))))
store.commit_blocking([submit("a")])
assert ended == [0]
store._write_connection.set_commit_hook(None)
store.commit_blocking([submit("b")])
assert forked(open_in_child) == 0
"""
    run(code, path)
    assert jobs(path) == {"a", "b", "child"}


def test_a_child_keeps_no_descriptor_of_its_parents_store(tmp_path: Path) -> None:
    code = """
def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
def count():
    return sum(map(is_open, range(256)))
before = count()
store = SqliteStore(path)
store.commit_blocking([submit("a")])
store.subscribe(lambda change: None)
store.hold_liveness_lock("worker-1")
def in_child():
    assert count() <= before, (count(), before)
assert forked(in_child) == 0
"""
    run(code, tmp_path / "jobs.db")


def test_forks_under_load_lose_nothing_and_harm_nothing(tmp_path: Path) -> None:
    """A worker runs, a thread starts jobs without pause, two threads fork; each child starts jobs of its own."""
    path = tmp_path / "jobs.db"
    code = """
app = App("shop", f"sqlite:///{path}")

@app.job
async def work(n: int) -> int:
    return n

def in_child():
    for n in range(3):
        work.start(n)
    if os.getpid() % 2:
        app.worker().run(until_idle=True)

def start_many():
    global started
    while not stopping.is_set():
        work.start(0)
        started += 1

def fork_many():
    for _ in range(8):
        child = multiprocessing.get_context("fork").Process(target=in_child)
        child.start()
        child.join()
        ends.append(child.exitcode)

started, ends, stopping, worker = 0, [], threading.Event(), app.worker()
working, starting = threading.Thread(target=worker.run), threading.Thread(target=start_many)
forking = [threading.Thread(target=fork_many) for _ in range(2)]
for thread in (working, starting, *forking):
    thread.start()
for thread in forking:
    thread.join()
stopping.set()
starting.join()
worker.stop()
working.join()
app.worker().run(until_idle=True)
assert ends == [0] * 16, ends
assert app.stats().runs == {"succeeded": started + 3 * 16}, (app.stats().runs, started)
assert app.verify() == {}
print(started + 3 * 16)
app.close()
"""
    expected = int(run(code, path))
    assert len(jobs(path)) == expected
    assert not Path(f"{path}-wal").exists()
