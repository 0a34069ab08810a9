"""Who gets in: the rules of docs/explanation/security.md, route by route."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import strategies as st

from holdfast import App, Config
from holdfast.errors import InvalidArguments, InvalidSetting
from holdfast.http.auth import Guard
from holdfast.http.page import FILES
from holdfast.http.routes import routes
from holdfast.http.tokens import LOOK_SECONDS, Keyring, Scope, TokenFile, hashed, kept_of
from holdfast.server import asgi, token
from support.scripts import ROOT
from support.shell import Shell
from support.stories import drain, play, until
from support.timeless import given
from support.web import JSON, near, served, small_shop, wait_until

TABLE = routes()
GUARDED = [one for one in TABLE if one.needed is not None]
LONG = "." * 32
SECRET = "hf_planted-token-that-nobody-may-see"  # noqa: S105 - no secret of anybody
BY_ROUTE = pytest.mark.parametrize("route", GUARDED, ids=lambda one: f"{one.method} {one.path}")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[App]:
    with small_shop(tmp_path) as made:
        yield made


def path_of(route: Any, run: str = "01890000-0000-7000-8000-000000000000") -> str:
    return str(route.path.format(id=run, number=1, machine="job", queue="mail", schedule="nightly"))


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


# S1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "203.0.113.7", "example.com"])  # noqa: S104 - that is the point
def test_another_address_than_loopback_without_a_token_refuses_to_start(tmp_path: Path, host: str) -> None:
    refused = Shell(tmp_path).ran("serve", str(ROOT / "examples" / "shop.py"), "--host", host, "--port", "0", "--open")
    assert refused.returncode == 2
    assert "holdfast tokens create" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - that is the point
def test_the_first_start_makes_a_token_next_to_the_database_and_says_who_can_reach_the_server(
    tmp_path: Path, host: str
) -> None:
    (tmp_path / "data").mkdir()
    url = f"sqlite:///{tmp_path / 'data' / 'jobs.db'}"
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "HOLDFAST"))}

    def started(*options: str) -> tuple[list[str], int, int]:
        """Start a server, and give its lines, and the status without and with the token of its lines."""
        words = ["serve", str(ROOT / "examples" / "shop.py"), "--url", url, "--host", host, "--port", "0", *options]
        command = [sys.executable, "-m", "holdfast", *words]
        with subprocess.Popen(command, env=usual, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
            assert process.stderr is not None
            lines = [process.stderr.readline()]
            while "reachable from" not in lines[-1] and "open:" not in lines[-1]:
                lines.append(process.stderr.readline())
                assert lines[-1], lines
            port = re.findall(r":(\d+)$", lines[0].strip())[0]
            made = re.findall(r"hf_\S+", "".join(lines))
            there = f"http://127.0.0.1:{port}/api/v1/runs"
            answers = [httpx.get(there, timeout=60).status_code]
            answers.append(httpx.get(there, headers=bearer(made[0]) if made else {}, timeout=60).status_code)
            process.send_signal(signal.SIGTERM)
        return lines, answers[0], answers[1]

    where = "this machine" if host == "127.0.0.1" else "other machines"
    lines, without, with_it = started()
    assert (without, with_it) == (401, 200)
    assert len(lines) == 3
    assert f"1 token; reachable from {where}" in lines[2]
    assert "hf_" not in (tmp_path / "data" / "holdfast-tokens.json").read_text()
    lines, without, _ = started("--open")
    assert without == 401, "a token that exists is needed"
    assert len(lines) == 2, "it is shown once"


def test_an_open_server_says_that_it_is_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with served(ROOT / "examples" / "shop.py", url) as server:
        assert server.process.stderr is not None
        assert "open: every process of this machine" in server.process.stderr.readline()
        assert httpx.get(f"{server.url}/api/v1/runs", timeout=60).status_code == 200
    assert not (tmp_path / "holdfast-tokens.json").exists()


@pytest.mark.parametrize("secret", ["", "x", "y" * 31])
def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path, secret: str) -> None:
    with pytest.raises(InvalidArguments, match="at least 32 characters"):
        token(secret)
    if secret:  # empty means that none is set
        shell = Shell(tmp_path)
        shell.environment["HOLDFAST_TOKEN"] = secret
        refused = shell.run("serve", str(ROOT / "examples" / "shop.py"), "--port", "0", code=2)
        assert "at least 32 characters" in refused
        assert secret * 2 not in refused


def test_the_token_file_is_never_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bait = tmp_path / "bait"
    bait.write_text("untouched")
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    (tmp_path / "tokens.json.guessed").symlink_to(bait)
    with pytest.raises(InvalidSetting, match="File exists"):
        TokenFile(tmp_path / "tokens.json").create("ci", "read")
    assert bait.read_text() == "untouched"
    monkeypatch.undo()
    previous = os.umask(0)
    try:
        TokenFile(tmp_path / "tokens.json").create("ci", "read")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "tokens.json").lstat().st_mode) == 0o600
    assert sorted(one.name for one in tmp_path.glob("tokens.json.*")) == ["tokens.json.guessed"]


@pytest.mark.parametrize("how", ["file", "environment"])
def test_another_address_with_a_token_starts_and_asks_for_it(tmp_path: Path, how: str) -> None:
    file = tmp_path / "tokens.json"
    secret = TokenFile(file).create("ci", "read") if how == "file" else "from-the-environment-from-the-environment"
    settings = {"HOLDFAST_TOKENS": str(file)} | ({"HOLDFAST_TOKEN": secret} if how == "environment" else {})
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with served(ROOT / "examples" / "shop.py", url, "--host", "0.0.0.0", **settings) as server:  # noqa: S104 - as above
        there = f"http://127.0.0.1:{server.port}/api/v1/runs"
        assert httpx.get(there, timeout=60).status_code == 401
        assert httpx.get(there, headers=bearer(secret), timeout=60).status_code == 200
        assert httpx.get(f"http://127.0.0.1:{server.port}/healthz", timeout=60).status_code == 200


def test_without_tokens_only_this_machine_is_served_and_nothing_from_behind_a_proxy(small: App) -> None:
    async def story() -> None:
        async with near(small, peer=("10.0.0.9", 5)) as far:
            assert (await far.get("/api/v1/runs")).status_code == 401
            assert (await far.get("/healthz")).status_code == 200
        async with near(small) as here:
            assert (await here.get("/api/v1/runs")).status_code == 200
            for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"):
                assert (await here.get("/api/v1/runs", headers={name: "127.0.0.1"})).status_code == 401

    play(story())


# S2


@BY_ROUTE
def test_every_route_needs_a_token_and_nothing_appended_to_its_path_changes_that(small: App, route: Any) -> None:
    async def story() -> None:
        async with near(small, tokens=[token(SECRET)]) as client:
            path = path_of(route)
            answer = await client.request(route.method, path)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
            for more in ("/healthz", "/readyz", "?x=/healthz", "?/healthz", "#/healthz"):
                assert (await client.request(route.method, path + more)).status_code == 401, more
            for more in (
                ";/healthz",
                ";x=healthz",
                "%2fhealthz",
                "//healthz",
                "/",
                "%2e",
                "/%2e%2e/healthz",
            ):
                refused = await client.get(httpx.URL(f"http://localhost{path}{more}"))
                assert refused.status_code in {400, 401}, more

    play(story())


def test_only_the_probes_and_the_files_of_the_page_are_open_and_by_identity(small: App) -> None:
    async def story() -> None:
        async with near(small, tokens=[token(SECRET)]) as client:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/readyz")).status_code == 200
            for path in FILES:  # of the dashboard, which have no data of the store
                assert (await client.get(path)).status_code == 200
            closed = ("/healthz/x", "/x/healthz", "/api/v1/healthz", "/nothing", "/page", "/page/x", "/metrics")
            for path in (*closed, "/openapi.json"):
                assert (await client.get(path)).status_code == 401, path

    play(story())


# S3


def test_a_stream_is_guarded_as_every_route_and_a_socket_is_closed(small: App) -> None:
    async def story() -> None:
        run = await small.astart("greet", "Ada")
        await drain(small)
        async with near(small, tokens=[token(SECRET, scope="read")]) as client:
            path = f"/api/v1/runs/{run.id}/stream"
            assert (await client.get(path)).status_code == 401
            assert (await client.get(path, headers={**bearer(SECRET), "Host": "evil.example"})).status_code == 421
            foreign = await client.get(path, headers={**bearer(SECRET), "Origin": "http://evil.example"})
            assert foreign.status_code == 403
            assert (await client.get(path, headers=bearer(SECRET))).status_code == 200
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await asgi(small)({"type": "websocket", "path": "/api/v1/stream", "headers": []}, receive, send)
        assert [one["type"] for one in sent] == ["websocket.close"]

    play(story())


# S4, S5


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "local host", "x@localhost"]
)
def test_a_host_that_is_not_ours_opens_nothing(small: App, host: str) -> None:
    async def story() -> None:
        async with near(small) as client:
            assert (await client.get("/api/v1/runs", headers={"Host": host})).status_code == 421
            assert (await client.get("/healthz", headers={"Host": host})).status_code == 200

    play(story())


def test_the_hosts_that_were_named_are_ours_and_no_others(small: App) -> None:
    async def story() -> None:
        async with near(small, hosts=["jobs.example.com"]) as client:
            for host in ("jobs.example.com", "JOBS.example.com:443", "localhost:4653", "127.0.0.1", "[::1]:80"):
                assert (await client.get("/api/v1/runs", headers={"Host": host})).status_code == 200, host
            assert (await client.get("/api/v1/runs", headers={"Host": "example.com"})).status_code == 421

    play(story())


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "GET", "QUERY"])
def test_what_a_page_of_another_site_sends_is_refused_whatever_the_method(small: App, method: str) -> None:
    async def story() -> None:
        async with near(small) as client:
            for headers in (
                {"Origin": "https://evil.example"},
                {"Origin": "null"},
                {"Origin": "http://localhost.evil"},
                {"Origin": "http://localhost:3000"},  # another program of this machine
                {"Origin": "http://127.0.0.1"},
                {"Sec-Fetch-Site": "cross-site"},
                {"Sec-Fetch-Site": "same-site"},
                {"Sec-Fetch-Site": "something new"},
            ):
                answer = await client.request(method, "/api/v1/runs", headers=headers, content=b"{}")
                assert answer.status_code == 403
            for headers in (
                {"Origin": "http://localhost:8000", "Host": "localhost:8000"},
                {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"},
                {"Sec-Fetch-Site": "none"},
            ):
                assert (await client.get("/api/v1/runs", headers=headers)).status_code == 200
        async with near(small, hosts=["jobs.example.com"]) as client:  # behind a proxy that sends a Host of its own
            for origin, status in (("https://jobs.example.com", 200), ("https://jobs.example.com.evil", 403)):
                assert (await client.get("/api/v1/runs", headers={"Origin": origin})).status_code == status

    play(story())


@pytest.mark.parametrize("route", TABLE, ids=lambda one: f"{one.method} {one.path}")
def test_no_answer_has_cookies_or_cors_and_every_one_the_headers_of_safety(small: App, route: Any) -> None:
    async def story() -> None:
        run = await small.astart("greet", "Ada")
        await drain(small)
        async with near(small, tokens=[token(SECRET)]) as client:
            for headers in ({}, bearer(SECRET)):
                if route.path == "/api/v1/stream" and headers:
                    continue  # it does not end; it is sent by the same code as a run's stream
                answer = await client.request(route.method, path_of(route, run.id), headers=headers)
                names = set(answer.headers)
                assert not {"set-cookie", "server"} & names
                assert not [name for name in names if name.startswith("access-control")]
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
                assert answer.headers["cache-control"] == "no-store"

    play(story())


# S6, S7


@BY_ROUTE
def test_a_token_may_do_what_its_scope_includes_and_no_more(small: App, route: Any) -> None:
    async def story() -> None:
        keys = [token(scope.name * 8, name=scope.name, scope=scope.name.lower()) for scope in Scope]
        async with near(small, tokens=keys) as client:
            for scope in Scope:
                if route.path == "/api/v1/stream" and scope >= route.needed:
                    continue  # it does not end
                answer = await client.request(
                    route.method, path_of(route), headers={**bearer(scope.name * 8), **JSON}, content=b"{}"
                )
                assert (answer.status_code == 403) is (scope < route.needed), (scope, answer.text)
                assert answer.status_code != 401

    play(story())


def test_what_is_done_with_a_token_is_recorded_under_its_name(small: App) -> None:
    async def story() -> None:
        run = await small.astart("fail")
        await drain(small)
        async with near(small, tokens=[token(SECRET, name="ana")]) as client:
            answer = await client.post(f"/api/v1/runs/{run.id}/retry", json={"reason": "x"}, headers=bearer(SECRET))
            assert answer.status_code == 201
            forged = {"reason": "x", "actor": "token:bob"}
            answer = await client.post(f"/api/v1/runs/{run.id}/cancel", json=forged, headers=bearer(SECRET))
            assert answer.status_code == 422, "another's name is not taken"
        assert (await small.aevents(run.id))[-1].payload["actor"] == "token:ana"

    play(story())


def test_every_act_is_in_the_audit_log_under_the_tokens_name(small: App) -> None:
    async def story() -> None:
        async with near(small, tokens=[token(SECRET, name="ana")]) as client:

            async def post(path: str, **body: Any) -> dict[str, Any]:
                answer = await client.post(f"/api/v1{path}", json=body, headers=bearer(SECRET))
                assert answer.is_success, answer.text
                return dict(answer.json())

            run = (await post("/runs", plugin_id="shop", entry_id="ask"))["run_id"]
            await post(f"/runs/{run}/pause")
            await post(f"/runs/{run}/resume", actor="alice")
            await post(f"/runs/{run}/signal", key="answer", payload="a secret of the payload")
            await drain(small)
            await post(f"/runs/{run}/cancel", reason="enough", actor="token:ana")
            failed = (await post("/runs", plugin_id="shop", entry_id="fail"))["run_id"]
            await drain(small)
            await post(f"/runs/{failed}/retry", reason="again", actor="alice")
            await drain(small)
            await post("/limits/mail/pause")
            await post("/purge", older_than=0, limit=10)
            for actor in ("operator\nroot", "token:bob"):
                path = f"/api/v1/runs/{failed}/pause"
                refused = await client.post(path, json={"actor": actor}, headers=bearer(SECRET))
                assert refused.status_code == 422
            rows = (await client.get("/api/v1/audit", headers=bearer(SECRET))).json()["items"]
            page = (await client.get("/api/v1/audit?limit=2", headers=bearer(SECRET))).json()
            cursor = {"limit": 1, "cursor": page["next"]}
            following = (await client.get("/api/v1/audit", params=cursor, headers=bearer(SECRET))).json()["items"]
        assert {row["actor"] for row in rows} == {"token:ana"}
        assert page["items"] + following == rows[:3]
        assert [(row["verb"], row["said"], row["subject"]) for row in reversed(rows)] == [
            ("create", None, run),
            ("pause", None, run),
            ("resume", "alice", run),
            ("signal", None, run),
            ("cancel", None, run),
            ("create", None, failed),
            ("retry", "alice", failed),
            ("pause_queue", None, "mail"),
            ("purge", None, ""),
        ]
        assert rows[0]["detail"]["removed"] == 2
        assert rows[2]["detail"] == {"reason": "again"}
        assert "a secret of the payload" not in json.dumps(rows)

    play(story())


def test_without_tokens_the_audit_log_has_what_operators_did(small: App) -> None:
    async def story() -> None:
        async with near(small) as client:
            made = {"plugin_id": "shop", "entry_id": "ask"}
            run = (await client.post("/api/v1/runs", json=made)).json()["run_id"]
            await client.post(f"/api/v1/runs/{run}/pause", json={"actor": "alice"})
            await client.post(f"/api/v1/runs/{run}/resume")
        await small.acancel(run, actor="bo")
        await small.apurge(older_than=0)
        rows = [(row.actor, row.verb) for row in reversed(await small.aaudit())]
        assert rows == [("alice", "pause"), ("http", "resume"), ("bo", "cancel"), ("app", "purge")]

    play(story())


def test_a_token_is_kept_hashed_shown_once_and_its_file_is_its_owners(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    made = shell.json("tokens", "create", "--name", "ci", "--scope", "submit", "--expires", "90d")
    file = tmp_path / "holdfast-tokens.json"
    assert len(made["token"]) >= 43, "256 bits"
    assert made["token"] not in file.read_text()
    assert hashed(made["token"]) in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    listed = shell.run("tokens", "list")
    assert re.fullmatch(r"ci +submit +until \d{4}-\d\d-\d\d", listed)
    assert made["token"] not in listed + json.dumps(shell.json("tokens", "list"))
    assert "a token named 'ci' already exists" in shell.run("tokens", "create", "--name", "ci", code=2)
    assert "is not a duration" in shell.run("tokens", "create", "--name", "x", "--expires", "soon", code=2)
    assert shell.run("tokens", "revoke", "ci") == "revoked"
    assert shell.ran("tokens", "revoke", "ci").returncode == 3
    assert shell.run("tokens", "list") == "no tokens"
    assert shell.run("tokens", "create", "--name", "forever").startswith("hf_")
    assert shell.run("tokens", "list").split() == ["forever", "read", "no", "expiry"]


def test_tokens_that_are_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:  # each with a file of its own, as processes have
        made = list(pool.map(lambda name: TokenFile(tmp_path / "tokens.json").create(name, "read"), names))
        revoked = pool.map(lambda name: TokenFile(tmp_path / "tokens.json").revoke(name), names[:8])
        assert all(revoked)
    kept = {one.name: one.hash for one in TokenFile(tmp_path / "tokens.json").all()}
    assert kept == {name: hashed(token) for name, token in zip(names[8:], made[8:], strict=True)}


def test_a_token_that_was_revoked_or_has_expired_is_refused(small: App, tmp_path: Path) -> None:
    async def story() -> None:
        file = TokenFile(tmp_path / "tokens.json")
        good, old = file.create("good", "read"), file.create("old", "read", expires_at=1.0)
        async with near(small, tokens=str(tmp_path / "tokens.json")) as client:
            assert (await client.get("/api/v1/runs", headers=bearer(good))).status_code == 200
            assert (await client.get("/api/v1/runs", headers=bearer(old))).status_code == 401
            for sent in (f"Basic {good}", good, f"Bearer {good}x", "Bearer ", f"Bearer {hashed(good)}"):
                assert (await client.get("/api/v1/runs", headers={"Authorization": sent})).status_code == 401
            assert (await client.get(f"/api/v1/runs?token={good}")).status_code == 401, "never in a URL"
            file.revoke("good")

            async def refused() -> bool:
                return (await client.get("/api/v1/runs", headers=bearer(good))).status_code == 401

            await until(refused)
            file.revoke("old")
            await asyncio.sleep(LOOK_SECONDS + 0.1)
            assert await refused(), "the last one that is revoked does not open the door"

    play(story())


@given(one=st.text(), other=st.text())
def test_a_token_opens_by_equality_alone(one: str, other: str) -> None:
    keys = Keyring(None, [kept_of(LONG + one, name="x")])
    assert (keys.find(LONG + other) is not None) is (one == other)
    assert keys.find(LONG + ".*") is None or one == ".*"


@given(st.text(min_size=1))
def test_a_host_is_ours_by_equality_alone(name: str) -> None:
    guard = Guard(Keyring(), ["jobs.example.com"])
    assert guard._ours(name) is (re.sub(r":\d{1,5}\Z", "", name) in {"localhost", "jobs.example.com"})
    assert not guard._ours(f"jobs.example.com.{name}")
    assert not guard._ours("jobsxexample.com")


def test_a_token_stands_in_no_log_answer_setting_or_database(tmp_path: Path) -> None:
    """Planted in a header, in the environment and in a wrong place of a request; then looked for everywhere."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "HOLDFAST"))}
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "serve",
        str(ROOT / "examples" / "shop.py"),
        "--url",
        url,
        "--port",
        "0",
    ]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            command, env={**usual, "HOLDFAST_TOKEN": SECRET}, stderr=log, stdout=log, cwd=tmp_path
        )
        wait_until(lambda: "reachable" in (tmp_path / "log").read_text(), server)
        there = (tmp_path / "log").read_text().splitlines()[0].split()[-1]
        body = {"plugin_id": "shop", "entry_id": "notify", "args": {"text": "x"}}
        answers = [
            httpx.post(f"{there}/api/v1/runs", json=body, headers=bearer(SECRET), timeout=60),
            httpx.get(f"{there}/api/v1/runs", headers=bearer(SECRET), timeout=60),
            httpx.get(f"{there}/metrics", headers=bearer(SECRET), timeout=60),
            httpx.get(f"{there}/api/v1/runs", headers={"Authorization": SECRET}, timeout=60),
            httpx.get(f"{there}/api/v1/{SECRET}", headers=bearer(SECRET), timeout=60),
        ]
        server.terminate()
        assert server.wait(60) == 0
    assert [one.status_code for one in answers] == [201, 200, 200, 401, 404]
    assert SECRET not in "".join(one.text + str(one.headers) for one in answers)
    for file in tmp_path.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file.name
    assert SECRET not in repr(Config(token=SECRET))


# S8, S9


def test_nothing_is_read_that_could_become_code() -> None:
    banned = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml"}
    for path in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            safe = path.match("plans/parser.py") and "yaml.SafeLoader(" in path.read_text()  # plans, by the safe loader
            assert not (banned - ({"yaml"} if safe else set())) & {name.partition(".")[0] for name in names}, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "yaml":
                assert node.attr in {"SafeLoader", "YAMLError"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, path


def test_filters_come_from_a_closed_list(small: App) -> None:
    async def story() -> None:
        async with near(small) as client:
            for name in (
                "sort",
                "order",
                "run_id",
                "Status",
                "status[]",
                "attr",
                "attr.",
                "select",
                "where",
                "__class__",
            ):
                answer = await client.get("/api/v1/runs", params={name: "x"})
                assert (answer.status_code, answer.json()["code"]) == (422, "invalid_arguments"), name
            for route in TABLE:
                if not route.query and route.method == "GET" and "{" not in route.path:
                    assert (await client.get(route.path, params={"x": "y"})).status_code == 422, route.path

    play(story())


# S16


HTTP_CLIENTS = {"aiohttp", "ftplib", "http.client", "httpx", "requests", "smtplib", "socketserver", "urllib.request"}
HTTP_CLIENTS |= {"urllib3", "websockets", "xmlrpc"}
OUTWARDS = {"connect", "connect_ex", "create_connection", "open_connection", "open_unix_connection", "sock_connect"}
OUTWARDS |= {"create_datagram_endpoint", "create_unix_connection", "sendto", "urlopen"}
SERVING = ("http", "engine", "store", "machines", "ready", "plans", "authoring", "group_commit.py", "server.py")


def test_nothing_that_serves_or_works_asks_anybody_outside() -> None:
    """There are no webhooks: nobody can have us call an address. Only the database is connected to."""
    source = ROOT / "src" / "holdfast"
    paths = [
        path for part in SERVING for path in ([source / part] if part[-3:] == ".py" else (source / part).rglob("*"))
    ]
    modules = [path for path in paths if path.suffix == ".py"]
    assert len(modules) > 100
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            if isinstance(node, ast.ImportFrom):
                names = {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
            roots = {name.partition(".")[0] for name in names} | {".".join(name.split(".")[:2]) for name in names}
            assert not HTTP_CLIENTS & roots, path
            assert not {"holdfast.client.remote.transport", "holdfast.client.remote.client"} & names, path
            # One listens; the other shuts the silent sockets of connections to the database.
            may = path.match("http/uvicorn_server.py") or path.match("store/postgres/call_timeout.py")
            assert "socket" not in roots or may, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OUTWARDS:
                # A job's own code may connect: its loop passes that on to the worker's.
                passed_on = path.match("engine/job_loop.py") and ast.unparse(node.func).startswith("self.host.")
                assert passed_on or ast.unparse(node.func) == "psycopg.connect", path


CALLED = """
import asyncio, json, sys
import httpx
from holdfast import App, export
from holdfast.server import asgi, token

called = []
sys.addaudithook(lambda event, args: called.append((event, args)) if event in {events} else None)
away = "http://169.254.169.254/latest/meta-data"
app = App("shop", {url!r})

@app.job
async def link(to: str) -> str:
    await export(to, "page", kind="url")
    return to

async def story():
    transport = httpx.ASGITransport(asgi(app, tokens=[token("x" * 32)]))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        heads = {{"Authorization": "Bearer " + "x" * 32, "Referer": away, "X-Callback": away, "Link": away}}
        body = {{"plugin_id": "shop", "entry_id": "link", "args": {{"to": away}}, "attributes": {{"webhook": away}}}}
        run = (await client.post("/api/v1/runs", headers=heads, json=body)).json()["run_id"]
        await app.worker().arun(until_idle=True)
        for part in ("", "/result", "/events", "/explain", "/exports", "/exports/1/content"):
            answer = await client.get(f"/api/v1/runs/{{run}}{{part}}", headers=heads)
            assert answer.status_code == 200, answer.text
        signal = {{"key": "webhook", "payload": away}}
        assert (await client.post(f"/api/v1/runs/{{run}}/signal", headers=heads, json=signal)).status_code == 200

asyncio.run(story())
app.close()
print(json.dumps(called, default=str))
"""


def test_an_address_in_a_request_is_text_and_nobody_calls_it(tmp_path: Path) -> None:
    events = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "subprocess.Popen"}
    script = CALLED.format(events=events, url=f"sqlite:///{tmp_path / 'jobs.db'}")
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, "[]"), ran.stderr


# S18, S22


def test_the_examples_teach_nothing_dangerous() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    for page in pages:
        text = page.read_text()
        assert not re.search(r"shell=True|\beval\(|\bexec\(|pickle\.|verify=False", text), page.name


def test_a_file_of_tokens_that_is_none_says_so_and_lets_nobody_in(small: App, tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "tokens.json").write_text("not JSON")
        async with near(small) as client:
            assert (await client.get("/api/v1/runs")).status_code == 500
            assert (await client.get("/healthz")).status_code == 200

    play(story())
    assert TokenFile(tmp_path / "none.json").all() == []


def test_a_rotated_token_has_two_secrets_for_a_time(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    first = file.create("ci", "signal", group="acme")
    second, third = file.rotate("ci", 3600), file.rotate("ci", 0)
    keys = [Keyring(TokenFile(tmp_path / "tokens.json")).find(secret) for secret in (first, second, third)]
    assert [key is not None for key in keys] == [False, False, True], "two at most, and no grace for the second"
    fourth = file.rotate("ci", 3600)
    ring = Keyring(TokenFile(tmp_path / "tokens.json"))
    for secret in (third, fourth):
        key = ring.find(secret)
        assert key is not None
        assert (key.name, key.scope, key.group) == ("ci", "signal", "acme")
    assert file.revoke("ci")
    assert file.all() == []
    with pytest.raises(InvalidArguments, match="no token is named"):
        file.rotate("ci", 1)


def test_a_token_can_ask_who_it_is(small: App) -> None:
    async def story() -> None:
        async with near(small) as client:
            assert (await client.get("/api/v1/token")).json() == {
                "name": None, "scope": "admin", "group": None, "expires_at": None, "actor": "http",
            }  # fmt: skip
        async with near(small, tokens=[token(SECRET, name="ana", scope="signal", group="acme")]) as client:
            assert (await client.get("/api/v1/token", headers=bearer(SECRET))).json() == {
                "name": "ana", "scope": "signal", "group": "acme", "expires_at": None, "actor": "token:ana",
            }  # fmt: skip
            created = await client.post("/api/v1/runs", headers=bearer(SECRET), json={})
            assert created.status_code == 403

    play(story())


def test_a_token_is_rotated_on_the_command_line(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    first = shell.run("tokens", "create", "--name", "ci")
    assert shell.run("tokens", "rotate", "ci", "--grace", "2h") != first
    assert [one["name"] for one in shell.json("tokens", "list")] == ["ci", "ci"]
    assert "no token is named" in shell.run("tokens", "rotate", "other", code=2)
    assert "--grace" in shell.run("tokens", "rotate", "ci", "--grace", "soon", code=2)
