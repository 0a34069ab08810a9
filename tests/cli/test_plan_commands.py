"""Plans on the command line: checked, drawn as files and as runs, and followed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import main
from holdfast.plans import Draft, Plan
from holdfast.plans.node_states import STATES
from holdfast.plans.plan_diagram import MARKS, dot, mermaid, tree
from support.scripts import ROOT

SHOP = """
from holdfast import App

app = App("shop")

@app.step
async def extract(day: str) -> list[int]:
    return [1, 2]

@app.step
async def broken(rows: list[int]) -> int:
    raise ValueError("no")

etl = app.plan("etl", "etl.yaml")
"""
ETL = """
name: etl
input: {day: {}}
nodes:
  - {id: extract, kind: call, call: extract, args: {day: {$ref: input.day}}}
  - {id: approve, kind: wait, after: [extract]}
  - {id: sums, kind: call, call: broken, args: {rows: {$ref: extract}}}
  - {id: late, kind: call, call: broken, args: {rows: {$ref: extract}}, after: [sums]}
  - {id: which, kind: choice, value: {$ref: approve}, cases: [{equals: true, then: [never]}]}
  - {id: never, kind: sleep, duration: 1h}
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "etl.yaml").write_text(ETL)
    (tmp_path / "shop_of_plans.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path / 'jobs.db'}")
    return tmp_path


def holdfast(*words: str, color: bool = False) -> Result:
    return CliRunner().invoke(main, list(words), color=color)


def test_a_good_plan_is_said_to_be_good_and_a_bad_one_is_told_all_that_is_wrong(shop: Path) -> None:
    good = holdfast("plan", "check", "etl.yaml", "--target", "shop_of_plans.py")
    assert (good.exit_code, good.output) == (0, "etl: 6 nodes, no problems\n")
    (shop / "bad.json").write_text(json.dumps({"nodes": [{"id": "a", "kind": "call", "call": "x", "after": ["b"]}]}))
    bad = holdfast("plan", "check", "bad.json", "--target", "shop_of_plans.py")
    assert (bad.exit_code, bad.output) == (1, "a.after: there is no node 'b'\na.call: there is no step or tool 'x'\n")
    alone = holdfast("plan", "check", "bad.json", "--json")
    assert (alone.exit_code, json.loads(alone.output)) == (1, {"problems": ["a.after: there is no node 'b'"]})
    (shop / "none.json").write_text("[")
    assert "not valid JSON" in holdfast("plan", "check", "none.json").output


def test_a_file_that_is_not_there_or_is_no_plan_is_told_as_such(shop: Path) -> None:
    missing = holdfast("plan", "show", "nowhere.yaml")
    assert (missing.exit_code, "no file is named nowhere.yaml" in missing.stderr) == (2, True)
    (shop / "bad.yaml").write_text("nodes:\n - {id: on, kind: sleep, duration: 1}\n - {id: a, kind: 1}\n")
    bad = holdfast("plan", "show", "bad.yaml")
    assert bad.exit_code == 2
    assert bad.stderr.splitlines()[1:] == [
        "nodes[0].id: must be text, got true: YAML reads it that way; write it in quotes",
        "nodes[1] (a).kind: unknown kind 1: use one of call, wait, sleep, job, map and choice",
    ]


def test_a_run_is_drawn_with_the_states_of_its_nodes(shop: Path) -> None:
    del shop
    started = holdfast("start", "shop_of_plans.py", "etl", "day=monday")
    run = started.output.strip()
    assert started.exit_code == 0, started.output
    work = [sys.executable, "-m", "holdfast", "worker", "shop_of_plans.py", "--until-idle"]
    subprocess.run(work, check=True, timeout=60)
    shown = holdfast("plan", "show", run)
    assert shown.output.splitlines() == [
        "✓ extract  [done]",
        "  ⏸ approve (wait approve)  ← extract  [waiting]",
        "    · which (choice)  ← approve  [pending]",
        "      · never (sleep 1h)  ← which  [pending]",
        "  ✗ sums (broken)  ← extract  [failed]",
        "    ⊘ late (broken)  ← sums, extract  [stopped]",
    ]
    assert "\x1b[31m" in holdfast("plan", "show", run, color=True).output, "what failed is red on a terminal"
    drawn: Any = json.loads(holdfast("plan", "show", run, "--format", "json").output)
    assert drawn["states"]["sums"] == "failed"
    assert "classDef failed" in holdfast("plan", "show", run, "--format", "mermaid").output
    assert (
        '"sums" [label="sums: broken (failed)", fillcolor=' in holdfast("plan", "show", run, "--format", "dot").output
    )
    holdfast("signal", run, "approve", "false")
    subprocess.run(work, check=True, timeout=60)
    followed = holdfast("follow", run)
    assert "2 of 6 nodes done" not in followed.output.splitlines()[-1]
    assert "3 of 6 nodes done · failed: sums · stopped: late · skipped: never" in followed.output
    assert holdfast("plan", "show", "nothing").exit_code == 3
    again = holdfast("retry", run, "--reason", "mended").output.split()[0]
    assert again == f"{run}.2"
    assert "✗ sums (broken)  ← extract  [failed]" in holdfast("plan", "show", again).output


def test_a_file_is_drawn_without_states(shop: Path) -> None:
    del shop
    assert holdfast("plan", "show", "etl.yaml").output.splitlines()[0] == "extract"
    assert holdfast("plan", "show", "etl.yaml", "--format", "mermaid").output.startswith("flowchart TD\n")


def test_a_circle_is_drawn_with_its_nodes(shop: Path) -> None:
    nodes = [{"id": name, "kind": "sleep", "duration": 1, "after": [after]} for name, after in ("ab", "ba", "cb")]
    (shop / "circle.json").write_text(json.dumps({"nodes": nodes}))
    drawn = holdfast("plan", "show", "circle.json").output
    assert [line.split()[0] for line in drawn.splitlines()] == ["a", "b", "c"]
    assert "a (sleep 1)  ← b" in drawn


def test_what_would_end_a_line_is_written_out_in_drawings() -> None:
    wait = {"id": "a\nb", "kind": "wait", "key": 'x\n"y"\x1b'}
    sleep = {"id": "c", "kind": "sleep", "duration": 1, "after": ["a\nb"]}
    plan = Plan.from_dict({"name": "two\nlines", "nodes": [wait, sleep]})
    assert [line for line, _ in tree(plan)] == ['a\\nb (wait x\\n"y"\\x1b)', "  c (sleep 1)  ← a\\nb"]
    assert 'n0(["a\\nb: wait x\\n#quot;y#quot;\\x1b"])' in mermaid(plan).splitlines()[1]
    assert len(mermaid(plan).splitlines()) == 4
    assert len(dot(plan).splitlines()) == 6
    assert dot(plan).startswith('digraph "two\\\\nlines" {')


def test_code_has_no_plan_to_show(shop: Path) -> None:
    (shop / "coded.py").write_text(
        "from holdfast import App\napp = App('c')\n@app.job\nasync def j() -> int:\n    return 1\n"
    )
    run = holdfast("start", "coded.py", "j").output.strip()
    shown = holdfast("plan", "show", run)
    assert shown.exit_code == 2
    assert "has no plan: its job is code" in shown.output


def test_the_schema_is_published(shop: Path) -> None:
    del shop
    assert json.loads(holdfast("plan", "schema").output) == json.loads(
        (ROOT / "docs" / "reference" / "plan.schema.json").read_text()
    )


def test_every_state_has_its_mark_and_a_long_chain_stays_readable() -> None:
    assert set(MARKS) == set(STATES)
    draft = Draft('a "name"')
    last: Any = None
    for number in range(1000):
        last = draft.call("work", n=number, **({} if last is None else {"of": last}))
    lines = tree(draft.plan())
    assert len(lines) == 1000
    assert max(len(line) for line, _ in lines) < 80
    assert mermaid(draft.plan()).count("-->") == 999
    assert dot(draft.plan()).startswith('digraph "a \\"name\\""')
    assert Plan.from_dict(draft.plan().to_dict()) == draft.plan()


def test_the_agent_is_killed_in_the_middle_and_sends_once() -> None:
    agent = ROOT / "examples" / "planner.py"
    ran = subprocess.run([sys.executable, agent], capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "⏸ approve" in ran.stdout
    assert "It has spent more than its budget: cents 18 of 10. It continues after a grant." in ran.stdout
    assert "'spent': {'cents': 18.0}" in ran.stdout, "what was spent before the kill is spent, and only once"
    assert "the model was asked 2 times, and planned 1 time" in ran.stdout
