"""Restate: its own server with its own store, and a Python service on Hypercorn.

The caller starts the server and talks to its ingress over HTTP/1.1 connections that it keeps open. Restate has no queue
that waits for workers: a job starts when it is sent.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from compare.peer import STEPS, Peer

PARTITIONS, SENDERS, STREAMS_MAX = 4, 64, 512
START_SECONDS_MAX, STOP_SECONDS_MAX = 60.0, 30.0
CONFIG = """\
node-name = "compare"
cluster-name = "compare"
base-dir = "{folder}/restate"
auto-provision = true
default-num-partitions = {partitions}
disable-telemetry = true
listen-mode = "tcp"
bind-ip = "127.0.0.1"
bind-port = {node}
log-filter = "error"

[ingress]
bind-port = {ingress}

[admin]
bind-port = {admin}
"""


class Connection:
    """An HTTP/1.1 connection that stays open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request with a body of JSON, and return what the answer has in it."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        content = b"" if body is None else json.dumps(body).encode()
        kind = "content-type: application/json\r\naccept: application/json\r\n" if content else ""
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{kind}content-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines if ": " in line)
        answer = await self._body(reader, fields)
        if not status.split()[1].startswith("2"):
            raise RuntimeError(f"{method} {path}: {status} {answer.decode(errors='replace')}")
        return json.loads(answer) if answer else None

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()

    @staticmethod
    async def _body(reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes:
        if fields.get("transfer-encoding") != "chunked":
            return await reader.readexactly(int(fields.get("content-length", "0")))
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(parts)


class Driver(Peer):
    """The caller owns the server; workers are processes of one service."""

    queued = False
    steps_by = "caller"
    drain_slots = SENDERS

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.node, self.ingress, self.admin, self.service = self.place.ports[:4]
        self.server: subprocess.Popen[bytes] | None = None
        self.connections: list[Connection] = []

    async def set_up(self) -> None:
        """Start the server, and wait until it is ready."""
        path = self.folder / "restate.toml"
        path.write_text(CONFIG.format(folder=self.folder, partitions=PARTITIONS, node=self.node, ingress=self.ingress,
                                      admin=self.admin))  # fmt: skip
        self._start_server(path)
        await self._until(lambda: Connection(self.admin).ask("GET", "/health"))
        await self._until(lambda: Connection(self.ingress).ask("GET", "/restate/health"))
        self.connections = [Connection(self.ingress) for _ in range(SENDERS)]

    def _start_server(self, config: Path) -> None:
        (program,) = Path(self.place.programs).glob("node_modules/@restatedev/restate-server-*/bin/restate-server")
        command = [str(program), "--no-logo", "--config-file", str(config)]
        self.server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr)

    async def workers_started(self) -> None:
        """Register the service."""
        body = {"uri": f"http://127.0.0.1:{self.service}"}
        await self._until(lambda: Connection(self.admin).ask("POST", "/deployments", body))

    async def close(self) -> None:
        """Stop the server."""
        for connection in self.connections:
            connection.close()
        if self.server is not None:
            self.server.terminate()
            await asyncio.to_thread(self.server.wait, STOP_SECONDS_MAX)

    async def server_processes(self) -> list[int]:
        """The server's process."""
        return [self.server.pid] if self.server is not None else []

    async def start(self, job: str) -> Any:
        """Send an invocation; the key names the awakeable of a waiter."""
        key = uuid4().hex
        await self.connections[0].ask("POST", f"/jobs/{job}/send", key)
        return key

    async def start_and_wait(self, job: str) -> Any:
        """Call a handler."""
        return await self.connections[0].ask("POST", f"/jobs/{job}", "")

    async def start_many(self, job: str, count: int) -> None:
        """Send invocations over many connections, as there is no bulk call."""
        await self._over_connections(f"/jobs/{job}/send", count, SENDERS)

    async def run_jobs(self, job: str, count: int, concurrency: int) -> None:
        """Keep so many calls under way."""
        while len(self.connections) < concurrency:
            self.connections.append(Connection(self.ingress))
        await self._over_connections(f"/jobs/{job}", count, concurrency)

    async def left(self) -> int:
        """Ask the server for invocations that have not ended."""
        query = {"query": "SELECT count(*) AS n FROM sys_invocation WHERE status != 'completed'"}
        connection = Connection(self.admin)
        answer = await connection.ask("POST", "/query", query)
        connection.close()
        return int(answer["rows"][0]["n"])

    async def signal(self, handle: Any) -> None:
        """Resolve the awakeable of a waiter."""
        name = (self.folder / f"awakeable-{handle}").read_text()
        await self.connections[0].ask("POST", f"/restate/awakeables/{name}/resolve", "go")

    async def park(self, count: int) -> bool:
        """Send invocations that wait for an awakeable, and suspend soon."""
        await self._over_connections("/jobs/parked/send", count, SENDERS)
        return True

    async def work(self, concurrency: int) -> None:
        """Serve handlers; all worker processes listen on one port."""
        del concurrency  # the server decides how many invocations it sends
        config = Config()
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(("127.0.0.1", self.service))
            listener.listen(512)
            config.bind = [f"fd://{listener.detach()}"]
        config.loglevel = "ERROR"
        config.h2_max_concurrent_streams = STREAMS_MAX
        await serve(self._application(), config)

    def _application(self) -> Any:
        jobs, tally, folder = restate.Service("jobs"), self.tally, self.folder

        async def step(number: int) -> int:
            return number

        @jobs.handler()
        async def steps(context: restate.Context, key: str) -> int:
            del key
            total = sum([await context.run_typed("step", step, number=number) for number in range(STEPS)])
            tally.job_ended()
            return total

        @jobs.handler()
        async def noop(context: restate.Context, key: str) -> None:
            del context, key
            tally.job_ended()

        @jobs.handler()
        async def clock(context: restate.Context, key: str) -> bool:
            del context, key
            tally.mark()
            return True

        @jobs.handler()
        async def waiter(context: restate.Context, key: str) -> bool:
            name, promise = context.awakeable()
            (folder / f"awakeable-{key}").write_text(name)
            tally.job_waits()
            await promise
            tally.mark()
            return True

        @jobs.handler(inactivity_timeout=timedelta(seconds=1))
        async def parked(context: restate.Context, key: str) -> bool:
            del key
            _, promise = context.awakeable()
            tally.job_waits()
            await promise
            return True

        return restate.app([jobs])

    async def _over_connections(self, path: str, count: int, concurrency: int) -> None:
        left = iter(range(count))

        async def send(connection: Connection) -> None:
            for _ in left:
                await connection.ask("POST", path, "")

        await asyncio.gather(*(send(connection) for connection in self.connections[:concurrency]))

    async def _until(self, attempt: Any) -> None:
        due = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                await attempt()
            except (OSError, RuntimeError, asyncio.IncompleteReadError):
                if time.monotonic() > due:
                    raise
                await asyncio.sleep(0.1)
            else:
                return
