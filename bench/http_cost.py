"""What one request may cost: the CPU of the worst legal request of every route, and of a probe beside 20 of them.

The requests are as large as the limits allow, with the content that takes longest. Their CPU is that of the whole
process, in all threads, and the best of several tries counts. `verify` and `purge` of everything are runs, whose work
is not part of a request. CPU is measured and not time, so that other processes of the machine do not count.

`python bench/http_cost.py --postgres` measures a server on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import App, Config, export
from holdfast.client.views import Creation
from holdfast.http.handlers.bulk import BATCH_MAX
from holdfast.http.request_limits import Limits
from holdfast.http.routes import routes
from holdfast.server import asgi
from holdfast.store import Append, Claim

CPU_MS_MAX = 100.0
TRIES = 5
HISTORY = 100  # pauses of a schedule, each with two events
AT_ONCE = 20
PROBE_MS_MAX = 100.0
SECONDS = 10.0
BYTES = 1024 * 1024
EVENTS = 3000  # of the long history
RUNS = 3000
REFERENCE = json.dumps([{"a": number, "b": [number * 1.5, str(number)]} for number in range(3000)])
REFERENCE_MS = 4.0  # what it takes to read and write that, on a core without other work


def made(url: str) -> App:
    """Give an app with its jobs on a store."""
    app = App("b", config=Config(url=url))

    @app.step
    async def tick(number: int) -> int:
        return number

    @app.job
    async def take(x: Any) -> None:
        pass

    @app.job
    async def steps(count: int) -> int:
        return sum([await tick(number) for number in range(count)])

    @app.job
    async def publish() -> None:
        export("a" * BYTES, "page")

    app.plan("open", open=True)
    return app


def bodies() -> dict[str, bytes]:
    """Give JSON values that are legal, nearly as large as a body may be, and slow to read."""
    limits = Limits()
    room = BYTES - 300

    def many(item: bytes, most: int) -> bytes:
        return b",".join([item] * min(most, room // (len(item) + 1)))

    slow, values = limits.json_slow - 1, limits.json_values - 10
    mixed = b",".join([b"1.5"] * 30_000 + [b"1e308"] * slow + [b'{"k":1}'] * 9_000)
    return {
        "text": b'"' + b"a" * (room - 10) + b'"',
        "escapes": b'"' + b"\\u0001" * (room // 6 - 2) + b'"',
        "digits in text": b'"' + b"1" * (room - 10) + b'"',
        "numbers": b"[" + many(b"0.1234567890123", values) + b"]",
        "slow numbers": b"[" + many(b"1e308", slow) + b"]",
        "nulls": b"[" + many(b"null", values) + b"]",
        "texts": b"[" + many(b'"aaaaaaaaaaaaaaa"', values) + b"]",
        "names": b"{" + b",".join(b'"%05d":1' % one for one in range(limits.json_names - 20)) + b"}",
        "lists": b"[" * 50 + many(b"[]", limits.json_names - 60) + b"]" * 50,
        "mixed": b"[" + mixed + b"]",
    }


async def call(service: Any, method: str, path: str, body: bytes = b"", query: str = "") -> tuple[int, float]:
    """Send a request to the application; its status and the CPU seconds of this process."""
    sent: list[Any] = []
    pieces = iter([{"type": "http.request", "body": body}])
    gone = asyncio.Event()

    async def receive() -> Any:
        for piece in pieces:
            return piece
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message["status"] if message["type"] == "http.response.start" else len(message.get("body", b"")))

    heads = [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))]
    heads += [(b"content-type", b"application/json")] if body else []
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "headers": heads, "client": ("127.0.0.1", 1),
    }  # fmt: skip
    started = time.process_time()
    await service(scope, receive, send)
    return sent[0], time.process_time() - started


def plan_of(count: int) -> str:
    """Give a plan with so many nodes, as JSON."""
    node = '{"id":"n%d","kind":"call","call":"tick","args":{"number":1}}'
    return f'{{"name":"p","nodes":[{",".join(node % one for one in range(count))}]}}'


def _add_bodies(add: Callable[..., None], waiting: str) -> None:
    """Add requests whose body is large."""
    api = "/api/v1"
    for kind, value in bodies().items():
        add(
            f"POST /runs, {kind}", "POST", f"{api}/runs", b'{"plugin_id":"b","entry_id":"take","args":{"x":%b}}' % value
        )
        add(f"POST signal, {kind}", "POST", f"{api}/runs/{waiting}/signal", b'{"key":"k","payload":%b}' % value)
        add(f"POST resolve, {kind}", "POST", f"{api}/runs/{waiting}/resolve",
            b'{"step":"s","answer":"done","result":%b}' % value)  # fmt: skip
    plan = plan_of(2500)
    add("POST /runs, plan", "POST", f"{api}/runs",
        b'{"plugin_id":"b","entry_id":"open","args":{},"plan":%b}' % plan.encode())  # fmt: skip
    add("POST /runs, duration", "POST", f"{api}/runs",
        b'{"plugin_id":"b","entry_id":"take","args":{"x":1},"delay":"%b"}' % (b"1" * (BYTES - 200)))  # fmt: skip
    for verb in ("cancel", "retry", "pause", "resume", "fork"):
        add(f"POST {verb}, text", "POST", f"{api}/runs/{waiting}/{verb}", b'{"reason":"%b"}' % (b"a" * (BYTES - 100)))


def _add_reads(add: Callable[..., None], long: str, exported: str, events: int) -> None:
    """Add requests that read."""
    api = "/api/v1"
    for path in ("", "/result", "/explain", "/story", "/chain", "/family", "/evidence", "/exports", "/stream"):
        add(f"GET run{path}", "GET", f"{api}/runs/{long}{path}")
    add("GET events, a page", "GET", f"{api}/runs/{long}/events", query="limit=1000")
    add("GET events, one", "GET", f"{api}/runs/{long}/events", query=f"limit=1&cursor={events - 10}")
    add("GET stream, resumed", "GET", f"{api}/runs/{long}/stream", query=f"after={events - 10}")
    add("GET /runs, a page", "GET", f"{api}/runs", query="limit=1000")
    add("GET /runs, rare", "GET", f"{api}/runs", query="limit=1000&queue=none&attr.a=b&status=failed")
    for path in ("workers", "entries", "stats", "machines", "machines/job", "gates", "limits", "limits/mail", "audit",
                 "token", "stream", "inbox", "series", "counts", "builds", "changes"):  # fmt: skip
        add(f"GET /{path}", "GET", f"{api}/{path}")
    add("GET content", "GET", f"{api}/runs/{exported}/exports/1/content")
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
        add(f"GET {path}", "GET", path)


def _add_changes(add: Callable[..., None], long: str, waiting: str) -> None:
    """Add requests that change many runs, or a queue."""
    api = "/api/v1"
    each = b'{"plugin_id":"b","entry_id":"take","args":{"x":"%b"}}' % (b"a" * (BYTES // BATCH_MAX - 80))
    add("POST /runs/batch", "POST", f"{api}/runs/batch", b'{"runs":[%b]}' % b",".join([each] * BATCH_MAX))
    for verb, body in (
        ("retry", b'{"reason":"%b"}'),
        ("signal", b'{"key":"k","payload":"%b"}'),
        ("cancel", b'{"reason":"%b"}'),
        ("purge", b'{"actor":"%b"}'),
    ):
        size = {"signal": BYTES - 100, "purge": 200}.get(verb, 2000)
        add(f"POST /runs/{verb}", "POST", f"{api}/runs/{verb}", body % (b"a" * size), "queue=default&limit=1000")
    units = b",".join(b'"u%05d":1' % one for one in range(20_000))
    add("POST grant", "POST", f"{api}/runs/{waiting}/grant", b'{"amounts":{%b}}' % units)
    add("POST answer", "POST", f"{api}/runs/{waiting}/answer", b'{"answer":"accept","actor":"%b"}' % (b"a" * 200))
    add("POST verify", "POST", f"{api}/verify", b'{"run_id":"%b"}' % long.encode())
    add("POST purge", "POST", f"{api}/purge", b'{"older_than":"1s","limit":1000}')
    add(
        "POST builds/move",
        "POST",
        f"{api}/builds/move",
        b'{"old":"1","new":"2","check":false,"actor":"%b"}' % (b"a" * 200),
    )
    add("DELETE limits", "DELETE", f"{api}/limits/mail")
    for verb in ("pause", "resume"):
        add(f"POST limits {verb}", "POST", f"{api}/limits/mail/{verb}", b'{"actor":"a"}')
    add("PUT limits", "PUT", f"{api}/limits/mail",
        b'{"weights":{%b}}' % b",".join(b'"g%05d":1' % one for one in range(20_000)))  # fmt: skip


def _add_schedules(add: Callable[..., None]) -> None:
    """Add requests about schedules: long lists, rare ticks, long ranges, large bodies."""
    api, rare, often = "/api/v1/schedules", "/api/v1/schedules/b.rare", "/api/v1/schedules/b.often"
    large = b'{"x":"%b"}' % (b"a" * (BYTES - 300))
    excluded = b",".join(b'"%04d-01-01"' % year for year in range(2000, 9000))
    add("GET /schedules", "GET", api, query="limit=1000")
    add("GET /schedules, outcomes", "GET", api, query="limit=1000&outcomes=50")
    add("GET schedule", "GET", rare, query="outcomes=50")
    add("GET schedule events", "GET", f"{often}/events", query="limit=1000")
    for name in (rare, often):
        add(f"GET ticks of {name[-5:]}", "GET", f"{name}/ticks", query="limit=1000")
        add(f"GET ticks around a day of {name[-5:]}", "GET", f"{name}/ticks", query="around=2027-03-28&limit=1000")
        add(f"GET explain {name[-5:]}", "GET", f"{name}/explain", query="at=2027-03-28%2002:30")
        body = b'{"start":"1990-01-01","end":"2026-01-01"}'
        add(f"POST backfill of {name[-5:]}", "POST", f"{name}/backfill", body)
        add(f"POST backfill of {name[-5:]}, tried", "POST", f"{name}/backfill", body[:-1] + b',"dry_run":true}')
    add("POST schedule, large", "POST", api, b'{"name":"n","job":"b.take","options":{"every":"1h"},"args":%b}' % large)
    for kind, options in (("exclusions", b'{"every":"1h","exclude":[%b]}' % excluded),
                          ("cron", b'{"cron":"%b * * * *"}' % (b"1," * (BYTES // 4) + b"1")),
                          ("zone", b'{"cron":"0 0 * * *","tz":"%b"}' % (b"a" * (BYTES - 300)))):  # fmt: skip
        add(f"POST schedule, {kind}", "POST", api, b'{"name":"m","job":"b.take","options":%b}' % options)
        add(f"POST change, {kind}", "POST", f"{rare}/change", b'{"options":%b}' % options)
    add("POST schedule pause", "POST", f"{often}/pause", b'{"note":"%b"}' % (b"a" * 1000))
    add("POST schedule resume", "POST", f"{often}/resume", b'{"actor":"a"}')
    add("POST fire", "POST", f"{often}/fire", b'{"allow_overlap":true}')


async def _schedule(app: App) -> None:
    """Leave schedules: with rare ticks, with many, with a history, and some to delete."""
    await app.schedules.acreate("rare", "take", args={"x": 1}, cron="0 0 29 2 MON", overlap="allow")
    await app.schedules.acreate("often", "take", args={"x": 1}, cron="* * * * *", overlap="allow")
    for _ in range(HISTORY):
        await app.schedules.apause("often", "a while")
        await app.schedules.aresume("often")
    for number in range(TRIES):
        await app.schedules.acreate(f"gone{number}", "take", args={"x": 1}, every="1h")


async def _run_by_another_build(app: App) -> None:
    """Leave a job that was begun by a worker of build 1."""
    await app.astart("take", None)
    take = frozenset({("b", "take")})
    claim = Claim(worker="m", entries=take, queues=None, limit=1, lease_seconds=60, build="1", pins=take)
    [claims] = await app.store().commit([claim])
    job = claims.claimed[0].job
    await app.store().commit([Append(job.id, job.attempt, (("job_requeued", {"reason": "shutdown"}),))])


async def measured(
    url: str, runs: int = RUNS, events: int = EVENTS, *, is_exact: bool = True
) -> dict[str, tuple[int, float]]:
    """Measure every kind of request; status and CPU milliseconds by name.

    If not `is_exact`, a request is sent again only while it is over the limit, and its cost is that on a core which
    other processes leave alone: beside busy ones the same work takes up to twice the CPU.
    """
    app = made(url)
    long = (await app.astart("steps", events // 3)).id
    exported = (await app.astart("publish")).id
    await app.worker().arun(until_idle=True)
    await app.astart_many("steps", [{"count": 1}] * runs)
    await _run_by_another_build(app)
    await _schedule(app)
    waiting = (await app.astart("take", None)).id
    planned = (
        await app.acreate(Creation(plugin_id="b", entry_id="open", plan=json.loads(plan_of(2500))))
    ).record.run_id
    service = asgi(app, limits=Limits(stream_seconds=0.001))
    requests: dict[str, Callable[[], Any]] = {}
    sent: set[tuple[str, str]] = set()

    def add(name: str, method: str, path: str, body: bytes = b"", query: str = "") -> None:
        requests[name] = lambda: call(service, method, path, body, query)
        sent.add((method, path))

    _add_bodies(add, waiting)
    _add_reads(add, long, exported, events)
    add("GET plan", "GET", f"/api/v1/runs/{planned}/plan")
    _add_changes(add, long, waiting)
    _add_schedules(add)
    gone = iter(range(TRIES))
    requests["DELETE schedule"] = lambda: call(service, "DELETE", f"/api/v1/schedules/b.gone{next(gone)}")
    sent.add(("DELETE", "/api/v1/schedules/b.gone"))
    unmeasured = [f"{one.method} {one.path}" for one in routes() if not any(_is_of(one, each) for each in sent)]
    assert not unmeasured, unmeasured
    found = {}
    for name, ask in requests.items():
        tries: list[tuple[int, float]] = []
        while len(tries) < TRIES and (is_exact or not tries or tries[-1][1] > CPU_MS_MAX):
            slow = 1.0 if is_exact else slowness()
            status, seconds = await ask()
            tries.append((status, 1000 * seconds / slow))
        found[name] = tries[-1][0], min(cost for _, cost in tries)
    await app.aclose()
    return found


def slowness() -> float:
    """Give how many times as much CPU as alone a piece of work takes now."""
    took = []
    for _ in range(3):
        started = time.process_time()
        json.dumps(json.loads(REFERENCE))
        took.append(1000 * (time.process_time() - started))
    return max(1.0, min(took) / REFERENCE_MS)


def _is_of(one: Any, request: tuple[str, str]) -> bool:
    return one.method == request[0] and one.path_regex.match(request[1]) is not None


async def probes_beside_load(url: str, seconds: float = SECONDS) -> tuple[float, int]:
    """Send heavy requests, 20 at once, and probes beside them.

    Give the CPU milliseconds of this process between the start of a probe and its answer, of the slowest one, and the
    number of heavy requests. On a machine with a free core that is the time that the probe takes.
    """
    app = made(url)
    service = asgi(app)
    values = list(bodies().values())
    end = time.monotonic() + seconds
    count = 0

    async def load(number: int) -> None:
        nonlocal count
        body = b'{"plugin_id":"b","entry_id":"take","args":{"x":%b}}' % values[number % len(values)]
        while time.monotonic() < end:
            await call(service, "POST", "/api/v1/runs", body)
            count += 1

    async def probe() -> float:
        slowest = 0.0
        while time.monotonic() < end:
            started = time.process_time()
            await asyncio.create_task(call(service, "GET", "/healthz"))
            slowest = max(slowest, 1000 * (time.process_time() - started))
            await asyncio.sleep(0.003)
        return slowest

    probing = asyncio.create_task(probe())
    await asyncio.gather(*(load(number) for number in range(AT_ONCE)))
    slowest = await probing
    await app.aclose()
    return slowest, count


def _urls(folder: str) -> tuple[str, str]:
    if "--postgres" not in sys.argv:
        return f"sqlite:///{folder}/cost.db", f"sqlite:///{folder}/load.db"
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.postgres import fresh_url  # noqa: PLC0415 - the path is set above

    return fresh_url(), fresh_url()


def main() -> int:
    """Measure, print, and tell whether every floor was reached."""
    with tempfile.TemporaryDirectory() as folder:
        url, other = _urls(folder)
        costs = asyncio.run(measured(url))
        for name, (status, cost) in sorted(costs.items(), key=lambda pair: -pair[1][1]):
            print(f"{name:<32} {status} {cost:7.1f} ms of CPU")
        worst = max(cost for _, cost in costs.values())
        within, count = asyncio.run(probes_beside_load(other))
        print(f"worst request: {worst:.1f} ms of CPU, {CPU_MS_MAX:g} at most")
        print(f"/healthz beside {AT_ONCE} at once, {count} in all: {within:.1f} ms of CPU, {PROBE_MS_MAX:g} at most")
        print(json.dumps({"worst_cpu_ms": round(worst, 1), "probe_cpu_ms": round(within, 1)}))
        return int(worst > CPU_MS_MAX or within > PROBE_MS_MAX)


if __name__ == "__main__":
    sys.exit(main())
