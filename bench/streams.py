"""Creates beside idle clients: 10,000 connections without a request, and 2,000 streams of runs that wait.

    python bench/streams.py [--postgres]

The server is a process of its own. What a create costs it is measured as its CPU, so that other processes of the
machine do not count. The ratio is the rate of creates that one core can have beside the clients, over that without
them. It must be 0.8 at least, and a probe must be answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STREAMS = 2000
IDLE = 10_000
CREATES = 3000
AT_ONCE = 20
ROUNDS = 3
RATIO_MIN = 0.8
TICK = os.sysconf("SC_CLK_TCK")
BODY = b'{"plugin_id":"b","entry_id":"take","args":{"x":1}}'
CREATE = (
    b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    % (len(BODY), BODY)
)
SHOP = """
from holdfast import App
app = App("b")

@app.job
async def take(x: int) -> None:
    pass
"""


def cpu_seconds(pid: int) -> float:
    """CPU of a process, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


@contextmanager
def serving(url: str, folder: str) -> Iterator[tuple[int, int]]:
    """Serve a store from a process of its own; its id and its port."""
    target = Path(folder) / "shop.py"
    target.write_text(SHOP)
    command = [sys.executable, "-m", "holdfast", "serve", str(target), "--url", url, "--port", "0", "--open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        port = int(process.stderr.readline().split("http://")[1].split()[0].rstrip("/").rpartition(":")[2])
        try:
            yield process.pid, port
        finally:
            process.send_signal(signal.SIGTERM)


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Read one response."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    return await reader.readexactly(length)


async def create(port: int, count: int) -> list[str]:
    """Create runs, some at once; their ids."""
    made: list[str] = []

    async def some() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(count // AT_ONCE):
            writer.write(CREATE)
            made.append(json.loads(await answer(reader))["run_id"])
        writer.close()

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    return made


async def cost(pid: int, port: int) -> float:
    """CPU of the server for a create, in milliseconds: the best of several rounds."""
    rounds = []
    for _ in range(ROUNDS):
        before = cpu_seconds(pid)
        await create(port, CREATES)
        rounds.append(1000 * (cpu_seconds(pid) - before) / CREATES)
    return min(rounds)


async def measured(pid: int, port: int) -> float:
    """Measure, print, and give the ratio."""
    watched = await create(port, STREAMS)
    alone = await cost(pid, port)
    clients = []
    for run in watched:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/v1/runs/%b/stream HTTP/1.1\r\nHost: localhost\r\n\r\n" % run.encode())
        await reader.readuntil(b"event: run")
        clients.append((reader, writer))
    idle = []
    for _ in range(IDLE):
        try:
            idle.append(await asyncio.open_connection("127.0.0.1", port))
        except OSError:  # the server has as many as it takes, and closes the oldest
            break
    beside = await cost(pid, port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert json.loads(await answer(reader)) == {"status": "ok"}
    ratio = alone / beside
    print(f"a create costs {alone:.3f} ms of CPU alone, {beside:.3f} ms beside {len(clients):,} streams", end=" ")
    print(f"and {len(idle):,} idle connections: {ratio:.2f} of the rate, {RATIO_MIN:g} at least")
    for _, each in [*clients, *idle]:
        each.transport.abort()
    return ratio


def main() -> int:
    """Measure, print, and tell whether the floor was reached."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/jobs.db"
        if "--postgres" in sys.argv:
            sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
            from support.postgres import fresh_url  # noqa: PLC0415 - the path is set above

            url = fresh_url()
        with serving(url, folder) as (pid, port):
            ratio = asyncio.run(measured(pid, port))
    print(json.dumps({"rate_beside_idle_clients": round(ratio, 2)}))
    return int(ratio < RATIO_MIN)


if __name__ == "__main__":
    sys.exit(main())
