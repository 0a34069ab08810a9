"""Plans and forks from outside: over HTTP, from the command line, and from a program that asks a server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast import App, InvalidPlan, Plan, errors
from holdfast.cli.main import main
from holdfast.http.tokens import Scope
from holdfast.plans.model import NODES_MAX, PROBLEMS_MAX
from holdfast.server import token
from support.postgres import fresh_url
from support.shell import Shell
from support.stories import drain, play, quick
from support.web import near, served

CODE = """
from holdfast import App

app = App("shop")

@app.step
async def double(number: int) -> int:
    return 2 * number

@app.tool
async def send(number: int) -> str:
    with open(__file__ + ".sent", "a") as file:
        file.write(f"{number}\\n")
    return f"sent {number}"

@app.job
async def by_code(number: int) -> str:
    return await send(await double(number))

app.plan("open", open=True)
app.plan("shut")
"""
DOUBLED = {
    "name": "open",
    "input": {"number": {}},
    "nodes": [
        {"id": "twice", "kind": "call", "call": "double", "args": {"number": {"$ref": "input.number"}}},
        {"id": "sent", "kind": "call", "call": "send", "args": {"number": {"$ref": "twice"}}},
    ],
}
OTHER = {**DOUBLED, "nodes": [*DOUBLED["nodes"], {"id": "more", "kind": "sleep", "duration": 0, "after": ["sent"]}]}


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "shop.py"
    file.write_text(CODE)
    (tmp_path / "plan.json").write_text(json.dumps(DOUBLED))
    (tmp_path / "other.yaml").write_text(json.dumps(OTHER))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path / 'jobs.db'}")
    return file


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, target: Path) -> Iterator[App]:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{target.parent / 'jobs.db'}"}
    made = loaded(target, urls[request.param] if request.param in urls else fresh_url())
    yield made
    made.close()


def loaded(target: Path, url: str) -> App:
    names: dict[str, Any] = {"__file__": str(target)}
    exec(compile(target.read_text(), target, "exec"), names)  # noqa: S102 - our own code, as a worker imports it
    app: App = names["app"]
    app.url, app.config = url, quick(url)
    return app


def sent(target: Path) -> list[str]:
    return Path(f"{target}.sent").read_text().split()


def command(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def creation(plan: Any, entry: str = "open", **more: Any) -> dict[str, Any]:
    return {"plugin_id": "shop", "entry_id": entry, "args": {"number": 4}, "plan": plan, **more}


def test_a_plan_is_started_and_a_run_forked_over_http(app: App, target: Path) -> None:
    async def story() -> None:
        async with near(app) as client:
            made = await client.post("/api/v1/runs", json=creation(DOUBLED, idempotency_key="k"))
            again = await client.post("/api/v1/runs", json=creation(DOUBLED, idempotency_key="k"))
            other = await client.post("/api/v1/runs", json=creation(OTHER, idempotency_key="k"))
            assert (made.status_code, again.status_code, other.status_code) == (201, 200, 409), other.text
            run = made.json()["run_id"]
            assert again.json()["run_id"] == run
            await drain(app)
            assert (await client.get(f"/api/v1/runs/{run}/result")).json()["result"] == {"sent": "sent 8"}
            asked = {"from_node": "sent", "idempotency_key": "f"}
            forks = [await client.post(f"/api/v1/runs/{run}/fork", json=asked) for _ in range(2)]
            assert [fork.status_code for fork in forks] == [201, 201]
            assert forks[0].headers["location"].endswith(forks[0].json()["run_id"])
            assert len({fork.json()["run_id"] for fork in forks} | {run}) == 2, "the same key gives the same fork"
            wider = await client.post(f"/api/v1/runs/{run}/fork", json={"plan": OTHER})
            assert wider.status_code == 201, wider.text
            await drain(app)
            result = await client.get(f"/api/v1/runs/{wider.json()['run_id']}/result")
            assert result.json()["result"] == {"more": None}
            assert sent(target) == ["8", "8"], "the run and the fork from the tool; the wider plan reuses it"
            assert await app.averify() == {}

    play(story())


def test_code_is_forked_from_a_step_over_http(app: App, target: Path) -> None:
    async def story() -> None:
        run = await app.astart("by_code", number=1)
        await drain(app)
        async with near(app) as client:
            made = await client.post(f"/api/v1/runs/{run.id}/fork", json={"from_step": "send"})
            assert made.status_code == 201, made.text
            assert made.json()["attributes"] == {"forked_from": run.id}
            for wrong in ({}, {"from_step": "other"}, {"from_node": "send"}, {"from_step": ""}, {"since": 1}):
                refused = await client.post(f"/api/v1/runs/{run.id}/fork", json=wrong)
                assert (refused.status_code, refused.json()["code"]) == (422, "invalid_arguments"), wrong
            assert (await client.post("/api/v1/runs/none/fork", json={"from_step": "x"})).status_code == 404
        await drain(app)
        assert sent(target) == ["2", "2"]

    play(story())


@pytest.fixture
def small(target: Path) -> App:
    return loaded(target, "memory:")


def test_a_plan_that_cannot_run_is_refused_over_http_with_all_that_is_wrong(small: App) -> None:
    wrong = {"name": "open", "nodes": [
        {"id": "a", "kind": "call", "call": "doubel", "after": ["b"]}, {"id": "input", "kind": "sleep", "duration": 1},
    ]}  # fmt: skip
    problems = [
        "input: references to input mean something else; give the node another id",
        "a.after: there is no node 'b'",
        "a.call: there is no step or tool 'doubel'; did you mean 'double'?",
    ]

    async def story() -> None:
        run = await small.entry("open").given(Plan.from_dict(DOUBLED)).astart(number=1)  # type: ignore[attr-defined]
        async with near(small) as client:
            for path, body in [("/runs", creation(wrong)), (f"/runs/{run.id}/fork", {"plan": wrong})]:
                refused = await client.post(f"/api/v1{path}", json=body)
                said = refused.json()
                assert (refused.status_code, said["code"], said["plan"]) == (422, "invalid_plan", "open")
                assert said["problems"] == problems
                assert refused.headers["content-type"] == "application/problem+json"
            for shape in ({}, {"nodes": 3}, {"nodes": [], "colour": 1}):
                refused = await client.post("/api/v1/runs", json=creation(shape))
                assert (refused.status_code, refused.json()["code"]) == (422, "invalid_plan"), shape
            missing = await client.post("/api/v1/runs", json={**creation(DOUBLED), "args": {}})
            assert (missing.status_code, missing.json()["code"]) == (422, "invalid_arguments")
            assert len(await small.alist()) == 1, "nothing that was refused was started"

    play(story())


def test_only_an_open_entry_takes_plans_from_outside(small: App) -> None:
    async def story() -> None:
        async with near(small) as client:
            for entry in ("shut", "by_code"):
                refused = await client.post("/api/v1/runs", json=creation(DOUBLED, entry))
                assert (refused.status_code, refused.json()["code"]) == (422, "invalid_arguments")
                assert "open=True" in refused.json()["message"]
            run = await small.entry("shut").given(Plan.from_dict(DOUBLED)).astart(number=1)  # type: ignore[attr-defined]
            refused = await client.post(f"/api/v1/runs/{run.id}/fork", json={"plan": OTHER})
            assert (refused.status_code, "open=True" in refused.json()["message"]) == (422, True)
            listed = (await client.get("/api/v1/entries")).json()["items"]
            assert {one["entry_id"]: one["open"] for one in listed} == {"by_code": False, "open": True, "shut": False}

    play(story())


def test_a_fork_and_a_plan_need_the_scope_of_a_submission(target: Path) -> None:
    app = loaded(target, "memory:")
    keys = [token(scope.name * 8, name=scope.name, scope=scope.name.lower()) for scope in Scope]

    async def story() -> None:
        async with near(app, tokens=keys) as client:
            for scope, status in ((Scope.READ, 403), (Scope.SUBMIT, 404)):
                heads = {"Authorization": f"Bearer {scope.name * 8}"}
                answer = await client.post("/api/v1/runs/none/fork", json={"from_node": "a"}, headers=heads)
                assert answer.status_code == status

    play(story())


def test_what_is_wrong_with_a_huge_plan_is_found_in_no_time_and_told_in_part(small: App) -> None:
    """Each of these took minutes, or megabytes to tell: whoever may submit could have stopped the server by one."""
    names = [f"n{place}" for place in range(NODES_MAX)]

    def node(name: str, **more: Any) -> dict[str, Any]:
        return {"id": name, "kind": "call", "call": "double", "args": {"number": 1}, **more}

    unknown = [node(name, after=[f"m{name}"]) for name in names]
    circle = [node(name, after=[after]) for name, after in zip(names, [*names[1:], names[0]], strict=True)]
    shapeless = [{"id": name, "kind": "cal"} for name in names]
    for nodes, count in ((unknown, PROBLEMS_MAX + 1), (circle, 1), (shapeless, PROBLEMS_MAX + 1)):
        begun = time.process_time()
        with pytest.raises(InvalidPlan) as refused:
            small.entry("open").given(Plan.from_dict({"nodes": nodes})).recorded_plan()  # type: ignore[attr-defined]
        assert time.process_time() - begun < 5
        assert len(refused.value.problems) == count
        assert len(str(refused.value)) < 20_000
    assert refused.value.problems[-1] == "and more: fix these first"
    with pytest.raises(InvalidPlan, match="a plan may have 10,000"):
        Plan.from_dict({"nodes": [*shapeless, {}]})


def test_a_plan_larger_than_a_payload_is_refused_before_it_is_kept(target: Path) -> None:
    app = loaded(target, "memory:")
    app.config = quick("memory:", payload_bytes_max=600)
    sleeps = [{"id": f"n{place}", "kind": "sleep", "duration": 0} for place in range(20)]
    large = {**DOUBLED, "nodes": [*DOUBLED["nodes"], *sleeps]}

    async def story() -> None:
        async with near(app) as client:
            made = await client.post("/api/v1/runs", json=creation(DOUBLED))
            assert made.status_code == 201, made.text
            refused = [
                await client.post("/api/v1/runs", json=creation(large)),
                await client.post(f"/api/v1/runs/{made.json()['run_id']}/fork", json={"plan": large}),
            ]
            assert [(one.status_code, one.json()["code"]) for one in refused] == [(413, "payload_too_large")] * 2

    play(story())


def test_a_program_that_asks_a_server_starts_plans_and_forks_as_on_the_app(target: Path) -> None:
    url = f"sqlite:///{target.parent / 'jobs.db'}"
    app = loaded(target, url)
    with served(target, url) as running, holdfast.connect(running.url) as remote:
        run = remote.entry("shop.open").options(key="k").given(Plan.from_dict(DOUBLED)).start(number=4)
        fork = remote.fork(run.id, from_node="sent")
        app.worker().run(until_idle=True)
        assert run.result(timeout=60) == fork.result(timeout=60) == {"sent": "sent 8"}
        assert fork.record().idempotency_key is None
        wider = remote.fork(run.id, plan=Plan.from_dict(OTHER), key="w")
        assert remote.fork(run.id, plan=Plan.from_dict(OTHER), key="w").id == wider.id
        with pytest.raises(errors.IdempotencyConflict):
            remote.fork(fork.id, plan=Plan.from_dict(OTHER), key="w")
        with pytest.raises(InvalidPlan) as refused:
            remote.entry("open").given(Plan.from_dict({"nodes": [{"id": "a", "kind": "call", "call": "x"}]})).start()
        assert refused.value.problems == ["a.call: there is no step or tool 'x'"]
        assert refused.value.plan == "plan"
        with pytest.raises(errors.InvalidArguments, match="open=True"):
            remote.entry("shut").given(Plan.from_dict(DOUBLED)).start(number=1)
        shell = Shell(target.parent)
        by_hand = shell.ran("plan", "start", "plan.json", "--input", "number=3", "--server", running.url)
        forked = shell.json("fork", run.id, "--plan", "other.yaml", "--server", running.url)
        unknown = shell.ran("plan", "start", "plan.json", "--as", "shut", "--server", running.url)
        assert (unknown.returncode, "shop.open; choose one with --as" in unknown.stderr) == (2, True)
        app.worker().run(until_idle=True)
        assert app.outcome(by_hand.stdout.strip()) == {"sent": "sent 6"}
        assert app.outcome(forked["run_id"]) == {"more": None}
    app.close()


def test_a_plan_is_started_and_a_run_forked_from_the_command_line(target: Path) -> None:
    app = loaded(target, f"sqlite:///{target.parent / 'jobs.db'}")
    words = ("plan", "start", "plan.json", "--target", "shop.py", "--input", "number=5", "--key", "k")
    started, again = command(*words), command(*words)
    assert (started.exit_code, started.output) == (0, again.output), started.output
    app.worker().run(until_idle=True)
    run = started.output.strip()
    forks = [
        command("fork", run[:13], "--from-node", "sent"),
        command("fork", run, "--plan", "other.yaml", "--target", "shop.py"),
    ]
    assert [one.exit_code for one in forks] == [0, 0], [one.output for one in forks]
    app.worker().run(until_idle=True)
    assert [app.outcome(one.output.strip()) for one in forks] == [{"sent": "sent 10"}, {"more": None}]
    assert sent(target) == ["10", "10"]
    app.close()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["plan", "start", "plan.json"], 2, "--target shop.py"),
        (["plan", "start", "plan.json", "--target", "shop.py", "--as", "by_code"], 2, "open, shut; choose"),
        (["plan", "start", "plan.json", "--target", "shop.py"], 2, "number"),
        (["plan", "start", "plan.json", "--target", "shop.py", "--input", "number=x"], 2, "number"),
        (["plan", "start", "plan.json", "--target", "shop.py", "--input", "number"], 2, "name=value"),
        (["plan", "start", "bad.json", "--target", "shop.py", "--as", "open"], 2, "a.call: there is no step or"),
        (["plan", "start", "plan.json", "--target", "shop.py", "--server", "http://127.0.0.1:1"], 2, "not both"),
        (["fork", "none", "--from-node", "a"], 3, "none"),
        (["fork", "none", "--plan", "other.yaml"], 2, "--target shop.py"),
    ],
)  # fmt: skip
def test_what_cannot_be_started_says_what_to_do(target: Path, words: list[str], code: int, said: str) -> None:
    (target.parent / "bad.json").write_text('{"nodes": [{"id": "a", "kind": "call", "call": "x"}]}')
    refused = command(*words)
    assert (refused.exit_code, said in refused.stderr) == (code, True), refused.stderr
    assert "Traceback" not in refused.stderr
