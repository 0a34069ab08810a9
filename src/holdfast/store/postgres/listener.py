"""The listener: receives NOTIFY of other processes' commits, sends most of this process's, and holds session locks.

It is a thread with its own connection. Notices are hints. While the connection is down none arrive; when it is back,
all subscribers get one notice. It sends notices so that no commit waits for them. Those of many commits in a
row share a transaction. The session locks show which workers of this process are alive. A new connection takes them
again.

A pooler gives no session to listen in. A lock would belong to another session, and its release would show a live worker
as dead. Then the listener receives nothing and takes no lock; see `is_a_session`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager

import psycopg

from holdfast.store.commands import ASKED, EVENTS, ROOM, WORK
from holdfast.store.postgres.call_timeout import CallWatcher
from holdfast.store.postgres.connection import is_a_session
from holdfast.store.postgres.schema import Connection, number_of

EVERYTHING = EVENTS | WORK | ASKED | ROOM
AGAIN_SECONDS = 0.2  # between tries to connect
TURN_SECONDS = 0.5  # how long the thread sleeps without a notice
EXIT_SECONDS = 1.0  # how long the end of the process waits until the last notice is sent
NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"  # waits for no disk

_listeners: weakref.WeakSet[Listener] = weakref.WeakSet()  # of this process


def lock_key(schema: str, worker: str) -> int:
    """Return the number of a worker's session lock."""
    return number_of(f"holdfast:worker:{schema}:{worker}")


class Listener:
    """Listens on one schema's channel.

    Args:
        connect: opens a connection; not through a pooler in transaction mode.
        schema: the schema whose channel it is.
        tell: is called from the listening thread with the change flags of another process.
        watch: shuts the connection down if the server does not reply.
    """

    def __init__(
        self, connect: Callable[[], Connection], schema: str, tell: Callable[[int], None], watch: CallWatcher
    ) -> None:
        self.heard = 0  # grows with every notice of another process
        self._connect = connect
        self._schema = schema
        self._tell = tell
        self._watch = watch
        self._me = uuid.uuid4().hex
        self.workers: set[str] = set()  # whose locks are wanted
        self.locks: dict[str, int] = {}  # those that this connection has
        self._held: set[str] = set()  # those that are recorded in the worker's row
        self.connection: Connection | None = None  # the one that listens
        self._unsent = 0  # change flags of a notice to be sent
        self._is_sending = False  # whether the thread sends notices, or will in a moment
        self._sent = threading.Event()  # whether there is none to be sent
        self._sent.set()
        self._stopping = threading.Event()
        self._pipe, self._closed = threading.Lock(), False
        self._wake_read, self._wake_write = os.pipe()  # through which this process wakes the thread
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._thread = threading.Thread(target=self._run, name="holdfast-listener", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        _listeners.add(self)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and release the locks."""
        self._stopping.set()
        self.wake()
        if self._thread.is_alive():
            self._thread.join()
        with self._pipe:
            if not self._closed:
                os.close(self._wake_read)
                os.close(self._wake_write)
            self._closed = True

    def hold(self, worker: str) -> None:
        """Take a worker's session lock as soon as possible, and keep it."""
        self.workers.add(worker)
        self.wake()

    def wake(self) -> None:
        """Wake the thread to take missing locks, and to report them."""
        with self._pipe, contextlib.suppress(BlockingIOError):  # full: the thread will wake anyway
            if not self._closed:  # else the number may be that of another file by now
                os.write(self._wake_write, b"!")

    def send(self, change: int) -> bool:
        """Let the thread send a notice of a commit; return False if it cannot, because it has no connection."""
        with self._pipe:
            if not self._is_sending:
                return False
            self._unsent |= change
            self._sent.clear()
        self.wake()
        return True

    def flush(self, seconds: float) -> None:
        """Wait until all notices are sent, but not for longer."""
        if self._thread.is_alive():  # it is not in a forked child
            self._sent.wait(seconds)

    def message(self, change: int) -> tuple[str, str]:
        """Return the channel and the payload of a notice."""
        return self._channel, f"{change}:{self._me}"

    @property
    def _channel(self) -> str:
        return f"holdfast_{self._schema}"

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._connect() as connection:
                    self.connection = connection
                    self.locks.clear()
                    self._held.clear()
                    with self._watched(connection):
                        if not is_a_session(connection):
                            break
                        connection.execute(f"LISTEN {self._channel}")
                    self._hear(EVERYTHING)  # earlier notices were lost
                    self._is_sending = True
                    self._listen(connection)
                    self._stop_sending()
                    self._send_notices(connection)
            except psycopg.Error:
                self._stop_sending()
                self._stopping.wait(AGAIN_SECONDS)
            finally:
                self._stop_sending()

    def _stop_sending(self) -> None:
        """Take no more notices to send: from here on the connection that writes sends them. The last ones stay."""
        with self._pipe:
            self._is_sending = False
        self._sent.set()

    def _send_notices(self, connection: Connection) -> None:
        """Send one notice for all commits since the last.

        If the connection has ended, the next one sends it. If the server refuses it, it is lost, and the others poll.
        """
        with self._pipe:
            change, self._unsent = self._unsent, 0
        if change:
            try:
                with self._watched(connection):
                    connection.execute(NOTIFY, self.message(change))
            except psycopg.Error:
                if connection.closed:
                    with self._pipe:
                        self._unsent |= change
                    raise
        with self._pipe:
            if not self._unsent:
                self._sent.set()

    def _listen(self, connection: Connection) -> None:
        waiting = select.poll()  # not select(): it fails in a process with many files
        for descriptor in (connection.fileno(), self._wake_read):
            waiting.register(descriptor, select.POLLIN)
        answered = time.monotonic()
        while not self._stopping.is_set():
            self._send_notices(connection)
            for worker in self.workers - self._held:
                with self._watched(connection):
                    self._lock(connection, worker)
            waiting.poll(TURN_SECONDS * 1000)
            if time.monotonic() - answered > self._watch.seconds:  # it may be dead without any error
                with self._watched(connection):
                    connection.execute("SELECT 1")
                answered = time.monotonic()
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 100)
            for notice in connection.notifies(timeout=0):
                change, _, sender = notice.payload.partition(":")
                if sender != self._me:
                    self._hear(int(change) if change.isdecimal() else EVERYTHING)

    def _watched(self, connection: Connection) -> AbstractContextManager[None]:
        return self._watch.over(connection, self._watch.deadline())

    def _lock(self, connection: Connection, worker: str) -> None:
        """Take a worker's lock, then record it in the worker's row. The next turn repeats a failed try."""
        key = lock_key(self._schema, worker)
        if worker not in self.locks:
            row = connection.execute("SELECT pg_try_advisory_lock_shared(%s)", (key,)).fetchone()
            if row is None or not row[0]:
                return  # an older release holds it exclusively, and its connection is still open
            self.locks[worker] = key
        updated = connection.execute(f"UPDATE {self._schema}.workers SET lock_key = %s WHERE name = %s", (key, worker))
        if updated.rowcount == 1:
            self._held.add(worker)

    def _hear(self, change: int) -> None:
        self.heard += 1
        self._tell(change)


@atexit.register
def _flush_all() -> None:
    """Send the notices of the last commits before the process ends."""
    for listener in list(_listeners):
        listener.flush(EXIT_SECONDS)
