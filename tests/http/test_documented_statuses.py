"""Every status that the document names for a route can be seen, and the answer has the documented form."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from holdfast import App
from holdfast.client.views import Creation
from holdfast.http.openapi import document
from holdfast.http.problems import CODES
from holdfast.http.routes import routes
from holdfast.server import Limits, asgi, token
from holdfast.store import Append, Claim
from holdfast.store import Limits as QueueLimits
from support.fuzzing import SECRET, extended, some_runs
from support.scripts import ROOT
from support.stories import drain, play
from support.web import JSON, near, serving, shop

TABLE = {one.handler.__name__: one for one in routes()}
DOCUMENT = document(list(TABLE.values()))
LIMITS = Limits(stream_seconds=0.001, body_seconds=0.01, body_bytes=10_000)
HELLO: dict[str, Any] = {"plugin_id": "shop", "entry_id": "greet", "args": {"name": "Ada"}}

HOURLY: dict[str, Any] = {"name": "new", "job": "greet", "args": {"name": "Ada"}, "options": {"every": "1h"}}
KEY = {"Idempotency-Key": "once"}
OF_GROUP = "g" * 40

# A request of each route that is answered well: the run that it is about, and its body.
GOOD: dict[str, tuple[str, Any]] = {
    "create_run": ("", HELLO),
    "create_runs": ("", {"runs": [HELLO]}),
    "cancel_runs": ("", {"dry_run": True}),
    "retry_runs": ("", {"reason": "again", "dry_run": True}),
    "signal_runs": ("", {"key": "answer", "dry_run": True}),
    "purge_runs": ("", {"dry_run": True}),
    "cancel_run": ("spare", {}),
    "retry_run": ("fail", {"reason": "again"}),
    "pause_run": ("ask", {}),
    "resume_run": ("ask", {}),
    "fork_run": ("publish", {"from_step": "price"}),
    "signal_run": ("ask", {"key": "answer"}),
    "grant_run": ("ask", {"amounts": {"tokens": 1}}),
    "resolve_run": ("pay", {"step": "charge:1", "answer": "done", "result": "paid"}),
    "answer_run": ("misfit", {"answer": "accept"}),
    "get_content": ("publish", None),
    "get_plan": ("planned", None),
    "verify": ("", {}),
    "purge": ("", {"older_than": "30d"}),
    "put_limits": ("", {"concurrency": 3}),
    "move_build": ("", {"old": "1.4.1", "new": "1.4.2", "check": False}),
    "create_schedule": ("", HOURLY),
    "change_schedule": ("", {"options": {"every": "2h"}}),
    "pause_schedule": ("", {"note": "why"}),
    "backfill_schedule": ("", {"start": "2026-01-01T00:00", "end": "2026-01-01T02:00"}),
}
FILTERED = {"cancel_runs", "retry_runs", "signal_runs", "purge_runs"}  # a filter must be given
# What a route answers beside its usual status and beside what every route refuses: the run, the body, the rest.
SPECIAL: dict[tuple[str, int], tuple[str, Any, dict[str, Any]]] = {
    ("create_run", 200): ("", {**HELLO, "idempotency_key": "twice"}, {}),
    ("create_run", 404): ("", {**HELLO, "entry_id": "missing"}, {}),
    ("create_run", 409): ("", {**HELLO, "args": {"name": "Bob"}, "idempotency_key": "twice"}, {}),
    ("create_run", 429): ("", {**HELLO, "queue": "full"}, {}),
    ("create_runs", 404): ("", {"runs": [{**HELLO, "entry_id": "missing"}]}, {}),
    ("get_result", 202): ("queued", None, {}),
    ("get_result", 429): ("queued", None, {"params": {"wait": 1}}),
    ("get_content", 304): ("publish", None, {"headers": {"If-None-Match": "*"}}),
    ("get_content", 404): ("greet", None, {}),
    ("stream_run", 204): ("greet", None, {"headers": {"Last-Event-ID": "r1000"}}),
    ("stream_run", 429): ("queued", None, {}),
    ("stream_runs", 429): ("", None, {}),
    ("retry_run", 409): ("greet", {"reason": "again"}, {}),
    ("fork_run", 409): ("other", {"from_step": "price", "idempotency_key": "twice"}, {}),
    ("fork_run", 429): ("full", {"from_step": "price"}, {}),
    ("signal_run", 409): ("ask", {"key": "answer", "node": "not asked"}, {}),
    ("grant_run", 409): ("ask", {"amounts": {"tokens": 1}, "node": "not asked"}, {}),
    ("resolve_run", 409): ("ask", {"step": "charge:1", "answer": "fail"}, {}),
    ("answer_run", 409): ("ask", {"answer": "accept"}, {}),
    ("verify", 200): ("", {"run_id": "greet"}, {}),
    ("verify", 202): ("", {}, {"headers": KEY}),
    ("verify", 404): ("", {"run_id": "missing"}, {}),
    ("verify", 409): ("", {}, {"headers": {**KEY, "Authorization": f"Bearer {OF_GROUP}"}}),
    ("purge", 200): ("", {"older_than": "30d", "limit": 1}, {}),
    ("purge", 202): ("", {"older_than": "30d"}, {"headers": KEY}),
    ("purge", 409): ("", {"older_than": "40d"}, {"headers": KEY}),
    ("move_build", 202): ("", {"old": "1.4.1", "new": "1.4.2", "check": False}, {"headers": KEY}),
    ("move_build", 404): ("", {"old": "1.3.0", "new": "1.4.2", "check": False}, {}),
    ("move_build", 409): ("", {"old": "1.4.1", "new": "1.4.3", "check": False}, {"headers": KEY}),
    ("get_limits", 304): ("", None, {"headers": {"If-None-Match": "*"}}),
    ("put_limits", 412): ("", {"concurrency": 3}, {"headers": {"If-Match": '"other"'}}),
    ("delete_limits", 412): ("", None, {"headers": {"If-Match": '"other"'}}),
    ("create_schedule", 404): ("", {**HOURLY, "job": "missing"}, {}),
    ("create_schedule", 409): ("", {**HOURLY, "name": "nightly"}, {}),
    ("fire_schedule", 429): ("", {"allow_overlap": True}, {}),
    ("backfill_schedule", 429): ("", {"start": "2026-01-01T00:00", "end": "2026-01-01T02:00"}, {}),
}  # fmt: skip
NO_STREAMS = {(429, "get_result"), (429, "stream_run"), (429, "stream_runs")}
ELSEWHERE = {500, 503}  # 500 is a mistake in the server, which test_hostile.py shows; a test below has 503


def refusal(name: str, status: int) -> dict[str, Any]:
    """What to change in a good request, so that any route refuses it with this status."""
    query = "?top=yes&" if name in FILTERED else "?"
    changes: dict[int, dict[str, Any]] = {
        400: {"query": query + "%ff"},
        401: {"headers": {"Authorization": "Bearer wrong"}},
        403: {"headers": {"Origin": "http://elsewhere.example"}},
        404: {"missing": True},
        408: {"content": _stalled(), "headers": JSON},
        413: {"content": b" " * 20_000, "headers": JSON},
        414: {"query": "?" + "a" * 9000},
        415: {"content": b"{}", "headers": {"Content-Type": "text/plain"}},
        421: {"headers": {"Host": "elsewhere.example"}},
        422: {"query": query + "nonsense=1"},
        431: {"headers": {"X-Long": "a" * 20_000}},
    }
    return changes.get(status, {})


async def _stalled() -> AsyncIterator[bytes]:
    yield b"{"
    await asyncio.sleep(60)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    made = extended(shop(f"sqlite:///{tmp_path / 'jobs.db'}"))
    yield made
    made.close()


class Asker:
    """Sends requests that provoke statuses, and checks the answers against the document."""

    def __init__(self, client: httpx.AsyncClient, runs: dict[str, str]) -> None:
        self.client, self.runs = client, runs

    async def ask(self, name: str, status: int) -> httpx.Response:
        """Send a request to an operation that is to be answered with a status."""
        one = TABLE[name]
        run, body = GOOD.get(name, ("greet", None))
        query = "?top=yes" if name in FILTERED else ""
        sent: dict[str, Any] = {}
        missing = False
        if (name, status) in SPECIAL:
            run, body, sent = SPECIAL[name, status]
        elif status >= 400:
            change = dict(refusal(name, status))
            query, missing = change.pop("query", query), change.pop("missing", False)
            sent, body = change, None if "content" in change else body
        if isinstance(body, dict) and body.get("run_id") in self.runs:
            body = {"run_id": self.runs[body["run_id"]]}
        schedule = "crowded" if status == 429 else "nightly"
        known = {"id": self.runs.get(run, ""), "queue": "mail", "machine": "job", "number": "1", "schedule": schedule}
        lost = {"id": "missing", "queue": ".x", "machine": "other", "number": "9", "schedule": "missing"}
        path = one.path.format(**(lost if missing else known))
        return await self.client.request(one.method, path + query, json=body, **sent)


def is_documented(name: str, answer: httpx.Response) -> None:
    """Check the answer against the document: its media type and its schema."""
    one = TABLE[name]
    response = DOCUMENT["paths"][one.path][one.method.lower()]["responses"][str(answer.status_code)]
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
    media = answer.headers.get("content-type", "").partition(";")[0]
    content = response.get("content", {})
    assert media in content or not (content or answer.content)
    if media.endswith("json"):
        schema = {**content[media]["schema"], "components": DOCUMENT["components"]}
        jsonschema_rs.validator_for(schema).validate(answer.json())


async def prepared(app: App) -> dict[str, str]:
    """Runs in all states that the requests need, and a queue that is full."""
    runs = await some_runs(app)
    full = (await app.acreate(Creation(plugin_id="shop", entry_id="publish", queue="full"))).record.run_id
    other = await app.astart("publish")
    await drain(app)
    misfit = await _misfit(app)
    await _kept(app)
    await app.aset_limits(QueueLimits(queue="full", depth=1))
    await app.acreate(Creation(**HELLO, queue="full"))
    await app.acreate(Creation(**HELLO, idempotency_key="twice"))
    await app.afork(runs["publish"], from_step="price", key="twice")
    later = {"queued": await app.astart("greet", "Bob"), "spare": await app.astart("ask"), "other": other}
    plan = {"name": "p", "nodes": [{"id": "a", "kind": "call", "call": "price", "args": {}}]}
    planned = (await app.acreate(Creation(plugin_id="shop", entry_id="open", plan=plan))).record.run_id
    greet = app.entry("greet")
    await app.schedules.acreate("nightly", greet, args={"name": "Ada"}, every="1h", overlap="allow")
    await app.schedules.acreate("crowded", greet.options(queue="full"), args={"name": "Ada"}, every="1h")
    made = {"full": full, "planned": planned, "misfit": misfit}
    return {**runs, **made, **{name: run.id for name, run in later.items()}}


async def _kept(app: App) -> None:
    """Leave a job that is kept for a build."""
    await app.astart("greet", "Kim")
    greet = frozenset({("shop", "greet")})
    claim = Claim(worker="m", entries=greet, queues=None, limit=1, lease_seconds=60, build="1.4.1", pins=greet)
    ((held,),) = [answer.claimed for answer in await app.store().commit([claim])]
    given_back = ("job_requeued", {"reason": "shutdown"})
    await app.store().commit([Append(held.job.id, held.job.attempt, (given_back,))])


async def _misfit(app: App) -> str:
    """Leave a job as one that does not fit the code of its worker."""
    run = await app.astart("greet", "Eve")
    entries = frozenset({("shop", "greet")})
    claim = Claim(worker="m", entries=entries, queues=None, limit=1, lease_seconds=60)
    ((held,),) = [answer.claimed for answer in await app.store().commit([claim])]
    wait = {"node": "price:2", "correlation_key": "holdfast:deploy:price:2", "wait_type": "deploy", "park": True}
    details = {"call": "price(2)", "recorded": ["price(1)"], "nodes": ["price:1"]}
    await app.store().commit([Append(held.job.id, held.job.attempt, (("job_waiting", {**wait, "deploy": details}),))])
    assert held.job.id == run.id
    return run.id


def documented(name: str) -> list[int]:
    """The statuses that the document names for an operation, apart from those that have a test of their own."""
    one = TABLE[name]
    statuses = map(int, DOCUMENT["paths"][one.path][one.method.lower()]["responses"])
    return [status for status in statuses if status not in ELSEWHERE]


def test_every_documented_status_of_every_route_can_be_seen(app: App) -> None:
    async def story() -> None:
        runs = await prepared(app)
        for limits, is_full in ((LIMITS, False), (Limits(streams=0), True)):
            tokens = [token(SECRET, scope="admin"), token(OF_GROUP, scope="admin", group="acme")]
            async with near(app, tokens=tokens, limits=limits) as client:
                client.headers["Authorization"] = f"Bearer {SECRET}"
                for name in TABLE:
                    for status in documented(name):
                        if ((status, name) in NO_STREAMS) is is_full:
                            answer = await Asker(client, runs).ask(name, status)
                            assert answer.status_code == status, (name, answer.text)
                            is_documented(name, answer)

    play(story())


def test_a_full_server_answers_503_on_every_route_but_the_probes(app: App) -> None:
    service = asgi(app)
    with serving(service) as url, httpx.Client(base_url=url) as client:
        assert service.connections is not None
        service.connections.most = 0
        for name, one in TABLE.items():
            path = one.path.format(id="a", queue="mail", machine="job", number="1", schedule="nightly")
            answer = client.request(one.method, path)
            if "503" in DOCUMENT["paths"][one.path][one.method.lower()]["responses"] and name != "readyz":
                assert (answer.status_code, answer.json()["code"]) == (503, "too_many_requests")
                is_documented(name, answer)
            else:
                assert answer.status_code == 200
        service.stop()
        answer = client.get("/readyz")
        assert answer.status_code == 503
        is_documented("readyz", answer)


def test_every_code_that_a_module_uses_is_in_the_document() -> None:
    used: set[tuple[Any, Any]] = set()
    for path in (ROOT / "src" / "holdfast" / "http").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Problem":
                status, code = node.args[:2]
                if isinstance(status, ast.Constant) and isinstance(code, ast.Constant):
                    used.add((status.value, code.value))
    assert len(used) > 20
    assert {(status, code) for status, code in used if code not in CODES[status]} == set()
