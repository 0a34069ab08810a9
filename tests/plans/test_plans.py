"""Plans on every store: what runs when, what a failure stops, what is recorded, and what runs again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import (
    App,
    IdempotencyConflict,
    InvalidPlan,
    PayloadTooLarge,
    Plan,
    RunFailed,
    Secret,
    StepFailed,
    extend,
    spend,
)
from holdfast.client.verify import check_replay
from holdfast.plans import Draft, Extension
from holdfast.plans.node_history import NodeHistory
from holdfast.plans.node_states import NodeStates
from holdfast.ready import ConcurrencyGate
from holdfast.store import Reclaim, ReleaseLeases
from support.codec import HmacCodec
from support.stories import drain, play, until


async def states(app: App, run_id: str) -> dict[str, str]:
    past = NodeHistory(await app.aevents(run_id))
    assert past.plan is not None
    return NodeStates(Plan.from_dict(past.plan), past).states


def test_a_plan_written_in_python_runs_and_gives_its_last_nodes(app: App) -> None:
    @app.step
    async def extract(day: str) -> dict[str, list[int]]:
        return {"rows": [len(day), 2]}

    @app.step
    def double(number: int) -> int:
        return number * 2

    @app.tool
    async def load(rows: list[int], note: str = "") -> str:
        return f"{sum(rows)} {note}"

    etl = app.plan("etl")
    rows = etl.call(extract, day=etl.input.day)
    doubled = etl.map(double, rows["rows"], number=etl.item)
    approved = etl.wait("approve", after=doubled)
    etl.call(load, rows=doubled, note=approved.by)

    async def story() -> None:
        run = await etl.astart(day="monday")
        await drain(app)
        assert await states(app, run.id) == {
            "extract": "done",
            "double": "done",
            "approve": "waiting",
            "load": "pending",
        }
        await run.asignal("approve", {"by": "ann"})
        await drain(app)
        assert await run.aresult(timeout=60) == {"load": "16 ann"}
        started = [one.payload for one in await run.aevents() if one.type == "tool_invocation_started"]
        assert started[0]["args"] == {"rows": {"$ref": "double"}, "note": {"$ref": "approve.by"}}, "nothing is copied"
        assert [one.type for one in await run.aevents()].count("plan_generated") == 1
        assert await app.averify() == {}
        assert (await check_replay(app, await run.aevents())).fits
        by_name = await app.astart("etl", day="x")
        assert by_name.id != run.id

    play(story())


def test_ready_nodes_run_in_parallel_up_to_the_limit(app: App) -> None:
    running, most = 0, 0
    both = asyncio.Event()

    @app.step
    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            both.set()
        await both.wait()
        await asyncio.sleep(0)
        running -= 1
        return number

    plan = app.plan("wide", limit=2)
    for number in range(6):
        plan.call(work, number=number)
    plan.map(work, [7, 8, 9], number=plan.item, id="all")
    plan.returns([])

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        assert await run.aresult(timeout=60) == []
        assert most == 2

    play(story())


def fallible(app: App, seen: list[str]) -> Any:
    broken = {"bad", "worse"}

    @app.step
    async def work(name: str, of: Any = None) -> str:
        del of
        seen.append(name)
        if name in broken:
            raise ValueError(f"{name} is broken")
        return name

    return work, broken


def test_a_failed_node_stops_what_depends_on_it_and_all_failures_are_listed(app: App) -> None:
    seen: list[str] = []
    work, broken = fallible(app, seen)
    plan = app.plan("p")
    bad = plan.call(work, name="bad", id="bad")
    plan.call(work, name="never", of=bad, id="never")
    good = plan.call(work, name="good", id="good")
    plan.call(work, name="after", of=good, id="after")
    plan.call(work, name="worse", of=good, id="worse")

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        with pytest.raises(RunFailed, match=r"p failed: 2 of 5 nodes: bad: .*bad is broken; worse: .*worse is broken"):
            await run.aresult(timeout=60)
        assert sorted(seen) == ["after", "bad", "good", "worse"]
        assert (await states(app, run.id))["never"] == "stopped"
        broken.clear()
        seen.clear()
        await app.aretry(run.id, actor="ann", reason="mended")
        await drain(app)
        assert (await app.aget(f"{run.id}.2")).status == "succeeded"
        assert sorted(seen) == ["bad", "never", "worse"], "only what had failed is done again"
        assert await app.averify() == {}

    play(story())


def test_fail_fast_begins_nothing_more_and_waits_for_nobody(app: App) -> None:
    seen: list[str] = []
    work, _ = fallible(app, seen)
    plan = app.plan("p", policy="fail_fast", limit=1)
    plan.wait("never")
    plan.call(work, name="bad", id="bad")
    plan.call(work, name="good", id="good")

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        with pytest.raises(RunFailed, match="1 of 3 nodes: bad"):
            await run.aresult(timeout=60)
        assert seen == ["bad"]

    play(story())


def test_a_wait_parks_the_job_only_when_nothing_else_can_run(app: App) -> None:
    go = asyncio.Event()

    @app.step
    async def slow() -> str:
        await go.wait()
        return "slow"

    plan = app.plan("p")
    plan.wait("first")
    plan.call(slow)
    plan.sleep("1h", id="long")

    async def story() -> None:
        run = await plan.astart()
        working = asyncio.create_task(app.worker().arun())

        async def began() -> bool:
            return any(one.type == "node_started" for one in await run.aevents())

        async def waits() -> bool:
            return any(one.type == "job_waiting" for one in await run.aevents())

        await until(began)
        assert not await waits(), "a step is under way"
        assert (await states(app, run.id)) == {"first": "waiting", "slow": "running", "long": "waiting"}
        go.set()
        await until(waits)
        working.cancel()
        await asyncio.wait([working])
        waiting = next(one for one in await run.aevents() if one.type == "job_waiting").payload
        assert waiting["node"] == "sleep:long"
        assert waiting["also"] == [{"node": "wait:first", "correlation_key": "first"}]

    play(story())


def test_a_wait_that_nobody_answers_fails_its_node_and_a_retry_waits_again(app: App) -> None:
    plan = app.plan("p")
    plan.wait("late", timeout="5ms", id="approval")

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        with pytest.raises(RunFailed, match=r"approval: .*WaitTimeout: no signal 'late' arrived in time"):
            await run.aresult(timeout=60)
        await app.aretry(run.id, actor="ann", reason="now they are there")
        await run.asignal("late", "yes")
        await drain(app)
        assert await app.aoutcome(f"{run.id}.2") == {"approval": "yes"}

    play(story())


def test_a_node_has_its_own_retries_timeout_and_policy_of_doubt(app: App) -> None:
    tries: list[str] = []

    @app.step
    async def flaky(name: str) -> str:
        tries.append(name)
        if tries.count(name) < 3:
            raise ValueError("again")
        return name

    @app.tool
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    plan = app.plan("p")
    plan.call(flaky, name="a", id="a", retries=2)
    plan.call(flaky, name="b", id="b")
    plan.call(hang, timeout=0.01, on_doubt="fail")

    async def story() -> None:
        made = app.calls["flaky"]
        made.backoff = type(made.backoff)(first_seconds=0.001)
        run = await plan.astart()
        await drain(app)
        with pytest.raises(RunFailed) as failed:
            await run.aresult(timeout=60)
        assert "b: flaky failed: ValueError: again" in str(failed.value)
        assert "hang: hang failed: InDoubt" in str(failed.value)
        assert (tries.count("a"), tries.count("b")) == (3, 1)

    play(story())


def test_a_call_in_doubt_or_tried_again_much_later_takes_no_place_of_the_limit(app: App) -> None:
    @app.tool
    async def hang(number: int) -> int:
        if number == 0 and not answered:
            await asyncio.Event().wait()
        return number

    @app.step(retries=1)
    async def stumble() -> None:
        if not answered:
            raise ValueError("later")

    @app.step
    async def work(number: int) -> int:
        return number

    answered: list[bool] = []
    plan = app.plan("p", limit=1)
    doubt = plan.call(hang, number=0, timeout=0.01, id="doubt")
    plan.map(hang, [0, 1, 2], number=plan.item, timeout=0.01, limit=1, id="items")
    plan.call(stumble)
    last = plan.call(work, number=1, id="one")
    plan.call(work, number=last, id="two")
    plan.call(work, number=doubt, id="behind")

    async def story() -> None:
        made = app.calls["stumble"]
        made.backoff = type(made.backoff)(retries=1, first_seconds=60)
        run = await plan.astart()
        await drain(app)
        past = NodeHistory(await run.aevents())
        assert set(past.ended) == {"hang:items[1]", "hang:items[2]", "work:one", "work:two"}
        assert past.doubtful == {"hang:doubt", "hang:items[0]"}
        assert (await app.aget(run.id)).finished_at is None
        answered.append(True)
        await app.aresolve(run.id, "hang:doubt", done=7)
        await drain(app)
        await app.aresolve(run.id, "hang:items[0]", not_done=True)
        await drain(app)
        past = NodeHistory(await run.aevents())
        assert past.ended["work:behind"].result == 7
        assert past.ended["hang:items[0]"].result == 0
        assert await app.averify() == {}

    play(story())


def test_a_node_passes_the_gate_that_it_names(app: App) -> None:
    most = running = 0

    @app.step
    async def fetch(number: int) -> int:
        nonlocal most, running
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return number

    plan = app.plan("p", gates={"api": ConcurrencyGate(2)})
    plan.map(fetch, list(range(8)), number=plan.item, gate="api")

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        assert await run.aresult(timeout=60) == {"fetch": list(range(8))}
        assert most == 2

    play(story())


def test_a_choice_runs_one_branch_and_a_node_that_needs_any_joins_them(app: App) -> None:
    @app.step
    async def score(text: str) -> int:
        return len(text)

    @app.step
    async def note(text: str | None, other: str | None = None) -> str:
        return f"{text}/{other}"

    plan = app.plan("p")
    scored = plan.call(score, text=plan.input.text)
    high = plan.call(note, text="high", id="high")
    low = plan.call(note, text="low", id="low")
    lower = plan.call(note, text=low, id="lower")
    plan.choice(scored, [{"above": 3, "then": high}, {"any_of": [1, 2], "then": []}], otherwise=low)
    plan.call(note, text=high, other=lower, id="join", needs="any")

    async def story() -> None:
        runs = [await plan.astart(text=text) for text in ("a", "abc", "abcdef")]
        await drain(app)
        assert [await run.aresult(timeout=60) for run in runs] == [
            {},
            {"join": "None/low/None/None"},
            {"join": "high/None/None"},
        ]
        assert (await states(app, runs[2].id))["lower"] == "skipped"
        assert (await check_replay(app, await runs[2].aevents())).fits

    play(story())


def test_a_planner_is_asked_once_whatever_it_would_answer_later(app: App) -> None:
    answers = iter(["first", "second", "third"])
    asked: list[str] = []

    @app.step
    async def think(goal: str) -> str:
        asked.append(goal)
        return next(answers)

    @app.step
    async def do(what: str) -> str:
        return what

    @app.planner
    async def agent(goal: str) -> Plan:
        thought = await think(goal)
        asked.append(thought)
        draft = Draft("agent")
        said = draft.wait("go")
        draft.call(do, what=thought, after=said)
        draft.call(think, goal=draft.input.goal, id="again", after=said)
        return draft.plan()

    async def story() -> None:
        run = await agent.astart("rest")
        await drain(app)
        await run.asignal("go")
        await drain(app)
        assert await run.aresult(timeout=60) == {"do": "first", "again": "second"}
        assert asked == ["rest", "first", "rest"], "planned once; the node that thinks is a call of its own"
        kinds = [one.type for one in await run.aevents()]
        assert kinds.count("plan_generated") == 1
        assert kinds.count("job_running") == 2
        assert (await check_replay(app, await run.aevents())).fits
        assert await app.averify() == {}

    play(story())


def test_a_plain_planner_plans_too_and_a_bad_plan_fails_the_job(app: App) -> None:
    @app.step
    def number() -> int:
        return 7

    @app.planner(name="plain")
    def planned(twice: bool) -> Any:
        draft = Draft()
        draft.call("number" if number() == 7 else "nothing")
        return draft if not twice else "nonsense"

    async def story() -> None:
        good, bad = await planned.astart(False), await planned.astart(True)  # noqa: FBT003
        await drain(app)
        assert await good.aresult(timeout=60) == {"number": 7}
        with pytest.raises(RunFailed, match="a planner must return a Plan, got str"):
            await bad.aresult(timeout=60)

    play(story())


def test_a_step_extends_the_plan_and_what_was_added_is_recorded(app: App) -> None:
    rounds: list[int] = []

    @app.step
    async def work(number: int) -> int:
        return number * 10

    @app.step
    async def replan(number: int) -> Extension | int:
        rounds.append(number)
        if number > 25:
            return number
        more = Draft()
        done = more.call(work, number=number + 1, id=f"work{number}")
        last = more.call(replan, number=done, id=f"replan{number}")
        more.returns(last)
        return extend(more)

    plan = app.plan("p")
    plan.call(replan, number=plan.call(work, number=0))
    plan.wait("go")

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        await run.asignal("go")
        await drain(app)
        assert await run.aresult(timeout=60) == 110
        assert rounds == [0, 10, 110], "a replay extends by what was recorded"
        assert (await states(app, run.id)) == dict.fromkeys(
            ["work", "replan", "go", "work0", "replan0", "work10", "replan10"], "done"
        )
        assert await app.averify() == {}

    play(story())


def test_an_extension_that_changes_what_is_there_fails_its_node(app: App) -> None:
    @app.step
    async def meddle(kind: str) -> Extension:
        more = Draft()
        if kind == "same":
            more.call(meddle, kind="x", id="a")
        else:
            more.choice(1, {1: ["b"]})
        return extend(more)

    plan = app.plan("p")
    plan.call(meddle, kind="same", id="a")
    plan.call(meddle, kind="choose", id="b")

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        with pytest.raises(RunFailed) as failed:
            await run.aresult(timeout=60)
        assert "a: 2 nodes have this id" in str(failed.value)
        assert "it can only choose among new nodes" in str(failed.value)

    play(story())


def test_a_value_that_does_not_fit_fails_its_node_alone(app: App) -> None:
    @app.step
    async def loose() -> Any:
        return {"rows": "none"}

    @app.step
    async def strict(rows: list[int]) -> int:
        return len(rows)

    plan = app.plan("p")
    given = plan.call(loose)
    plan.call(strict, rows=given.rows)
    plan.call(strict, rows=given.lines, id="gone")
    plan.map(strict, given.rows, rows=plan.item, id="each")
    plan.sleep(given, id="nap")

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        with pytest.raises(RunFailed) as failed:
            await run.aresult(timeout=60)
        assert "strict: strict failed: InvalidArguments" in str(failed.value)
        assert "gone failed: Missing: loose.lines: there is no 'lines' in an object with 'rows'" in str(failed.value)
        assert "each failed: Missing: the items of a map must be a list, got 'none'" in str(failed.value)
        assert "nap failed: Missing: " in str(failed.value)

    play(story())


def test_a_plan_can_be_a_child_of_a_plan_and_of_code(app: App) -> None:
    @app.step
    async def double(number: int) -> int:
        return number * 2

    inner = app.plan("inner")
    inner.returns(inner.call(double, number=inner.input.number))
    outer = app.plan("outer")
    outer.map(inner, [1, 2, 3], number=outer.item, limit=2)

    @app.job
    async def code() -> Any:
        return await inner(number=21)

    async def story() -> None:
        runs = [await outer.astart(), await code.astart()]
        await drain(app)
        assert [await run.aresult(timeout=60) for run in runs] == [{"inner": [2, 4, 6]}, 42]

    play(story())


def test_arguments_are_checked_against_what_the_nodes_take(app: App) -> None:
    @app.step
    async def double(number: int) -> int:
        return number * 2

    plan = app.plan("p", input={"other": 5})
    plan.call(double, number=plan.input.number)
    plan.call(double, number=plan.input.other)

    async def story() -> None:
        for wrong in ({"number": "x"}, {}, {"number": 1, "more": 2}):
            with pytest.raises(TypeError):
                await plan.astart(**wrong)
        run = await plan.astart(number=2)
        await drain(app)
        assert await run.aresult(timeout=60) == {"double": 4, "double_2": 10}
        schema = next(one for one in await app.aentries() if one.entry_id == "p").parameters
        assert schema["required"] == ["number"]
        assert schema["properties"]["number"] == {"type": "integer"}

    play(story())


def test_a_run_can_be_given_a_plan_of_its_own(app: App) -> None:
    @app.step
    async def double(number: int) -> int:
        return number * 2

    entry = app.plan("anything")
    one, other = Draft("one"), Draft("other")
    one.call(double, number=1)
    other.call(double, number=2)

    async def story() -> None:
        first = await entry.given(one).options(key="k").astart()
        assert (await entry.given(one).options(key="k").astart()).id == first.id
        with pytest.raises(IdempotencyConflict):
            await entry.given(other).options(key="k").astart()
        wrong = Draft("wrong")
        wrong.call("nothing")
        with pytest.raises(InvalidPlan):
            await entry.given(wrong).astart()
        await drain(app)
        assert await first.aresult(timeout=60) == {"double": 2}

    play(story())


def test_a_plan_of_its_own_may_have_inputs_of_its_own(app: App) -> None:
    @app.step
    async def add(one: int, two: int) -> int:
        return one + two

    entry = app.plan("sum", input={"one": 1})
    entry.call(add, one=entry.input.one, two=2)
    own = Draft("own", input={"two": 5})
    own.call(add, one=own.input.first, two=own.input.two)

    async def story() -> None:
        run = await entry.given(own).astart(first=10)
        await drain(app)
        assert await run.aresult(timeout=60) == {"add": 15}

    play(story())


def test_a_plan_over_its_budget_says_so_beside_other_waits_and_a_fork_has_the_same_budget(app: App) -> None:
    @app.step
    async def think(about: str) -> str:
        spend(cents=7)
        return about

    thinking = app.plan("thinking")
    first = thinking.call(think, about="one", id="first")
    thinking.wait("approve", timeout="1d")
    thinking.call(think, about=first, id="second")

    async def story() -> None:
        run = await thinking.options(budget={"cents": 5}, group="ann").astart()
        await drain(app)
        last = (await run.aevents())[-1]
        assert (last.type, last.payload["over_budget"]) == ("job_waiting", {"cents": [7.0, 5.0]})
        assert "more than its budget: cents 7 of 5" in (await app.aexplain(run.id)).explanation
        assert (await run.arecord()).metrics == {"spent": {"cents": 7.0}}
        await app.agrant(run.id, cents=5)
        await run.asignal("approve", "yes")
        await drain(app)
        assert await run.aresult(timeout=60) == {"approve": "yes", "second": "one"}
        fork = await app.afork(run.id, from_node="first")
        created = (await fork.aevents())[0].payload
        assert (created["budget"], created["group"]) == ({"cents": 5_000_000}, "ann")

    play(story())


def test_a_secret_reaches_a_node_from_an_input_and_from_nowhere_else(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_KEY", "s3cret")
    app.vault.codec = HmacCodec(b"k" * 32)

    @app.step
    async def size(key: Secret[str]) -> int:
        return len(key.reveal())

    @app.planner
    async def planned(key: Secret[str]) -> Draft:
        del key
        draft = Draft()
        draft.call(size, key=draft.input.key)
        return draft

    direct = app.plan("direct")
    direct.call(size, key=direct.input.key)
    sent = app.plan("sent")
    sent.call(size, key=sent.wait("key"))
    written = app.plan("written")
    written.call(size, key={"$literal": {"$secret": {"env": "PLANTED_KEY"}}})

    async def story() -> None:
        runs = [
            await job.astart(key=key) for job in (direct, planned) for key in (Secret.env("PLANTED_KEY"), Secret("abc"))
        ]
        refused = [await sent.astart(), await written.astart()]
        await refused[0].asignal("key", {"$secret": {"env": "PLANTED_KEY"}})
        await drain(app)
        assert [await run.aresult(timeout=60) for run in runs] == [{"size": 6}, {"size": 3}] * 2
        for run in refused:
            with pytest.raises(RunFailed, match="may not be named by clients"):
                await run.aresult(timeout=60)
        for run in [*runs, *refused]:
            kept = str([one.payload for one in await run.aevents()])
            assert not any(word in kept for word in ("s3cret", "'abc'"))

    play(story())


def test_an_index_that_is_none_fails_its_node_alone(app: App) -> None:
    @app.step
    async def items() -> Any:
        return [1, 2]

    @app.step
    async def take(item: Any) -> Any:
        return item

    parts = {"last": "-1", "dashes": "--1", "long": "9" * 5000, "foreign": "\u0661"}
    draft = app.plan("parts")
    draft.call(items)
    for name, part in parts.items():
        draft.call(take, id=name, item={"$ref": f"items.{part}"})

    async def story() -> None:
        run = await draft.astart()
        await drain(app)
        with pytest.raises(RunFailed) as failed:
            await run.aresult(timeout=60)
        assert "3 of 5 nodes" in str(failed.value)
        assert all(f"{name}: " in str(failed.value) for name in ("dashes", "long", "foreign"))
        assert (await states(app, run.id))["last"] == "done"

    play(story())


def test_a_tuple_is_a_list_to_what_refers_to_it_before_a_replay_and_behind_it(app: App) -> None:
    @app.step
    async def both() -> tuple[int, str]:
        return 7, "seven"

    @app.step
    async def rows() -> dict[str, Any]:
        return {"rows": (1, 2)}

    @app.step
    async def take(item: Any) -> Any:
        return item

    plan = app.plan("tuples")
    pair, many = plan.call(both), plan.call(rows)
    go = plan.wait("go")
    for when in ("before", "behind"):
        after = go if when == "behind" else ()
        plan.call(take, item=pair[-1], id=f"part_{when}", after=after)
        plan.map(take, many["rows"], item=plan.item, id=f"all_{when}", after=after)

    @app.planner
    async def planned(of: tuple[int, ...] = (3, 4)) -> Plan:
        draft = Draft(f"of {len(of)}")
        draft.returns([draft.map(take, draft.input.of, item=draft.item), draft.call(take, item=draft.input.of[0])])
        return draft.plan()

    async def story() -> None:
        run = await plan.astart()
        other = await planned.astart()
        await drain(app)
        await run.asignal("go")
        await drain(app)
        assert await run.aresult(timeout=60) == {
            **{f"part_{when}": "seven" for when in ("before", "behind")},
            **{f"all_{when}": [1, 2] for when in ("before", "behind")},
        }
        assert await other.aresult(timeout=60) == [[3, 4], 3]

    play(story())


def test_a_fork_reuses_what_came_before_and_calls_no_tool_of_it_again(app: App) -> None:
    seen: list[str] = []

    @app.step
    async def price(sku: str) -> int:
        seen.append(f"price {sku}")
        return len(sku)

    @app.tool
    async def charge(cents: int) -> str:
        seen.append(f"charge {cents}")
        return f"receipt {cents}"

    @app.tool
    async def mail(text: str) -> str:
        seen.append(f"mail {text}")
        return text

    @app.job
    async def audit(text: str) -> str:
        seen.append("audit")
        return text

    plan = app.plan("p")
    receipt = plan.call(charge, cents=plan.call(price, sku=plan.input.sku))
    plan.map(price, ["x", "xy"], sku=plan.item, id="each")
    said = plan.wait("go", after=receipt)
    audited = plan.job(audit, text=receipt, after=said)
    plan.call(mail, text=audited)

    async def story() -> None:
        run = await plan.astart(sku="AB")
        await run.asignal("go")
        await drain(app)
        first = await run.aresult(timeout=60)
        seen.clear()
        again = await app.afork(run, from_node="mail", plan=plan.plan().to_dict())
        await drain(app)
        assert await again.aresult(timeout=60) == first
        assert seen == ["mail receipt 2"], "what came before is not called again, nor waited for"

        seen.clear()
        changed = Draft("changed")
        paid = changed.call(charge, cents=changed.call(price, sku=changed.input.sku))
        changed.call(mail, text=paid, id="thank")
        other = await app.afork(run.id, plan=changed)
        await drain(app)
        assert await other.aresult(timeout=60) == {"thank": "receipt 2"}
        assert seen == ["mail receipt 2"]
        assert (await other.arecord()).status == "succeeded"
        assert await app.averify() == {}
        for wrong in ({"from_node": "nothing"}, {"from_step": "mail"}, {}):
            with pytest.raises(TypeError):
                await app.afork(run.id, **wrong)  # type: ignore[arg-type]

    play(story())


def test_a_fork_of_code_goes_on_from_a_step_with_what_was_recorded_before(app: App) -> None:
    from holdfast import now, wait_for

    seen: list[str] = []

    @app.step
    async def price(sku: str) -> int:
        seen.append("price")
        return len(sku)

    @app.tool
    async def refuse() -> str:
        seen.append("refuse")
        raise ValueError("no")

    @app.tool
    async def charge(cents: int) -> str:
        seen.append("charge")
        return f"receipt {cents}"

    @app.job
    async def child(number: int) -> int:
        seen.append("child")
        return number + 1

    @app.job
    async def checkout(sku: str) -> Any:
        at, cents = now(), await price(sku)
        try:
            await refuse()
        except StepFailed as error:
            reason = error.reason
        said = await wait_for("ready")
        return [at, reason, said, await child(cents), await charge(cents)]

    async def story() -> None:
        run = await checkout.astart("AB")
        await run.asignal("ready", "yes")
        await drain(app)
        first = await run.aresult(timeout=60)
        seen.clear()
        again = await app.afork(run.id, from_step="charge")
        await drain(app)
        assert await again.aresult(timeout=60) == first
        assert seen == ["charge"], "step, tool, failure, wait, child and time are reused"
        from_start = await app.afork(run.id, from_step="price")
        await from_start.asignal("ready", "again")
        await drain(app)
        assert (await from_start.aresult(timeout=60))[1:3] == ["no", "again"]
        assert (await app.alist(attributes={"forked_from": run.id}))[0].run_id == from_start.id
        assert await app.averify() == {}
        for wrong in ({"from_step": "nothing"}, {"from_node": "charge"}):
            with pytest.raises(TypeError):
                await app.afork(run.id, **wrong)  # type: ignore[arg-type]

    play(story())


def test_a_fork_from_what_failed_keeps_the_items_of_a_map_that_are_done(app: App) -> None:
    broken = {2}
    seen: list[int] = []

    @app.step
    async def work(number: int) -> int:
        seen.append(number)
        if number in broken:
            raise ValueError("no")
        return number

    plan = app.plan("p")
    plan.map(work, [1, 2, 3], number=plan.item)

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        assert (await run.arecord()).status == "failed"
        broken.clear()
        seen.clear()
        again = await app.afork(run.id, plan=plan.plan())
        await drain(app)
        assert await again.aresult(timeout=60) == {"work": [1, 2, 3]}
        assert seen == [2]

    play(story())


def test_a_plan_is_the_same_as_json_yaml_and_python(app: App) -> None:
    @app.step
    async def double(number: int) -> int:
        return number * 2

    written = app.plan("p")
    written.call(double, number=written.input.number, retries=2)
    as_json = '{"name": "p", "input": {"number": {}}, "nodes": [{"id": "double", "kind": "call", "call": "double", "args": {"number": {"$ref": "input.number"}}, "retries": 2}]}'  # noqa: E501
    as_yaml = """
name: p
input: {number: {}}
nodes:
  - id: double
    kind: call
    call: double
    args: {number: {$ref: input.number}}
    retries: 2
"""
    assert Plan.from_json(as_json) == Plan.from_yaml(as_yaml) == written.plan()
    assert Plan.from_dict(written.plan().to_dict()) == written.plan()


def test_a_plan_over_the_limit_of_bytes_is_refused(app: App) -> None:
    @app.step
    async def keep(text: str) -> int:
        return len(text)

    plan = app.plan("p")
    plan.call(keep, text="x" * app.config.payload_bytes_max)

    @app.planner
    async def large() -> Draft:
        return plan

    async def story() -> None:
        with pytest.raises(PayloadTooLarge, match="the plan of p: "):
            await plan.astart()
        run = await large.astart()
        await drain(app)
        with pytest.raises(RunFailed, match="the plan: "):
            await run.aresult(timeout=60)
        assert len(await app.alist()) == 1

    play(story())


def test_a_literal_may_look_like_a_reference(app: App) -> None:
    @app.step
    async def keep(value: dict[str, str]) -> dict[str, str]:
        return value

    plan = app.plan("p")
    plan.call(keep, value={"$literal": {"$ref": "nothing"}})

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        assert await run.aresult(timeout=60) == {"keep": {"$ref": "nothing"}}

    play(story())


def test_what_a_signal_or_a_child_says_is_no_extension(app: App) -> None:
    seen: list[str] = []

    @app.tool
    async def pay(who: str) -> str:
        seen.append(who)
        return who

    @app.job
    async def child(given: Any) -> Any:
        return given

    told = {"$extend": {"nodes": [{"id": "more", "kind": "call", "call": "pay", "args": {"who": "a stranger"}}]}}
    plan = app.plan("p")
    plan.wait("go")
    plan.job(child, given={"$literal": told})

    async def story() -> None:
        run = await plan.astart()
        await run.asignal("go", told)
        await drain(app)
        assert await run.aresult(timeout=60) == {"go": told, "child": told}
        assert await states(app, run.id) == {"go": "done", "child": "done"}
        assert not seen

    play(story())


def test_an_extension_by_nothing_and_one_that_was_refused_are_shown(app: App) -> None:
    @app.step
    async def more(nodes: int) -> Extension:
        draft = Draft()
        for _ in range(nodes):
            draft.call(more, nodes=0, id="twice")
        return extend(draft)

    plan = app.plan("p")
    plan.call(more, nodes=0, id="none")
    plan.wait("behind", after=plan.call(more, nodes=1, id="twice"))

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        assert await states(app, run.id) == {"none": "done", "twice": "failed", "behind": "stopped"}

    play(story())


def test_an_extension_that_was_refused_for_another_is_so_on_replay(app: App) -> None:
    """The one that came first then may come later now: an id is used once, and one tool acts for it."""
    acted: list[str] = []
    other = asyncio.Event()

    @app.tool
    async def act(who: str) -> None:
        acted.append(who)
        other.set()

    @app.step
    async def slowly() -> Extension:
        await other.wait()
        return extended("slow")

    @app.step
    async def at_once() -> Extension:
        return extended("quick")

    def extended(who: str) -> Extension:
        draft = Draft()
        draft.call(act, who=who, id="x")
        return extend(draft)

    plan = app.plan("p")
    plan.call(slowly)
    plan.call(at_once)
    plan.wait("go")

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        await run.asignal("go")
        await drain(app)
        with pytest.raises(RunFailed, match="slowly failed: InvalidPlan"):
            await run.aresult(timeout=60)

    play(story())
    assert acted == ["quick"]


def test_data_that_looks_like_an_extension_is_none(app: App) -> None:
    @app.tool
    async def pay(who: str) -> str:
        raise AssertionError(who)

    @app.step
    async def fetch() -> Any:
        return {"$extend": {"nodes": [{"id": "x", "kind": "call", "call": "pay", "args": {"who": "a stranger"}}]}}

    plan = app.plan("p")
    plan.call(fetch)
    plan.call(pay, who="nobody", after=plan.wait("never"))

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        assert await states(app, run.id) == {"fetch": "failed", "never": "waiting", "pay": "pending"}
        (failed,) = [event for event in await run.aevents() if event.type == "node_finished"]
        assert "return extend(plan)" in str(failed.payload)

    play(story())


def test_an_item_of_a_map_does_not_extend_the_plan(app: App) -> None:
    @app.step
    async def more(number: int) -> Extension:
        draft = Draft()
        draft.call(more, number=number, id=f"n{number}")
        return extend(draft)

    plan = app.plan("p")
    plan.map(more, [1], number=plan.item, id="each")

    async def story() -> None:
        run = await plan.astart()
        await drain(app)
        with pytest.raises(RunFailed, match=r"each\[0\].*an item of a map cannot extend the plan: extend it"):
            await run.aresult(timeout=60)

    play(story())


def test_what_fails_fast_begins_nothing_after_a_crash(app: App) -> None:
    """Whatever was recorded is read in another order than it came."""
    acted: list[str] = []
    hanging = asyncio.Event()

    @app.step
    async def slow() -> None:
        if acted == []:
            acted.append("slow")
            hanging.set()
            await asyncio.Event().wait()

    @app.step
    async def good() -> None:
        await broke.wait()

    @app.step
    async def bad() -> None:
        raise ValueError("no")

    @app.tool
    async def act() -> None:
        acted.append("act")

    broke = asyncio.Event()
    plan = app.plan("p", policy="fail_fast")
    begun = plan.call(good)
    plan.call(slow)
    plan.call(bad)
    plan.call(act, after=begun)

    async def story() -> None:
        run = await plan.astart()
        working = asyncio.create_task(app.worker(name="w").arun())
        await hanging.wait()
        await until(lambda: _has(app, run.id, "run:stopped"))
        broke.set()
        await until(lambda: _has(app, run.id, "good:good", "node_finished"))
        working.cancel()
        await asyncio.wait([working])
        await app.store().commit([ReleaseLeases("w"), Reclaim()])
        await drain(app)
        with pytest.raises(RunFailed, match="bad: "):
            await run.aresult(timeout=60)
        assert acted == ["slow"]
        await app.aretry(run.id, actor="ann", reason="mended")
        await drain(app)
        assert acted == ["slow", "act"], "a new run is not stopped by what stopped the one before"

    play(story())


def test_what_fails_fast_asks_about_a_tool_in_doubt_that_had_begun_behind_another_node(app: App) -> None:
    """After a crash the failure is heard of before the tool could begin again."""
    acting, broke = asyncio.Event(), asyncio.Event()

    @app.step
    async def bad() -> None:
        await broke.wait()
        raise ValueError("no")

    @app.step
    async def first() -> int:
        return 1

    @app.tool
    async def act(number: int) -> int:
        acting.set()
        await asyncio.Event().wait()
        return number

    plan = app.plan("p", policy="fail_fast")
    plan.call(bad)
    begun = plan.call(first)
    plan.wait("never", after=begun)
    plan.call(act, number=begun)

    async def story() -> None:
        run = await plan.astart()
        working = asyncio.create_task(app.worker(name="w").arun())
        await acting.wait()
        broke.set()
        await until(lambda: _has(app, run.id, "run:stopped"))
        working.cancel()
        await asyncio.wait([working])
        await app.store().commit([ReleaseLeases("w"), Reclaim()])
        await drain(app)
        assert (await states(app, run.id))["act"] == "in doubt"
        await app.aresolve(run.id, "act:act", done=1)
        await drain(app)
        with pytest.raises(RunFailed, match="1 of 4 nodes: bad: "):
            await run.aresult(timeout=60)

    play(story())


async def _has(app: App, run: str, node: str, kind: str = "value_recorded") -> bool:
    return any(one.type == kind and one.payload.get("node") == node for one in await app.aevents(run))


def test_what_a_plan_returns_can_be_said_after_a_run_was_started(app: App) -> None:
    @app.step
    async def one() -> int:
        return 1

    plan = app.plan("p")
    gives = plan.call(one)

    async def story() -> None:
        before = await plan.astart()
        plan.returns({"it": gives})
        behind = await plan.astart()
        await drain(app)
        assert await before.aresult(timeout=60) == {"one": 1}
        assert await behind.aresult(timeout=60) == {"it": 1}

    play(story())


def test_a_fork_with_another_default_does_again_what_takes_it(app: App) -> None:
    @app.step
    async def echo(text: str) -> str:
        return text

    def written(day: str) -> Plan:
        draft = Draft("p", input={"day": day})
        draft.call(echo, text=draft.call(echo, text=draft.input.day, id="first"))
        return draft.plan()

    plan = app.plan("p")

    async def story() -> None:
        run = await plan.given(written("monday")).astart()
        await drain(app)
        other = await app.afork(run.id, plan=written("tuesday"))
        lacking = Draft()
        lacking.call(echo, text=lacking.input.night)
        with pytest.raises(InvalidPlan, match=r"input\.night: the run has no such input"):
            await app.afork(run.id, plan=lacking)
        await drain(app)
        assert await other.aresult(timeout=60) == {"echo": "tuesday"}

    play(story())


def test_the_inputs_of_what_a_planner_gives_are_its_arguments_with_their_defaults(app: App) -> None:
    seen: list[str] = []

    @app.tool
    async def note(text: str) -> str:
        seen.append(text)
        return text

    @app.planner
    async def agent(goal: str = "usual", lacking: str = "") -> Draft:  # noqa: ARG001 - its name is an input
        draft = Draft()
        draft.call(note, text=draft.input.goal)
        if lacking:
            draft.call(note, text=draft.input[lacking])
        return draft

    async def story() -> None:
        usual = await agent.astart()
        given = await agent.astart("other")
        wrong = await agent.astart("never", "nothing")
        await drain(app)
        assert await usual.aresult(timeout=60) == {"note": "usual"}
        assert await given.aresult(timeout=60) == {"note": "other"}
        with pytest.raises(RunFailed, match=r"input\.nothing: agent takes no such argument"):
            await wrong.aresult(timeout=60)
        assert sorted(seen) == ["other", "usual"], "what cannot run does nothing"

    play(story())
