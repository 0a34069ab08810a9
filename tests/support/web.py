"""The HTTP API for tests: called in-process, or served by a real process of its own on a free port."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from holdfast import App, wait_for
from holdfast.http import uvicorn_server
from holdfast.http.application import Service
from holdfast.server import asgi
from support.stories import quick

JSON = {"Content-Type": "application/json"}


def near(app: App, **options: Any) -> httpx.AsyncClient:
    """A client that calls the application in this process."""
    peer = options.pop("peer", ("127.0.0.1", 50000))
    base = options.pop("base", "http://localhost")
    service = asgi(app, **options)
    service.readiness.patience_seconds = 60.0  # a store that answers after some seconds is slow, and not away
    transport = httpx.ASGITransport(service, client=peer, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=base)


class Served:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.port = int(url.rpartition(":")[2])

    def resident_bytes(self) -> int:
        """How much memory it holds now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def usual_environment(python: str) -> dict[str, str]:
    """Return the environment of a process of Holdfast, without settings of this test run."""
    left_out = ("COV", "HOLDFAST") if python == sys.executable else ("COV", "HOLDFAST", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


@contextmanager
def served(
    target: Path | str, url: str, *options: str, python: str = sys.executable, **environment: str
) -> Iterator[Served]:
    """Serve a target; its first line says where. Another `python` has a Holdfast of its own and gets no PYTHONPATH."""
    usual = usual_environment(python)
    is_open = [] if environment.keys() & {"HOLDFAST_TOKEN", "HOLDFAST_TOKENS"} else ["--open"]
    command = [python, "-m", "holdfast", "serve", str(target), "--url", url, "--port", "0", *is_open, *options]
    process = subprocess.Popen(command, env={**usual, **environment}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        first = process.stderr.readline()
        found = re.search(r"http://\S+", first)
        assert found, first + process.stderr.read()
        yield Served(process, found[0])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stderr.close()


@contextmanager
def serving(service: Service, parser: str = "auto") -> Iterator[str]:
    """Serve an application from a thread of this process; where."""
    listener = uvicorn_server.listen("127.0.0.1", 0)
    server = uvicorn_server.server(service, parser)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def jobs(app: App) -> App:
    """Declare the jobs."""

    @app.job
    async def greet(name: str) -> str:
        """Greet somebody."""
        return f"hello {name}"

    @app.job
    async def ask(question: str = "?") -> str:
        """Wait for an answer."""
        return f"{question} {await wait_for('answer')}"

    @app.job
    async def fail() -> None:
        """Fail."""
        raise ValueError("no")

    return app


def shop(url: str, **settings: Any) -> App:
    """Give an app with these jobs."""
    return jobs(App("shop", config=quick(url, **settings)))


@contextmanager
def small_shop(folder: Path) -> Iterator[App]:
    """Give the same on SQLite, for what is not about the store."""
    made = shop(f"sqlite:///{folder / 'jobs.db'}", tokens=str(folder / "tokens.json"))
    try:
        yield made
    finally:
        made.close()


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[Any] | None = None) -> None:
    """Look again and again, until something is so; it may come from other processes, of which one must not end."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        assert process is None or process.poll() is None
        time.sleep(0.01)


def statuses(connection: socket.socket, count: int) -> list[int]:
    """Read so many answers from a connection; their status."""
    found = []
    with connection.makefile("rb") as stream:
        for _ in range(count):
            found.append(int(stream.readline().split()[1]))
            heads = dict(line.lower().split(b": ", 1) for line in iter(stream.readline, b"\r\n"))
            stream.read(int(heads[b"content-length"]))
    return found
