"""One measurement of one system: its database, its folder and its processes, all of which end with it."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg

from compare.environments import Environment
from compare.peer import Place, Unsupported
from compare.systems import System
from compare.tally import Tally

BENCH = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """A measurement could not be made; the message stands in its cell."""


class Overdue(Failed):
    """A measurement took too long."""

    def __init__(self, seconds: float, reason: str) -> None:
        super().__init__(f"not done in {seconds:.0f} s" + (f": {reason}" if reason else ""))


class PeerProcess:
    """A process of a peer, which answers commands."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path, due: float) -> None:
        self._log = log
        self._due = due
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._buffer = b""

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def ask(self, command: str, **options: Any) -> Any:
        """Send a command and wait for its answer."""
        self.send(command, **options)
        return self.answer()

    def send(self, command: str, **options: Any) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps({"command": command, **options}) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._last_words()) from None

    def answer(self) -> Any:
        """Wait for the answer to the oldest command."""
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            if not self._selector.select(max(0.0, self._due - time.monotonic())):
                raise TimeoutError
            read = os.read(self._process.stdout.fileno(), 1 << 20)
            if not read:
                raise Failed(self._last_words())
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        if "unsupported" in answer:
            raise Unsupported(answer["unsupported"])
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["value"]

    def check(self) -> None:
        """Raise if the process has ended."""
        if self._process.poll() is not None:
            raise Failed(self._last_words())

    def failure(self) -> str:
        """Ask a process that should be working whether it is; return what is wrong."""
        self._due = time.monotonic() + 1.0
        try:
            self.ask("describe")
        except TimeoutError:
            return ""
        except Failed as failure:
            return str(failure)
        return ""

    def end(self) -> None:
        """Kill the process and those that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() or ["no message"]
        return f"its process ended: {lines[-1]}"


class Session:
    """A fresh database and folder for one system, and its processes; all are removed at the end."""

    def __init__(self, system: System, environment: Environment, server_url: str | None, seconds_max: float) -> None:
        self.system = system
        self.seconds_max = seconds_max
        self._environment = environment
        self._server_url = server_url
        self._due = time.monotonic() + seconds_max
        self._processes: list[PeerProcess] = []
        self._database = f"compare_{os.getpid()}_{time.monotonic_ns()}"

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-compare-"))
        (self.folder / "data").mkdir()
        self.tally = Tally(self.folder / "tally")
        if self.system.database == "postgres":
            self._on_server(f"CREATE DATABASE {self._database}")
        self.place = Place(
            self._url(), str(self.folder / "data"), tuple(free_ports(6)), str(self._environment.programs)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        reasons = [process.failure() for process in self._processes[1:]] if isinstance(error, TimeoutError) else []
        for process in self._processes:
            process.end()
        self.tally.close()
        if self.system.database == "postgres":
            self._on_server(f"DROP DATABASE IF EXISTS {self._database} WITH (FORCE)")
        shutil.rmtree(self.folder, ignore_errors=True)
        if isinstance(error, TimeoutError):
            raise Overdue(self.seconds_max, next(filter(None, reasons), "")) from None

    def process(self) -> PeerProcess:
        """Start a process of the peer."""
        number = len(self._processes)
        place = json.dumps(asdict(self.place))
        command = [self._environment.python, "-m", "compare.process", self.system.peer, place,
                   str(self.folder / "tally"), str(number)]  # fmt: skip
        paths = [str(BENCH), *([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ and self.system.ours else [])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        process = PeerProcess(command, environment, self.folder / f"log-{number}", self._due)
        self._processes.append(process)
        return process

    def caller(self) -> PeerProcess:
        """Start the process that creates the tables and starts jobs."""
        process = self.process()
        process.ask("set_up")
        self.about: dict[str, Any] = process.ask("describe")
        return process

    def workers(self, count: int) -> list[PeerProcess]:
        """Start processes that are ready to work."""
        processes = [self.process() for _ in range(count)]
        for process in processes:
            process.send("open")
        for process in processes:
            process.answer()
        return processes

    def until_some_ended(self) -> int:
        """Wait until the code of a job has ended; return how many jobs that are."""
        while not self.tally.ended:
            self.check()
            time.sleep(0.001)
        return self.tally.ended

    def until_ended(self, jobs: int, caller: PeerProcess) -> None:
        """Wait until so many jobs have ended, first in their code, then in the database."""
        while self.tally.ended < jobs:
            self.check()
            time.sleep(0.001)
        while self.left(caller):
            self.check()
            time.sleep(0.002)

    def check(self) -> None:
        """Raise if the measurement has taken too long, or a process has ended."""
        for process in self._processes:
            process.check()
        if time.monotonic() > self._due:
            raise TimeoutError

    def left(self, caller: PeerProcess) -> int:
        """Return how many jobs have not ended."""
        sql = str(self.about["left_sql"])
        if not sql:
            return int(caller.ask("left"))
        if self.system.database == "postgres":
            with psycopg.connect(self.place.url, autocommit=True) as connection:
                row = connection.execute(sql.format(schema="holdfast.").encode()).fetchone()
        else:
            with closing(sqlite3.connect(self.place.url.removeprefix("sqlite:///"), timeout=30)) as file:
                row = file.execute(sql.format(schema="")).fetchone()
        assert row is not None
        return int(row[0])

    def bytes_on_disk(self) -> int:
        """Return what the database has on disk."""
        if self.system.database == "postgres":
            with psycopg.connect(self.place.url, autocommit=True) as connection:
                connection.execute("CHECKPOINT")
                row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
                assert row is not None
                return int(row[0])
        if self.system.database == "sqlite":
            with closing(sqlite3.connect(self.place.url.removeprefix("sqlite:///"), timeout=30)) as file:
                file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        data = self.folder / "data"
        return sum(path.stat().st_blocks * 512 for path in data.rglob("*") if path.is_file())

    def _url(self) -> str:
        if self.system.database == "postgres":
            assert self._server_url is not None
            return urlunsplit(urlsplit(self._server_url)._replace(path=f"/{self._database}"))
        return f"sqlite:///{self.folder / 'data' / 'jobs.db'}"

    def _on_server(self, statement: str) -> None:
        assert self._server_url is not None
        with psycopg.connect(self._server_url, autocommit=True) as connection:
            connection.execute(statement.encode())


def free_ports(count: int) -> list[int]:
    """Find ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
