"""First steps and natural mistakes on the command line: each answer says what happened and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast import App
from holdfast.cli.event_lines import Story
from holdfast.cli.main import main
from holdfast.cli.target import load
from holdfast.cli.terminal_text import folded
from holdfast.machines import Event
from holdfast.store import Append, Claim

JOBS = """
from holdfast import App

app = App("shop", "sqlite:///shop.db")

def lookup(sku: str) -> int:
    return {}[sku]

@app.step
async def price(sku: str) -> int:
    return lookup(sku)

@app.job
async def checkout(sku: str) -> int:
    return await price(sku)

@app.job
async def fine() -> int:
    return 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    (tmp_path / "shop.py").write_text(JOBS)
    return tmp_path


def holdfast(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def ended(entry: str, *args: str) -> str:
    """Run a job of the shop to its end; its id."""
    app = load("shop.py")
    run = app.start(entry, *args)
    app.worker().run(until_idle=True)
    app.close()
    return run.id


def test_no_line_of_the_help_is_cut() -> None:
    lines = holdfast("--help").output.splitlines()
    assert [line for line in lines if line.endswith("...")] == ["Usage: main [OPTIONS] COMMAND [ARGS]..."]


def test_a_look_says_which_store_it_looked_at_and_creates_no_file(folder: Path) -> None:
    assert holdfast("runs").output == "no runs: the store sqlite:///holdfast.db does not exist\n"
    assert holdfast("runs", "--json").output == "[]\n"
    shown = holdfast("show", "3f2a")
    assert (shown.exit_code, shown.output) == (
        5, "holdfast: the store sqlite:///holdfast.db does not exist: name the store with --url or HOLDFAST_URL\n",
    )  # fmt: skip
    for command in (["stats"], ["workers"], ["gates"], ["follow", "3f2a"], ["events", "3f2a"], ["explain", "3f2a"]):
        assert holdfast(*command).exit_code == 5
    assert [path.name for path in folder.iterdir()] == ["shop.py"]
    run = ended("fine")
    assert run in holdfast("runs", "shop.py").output, "the store of an App may be named by its file"
    assert holdfast("runs", "shop.py", "--status", "failed").output == "no runs match in sqlite:///shop.db\n"


def test_a_traceback_is_printed_as_python_prints_it_without_our_own_frames(folder: Path) -> None:
    lines = holdfast("show", ended("checkout", "A1"), "--url", f"sqlite:///{folder}/shop.db").output.splitlines()
    (error,) = [line for line in lines if line.startswith("error")]
    assert error.split(None, 1)[1] == "StepFailed: price failed: KeyError: 'A1'"
    trace = lines[lines.index(error) + 1 :]
    assert trace[0] == "    Traceback (most recent call last):"
    assert '      File "shop.py", line 11, in price' in [line.replace(f"{folder}/", "") for line in trace]
    assert any(line.startswith("      … ") and line.endswith(" of Holdfast") for line in trace)
    assert not any("holdfast/engine" in line for line in trace)


def test_frames_of_holdfast_are_folded_and_others_stay() -> None:
    trace = """Traceback (most recent call last):
  File "/x/holdfast/engine/job_code.py", line 1, in a
    await b
    ^^^^^^^
  File "/x/holdfast/authoring/functions.py", line 2, in b
    c()
  File "/shop/jobs.py", line 3, in c
    return 1 / 0
           ~~^~~
ZeroDivisionError: division by zero
"""
    assert list(folded(trace)) == [
        "Traceback (most recent call last):",
        "  … 2 frames of Holdfast",
        '  File "/shop/jobs.py", line 3, in c',
        "    return 1 / 0",
        "           ~~^~~",
        "ZeroDivisionError: division by zero",
    ]


@pytest.mark.parametrize("words", [["pause"], ["resume"], ["cancel"], ["signal", "go"], ["grant", "tokens=1"]])
def test_what_comes_after_the_end_of_a_run_is_refused(folder: Path, words: list[str]) -> None:
    run = ended("fine")
    refused = holdfast(words[0], run, *words[1:], "--url", f"sqlite:///{folder}/shop.db")
    assert refused.exit_code == 4
    assert f"holdfast: run {run} has already ended" in refused.output


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("def broken(:\n", ['mine/jobs.py", line 1', "SyntaxError: invalid syntax"]),
        ("from .other import app\n", ["ImportError: attempted relative import", "named as a module: mine.jobs"]),
        ("import nothing_like_it\n", ["No module named 'nothing_like_it'", "Install the module"]),
        ("x = 1\nx / 0\n", ['jobs.py", line 2, in <module>', "ZeroDivisionError: division by zero"]),
    ],
)
def test_a_target_that_cannot_be_imported_shows_the_users_frames(folder: Path, code: str, shown: list[str]) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "jobs.py").write_text(code)
    ran = holdfast("worker", "mine/jobs.py")
    assert ran.exit_code == 2
    assert ran.output.startswith("Error: cannot import mine/jobs.py\n")
    for part in shown:
        assert part in ran.output
    assert "importlib" not in ran.output
    assert "holdfast/cli" not in ran.output
    a_folder = holdfast("worker", "./mine/")
    assert (a_folder.exit_code, "./mine/ is a folder: name a file or a module" in a_folder.output) == (2, True)


@pytest.mark.parametrize(
    ("code", "act"),
    [
        ("fine.start()", "starts a run"),
        ("app.start_many(fine, [{}])", "starts runs"),
        ("app.worker().run(until_idle=True)", "runs a worker"),
    ],
)
def test_a_target_that_acts_when_it_is_imported_is_refused(folder: Path, code: str, act: str) -> None:
    (folder / "eager.py").write_text(f"{JOBS}\n{code}\n")
    ran = holdfast("start", "eager.py", "fine")
    assert ran.exit_code == 2
    assert f"eager.py {act} while the command line imports it: put this code under" in ran.output
    assert not (folder / "shop.db").exists(), "nothing was started"
    (folder / "eager.py").write_text(f'{JOBS}\nif __name__ == "__main__":\n    {code}\n')
    assert holdfast("start", "eager.py", "fine").exit_code == 0


@pytest.mark.parametrize(
    ("payload", "waits", "over"),
    [
        ({"correlation_key": "holdfast:budget", "over_budget": {"tokens": [1200, 900]}},
         "over its budget (tokens 1200 of 900): waits for a grant", "a grant arrived"),
        ({"correlation_key": "holdfast:doubt:pay:1"}, "pay:1 is in doubt: waits for an operator's answer",
         "an operator answered for pay:1: not_done"),
        ({"correlation_key": "holdfast:child:job.one:58"}, "waits for its child job.one:58",
         "its child job.one:58 has ended"),
        ({"correlation_key": "shipped"}, "waits for the signal 'shipped'", "the signal 'shipped' arrived"),
    ],
)  # fmt: skip
def test_follow_says_what_a_run_waits_for_and_what_ended_the_wait(
    payload: dict[str, object], waits: str, over: str
) -> None:
    story = Story()
    answer = {"outcome": "signal", "payload": {"answer": "not_done"}}
    told = [
        story.tell(
            Event(
                schema=1,
                id=f"e{number}",
                job="j",
                seq=number,
                type=kind,
                at=1.0,
                attempt=1,
                payload=fields,
                prev="",
                hash="",
            )
        )
        for number, (kind, fields) in enumerate(
            [("job_waiting", payload), ("wait_completed", {**payload, **answer})], start=1
        )
    ]
    assert [line.text for line in told if line is not None] == [waits, over]


def test_an_app_in_a_program_may_start_runs_when_it_is_imported() -> None:
    app = App("shop", "memory:")

    @app.job
    async def work() -> None: ...

    assert work.start().id, "only the command line refuses it"
    app.close()


FAMILY = """
import asyncio
from holdfast import App

app = App("shop", "sqlite:///shop.db")

@app.tool
async def pay() -> int:
    return 7

@app.job
async def child(number: int) -> int:
    return await pay() + number

@app.job
async def mother() -> int:
    return await child(1) + await child(2)
"""


def test_parents_and_children_are_linked_in_show_runs_and_follow(folder: Path) -> None:
    (folder / "shop.py").write_text(FAMILY)
    mother = ended("mother")
    records = {record["run_id"]: record for record in json.loads(holdfast("runs", "shop.py", "--json").output)}
    children = [run for run in records if run != mother]
    place = ("--url", f"sqlite:///{folder}/shop.db")
    shown = json.loads(holdfast("show", mother, *place, "--json").output)
    assert [child["run_id"] for child in shown["children"]] == children
    assert (shown["parent"], shown["more_children"]) == (None, False)
    assert json.loads(holdfast("show", children[0], *place, "--json").output)["parent"] == mother
    assert f"{children[0]}  shop.child  succeeded" in holdfast("show", mother, *place).output
    assert f"parent               {mother}" in holdfast("show", children[1], *place).output
    tops, theirs = (
        [record["run_id"] for record in json.loads(holdfast("runs", *words, *place, "--json").output)]
        for words in (["--top"], ["--parent", mother])
    )
    assert (tops, theirs) == ([mother], children)
    followed = holdfast("follow", mother, *place).output
    for child in children:
        assert any("starts its child" in line and f", run {child}" in line for line in followed.splitlines())
    assert f", run {children[-1]}" in next(line for line in followed.splitlines() if "waits for its child" in line)


def test_a_tool_in_doubt_is_a_stage_with_a_filter_and_a_count(folder: Path) -> None:
    (folder / "shop.py").write_text(FAMILY)
    app = load("shop.py")
    run = app.start("child", 1)
    app.start("child", 2)
    store = app.store()

    async def die() -> None:
        claim = Claim(worker="w", entries=frozenset(app.entries), queues=None, limit=1, lease_seconds=60)
        ((held,),) = [answer.claimed for answer in await store.commit([claim])]
        started = ("tool_invocation_started", {"node": "pay:1", "name": "pay", "try": 1, "args": {}})
        doubt = {"node": "pay:1", "correlation_key": "holdfast:doubt:pay:1", "wait_type": "human", "park": True}
        await store.commit([Append(held.job.id, held.job.attempt, (started, ("job_waiting", doubt)))])

    app.block(die())
    place = ("--url", f"sqlite:///{folder}/shop.db")
    assert app.get(run.id).stage == "in_doubt"
    assert [record.run_id for record in app.list(asks=True)] == [run.id]
    assert app.stats().asks == 1
    app.close()
    listed = holdfast("runs", "--asks", *place).output.splitlines()
    assert [line.split()[0] for line in listed[1:]] == [run.id]
    assert "in_doubt" in listed[1]
    assert "in doubt  1: see holdfast runs --asks" in holdfast("stats", *place).output
