"""`holdfast.connect`: the calls of an app through a real server, its errors, and what a bad connection may not do."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

import holdfast
from holdfast import App, HoldfastError, Limits, Plan, errors
from holdfast.client.remote import sse
from holdfast.client.remote.client import RemoteClient
from holdfast.client.views import Creation
from holdfast.machines import RunRecord
from support.cutting import Cutting
from support.postgres import fresh_url
from support.web import Served, served

CODE = """
from holdfast import App, continue_as, external_key, wait_for
app = App("shop")

@app.tool
async def charge(card: str) -> str:
    return "receipt"

@app.job
async def greet(name: str, times: int = 1) -> str:
    return " ".join([f"hello {name}"] * times)

@app.job
async def ask(question: str = "?") -> str:
    await charge("4242")
    return f"{question} {await wait_for('answer')}"

@app.job
async def fail() -> None:
    raise ValueError("no")

@app.job
async def count(n: int = 0) -> int:
    if n == 2:
        return n + await wait_for("more")
    return continue_as(n + 1)

app.plan("open", open=True)
"""
ODD = 'it\'s a "key": \\ of job a, b'  # characters at which a message could be misread
UNKNOWN_STEP = {"nodes": [{"id": "a", "kind": "call", "call": "nothing"}, {"id": "b", "kind": "call", "call": "x"}]}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    file = tmp_path / "shop.py"
    file.write_text(CODE)
    return file


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}" if request.param == "sqlite" else fresh_url()


@pytest.fixture
def app(target: Path, tmp_path: Path) -> Iterator[App]:
    made = loaded(target, f"sqlite:///{tmp_path / 'jobs.db'}")
    yield made
    made.close()


def loaded(target: Path, url: str) -> App:
    names: dict[str, Any] = {}
    exec(compile(target.read_text(), target, "exec"), names)  # noqa: S102 - our own code, as a worker imports it
    app: App = names["app"]
    app.url = url
    return app


@pytest.fixture
def server(target: Path, app: App) -> Iterator[Served]:
    with served(target, app.url) as running:
        yield running


@pytest.fixture
def remote(server: Served) -> Iterator[RemoteClient]:
    with holdfast.connect(server.url) as client:
        yield client


def work(app: App) -> None:
    app.worker().run(until_idle=True)


ASKING = """
import msgspec
from holdfast import App, wait_for
app = App("shop")

class Approval(msgspec.Struct):
    approved: bool

@app.step
async def look(n: int) -> int:
    return n

@app.job
async def sign(n: int) -> bool:
    await look(n)
    return (await wait_for("approval", form=Approval)).approved

app.plan("graph", {"nodes": [{"id": "a", "kind": "call", "call": "look", "args": {"n": 1}}]})
"""


def test_the_reads_for_people_and_the_check_of_an_answer_are_those_of_the_app(tmp_path: Path, url: str) -> None:
    target = tmp_path / "asking.py"
    target.write_text(ASKING)
    app = loaded(target, url)
    with served(target, url) as running, holdfast.connect(running.url) as remote:
        signed = [remote.start("sign", n=number) for number in range(3)]
        drawn = remote.start("graph")
        work(app)
        for run in (*signed, drawn):
            assert remote.story(run.id) == app.story(run.id)
            assert remote.story(run.id, after=1, limit=2) == app.story(run.id, after=1, limit=2)
            assert remote.family(run.id) == app.family(run.id)
            assert remote.run_plan(run.id) == app.run_plan(run.id)
        assert remote.run_plan(signed[0].id) is None
        assert remote.run_plan(drawn.id) is not None
        with pytest.raises(errors.UnknownJob):
            remote.run_plan("01890000-0000-7000-8000-000000000000")
        assert remote.inbox() == app.inbox()
        first = remote.inbox(limit=1)[0]
        assert remote.inbox(after=first.id, limit=1, kind="answer") == app.inbox()[1:2]
        assert remote.inbox(kind="doubt") == []
        there, here = remote.series(minutes=5, queue="default"), app.series(minutes=5, queue="default")
        assert (there.starts, there.ends) == (here.starts, here.ends)
        with pytest.raises(errors.InvalidArguments) as refused:
            signed[0].signal("approval", {"approved": 0})
        assert refused.value.reason == "answer.approved: must be true or false, got 0"
        assert remote.signal(signed[0].id, "approval", {"approved": True}, actor="ana") == "delivered"
        assert app.events(signed[0].id)[-1].payload["actor"] == "ana"
    app.close()


def test_every_call_gives_what_it_gives_on_the_app(target: Path, url: str) -> None:
    """On SQLite and PostgreSQL: the two clients stand on one store and say the same of it."""
    app = loaded(target, url)
    with served(target, url) as running, holdfast.connect(running.url) as remote:
        greeted = remote.start("greet", name="ana", times=2)
        asked = (
            remote.entry("shop.ask").options(key="k", priority=3, deadline=timedelta(hours=1)).start(question="who?")
        )
        failed = remote.start("shop.fail")
        late = remote.entry("greet").options(delay="1h").start(name="later")
        work(app)
        assert greeted.result(timeout=60) == "hello ana hello ana"
        with pytest.raises(errors.RunFailed, match="no"):
            failed.result(timeout=60)
        for run in (greeted, asked, failed, late):
            assert run.record().run_id == run.id
            assert remote.events(run.id) == app.events(run.id) == run.events()
            assert remote.evidence(run.id) == app.evidence(run.id)
            assert remote.exports(run.id) == app.exports(run.id)
            assert remote.outcome(run.id) == app.outcome(run.id)
            assert remote.explain(run.id).state == app.explain(run.id).state
        assert remote.get(asked.id) == app.get(asked.id)
        assert remote.get(asked.id).idempotency_key == "k"
        assert [one.run_id for one in remote.list()] == [one.run_id for one in app.list()]
        assert [one.run_id for one in remote.list(status="failed", entry_id="fail")] == [failed.id]
        assert [one.run_id for one in remote.list(limit=2, before=asked.id)] == [greeted.id]
        assert remote.events(asked.id, after=2, limit=1) == app.events(asked.id, after=2, limit=1)
        assert remote.block(remote.aentries()) == app.block(app.aentries())
        assert remote.stats().workers == app.stats().workers
        assert remote.verify() == {}
        assert remote.verify(asked.id) == {}
        while app.workers():  # the server's own worker for `verify` ends after its result is given out
            threading.Event().wait(0.001)
        assert remote.workers() == app.workers()
        assert asked.signal("answer", "me") == "delivered"
        work(app)
        assert [one.status for one in asked.watch()] == ["succeeded"]
        assert asked.result(timeout=60) == "who? me"
        assert remote.pause(late.id).stage == "paused"
        assert remote.resume(late.id).status == "queued"
        assert late.cancel("enough").status == "canceled"
        assert remote.retry(failed.id, actor="ana", reason="mended").run_id == f"{failed.id}.2"
        assert remote.purge(older_than="30d") == 0
    app.close()


def refusals(client: Any, run: str, ended: str) -> list[Callable[[], Any]]:
    return [
        lambda: client.get("nobody"),
        lambda: client.get("it's"),
        lambda: client.get("../entries"),
        lambda: client.get(f"{run}.7"),
        lambda: client.retry(run, actor="ana", reason="why"),
        lambda: client.resolve(run, "charge:1", fail=True),
        lambda: client.signal(run, "holdfast:own"),
        lambda: client.signal("nobody", "key"),
        lambda: client.list(status="done"),
        lambda: client.entry("greet").options(key="k").start(name="b"),
        lambda: client.start("greet", nam="b"),
        lambda: client.start("greet", name="x" * 2_000_000),
        lambda: client.start("greet", name="b", times="many"),
        lambda: client.signal(run, "key", float("nan")),
        lambda: client.signal(run, "key", "x" * 2_000_000),
        lambda: client.create(Creation(plugin_id="shop", entry_id="gr'et")),
        lambda: client.create(Creation(plugin_id="shop", entry_id="greet", args={"name": 5})),
        lambda: client.entry("greet").options(key=ODD).start(name="b"),
        lambda: client.resolve(run, ODD, not_done=True),
        lambda: client.retry(ended, actor="ana", reason="why"),
        lambda: client.fork(run, from_step=ODD),
        lambda: client.signal(run, "k", node="not asked"),
        lambda: client.grant(run, tokens=1, node="not asked"),
        lambda: client.fork("nobody", from_step="charge"),
        lambda: client.entry("open").given(Plan.from_dict(UNKNOWN_STEP)).start(),
        lambda: client.entry("greet").options(queue="full").start(name="b"),
    ]


def test_a_run_that_was_continued_is_steered_and_waited_for_by_its_first_id(app: App, remote: RemoteClient) -> None:
    run = remote.start("shop.count")
    work(app)
    assert run.record().continued_as == app.get(run.id).continued_as is not None
    current = remote.current(run.id)
    assert current == app.current(run.id)
    assert current != run.id
    assert remote.get(current).stage == "parked"
    assert remote.outcome(run.id) is None
    with pytest.raises(TimeoutError):
        run.result(timeout=0.1)
    assert run.signal("more", 40) == "delivered"
    work(app)
    assert run.result(timeout=60) == remote.outcome(run.id) == 42
    assert remote.current(current) == current


def test_a_refusal_is_the_same_error_with_the_same_words_and_parts_as_on_the_app(
    app: App, remote: RemoteClient
) -> None:
    run = remote.entry("greet").options(key="k").start(name="a").id
    ended = remote.entry("greet").options(key=ODD).start(name="a").id
    remote.cancel(ended)
    app.set_limits(Limits(queue="full", depth=1))
    remote.entry("greet").options(queue="full").start(name="a")
    met: set[type] = set()
    for there, here in zip(refusals(remote, run, ended), refusals(app, run, ended), strict=True):
        with pytest.raises(HoldfastError) as far:
            there()
        with pytest.raises(HoldfastError) as near:
            here()
        met.add(type(near.value))
        assert type(far.value) is type(near.value)
        assert str(far.value) == str(near.value)
        assert vars(far.value) == vars(near.value)
        assert str(pickle.loads(pickle.dumps(far.value))) == str(far.value)  # noqa: S301 - our own bytes
    assert met == {
        errors.IdempotencyConflict, errors.InvalidArguments, errors.InvalidPlan, errors.InvalidTransition,
        errors.NotInDoubt, errors.PayloadTooLarge, errors.QuestionClosed, errors.QueueFull, errors.UnknownEntry,
        errors.UnknownJob,
    }  # fmt: skip


def test_an_unknown_name_says_what_there_is(remote: RemoteClient) -> None:
    names = r"shop\.ask, shop\.count, shop\.fail, shop\.greet, shop\.open"
    with pytest.raises(errors.UnknownEntry, match=rf"no job is named 'gret'; the known jobs are: {names}"):
        remote.start("gret")
    with pytest.raises(
        errors.UnknownEntry, match=r"no job is named 'shop\.gret'; the known jobs are: shop\.ask"
    ) as told:
        remote.start("shop.gret")
    assert told.value.known == ["shop.greet", "shop.ask", "shop.fail", "shop.count", "shop.open"], (
        "as the app lists them"
    )
    with pytest.raises(
        TypeError, match="unknown options prio; valid options are attributes, budget, deadline, delay, group, key"
    ):
        remote.entry("greet").options(prio=1)
    for name in ("", "..", "../entries"):
        with pytest.raises(errors.UnknownJob):
            remote.get(name)


def test_limits_that_changed_since_they_were_read_are_not_overwritten(app: App, remote: RemoteClient) -> None:
    first = remote.set_limits(Limits(queue="mail", concurrency=1), expected=Limits(queue="mail")).limits
    app.set_limits(Limits(queue="mail", concurrency=2))
    for client in (app, remote):
        with pytest.raises(errors.LimitsChanged) as changed:
            client.set_limits(Limits(queue="mail", concurrency=3), expected=first)
        assert changed.value.queue == "mail"


def test_runs_are_canceled_retried_and_signaled_by_filter(app: App, remote: RemoteClient) -> None:
    """The app and the remote client act on the same runs, page by page."""
    for client in (app, remote):
        failed = [app.start("fail").id for _ in range(3)]
        work(app)
        assert set(client.retry_runs(reason="again", entry_id="fail", dry_run=True).run_ids) == set(failed)
        first = client.retry_runs(reason="again", entry_id="fail", limit=2)
        rest = client.retry_runs(reason="again", entry_id="fail", limit=2, before=first.next)
        assert {*first.run_ids, *rest.run_ids} == set(failed)
        assert (len(first.run_ids), rest.next) == (2, None)
        assert len(client.cancel_runs(reason="enough", status="queued").run_ids) == 3
        waiting = app.start("ask").id
        work(app)
        assert client.signal_runs("answer", 7, entry_id="ask").run_ids == [waiting]
        work(app)
        assert app.get(waiting).status == "succeeded"
        with pytest.raises(errors.InvalidArguments, match="at least one filter"):
            client.cancel_runs()
        with pytest.raises(errors.InvalidArguments, match="one or more of succeeded, failed, canceled"):
            client.purge(older_than=0, statuses=[])


def test_every_filter_finds_what_it_finds_on_the_app(app: App, remote: RemoteClient) -> None:
    made = [app.start("fail").id, app.start("fail").id]
    work(app)
    app.retry(made[0], actor="ana", reason="again")
    end = app.get(made[1]).finished_at
    found = set()
    filters: list[dict[str, Any]] = [
        {"oldest_first": True}, {"newest": True}, {"task_id": made[0]}, {"finished_after": end},
        {"finished_before": end}, {"oldest_first": True, "before": made[0]}, {"before": made[1]},
    ]  # fmt: skip
    for where in filters:
        expected = [run.run_id for run in app.list(**where)]
        assert [run.run_id for run in remote.list(**where)] == expected, where
        found.add(tuple(expected))
    assert len(found) > 4


def test_many_runs_start_in_order_as_an_app_starts_them(app: App, remote: RemoteClient) -> None:
    """More than one request is sent; an invalid run stops its batch, and a refusal of the store stops no other run."""
    runs = remote.start_many("greet", [{"name": str(number)} for number in range(510)])
    work(app)
    assert [app.outcome(run) for run in runs] == [f"hello {number}" for number in range(510)]
    with pytest.raises(errors.InvalidArguments):
        remote.start_many("greet", [{"name": "a"}, {"nam": "b"}, {"name": "c"}])
    assert len(remote.list(limit=1000)) == 510
    app.set_limits(Limits(queue="small", depth=2))
    with pytest.raises(errors.QueueFull):
        remote.start_many(remote.entry("greet").options(queue="small"), [{"name": str(number)} for number in range(4)])
    assert len(remote.list(queue="small")) == 2


def test_who_may_do_what_is_decided_by_the_token(
    target: Path, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.http.tokens import TokenFile

    kept = TokenFile(str(tmp_path / "tokens.json"))
    reading, submitting = kept.create("viewer", "read", None), kept.create("ci", "submit", None)
    with served(target, app.url, HOLDFAST_TOKENS=str(tmp_path / "tokens.json")) as running:
        for token in (None, "wrong"):
            with holdfast.connect(running.url, token=token) as nobody, pytest.raises(errors.NotAllowed) as refused:
                nobody.list()
            assert isinstance(refused.value, PermissionError)
            assert "set HOLDFAST_TOKEN, or pass token=" in str(refused.value)
            assert "holdfast tokens create" in str(refused.value)
        with holdfast.connect(running.url, token=reading) as viewer:
            assert viewer.list() == []
            with pytest.raises(errors.NotAllowed, match="the scope submit is needed, and the token has read"):
                viewer.start("greet", name="a")
        monkeypatch.setenv("HOLDFAST_TOKEN", submitting)
        with holdfast.connect(running.url) as ci:
            run = ci.start("greet", name="a")
            with pytest.raises(errors.NotAllowed):
                run.cancel()
    with pytest.raises(errors.InvalidSetting, match="token='…': it has characters that are not allowed in a token"):
        holdfast.connect(running.url, token="two\nlines")  # noqa: S106 - none


@pytest.fixture
def wire(server: Served) -> Iterator[Cutting]:
    with Cutting(server.port) as made:
        yield made
        made.shutdown()


def test_a_lost_answer_creates_no_second_run_and_no_key_is_seen(app: App, wire: Cutting) -> None:
    with holdfast.connect(wire.url) as remote:
        wire.lose = [b"POST /api/v1/runs"] * 2
        run = remote.start("greet", name="once")
        assert len(wire.lost) == 2
        assert [one.run_id for one in app.list()] == [run.id]
        assert run.record().idempotency_key is None
        assert remote.list()[0].idempotency_key is None
        assert (app.get(run.id).idempotency_key or "").startswith("auto:")
        wire.lose = [b"POST /api/v1/runs"]
        first = Creation(plugin_id="shop", entry_id="greet", args={"name": "x"}, idempotency_key="mine")
        assert remote.create(first).existing, "a key of one's own: whether it is new cannot be told after a loss"
        again = remote.create(first)
        assert (again.existing, again.record.idempotency_key) == (True, "mine")
        assert len(app.list()) == 2


def test_a_lost_answer_of_an_operator_does_nothing_twice(app: App, wire: Cutting) -> None:
    with holdfast.connect(wire.url) as remote:
        failed = [remote.start("fail").id for _ in range(3)]
        work(app)
        wire.lose = [b"POST"]
        assert remote.retry(failed[0], actor="ana", reason="again").run_id == f"{failed[0]}.2"
        wire.lose = [b"POST"]
        assert remote.retry_runs(reason="again", entry_id="fail", limit=1).run_ids == [failed[2]]
        statuses = {run.task_id: run.status for run in app.list(newest=True)}
        assert [statuses[run] for run in failed] == ["queued", "failed", "queued"], "the page of the first request"
        wire.lose = [b"POST"]
        assert remote.pause(failed[0]).stage == "paused"
        wire.lose = [b"POST"]
        assert remote.purge(older_than=0, limit=1) == 1
        assert wire.lose == []
        assert len(app.list(newest=True)) == 2


def test_what_a_repeat_would_do_twice_is_not_repeated_and_the_error_says_so(app: App, wire: Cutting) -> None:
    with holdfast.connect(wire.url) as remote:
        run = remote.start("ask")
        work(app)
        wire.lose = [b"POST"]
        assert run.signal("answer", "first") == "delivered"
        assert [event.type for event in run.events()].count("wait_completed") == 1
        limits = remote.set_limits(Limits(queue="mail", concurrency=2)).limits
        wire.lose = [b"PUT"]
        with pytest.raises(errors.StoreUnavailable, match="whether it was done is not known: look at the run"):
            remote.set_limits(Limits(queue="mail", concurrency=3), expected=limits)
        assert wire.lose == []
        wire.lose = [b"GET", b"GET"]
        assert remote.get(run.id).run_id == run.id
        wire.lose = [b"GET"] * 9
        with pytest.raises(errors.StoreUnavailable, match="does not answer"):
            remote.get(run.id)


def test_a_watch_goes_on_over_lost_connections_and_a_restarted_server(target: Path, app: App) -> None:
    with Cutting(0) as wire, holdfast.connect(wire.url) as remote:
        with served(target, app.url) as first:
            wire.port = first.port
            run = remote.start("ask", question="still?")
            seen = run.watch()
            assert next(seen).status == "queued"
            wire.cut()
            work(app)
            assert next(seen).stage == "parked"
        with served(target, app.url) as second:
            wire.port = second.port
            app.signal(run.id, "answer", "yes")
            work(app)
            assert [one.status for one in seen][-1] == "succeeded"
            assert run.result(timeout=60) == "still? yes"
        wire.shutdown()


def test_a_server_that_is_away_or_is_none_is_told_in_one_line(server: Served) -> None:
    with Cutting(0) as nothing, holdfast.connect(nothing.url, timeout=2) as remote:
        nothing.shutdown()
        nothing.server_close()
        with pytest.raises(errors.StoreUnavailable, match=r"does not answer .*: is it running \(holdfast serve\)"):
            remote.stats()
    with holdfast.connect(f"{server.url}/elsewhere") as wrong, pytest.raises(HoldfastError):
        wrong.stats()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Silent) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{other.server_address[1]}"
        asked = "is that the address of a Holdfast server"
        with holdfast.connect(address) as stranger, pytest.raises(errors.StoreUnavailable, match=asked):
            stranger.list()
        other.shutdown()
    with pytest.raises(errors.InvalidSetting, match="use http://host:port"):
        holdfast.connect("localhost:4653")
    with pytest.raises(errors.InvalidSetting, match="ort"):
        holdfast.connect("http://localhost:99999")


def test_a_program_that_waits_for_a_result_and_ends_says_nothing_besides(server: Served, app: App) -> None:
    run = app.start("greet", name="Ann")
    work(app)
    program = f"""
import asyncio, holdfast
from holdfast.client.run_handle import RunHandle
print(asyncio.run(RunHandle(holdfast.connect("{server.url}"), "{run.id}").aresult()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("hello Ann\n", "")


class _Hostile(http.server.BaseHTTPRequestHandler):
    """Answers with pages that never end, a compressed response, or one that is too long."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        number = len(self.asked)
        body, coding = b"", "identity"
        if "events" in self.path:
            event = {"id": "e", "job": "j", "seq": number, "type": "x", "payload": {}, "attempt": 1, "at": 1.0}
            event |= {"schema": 1, "prev": "0" * 64, "hash": "0" * 64}
            empty = "empty" in self.path
            body = json.dumps({"items": [] if empty else [event], "next": str(number)}).encode()
        elif "stats" in self.path:
            body, coding = gzip.compress(b"{}"), "gzip"
        else:
            body = b'{"items": []}' + b" " * 1000
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Encoding", coding)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_what_a_hostile_server_sends_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(_Hostile, "asked", asked)
    monkeypatch.setattr("holdfast.client.remote.client.PAGES_MAX", 5)
    monkeypatch.setattr("holdfast.client.remote.transport.RESPONSE_BYTES_MAX", 1000)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hostile) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with holdfast.connect(f"http://127.0.0.1:{other.server_address[1]}") as remote:
            with pytest.raises(errors.StoreUnavailable, match="lists more than 5 pages"):
                remote.events("run")
            assert len(asked) == 5
            assert remote.events("empty") == []
            assert len(asked) == 6
            with pytest.raises(errors.StoreUnavailable, match="compressed form"):
                remote.stats()
            with pytest.raises(errors.StoreUnavailable, match="more than 1000 bytes"):
                remote.workers()
        other.shutdown()


def test_an_event_of_a_stream_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 100)

    async def read(pieces: list[bytes]) -> list[bytes]:
        async def sent() -> AsyncGenerator[bytes, None]:
            for piece in pieces:
                yield piece

        return [event.data async for event in sse.events(sent())]

    assert asyncio.run(read([b"data: a\n\n"] * 50)) == [b"a"] * 50
    for endless in ([b"data: "] + [b"x" * 10] * 10, [b"data: x\n"] * 20):
        with pytest.raises(errors.StoreUnavailable, match="more than 100 bytes"):
            asyncio.run(read(endless))


class _Silent(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_result_is_waited_for_so_long_and_the_run_goes_on(remote: RemoteClient) -> None:
    run = remote.start("greet", name="a")
    with pytest.raises(TimeoutError):
        run.result(timeout=0.2)
    assert run.record().status == "queued"
    assert repr(remote.entry("greet")).startswith("<job greet at http://127.0.0.1:")


def test_one_client_serves_several_loops_and_the_plain_colour(app: App, server: Served) -> None:
    client = holdfast.connect(server.url)

    async def one() -> str:
        async with client:
            return (await client.entry("greet").astart(name="a")).id

    runs = [asyncio.run(one()), asyncio.run(one()), client.start("greet", name="b").id]
    assert {record.run_id for record in client.list()} == set(runs)
    client.close()
    assert {record.run_id for record in app.list()} == set(runs)


def test_many_runs_are_watched_at_once_by_one_client(app: App, remote: RemoteClient) -> None:
    async def story() -> list[str]:
        runs = await remote.astart_many("ask", [{}] * 150)
        watches = [cast("AsyncGenerator[RunRecord, None]", remote.awatch(run)) for run in runs]
        first = await asyncio.gather(*(anext(watch) for watch in watches))
        await remote.acancel(runs[-1])  # while every watch holds its connection
        last = [record.status async for record in watches[-1]]
        for watch in watches:
            await watch.aclose()
        await remote.aclose()
        return [*{str(record.status) for record in first}, *last]

    assert asyncio.run(story()) == ["queued", "canceled"]
    assert len(app.list(limit=1000)) == 150


def test_a_watch_that_is_closed_before_its_end_lets_its_connection_go(remote: RemoteClient) -> None:
    async def look() -> None:
        run = await remote.astart("ask")
        async with aclosing(cast("AsyncGenerator[RunRecord, None]", run.awatch())) as seen:
            assert (await anext(seen)).status == "queued"
        await remote.aclose()

    asyncio.run(look())
