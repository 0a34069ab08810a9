"""A SQLite file next to other programs: readers, writers, backups, and files that are deleted or replaced."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.errors import StoreReplaced, StoreUnavailable
from holdfast.store import Submit
from holdfast.store.sqlite.export import MovingSource
from holdfast.store.sqlite.store import SqliteStore

# A program that knows nothing of Holdfast: Python's own sqlite3, another SQLite than the one the store is built on.
READER = """
import sqlite3, sys
for line in sys.stdin:
    connection = sqlite3.connect(sys.argv[1], timeout=30)
    print(connection.execute("SELECT count(*) FROM jobs").fetchone()[0], flush=True)
    connection.close()
"""

# A process that keeps jobs in the file, one for each line it is told.
WRITER = """
import sys
from holdfast.store import Submit
from holdfast.store.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
for line in sys.stdin:
    store.commit_blocking([Submit(job=line.strip(), plugin="shop", entry="checkout", args={"filler": "x" * 3000})])
    print("kept", flush=True)
"""


class Other:
    """Another process, that answers each line with a line."""

    def __init__(self, code: str, *arguments: object) -> None:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str = "go") -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> int:
        self.process.communicate()
        return self.process.returncode


def submit(name: str) -> Submit:
    return Submit(job=name, plugin="shop", entry="checkout", args={"filler": "x" * 3000})


def fresh_look(path: Path) -> set[str]:
    """Read the file as a program that was just started would, and have SQLite check all of it."""
    connection = sqlite3.connect(path, timeout=30)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {name for (name,) in connection.execute("SELECT id FROM jobs")}
    finally:
        connection.close()


def test_other_programs_that_read_and_close_the_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    store.commit_blocking([submit("first")])
    log = Path(f"{path}-wal").stat().st_ino
    writer, reader = Other(WRITER, path), Other(READER, path)
    kept = {"first"}
    for number in range(40):
        assert writer.ask(f"there-{number}") == "kept"
        store.commit_blocking([submit(f"here-{number}")])
        kept |= {f"there-{number}", f"here-{number}"}
        assert reader.ask() == str(len(kept)), "an acknowledged job is not seen by others"
        assert Path(f"{path}-wal").stat().st_ino == log, "the log was deleted under a process that writes to it"
    assert (reader.end(), writer.end()) == (0, 0)
    assert fresh_look(path) == kept
    asyncio.run(store.close())
    assert fresh_look(path) == kept


def test_a_second_store_in_the_process_that_is_closed_leaves_the_first_its_locks(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store, second = SqliteStore(path), SqliteStore(path)
    store.commit_blocking([submit("a")])
    log = Path(f"{path}-wal").stat().st_ino
    asyncio.run(second.close())
    reader = Other(READER, path)
    assert reader.ask() == "1"
    assert reader.end() == 0
    assert Path(f"{path}-wal").stat().st_ino == log
    store.commit_blocking([submit("b")])
    assert fresh_look(path) == {"a", "b"}
    asyncio.run(store.close())


def test_a_connection_of_the_users_own_code_keeps_its_locks_when_a_store_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    first = SqliteStore(path)
    first.commit_blocking([submit("a")])
    own = apsw.Connection(str(path))
    assert own.execute("SELECT count(*) FROM jobs").get == 1
    log = Path(f"{path}-wal").stat().st_ino
    asyncio.run(first.close())
    reader = Other(READER, path)
    assert reader.ask() == "1"
    assert Path(f"{path}-wal").stat().st_ino == log, "the log was deleted under a connection"
    second = SqliteStore(path)
    own.close()
    second.commit_blocking([submit("b")])
    assert reader.ask() == "2"
    assert Path(f"{path}-wal").stat().st_ino == log
    assert reader.end() == 0
    asyncio.run(second.close())
    assert fresh_look(path) == {"a", "b"}


def in_the_same_process(path: Path) -> None:
    connection = sqlite3.connect(path, timeout=30)
    connection.execute("SELECT count(*) FROM jobs").fetchone()
    connection.close()


def reading_descriptor(path: Path) -> None:
    path.read_bytes()


def test_the_users_own_code_may_open_and_close_the_file_in_the_same_process(tmp_path: Path) -> None:
    """Closing any descriptor of a file drops the POSIX locks that this process has on it, those of SQLite included."""
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    kept = set()
    log = Path(f"{path}-wal").stat().st_ino
    reader = Other(READER, path)
    opened: list[Callable[[Path], None]] = [in_the_same_process, reading_descriptor]
    for number in range(20):
        opened[number % 2](path)
        kept.add(f"job-{number}")
        store.commit_blocking([submit(f"job-{number}")])
        assert reader.ask() == str(len(kept))
        assert Path(f"{path}-wal").stat().st_ino == log
    assert reader.end() == 0
    asyncio.run(store.close())
    assert fresh_look(path) == kept


def test_closing_in_order_leaves_everything_in_the_file_and_no_log(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    store.commit_blocking([submit("a")])
    asyncio.run(store.close())
    assert {found.name for found in tmp_path.iterdir()} == {"jobs.db", "jobs.db-lock"}
    copy = Path(shutil.copy(path, tmp_path / "copy.db"))
    assert fresh_look(copy) == {"a"}


def test_a_process_that_ends_without_closing_leaves_everything_in_the_file_and_no_log(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    writer = Other(WRITER, path)
    assert writer.ask("a") == "kept"
    assert writer.end() == 0
    assert {found.name for found in tmp_path.iterdir()} == {"jobs.db", "jobs.db-lock"}
    assert fresh_look(path) == {"a"}


def delete_all(path: Path) -> None:
    for found in path.parent.glob(f"{path.name}*"):
        found.unlink()


def delete_the_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def delete_the_shared_memory(path: Path) -> None:
    Path(f"{path}-shm").unlink()


def move_away(path: Path) -> None:
    path.rename(path.with_name("away.db"))


def restore_over(path: Path) -> None:
    """As a restore from a backup does: another file takes the name."""
    other = path.with_name("restored.db")
    store = SqliteStore(other)
    store.commit_blocking([submit("of the backup")])
    asyncio.run(store.close())
    for end in ("-wal", "-shm"):  # which belong to the file of before
        Path(f"{path}{end}").unlink()
    other.replace(path)


REPLACEMENTS = [delete_all, delete_the_log, delete_the_shared_memory, move_away, restore_over]


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_nothing_is_acknowledged_after_a_file_was_deleted_or_replaced(
    replace: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    store.commit_blocking([submit("before")])
    store._write_connection.pragma("wal_checkpoint")  # else it is in the log, and deleted with it
    told = threading.Event()
    store.subscribe(lambda _: told.set())
    replace(path)
    assert told.wait(60), "who waits for news is told to look"
    with pytest.raises(StoreReplaced, match="while this process had it open") as refused:
        store.commit_blocking([submit("after")])
    assert isinstance(refused.value, StoreUnavailable)
    assert refused.value.happened in {"deleted", "replaced"}
    with pytest.raises(StoreReplaced):
        asyncio.run(store.get("before"))
    asyncio.run(store.close())
    if path.exists():
        assert "after" not in fresh_look(path)
    if replace is restore_over:
        assert fresh_look(path) == {"of the backup"}


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_the_very_next_commit_after_a_replacement_is_refused(replace: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    store.commit_blocking([submit("before")])
    replace(path)
    with pytest.raises(StoreReplaced):
        store.commit_blocking([submit("after")])
    asyncio.run(store.close())


def test_a_commit_reads_no_times_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next write has to record a new time, which makes a commit a fifth slower."""
    store = SqliteStore(tmp_path / "jobs.db")
    asked, stat = [], os.stat

    def counted(name: Any) -> os.stat_result:
        asked.append(name)
        return stat(name)

    monkeypatch.setattr(os, "stat", counted)
    store.commit_blocking([submit("a")])
    asyncio.run(store.get("a"))
    monkeypatch.undo()
    asyncio.run(store.close())
    assert not asked or sys.platform != "linux"  # elsewhere the kernel does not tell the names of open files


def test_a_symbolic_link_that_leads_to_another_database_is_noticed(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "old")
    store = SqliteStore(link / "jobs.db")
    store.commit_blocking([submit("before")])
    link.unlink()
    link.symlink_to(tmp_path / "new")
    with pytest.raises(StoreReplaced, match="was deleted"):
        store.commit_blocking([submit("after")])
    asyncio.run(store.close())


def test_a_deleted_file_is_noticed_whatever_it_was_called(tmp_path: Path) -> None:
    """Linux calls an open file that was deleted `jobs.db (deleted)`, which may have been its name."""
    path = tmp_path / "jobs.db (deleted)"
    store = SqliteStore(path)
    path.rename(tmp_path / "jobs.db")
    (tmp_path / "jobs.db").unlink()
    with pytest.raises(StoreReplaced, match="was deleted"):
        store.commit_blocking([submit("after")])
    asyncio.run(store.close())


def test_a_folder_that_is_mounted_over_the_database_is_noticed(tmp_path: Path) -> None:
    """The files stay open and keep their names, but nobody else finds them under these names."""
    code = """
import subprocess, sys
from holdfast.errors import StoreReplaced
from holdfast.store import Submit
from holdfast.store.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1] + "/jobs.db")
subprocess.run(["mount", "--bind", sys.argv[2], sys.argv[1]], check=True)
try:
    store.commit_blocking([Submit(job="a", plugin="shop", entry="checkout", args={})])
except StoreReplaced:
    print("noticed")
"""
    for name in ("folder", "over"):
        (tmp_path / name).mkdir()
    alone = ["unshare", "--map-root-user", "--mount"]  # so that only this process has the mount
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("the system lets no process have its own mounts")
    command = [*alone, sys.executable, "-c", code, str(tmp_path / "folder"), str(tmp_path / "over")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout == "noticed\n", ended.stderr


def test_a_folder_that_was_moved_is_noticed_and_may_come_back(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    store = SqliteStore(folder / "jobs.db")
    folder.rename(elsewhere)
    with pytest.raises(StoreReplaced, match="was deleted"):
        store.commit_blocking([submit("meanwhile")])
    elsewhere.rename(folder)
    store.commit_blocking([submit("after")])
    asyncio.run(store.close())
    assert "after" in fresh_look(folder / "jobs.db")


def test_a_commit_during_which_the_log_was_deleted_is_not_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)

    def delete() -> bool:
        delete_the_log(path)
        return False  # go on with the commit

    store._write_connection.set_commit_hook(delete)
    with pytest.raises(StoreReplaced, match=r"jobs\.db-wal was deleted"):
        store.commit_blocking([submit("a")])
    store._write_connection.set_commit_hook(None)
    asyncio.run(store.close())


def test_a_log_that_was_deleted_is_not_moved_into_the_file_at_the_end(tmp_path: Path) -> None:
    """What others have written since then would be overwritten with pages of before."""
    path = tmp_path / "jobs.db"
    store = SqliteStore(path)
    store.commit_blocking([submit(f"old-{number}") for number in range(50)])
    copy = tmp_path / "copy.db"
    connection = sqlite3.connect(path)
    with sqlite3.connect(copy) as to:
        connection.backup(to)
    to.close()
    connection.close()
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink()
    path.write_bytes(copy.read_bytes())  # the same inode, as cp does it
    asyncio.run(store.close())
    assert len(fresh_look(path)) == 50
    assert path.read_bytes() == copy.read_bytes()


def test_a_store_does_not_depend_on_the_directory_of_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("jobs.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.commit_blocking([submit("a")])
    asyncio.run(store.close())
    assert fresh_look(tmp_path / "jobs.db") == {"a"}


def test_a_link_to_the_file_is_as_good_as_the_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "jobs.db"
    link.symlink_to(tmp_path / "real" / "jobs.db")
    store = SqliteStore(link)
    store.commit_blocking([submit("a")])
    reader = Other(READER, link)
    assert reader.ask() == "1"
    assert reader.end() == 0
    store.commit_blocking([submit("b")])
    asyncio.run(store.close())
    assert fresh_look(link) == {"a", "b"}


def test_processes_that_use_links_to_the_file_share_its_locks(tmp_path: Path) -> None:
    """Else they write at the same time, and do not notice each other's death."""
    (tmp_path / "real").mkdir()
    link, path = tmp_path / "link.db", tmp_path / "real" / "jobs.db"
    link.symlink_to(path)
    here, there = SqliteStore(link), SqliteStore(path)
    here.hold_liveness_lock("w")
    assert asyncio.run(there.dead_workers()) == []
    mover = MovingSource(str(link))
    mover.close()
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("link.db")] == ["link.db"]
    assert {file.name for file in path.parent.iterdir()} >= {"jobs.db-lock", "jobs.db-workers"}
    for store in (here, there):
        asyncio.run(store.close())


# A process that stops in the middle of a transaction, as under a debugger or in a frozen container. The signal goes to
# the thread that commits: where another thread takes it, this one may reach the end of the commit before it stops.
STOPPED = """
import signal, sys, threading
from holdfast.store import Submit
from holdfast.store.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
store._write_connection.set_commit_hook(lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP) or 0)
for line in sys.stdin:
    store.commit_blocking([Submit(job=line.strip(), plugin="shop", entry="checkout", args={})])
    print("kept", flush=True)
"""


def wait_until_stopped(process: subprocess.Popen[str]) -> None:
    found, status = os.waitpid(process.pid, os.WUNTRACED)
    assert found == process.pid
    assert os.WIFSTOPPED(status)


def test_a_stopped_process_that_holds_the_lock_is_named_after_the_busy_time(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(path, busy_seconds=0.3)
    other = Other(STOPPED, path)
    assert other.process.stdin is not None
    assert other.process.stdout is not None
    other.process.stdin.write("theirs\n")
    other.process.stdin.flush()
    wait_until_stopped(other.process)
    expected = rf"process {other.process.pid}, which is stopped, has held the lock .* .kill -CONT {other.process.pid}"
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=expected):
        store.commit_blocking([submit("plain")])
    with pytest.raises(StoreUnavailable, match=expected):
        asyncio.run(store.commit([submit("async")]))
    with pytest.raises(StoreUnavailable, match=expected):
        SqliteStore(path, busy_seconds=0.3)
    assert time.monotonic() - began < 20
    assert asyncio.run(store.get("theirs")) is None, "reads go on"

    other.process.send_signal(signal.SIGCONT)
    assert other.process.stdout.readline() == "kept\n"
    assert other.end() == 0
    store.commit_blocking([submit("later")])
    asyncio.run(store.close())
    assert fresh_look(path) == {"theirs", "later"}, "what was refused was not done after all"


def test_a_process_ends_although_another_one_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    asyncio.run(SqliteStore(path).close())
    other = Other(STOPPED, path)
    assert other.process.stdin is not None
    other.process.stdin.write("theirs\n")
    other.process.stdin.flush()
    wait_until_stopped(other.process)
    environment = {**os.environ, "HOLDFAST_URL": f"sqlite:///{path}", "HOLDFAST_BUSY_SECONDS": "0.3"}
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast", "doctor"],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 5
    assert f"process {other.process.pid}, which is stopped, has held the lock" in ran.stderr
    other.process.kill()
    other.process.communicate()


def test_what_was_asked_for_before_a_store_is_closed_is_done_and_nothing_after_it(tmp_path: Path) -> None:
    async def story() -> None:
        store = SqliteStore(tmp_path / "jobs.db")
        asked = [asyncio.ensure_future(store.commit([submit(f"job-{number}")])) for number in range(5)]
        await asyncio.sleep(0)  # they are with the store now
        await store.close()
        await asyncio.gather(*asked)
        for late in (store.commit([submit("late")]), store.get("job-0")):
            with pytest.raises(StoreUnavailable, match="this store is closed"):
                await late

    asyncio.run(story())
    assert fresh_look(tmp_path / "jobs.db") == {f"job-{number}" for number in range(5)}


def test_a_store_that_is_closed_while_another_process_holds_the_lock_drops_what_waits(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    other = Other(STOPPED, path)
    assert other.process.stdin is not None

    async def story() -> None:
        store = SqliteStore(path)
        assert other.process.stdin is not None
        other.process.stdin.write("theirs\n")
        other.process.stdin.flush()
        await asyncio.to_thread(wait_until_stopped, other.process)
        asked = [asyncio.ensure_future(store.commit([submit(f"job-{number}")])) for number in range(2)]
        plain = asyncio.ensure_future(asyncio.to_thread(store.commit_blocking, [submit("plain")]))
        await asyncio.sleep(0)
        await store.close()
        for waiting in (*asked, plain):
            with pytest.raises(StoreUnavailable, match="this store is closed"):
                await waiting

    asyncio.run(story())
    other.process.send_signal(signal.SIGCONT)
    assert other.end() == 0
    assert fresh_look(path) == {"theirs"}


def test_a_store_that_its_caller_has_dropped_is_closed(tmp_path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for number in range(3):
        store = SqliteStore(tmp_path / "jobs.db")
        store.commit_blocking([submit(f"job-{number}")])
        assert asyncio.run(store.get(f"job-{number}")) is not None
        del store
        gc.collect()
        assert not Path(f"{tmp_path / 'jobs.db'}-wal").exists()
    assert len(list(descriptors.iterdir())) <= before


def test_a_forked_child_keeps_no_lock_of_its_parent(tmp_path: Path) -> None:
    """A fork while a commit is under way leaves the child a copy of the lock's descriptor."""
    path = tmp_path / "jobs.db"
    forking = """
import os, sys, time
from holdfast.store import Submit
from holdfast.store.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
def fork():
    if os.fork() == 0:
        os.close(0), os.close(1), os.close(2)
        time.sleep(60)
        os._exit(0)
    os.kill(os.getpid(), 9)
store._write_connection.set_commit_hook(fork)
print(os.getpgid(0), flush=True)
store.commit_blocking([Submit(job="a", plugin="shop", entry="checkout", args={})])
"""
    process = subprocess.Popen(
        [sys.executable, "-c", forking, str(path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    group = int(process.stdout.readline())
    process.communicate()
    try:
        store = SqliteStore(path, busy_seconds=20)
        store.commit_blocking([submit("b")])
        asyncio.run(store.close())
        assert fresh_look(path) == {"b"}
    finally:
        os.killpg(group, signal.SIGKILL)


def test_a_child_that_was_forked_cannot_use_the_store_of_its_parent_and_does_not_harm_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    code = """
import asyncio, os, sys
from holdfast.errors import StoreUnavailable
from holdfast.store import Submit
from holdfast.store.sqlite.store import SqliteStore
store = SqliteStore(sys.argv[1])
child = os.fork()
if child == 0:
    try:
        store.commit_blocking([])
    except StoreUnavailable as error:
        own = SqliteStore(sys.argv[1])
        own.commit_blocking([Submit(job="child", plugin="shop", entry="checkout", args={})])
        asyncio.run(own.close())
        sys.exit("before fork()" not in str(error))
    sys.exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
for line in sys.stdin:
    store.commit_blocking([Submit(job=line.strip(), plugin="shop", entry="checkout", args={})])
    print("kept", flush=True)
"""
    parent, reader = Other(code, path), Other(READER, path)
    for number in range(5):
        assert parent.ask(f"job-{number}") == "kept"
        assert reader.ask() == str(number + 2)
    assert (parent.end(), reader.end()) == (0, 0)
