"""Tokens that are bound to a group (S13): two tenants on one store, of whom neither learns of or touches the other."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import holdfast
from holdfast import App, NotAllowed, UnknownJob, export, wait_for
from holdfast.http import tokens
from holdfast.http.route import Bound
from holdfast.http.routes import routes
from holdfast.http.tokens import Token, TokenFile
from holdfast.server import asgi, token
from support.peers import Peer, told
from support.postgres import fresh_url
from support.scripts import ROOT
from support.shell import Shell
from support.stories import drain, play
from support.web import near, served, shop

TABLE = routes()
OF_RUNS = [one for one in TABLE if "{id}" in one.path]
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "QUERY"]
MISSING = "01890000-0000-7000-8000-000000000000"
ACME, BOLT, ALL = ({"Authorization": f"Bearer {name}"} for name in ("acme-" * 8, "bolt-" * 8, "all-" * 8))
TOKENS = [token("acme-" * 8, name="acme", group="acme"), token("bolt-" * 8, name="bolt", group="bolt")]
TOKENS += [token("all-" * 8, name="all")]
GREET = {"plugin_id": "shop", "entry_id": "greet", "args": {"name": "Ada"}}
BODIES: dict[str, Any] = {
    "cancel": {"reason": "no"},
    "retry": {"reason": "again"},
    "pause": {},
    "resume": {},
    "fork": {"from_step": "write"},
    "signal": {"key": "answer", "payload": "yes"},
    "grant": {"amounts": {"usd": 1}},
    "resolve": {"step": "charge", "answer": "done", "result": 1},
    "answer": {"answer": "accept"},
    "move": {"old": "1", "new": "2"},
}


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    url = fresh_url() if request.param == "postgres" else f"sqlite:///{tmp_path / 'jobs.db'}"
    made = shop(url, tokens=str(tmp_path / "tokens.json"))

    @made.step
    async def write() -> str:
        return "what nobody else may read"

    @made.job
    async def make() -> str:
        """Produce something."""
        await export(await write(), "note")
        return "made"

    @made.job
    async def keyed(name: str) -> str:
        """Start a job under a key that the asker chooses."""
        return str(await made.entry("greet").options(key="order-7")(name))

    made.plan("open", open=True)
    yield made
    made.close()


async def of_every_kind(app: App, group: str | None) -> dict[str, str]:
    """Start runs of a group that stand as differently as they can; their ids."""
    names = {"waits": "ask", "failed": "fail", "retried": "fail", "made": "make", "later": "greet"}
    runs: dict[str, str] = {}
    for name, entry in names.items():
        options: dict[str, Any] = {"group": group} if group is not None else {}
        job = app.entry(entry).options(**options, **({"delay": 3600} if name == "later" else {}))
        runs[name] = (await (app.astart(job, "Ada") if name == "later" else app.astart(job))).id
    await drain(app)
    runs["again"] = (await app.aretry(runs["retried"], actor="ana", reason="again")).run_id
    await drain(app)
    await app.apause(runs["later"])
    return runs


async def everything(app: App) -> dict[str, Any]:
    """All that is kept of all runs."""
    kept: dict[str, Any] = {}
    for record in await app.alist(limit=1000):
        job = record.task_id or ""
        kept[record.run_id] = (
            record, await app.aevents(record.run_id), await app.store().get(job), await app.store().inbox(job),
            await app.store().index_entries(job),
        )  # fmt: skip
    return kept


async def asked(client: httpx.AsyncClient, method: str, path: str, who: dict[str, str]) -> httpx.Response:
    body = BODIES.get(path.rpartition("/")[2]) if method not in {"GET", "HEAD"} else None
    return await client.request(method, path, headers=who, json=body)


def without(answer: httpx.Response, run: str) -> tuple[int, dict[str, str], str]:
    """An answer, but for the id that it was asked about."""
    heads = {name: value for name, value in answer.headers.items() if name not in {"content-length", "x-request-id"}}
    return answer.status_code, heads, answer.text.replace(run, "…")


def test_every_call_with_an_id_of_another_tenant_is_404_as_for_no_run_and_changes_nothing(app: App) -> None:
    async def story() -> None:
        theirs = [*(await of_every_kind(app, "bolt")).values(), *(await of_every_kind(app, None)).values()]
        theirs += [f"{theirs[0]}.1", f"{theirs[0]}.01", f"{theirs[0]}.2"]
        before = await everything(app)
        async with near(app, tokens=TOKENS) as client:
            for route in OF_RUNS:
                for method in METHODS:
                    paths = {run: route.path.format(id=run, number=1) for run in [MISSING, *theirs]}
                    none = without(await asked(client, method, paths[MISSING], ACME), MISSING)
                    there = method in (route.methods or ())
                    assert none[0] == (404 if there else 405), (method, route.path)
                    for run in theirs if there else theirs[:1]:
                        answer = await asked(client, method, paths[run], ACME)
                        assert without(answer, run) == none, (method, route.path, run, answer.text)
            none = without(await client.post("/api/v1/verify", headers=ACME, json={"run_id": MISSING}), MISSING)
            assert none[0] == 404
            for run in theirs:
                answer = await client.post("/api/v1/verify", headers=ACME, json={"run_id": run})
                assert without(answer, run) == none
        assert await everything(app) == before

    play(story())


def test_every_call_with_an_id_of_ones_own_is_answered(app: App) -> None:
    """The same calls as above: so what is 404 there is so because of whose it is, and of nothing else."""

    async def story() -> None:
        async with near(app, tokens=TOKENS) as client:
            runs = await of_every_kind(app, "acme")
            for route in OF_RUNS:
                names = ["made"] if route.path.endswith(("content", "stream")) else list(runs)
                paths = [route.path.format(id=runs[name], number=1) for name in names]
                answers = [await asked(client, route.method, path, ACME) for path in paths]
                if route.path.endswith("/plan"):  # these jobs have none, and it says so
                    assert {one.json()["code"] for one in answers} == {"no_plan"}
                    continue
                codes = [one.status_code for one in answers]
                assert not {401, 403, 404, 405, 500} & set(codes), (route.path, codes)
                doubtful = route.path.endswith(("resolve", "answer"))  # nothing is asked here, and it says so
                assert set(codes) == {409} if doubtful else {200, 201} & set(codes), (route.path, codes)
            answer = await client.post("/api/v1/verify", headers=ACME, json={"run_id": runs["made"]})
            assert answer.json() == {"wrong": {}}

    play(story())


def test_a_listing_shows_ones_own_runs_and_no_others(app: App) -> None:
    async def story() -> None:
        acme, bolt = await of_every_kind(app, "acme"), await of_every_kind(app, "bolt")
        nobodys = await of_every_kind(app, None)
        async with near(app, tokens=TOKENS) as client:

            async def listed(who: dict[str, str], **query: Any) -> set[str]:
                answer = await client.get("/api/v1/runs", headers=who, params=query)
                assert answer.status_code == 200, answer.text
                return {one["run_id"] for one in answer.json()["items"]}

            assert await listed(ACME) == await listed(ACME, group="acme") == set(acme.values())
            assert await listed(BOLT) == await listed(ALL, group="bolt") == set(bolt.values())
            assert await listed(ALL) == {*acme.values(), *bolt.values(), *nobodys.values()}
            assert await listed(ALL, group="nobody") == await listed(ALL, group="") == set()
            assert await listed(ACME, entry_id="make") == {acme["made"]}
            assert await listed(ACME, status="failed") == {acme["failed"], acme["retried"], acme["again"]}
            assert await listed(ACME, before=bolt["made"]) <= set(acme.values())
            for other in ("bolt", "", "Acme", "acme "):
                refused = await client.get("/api/v1/runs", headers=ACME, params={"group": other})
                assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), other
            pages, cursor = [], None
            while True:
                query = {"limit": 2} | ({"cursor": cursor} if cursor is not None else {})
                page = (await client.get("/api/v1/runs", headers=BOLT, params=query)).json()
                pages += [one["run_id"] for one in page["items"]]
                if (cursor := page["next"]) is None:
                    break
            assert sorted(pages) == sorted(bolt.values())

    play(story())


def test_a_run_is_of_the_group_of_the_token_that_created_it_whatever_the_body_says(app: App) -> None:
    async def story() -> None:
        async with near(app, tokens=TOKENS) as client:
            for more in ({}, {"group": None}, {"group": "acme"}, {"idempotency_key": "k", "priority": 3}):
                made = await client.post("/api/v1/runs", headers=ACME, json={**GREET, **more})
                assert made.status_code == 201, made.text
                row = await app.store().get(made.json()["run_id"])
                assert row is not None
                assert row.group == "acme"
            before = await everything(app)
            for other in ("bolt", "", "ACME"):
                refused = await client.post("/api/v1/runs", headers=ACME, json={**GREET, "group": other})
                assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
                assert "leave the group out" in refused.json()["hint"]
            assert await everything(app) == before

    play(story())


@pytest.mark.parametrize("args", [GREET["args"], {"name": "Bob"}], ids=["the same arguments", "others"])
@pytest.mark.parametrize("group", ["bolt", None])
def test_a_key_that_somebody_else_has_used_is_a_conflict_that_tells_nothing_of_him(
    app: App, group: str | None, args: Any
) -> None:
    async def story() -> None:
        body = {**GREET, "idempotency_key": "order-7", "attributes": {"card": "4242"}}
        async with near(app, tokens=TOKENS) as client:
            made = await client.post("/api/v1/runs", headers=ALL, json={**body, "group": group})
            assert made.status_code == 201
            before = await everything(app)
            refused = await client.post("/api/v1/runs", headers=ACME, json={**body, "args": args})
            assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_conflict")
            assert made.json()["run_id"] not in refused.text + str(refused.headers)
            assert "location" not in refused.headers
            assert await everything(app) == before
            own = await client.post("/api/v1/runs", headers=ACME, json={**body, "idempotency_key": "mine"})
            again = await client.post("/api/v1/runs", headers=ACME, json={**body, "idempotency_key": "mine"})
            assert (own.status_code, again.status_code, again.json()) == (201, 200, own.json())
            other = {**body, "idempotency_key": "mine", "args": {"name": "Eve"}}
            refused = await client.post("/api/v1/runs", headers=ACME, json=other)
            assert refused.status_code == 409
            assert own.json()["run_id"] in refused.text, "what is one's own is named"

    play(story())


def test_what_a_run_starts_is_of_its_group_whoever_wrote_the_plan_and_so_is_a_fork(app: App) -> None:
    plan = {
        "name": "open",
        "nodes": [
            {"id": "one", "kind": "job", "job": "make"},
            {"id": "many", "kind": "map", "job": "greet", "over": ["Ada", "Bob"], "args": {"name": {"$ref": "item"}}},
        ],
    }

    async def story() -> None:
        async with near(app, tokens=TOKENS) as client:
            body = {"plugin_id": "shop", "entry_id": "open", "plan": plan}
            made = await client.post("/api/v1/runs", headers=ACME, json=body)
            assert made.status_code == 201, made.text
            await drain(app)
            fork = {"plan": {**plan, "nodes": plan["nodes"][:1]}, "from_node": "one", "idempotency_key": "f"}
            forked = await client.post(f"/api/v1/runs/{made.json()['run_id']}/fork", headers=ACME, json=fork)
            assert forked.status_code == 201, forked.text
            await drain(app)
            seen = (await client.get("/api/v1/runs", headers=ACME)).json()["items"]
            assert sorted(one["entry_id"] for one in seen) == ["greet", "greet", "make", "make", "open", "open"]
            assert {one["status"] for one in seen} == {"succeeded"}
            assert (await client.get("/api/v1/runs", headers=BOLT)).json()["items"] == []
            for more in ({"group": "bolt"}, {"key": "x"}, {"parent": MISSING}):
                sneaky = {**body, "plan": {**plan, "nodes": [{**plan["nodes"][0], **more}]}}  # type: ignore[dict-item]
                assert (await client.post("/api/v1/runs", headers=ACME, json=sneaky)).status_code == 422, more

    play(story())


@pytest.mark.parametrize("name", ["Ada", "Bob"], ids=["the same arguments", "others"])
def test_a_child_under_a_key_of_somebody_else_fails_and_names_nobody(app: App, name: str) -> None:
    async def story() -> None:
        theirs = await app.astart(app.entry("greet").options(group="bolt", key="order-7"), "Ada")
        async with near(app, tokens=TOKENS) as client:
            body = {"plugin_id": "shop", "entry_id": "keyed", "args": {"name": name}}
            run = (await client.post("/api/v1/runs", headers=ACME, json=body)).json()["run_id"]
            await drain(app)
            assert (await client.get(f"/api/v1/runs/{run}", headers=ACME)).json()["status"] == "failed"
            for part in ("", "/events", "/explain"):
                told = (await client.get(f"/api/v1/runs/{run}{part}", headers=ACME)).text
                assert "order-7" in told
                assert theirs.id not in told

    play(story())


def test_the_stream_of_all_runs_tells_of_ones_own_and_no_others(app: App) -> None:
    async def story() -> None:
        service = asgi(app, tokens=TOKENS)
        peers = {
            name: Peer(service, "/api/v1/stream", headers={"authorization": who["Authorization"]})
            for name, who in (("acme", ACME), ("bolt", BOLT), ("again", ACME), ("all", ALL))
        }
        for peer in peers.values():
            await peer.has(": alive")
        runs = {group: await of_every_kind(app, group) for group in ("acme", "bolt", None)}
        whose: dict[str, list[str | None]] = {"acme": ["acme"], "again": ["acme"], "bolt": ["bolt"], "all": [*runs]}
        for name, groups in whose.items():
            own = {run for group in groups for run in runs[group].values()}
            for run in own - {runs[group]["retried"] for group in groups}:  # nobody looks at what is over and followed
                await peers[name].has(f'"run_id":"{run}"')
            assert {data["run_id"] for _, _, data in told(peers[name].text)} <= own
        place = told(peers["bolt"].text)[0][1]
        later = Peer(
            service, "/api/v1/stream", headers={"authorization": ACME["Authorization"], "last-event-id": place}
        )
        await later.has(": alive")
        assert [kind for kind, _, _ in told(later.text)] == ["reset"], "a place in another's stream means nothing"
        for peer in [*peers.values(), later]:
            peer.leave.set()
            await peer.task

    play(story())


def test_what_the_database_cannot_keep_is_refused_without_its_own_words(app: App) -> None:
    """PostgreSQL says where the row would have been: so one tenant could count what the others start."""
    name = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(1000))  # nothing that could be packed

    async def story() -> None:
        async with near(app, tokens=TOKENS) as client:
            for field in ("queue", "idempotency_key"):
                answer = await client.post("/api/v1/runs", json={**GREET, field: name}, headers=ACME)
                assert answer.status_code in {201, 422}
                assert not any(
                    word in (answer.json().get("message") or "") for word in ("tuple", "index row", "DETAIL")
                )

    play(story())


def test_a_stream_ends_when_its_token_is_revoked_and_tells_nothing_more(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "LOOK_SECONDS", 0.0)

    async def story() -> None:
        file = TokenFile(tmp_path / "tokens.json")
        secrets = {name: file.create(name, "read", group="acme") for name in ("gone", "good")}
        service = asgi(app, tokens=str(tmp_path / "tokens.json"))
        peers = {
            name: Peer(service, "/api/v1/stream", headers={"authorization": f"Bearer {secret}"})
            for name, secret in secrets.items()
        }
        while not all(told(peer.text) for peer in peers.values()):  # its first look tells nothing
            await app.astart(app.entry("greet").options(group="acme"), "Ada")
            await asyncio.sleep(0.1)
        file.revoke("gone")
        run = await app.astart(app.entry("greet").options(group="acme"), "Ada")
        await peers["good"].has(f'"run_id":"{run.id}"')
        await peers["gone"].task
        assert run.id not in peers["gone"].text
        peers["good"].leave.set()
        await peers["good"].task

    play(story())


def test_a_tenant_sees_the_questions_and_relatives_of_its_own_runs_only(app: App) -> None:
    @app.job
    async def sign() -> str:
        """Wait for a person."""
        return str(await wait_for("signature", type="human"))

    @app.job
    async def parent() -> None:
        """Start a child of another group."""
        await sign.options(group="other")()

    async def story() -> None:
        runs = {group: await app.astart(sign.options(group=group)) for group in ("acme", "other")}
        await drain(app)
        above = await app.astart(parent.options(group="acme"))
        await drain(app)
        async with near(app, tokens=TOKENS) as client:
            mine = (await client.get("/api/v1/inbox", headers=ACME)).json()["items"]
            assert [one["run_id"] for one in mine] == [runs["acme"].id]
            assert len((await client.get("/api/v1/inbox", headers=ALL)).json()["items"]) == 3
            assert (await client.get("/api/v1/inbox?group=other", headers=ACME)).status_code == 403
            listed = (await client.get("/api/v1/runs", headers=ACME)).json()["items"]
            counted = (await client.get("/api/v1/counts", headers=ACME)).json()["runs"]
            assert counted == Counter(one["status"] for one in listed)
            assert (await client.get("/api/v1/counts?group=other", headers=ACME)).status_code == 403
            cursor = f"~{runs['other'].id}~0"
            after = (await client.get(f"/api/v1/inbox?cursor={cursor}", headers=ACME)).json()
            assert after == {"items": [], "next": None}, "a cursor of another tenant opens nothing"
            family = (await client.get(f"/api/v1/runs/{above.id}/family", headers=ACME)).json()
            assert (family["children"], family["children_total"]) == ([], 0)
            family = (await client.get(f"/api/v1/runs/{above.id}/family", headers=ALL)).json()
            assert family["children_total"] == 1

    play(story())


# Deny by default: whoever adds a route says what it is to a token of a group, and names it here if that may use it.
MAY = {
    Bound.OWN: {
        "POST /api/v1/runs", "GET /api/v1/runs", "GET /api/v1/stream", "POST /api/v1/verify", "GET /api/v1/inbox",
        "GET /api/v1/counts",
        "POST /api/v1/purge", "POST /api/v1/runs/purge",
        "POST /api/v1/runs/batch", "POST /api/v1/runs/cancel", "POST /api/v1/runs/retry", "POST /api/v1/runs/signal",
    },
    Bound.FREE: {
        "GET /api/v1/entries", "GET /api/v1/machines", "GET /api/v1/machines/{machine}",
        "GET /api/v1/token", "GET /healthz", "GET /readyz", "GET /openapi.json",
    },
    Bound.RUN: {f"{one.method} {one.path}" for one in TABLE if one.path.startswith("/api/v1/runs/{id}")},
}  # fmt: skip


def test_what_is_about_the_whole_store_is_refused_to_a_token_of_a_group_and_nothing_is_open_by_chance(app: App) -> None:
    async def story() -> None:
        async with near(app, tokens=TOKENS) as client:
            for route in TABLE:
                name = f"{route.method} {route.path}"
                bound = next((kind for kind, names in MAY.items() if name in names), Bound.NEVER)
                assert route.bound is bound, name
                path = route.path.format(id=MISSING, number=1, machine="job", queue="mail", schedule="nightly")
                if bound is Bound.NEVER:
                    refused = await client.request(route.method, path, headers=ACME)
                    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), name
                    assert refused.json()["hint"] == "use a token without a group"
                elif bound is Bound.FREE:
                    assert (await client.get(path, headers=ACME)).status_code == 200, name
            assert (await app.alimits()) == []

    play(story())


def test_a_token_of_a_group_is_made_listed_and_kept_so_that_no_older_release_opens_more_to_it(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    made = shell.json("tokens", "create", "--name", "acme", "--scope", "operate", "--group", "acme")
    plain = shell.json("tokens", "create", "--name", "ci")
    assert (made["group"], plain["group"]) == ("acme", None)
    assert shell.run("tokens", "list").splitlines() == [
        f"{'acme':<30} operate  no expiry, group acme",
        f"{'ci':<30} read     no expiry",
    ]
    assert [(one["name"], one["group"]) for one in shell.json("tokens", "list")] == [("acme", "acme"), ("ci", None)]
    assert "group" in shell.run("tokens", "create", "--name", "x", "--group", "", code=2)
    file = tmp_path / "holdfast-tokens.json"
    kept = json.loads(file.read_text())
    assert [one["name"] for one in kept["tokens"]] == ["ci"], "all that a release without groups reads"
    for one in kept["tokens"]:
        del one["group"]
    file.write_text(json.dumps({"tokens": kept["tokens"]}))
    assert [(one.name, one.group) for one in TokenFile(file).all()] == [("ci", None)], "a file from before there were"
    assert shell.run("tokens", "revoke", "ci") == "revoked"


def test_a_group_that_is_none_opens_nothing(tmp_path: Path) -> None:
    for group in ("", "a" * 256, "a\nb"):
        with pytest.raises(holdfast.InvalidArguments, match="group"):
            token("x" * 32, group=group)
    empty = msgspec.structs.replace(token("acme-" * 8), group="")
    assert isinstance(empty, Token)
    app = shop(f"sqlite:///{tmp_path / 'jobs.db'}")

    async def story() -> None:
        run = await app.astart("greet", "Ada")
        async with near(app, tokens=[empty]) as client:
            assert (await client.get("/api/v1/runs", headers=ACME)).json()["items"] == []
            assert (await client.get(f"/api/v1/runs/{run.id}", headers=ACME)).status_code == 404
            assert (await client.get("/api/v1/stats", headers=ACME)).status_code == 403

    play(story())
    app.close()


def test_a_remote_client_and_the_command_line_work_with_a_token_of_a_group(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    acme, bolt = (tokens.create(name, "admin", group=name) for name in ("acme", "bolt"))
    target, url = ROOT / "examples" / "shop.py", f"sqlite:///{tmp_path / 'jobs.db'}"
    with served(target, url, HOLDFAST_TOKENS=str(tmp_path / "tokens.json")) as server:
        with holdfast.connect(server.url, token=acme) as ours, holdfast.connect(server.url, token=bolt) as theirs:
            run = ours.start("shop.notify", text="hello")
            entry = theirs.entry("shop.notify").options(group="bolt", key="k")
            hidden = entry.start(text="secret").id
            assert entry.start(text="secret").id == hidden
            assert [one.run_id for one in ours.list()] == [one.run_id for one in ours.list(group="acme")] == [run.id]
            assert run.cancel("no more").status == "canceled"
            assert [record.status for record in run.watch()] == ["canceled"]
            assert ours.verify(run.id) == {}
            with pytest.raises(UnknownJob, match=hidden):
                ours.get(hidden)
            with pytest.raises(UnknownJob):
                ours.cancel(hidden)
            for refused in (ours.stats, ours.workers, ours.gates, ours.limits):
                with pytest.raises(NotAllowed, match=r"bound to the group 'acme'.*use a token without a group"):
                    refused()
            with pytest.raises(NotAllowed, match="names another"):
                ours.entry("shop.notify").options(group="bolt").start(text="x")
            with pytest.raises(NotAllowed, match="names another"):
                ours.list(group="bolt")
            with pytest.raises(holdfast.IdempotencyConflict, match="another run already has the key") as conflict:
                ours.entry("shop.notify").options(key="k").start(text="secret")
            assert (conflict.value.key, conflict.value.job) == ("k", "")
        shell = Shell(tmp_path)
        shell.environment |= {"HOLDFAST_SERVER": server.url, "HOLDFAST_TOKEN": acme}
        assert [one["run_id"] for one in shell.json("runs")] == [run.id]
        assert shell.json("show", run.id[-8:])["run_id"] == run.id
        assert "no job has the id" in shell.run("show", hidden, code=3)
        assert "no job has the id" in shell.run("show", hidden[-8:], code=3)
