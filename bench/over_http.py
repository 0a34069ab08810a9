"""What HTTP costs: runs created over it beside runs started in-process, in the same run; and how soon a read comes.

Both sides write the same durable rows (SQLite, synchronous=FULL), 64 at once, or in batches of the largest size. The
client of the HTTP side is another process, which writes requests by hand over kept-alive connections, so that it is the
server that is measured. Rounds alternate, and the best of each side counts. Reads are sent at a steady 200 a second
while a worker runs jobs in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from holdfast import App, Config
from holdfast.http.handlers.bulk import BATCH_MAX

CONCURRENCY = 64
RUNS = 1280
ROUNDS = 16
SHARE_FLOOR = 0.35  # of the rate of astart in-process
BATCH_FLOOR = 0.5  # of the rate of start_many in-process, in batches of the same size
BATCHES = 20
READS_A_SECOND = 200
READ_SECONDS = 5
P99_MS_MAX = 10.0

TARGET = """
from holdfast import App
app = App("b")
@app.step
async def tick(number: int) -> int:
    return number
@app.job
async def empty(number: int) -> int:
    return number
@app.job
async def ten(number: int) -> int:
    return sum([await tick(one) for one in range(10)])
"""


def bench_app(path: str) -> App:
    """Declare the job that is started."""
    app = App("b", config=Config(url=f"sqlite:///{path}"))

    @app.job
    async def empty(number: int) -> int:
        return number

    return app


def start_many_rate(path: str) -> float:
    """Runs a second of `astart_many`, in batches, in the process that calls."""

    async def run() -> float:
        app = bench_app(path)
        batch = [{"number": number} for number in range(BATCH_MAX)]
        await app.astart_many("empty", batch)
        started = time.perf_counter()
        for _ in range(BATCHES):
            await app.astart_many("empty", batch)
        taken = time.perf_counter() - started
        await app.aclose()
        return BATCHES * BATCH_MAX / taken

    return _run(run())


def astart_rate(path: str) -> float:
    """Runs a second of `astart`, in the process that calls."""

    async def run() -> float:
        app = bench_app(path)

        async def starter(count: int) -> None:
            for number in range(count):
                await app.astart("empty", number)

        await starter(CONCURRENCY)
        started = time.perf_counter()
        await asyncio.gather(*(starter(RUNS // CONCURRENCY) for _ in range(CONCURRENCY)))
        taken = time.perf_counter() - started
        await app.aclose()
        return RUNS / taken

    return _run(run())


def _run(measured: Coroutine[Any, Any, float]) -> float:
    """Run with the loop that the server has, too."""
    try:
        import uvloop  # noqa: PLC0415 - if it is there
    except ImportError:
        return asyncio.run(measured)
    return float(uvloop.run(measured))


class Server:
    """`holdfast serve`, on a file of its own."""

    def __init__(self, folder: Path) -> None:
        target = folder / "target.py"
        target.write_text(TARGET)
        self.url = f"sqlite:///{folder / f'served-{time.monotonic_ns()}.db'}"
        command = [sys.executable, "-m", "holdfast", "serve", str(target), "--url", self.url, "--port", "0", "--open"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.port = int(self.process.stderr.readline().rpartition(":")[2])
        self.target = target

    def close(self) -> None:
        """Stop it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, bytes]:
    """Send a request and read its answer."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head[9:12]), await reader.readexactly(length)


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """Write a request down."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


def creation(entry: str, number: int) -> bytes:
    """Write the request that creates a run."""
    body = {"plugin_id": "b", "entry_id": entry, "args": {"number": number}}
    return request("POST", "/api/v1/runs", json.dumps(body).encode())


def post_rate(port: int) -> float:
    """Runs a second of POST /api/v1/runs, asked for by the process that calls."""

    async def run() -> float:
        lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONCURRENCY)]

        async def creator(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
            for number in range(count):
                status, _ = await exchange(reader, writer, creation("empty", number))
                assert status == 201  # noqa: PLR2004 - created

        await asyncio.gather(*(creator(*line, 1) for line in lines))
        started = time.perf_counter()
        await asyncio.gather(*(creator(*line, RUNS // CONCURRENCY) for line in lines))
        taken = time.perf_counter() - started
        for _, writer in lines:
            writer.close()
        return RUNS / taken

    return _run(run())


def batch_rate(port: int) -> float:
    """Runs a second of POST /api/v1/runs/batch, asked for by the process that calls."""

    async def run() -> float:
        runs = [{"plugin_id": "b", "entry_id": "empty", "args": {"number": number}} for number in range(BATCH_MAX)]
        batch = request("POST", "/api/v1/runs/batch", json.dumps({"runs": runs}).encode())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await exchange(reader, writer, batch)
        started = time.perf_counter()
        for _ in range(BATCHES):
            status, _ = await exchange(reader, writer, batch)
            assert status < 300  # noqa: PLR2004 - created
        taken = time.perf_counter() - started
        writer.close()
        return BATCHES * BATCH_MAX / taken

    return _run(run())


def rates(folder: Path) -> dict[str, float]:
    """Best rates of all sides, round by round, each in a process that stays."""
    server, spawn = Server(folder), multiprocessing.get_context("spawn")
    found: dict[str, list[float]] = {"astart": [], "post": [], "start_many": [], "batch": []}
    try:
        with spawn.Pool(1) as inside, spawn.Pool(1) as outside:
            for number in range(ROUNDS):
                found["astart"].append(inside.apply(astart_rate, (str(folder / "astart.db"),)))
                found["post"].append(outside.apply(post_rate, (server.port,)))
                if number < ROUNDS // 4:
                    found["start_many"].append(inside.apply(start_many_rate, (str(folder / "many.db"),)))
                    found["batch"].append(outside.apply(batch_rate, (server.port,)))
    finally:
        server.close()
    return {name: max(rates) for name, rates in found.items()}


def read_times(folder: Path) -> list[float]:
    """Milliseconds of each GET of one run, from when it was due, while jobs run."""
    server = Server(folder)
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "worker",
        str(server.target),
        "--url",
        server.url,
        "--concurrency",
        "8",
    ]
    worker = subprocess.Popen(command)
    try:
        return asyncio.run(_reads(server.port))
    finally:
        worker.terminate()
        worker.wait()
        server.close()


async def _reads(port: int) -> list[float]:
    times: list[float] = []
    done = asyncio.Event()

    async def producer() -> None:
        """Keep the worker busy."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        number = 0
        while not done.is_set():
            await exchange(reader, writer, creation("ten", number))
            number += 1
            await asyncio.sleep(0.02)
        writer.close()

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    run = json.loads((await exchange(reader, writer, creation("ten", -1)))[1])["run_id"]
    writer.close()
    lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for line in lines:
        free.put_nowait(line)

    async def read(due: float) -> None:
        line = await free.get()
        status, _ = await exchange(*line, request("GET", f"/api/v1/runs/{run}"))
        times.append((time.perf_counter() - due) * 1000)
        assert status == 200  # noqa: PLR2004 - found
        free.put_nowait(line)

    producing = asyncio.create_task(producer())
    first, reads = time.perf_counter() + 1.0, []
    for number in range(READS_A_SECOND * READ_SECONDS):
        due = first + number / READS_A_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        reads.append(asyncio.create_task(read(due)))
    await asyncio.gather(*reads)
    done.set()
    await producing
    for _, one in lines:
        one.close()
    return sorted(times)


def main() -> int:
    """Measure, print, judge."""
    missed = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        found = rates(folder)
        for inside, outside, due in (("astart", "post", SHARE_FLOOR), ("start_many", "batch", BATCH_FLOOR)):
            share = found[outside] / found[inside]
            print(
                f"create   {inside:10} {found[inside]:8,.0f} runs/s   HTTP {found[outside]:8,.0f}   share {share:4.2f}"
            )
            if share < due:
                missed.append(f"HTTP creates {share:.2f} of what {inside} does, {due} is due")
        best = min((read_times(folder) for _ in range(3)), key=lambda times: times[int(len(times) * 0.99)])
        p50, p99 = best[len(best) // 2], best[int(len(best) * 0.99)]
        print(
            f"GET one run, {READS_A_SECOND}/s while jobs run   p50 {p50:5.2f} ms   p99 {p99:5.2f} ms   "
            f"worst {best[-1]:5.2f} ms"
        )
        if p99 > P99_MS_MAX:
            missed.append(f"a read's p99 is {p99:.1f} ms, at most {P99_MS_MAX:.0f} is due")
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    os.environ.pop("HOLDFAST_URL", None)
    sys.exit(main())
